//! Invalid chains and rings.

use super::*;

#[test]
fn a_malformed_chain_stops_its_queue_and_is_counted() {
    let bench = null(64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    type Case = (&'static str, fn(&Guest));
    let cases: [Case; 8] = [
        ("a loop", |guest| guest.describe(TABLE, 0, SCRATCH, 16, NEXT, 0)),
        ("a next beyond the table", |guest| guest.describe(TABLE, 0, SCRATCH, 16, NEXT, ENTRIES)),
        ("outside of memory", |guest| guest.describe(TABLE, 0, MEMORY as u64 - 8, 16, 0, 0)),
        ("an address that wraps", |guest| guest.describe(TABLE, 0, u64::MAX - 8, 16, 0, 0)),
        ("no status", |guest| guest.describe(TABLE, 0, SCRATCH, 16, 0, 0)),
        ("half a header", |guest| guest.describe(TABLE, 0, SCRATCH, 8, 0, 0)),
        ("an odd indirect table", |guest| guest.describe(TABLE, 0, SCRATCH, 24, INDIRECT, 0)),
        ("a nested indirect table", |guest| {
            guest.describe(SCRATCH, 0, SCRATCH, 16, INDIRECT, 0);
            guest.describe(TABLE, 0, SCRATCH, 16, INDIRECT, 0);
        }),
    ];
    for (number, (what, write)) in cases.into_iter().enumerate() {
        write(&guest);
        guest.offer(0);
        guest.kick();
        while bench.faults() == number as u64 {
            std::thread::yield_now();
        }
        let next = bench.runtime.block_on(session.stop_queue(0)).unwrap();
        assert_eq!((next, guest.memory.read_obj::<u16>(GuestAddress(USED + 2)).unwrap()), (1, 0), "{what}");
        guest.publish(0);
        guest = bench.start(&session);
    }
    assert_eq!(guest.ask(1, 0, 8, 4096), (0, 4097), "it works again after a restart");
}

#[test]
fn a_ring_whose_index_jumps_stops_only_its_queue() {
    let bench = null(64);
    let (first, second) = (bench.open(), bench.open());
    let guest = bench.start(&first);
    guest.publish(ENTRIES + 1);
    guest.kick();
    while bench.faults() == 0 {
        std::thread::yield_now();
    }
    bench.runtime.block_on(first.close());
    guest.publish(0);
    guest.memory.store(0u16, GuestAddress(USED + 2), std::sync::atomic::Ordering::SeqCst).unwrap();
    let mut other = bench.start(&second);
    assert_eq!(other.ask(1, 0, 8, 4096), (0, 4097));
}
