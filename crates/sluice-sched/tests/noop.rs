//! noop: first in, first out, and what it does not guarantee.

use crate::common::analysis::assert_close;
use crate::common::plan::{for_plans, plan};
use crate::common::*;
use sluice_sched::*;

fn noop() -> Subject {
    Subject::of("noop")
}

// rule: noop.fifo, noop.order, noop.complete-nothing, noop.no-starvation
#[test]
fn requests_are_dispatched_in_arrival_order() {
    for_plans(64, plan(true), |plan| {
        let world = plan.run(noop().build(&plan.info()), Instant::ZERO, |_| ());
        let order: Vec<u64> = world.log.iter().map(|record| record.request.id.0).collect();
        assert!(order.is_sorted(), "with completions, removals and changes: {order:?}");
    });
}

// rule: noop.work-conserving
#[test]
fn a_free_slot_is_filled() {
    let mut world = World::simple(&noop(), 4, 1000);
    for policy in [Policy::weighted(1).limited(10), Policy::weighted(1000)] {
        world.busy(policy, Pattern::Closed(9));
    }
    for second in 1..5 {
        world.run_until(secs(second));
        assert_eq!((world.gate.in_flight(), world.gate.queued()), (4, 14), "and no policy throttles");
    }
    assert_eq!(world.wakes, 0);
}

// rule: noop.no-isolation
#[test]
fn shares_follow_the_outstanding_requests() {
    let mut world = World::simple(&noop(), 8, 1000);
    let policies = [Policy::weighted(1000), Policy::weighted(1)];
    let vms = [world.busy(policies[0], Pattern::Closed(8)), world.busy(policies[1], Pattern::Closed(32))];
    world.run_until(secs(20));
    assert_close("8 next to 32", &world.rates(&vms, secs(1), secs(20)), &[200.0, 800.0], 0.01);
}

// rule: noop.interleaving
#[test]
fn interleaved_sequential_streams_become_random() {
    let seeks = |streams: u64| {
        let mut world = World::simple(&noop(), 1, 1000);
        for stream in 0..streams {
            let vm = world.vm(Policy::default());
            let source = Source::new(vm, VolumeId(0), Pattern::Closed(1)).places(Places::Contiguous);
            world.source(source.starting_at(stream << 40));
        }
        world.run_until(secs(2));
        let apart = |pair: &&[Record]| pair[0].request.end() != pair[1].request.offset;
        world.log.windows(2).filter(apart).count() as f64 / world.log.len() as f64
    };
    assert_eq!(seeks(1), 0.0, "one stream is sequential");
    assert!(seeks(2) >= 0.99, "two streams alternate by request, with a seek each: {}", seeks(2));
}
