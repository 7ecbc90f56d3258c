//! Compares the service of VMs in a phase with the fluid model.
//!
//! # Tolerance
//!
//! Service comes in pieces, so the service of a VM may differ from the model by a constant in an interval of any length:
//! [`allowance`]. In long phases the tolerance is a fraction of the service that is due: 1 % on one node, and 2 % on
//! several, because each node learns of service at the others with a delay.
//!
//! # VMs that are always backlogged
//!
//! A VM with few outstanding requests cannot use its allocation: when it could be served, its requests are at the device
//! or at another node. Whether it can use its allocation is derived from the plan, not from the run. If it cannot, its
//! demand is the service that it got, and the other VMs share the rest.

use std::fmt;

use super::model::Bound;
use super::phase::PhaseCheck;
use super::plan::{Cloud, Plan};
use super::run::PhaseRun;
use super::shape::Shape;

/// Minimum part of the capacity that is divided by weight while a VM without a reservation is backlogged: the default of
/// `weight_floor`.
pub const FLOOR: f64 = 0.02;

/// Fraction of the due service by which the service of a VM may differ, on one node and on several.
pub const TOLERANCE: [f64; 2] = [0.01, 0.02];
/// Number of requests of the size of the largest piece by which the service of a VM may differ at each node, in addition
/// to depth and burst.
const REQUESTS: f64 = 16.0;

/// One VM in one phase that was checked; rates in normalised requests per second.
#[derive(Debug, Clone)]
pub struct Finding {
    pub phase: usize,
    pub vm: usize,
    /// The rule that determines most of the due service.
    pub bound: Bound,
    /// Whether the VM is always backlogged.
    pub always: bool,
    /// Minimum and maximum of the model.
    pub due: (f64, f64),
    pub got: f64,
    /// The tolerance.
    pub allowed: f64,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Good,
    Low,
    High,
    /// More than limit and burst.
    OverLimit,
}

impl Finding {
    pub fn is_bad(&self) -> bool {
        self.verdict != Verdict::Good
    }

    /// The deviation as a multiple of the tolerance.
    pub fn severity(&self) -> f64 {
        (self.due.0 - self.got).max(self.got - self.due.1) / self.allowed
    }

    /// Kind of failure, for statistics.
    pub fn class(&self) -> String {
        let demand = if self.always { "always backlogged" } else { "not always backlogged" };
        format!("{:?}, {demand}, {:?}", self.bound, self.verdict)
    }
}

/// Checks all phases. Returns a finding for each VM in each phase.
pub fn check(plan: &Plan, runs: &[PhaseRun]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = Before::nothing(plan);
    for (number, run) in runs.iter().enumerate() {
        let phase = PhaseCheck::new(plan, number, run, &before);
        let mut after = Before::nothing(plan);
        for (member, &vm) in phase.members.iter().enumerate() {
            let finding = compare(&phase, member, &before.owed);
            after.tokens[vm] = Some(phase.due[member].tokens);
            after.missed[vm] = phase.missed(member);
            if plan.cloud.nodes > 1 {
                after.owed[vm] = owed(&phase, member, &finding, before.owed[vm]);
            }
            findings.push(finding);
        }
        before = after;
    }
    findings
}

/// State at the end of the previous phase, by VM.
pub struct Before {
    /// Unused part of the limit's burst.
    pub tokens: Vec<Option<f64>>,
    /// Missed part of the reservation, in normalised requests. The scheduler catches up on it in the next phase.
    pub missed: Vec<f64>,
    /// Service that the nodes have not yet charged, see [`owed`].
    owed: Vec<f64>,
}

impl Before {
    fn nothing(plan: &Plan) -> Before {
        let count = plan.vms.len();
        Before { tokens: vec![None; count], missed: vec![0.0; count], owed: vec![0.0; count] }
    }
}

fn compare(phase: &PhaseCheck, member: usize, owed: &[f64]) -> Finding {
    let always = phase.always_asks(member);
    let got = phase.runs[member].sums.got;
    let several = phase.plan.cloud.nodes > 1;
    let allowed = |service: f64| allowance(phase, always).max(TOLERANCE[usize::from(several)] * service);
    // If other VMs have nothing queued at a node, their unused service there goes to the VMs that do.
    let left_over: f64 =
        (0..phase.members.len()).filter(|other| *other != member).map(|other| phase.unused(other)).sum();
    let unclaimed = phase.beyond_the_model();
    let verdict_of = |(low, high): (f64, f64)| match got {
        more if more > high + allowed(high).max(left_over) + unclaimed => Verdict::High,
        less if less < low - allowed(low) => Verdict::Low,
        _ => Verdict::Good,
    };
    let mut range = (phase.due[member].service, phase.due[member].service);
    let mut verdict = verdict_of(range);
    if verdict != Verdict::Good {
        let own = owed[phase.members[member]];
        range = phase.range(member);
        range = ((range.0 - own).max(0.0), range.1 + owed.iter().sum::<f64>() - own);
        verdict = verdict_of(range);
    }
    if several && verdict == Verdict::Low {
        range.0 = phase.least_at_one_node(member, range.0);
        verdict = verdict_of(range);
    }
    if let Some(least) = phase.least_of_few(member)
        && got + allowance(phase, !phase.others_are_slow(member)) < least
    {
        (range.0, verdict) = (least, Verdict::Low);
    }
    if is_over_limit(phase, member) {
        verdict = Verdict::OverLimit;
    }
    Finding {
        phase: phase.number,
        vm: phase.members[member],
        bound: phase.due[member].main_bound(),
        always,
        due: (range.0 / phase.seconds, range.1 / phase.seconds),
        got: got / phase.seconds,
        allowed: allowed(range.0) / phase.seconds,
        verdict,
    }
}

/// Service that the nodes have not yet charged to a VM after a phase, in normalised requests; `before` is the part of it
/// from earlier phases.
///
/// A node learns of service at the other nodes with the next requests of the VM, and charges then what the VM got above
/// its due service until then. It also charges all service that the VM got while it sent no request, even if no other VM
/// was backlogged: a report of x requests moves the VM's tags by x, whenever these were served. Each request is reported to
/// a node once, so the charge is x and not more. It is paid off when the VM gets less than its due service, over as many
/// phases as that takes.
///
/// Example: two nodes of 1567/s are idle except for 256 queued requests of a silent VM. When the VM sends again, its weight
/// gives it 30/s, and each node learns of the 128 requests served at the other. The VM gets 128 requests less, once: nothing
/// for 128 / 30 = 4.3 s.
fn owed(phase: &PhaseCheck, member: usize, finding: &Finding, before: f64) -> f64 {
    let got = finding.got * phase.seconds;
    let paid = (phase.due[member].service - got).max(0.0);
    let beyond = (got - finding.due.1 * phase.seconds).max(0.0);
    (before - paid).max(0.0) + beyond.max(got.min(phase.unreported(member)))
}

/// Tolerance of a VM, in normalised requests. Random service times vary the service of a VM that is not always backlogged,
/// and the model does not; so three standard deviations are added.
///
/// Example: on one node of depth 8 with pieces of cost 1 and constant service times, (8 + 16) x 1 x 1 = 24 requests.
fn allowance(phase: &PhaseCheck, always: bool) -> f64 {
    let Cloud { nodes, depth, service, .. } = phase.plan.cloud;
    let largest = phase.largest_piece();
    let smoothed = service.exponential && !always;
    let noise = if smoothed { 3.0 * (phase.run.capacity * phase.seconds * largest).sqrt() } else { 0.0 };
    // A node learns of a request at another when the request's last piece completes.
    let unfinished = if nodes > 1 { phase.most_pieces() - 1.0 } else { 0.0 };
    (f64::from(depth) + unfinished + REQUESTS) * nodes as f64 * largest + noise
}

/// Whether a VM got more than its limit, its burst, and one piece, which is always allowed.
fn is_over_limit(phase: &PhaseCheck, member: usize) -> bool {
    let (cloud, policy, sums) = (&phase.plan.cloud, &phase.uses[member].policy, &phase.runs[member].sums);
    let burst = cloud.burst(policy);
    // The first node that a VM uses knows of no other node, the second one knows of one, and so on, and each allows a piece.
    // A node learns of service at the others with the VM's next request, after a delay of the time at the device. Between
    // two requests to a node, the VM sends one to each of the n nodes, and each of the n - 1 others may allow as many: n (n -
    // 1) requests that the node does not know of. It compensates for them later, so they do not accumulate.
    let nodes = cloud.nodes as f64;
    let bursts: f64 = (1..=cloud.nodes).map(|known| 1.0 / known as f64).sum();
    let (late, pieces) = if cloud.nodes > 1 {
        let unreported_pieces = nodes * (nodes - 1.0) * phase.pieces_of_request(member);
        (0.02 * phase.seconds + nodes * phase.device_seconds(member), nodes + unreported_pieces)
    } else {
        (0.0, 1.0)
    };
    let unreported = phase.unreported(member);
    let over = |got: f64, rate: Option<f64>, burst: f64, piece: f64, unreported: f64| {
        rate.is_some_and(|rate| {
            got > rate * (phase.seconds + late) + bursts * burst + pieces * piece + unreported + 0.01
        })
    };
    let Shape { piece, piece_bytes, bytes: each, .. } = phase.shapes[member];
    let (iops, bytes) = (policy.limit.iops, policy.limit.bytes);
    let bytes = bytes.map(|rate| rate.bytes_per_second() as f64);
    over(sums.got, iops.map(|iops| iops.as_f64()), burst.requests, piece, unreported)
        || over(sums.bytes, bytes, burst.bytes, piece_bytes, unreported * each)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { phase, vm, bound, always, due: (low, high), got, allowed, verdict } = self;
        let demand = if *always { "always backlogged" } else { "not always backlogged" };
        write!(
            f,
            "phase {phase}, vm {vm} ({demand}): due {low:.2} to {high:.2}/s, got {got:.2}/s, tolerance {allowed:.2}/s; "
        )?;
        write!(f, "by {bound:?}; {verdict:?}")
    }
}
