//! Compares what VMs got in a phase with what the fluid model says.
//!
//! # Tolerance
//!
//! Service comes in pieces, so a VM may be off by a constant in any interval, however long: [`allowance`]. In long phases a
//! part of what is due counts: 1 % on one node, 2 % on several, where nodes learn with a delay of what others did.
//!
//! # Which VMs always ask
//!
//! A VM that keeps few requests outstanding cannot use its allocation: its requests are at the device, or at another node,
//! while it is its turn. Whether it can is decided from the plan, not from what happened. If it cannot,
//! its demand is what it got, and the other VMs share the rest.

use std::fmt;

use super::model::Bound;
use super::phase::PhaseCheck;
use super::plan::{Cloud, Plan};
use super::run::PhaseRun;
use super::shape::Shape;

/// The part of the capacity that is divided by weight at least while a VM without a reservation asks: `weight_floor` as it is
/// by default.
pub const FLOOR: f64 = 0.02;

/// Part of what is due by which a VM may be off, on one node and on several.
pub const TOLERANCE: [f64; 2] = [0.01, 0.02];
/// Requests of the size of the largest piece by which a VM may be off at each node, apart from depth and burst.
const REQUESTS: f64 = 16.0;

/// One VM in one phase that was checked; rates in normalised requests per second.
#[derive(Debug, Clone)]
pub struct Finding {
    pub phase: usize,
    pub vm: usize,
    /// Which rule decided what is due.
    pub bound: Bound,
    /// Whether it always asked.
    pub always: bool,
    /// At least and at most, as the model says.
    pub due: (f64, f64),
    pub got: f64,
    /// By how much it may be off.
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

    /// By how many times what is allowed it is off.
    pub fn severity(&self) -> f64 {
        (self.due.0 - self.got).max(self.got - self.due.1) / self.allowed
    }

    /// What kind of failure it is, for statistics.
    pub fn class(&self) -> String {
        let asks = if self.always { "asks always" } else { "asks less" };
        format!("{:?}, {asks}, {:?}", self.bound, self.verdict)
    }
}

/// Checks all phases. Returns a finding for each VM in each phase.
pub fn check(plan: &Plan, runs: &[PhaseRun]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = Before::nothing(plan);
    for (number, run) in runs.iter().enumerate() {
        let phase = PhaseCheck::new(plan, number, run, &before);
        let mut after = Before::nothing(plan);
        for (place, &vm) in phase.members.iter().enumerate() {
            let finding = judge(&phase, place, &before.owed);
            after.tokens[vm] = Some(phase.due[place].tokens);
            after.missed[vm] = phase.missed(place);
            if plan.cloud.nodes > 1 {
                after.owed[vm] = owed(&phase, place, &finding, before.owed[vm]);
            }
            findings.push(finding);
        }
        before = after;
    }
    findings
}

/// What is left over from the phase before, by VM.
pub struct Before {
    /// Of the bursts of limits.
    pub tokens: Vec<Option<f64>>,
    /// Of reservations, in normalised requests. They make up for it in the next phase.
    pub missed: Vec<f64>,
    /// What several nodes have not yet held against a VM, see [`owed`].
    owed: Vec<f64>,
}

impl Before {
    fn nothing(plan: &Plan) -> Before {
        let count = plan.vms.len();
        Before { tokens: vec![None; count], missed: vec![0.0; count], owed: vec![0.0; count] }
    }
}

fn judge(phase: &PhaseCheck, place: usize, owed: &[f64]) -> Finding {
    let always = phase.always_asks(place);
    let got = phase.runs[place].sums.got;
    let several = phase.plan.cloud.nodes > 1;
    let allowed = |service: f64| allowance(phase, always).max(TOLERANCE[usize::from(several)] * service);
    // What others leave over at a node where they have nothing goes to whoever has something there, and hurts nobody.
    let left_over: f64 =
        (0..phase.members.len()).filter(|other| *other != place).map(|other| phase.unused(other)).sum();
    let missed_by_nobody = phase.beyond_the_model();
    let compare = |(low, high): (f64, f64)| match got {
        more if more > high + allowed(high).max(left_over) + missed_by_nobody => Verdict::High,
        less if less < low - allowed(low) => Verdict::Low,
        _ => Verdict::Good,
    };
    let mut range = (phase.due[place].service, phase.due[place].service);
    let mut verdict = compare(range);
    if verdict != Verdict::Good {
        let own = owed[phase.members[place]];
        range = phase.range(place);
        range = ((range.0 - own).max(0.0), range.1 + owed.iter().sum::<f64>() - own);
        verdict = compare(range);
    }
    if several && verdict == Verdict::Low {
        range.0 = phase.least_at_one_node(place, range.0);
        verdict = compare(range);
    }
    if let Some(least) = phase.least_of_few(place)
        && got + allowance(phase, !phase.others_are_slow(place)) < least
    {
        (range.0, verdict) = (least, Verdict::Low);
    }
    if is_over_limit(phase, place) {
        verdict = Verdict::OverLimit;
    }
    Finding {
        phase: phase.number,
        vm: phase.members[place],
        bound: phase.due[place].main_bound(),
        always,
        due: (range.0 / phase.seconds, range.1 / phase.seconds),
        got: got / phase.seconds,
        allowed: allowed(range.0) / phase.seconds,
        verdict,
    }
}

/// What several nodes have still to hold against a VM after a phase, in normalised requests; `before` of it is of earlier phases.
///
/// Nodes learn of each other with the VM's next requests. What it got beyond its due before they did, they hold against it then,
/// and so they do with all that it got while it sent nothing, even where nobody else wanted it: a node that is told of x requests
/// moves the VM's tags by x, whenever they were served. It is x and no more, since each node is told of a request once, and it is
/// paid off by what the VM gets less than its due: over as many phases as that takes.
///
/// Example: two nodes of 1567/s are idle but for 256 requests of a silent VM. It asks again, its weight gives it 30/s, and each
/// node is told of the 128 at the other: it gets 30/s less 128 requests once, 0 for 4.3 s.
fn owed(phase: &PhaseCheck, place: usize, finding: &Finding, before: f64) -> f64 {
    let got = finding.got * phase.seconds;
    let paid = (phase.due[place].service - got).max(0.0);
    let beyond = (got - finding.due.1 * phase.seconds).max(0.0);
    (before - paid).max(0.0) + beyond.max(got.min(phase.unreported(place)))
}

/// By how much a VM may be off, in normalised requests. A VM that does not always ask feels the ups and downs of random
/// service times, which the model smooths: three times their standard deviation.
fn allowance(phase: &PhaseCheck, always: bool) -> f64 {
    let Cloud { nodes, depth, service, .. } = phase.plan.cloud;
    let largest = phase.largest_piece();
    let smoothed = service.exponential && !always;
    let noise = if smoothed { 3.0 * (phase.run.capacity * phase.seconds * largest).sqrt() } else { 0.0 };
    // Nodes learn of a request at the others when the last of its pieces completes.
    let unfinished = if nodes > 1 { phase.most_pieces() - 1.0 } else { 0.0 };
    (f64::from(depth) + unfinished + REQUESTS) * nodes as f64 * largest + noise
}

/// Whether a VM got more than its limit in this phase, its burst, and one piece, which may always go.
fn is_over_limit(phase: &PhaseCheck, place: usize) -> bool {
    let (cloud, policy, sums) = (&phase.plan.cloud, &phase.uses[place].policy, &phase.runs[place].sums);
    let burst = cloud.burst(policy);
    // The first node that a VM sends to does not know of the others, the second one knows of one, and so on, and a piece may go
    // at each. A node learns of the others with the VM's next request there, late by the time at the device. Between two of
    // them the VM sends one to each of the n nodes, if it has as many as its limit lets pass, and meanwhile each of the n - 1
    // others may let through as much as that: n (n - 1) requests that the node does not know of when it lets one more pass. It
    // makes up for them later, so they do not add up.
    let nodes = cloud.nodes as f64;
    let bursts: f64 = (1..=cloud.nodes).map(|known| 1.0 / known as f64).sum();
    let (late, pieces) = if cloud.nodes > 1 {
        let untold = nodes * (nodes - 1.0) * phase.pieces_of_request(place);
        (0.02 * phase.seconds + nodes * phase.device_seconds(place), nodes + untold)
    } else {
        (0.0, 1.0)
    };
    let unreported = phase.unreported(place);
    let over = |got: f64, rate: Option<f64>, burst: f64, piece: f64, unreported: f64| {
        rate.is_some_and(|rate| {
            got > rate * (phase.seconds + late) + bursts * burst + pieces * piece + unreported + 0.01
        })
    };
    let Shape { piece, piece_bytes, bytes: each, .. } = phase.shapes[place];
    let (iops, bytes) = (policy.limit.iops, policy.limit.bytes);
    let bytes = bytes.map(|rate| rate.bytes_per_second() as f64);
    over(sums.got, iops.map(|iops| iops.as_f64()), burst.requests, piece, unreported)
        || over(sums.bytes, bytes, burst.bytes, piece_bytes, unreported * each)
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { phase, vm, bound, always, due: (low, high), got, allowed, verdict } = self;
        let asks = if *always { "asks always" } else { "asks less" };
        write!(
            f,
            "phase {phase}, vm {vm} ({asks}): due {low:.2} to {high:.2}/s, got {got:.2}/s, may be off by {allowed:.2}/s; "
        )?;
        write!(f, "by {bound:?}; {verdict:?}")
    }
}
