//! The baselines of the paper on Flubber: CFQ of Linux 2.6.18, with and without priorities.

use crate::common::*;
use sluice_sched::policy::PriorityClass;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// Reads per second of the VM that reads sequentially (16 outstanding) and of the one that reads at random (8), with
/// policy `rnd`.
fn seq_and_rnd(rnd: Policy) -> Vec<f64> {
    let subject = Subject::of("cfq").text("mode", "2.6.18");
    let info = DeviceInfo { depth: 1, rotational: true, ..DeviceInfo::default() };
    let settings = GateSettings { depth: 1, ..GateSettings::default() };
    let mut world = World::new(subject.build(&info), settings, Stub::new(1, Order::Fifo, Service::Disk));
    let seq = world.vm(Policy::default());
    let rnd = world.vm(rnd);
    world.source(Source::new(seq, VolumeId(0), Pattern::Closed(16)).places(Places::Contiguous));
    world.source(Source::new(rnd, VolumeId(0), Pattern::Closed(8)).places(Places::Random));
    world.run_until(secs(20));
    world.rates(&[seq, rnd], secs(2), secs(20))
}

// rule: cfq.baseline, cfq.baseline-priorities
#[test]
fn best_effort_shares_the_time_and_real_time_starves_the_other() {
    let best_effort = Policy { priority_level: 4, ..Policy::default() };
    let real_time = Policy { priority_class: PriorityClass::RealTime, ..best_effort };
    let (shared, first) = (seq_and_rnd(best_effort), seq_and_rnd(real_time));
    println!("best effort {shared:?}, real time {first:?}");
    // 0.25 ms per sequential block and about 6 ms per random one: half of the time each.
    assert!((1_500.0..=2_300.0).contains(&shared[0]), "{shared:?}");
    assert!((90.0..=130.0).contains(&shared[1]), "{shared:?}");
    assert!(first[0] <= 0.01 * shared[0] && first[1] >= 1.6 * shared[1], "\"starved\": {first:?} after {shared:?}");
}
