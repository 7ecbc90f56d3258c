//! Reads and writes that are longer than the maximum that the configuration space states, which a driver need not know.

use super::*;

const LENGTH: u32 = 5 << 20;

/// Room for two pieces.
const NARROW: Window = Window { requests: 64, bytes: 600_000 };

/// Bytes that differ from sector to sector.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 512) as u8 ^ (at as u8) ^ seed).collect()
}

fn set(bench: &Bench, policy: Policy, window: Window) {
    bench.device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
}

/// One request per 100 s, after the first.
fn slow() -> Policy {
    let mut policy = Policy { burst: Some(1), ..Policy::default() };
    policy.limit.iops = Some(Iops::from_milli(10));
    policy
}

/// A request for the data `shift` bytes behind the usual place.
fn request(guest: &Guest, kind: u32, sector: u64, shift: u64) -> (u16, GuestAddress) {
    let head = guest.request(0, kind, sector, LENGTH);
    let data = SCRATCH + 0x1000 + shift;
    guest.describe(TABLE, head + 1, data, LENGTH, NEXT | if kind == 0 { WRITE } else { 0 }, head + 2);
    (head, GuestAddress(data))
}

#[test]
fn a_driver_that_knew_no_maximum_length_could_read_no_more_than_that() {
    for (buffered, shift) in [(true, 0), (false, 0), (false, 8)] {
        for window in [NARROW, Window { requests: 64, bytes: 32 << 20 }] {
            let file = tempfile::NamedTempFile::new_in(".").unwrap();
            let mut whole = pattern(8 << 20, 0);
            std::fs::write(file.path(), &whole).unwrap();
            let source = Arc::new(Source::open(&SourceSpec { buffered, ..SourceSpec::whole(file.path()) }).unwrap());
            let bench = bench(Policy::default(), StoreSpec::File(FileSpec { source, extents: None }), 8 << 20, 64);
            set(&bench, Policy::default(), window);
            let session = bench.open();
            let mut guest = bench.start(&session);
            let mut data = vec![0; LENGTH as usize];
            let range = 8 << 9..(8 << 9) + LENGTH as usize;
            let (head, at) = request(&guest, 0, 8, shift);
            guest.offer(head);
            guest.kick();
            assert_eq!((guest.next_used(), guest.status(0)), ((head, LENGTH + 1), 0), "{buffered} {shift}");
            guest.memory.read_slice(&mut data, at).unwrap();
            assert!(data == whole[range.clone()], "what was read: {buffered} {shift} {window:?}");
            data = pattern(LENGTH as usize, 7);
            guest.memory.write_slice(&data, at).unwrap();
            let (head, _) = request(&guest, 1, 8, shift);
            guest.offer(head);
            guest.kick();
            assert_eq!((guest.next_used(), guest.status(0)), ((head, 1), 0), "{buffered} {shift}");
            whole[range].copy_from_slice(&data);
            assert!(std::fs::read(file.path()).unwrap() == whole, "what was written: {buffered} {shift} {window:?}");
            assert_eq!((bench.outstanding(), bench.faults()), (0, 0));
        }
    }
}

#[test]
fn a_long_read_has_no_more_pieces_at_the_gate_than_the_window_has_room_for() {
    let bench = bench(slow(), StoreSpec::Null, 1 << 30, 64);
    set(&bench, slow(), NARROW);
    let session = bench.open();
    let mut guest = bench.start(&session);
    let (head, _) = request(&guest, 0, 0, 0);
    guest.offer(head);
    guest.kick();
    while bench.outstanding() == 0 {
        std::thread::yield_now();
    }
    assert!(
        (1..=2).contains(&bench.device.snapshot().unwrap().queued),
        "{} pieces",
        bench.device.snapshot().unwrap().queued
    );
    set(&bench, Policy::default(), NARROW);
    assert_eq!(guest.next_used(), (head, LENGTH + 1));
    let snapshot = bench.device.snapshot().unwrap();
    assert_eq!(
        (snapshot.vms[0].account.bytes, snapshot.vms[0].outstanding),
        (u64::from(LENGTH), 0),
        "it is charged as what it is"
    );
}

/// A file of 8 MiB whose disk seems to have blocks of 4096 bytes.
fn with_large_blocks(content: &[u8]) -> (tempfile::NamedTempFile, StoreSpec) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    let spec = SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) };
    let source = Arc::new(Source::open(&spec).unwrap().with_blocks(4096));
    (file, StoreSpec::File(FileSpec { source, extents: None }))
}

#[test]
fn a_long_request_is_bridged_chunk_by_chunk() {
    // From and to the middle of a block; from the middle to the end of one; from the start to the middle.
    for (sector, length) in [(9, LENGTH), (9, LENGTH - 512), (8, LENGTH - 512)] {
        for window in [NARROW, Window { requests: 64, bytes: 32 << 20 }] {
            let mut whole = pattern(8 << 20, 5);
            let (file, store) = with_large_blocks(&whole);
            let bench = bench(Policy::default(), store, 8 << 20, 64);
            set(&bench, Policy::default(), window);
            let session = bench.open();
            let mut guest = bench.start(&session);
            let from = sector as usize * 512;
            let range = from..from + length as usize;
            let mut data = vec![0; length as usize];
            let mut ask = |kind, data: &mut [u8]| {
                let head = guest.request(0, kind, sector, length);
                let place = SCRATCH + 0x1000;
                guest.describe(TABLE, head + 1, place, length, NEXT | if kind == 0 { WRITE } else { 0 }, head + 2);
                if kind == 1 {
                    guest.memory.write_slice(data, GuestAddress(place)).unwrap();
                }
                guest.offer(head);
                guest.kick();
                assert_eq!((guest.next_used().0, guest.status(0)), (head, 0), "{sector} {length}");
                guest.memory.read_slice(data, GuestAddress(place)).unwrap();
            };
            ask(0, &mut data);
            assert!(data == whole[range.clone()], "what was read: {sector} {length} {window:?}");
            data = pattern(length as usize, 9);
            ask(1, &mut data);
            whole[range].copy_from_slice(&data);
            assert!(std::fs::read(file.path()).unwrap() == whole, "what was written: {sector} {length} {window:?}");
            assert_eq!((bench.outstanding(), bench.faults()), (0, 0));
        }
    }
}

/// Two writes are to one block. A limit delays the first one, and the second one waits for the block. The VM is paused before either
/// reaches the disk.
#[test]
fn a_request_that_waits_for_a_block_goes_back_when_its_queue_stops() {
    let mut whole = vec![0; 8 << 20];
    let (file, store) = with_large_blocks(&whole);
    let bench = bench(slow(), store, 8 << 20, 64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    // Uses up what the limit lets pass at once.
    assert_eq!(guest.ask(0, 0, 0, 512).0, 0);
    let heads = [1, 2].map(|number| {
        let head = guest.request(number, 1, number.into(), 512);
        guest.memory.write_slice(&[number as u8; 512], guest.data(number)).unwrap();
        guest.offer(head);
        head
    });
    guest.kick();
    while bench.outstanding() < 2 {
        std::thread::yield_now();
    }
    let next = bench.runtime.block_on(session.stop_queue(0)).unwrap();
    assert_eq!((next, bench.outstanding(), guest.status(1), guest.status(2)), (1, 0, 0xff, 0xff));
    set(&bench, Policy::default(), Window { requests: 64, bytes: 32 << 20 });
    let again = bench.start_as(&session, |spec| spec.next_available = next);
    guest = Guest { available: guest.available, used: guest.used, ..again };
    let mut returned = [guest.next_used().0, guest.next_used().0];
    returned.sort_unstable();
    assert_eq!(returned, heads);
    assert_eq!((guest.status(1), guest.status(2), bench.outstanding()), (0, 0, 0));
    [1, 2].into_iter().for_each(|number| whole[number * 512..][..512].fill(number as u8));
    assert!(std::fs::read(file.path()).unwrap() == whole);
}

/// A VM that is paused under a limit waits for the piece at the disk, and not for the others of its request.
#[test]
fn a_paused_vm_waited_until_its_long_read_had_completed() {
    for window in [NARROW, Window { requests: 64, bytes: 32 << 20 }] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let whole = pattern(8 << 20, 3);
        std::fs::write(file.path(), &whole).unwrap();
        let source = Arc::new(Source::open(&SourceSpec { buffered: true, ..SourceSpec::whole(file.path()) }).unwrap());
        let time = ServiceTime::Fixed(Duration::from_millis(50));
        let delay = DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 };
        let store = StoreSpec::File(FileSpec { source, extents: None });
        let bench = delayed_bench(slow(), store, 8 << 20, 64, Some(delay));
        set(&bench, slow(), window);
        let (log, ..) = Log::create(1, ENTRIES, &MappingOwner::default()).unwrap();
        let session = bench.open();
        let mut guest = bench.start_as(&session, |spec| spec.log = log.queue(0, ENTRIES));
        // Its data lies behind that of the flush.
        let (head, at) = request(&guest, 0, 0, 2 << 20);
        guest.offer(head);
        let after = guest.request(2, FLUSH, 0, 0);
        guest.offer(after);
        guest.kick();
        while bench.outstanding() < 2 {
            std::thread::yield_now();
        }
        let next = bench.runtime.block_on(session.stop_queue(0)).unwrap();
        assert_eq!((next, bench.outstanding(), guest.status(0)), (0, 0, 0xff), "{window:?}");
        assert_eq!(log.queue(0, ENTRIES).unwrap().recover(0), [0u16; 0], "the log has no request");
        // The next user of the queue does all of both.
        set(&bench, Policy::default(), window);
        let again = bench.start_as(&session, |spec| (spec.next_available, spec.log) = (next, log.queue(0, ENTRIES)));
        guest = Guest { available: guest.available, used: guest.used, ..again };
        let mut returned = [guest.next_used(), guest.next_used()];
        returned.sort_unstable();
        assert_eq!(returned, [(head, LENGTH + 1), (after, 1)], "{window:?}");
        let mut data = vec![0; LENGTH as usize];
        guest.memory.read_slice(&mut data, at).unwrap();
        assert!(data == whole[..LENGTH as usize], "{window:?}");
        assert_eq!((bench.outstanding(), bench.faults()), (0, 0));
    }
}

#[test]
fn a_refused_request_is_counted_for_its_volume_with_the_reason() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    let cases: [(u32, u64, u32, u8, &str); 4] = [
        (0, (1 << 21) - 1, 1024, 1, "a range past the end of the volume"),
        (0, u64::MAX, 512, 1, "a range past the end of the volume"),
        (1, 0, 100, 1, "a range that is not a multiple of the block size"),
        (UNKNOWN, 0, 0, 2, "a request of a type that the volume does not offer"),
    ];
    for (number, (kind, sector, len, status, reason)) in (1..).zip(cases) {
        assert_eq!(guest.ask(0, kind, sector, len).0, status, "{reason}");
        let faults = bench.device.snapshot().unwrap().vms[0].volumes[0].client_faults;
        assert_eq!((faults.refused, faults.refusal), (number, Some(reason)));
    }
}

#[test]
fn a_queue_whose_guest_uses_memory_that_was_not_shared_says_so_until_it_is_reset() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    let head = guest.request(0, 0, 0, 512);
    guest.describe(TABLE, head + 1, 1 << 40, 512, NEXT | WRITE, head + 2);
    guest.offer(head);
    guest.kick();
    let faults = || bench.device.snapshot().unwrap().vms[0].volumes[0].client_faults;
    while faults().stopped_queues == 0 {
        std::thread::yield_now();
    }
    let reason = faults().stopped.unwrap();
    assert!(reason.ends_with("memory that the daemon was not given: is every memory backend share=on?"), "{reason}");
    bench.runtime.block_on(session.stop_queue(0)).unwrap();
    assert_eq!(faults().stopped_queues, 0);
}
