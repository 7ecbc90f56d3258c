//! The product's mClock on a link: frames of any size share it by what they take of the wire.
//!
//! Expected rates are those of a fluid that knows bits on the wire and nothing of tags. Frames are counted with the 24 bytes
//! that surround them on Ethernet.

use sluice_sched::gate::{Device, Submission};
use sluice_sched::scheduler::DeviceClass;

use super::wrr::background;
use super::*;

/// A full frame, small frames, and a segment of TCP offload, as long as all its frames together.
const MIXED: [&[u32]; 3] = [&[FRAME], &[SMALL, 200, 590], &[65_226 + 44 * 78]];
/// 100 Mbit/s.
const LINK: u64 = 100_000_000;

fn settings(depth: u32) -> GateSettings {
    let cost = CostModel::frames();
    let request_bytes = cost.reference_size();
    GateSettings { depth, cost, request_bytes, device_class: DeviceClass::Network, ..GateSettings::default() }
}

/// A link of this speed that takes two frames at a time: one is on the wire while the other waits for it.
fn wire(bits: u64) -> World {
    let settings = settings(2);
    let info = DeviceInfo::of(&settings, false, &admission::Capacity::default());
    let service = crate::common::Service::Wire(bits);
    World::new(product().on_network().build(&info), settings, Stub::new(1, crate::common::Order::Fifo, service))
}

/// Megabits per second on the wire.
fn on_wire(world: &World, vms: &[OwnerId], from: Instant, to: Instant) -> Vec<f64> {
    let seconds = to.nanos_since(from) as f64 / SECOND as f64;
    let of = |vm| {
        let records = world.of(vm).filter(|record| record.at >= from && record.at < to);
        records.map(|record| bytes(record) + CostModel::FRAME_OVERHEAD.0 as f64).sum::<f64>()
    };
    vms.iter().map(|vm| of(*vm) * 8.0 / 1e6 / seconds).collect()
}

/// Asserts that each rate is within 1 % of the link of what is due.
fn assert_rates(what: &str, world: &World, vms: &[OwnerId], (from, to): (u64, u64), due: &[f64]) {
    assert_close(what, &on_wire(world, vms, millis(from), millis(to)), due, 0.01);
}

/// Longest time from arrival to dispatch in milliseconds.
fn longest(world: &World, vm: OwnerId) -> f64 {
    let waits = world.of(vm).map(|record| record.at.nanos_since(record.request.arrival));
    waits.max().expect("it has sent frames") as f64 / 1e6
}

/// 99th percentile of the time from arrival to dispatch in milliseconds.
fn percentile_99(world: &World, vm: OwnerId) -> f64 {
    let mut waits: Vec<_> = world.of(vm).map(|record| record.at.nanos_since(record.request.arrival)).collect();
    waits.sort_unstable();
    waits[waits.len() * 99 / 100] as f64 / 1e6
}

/// A VM that sends a small frame every 20 ms, as a terminal session does.
fn sparse(world: &mut World) -> OwnerId {
    let vm = world.vm(Policy::default());
    world.source(Source::new(vm, VolumeId(0), Pattern::Open(20 * MILLI + 777)).lengths(&[SMALL]));
    vm
}

#[test]
fn frames_of_every_size_share_the_wire_by_weight() {
    for weights in [[100, 100, 100], [300, 100, 200], [3000, 100, 100]] {
        let mut world = wire(LINK);
        let vms: Vec<_> = MIXED.iter().zip(weights).map(|(of, w)| flood(&mut world, Policy::weighted(w), of)).collect();
        world.run_until(secs(6));
        let sum: u32 = weights.iter().sum();
        let due: Vec<f64> = weights.iter().map(|weight| 100.0 * f64::from(*weight) / f64::from(sum)).collect();
        assert_rates("shares", &world, &vms, (1000, 6000), &due);
    }
}

#[test]
fn limits_are_counted_on_the_wire_for_every_size() {
    for limits in [[25, 25], [30, 40]] {
        let mut world = wire(LINK);
        let limited = MIXED.iter().zip(limits);
        let vms: Vec<_> = limited.map(|(lengths, limit)| flood(&mut world, at_most(limit), lengths)).collect();
        let light = sparse(&mut world);
        world.run_until(secs(6));
        assert_rates("limits", &world, &vms, (1000, 6000), &limits.map(|limit| limit as f64));
        assert!(longest(&world, light) < 0.5, "{} ms", longest(&world, light));
    }
}

// A segment of 64 KiB occupies this link for 5.5 ms, longer than the burst. So limits of other VMs lose rate beside it, and
// only cutting it into frames helps.
#[test]
fn a_whole_segment_on_a_slow_link_costs_others_rate_under_their_limits() {
    let mut world = wire(LINK);
    let vms = MIXED.map(|lengths| flood(&mut world, at_most(25), lengths));
    world.run_until(secs(6));
    let got = on_wire(&world, &vms, secs(1), secs(6));
    assert!(got.iter().all(|rate| (20.0..25.3).contains(rate)) && got[0] < 24.0, "{got:?}");
}

#[test]
fn a_sparse_vm_waits_half_a_millisecond_at_most_beside_vms_that_saturate_the_link() {
    let cases: [&[Policy]; 4] = [
        &[at_most(25), at_most(25)],
        &[Policy::default(), Policy::default(), Policy::default()],
        &[Policy::weighted(3000), Policy::weighted(100)],
        &[at_least(60), Policy::default(), Policy::default()],
    ];
    for policies in cases {
        let mut world = wire(LINK);
        policies.iter().for_each(|policy| _ = flood(&mut world, *policy, &[FRAME]));
        let light = sparse(&mut world);
        world.run_until(secs(5));
        // Two are at the device: one on the wire and one behind it. Frames that are due for a reservation come before it.
        assert!(percentile_99(&world, light) < 0.5, "{} ms beside {policies:?}", percentile_99(&world, light));
    }
}

/// Frames of VMs that were idle go before a reservation that is late by less than 0.1 ms. However many such VMs there are, and whatever the
/// minimum, it loses no rate, and is late by not much more than that.
#[test]
fn a_minimum_loses_nothing_to_a_hundred_vms_that_are_idle_between_their_frames() {
    for reserved in [10, 60, 90] {
        // The last ones wake together, after others have advanced virtual time.
        for pattern in [Pattern::Think(1), Pattern::Think(5 * MILLI), Pattern::Open(200 * MILLI)] {
            let mut world = wire(LINK);
            let minimum = flood(&mut world, Policy { weight: Some(Weight::new(1)), ..at_least(reserved) }, &[FRAME]);
            flood(&mut world, Policy::default(), &[FRAME]);
            for _ in 0..100 {
                let vm = world.vm(Policy::default());
                world.source(Source::new(vm, VolumeId(0), pattern).lengths(&[FRAME]));
            }
            world.run_until(secs(3));
            let rate = on_wire(&world, &[minimum], secs(1), secs(3))[0];
            assert!(rate >= reserved as f64 * 0.999 - 0.02, "{rate} of {reserved} Mbit/s beside {pattern:?}");
            let times = world.times(minimum);
            let gaps = times.windows(2).filter(|pair| pair[0] > secs(1)).map(|pair| pair[1].nanos_since(pair[0]));
            // The interval of the minimum, what it yields, and three frames: two at the device, and one that has just been chosen.
            let (longest, most) = (gaps.max().unwrap_or(u64::MAX), 1538 * 8000 / reserved + 100_000 + 3 * 123_040);
            assert!(
                longest <= most,
                "{longest} ns between two frames, at most {most}; {reserved} Mbit/s beside {pattern:?}"
            );
        }
    }
}

#[test]
fn a_minimum_counts_inside_the_share() {
    let mut world = wire(LINK);
    let policies = [at_least(60), Policy::default(), Policy::default()];
    let vms: Vec<_> = policies.iter().zip(MIXED).map(|(policy, of)| flood(&mut world, *policy, of)).collect();
    world.run_until(secs(6));
    assert_rates("60 and two others", &world, &vms, (1000, 6000), &[60.0, 20.0, 20.0]);
    // A minimum below the share changes nothing.
    let mut world = wire(LINK);
    let vms: Vec<_> = [at_least(10), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME])).into();
    world.run_until(secs(3));
    assert_rates("10 of 50", &world, &vms, (1000, 3000), &[50.0, 50.0]);
}

#[test]
fn exchanged_weights_are_in_force_within_100_ms() {
    let mut world = wire(LINK);
    let vms: Vec<_> = [30, 1].map(|weight| flood(&mut world, Policy::weighted(weight), &[FRAME])).into();
    for (second, weights) in [[30, 1], [10, 1], [1, 1], [1, 10], [1, 30]].into_iter().enumerate() {
        vms.iter().zip(weights).for_each(|(vm, weight)| world.set(*vm, Policy::weighted(weight)));
        let from = second as u64 * 1000;
        world.run_until(millis(from + 1000));
        let sum = f64::from(weights[0] + weights[1]);
        let due = weights.map(|weight| 100.0 * f64::from(weight) / sum);
        for bin in 1..10 {
            assert_rates("a tenth of a second", &world, &vms, (from + bin * 100, from + bin * 100 + 100), &due);
        }
    }
}

#[test]
fn the_share_of_a_vm_that_stops_goes_to_the_others_at_once() {
    let mut world = wire(LINK);
    let first = flood(&mut world, Policy::default(), &[FRAME]);
    let second = world.vm(Policy::default());
    let pattern = Pattern::OnOff { outstanding: 64, on: SECOND, off: SECOND };
    world.source(Source::new(second, VolumeId(0), pattern).lengths(&[FRAME]));
    world.run_until(secs(4));
    for (from, due) in [(0, [50.0, 50.0]), (1000, [100.0, 0.0]), (2000, [50.0, 50.0]), (3000, [100.0, 0.0])] {
        assert_rates("active or not", &world, &[first, second], (from + 100, from + 1000), &due);
    }
}

#[test]
fn a_limit_on_a_vm_that_ran_without_one_holds_at_once() {
    let mut world = wire(LINK);
    let vms = [flood(&mut world, Policy::default(), &[FRAME]), flood(&mut world, Policy::default(), &[FRAME])];
    world.run_until(secs(3));
    world.set(vms[0], at_most(20));
    world.run_until(secs(5));
    assert_rates("the first 100 ms", &world, &vms, (3000, 3100), &[20.0, 80.0]);
    assert_rates("later", &world, &vms, (3100, 5000), &[20.0, 80.0]);
    world.set(vms[0], Policy::default());
    world.run_until(secs(6));
    assert_rates("without it", &world, &vms, (5100, 6000), &[50.0, 50.0]);
}

#[test]
fn a_frame_larger_than_the_bucket_is_sent_and_paid() {
    let mut world = wire(LINK);
    // 1 Mbit/s passes 250 bytes in 2 ms; a segment of TCP offload takes 0.55 s.
    let vm = flood(&mut world, at_most(1), MIXED[2]);
    world.run_until(secs(60));
    assert_close("1 Mbit/s", &on_wire(&world, &[vm], secs(10), secs(60)), &[1.0], 0.02);
}

#[test]
fn a_limit_whose_refill_takes_less_than_a_millisecond_is_exact() {
    let mut world = wire(10_000_000_000);
    let vms: Vec<_> = [3, 1000, 2500].map(|limit| flood(&mut world, at_most(limit), &[FRAME])).into();
    world.run_until(secs(1));
    let due = [3.0, 1000.0, 2500.0];
    let got = on_wire(&world, &vms, millis(100), secs(1));
    got.iter().zip(due).for_each(|(got, due)| assert!((got / due - 1.0).abs() < 0.01, "{got} of {due}"));
}

/// A device that completes every frame at once.
struct Sink(Vec<sluice_sched::gate::Slot>, f64);

impl Device for Sink {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(submission.slot);
        self.1 += f64::from(submission.request.length + 24);
    }
}

#[test]
fn a_thread_that_wakes_up_a_millisecond_late_still_reaches_the_limit() {
    for limit in [10, 100, 1000] {
        let settings = settings(2);
        let info = DeviceInfo::of(&settings, false, &admission::Capacity::default());
        let mut gate = Gate::new(product().on_network().build(&info), settings);
        let vm = gate.add_owner(Instant::ZERO, at_most(limit)).unwrap();
        let volume = gate.add_volume(Instant::ZERO, vm, Policy::default()).unwrap();
        let arrival = Arrival {
            owner: vm,
            volume,
            kind: Kind::Write,
            flags: Flags::NONE,
            offset: 0,
            length: FRAME,
            token: 0,
            remote: None,
        };
        let mut sink = Sink(Vec::new(), 0.0);
        for milli in 0..2000 {
            let now = millis(milli);
            while gate.queued() < 1000 {
                gate.insert(now, &arrival).unwrap();
            }
            loop {
                gate.pump(now, &mut sink);
                let sent: Vec<_> = sink.0.drain(..).collect();
                if sent.is_empty() {
                    break;
                }
                sent.into_iter().for_each(|slot| _ = gate.complete(now, slot, true));
            }
        }
        let got = sink.1 * 8.0 / 1e6 / 2.0;
        assert!((got / limit as f64 - 1.0).abs() < 0.01, "{got} of {limit} Mbit/s");
    }
}

#[test]
fn a_thousand_nics_share_a_link() {
    let mut world = wire(10_000_000_000);
    let weight = |nic: u32| 100 + nic % 4 * 100;
    let vms: Vec<_> = (0..1000).map(|nic| flood(&mut world, Policy::weighted(weight(nic)), &[FRAME])).collect();
    world.run_until(secs(1));
    let got = on_wire(&world, &vms, millis(200), secs(1));
    for (nic, got) in got.iter().enumerate() {
        let due = 10_000.0 * f64::from(weight(nic as u32)) / 250_000.0;
        assert!((got / due - 1.0).abs() < 0.02, "NIC {nic}: {got} of {due} Mbit/s");
    }
}

#[test]
fn a_sparse_nic_waits_for_two_frames_beside_a_background_nic() {
    let mut world = wire(1_000_000_000);
    flood(&mut world, Policy::default(), &[FRAME]);
    flood(&mut world, background(), &[FRAME]);
    let light = sparse(&mut world);
    world.run_until(secs(2));
    assert!(longest(&world, light) < 0.037, "{} ms", longest(&world, light));
}

#[test]
fn nics_of_one_vm_share_what_the_vm_gets() {
    let mut world = wire(LINK);
    let other = flood(&mut world, Policy::default(), &[FRAME]);
    let vm = flood(&mut world, Policy::default(), &[FRAME]);
    let second = world.volume(vm, Policy::weighted(300));
    world.source(Source::new(vm, second, Pattern::Closed(64)).lengths(&[SMALL]));
    world.run_until(secs(4));
    assert_rates("two VMs", &world, &[other, vm], (1000, 4000), &[50.0, 50.0]);
    let of = |volume| {
        let records = world.of(vm).filter(|record| record.at >= secs(1) && record.request.volume == volume);
        records.map(|record| (bytes(record) + 24.0) * 8.0 / 3e6).sum::<f64>()
    };
    assert_close("two NICs", &[of(VolumeId(0)), of(second)], &[12.5, 37.5], 0.01);
}

// rule: gate.units
#[test]
fn a_rate_in_requests_is_refused_on_a_link() {
    let settings = settings(2);
    let info = DeviceInfo::of(&settings, false, &admission::Capacity::default());
    let subject = product().on_network();
    let mut gate = Gate::new(subject.descriptor.build(&info, &subject.params).unwrap(), settings);
    let refused = gate.add_owner(Instant::ZERO, Policy::default().limited(100));
    let text =
        "mclock supports a limit only in bytes per second, but this one is 100 iops; state it in bytes per second";
    assert_eq!(refused.unwrap_err().to_string(), text);
    assert!(!paper().descriptor.is_for(DeviceClass::Network));
}
