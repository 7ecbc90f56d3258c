//! Controls: examples of the model calculated by hand, and runs that the check must reject.

use sluice_sched::policy::Reservation;
use sluice_sched::{ByteRate, Iops, Policy, Weight};

use super::check::{FLOOR, Finding, Verdict, check};
use super::holes::kib;
use super::model::{Bound, Claim, Demand, FluidVm, Slot, fill, run as run_fluid};
use super::plan::{Cloud, Load, Phase, Plan, Use};
use super::run::run;

fn claim(weight: f64, min: f64, max: f64, reserved: bool) -> Claim {
    Claim { weight, min, max, reserved, debt: 0.0 }
}

/// A VM without a limit that is always backlogged.
fn always_backlogged(weight: f64, min_rate: f64) -> FluidVm {
    FluidVm {
        weight,
        min_rate,
        max_rate: f64::INFINITY,
        reserved: min_rate > 0.0,
        burst: 0.0,
        tokens: 0.0,
        backlog: 0.0,
        backlog_max: f64::INFINITY,
        missed: 0.0,
        debt_max: None,
        demand: Demand::Always,
    }
}

fn assert_shares(what: &str, got: &[f64], due: &[f64]) {
    assert!(got.iter().zip(due).all(|(got, due)| (got - due).abs() < 1e-6), "{what}: {got:?} of {due:?}");
}

#[test]
fn the_model_fills_by_weight_between_minimum_and_maximum() {
    let all = f64::INFINITY;
    let vms = [claim(1.0, 400.0, all, true), claim(1.0, 0.0, all, false), claim(2.0, 0.0, 350.0, false)];
    let division = fill(1000.0, FLOOR, &vms);
    assert_shares("all three rules", &division.shares, &[400.0, 250.0, 350.0]);
    assert_eq!(division.bounds, [Bound::Minimum, Bound::Share, Bound::Maximum]);
    let idle = fill(1000.0, FLOOR, &[claim(1.0, 0.0, 100.0, false), claim(1.0, 0.0, 200.0, false)]);
    assert_shares("every VM gets its demand", &idle.shares, &[100.0, 200.0]);
    let last = fill(1000.0, FLOOR, &[claim(0.0, 100.0, all, true), claim(0.01, 0.0, all, false)]);
    assert_shares("no weight: only the reservation", &last.shares, &[100.0, 900.0]);
}

#[test]
fn the_model_reserves_the_floor() {
    let all = f64::INFINITY;
    let vms = [claim(1.0, 500.0, all, true), claim(1.0, 600.0, all, true), claim(1.0, 0.0, all, false)];
    let division = fill(1000.0, FLOOR, &vms);
    assert_shares("minimums above the capacity", &division.shares, &[980.0 * 5.0 / 11.0, 980.0 * 6.0 / 11.0, 20.0]);
    assert_eq!(division.bounds, [Bound::Squeezed, Bound::Squeezed, Bound::Floor]);
    let few = [claim(1.0, 1100.0, all, true), claim(1.0, 0.0, 5.0, false)];
    assert_shares("not more than the demand", &fill(1000.0, FLOOR, &few).shares, &[995.0, 5.0]);
    // The reserved VM has most of the weight, and gets its share of what the minimums leave.
    let heavy = [claim(99.0, 500.0, all, true), claim(0.0, 600.0, all, true), claim(1.0, 0.0, all, false)];
    let left = 1000.0 - 980.0 * 6.0 / 11.0;
    assert_shares("by weight", &fill(1000.0, FLOOR, &heavy).shares, &[left * 0.99, 1000.0 - left, left * 0.01]);
    let modest = [claim(999.0, 500.0, all, true), claim(1.0, 0.0, all, false)];
    assert_shares("a small weight", &fill(1000.0, FLOOR, &modest).shares, &[999.0, 1.0]);
}

#[test]
fn the_model_catches_up_on_minimums_that_a_slow_device_missed() {
    let slots = [0.0, 100.0, 100.0].map(|capacity| Slot { seconds: 1.0, capacity });
    let service = |debt_max| {
        let due = run_fluid(
            &slots,
            0.0,
            &[always_backlogged(0.01, 40.0), always_backlogged(100.0, 0.0)].map(|vm| FluidVm { debt_max, ..vm }),
        );
        [due[0].service, due[1].service]
    };
    assert_shares("each slot separately", &service(None), &[80.0, 120.0]);
    assert_shares("with a memory", &service(Some(1.0)), &[120.0, 80.0]);
}

#[test]
fn the_model_serves_arrivals_and_accumulates_a_burst() {
    let vm = |max_rate, demand| FluidVm { max_rate, burst: 10.0, demand, ..always_backlogged(1.0, 0.0) };
    let slots = [Slot { seconds: 1.0, capacity: 100.0 }; 4];
    // The first VM is idle for two seconds. Of its 20 requests per second it may accumulate 10.
    let late = vm(20.0, Demand::Arrivals(vec![0.0, 0.0, 100.0, 0.0]));
    let due = run_fluid(&slots, FLOOR, &[late, vm(f64::INFINITY, Demand::Always)]);
    assert_shares("late", &[due[0].service, due[1].service], &[50.0, 350.0]);
    let small = vm(f64::INFINITY, Demand::Arrivals(vec![30.0; 4]));
    let due = run_fluid(&slots, FLOOR, &[small, vm(f64::INFINITY, Demand::Always)]);
    assert_shares("small", &[due[0].service, due[1].service], &[120.0, 280.0]);
}

/// One phase of 40,000 requests on `nodes` nodes with VMs that keep 256 outstanding.
fn plan(nodes: usize, policies: &[Policy]) -> Plan {
    let cloud = Cloud { nodes, ..Cloud::device(4000.0, 8, 2) };
    let used = |policy: &Policy| Some(Use { policy: *policy, load: Load::Closed(256) });
    let phase = Phase { requests: 40_000.0, vms: policies.iter().map(used).collect() };
    Plan { seed: 1, cloud, vms: vec![vec![kib(8)]; policies.len()], phases: vec![phase] }
}

/// Result of the check if the scheduler has the policies `actual`, and the model has `stated`.
fn check_with(nodes: usize, scheduler: &str, actual: &[Policy], stated: &[Policy]) -> Vec<Finding> {
    let mut plan_of = plan(nodes, actual);
    let runs = run(&plan_of, scheduler);
    plan_of.phases = plan(nodes, stated).phases;
    check(&plan_of, &runs)
}

fn weighted(hundredths: u64) -> Policy {
    Policy { weight: Some(Weight::from_hundredths(hundredths)), ..Policy::default() }
}

fn verdicts(findings: &[Finding]) -> Vec<Verdict> {
    findings.iter().map(|finding| finding.verdict).collect()
}

#[test]
fn the_check_detects_swapped_weights() {
    let [light, heavy] = [Policy::weighted(100), Policy::weighted(105)];
    for nodes in [1, 2] {
        assert_eq!(verdicts(&check_with(nodes, "mclock", &[light, heavy], &[light, heavy])), [Verdict::Good; 2]);
        let swapped = check_with(nodes, "mclock", &[light, heavy], &[heavy, light]);
        assert!(swapped.iter().any(Finding::is_bad), "{nodes} nodes: {swapped:?}");
    }
}

#[test]
fn the_check_accepted_twice_the_due_service_on_several_nodes_as_unused_capacity() {
    // No other VM misses more than 2 %, and all are always backlogged at both nodes: no capacity is unused.
    let weights = |small: u32, others: u32| [small, others, others, others, others].map(Policy::weighted);
    let (actual, stated) = (weights(110, 975), weights(40, 990));
    let findings = check_with(2, "mclock", &actual, &stated);
    assert_eq!(
        verdicts(&findings),
        [Verdict::High, Verdict::Good, Verdict::Good, Verdict::Good, Verdict::Good],
        "{findings:?}"
    );
    assert_eq!(verdicts(&check_with(2, "mclock", &actual, &actual)), [Verdict::Good; 5]);
}

/// During the second phase all requests of the first VM come to be queued at one of three nodes. The VM with a reservation
/// gets what the first VM misses at the others; the check accepts this and nothing else.
#[test]
fn the_check_rejected_requests_that_are_all_queued_at_one_of_three_nodes() {
    let reserving =
        |hundredths, iops, bytes| Policy { reservation: Reservation { iops, bytes }, ..weighted(hundredths) };
    let before = reserving(139, None, Some(ByteRate::per_second(49_911_039)));
    let after = reserving(1707, Some(Iops::from_milli(895_086)), None);
    let closed = |policy, outstanding| Some(Use { policy, load: Load::Closed(outstanding) });
    let silent = Some(Use { policy: weighted(54_879), load: Load::Off });
    let phases = vec![
        Phase { requests: 80_980.0, vms: vec![closed(weighted(604), 419), closed(before, 256), silent] },
        Phase {
            requests: 102_479.0,
            vms: vec![closed(weighted(967), 256), closed(after, 256), closed(weighted(11_819), 256)],
        },
    ];
    let cloud = Cloud { nodes: 3, request_bytes: 62_910, ..Cloud::device(4936.9, 1, 1) };
    let mut plan = Plan { seed: 1608, cloud, vms: vec![vec![kib(8)]; 3], phases };
    let findings = check(&plan, &run(&plan, "mclock"));
    assert!(!findings.iter().any(Finding::is_bad), "{findings:?}");
    let due = 4936.9 * 9.67 / 144.93;
    assert!(findings[3].got < 0.98 * due && findings[3].due.0 > 0.0, "{:?} of {due:.1}", findings[3]);
    // Without the reservation no rule explains it.
    let runs = run(&plan, "mclock");
    plan.phases[1].vms[1] = closed(weighted(1707), 256);
    assert!(check(&plan, &runs)[3].is_bad());
}

/// Capacity that random arrivals leave unused is spread more evenly over seven nodes than over the one device of the model.
#[test]
fn the_check_rejected_unused_capacity_that_a_limited_vm_got_on_seven_nodes() {
    let cloud = Cloud { nodes: 7, ..Cloud::device(7740.6, 2, 1) };
    let small = Policy { weight: Some(Weight::from_hundredths(82)), burst: Some(4), ..Policy::default().limited(1071) };
    let arriving = Use { policy: weighted(97_162), load: Load::Poisson(7206.0) };
    let limited = Use { policy: small, load: Load::Closed(71) };
    let phase = Phase { requests: 46_176.0, vms: vec![Some(arriving), Some(limited)] };
    let mut plan = Plan { seed: 4200, cloud, vms: vec![vec![kib(8)]; 2], phases: vec![phase] };
    let runs = run(&plan, "mclock");
    let findings = check(&plan, &runs);
    assert_eq!(verdicts(&findings), [Verdict::Good; 2], "{findings:?}");
    assert!(findings[1].got > 1.02 * findings[1].due.1 + findings[1].allowed, "{findings:?}");
    plan.phases[0].vms[1] = Some(Use { policy: small.limited(350), ..limited });
    assert_eq!(check(&plan, &runs)[1].verdict, Verdict::OverLimit);
}

#[test]
fn the_check_detects_an_exceeded_limit() {
    let limited = |rate| Policy::default().limited(rate);
    for nodes in [1, 2] {
        let findings =
            check_with(nodes, "mclock", &[limited(1050), Policy::default()], &[limited(1000), Policy::default()]);
        assert_eq!(findings[0].verdict, Verdict::OverLimit, "{nodes} nodes: {findings:?}");
    }
}

#[test]
fn the_check_detects_a_missed_reservation() {
    let reserving = |rate| Policy { weight: Some(Weight::MIN), ..Policy::default().reserving(rate) };
    for nodes in [1, 2] {
        let findings =
            check_with(nodes, "mclock", &[reserving(1000), Policy::default()], &[reserving(1050), Policy::default()]);
        assert_eq!(findings[0].verdict, Verdict::Low, "{nodes} nodes: {findings:?}");
    }
}

#[test]
fn the_check_detects_unused_capacity() {
    let [mut actual, stated] = [Policy::default(); 2];
    actual.limit.iops = Some(Iops::per_second(3500));
    let findings = check_with(1, "mclock", &[actual], &[stated]);
    assert_eq!(findings[0].verdict, Verdict::Low, "{findings:?}");
}

#[test]
fn the_check_rejects_a_scheduler_without_guarantees() {
    for nodes in [1, 2] {
        let policies = [Policy::weighted(300), Policy::weighted(100), Policy::weighted(100).reserving(2000)];
        let findings = check_with(nodes, "noop", &policies, &policies);
        assert!(findings.iter().all(Finding::is_bad), "{nodes} nodes: {findings:?}");
    }
}

/// Service by the floor does not reduce what a VM's reservation has missed.
#[test]
fn the_model_catches_up_on_a_minimum_in_addition_to_the_floor() {
    // First 15 of 30, and 5 by the floor; then 45, of which two thirds fit, and 10 by the floor.
    let slots = [50.0, 100.0].map(|capacity| Slot { seconds: 1.0, capacity });
    let vms = [(1000.0, 30.0), (1e-9, 60.0), (1e-9, 0.0)];
    let vms = vms.map(|(weight, min)| FluidVm { debt_max: Some(0.0), ..always_backlogged(weight, min) });
    let due = run_fluid(&slots, 0.1, &vms);
    assert_shares("next to another reservation", &[due[0].service, due[1].service], &[60.0, 90.0]);
}
