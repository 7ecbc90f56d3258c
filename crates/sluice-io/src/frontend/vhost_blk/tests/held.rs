//! The loop sleeps while a limit holds all requests of a VM, and never if it is told to.

use sluice_sched::Limit;
use sluice_sched::units::ByteRate;

use super::*;

const READ: u32 = 0;
const WRITE_OUT: u32 = 1;
/// Requests of which each waits for the limit of `limited(1)`.
const QUEUED: u16 = 3;

/// A policy with a limit of `iops` that lets little through back to back.
fn limited(iops: u64) -> Policy {
    Policy { limit: Limit { iops: Some(Iops::per_second(iops)), bytes: None }, burst: Some(1), ..Policy::default() }
}

/// Whether the device wants to be kicked: VIRTIO 1.3, 2.7.10.
fn wants_kicks(guest: &Guest) -> bool {
    let flags: u16 = guest.memory.read_obj(GuestAddress(USED)).unwrap();
    u16::from_le(flags) & 1 == 0
}

/// Offers reads, and waits until the limit holds `QUEUED` of them.
fn hold(bench: &Bench, guest: &mut Guest) {
    let mut number = 0;
    while bench.device.snapshot().unwrap().queued < u64::from(QUEUED) {
        if number - guest.used < QUEUED + 1 {
            let head = guest.request(number % (QUEUED + 1), READ, 0, 4096);
            guest.offer(head);
            guest.kick();
            number += 1;
        }
        let index: u16 = guest.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap();
        guest.used = index;
    }
}

/// Returns the number of iterations until the next snapshot, which takes one or two.
fn iterations(bench: &Bench) -> u64 {
    let before = bench.device.snapshot().unwrap().iterations;
    bench.device.snapshot().unwrap().iterations - before
}

#[test]
fn a_held_vm_was_polled_although_its_limit_let_nothing_through() {
    let bytes = Limit { iops: None, bytes: Some(ByteRate::per_second(4096)) };
    for policy in [limited(1), Policy { limit: bytes, ..limited(1) }] {
        let bench = bench(policy, StoreSpec::Null, 1 << 30, 64);
        let session = bench.open();
        let mut guest = bench.start(&session);
        hold(&bench, &mut guest);
        // Another request arrives, and the loop does not poll the ring.
        let head = guest.request(QUEUED + 1, READ, 0, 4096);
        guest.offer(head);
        assert!(iterations(&bench) <= 2, "{policy:?}");
        assert!(!wants_kicks(&guest), "a kick would wake the loop for nothing: {policy:?}");
    }
}

#[test]
fn a_vm_at_a_limit_of_20_000_iops_costs_two_iterations_for_each_request() {
    const REQUESTS: u64 = 4000;
    let bench = bench(limited(20_000), StoreSpec::Null, 1 << 30, 64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    for number in 0..4 {
        let head = guest.request(number, READ, 0, 4096);
        guest.offer(head);
    }
    guest.kick();
    let before = bench.device.snapshot().unwrap().iterations;
    for _ in 0..REQUESTS {
        let (head, _) = guest.next_used();
        guest.offer(head);
        if wants_kicks(&guest) {
            guest.kick();
        }
    }
    let took = bench.device.snapshot().unwrap().iterations - before;
    // While it polled, there were tens.
    assert!(took <= 4 * REQUESTS, "{took} iterations for {REQUESTS} requests");
}

#[test]
fn requests_that_may_overtake_those_that_a_limit_holds_are_announced() {
    let reads = Limit { iops: Some(Iops::per_second(1)), bytes: None };
    let policy = Policy { limit: Limit::default(), read_limit: reads, ..limited(1) };
    let bench = bench(policy, StoreSpec::Null, 1 << 30, 64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    hold(&bench, &mut guest);
    while !wants_kicks(&guest) {
        // polls: the loop stops polling and sleeps.
        std::thread::yield_now();
    }
    let head = guest.request(QUEUED + 1, WRITE_OUT, 0, 4096);
    guest.offer(head);
    guest.kick();
    while guest.next_used().0 != head {}
    assert!(bench.device.snapshot().unwrap().queued > 0, "the write waited for the reads");
}

#[test]
fn a_neighbour_of_a_held_vm_was_polled_for_ever() {
    let bench = bench(limited(20_000), StoreSpec::Null, 1 << 30, 64);
    let vm = "other".to_owned();
    let window = Window { requests: 64, bytes: 32 << 20 };
    let info = VolumeInfo { size_bytes: 1 << 30, ..sample() };
    let (policy, generation, store) = (Policy::default(), VolumeGeneration::default(), StoreSpec::Null);
    let volume = Box::new(VolumeSpec { name: "disk".to_owned(), generation, policy, store, info });
    let add = Edit::AddVm { vm: vm.clone(), policy, window };
    bench.device.edit(vec![add, Edit::AddVolume { vm, volume }]).unwrap();
    let handle = bench.device.handle();
    let neighbour = handle.open("other", "disk", generation, "process 2".to_owned(), Box::new(()));
    let neighbour = bench.runtime.block_on(neighbour).unwrap();
    let (session, held_memory) = (bench.open(), memory());
    let mut guest = bench.start(&neighbour);
    let bench = Bench { memory: held_memory, ..bench };
    let mut held = bench.start(&session);
    for number in 0..4 {
        let head = held.request(number, READ, 0, 4096);
        held.offer(head);
    }
    held.kick();
    for _ in 0..10 {
        assert_eq!(guest.ask(0, READ, 0, 4096).0, 0);
        // The held VM is always busy, and the neighbour may send its next request at any time.
        let mut rounds = 0;
        while !wants_kicks(&guest) {
            let (head, _) = held.next_used();
            held.offer(head);
            if wants_kicks(&held) {
                held.kick();
            }
            rounds += 1;
            assert!(rounds < 10_000, "the loop polls a VM without requests");
        }
    }
}

#[test]
fn a_busy_polling_device_finds_requests_that_are_not_announced_while_it_has_clients() {
    let bench = null(64);
    let set = |busy| bench.device.edit(vec![Edit::SetBusyPoll(busy)]).unwrap();
    set(true);
    assert!(iterations(&bench) <= 2, "no client is connected");
    for restarts in 0..2 {
        let session = bench.open();
        bench.memory.write_slice(&[0; 8], GuestAddress(AVAILABLE)).unwrap();
        bench.memory.write_slice(&[0; 8], GuestAddress(USED)).unwrap();
        let mut guest = bench.start(&session);
        for round in 0..20 {
            // Long enough for a loop that polls only if work is likely to sleep.
            let idle = (0..20).map(|_| iterations(&bench)).sum::<u64>();
            let head = guest.request(round % 4, READ, 0, 4096);
            guest.offer(head);
            assert_eq!(guest.next_used().0, head, "after {idle} iterations");
        }
        if restarts == 1 {
            set(false);
            while !wants_kicks(&guest) {
                // polls: the loop stops polling and sleeps.
                std::thread::yield_now();
            }
            return;
        }
        // The supervisor restarts the thread with the settings in force.
        bench.device.mailbox.send(Message::Test(Fault::Panic)).unwrap();
        while bench.device.snapshot().is_none_or(|snapshot| snapshot.restarts == 0) {}
    }
}
