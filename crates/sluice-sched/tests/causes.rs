//! Reasons for waiting: each is distinguished from the others, for a VM and for a volume inside it.

use crate::common::*;
use sluice_sched::params::Value;
use sluice_sched::*;

/// Requests of a VM by reason: none, own limit, share, device, batch.
fn causes(world: &World, vm: OwnerId) -> [u64; 5] {
    let stats = world.gate.stats(vm).expect("a known VM");
    [Wait::None, Wait::OwnLimit, Wait::Share, Wait::Device, Wait::Batch].map(|wait| stats.waited_for(wait))
}

fn limited(iops: u64) -> Policy {
    Policy { burst: Some(1), ..Policy::default().limited(iops) }
}

#[test]
fn a_request_dispatched_immediately_has_no_reason_for_waiting() {
    let mut world = World::simple(&product(), 4, 1000);
    let vm = world.busy(Policy::default(), Pattern::Open(10 * MILLI));
    world.run_until(secs(2));
    assert_eq!(causes(&world, vm), [201, 0, 0, 0, 0]);
}

#[test]
fn requests_of_a_limited_vm_waited_for_its_limit() {
    let mut world = World::simple(&product(), 4, 1000);
    let vm = world.busy(limited(50), Pattern::Closed(8));
    let other = world.busy(Policy::default(), Pattern::Closed(2));
    world.run_until(secs(10));
    let [at_once, own, share, device, batch] = causes(&world, vm);
    assert!(own >= 498 && at_once + share + device <= 2 && batch == 0, "{:?}", causes(&world, vm));
    assert_eq!(causes(&world, other)[1], 0, "the other VM has no limit");
}

#[test]
fn requests_of_a_limited_volume_waited_for_the_limit_and_not_for_a_share() {
    let mut world = World::simple(&product(), 4, 1000);
    let vm = world.vm(Policy::default());
    let volume = world.volume(vm, limited(50));
    world.source(Source::new(vm, volume, Pattern::Closed(8)));
    world.run_until(secs(2));
    let alone = causes(&world, vm);
    assert!(alone[1] >= 98 && alone.iter().sum::<u64>() - alone[1] <= 2, "{alone:?}");
    // Next to a busy volume of the same VM, and next to another VM.
    world.stream(vm, Pattern::Closed(8));
    let other = world.busy(Policy::default(), Pattern::Closed(8));
    let before = causes(&world, vm)[1];
    world.run_until(secs(12));
    let limited = causes(&world, vm)[1] - before;
    assert!((495..=505).contains(&limited), "{limited} of 500 waited for the volume's limit");
    assert_eq!(causes(&world, other)[1], 0);
}

#[test]
fn requests_alone_at_a_busy_device_waited_for_the_device() {
    let mut world = World::simple(&product(), 2, 1000);
    let vm = world.busy(Policy::default(), Pattern::Closed(16));
    world.run_until(secs(2));
    let [at_once, own, share, device, batch] = causes(&world, vm);
    assert!(at_once == 2 && own + share + batch == 0 && device >= 1990, "{:?}", causes(&world, vm));
}

#[test]
fn requests_overtaken_by_younger_ones_waited_for_their_share() {
    let mut world = World::simple(&product(), 1, 1000);
    let light = world.busy(Policy::weighted(1), Pattern::Closed(8));
    let heavy = world.busy(Policy::weighted(99), Pattern::Closed(8));
    world.run_until(secs(20));
    let [at_once, own, share, device, batch] = causes(&world, light);
    assert!(share >= 190 && at_once + device <= 2 && own + batch == 0, "{:?}", causes(&world, light));
    let [_, own, share, device, batch] = causes(&world, heavy);
    assert!(device >= 19_000 && share <= 400 && own + batch == 0, "{:?}", causes(&world, heavy));
}

#[test]
fn requests_overtaken_by_a_batch_waited_for_the_batch() {
    let subject = product().with("batch", Value::Integer(8));
    let mut world = World::simple(&subject, 1, 1000);
    let batched = world.vm(Policy::default());
    world.source(Source::new(batched, VolumeId(0), Pattern::Closed(32)).places(Places::Contiguous));
    let other = world.busy(Policy::default(), Pattern::Closed(1));
    world.run_until(secs(4));
    assert!(causes(&world, other)[4] >= 100, "{:?}", causes(&world, other));
    let mut world = World::simple(&product(), 1, 1000);
    let alone = world.busy(Policy::default(), Pattern::Closed(1));
    let beside = world.busy(Policy::default(), Pattern::Closed(1));
    world.run_until(secs(4));
    assert_eq!(
        (causes(&world, alone)[4], causes(&world, beside)[4]),
        (0, 0),
        "without batches no request waits for one"
    );
}
