//! S8: nothing overflows and nothing drifts at the ends of the ranges of weights, rates, costs, sizes and time.

use crate::common::*;
use sluice_sched::gate::GateSettings;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// Two VMs of extreme weights and rates next to an ordinary one, with requests of extreme costs.
fn extremes(subject: &Subject, start: Instant) -> World {
    let cost = CostModel {
        reference: Some(Bytes(0)),
        knee: Bytes(1),
        overhead: Bytes(0),
        write_factor: Cost::requests(100),
        flush: Cost::from_raw(1),
        discard: Cost::from_raw(u32::MAX),
        discard_mib: Cost::from_raw(u32::MAX),
    };
    let info = DeviceInfo { depth: 3, ..DeviceInfo::default() };
    let transfer_max = Bytes(u64::from(u32::MAX));
    let settings = GateSettings { depth: 3, transfer_max, cost, ..GateSettings::default() };
    let mut world = World::new(subject.build(&info), settings, Stub::new(3, Order::Random, Service::Fixed(MILLI)));
    world.now = start;
    let lightest = Policy { weight: Some(Weight::MIN), ..Policy::default() };
    let heaviest = Policy { weight: Some(Weight::MAX), idle_credit: 256, ..Policy::default() };
    let (slow, fast) = (Some(Iops::from_milli(1)), Some(Iops::per_second(1_000_000_000_000)));
    let slow = Limit { iops: slow, bytes: Some(ByteRate::MIN) };
    let fast = Reservation { iops: fast, bytes: Some(ByteRate::per_second(u64::MAX)) };
    let policies = [
        lightest,
        heaviest,
        Policy { limit: slow, ..lightest },
        Policy { reservation: Reservation { iops: slow.iops, bytes: None }, weight: None, ..lightest },
        Policy { limit: slow, burst: Some(65_535), ..heaviest },
        Policy { reservation: fast, ..Policy::default() },
    ];
    for policy in policies {
        let vm = world.vm(policy);
        for kind in Kind::ALL {
            let on_off = Pattern::OnOff { outstanding: 3, on: 300 * MILLI, off: 700 * MILLI };
            let source = Source::new(vm, VolumeId(0), on_off).kind(kind);
            world.source(source.lengths(&[0, 1, 512, 65_536, u32::MAX]).remote(1, 70_000));
        }
    }
    world
}

#[test]
fn nothing_overflows_at_the_ends_of_the_ranges() {
    let late = Instant::from_nanos(u64::MAX - 100 * SECOND);
    for subject in subjects() {
        for start in [Instant::ZERO, secs(1), late] {
            let mut world = extremes(&subject, start);
            world.run_for(3 * SECOND);
            assert!(world.log.len() > 100, "{}: {}", subject.label(), world.log.len());
            for owner in 0..6 {
                let policy = Policy { weight: Some(Weight::new(1 + owner)), ..Policy::default() };
                world.set(OwnerId(owner), policy.limited(1 + u64::from(owner)));
                world.set(OwnerId(owner), policy.reserving(1_000_000));
                world.run_for(100 * MILLI);
            }
            let _ = world.gate.inspect(world.now);
            world.stop();
            for owner in 0..6 {
                world.remove_owner(OwnerId(owner));
            }
            world.run_for(SECOND);
            assert_eq!((world.gate.queued(), world.gate.in_flight()), (0, 0), "{}", subject.label());
        }
    }
}

#[test]
fn a_million_idle_seconds_change_nothing() {
    for subject in subjects() {
        let mut world = World::simple(&subject, 4, 1000);
        let policies = [Policy::weighted(1), Policy::weighted(1000).limited(400), Policy::weighted(1).reserving(100)];
        let vms = policies.map(|policy| world.vm(policy));
        let sources = vms.map(|vm| world.stream(vm, Pattern::Manual));
        let mut rounds = Vec::new();
        for round in 0..3 {
            let start = world.now;
            world.ask_for_the_same_places();
            for turn in 0..900 {
                world.ask(sources[turn % 3]);
            }
            world.pump();
            world.run_for(1_000_000 * SECOND);
            let record = |r: &Record| (r.at.nanos_since(start), r.request.owner, r.request.id.0 - round * 900);
            rounds.push(world.log.drain(..).map(|r| record(&r)).collect::<Vec<_>>());
        }
        assert!(rounds.iter().all(|round| round.len() == 900), "{}", subject.label());
        // No pause restores the initial state of a scheduler that learns think times and seeks.
        if subject.guarantees(&DeviceInfo::default()).learns {
            continue;
        }
        // In paper mode, Flubber idles at the last address after any pause; in the first round there is none.
        let first = usize::from(subject.is("flubber", "paper"));
        assert!(rounds[first] == rounds[1] && rounds[1] == rounds[2], "{}", subject.label());
    }
}
