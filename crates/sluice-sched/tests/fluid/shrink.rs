//! Reduces a failing plan as long as its worst deviation remains similar.

use sluice_sched::policy::{Limit, Reservation};
use sluice_sched::{CostModel, Policy};

use super::check::{Finding, check};
use super::plan::{Ask, Load, Plan};
use super::run::run;

/// Maximum number of plans that are tried.
const TRIES: usize = 3000;

/// Returns a smaller plan with a finding similar to the worst one, and its findings.
pub fn shrink(plan: &Plan, scheduler: &str) -> (Plan, Vec<Finding>) {
    let findings = check(plan, &run(plan, scheduler));
    let bad = findings.iter().filter(|finding| finding.is_bad());
    let worst = bad.max_by(|a, b| a.severity().total_cmp(&b.severity())).expect("the plan fails").clone();
    let like = |finding: &Finding| {
        finding.is_bad() && finding.verdict == worst.verdict && finding.severity() >= 0.6 * worst.severity()
    };
    let fails = |plan: &Plan| {
        let findings = check(plan, &run(plan, scheduler));
        findings.iter().any(like).then_some(findings)
    };
    let mut best = (plan.clone(), fails(plan).expect("the plan fails"));
    let mut tries = 0;
    'again: loop {
        for smaller in smaller(&best.0) {
            tries += 1;
            if tries > TRIES {
                return best;
            }
            if let Some(findings) = fails(&smaller) {
                best = (smaller, findings);
                continue 'again;
            }
        }
        return best;
    }
}

/// Simpler plans, those with the largest reduction first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut add = |change: &dyn Fn(&mut Plan)| {
        let mut other = plan.clone();
        change(&mut other);
        plans.push(other);
    };
    for phase in (0..plan.phases.len()).filter(|_| plan.phases.len() > 1) {
        add(&|plan| _ = plan.phases.remove(phase));
    }
    for vm in (0..plan.vms.len()).filter(|_| plan.vms.len() > 1) {
        add(&|plan| {
            plan.vms.remove(vm);
            plan.phases.iter_mut().for_each(|phase| _ = phase.vms.remove(vm));
        });
    }
    if plan.cloud.service.exponential {
        add(&|plan| plan.cloud.service.exponential = false);
    }
    if plan.cloud.servers > 1 {
        add(&|plan| plan.cloud.servers = 1);
    }
    if plan.cloud.depth > plan.cloud.servers {
        add(&|plan| plan.cloud.depth = plan.cloud.servers);
    }
    if plan.cloud.nodes > 2 {
        add(&|plan| plan.cloud.nodes = 2);
    }
    if plan.cloud.cost != CostModel::default() {
        add(&|plan| plan.cloud.cost = CostModel::default());
    }
    for vm in 0..plan.vms.len() {
        for removed in (0..plan.vms[vm].len()).filter(|_| plan.vms[vm].len() > 1) {
            add(&|plan| _ = plan.vms[vm].remove(removed));
        }
        let plain = Ask { kind: sluice_sched::Kind::Read, length: 8192 };
        if plan.vms[vm] != [plain] {
            add(&|plan| plan.vms[vm] = vec![plain]);
        }
    }
    for (phase, vm) in (0..plan.phases.len()).flat_map(|phase| (0..plan.vms.len()).map(move |vm| (phase, vm))) {
        plans.extend(simpler_uses(plan, phase, vm));
    }
    plans
}

/// Plans in which the use of one VM in one phase is simpler.
fn simpler_uses(plan: &Plan, phase: usize, vm: usize) -> Vec<Plan> {
    let Some(used) = plan.phases[phase].vms[vm] else { return Vec::new() };
    let mut plans = Vec::new();
    let mut add = |policy: Policy, load: Load| {
        let mut other = plan.clone();
        let changed = Some(super::plan::Use { policy, load });
        // Equal uses in several phases are changed together, since a use that does not change is simpler.
        for other in other.phases.iter_mut().filter(|other| other.vms[vm] == Some(used)) {
            other.vms[vm] = changed;
        }
        plans.push(other);
    };
    let (policy, load) = (used.policy, used.load);
    if policy.burst.is_some() {
        add(Policy { burst: None, ..policy }, load);
    }
    if policy.limit != Limit::default() {
        add(Policy { limit: Limit::default(), ..policy }, load);
        if policy.limit.iops.is_some() && policy.limit.bytes.is_some() {
            add(Policy { limit: Limit { iops: None, ..policy.limit }, ..policy }, load);
            add(Policy { limit: Limit { bytes: None, ..policy.limit }, ..policy }, load);
        }
    }
    if policy.reservation != Reservation::default() && policy.weight.is_some() {
        add(Policy { reservation: Reservation::default(), ..policy }, load);
        if policy.reservation.iops.is_some() && policy.reservation.bytes.is_some() {
            add(Policy { reservation: Reservation { iops: None, ..policy.reservation }, ..policy }, load);
            add(Policy { reservation: Reservation { bytes: None, ..policy.reservation }, ..policy }, load);
        }
    }
    match load {
        Load::Off | Load::Closed(256) => {}
        Load::Closed(_) => add(policy, Load::Closed(256)),
        _ => [Load::Off, Load::Closed(256)].into_iter().for_each(|load| add(policy, load)),
    }
    plans
}
