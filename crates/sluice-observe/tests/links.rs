//! Uplinks: their rates are bits on the wire, and an interface that is down is an event.

use std::sync::Arc;

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Phase, Unit};
use sluice_net::UplinkTotals;
use sluice_observe::observer::Observer;
use sluice_observe::sample::{CpuSample, DeviceSample, Sample, VmSample};
use sluice_sched::admission::Capacity;
use sluice_sched::gate::GateStats;
use sluice_sched::{ByteRate, CostModel, Instant, Kind, Policy, Reservation};

/// The shortest frames that 100 Mbit/s carry in a second, and the bytes of each, without the 24 around it.
const FRAMES: u64 = 148_810;
const LENGTH: u32 = 60;

fn sample(second: u64, vms: Vec<VmSample>, is_down: bool) -> Sample {
    let device = DeviceSample {
        at: Instant::from_millis(1000 * second),
        serving: true,
        health: "serving",
        capacity: Capacity { iops: None, bytes: Some(ByteRate::per_second(12_500_000)) },
        uplink: Some(Box::new(UplinkTotals { is_down, ..UplinkTotals::default() })),
        vms,
        ..DeviceSample::unknown("lan")
    };
    Sample { second, time: 1_700_000_000 + second, devices: vec![device] }
}

#[test]
fn short_frames_counted_as_less_than_they_take_of_the_wire() {
    let mut observer = Observer::default();
    for second in 1..=3 {
        let each = CostModel::frames().cost(Kind::Write, LENGTH).raw();
        let frames = FRAMES * second;
        // The second VM is idle, and its rate is 0 bits per second.
        let mut stats = GateStats::default();
        (stats.bytes, stats.cost) = (u64::from(LENGTH) * frames, u64::from(each) * frames);
        stats.dispatched_cost = stats.cost;
        let policy = Policy {
            reservation: Reservation { iops: None, bytes: Some(ByteRate::per_second(12_500_000)) },
            ..Policy::default()
        };
        let vm = |name: &str, stats| VmSample {
            vm: name.to_owned(),
            policy,
            stats: Arc::new(stats),
            outstanding: 0,
            cpu: CpuSample::default(),
            volumes: Vec::new(),
        };
        observer.push(sample(second, vec![vm("a", stats), vm("b", GateStats::default())], false));
    }
    let status = observer.status();
    let bits = status.vms[0].rates.second.bits_per_second.unwrap();
    assert!((bits / 1e8 - 1.0).abs() < 0.001, "{bits}");
    assert_eq!(status.vms[1].rates.second.bits_per_second, Some(0.0));
    let idle = observer.glance().nth(1).unwrap().now.rates.unwrap();
    assert_eq!(idle.bits_per_second, Some(0.0));
    assert_eq!(status.devices[0].rates.second.bits_per_second, Some(bits));
    assert_eq!(observer.glance().next().unwrap().now.rates.unwrap().bits_per_second, Some(bits));
    assert_eq!(Unit::BitsPerSecond.show(bits), "100 Mbit/s");
}

#[test]
fn an_interface_that_is_down_is_an_event_until_it_is_up_again() {
    let mut observer = Observer::default();
    let mut events: Vec<Event> = Vec::new();
    for second in 1..=12 {
        events.extend(observer.push(sample(second, Vec::new(), (3..6).contains(&second))));
        let problems = &observer.device_status()[0].problems;
        assert_eq!(
            problems.iter().any(|problem| problem.contains("interface that is down")),
            (3..8).contains(&second),
            "{second}: {problems:?}"
        );
    }
    let seen: Vec<_> = events.iter().map(|event| (event.kind, event.phase, event.cause)).collect();
    let down = |phase| (EventKind::LinkDown, phase, Cause::Interface);
    assert_eq!(seen, [down(Phase::Began), down(Phase::Ended)]);
    assert_eq!(events[0].in_words(), "The interface of uplink lan is down");
}
