//! Changes of a run that must have no effect, or an effect in one direction only: runs compared with changed runs.
//!
//! If a property does not hold for a scheduler by design, a test asserts that, so that no code relies on it.

use crate::common::analysis::assert_close;
use crate::common::plan::Asks;
use crate::common::*;
use rand_pcg::Pcg32;
use sluice_sched::gate::GateSettings;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::*;

/// A fixed trace: arrivals do not depend on completions.
#[derive(Debug, Clone)]
struct Trace {
    policies: Vec<Policy>,
    /// Nanoseconds from the start, VM, length, kind and flags.
    arrivals: Vec<(u64, usize, u32, Asks)>,
    depth: u32,
    service: u64,
    catchup: u64,
    start: Instant,
    remote: Option<(u32, u32)>,
    /// Whether the device has a head that seeks.
    rotational: bool,
    /// Factor of all times among the scheduler's parameters.
    slower: u64,
}

const READS: Asks = (Kind::Read, Flags::NONE);

/// Dispatches: nanoseconds from the start, VM, arrival number, phase.
type Dispatches = Vec<(u64, u32, u64, Phase)>;

fn play(subject: &Subject, trace: &Trace) -> Dispatches {
    let info = DeviceInfo { depth: trace.depth, rotational: trace.rotational, ..DeviceInfo::default() };
    let settings = GateSettings { depth: trace.depth, cost: plan::cost_model(), ..GateSettings::default() };
    let subject = match subject.descriptor.name {
        "mclock" => subject.clone().text("reservation_catchup_max", &format!("{}ms", trace.catchup)),
        "edf-credit" | "flubber" => deadlines(subject, trace.slower),
        _ => slower(subject.clone(), trace.slower),
    };
    let device = Stub::new(trace.depth as usize, Order::Fifo, Service::Fixed(trace.service));
    let mut world = World::new(subject.build(&info), settings, device);
    world.now = trace.start;
    let vms: Vec<OwnerId> = trace.policies.iter().map(|policy| world.vm(*policy)).collect();
    let mut sources = Vec::new();
    for (at, vm, length, (kind, flags)) in &trace.arrivals {
        let source = Source::new(vms[*vm], VolumeId(0), Pattern::Manual).lengths(&[*length]);
        let mut source = source.kind(*kind).flags(*flags);
        if let Some((rho, delta)) = trace.remote {
            source = source.remote(rho, delta);
        }
        sources.push((*at, world.source(source)));
    }
    for (at, source) in sources {
        world.ask_at(world.after(at), source);
    }
    world.run_for(1000 * SECOND);
    assert_eq!(world.log.len(), trace.arrivals.len(), "the whole trace is served");
    let record = |r: &Record| (r.at.nanos_since(trace.start), r.request.owner.0, r.request.id.0, r.request.phase);
    world.log.iter().map(record).collect()
}

/// The scheduler with all times multiplied by `k`.
fn slower(mut subject: Subject, k: u64) -> Subject {
    for parameter in subject.descriptor.parameters.iter().filter(|p| k > 1 && p.kind == "time with unit") {
        let time = units::parse_duration(parameter.default.trim_matches('"')).expect("a default");
        subject = subject.text(parameter.name, &format!("{}ns", time.as_nanos() as u64 * k));
    }
    subject
}

/// Arrivals on a grid of 1 ms, some at the same instant, and policies with exact tags.
fn random_trace(rng: &mut Pcg32) -> Trace {
    let vms = 2 + below(rng, 6) as usize;
    let policies = (0..vms).map(|_| random_policy(rng)).collect();
    let mut arrivals = Vec::new();
    let mut at = 0;
    for _ in 0..250 {
        at += pick(rng, &[0, 0, 0, 0, MILLI, MILLI, 5 * MILLI, 60 * MILLI]);
        let asks = pick(rng, &[READS, READS, (Kind::Write, Flags::NONE), (Kind::Write, Flags::SYNC)]);
        arrivals.push((at, below(rng, vms as u64) as usize, pick(rng, &plan::LENGTHS[..3]), asks));
    }
    let depth = pick(rng, &[1, 2, 4, 8]);
    Trace {
        policies,
        arrivals,
        depth,
        service: 4 * MILLI,
        catchup: 100,
        start: Instant::ZERO,
        remote: None,
        rotational: below(rng, 2) == 0,
        slower: 1,
    }
}

fn random_policy(rng: &mut Pcg32) -> Policy {
    let mut policy = Policy::weighted(pick(rng, &[1, 2, 4, 10, 1000]));
    policy.idle_credit = pick(rng, &[0, 1, 16]);
    if below(rng, 3) == 0 {
        policy = policy.reserving(pick(rng, &[100, 200, 500]));
    }
    if below(rng, 3) == 0 {
        policy = policy.limited(pick(rng, &[500, 1000, 2000]));
        policy.burst = Some(pick(rng, &[1, 4, 20]));
    }
    if below(rng, 4) == 0 {
        policy.limit.bytes = Some(ByteRate::per_second(pick(rng, &[8_000_000, 16_000_000])));
    }
    policy
}

/// Targets and idling of Flubber and its baseline, `scale` times as long as usual.
fn deadlines(subject: &Subject, scale: u64) -> Subject {
    let millis = |usual: u64| format!("{}ms", usual * scale);
    let subject = subject.clone().text("latency", &millis(80)).text("seek_max", &millis(9));
    let rate = |subject: Subject| subject.text("transfer_rate", &format!("{}kB/s", 100_000 / scale));
    match (subject.descriptor.name, subject.mode()) {
        ("flubber", Some("product")) => rate(subject).text("max_wait", &millis(6)),
        ("flubber", _) => rate(subject),
        _ => subject,
    }
}

fn sfqd() -> Subject {
    Subject::of("sfqd")
}

/// Asserts that two runs are the same; names the first dispatch that differs.
fn assert_same(got: &Dispatches, expected: &Dispatches, what: &str) {
    let differs = (0..expected.len().max(got.len())).find(|index| got.get(*index) != expected.get(*index));
    if let Some(index) = differs {
        panic!("{what}: dispatch {index} is {:?}, expected {:?}", got.get(index), expected.get(index));
    }
}

/// Runs `check` with every subject on 20 traces.
fn compare(seed: u64, subjects: &[Subject], check: impl Fn(&Subject, &Trace, &Dispatches)) {
    let mut rng = chance(seed);
    for _ in 0..20 {
        let trace = random_trace(&mut rng);
        for subject in subjects {
            check(subject, &trace, &play(subject, &trace));
        }
    }
}

// rule: gate.tie-arrival, gate.owner
#[test]
fn mm1_numbers_of_vms_have_no_effect() {
    compare(1, &subjects(), |subject, trace, before| {
        let count = trace.policies.len();
        for turn in 1..count {
            let place = |vm: usize| (vm + turn) % count;
            let mut relabelled = trace.clone();
            (0..count).for_each(|vm| relabelled.policies[place(vm)] = trace.policies[vm]);
            relabelled.arrivals.iter_mut().for_each(|arrival| arrival.1 = place(arrival.1));
            let expected: Dispatches =
                before.iter().map(|(at, vm, id, phase)| (*at, place(*vm as usize) as u32, *id, *phase)).collect();
            assert_same(&play(subject, &relabelled), &expected, &subject.label());
        }
    });
}

#[test]
fn mm2_the_start_time_has_no_effect() {
    compare(2, &subjects(), |subject, trace, before| {
        for start in [1, 12_345_678_901_234_567, u64::MAX - 2000 * SECOND] {
            let shifted = Trace { start: Instant::from_nanos(start), ..trace.clone() };
            assert_same(&play(subject, &shifted), before, &format!("{} from {start} ns", subject.label()));
        }
    });
}

#[test]
fn mm2_the_start_time_in_whole_ticks_has_no_effect() {
    let ticking = subjects().into_iter().filter(|subject| subject.params.contains_key("tick"));
    let ticking: Vec<Subject> = ticking.map(|subject| subject.text("tick", "4ms")).collect();
    assert!(ticking.len() >= 7, "{}", ticking.len());
    compare(22, &ticking, |subject, trace, before| {
        for ticks in [1, 3_086_419_753, (u64::MAX - 2000 * SECOND) / (4 * MILLI)] {
            let shifted = Trace { start: Instant::from_nanos(ticks * 4 * MILLI), ..trace.clone() };
            assert_same(&play(subject, &shifted), before, &format!("{}, {ticks} ticks", subject.label()));
        }
    });
}

#[test]
fn mm3_the_scale_of_time_has_no_effect() {
    let slower = |rate: Option<Iops>, k: u64| rate.map(|rate| Iops::from_milli(rate.milli() / k));
    let slower_bytes = |rate: Option<ByteRate>, k: u64| rate.map(|r| ByteRate::per_second(r.bytes_per_second() / k));
    // On a link the burst of a limit is a time that does not scale.
    let mut scaling = subjects();
    scaling.retain(|subject| subject.device_class.counts_requests() || subject.descriptor.name != "mclock");
    compare(3, &scaling, |subject, trace, before| {
        // The tick of the clock is one of the times.
        let ticking = subject.params.contains_key("tick").then(|| subject.clone().text("tick", "1ms"));
        let again = ticking.map(|subject| play(&subject, trace));
        let before = again.as_ref().unwrap_or(before);
        for k in [2, 4, 20] {
            let mut scaled =
                Trace { service: trace.service * k, catchup: trace.catchup * k, slower: k, ..trace.clone() };
            scaled.arrivals.iter_mut().for_each(|arrival| arrival.0 *= k);
            for policy in &mut scaled.policies {
                policy.reservation.iops = slower(policy.reservation.iops, k);
                policy.limit.iops = slower(policy.limit.iops, k);
                policy.limit.bytes = slower_bytes(policy.limit.bytes, k);
                if subject.descriptor.name == "mclock-paper" {
                    // The published share tag treats a weight as a rate.
                    policy.weight = policy.weight.map(|weight| Weight::from_hundredths(weight.hundredths() / k));
                }
            }
            let expected: Dispatches = before.iter().map(|(at, vm, id, phase)| (at * k, *vm, *id, *phase)).collect();
            assert_same(&play(subject, &scaled), &expected, &format!("{} x {k}", subject.label()));
        }
    });
}

fn weights_times(trace: &Trace, k: u64) -> Trace {
    let mut scaled = trace.clone();
    for policy in &mut scaled.policies {
        policy.weight = policy.weight.map(|weight| Weight::from_hundredths(weight.hundredths() * k));
    }
    scaled
}

// rule: mclock.scale-matters
#[test]
fn mm4_the_scale_of_weights_has_no_effect() {
    let groups = Subject::of("cfq").text("mode", "group").text("tick", "0s");
    let wrr = ["bytes", "packets"].map(|unit| Subject::of("wrr").text("unit", unit));
    let [bytes, packets] = wrr;
    compare(4, &[product(), sfqd(), Subject::of("noop"), groups, bytes, packets], |subject, trace, before| {
        let mut trace = trace.clone();
        // Async writes belong to the root group, whose weight no policy sets.
        trace.arrivals.iter_mut().filter(|arrival| arrival.3.0 == Kind::Write).for_each(|a| a.3.1 = Flags::SYNC);
        let again = (subject.descriptor.name == "cfq").then(|| play(subject, &trace));
        let before = again.as_ref().unwrap_or(before);
        for k in [2, 5, 1000] {
            assert_same(&play(subject, &weights_times(&trace, k)), before, &format!("{} x {k}", subject.label()));
        }
    });
    let mut rng = chance(4);
    let changed = (0..20).filter(|_| {
        let trace = random_trace(&mut rng);
        play(&paper(), &trace) != play(&paper(), &weights_times(&trace, 1000))
    });
    assert!(changed.count() >= 10, "in paper mode the scale of weights has an effect");
}

/// Requests per second of VMs that are always backlogged, at 1000/s and depth 4.
fn rates(subject: &Subject, policies: &[Policy]) -> Vec<f64> {
    let mut world = World::simple(subject, 4, 1000);
    let vms: Vec<OwnerId> = policies.iter().map(|policy| world.busy(*policy, Pattern::Closed(32))).collect();
    world.run_until(secs(11));
    world.rates(&vms, secs(1), secs(11))
}

#[test]
fn mm5_more_weight_is_not_less_service() {
    let weights = [[1, 2, 3], [10, 10, 10], [1, 1, 7]];
    // Groups by time in slices: at either end of the 10 s one of 100 ms may be in progress.
    let groups = Subject::of("cfq").text("mode", "group");
    for (subject, slack) in [(product(), 1.0), (paper(), 1.0), (sfqd(), 1.0), (Subject::of("wrr"), 1.0), (groups, 20.0)]
    {
        for weights in weights {
            let before = rates(&subject, &weights.map(Policy::weighted));
            for more in [1, 3, 10] {
                let mut policies = weights.map(Policy::weighted);
                policies[0] = Policy::weighted(weights[0] + more);
                let after = rates(&subject, &policies);
                let what = format!("{}: {before:?} {after:?}", subject.label());
                assert!(after[0] > before[0] + 1.0, "{what}");
                assert!(after[1] <= before[1] + slack && after[2] <= before[2] + slack, "{what}");
            }
        }
    }
}

#[test]
fn mm6_a_higher_reservation_or_a_lower_limit_shifts_service_in_one_direction() {
    for subject in [product(), paper()] {
        let base = [Policy::weighted(10), Policy::weighted(30).reserving(200), Policy::weighted(60)];
        let mut last = rates(&subject, &base);
        for reservation in [50, 150, 300, 500] {
            let after = rates(&subject, &[base[0].reserving(reservation), base[1], base[2]]);
            assert!(after[0] >= last[0] - 1.0 && after[0] >= reservation as f64 - 1.0, "{last:?} {after:?}");
            assert!(after[1] >= 199.0, "{}: the others keep their reservation: {after:?}", subject.label());
            last = after;
        }
        let mut last = rates(&subject, &base);
        for limit in [500, 300, 100, 10] {
            let after = rates(&subject, &[base[0], base[1], base[2].limited(limit)]);
            assert!(after[2] <= last[2] + 1.0 && after[2] <= limit as f64 + 1.0, "{last:?} {after:?}");
            assert!((after.iter().sum::<f64>() - 1000.0).abs() <= 1.0, "{}: {after:?}", subject.label());
            last = after;
        }
    }
}

#[test]
fn mm7_an_idle_vm_has_no_effect() {
    let with_one_more = |trace: &Trace| {
        let mut more = trace.clone();
        more.policies.push(Policy::weighted(1_000_000).reserving(1000).limited(2000));
        more
    };
    // In the published form credits are replenished when those of all VMs are used up, and an idle VM uses none.
    let (with_credits, others): (Vec<_>, Vec<_>) =
        subjects().into_iter().partition(|s| s.descriptor.name == "edf-credit" || s.is("flubber", "paper"));
    compare(7, &others, |subject, trace, before| {
        assert_same(&play(subject, &with_one_more(trace)), before, &subject.label());
    });
    let few = |subject: &Subject| subject.clone().with("beta", params::Value::Integer(1));
    for subject in with_credits.iter().map(few) {
        let mut rng = chance(7);
        let mut traces = (0..20).map(|_| random_trace(&mut rng));
        let matters = |trace: Trace| play(&subject, &trace) != play(&subject, &with_one_more(&trace));
        assert!(traces.any(matters), "{}", subject.label());
    }
}

#[test]
fn mm8_splitting_a_vm_has_no_effect() {
    for subject in [product(), paper(), sfqd(), Subject::of("wrr")] {
        let whole = rates(&subject, &[Policy::weighted(10), Policy::weighted(20)]);
        let split = rates(&subject, &[5, 5, 20].map(Policy::weighted));
        assert_close(&subject.label(), &[split[0] + split[1], split[2]], &whole, 0.01);
    }
    // noop counts requests, netback and CFQ without groups count queues.
    for subject in [Subject::of("noop"), Subject::of("netback"), Subject::of("cfq").text("mode", "2.6.32")] {
        let whole = rates(&subject, &[Policy::default(); 2]);
        let split = rates(&subject, &[Policy::default(); 3]);
        assert_close("two", &whole, &[500.0, 500.0], 0.01);
        assert_close("three", &split, &[333.3, 333.3, 333.3], 0.01);
    }
}

#[test]
fn mm9_vms_with_weights_only_are_served_in_tag_order() {
    let mut rng = chance(9);
    for _ in 0..20 {
        let weights: Vec<u32> = (0..5).map(|_| pick(&mut rng, &[1, 2, 4, 10, 1000])).collect();
        let policies = weights.iter().map(|weight| Policy { idle_credit: 0, ..Policy::weighted(*weight) }).collect();
        // One request of each VM first: in the published form a VM that comes later starts at the tags of the others.
        let mut arrivals = Vec::new();
        for index in 0..200 {
            let vm = if index < 5 { index } else { below(&mut rng, 5) as usize };
            arrivals.push((0, vm, pick(&mut rng, &plan::LENGTHS[..3]), READS));
        }
        let trace = Trace { policies, arrivals, depth: 1, ..random_trace(&mut rng) };
        // The first request finds the device idle; the order is that of the others.
        let in_order = |own_cost: bool| {
            let mut tags = [0; 5];
            let mut line = Vec::new();
            for (id, (_, vm, length, _)) in trace.arrivals.iter().enumerate() {
                let cost = u64::from(plan::cost_model().cost(Kind::Read, *length).raw() >> 16);
                let step = 1000 / u64::from(weights[*vm]) * cost;
                let first = tags[*vm] == 0;
                // The published tag of a VM's first request is the current time; each later one adds its own cost.
                let tag = if own_cost && !first { tags[*vm] + step } else { tags[*vm].max(u64::from(own_cost)) };
                line.push((tag, id as u64));
                tags[*vm] = if own_cost { tag } else { tag + step };
            }
            line.sort_unstable();
            line.into_iter().map(|(_, id)| id).collect::<Vec<u64>>()
        };
        for (subject, own_cost) in [(product(), false), (paper(), true), (sfqd(), false)] {
            let got: Vec<u64> = play(&subject, &trace).iter().map(|dispatch| dispatch.2).collect();
            assert_eq!(got, in_order(own_cost), "{}, weights {weights:?}", subject.label());
        }
    }
}

#[test]
fn mm10_a_longer_pause_of_all_has_no_effect() {
    // Published tags are real time: service of a VM of small weight ahead of it counts against the VM for a while. So
    // weights are large here, and in both modes reservations and limits have had time to become current.
    for subject in subjects() {
        let mut rng = chance(10);
        for _ in 0..20 {
            let mut trace = random_trace(&mut rng);
            if subject.descriptor.name == "mclock-paper" {
                trace = weights_times(&trace, 1000);
            }
            let length = trace.arrivals.last().unwrap().0;
            let twice = |gap: u64| {
                let again = trace.arrivals.iter().map(|(at, vm, size, asks)| (at + length + gap, *vm, *size, *asks));
                let arrivals = trace.arrivals.iter().copied().chain(again).collect();
                let played = play(&subject, &Trace { arrivals, ..trace.clone() });
                let second = played[250..].iter();
                second.map(|(at, vm, id, phase)| (at - length - gap, *vm, *id, *phase)).collect::<Dispatches>()
            };
            assert_same(&twice(30 * SECOND), &twice(77 * SECOND), &subject.label());
        }
    }
}

// rule: mclock.first-request, mclock.product-counts
#[test]
fn mm15_one_server_of_dmclock_is_mclock() {
    // A single server reports no other service: 0 if the own cost is added, 1 if it is multiplied.
    for (subject, counted) in [(product(), 0), (paper(), 1)] {
        compare(15, &[subject], |subject, trace, before| {
            let tracked = Trace { remote: Some((counted, counted)), ..trace.clone() };
            assert_same(&play(subject, &tracked), before, &subject.label());
        });
    }
}

#[test]
fn several_dmclock_servers_give_one_limit_and_one_reservation() {
    // Two servers with alternate requests: each server sees one remote request between its own.
    let run = |policy: Policy, remote: u32| {
        let mut world = World::simple(&product(), 8, 1000);
        let vm = world.vm(policy);
        let source = Source::new(vm, VolumeId(0), Pattern::Closed(16)).remote(remote, remote);
        world.source(source);
        // The first requests already report others, whose service lies in the past.
        world.run_until(secs(13));
        world.rates(&[vm], secs(3), secs(13))[0]
    };
    for servers in [1, 2, 4, 8] {
        let each = run(Policy::default().limited(80), servers - 1);
        assert!((each * f64::from(servers) - 80.0).abs() <= 1.0, "{servers} servers: {each} each of a limit of 80");
        let each = run(Policy { weight: None, ..Policy::default() }.reserving(80), servers - 1);
        assert!((each * f64::from(servers) - 80.0).abs() <= 1.0, "{servers} servers: {each} each of 80 reserved");
    }
}
