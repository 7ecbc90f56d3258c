//! The rules, the properties, and the pathologies.

use super::*;
use crate::cpu::host::{Class, Host};

const MS: u64 = 1_000_000;
const VERSIONS: [Params; 3] = [Params::XEN_3_3, Params::XEN_4_0, Params::XEN_4_1];

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// One CPU, and domains of these weights with one virtual CPU each.
fn one_cpu(params: Params, weights: &[u32]) -> (Credit1, Vec<VcpuId>) {
    let mut credit = Credit1::new(params, 1);
    let vcpus = weights.iter().map(|weight| {
        let domain = credit.add_domain(*weight, 0);
        credit.add_vcpu(domain, 1)
    });
    let vcpus = vcpus.collect();
    (credit, vcpus)
}

/// A host with domains of these weights and caps, and this number of virtual CPUs each, which always run.
fn loaded(params: Params, cpus: usize, domains: &[(u32, u32, usize)]) -> (Host<u32>, Vec<Vec<VcpuId>>) {
    let mut host = Host::new(params, cpus);
    let vcpus: Vec<Vec<VcpuId>> = domains
        .iter()
        .map(|(weight, cap, count)| {
            let domain = host.add_domain(*weight, *cap);
            (0..*count).map(|_| host.add_vcpu(domain, u64::MAX)).collect()
        })
        .collect();
    vcpus.iter().flatten().for_each(|vcpu| host.set_busy(Instant::ZERO, *vcpu, true));
    (host, vcpus)
}

fn used_ms(host: &Host<u32>, vcpus: &[VcpuId]) -> f64 {
    vcpus.iter().map(|vcpu| host.used_nanos(*vcpu)).sum::<u64>() as f64 / 1e6
}

fn run(host: &mut Host<u32>, end: Instant) {
    host.advance(end, &mut Vec::new());
}

// rule: credit1.state, credit1.parameters, credit1.priorities
#[test]
fn a_virtual_cpu_begins_with_nothing_and_under() {
    let (credit, vcpus) = one_cpu(Params::XEN_4_1, &[WEIGHT_DEFAULT]);
    assert_eq!((credit.credit(vcpus[0]), credit.priority(vcpus[0])), (0, Priority::Under));
    assert!(!credit.is_active(vcpus[0]) && !credit.is_parked(vcpus[0]));
    assert!(Priority::Boost > Priority::Under && Priority::Under > Priority::Over);
    let times = |params: Params| (params.tick.as_millis(), params.slice.as_millis());
    assert!(VERSIONS.iter().all(|params| times(*params) == (10, 30)));
}

// rule: credit1.version-3-3, credit1.version-4-0, credit1.version-4-1
#[test]
fn the_versions_match_the_papers() {
    let switches = |params: Params| (params.debit, params.weight_per, params.on_full, params.ratelimit.is_zero());
    assert_eq!(switches(Params::XEN_3_3), (Debit::Tick, WeightPer::Domain, OnFull::Zero, true));
    assert_eq!(switches(Params::XEN_4_0), (Debit::Exact, WeightPer::Domain, OnFull::Zero, true));
    assert_eq!(switches(Params::XEN_4_1), (Debit::Exact, WeightPer::Vcpu, OnFull::Halve, true));
    // Two domains of one weight, with three virtual CPUs and one: the weight is the domain's, or that of each virtual
    // CPU.
    for (params, share) in [(Params::XEN_4_0, 0.5), (Params::XEN_4_1, 0.75)] {
        let (mut host, vcpus) = loaded(params, 1, &[(256, 0, 3), (256, 0, 1)]);
        run(&mut host, at(30_000));
        let got = used_ms(&host, &vcpus[0]) / 30_000.0;
        assert!((got - share).abs() < 0.02, "{got} of a CPU, {share} due");
    }
}

// rule: credit1.run-queue, credit1.insert, credit1.schedule
#[test]
fn a_queue_is_by_priority_and_then_by_arrival() {
    let (mut credit, vcpus) = one_cpu(Params::XEN_4_1, &[256; 5]);
    // The first runs. The others wake up to BOOST as well, so none is preempted.
    vcpus.iter().for_each(|vcpu| credit.wake(at(0), *vcpu));
    assert_eq!(credit.running(0), Some(vcpus[0]));
    assert_eq!(credit.cpus[0].queue, [1, 2, 3, 4]);
    assert_eq!(credit.slice_end(0), Some(at(30)));
    credit.tick(at(10), 0);
    assert_eq!(credit.priority(vcpus[0]), Priority::Under);
    credit.schedule(at(10), 0);
    assert_eq!((credit.running(0), credit.cpus[0].queue.as_slice()), (Some(vcpus[1]), &[2, 3, 4, 0][..]));
    // A virtual CPU that yields is inserted one position after its priority, if one of lower priority waits.
    credit.tick(at(20), 0);
    credit.vcpus[0].priority = Priority::Over;
    credit.yield_now(at(20), vcpus[1]);
    assert_eq!((credit.running(0), credit.cpus[0].queue.as_slice()), (Some(vcpus[2]), &[3, 4, 0, 1][..]));
    credit.tick(at(30), 0);
    credit.yield_now(at(30), vcpus[2]);
    assert_eq!((credit.running(0), credit.cpus[0].queue.as_slice()), (Some(vcpus[3]), &[4, 0, 2, 1][..]));
}

// rule: credit1.wake-boost, credit1.wake-over
#[test]
fn only_a_woken_vcpu_with_credits_preempts() {
    let (mut credit, vcpus) = one_cpu(Params::XEN_4_1, &[256; 3]);
    credit.wake(at(0), vcpus[0]);
    credit.tick(at(10), 0);
    credit.wake(at(12), vcpus[1]);
    assert_eq!((credit.running(0), credit.priority(vcpus[1])), (Some(vcpus[1]), Priority::Boost));
    credit.wake(at(12), vcpus[1]);
    assert_eq!(credit.cpus[0].queue, [0], "a running vcpu is not woken");
    credit.block(at(13), vcpus[1]);
    assert_eq!(credit.running(0), Some(vcpus[0]));
    credit.vcpus[2].priority = Priority::Over;
    credit.wake(at(14), vcpus[2]);
    assert_eq!((credit.running(0), credit.priority(vcpus[2])), (Some(vcpus[0]), Priority::Over));
}

// rule: credit1.switches
#[test]
fn a_vcpu_below_the_rate_limit_is_not_preempted() {
    let params = Params { ratelimit: Duration::from_millis(1), ..Params::XEN_4_1 };
    let (mut credit, vcpus) = one_cpu(params, &[256; 2]);
    credit.wake(at(0), vcpus[0]);
    credit.vcpus[0].priority = Priority::Under;
    credit.wake(Instant::from_nanos(400_000), vcpus[1]);
    assert_eq!((credit.running(0), credit.slice_end(0)), (Some(vcpus[0]), Some(at(1))));
    credit.schedule(at(1), 0);
    assert_eq!(credit.running(0), Some(vcpus[1]));
}

// rule: credit1.steal
#[test]
fn a_cpu_with_only_over_takes_from_other_queues() {
    let mut credit = Credit1::new(Params::XEN_4_1, 3);
    let domain = credit.add_domain(256, 0);
    let vcpus: Vec<VcpuId> = (0..4).map(|_| credit.add_vcpu(domain, u64::MAX)).collect();
    let pinned = credit.add_vcpu(domain, 1);
    vcpus.iter().for_each(|vcpu| credit.wake(at(0), *vcpu));
    // All wake on the first CPU, and the idle CPUs take the waiting ones.
    assert_eq!([0, 1, 2].map(|cpu| credit.running(cpu)), [Some(vcpus[0]), Some(vcpus[1]), Some(vcpus[2])]);
    credit.wake(at(0), pinned);
    assert_eq!(credit.cpus[0].queue, [3, 4]);
    // A CPU with an UNDER keeps it; a CPU with an OVER takes a better one, if that may run here.
    credit.vcpus[2].priority = Priority::Over;
    credit.schedule(at(5), 2);
    assert_eq!((credit.running(2), credit.cpus[2].queue.as_slice()), (Some(vcpus[3]), &[2][..]));
    credit.block(at(6), vcpus[3]);
    assert_eq!((credit.running(2), credit.cpus[0].queue.as_slice()), (Some(vcpus[2]), &[4][..]), "it is pinned");
    credit.block(at(7), vcpus[2]);
    assert_eq!((credit.running(2), credit.cpus[0].queue.len()), (None, 1));
}

// rule: credit1.tick-boost, credit1.tick-sort
#[test]
fn a_tick_ends_boost_makes_active_and_sorts_after_an_accounting() {
    let (mut credit, vcpus) = one_cpu(Params::XEN_4_1, &[256; 4]);
    vcpus.iter().for_each(|vcpu| credit.wake(at(0), *vcpu));
    credit.tick(at(10), 0);
    assert!(credit.is_active(vcpus[0]) && !credit.is_active(vcpus[1]));
    assert_eq!((credit.priority(vcpus[0]), credit.credit(vcpus[0])), (Priority::Under, -100));
    // Priorities change in the queue; its order changes only after an accounting.
    credit.vcpus[1].priority = Priority::Over;
    credit.vcpus[3].priority = Priority::Under;
    credit.tick(at(20), 0);
    assert_eq!(credit.cpus[0].queue, [1, 2, 3]);
    credit.account(at(30));
    credit.tick(at(30), 0);
    assert_eq!(credit.cpus[0].queue, [2, 3, 1], "UNDER and better before OVER, and BOOST not before UNDER");
}

// rule: credit1.debit-exact, credit1.version-4-0
#[test]
fn running_is_paid_for_exactly_with_the_rounding_carried() {
    let (mut credit, vcpus) = one_cpu(Params::XEN_4_0, &[256]);
    let mut now = 0;
    for _ in 0..1000 {
        credit.wake(Instant::from_nanos(now), vcpus[0]);
        now += 123_456;
        credit.block(Instant::from_nanos(now), vcpus[0]);
        now += 1_000;
    }
    // 123.456 ms at 10 per ms.
    assert_eq!(credit.credit(vcpus[0]), -1235);
}

/// Credits that each virtual CPU gets, for a table of domains (weight, cap, active virtual CPUs) and a previous
/// balance.
fn accounted(params: Params, cpus: usize, domains: &[(u32, u32, usize)], balance: i64) -> (Vec<i64>, i64) {
    let mut credit = Credit1::new(params, cpus);
    let mut firsts = Vec::new();
    for (index, (weight, cap, count)) in domains.iter().enumerate() {
        let domain = credit.add_domain(*weight, *cap);
        for number in 0..*count {
            let vcpu = credit.add_vcpu(domain, u64::MAX);
            credit.vcpus[vcpu.0].active = true;
            credit.vcpus[vcpu.0].credit = -200;
            credit.domains[index].active.push(vcpu.0);
            firsts.extend((number == 0).then_some(vcpu));
        }
        credit.active.push(index);
    }
    credit.balance = balance;
    let given = credit.account(at(30));
    (firsts.iter().map(|vcpu| credit.credit(*vcpu) + 200).collect(), given)
}

// rule: credit1.accounting-fair, credit1.accounting-cap, credit1.accounting-negative, credit1.version-4-1
#[test]
fn credits_are_divided_by_weight_up_to_the_peak() {
    let give = |domains: &[(u32, u32, usize)]| accounted(Params::XEN_4_1, 1, domains, 0).0;
    assert_eq!(give(&[(512, 0, 1), (256, 0, 1)]), [200, 100]);
    assert_eq!(give(&[(256, 0, 1), (256, 0, 1), (256, 0, 1)]), [100, 100, 100]);
    assert_eq!(give(&[(1000, 0, 1), (1, 0, 1)]), [300, 1], "rounded up");
    // By virtual CPU in 4.1, by domain before.
    assert_eq!(give(&[(256, 0, 3), (256, 0, 1)]), [75, 75]);
    assert_eq!(accounted(Params::XEN_4_0, 1, &[(256, 0, 3), (256, 0, 1)], 0).0, [50, 150]);
    // One virtual CPU can use at most one of four CPUs; the others get the rest by weight.
    let (credits, _) = accounted(Params::XEN_4_1, 4, &[(1024, 0, 1), (256, 0, 2), (256, 0, 2)], 0);
    assert_eq!(credits, [300, 225, 225]);
    // A cap is also a maximum.
    let (credits, _) = accounted(Params::XEN_4_1, 2, &[(256, 50, 1), (256, 0, 2)], 0);
    assert_eq!(credits, [150, 225]);
    // An overdraft is added.
    let (credits, _) = accounted(Params::XEN_4_1, 1, &[(256, 0, 1), (256, 0, 1)], -100);
    assert_eq!(credits, [200, 200]);
}

// rule: credit1.accounting-fair
#[test]
fn a_domain_with_more_than_its_peak_moves_to_the_head() {
    let mut credit = Credit1::new(Params::XEN_4_1, 4);
    for (index, (weight, count)) in [(100, 4), (1000, 1)].into_iter().enumerate() {
        let domain = credit.add_domain(weight, 0);
        for _ in 0..count {
            let vcpu = credit.add_vcpu(domain, u64::MAX);
            credit.vcpus[vcpu.0].active = true;
            credit.domains[index].active.push(vcpu.0);
        }
        credit.active.push(index);
    }
    let first = credit.account(at(30));
    assert_eq!(credit.active, [1, 0]);
    let second = credit.account(at(60));
    assert!(second > first, "credits that the heavy one cannot use are lost while it is last: {first}, {second}");
}

// rule: credit1.conserved
#[test]
fn a_period_gives_no_more_credits_than_it_has_except_rounding() {
    let weights = [1, 7, 100, 256, 1000, 65_535];
    let mut seed = 1u64;
    let mut random = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    for _ in 0..2000 {
        let count = 1 + random(6) as usize;
        let domains: Vec<(u32, u32, usize)> = (0..count)
            .map(|_| (weights[random(6) as usize], [0, 0, 25, 150][random(4) as usize], 1 + random(4) as usize))
            .collect();
        let (cpus, balance) = (1 + random(8) as usize, random(2000) as i64 - 1000);
        for params in VERSIONS {
            let (_, given) = accounted(params, cpus, &domains, balance);
            let rounding = (domains.len() + domains.iter().map(|domain| domain.2).sum::<usize>()) as i64;
            let there = 300 * cpus as i64 + (-balance).max(0);
            assert!(given <= there + rounding, "{given} of {there}: {domains:?}, {cpus} CPUs, balance {balance}");
        }
    }
}

// rule: credit1.accounting-always
#[test]
fn credits_are_given_every_period_even_with_credits_left() {
    let (mut credit, vcpus) = one_cpu(Params::XEN_4_0, &[256, 256]);
    vcpus.iter().for_each(|vcpu| credit.wake(at(0), *vcpu));
    credit.tick(at(10), 0);
    assert_eq!(credit.credit(vcpus[0]), -100);
    credit.account(at(30));
    assert_eq!(credit.credit(vcpus[0]), 200);
    credit.account(at(60));
    assert!(credit.credit(vcpus[0]) <= 300, "{}", credit.credit(vcpus[0]));
}

// rule: credit1.over, credit1.under, credit1.version-3-3, credit1.version-4-1
#[test]
fn a_vcpu_is_over_below_zero_and_inactive_above_300() {
    for (params, left) in [(Params::XEN_3_3, 0), (Params::XEN_4_0, 0), (Params::XEN_4_1, 200)] {
        let (mut credit, vcpus) = one_cpu(params, &[256]);
        credit.wake(at(0), vcpus[0]);
        credit.tick(at(10), 0);
        credit.vcpus[0].credit = -5000;
        credit.account(at(30));
        assert_eq!((credit.priority(vcpus[0]), credit.credit(vcpus[0])), (Priority::Over, -300));
        credit.vcpus[0].credit = 100;
        credit.balance = 0;
        credit.account(at(60));
        assert_eq!((credit.priority(vcpus[0]), credit.credit(vcpus[0])), (Priority::Under, left));
        assert!(!credit.is_active(vcpus[0]));
        credit.account(at(90));
        assert_eq!(credit.credit(vcpus[0]), left, "an inactive vcpu gets no credits");
    }
}

// rule: credit1.over, credit1.cap-bound, credit1.accounting-cap
#[test]
fn a_cap_holds_within_a_period_and_a_slice_and_in_the_long_run() {
    for (cap, others) in [(25, 0), (50, 0), (25, 1), (80, 0)] {
        let mut domains = vec![(256, cap, 1)];
        domains.extend((0..others).map(|_| (256, 0, 1)));
        let (mut host, vcpus) = loaded(Params::XEN_4_1, 1, &domains);
        let (mut before, mut parked) = (0.0, 0);
        for period in 1..=1000u64 {
            run(&mut host, at(period * 30));
            let used = used_ms(&host, &vcpus[0]);
            assert!(used - before <= f64::from(cap) * 0.3 + 30.0, "cap {cap}: {} ms of 30", used - before);
            before = used;
            parked += u32::from(host.scheduler().is_parked(vcpus[0][0]));
        }
        let got = before / 30_000.0 * 100.0;
        assert!(got <= f64::from(cap) + 0.5 && got >= f64::from(cap) - 3.0, "cap {cap}: {got} %");
        assert!(parked > 100, "cap {cap}: parked after {parked} of 1000 periods");
    }
}

/// The largest difference between the CPU time of one of them and its share in any interval of a minute, and over the
/// minute.
fn unfairness(params: Params, weights: &[u32]) -> (f64, f64) {
    let domains: Vec<(u32, u32, usize)> = weights.iter().map(|weight| (*weight, 0, 1)).collect();
    let (mut host, vcpus) = loaded(params, 1, &domains);
    let sum = f64::from(weights.iter().sum::<u32>());
    // In the first accountings not all of them are active.
    run(&mut host, at(1_000));
    let base: Vec<f64> = vcpus.iter().map(|vcpus| used_ms(&host, vcpus)).collect();
    let (mut low, mut high) = (vec![0.0f64; weights.len()], vec![0.0f64; weights.len()]);
    let mut last = vec![0.0; weights.len()];
    for step in 1..=12_000u64 {
        run(&mut host, at(1_000 + step * 5));
        for (index, weight) in weights.iter().enumerate() {
            let due = f64::from(*weight) / sum * step as f64 * 5.0;
            last[index] = used_ms(&host, &vcpus[index]) - base[index] - due;
            (low[index], high[index]) = (low[index].min(last[index]), high[index].max(last[index]));
        }
    }
    assert_eq!(host.busy_nanos(), 61_000 * MS, "all time is used");
    let worst = low.iter().zip(&high).map(|(low, high)| high - low).fold(0.0, f64::max);
    (worst, last.iter().fold(0.0, |worst: f64, error| worst.max(error.abs())))
}

// rule: credit1.work-conserving
#[test]
fn q16_cpu_time_follows_the_weights() {
    for params in VERSIONS {
        for weights in [&[256, 256][..], &[512, 256], &[100, 200, 300, 400]] {
            let (worst, end) = unfairness(params, weights);
            assert!(worst <= 60.0 && end <= 60.0, "Q16: {worst} ms, at the end {end} ms: {weights:?}, {params:?}");
        }
        // Credits are limited to 300: a virtual CPU that gets more while two others have their slices loses the rest.
        let (worst, end) = unfairness(params, &[256, 512, 1024]);
        assert!(worst > 60.0 && end <= 600.0, "Q16: {worst} ms, at the end {end} of 60,000 ms: {params:?}");
    }
}

/// A virtual CPU that is always busy next to `count` that work for 1 ms every 10 ms: the longest delay of such work.
fn latest_io(params: Params, count: usize, busy_too: bool) -> f64 {
    let mut host: Host<u64> = Host::new(params, 1);
    let mut vcpu = || {
        let domain = host.add_domain(256, 0);
        host.add_vcpu(domain, 1)
    };
    let (hog, others) = (vcpu(), (0..count).map(|_| vcpu()).collect::<Vec<_>>());
    host.set_busy(at(0), hog, true);
    if busy_too {
        others.iter().for_each(|vcpu| host.set_busy(at(0), *vcpu, true));
    }
    let (mut latest, mut done) = (0, Vec::new());
    for round in 0..500 {
        // Not before the first accounting, when all of them have BOOST.
        let now = Instant::from_nanos((round + 4) * 10 * MS + 5 * MS);
        host.advance(now, &mut done);
        others.iter().for_each(|vcpu| host.submit(now, *vcpu, Class::Net, MS / 2, now.as_nanos()));
    }
    host.advance(at(6_000), &mut done);
    for item in &done {
        latest = latest.max(item.at.as_nanos() - item.tag);
    }
    latest as f64 / 1e6
}

// rule: credit1.boost-unfair, credit1.wake-boost
#[test]
fn boost_helps_a_single_guest_that_does_not_compute() {
    let one = latest_io(Params::XEN_4_1, 1, false);
    assert!((one - 0.5).abs() < 1e-9, "a single guest with I/O preempts immediately: {one} ms");
    let several = latest_io(Params::XEN_4_1, 8, false);
    assert!((several - 4.0).abs() < 1e-9, "eight of them wait in the queue: {several} ms");
    let busy = latest_io(Params::XEN_4_1, 2, true);
    assert!(busy > 30.0, "a guest that also computes has no BOOST and waits for slices: {busy} ms");
}

/// CPU time of a guest that sleeps across every tick but one: before and after that tick, and its credits before it.
fn thief(params: Params) -> (f64, f64, i64) {
    let mut host: Host<u32> = Host::new(params, 1);
    let (thief, victim) = (host.add_domain(256, 0), host.add_domain(256, 0));
    let (thief, victim) = (host.add_vcpu(thief, 1), host.add_vcpu(victim, 1));
    host.set_busy(at(0), victim, true);
    let steal = |host: &mut Host<u32>, from: u64, to: u64| {
        let before = host.used_nanos(thief);
        for tick in from..to {
            // 9.5 ms of work, then asleep across the tick.
            run(host, Instant::from_nanos(tick * 10 * MS + MS / 4));
            host.submit(Instant::from_nanos(tick * 10 * MS + MS / 4), thief, Class::Net, 19 * MS / 2, 0);
        }
        run(host, Instant::from_nanos(to * 10 * MS));
        (host.used_nanos(thief) - before) as f64 / ((to - from) * 10 * MS) as f64
    };
    let unseen = steal(&mut host, 4, 504);
    let credits = host.scheduler().credit(thief);
    // Once it is late, and the tick finds it running.
    run(&mut host, Instant::from_nanos(5040 * MS + MS));
    host.submit(Instant::from_nanos(5041 * MS), thief, Class::Net, 19 * MS / 2, 0);
    (unseen, steal(&mut host, 506, 1006), credits)
}

// rule: credit1.tick-theft, credit1.version-3-3, credit1.version-4-0
#[test]
fn sleeping_across_ticks_is_free_if_ticks_are_charged() {
    let (before, after, credits) = thief(Params::XEN_3_3);
    assert!(before > 0.94 && after > 0.93, "{before} and {after} of the CPU");
    assert_eq!(credits, 0, "it was never charged");
    let (before, after, credits) = thief(Params::XEN_4_0);
    assert!(credits < -47_000, "{credits}: it was charged for 4.75 s");
    // Accounting covers active virtual CPUs, and a tick makes one active: one tick is enough.
    assert!(before > 0.94 && after < 0.56, "{before} of the CPU, and {after} after a tick while it ran");
}

// rule: credit1.over-starves
#[test]
fn an_over_vcpu_waits_for_whole_slices_of_under_vcpus() {
    // Two of equal weight that always run: 30 ms on, 30 ms off, never less.
    let (mut host, vcpus) = loaded(Params::XEN_4_0, 1, &[(256, 0, 1), (256, 0, 1)]);
    run(&mut host, at(3_000));
    let (mut longest, mut off) = (0, 0);
    for now in 3_000..9_000 {
        run(&mut host, at(now));
        off = if host.scheduler().running(0) == Some(vcpus[0][0]) { 0 } else { off + 1 };
        longest = longest.max(off);
    }
    assert!((30..=60).contains(&longest), "{longest} ms without the CPU");
}
