//! Queues that stop while requests are queued.

use super::*;

/// A VM with a limit of one request per 100 s is paused immediately, and continues later where it was. Another queue of
/// the same volume loses nothing.
#[test]
fn queued_requests_of_a_stopped_queue_return_to_its_ring() {
    const OTHER: u64 = 0x4000;
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(10));
    policy.burst = Some(1);
    let (log, ..) = Log::create(1, ENTRIES, &MappingOwner::default()).unwrap();
    let bench = bench(policy, StoreSpec::Null, 1 << 30, 64);
    let session = bench.open();
    let mut guest = bench.start_as(&session, |spec| spec.log = log.queue(0, ENTRIES));
    let mut beside = bench.start_as(&session, |spec| {
        spec.index = 1;
        spec.available = GuestAddress(AVAILABLE + OTHER);
        spec.used = GuestAddress(USED + OTHER);
    });
    for number in 0..4 {
        let head = guest.request(number, 0, 0, 512);
        guest.offer(head);
    }
    guest.kick();
    assert_eq!(guest.next_used(), (0, 513));
    // The fifth request, in the other queue.
    let head = beside.request(4, 0, 0, 512);
    let order = std::sync::atomic::Ordering::Release;
    beside.memory.write_obj(head.to_le(), GuestAddress(AVAILABLE + OTHER + 4)).unwrap();
    beside.memory.store(1u16.to_le(), GuestAddress(AVAILABLE + OTHER + 2), order).unwrap();
    beside.kick();
    while bench.outstanding() < 4 {
        std::thread::yield_now();
    }
    let next = bench.runtime.block_on(session.stop_queue(0)).unwrap();
    assert_eq!((next, bench.outstanding()), (1, 1), "three are in the ring again, one at the gate");
    assert_eq!(log.queue(0, ENTRIES).unwrap().recover(1), [0u16; 0], "the log has no request");
    assert_eq!(guest.memory.read_obj::<u16>(GuestAddress(USED + 2)).unwrap(), 1);
    // The limit is removed, and the queue is started again.
    let (policy, window) = (Policy::default(), Window { requests: 64, bytes: 32 << 20 });
    bench.device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
    while beside.memory.load::<u16>(GuestAddress(USED + OTHER + 2), std::sync::atomic::Ordering::Acquire).unwrap() == 0
    {
        std::thread::yield_now();
    }
    assert_eq!((beside.status(4), bench.faults()), (0, 0));
    let again = bench.start_as(&session, |spec| {
        (spec.next_available, spec.log) = (next, log.queue(0, ENTRIES));
    });
    guest = Guest { available: guest.available, used: guest.used, ..again };
    let mut returned: Vec<_> = (1..4).map(|_| guest.next_used()).collect();
    returned.sort_unstable();
    assert_eq!(returned, [(3, 513), (6, 513), (9, 513)]);
    assert!((1..4).all(|number| guest.status(number) == 0));
    assert_eq!(bench.outstanding(), 0);
    beside.used = 0;
}

/// A VM with a limit of one request per 1000 s zeroes 3 MiB on a volume that must write the zeroes. It is paused while
/// the first part is in flight. The rest returns to the ring when that part has completed, and is not written before.
#[test]
fn a_paused_vm_waited_until_its_zeroes_were_written() {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(1));
    policy.burst = Some(1);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(3 << 20).unwrap();
    let source = Arc::new(Source::open(&SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) }).unwrap());
    let store = StoreSpec::File(FileSpec { source, extents: None });
    let time = ServiceTime::Fixed(Duration::from_millis(100));
    let delay = DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 };
    let bench = delayed_bench(policy, store, 3 << 20, 64, Some(delay));
    bench.device.mailbox.send(Message::Command(DiskCommand::RefuseZeroing(0))).unwrap();
    let (log, ..) = Log::create(1, ENTRIES, &MappingOwner::default()).unwrap();
    let session = bench.open();
    let mut guest = bench.start_as(&session, |spec| spec.log = log.queue(0, ENTRIES));
    let mut segment = [0; 16];
    segment[8..12].copy_from_slice(&(6u32 << 10).to_le_bytes());
    let head = guest.request(0, 13, 0, 16);
    guest.memory.write_slice(&segment, guest.data(0)).unwrap();
    guest.offer(head);
    guest.kick();
    while bench.outstanding() < 1 {
        std::thread::yield_now();
    }
    let next = bench.runtime.block_on(session.stop_queue(0)).unwrap();
    assert_eq!((next, bench.outstanding()), (0, 0));
    assert_eq!(log.queue(0, ENTRIES).unwrap().recover(0), [0u16; 0], "the log has no request");
    // The limit is removed, and the next user of the queue does all of it, once.
    let (policy, window) = (Policy::default(), Window { requests: 64, bytes: 32 << 20 });
    bench.device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
    let again = bench.start_as(&session, |spec| (spec.next_available, spec.log) = (next, log.queue(0, ENTRIES)));
    guest = Guest { available: guest.available, used: guest.used, ..again };
    let (back, _) = guest.next_used();
    assert_eq!((back, guest.status(0), bench.outstanding(), bench.faults()), (head, 0, 0, 0));
    assert_eq!(guest.memory.read_obj::<u16>(GuestAddress(USED + 2)).unwrap(), 1);
}

/// The previous daemon took three requests of four and returned the second. With a window of one request, the third
/// is not taken again when the queue stops, and the next user of the queue has no log.
#[test]
fn recovered_requests_that_waited_when_a_queue_stopped_were_lost_without_its_log() {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(10));
    policy.burst = Some(1);
    let (log, ..) = Log::create(1, ENTRIES, &MappingOwner::default()).unwrap();
    let bench = bench(policy, StoreSpec::Null, 1 << 30, 1);
    let session = bench.open();
    let mut ring =
        Guest { memory: Arc::clone(&bench.memory), kick: doorbell(), call: doorbell(), available: 0, used: 0 };
    for number in 0..4 {
        let head = ring.request(number, 0, 0, 512);
        ring.offer(head);
    }
    let mut before = log.queue(0, ENTRIES).unwrap();
    [0, 3, 6, 9].into_iter().for_each(|head| before.taken(head));
    before.returning(3);
    ring.memory.write_obj(1u16.to_le(), GuestAddress(USED + 2)).unwrap();
    before.returned(3, 1);
    let mut guest = bench.start_as(&session, |spec| spec.log = log.queue(0, ENTRIES));
    guest.used = 1;
    assert_eq!(guest.next_used(), (0, 513), "the first is done again at once");
    let (policy, window) = (Policy::default(), Window { requests: 1, bytes: 32 << 20 });
    let edit = Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] };
    // The limit is removed when the device has been told to stop the queue.
    let (next, ()) = bench
        .runtime
        .block_on(async { tokio::join!(session.stop_queue(0), async { bench.device.edit(vec![edit]).unwrap() }) });
    assert_eq!(next.unwrap(), 4, "nothing is left for the next user");
    assert_eq!((guest.next_used(), guest.next_used()), ((6, 513), (9, 513)));
    assert!([0, 2, 3].into_iter().all(|number| guest.status(number) == 0));
    assert_eq!((bench.outstanding(), bench.faults()), (0, 0));
}
