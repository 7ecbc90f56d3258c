//! wrr: weighted rounds and minimum rates.

use super::*;

/// Two VMs with packets of these lengths, by weight.
fn pair(subject: &Subject, weights: [u32; 2], lengths: [&[u32]; 2]) -> (World, [OwnerId; 2]) {
    let mut world = link(subject, 8, 120_000);
    let vms = [0, 1].map(|vm| flood(&mut world, Policy::weighted(weights[vm]), lengths[vm]));
    (world, vms)
}

// rule: wrr.round, wrr.state
#[test]
fn a_turn_is_proportional_to_the_weight() {
    for (unit, lengths) in [("packets", [FRAME, FRAME]), ("bytes", [FRAME, FRAME])] {
        let (mut world, _) = pair(&published(unit), [3, 1], [&lengths[..1], &lengths[1..]]);
        world.run_until(secs(1));
        let order = order(&world);
        // The first request found the link idle; from then on both are present.
        let second = order.iter().position(|owner| *owner == 1).unwrap();
        assert_eq!(order[second..second + 8], [1, 0, 0, 0, 1, 0, 0, 0], "{unit}");
    }
}

// rule: wrr.round
#[test]
fn packets_or_bytes_are_shared_by_weight() {
    for form in forms() {
        shares_of(&form);
    }
}

fn shares_of(form: &Subject) {
    // Weights that are not multiples of each other: a fraction is kept.
    let (mut world, vms) = pair(form, [5, 2], [&[FRAME], &[FRAME]]);
    world.run_until(secs(5));
    let rates = world.rates(&vms, secs(1), secs(5));
    assert!((rates[0] / rates[1] - 2.5).abs() < 0.01, "{rates:?}");
    // With unit packets, small packets count as much as large ones; with unit bytes they do not.
    let (mut world, vms) = pair(&form.clone().text("unit", "packets"), [1, 1], [&[FRAME], &[SMALL]]);
    world.run_until(secs(1));
    let counts = world.counts(&vms, millis(100), secs(1));
    assert!(counts[0].abs_diff(counts[1]) <= 1, "{counts:?}");
    let (mut world, vms) = pair(&form.clone().text("unit", "bytes"), [1, 1], [&[FRAME], &[SMALL]]);
    world.run_until(secs(5));
    assert_close(
        "bytes",
        &megabits(&world, &vms, secs(1), secs(5)),
        &{
            let sum: f64 = megabits(&world, &vms, secs(1), secs(5)).iter().sum();
            [sum / 2.0, sum / 2.0]
        },
        0.01,
    );
}

/// The largest difference of services/weights, over all intervals and pairs, divided by the pair's bound.
fn worst(world: &World, weights: &[f64], unit: impl Fn(&Record) -> f64, bound: impl Fn(f64, f64) -> f64) -> f64 {
    let mut worst = 0.0f64;
    for (a, b) in (0..weights.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let (mut lag, mut low, mut high) = (0.0f64, 0.0f64, 0.0f64);
        for record in &world.log {
            let owner = record.request.owner.0 as usize;
            let step = unit(record) / weights[owner];
            lag += if owner == a {
                step
            } else if owner == b {
                -step
            } else {
                0.0
            };
            (low, high) = (low.min(lag), high.max(lag));
        }
        worst = worst.max((high - low) / bound(weights[a], weights[b]));
    }
    worst
}

// rule: wrr.bound
#[test]
fn q15_service_by_weight_stays_within_its_bound() {
    let mut rng = chance(15);
    for round in 0..80 {
        let (packets, tags) = (round % 2 == 0, round >= 40);
        let count = 2 + below(&mut rng, 5) as usize;
        let mut weights: Vec<u32> = (0..count).map(|_| pick(&mut rng, &[1, 2, 3, 4, 10, 30])).collect();
        weights[0] = 1;
        let unit = if packets { "packets" } else { "bytes" };
        let mut world = link(&if tags { wrr(unit) } else { published(unit) }, 4, 120_000);
        // All packets arrive before the first is sent.
        world.device.stalled_until = millis(1);
        let vms: Vec<(OwnerId, usize)> = weights
            .iter()
            .map(|weight| {
                let vm = world.vm(Policy::weighted(*weight));
                let lengths: Vec<u32> = (0..4).map(|_| pick(&mut rng, &[SMALL, 512, FRAME])).collect();
                let source = world.source(Source::new(vm, VolumeId(0), Pattern::Manual).lengths(&lengths));
                (vm, source)
            })
            .collect();
        for (_, source) in &vms {
            (0..4000).for_each(|_| assert!(world.ask(*source)));
        }
        world.pump();
        // As long as no queue is empty.
        world.run_until(millis(400));
        assert!(vms.iter().all(|(vm, _)| world.gate.outstanding(*vm).unwrap().waiting > 0));
        let real: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        let frame = f64::from(FRAME);
        let worst = match (packets, tags) {
            (true, false) => worst(&world, &real, |_| 1.0, |_, _| 1.0),
            (true, true) => worst(&world, &real, |_| 1.0, |a, b| 1.0 / a + 1.0 / b),
            (false, true) => worst(&world, &real, bytes, |a, b| frame / a + frame / b),
            (false, false) => worst(&world, &real, bytes, |a, b| frame + frame * (1.0 / a + 1.0 / b)),
        };
        let what = format!("weights {weights:?}, packets {packets}, tags {tags}");
        assert!(worst <= 1.0 + 1e-6, "Q15: {worst} of the bound, {what}");
    }
}

// rule: wrr.empty-forfeits, wrr.inactive
#[test]
fn a_nic_without_packets_forfeits_its_turn_and_its_deficit() {
    let mut world = link(&published("packets"), 1, MILLI);
    let (_, heavy) = sender(&mut world, Policy::weighted(10), FRAME);
    let (_, light) = sender(&mut world, Policy::weighted(1), FRAME);
    (0..3).for_each(|_| assert!(world.ask(heavy)));
    (0..6).for_each(|_| assert!(world.ask(light)));
    world.pump();
    world.run_until(millis(4));
    // Three of its ten, then the others continue; the other seven are not compensated.
    (0..20).for_each(|_| assert!(world.ask(heavy)));
    world.run_until(millis(40));
    assert_eq!(order(&world)[..18], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
}

// rule: wrr.skipped
#[test]
fn a_nic_without_credits_is_skipped_and_not_compensated_later() {
    for form in [wrr("bytes"), published("bytes")] {
        let mut world = link(&form, 4, 120_000);
        let held = flood(&mut world, Policy { weight: Some(Weight::new(1000)), ..at_most(10) }, &[FRAME]);
        let free = flood(&mut world, Policy::weighted(10), &[FRAME]);
        world.run_until(secs(4));
        let got = megabits(&world, &[held, free], secs(1), secs(4));
        assert!(got[0] > 9.6 && got[0] <= 10.0, "{got:?}");
        assert!((got[0] + got[1] - 100.9).abs() < 0.3, "the link is full: {got:?}");
        let most = window_max(world.of(held), 50 * MILLI - 1, bytes);
        assert!(most <= 2.0 * 62_500.0, "{most}: windows without turns are not caught up");
    }
}

// rule: wrr.weights-at-turn, wrr.parameters
#[test]
fn trace_7_exchanged_weights_take_effect_with_the_next_turns() {
    for form in forms() {
        let (mut world, vms) = pair(&form, [30, 1], [&[FRAME], &[FRAME]]);
        for second in 0..20u64 {
            let weights = if second % 2 == 0 { [30, 1] } else { [1, 30] };
            (0..2).for_each(|vm| world.set(vms[vm], Policy::weighted(weights[vm])));
            world.run_until(secs(second + 1));
            let all = megabits(&world, &vms, secs(second), secs(second + 1)).iter().sum::<f64>();
            // Settled after a round of each of the two, 7.4 ms.
            let from = secs(second) + std::time::Duration::from_millis(8);
            let got = megabits(&world, &vms, from, secs(second + 1));
            let due = weights.map(|weight| all * f64::from(weight) / 31.0);
            assert_close("shares", &got, &due, 0.01);
            assert!(second == 0 || (all - 100.9).abs() < 0.5, "{all}");
        }
    }
}

// rule: wrr.parameters
#[test]
fn weights_can_be_disabled() {
    for form in forms() {
        let mut world = link(&form.text("prioritize", "off"), 4, 120_000);
        let vms = [30, 1].map(|weight| flood(&mut world, Policy::weighted(weight), &[FRAME]));
        world.run_until(secs(2));
        let rates = world.rates(&vms, secs(1), secs(2));
        assert!((rates[0] / rates[1] - 1.0).abs() < 0.01, "{rates:?}");
    }
    let off = wrr("packets").text("prioritize", "off").params;
    let wrr = sluice_papers::find("wrr").unwrap();
    assert!(!wrr.enforces_with(policy::Field::Weight, &off) && wrr.enforces_with(policy::Field::Limit, &off));
}

// rule: wrr.hold, wrr.active, wrr.inactive
#[test]
fn a_turn_is_held_for_an_active_nic_only_if_enabled() {
    for form in forms() {
        // One frame every 5 ms, less than its half; the other NIC is always backlogged.
        let run = |hold: bool, every: u64| {
            let mut world = link(&form.clone().with("hold", Value::Bool(hold)), 1, 120_000);
            let rare = world.vm(Policy::weighted(100));
            world.source(Source::new(rare, VolumeId(0), Pattern::Open(every)).lengths(&[FRAME]));
            let busy = flood(&mut world, Policy::weighted(100), &[FRAME]);
            world.run_until(secs(2));
            world.rates(&[rare, busy], secs(1), secs(2))
        };
        let capacity = 1e9 / 120_000.0;
        assert_close("forfeited", &run(false, 5 * MILLI), &[200.0, capacity - 200.0], 0.01);
        // Its share is lost to all: the other NIC sends one packet for each of its packets.
        let held = run(true, 5 * MILLI);
        assert!((held[1] - held[0]).abs() <= 2.0 && (held[0] - 200.0).abs() <= 1.0, "{held:?}");
        // After a pause of 10 ms it is inactive, and its share is free until it has packets again.
        let rarer = run(true, 100 * MILLI);
        assert!(rarer[0] == 10.0 && rarer[1] > 0.88 * capacity && rarer[1] < 0.92 * capacity, "{rarer:?}");
    }
}

// rule: wrr.min-rate
#[test]
fn a_nic_below_its_minimum_is_served_first() {
    for form in [wrr("bytes"), published("bytes")] {
        // Three equal weights would get 33 of 100 each.
        let mut world = link(&form, 4, 121_120);
        let vms =
            [at_least(60), Policy::default(), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        assert_close("one minimum", &megabits(&world, &vms, secs(1), secs(5)), &[60.0, 20.0, 20.0], 0.01);
        // A NIC with a larger share by weight keeps it.
        let mut world = link(&form, 4, 121_120);
        let heavy = Policy { weight: Some(Weight::new(300)), ..at_least(20) };
        let vms = [heavy, Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        assert_close("by weight", &megabits(&world, &vms, secs(1), secs(5)), &[75.0, 25.0], 0.01);
        // More than the link has: by weight among those below their minimum.
        let mut world = link(&form, 4, 121_120);
        let twice = Policy { weight: Some(Weight::new(200)), ..at_least(80) };
        let vms = [twice, at_least(80), Policy::weighted(1000)].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        assert_close("too much", &megabits(&world, &vms, secs(1), secs(5)), &[66.7, 33.3, 0.0], 0.015);
        // A stated maximum still applies.
        let mut world = link(&form, 4, 121_120);
        let both = Policy { limit: at_most(35).limit, ..at_least(30) };
        let vms = [both, Policy::weighted(10_000)].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(5));
        let got = megabits(&world, &vms, secs(1), secs(5));
        assert!(got[0] >= 30.0 - 0.3 && got[0] <= 35.0, "{got:?}");
    }
}

// rule: wrr.back-pressure
#[test]
fn no_packet_is_taken_while_the_link_is_full() {
    let mut world = link(&wrr("bytes"), 8, 120_000);
    let vms = [30, 1].map(|weight| flood(&mut world, Policy::weighted(weight), &[FRAME]));
    world.run_until(secs(1));
    assert_eq!(world.device.held_max, 8);
    let taken = world.log.len() as u64;
    let done = world.finished.len() as u64;
    assert!(taken - done <= 8, "{taken} taken, {done} done");
    let waiting: u64 = vms.iter().map(|vm| u64::from(world.gate.outstanding(*vm).unwrap().waiting)).sum();
    assert_eq!(waiting + taken - done, 512, "the others wait in front of the gate");
}

// rule: wrr.paper-constant
#[test]
fn a_packet_larger_than_many_turns_needs_no_more_steps() {
    // 64 MiB in turns of 64 bytes are a million rounds.
    let subject = published("bytes").with("frame", Value::Integer(64));
    let mut scheduler = subject.build(&DeviceInfo::default());
    for owner in 0..8 {
        add(&mut *scheduler, owner, Policy::weighted(1 + owner));
        (0..100_000).for_each(|id| {
            let id = id * 8 + u64::from(owner);
            scheduler.insert(Instant::ZERO, Request { length: 64 << 20, ..packet(id, owner) });
        });
    }
    let mut counts = [0; 8];
    for _ in 0..36_000 {
        let Decision::Dispatch(request) = scheduler.dispatch(Instant::ZERO) else { panic!("it has packets") };
        counts[request.owner.index()] += 1;
    }
    for (owner, count) in counts.iter().enumerate() {
        let due = 1000 * (owner as i64 + 1);
        assert!((i64::from(*count) - due).abs() <= 2, "{counts:?}");
    }
}

// Defects found.

/// The longest time in nanoseconds that a packet of a VM waited for the link, between two instants.
fn longest_wait(world: &World, vm: OwnerId, from: Instant) -> u64 {
    let waits = world.of(vm).filter(|record| record.at >= from);
    waits.map(|record| record.at.nanos_since(record.request.arrival)).max().expect("it was served")
}

pub(super) fn background() -> Policy {
    Policy { class: policy::Class::Background, ..Policy::default() }
}

// rule: wrr.bound, wrr.tags
#[test]
fn one_background_nic_made_all_turns_ten_thousand_frames_long() {
    // Frames are sent at 1 Gb/s; one VM sends one every millisecond and a little.
    let run = |form: &Subject, beside: &[Policy]| {
        let mut world = link(form, 1, 12_112);
        let sparse = world.vm(Policy::default());
        world.source(Source::new(sparse, VolumeId(0), Pattern::Open(1_037_000)).lengths(&[FRAME]));
        let busy: Vec<OwnerId> = beside.iter().map(|policy| flood(&mut world, *policy, &[FRAME])).collect();
        world.run_until(secs(4));
        (longest_wait(&world, sparse, secs(1)), world.rates(&busy, secs(1), secs(4)))
    };
    for unit in ["bytes", "packets"] {
        let (alone, _) = run(&wrr(unit), &[Policy::default()]);
        let (wait, rates) = run(&wrr(unit), &[Policy::default(), background()]);
        let (long, _) = run(&published(unit), &[Policy::default(), background()]);
        println!("{unit}: {alone} ns, next to a background NIC {wait} ns, in published rounds {long} ns");
        // The frame on the wire, and a frame of each of the two.
        assert!(wait <= 3 * 12_112 && alone <= 2 * 12_112, "{unit}: {alone}, {wait} ns");
        assert!(long > 100 * MILLI, "as published it waits for a turn of 10,000 frames: {long} ns");
        // In three seconds the background NIC has the weight of 25 frames.
        assert!(rates[1] * 3.0 <= 30.0 && rates[0] > 81_000.0, "{rates:?}");
    }
}

// rule: wrr.min-rate, wrr.min-counts
#[test]
fn a_minimum_above_the_share_gave_the_minimum_plus_a_turn() {
    for form in forms() {
        // A weight of 100 next to one of 300 gets 25 of 100 Mb/s, and the minimum is 40.
        for (beside, limit) in [(vec![], 0.01), (vec![background()], 0.01)] {
            let mut world = link(&form, 4, 121_120);
            let heavy = Policy::weighted(300);
            let vms: Vec<OwnerId> = [at_least(40), heavy]
                .iter()
                .chain(&beside)
                .map(|policy| flood(&mut world, *policy, &[FRAME]))
                .collect();
            world.run_until(secs(21));
            let got = megabits(&world, &vms, secs(1), secs(21));
            println!("{:?}: {got:?} Mb/s", form.params);
            assert!((got[0] / 40.0 - 1.0).abs() <= limit, "{:?}: {got:?} Mb/s", form.params);
        }
        // Frames of other sizes, and a rate that is not a whole number of frames per window.
        let mut world = link(&form, 4, 121_120);
        let vms = [at_least(70), Policy::default(), Policy::default()];
        let lengths: [&[u32]; 3] = [&[SMALL, FRAME, 512], &[FRAME], &[SMALL, FRAME]];
        let vms = [0, 1, 2].map(|vm| flood(&mut world, vms[vm], lengths[vm]));
        world.run_until(secs(11));
        let got = megabits(&world, &vms[..1], secs(1), secs(11));
        let most = if form.params["unit"] == Value::Text("bytes".to_owned()) { 70.0 * 1.01 } else { f64::MAX };
        assert!(got[0] <= most, "{:?}: {got:?} Mb/s", form.params);
    }
}

// rule: wrr.min-rate
#[test]
fn a_nic_with_a_minimum_above_its_share_owes_little_later() {
    for form in forms() {
        let mut world = link(&form, 4, 121_120);
        let vms = [at_least(80), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
        world.run_until(secs(10));
        world.set(vms[0], Policy::default());
        world.run_until(secs(11));
        let got = megabits(&world, &vms, secs(10), secs(11));
        assert!((got[0] - got[1]).abs() < 1.0, "{:?}: {got:?}", form.params);
    }
}

// rule: wrr.weights-at-turn
#[test]
fn a_changed_weight_applies_to_a_queued_packet() {
    let mut world = link(&wrr("bytes"), 1, 12_112);
    let vms = [background(), Policy::default()].map(|policy| flood(&mut world, policy, &[FRAME]));
    world.run_until(secs(1));
    world.set(vms[0], Policy::default());
    world.run_until(millis(1100));
    let rates = world.rates(&vms, secs(1), millis(1100));
    assert!((rates[0] / rates[1] - 1.0).abs() < 0.01, "{rates:?}");
}
