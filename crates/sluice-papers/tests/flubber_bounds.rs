//! Guarantees of Flubber's credits and deadlines: admissions per interval, and when the earliest deadline is served.

use std::time::Duration;

use crate::common::*;
use sluice_sched::params::Value;
use sluice_sched::*;

fn within(millis: u64, iops: u64) -> Policy {
    let p99 = Duration::from_millis(millis);
    Policy { latency: Some(LatencyTarget { p99, reads_only: false }), ..Policy::default().reserving(iops) }
}

fn all() -> [Subject; 3] {
    let flubber = |mode| Subject::of("flubber").text("mode", mode);
    [flubber("paper"), flubber("product").text("max_wait", "6ms"), Subject::of("edf-credit")]
}

fn beta(subject: &Subject, beta: i64) -> Subject {
    subject.clone().with("beta", Value::Integer(beta))
}

/// Q12: in each interval in which all VMs are backlogged each passes exactly its credits. All have one target and no
/// two requests are adjacent, so they are dispatched in the order in which they passed.
// rule: flubber.credits-conserved, flubber.exact-ratio, edf-credit.credits
#[test]
fn q12_each_vm_passes_exactly_its_credits_per_interval() {
    let vms = [(Some(1000), 8), (Some(120), 1), (Some(500), 4), (None, 1)];
    for subject in all() {
        for factor in [1, 4, 32] {
            let mut world = World::simple(&beta(&subject, factor), 1, 5000);
            let sources = vms.map(|(iops, _)| {
                let vm = world.vm(Policy { reservation: Reservation::default(), ..within(60, 1) });
                iops.into_iter().for_each(|iops| world.set(vm, within(60, iops)));
                world.source(Source::new(vm, VolumeId(0), Pattern::Manual))
            });
            let full = vms.map(|(_, proportion)| proportion * factor as usize);
            let intervals = 200 / factor as usize;
            // One interval more than is analysed, so that no VM has run out by its end; the order of VMs is random.
            let mut left: Vec<usize> = (0..4).flat_map(|vm| vec![vm; full[vm] * (intervals + 1)]).collect();
            let mut rng = chance(factor as u64);
            while !left.is_empty() {
                let vm = left.swap_remove(below(&mut rng, left.len() as u64) as usize);
                assert!(world.ask(sources[vm]));
            }
            world.pump();
            world.run_until(secs(3600));
            let sum: usize = full.iter().sum();
            assert!(world.log.len() >= intervals * sum, "{}", world.log.len());
            for (interval, part) in world.log.chunks_exact(sum).take(intervals).enumerate() {
                let passed = sources.map(|of| part.iter().filter(|record| record.source as usize == of).count());
                assert_eq!(passed, full, "{} beta {factor}, interval {interval}", subject.label());
            }
        }
    }
}

/// Random VMs with their own targets, more credits than requests, and a disk that takes one request. Returns the run
/// and the slacks.
fn with_targets(subject: &Subject, seed: u64) -> (World, Vec<Duration>) {
    let mut rng = chance(seed);
    let mut world = World::simple(&beta(subject, 65_536), 1, 1000);
    world.device.service = pick(&mut rng, &[Service::Between(MILLI / 2, 9 * MILLI), Service::Disk]);
    let mut slacks = Vec::new();
    for _ in 0..2 + below(&mut rng, 4) {
        let latency = pick(&mut rng, &[5, 10, 20, 60, 80, 200]);
        let vm = world.vm(within(latency, 100));
        let pattern = pick(&mut rng, &[Pattern::Closed(1), Pattern::Closed(6), Pattern::Open(13 * MILLI)]);
        let places = pick(&mut rng, &[Places::Contiguous, Places::Random]);
        world.source(Source::new(vm, VolumeId(0), pattern).places(places));
        slacks.push(Duration::from_millis(latency.saturating_sub(9)));
    }
    world.run_until(secs(3));
    (world, slacks)
}

/// Q13, second half: the head is dispatched by its deadline, or by the end of the service in progress if that is later.
// rule: flubber.deadline-feasible, flubber.head-expired
#[test]
fn q13_the_earliest_deadline_is_met_unless_a_service_is_in_progress() {
    for subject in all() {
        for seed in 0..30 {
            let (world, slacks) = with_targets(&subject, seed);
            let due = |record: &Record| record.request.arrival + slacks[record.request.owner.index()];
            assert!(world.done.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1), "one after the other");
            for (index, went) in world.log.iter().enumerate().skip(1) {
                let free = world.done[index - 1].0;
                let waiting = world.log[index..].iter().filter(|record| record.request.arrival < went.at);
                let Some(head) = waiting.map(due).min() else { continue };
                let label = subject.label();
                assert!(went.at <= head.max(free), "{label}: {went:?}, the head was due at {head:?}");
                assert!(head > went.at || due(went) <= head, "{label}: {went:?} though {head:?} is over");
            }
        }
    }
}
