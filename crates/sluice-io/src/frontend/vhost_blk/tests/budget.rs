//! Costs that a VM causes to others by requests that never reach the device.

use std::sync::Arc;

use sluice_sched::gate::GateStats;

use super::*;

/// Lets a VM do one request now, and the next one in 1000 s.
fn limited() -> Policy {
    let mut policy = Policy::default();
    policy.limit.iops = Some(Iops::from_milli(1));
    policy.burst = Some(1);
    policy
}

impl Bench {
    fn account(&self) -> Arc<GateStats> {
        self.device.snapshot().unwrap().vms[0].account.clone()
    }

    fn queued(&self) -> u64 {
        self.device.snapshot().unwrap().queued
    }
}

#[test]
fn refused_requests_of_a_limited_vm_were_answered_as_fast_as_it_sent_them() {
    const GET_ID: u32 = 8;
    for kind in [UNKNOWN, GET_ID] {
        let bench = bench(limited(), StoreSpec::Null, 1 << 30, 4);
        let session = bench.open();
        let mut guest = bench.start(&session);
        for number in 0..5 {
            let head = guest.request(number, kind, 0, 20);
            guest.describe(TABLE, head + 1, guest.data(number).0, 20, NEXT | WRITE, head + 2);
            guest.offer(head);
        }
        guest.kick();
        let (head, _) = guest.next_used();
        assert_eq!((head, guest.status(0)), (0, if kind == UNKNOWN { 2 } else { 0 }));
        // The window is full; the fifth request stays in the ring.
        assert_eq!((bench.outstanding(), bench.queued()), (4, 4), "kind {kind}");
        assert_eq!(bench.account().completed().iter().sum::<u64>(), 1);
        bench.runtime.block_on(session.close());
        assert_eq!(bench.outstanding(), 0);
    }
}

/// A request whose data is not aligned is copied when it is dispatched. A throttled guest costs no memory and no time,
/// however often it restarts its queue.
#[test]
fn data_of_queued_requests_was_copied_at_each_start_of_their_queue() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let source = Arc::new(Source::open(&SourceSpec::whole(file.path())).unwrap());
    assert!(source.alignment().memory > 1, "this data would not be copied");
    let bench = bench(limited(), StoreSpec::File(FileSpec { source, extents: None }), 1 << 20, 64);
    let session = bench.open();
    let mut guest = bench.start(&session);
    for number in 0..2 {
        let head = guest.request(number, 1, u64::from(number) * 8, 4096);
        guest.describe(TABLE, head + 1, guest.data(number).0 + 1, 4096, NEXT, head + 2);
        guest.memory.write_slice(&[1; 4096], GuestAddress(guest.data(number).0 + 1)).unwrap();
        guest.offer(head);
    }
    guest.kick();
    assert_eq!((guest.next_used().0, guest.status(0), bench.queued()), (0, 0, 1));
    guest.memory.write_slice(&[2; 4096], GuestAddress(guest.data(1).0 + 1)).unwrap();
    let (policy, window) = (Policy::default(), Window { requests: 64, bytes: 32 << 20 });
    bench.device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
    assert_eq!((guest.next_used().0, guest.status(1)), (3, 0));
    let content = std::fs::read(file.path()).unwrap();
    assert!(content[..4096].iter().all(|&byte| byte == 1) && content[4096..8192].iter().all(|&byte| byte == 2));
}

/// Two sessions of a VM wait for its window, one with reads of 1 MiB. No request completes meanwhile.
#[test]
fn a_queue_with_large_requests_took_as_many_turns_of_the_window_as_one_with_small_requests() {
    let time = ServiceTime::Fixed(Duration::from_secs(1000));
    let delay = DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 };
    let mut bench = delayed_bench(Policy::default(), StoreSpec::Null, 1 << 30, 0, Some(delay));
    let sessions = [1 << 20, 4096].map(|len| {
        bench.memory = memory();
        let [kick, call] = [(); 2].map(|()| doorbell());
        let mut guest = Guest { memory: Arc::clone(&bench.memory), kick, call, available: 0, used: 0 };
        for number in 0..5 {
            let head = guest.request(number, 0, 0, len);
            guest.offer(head);
        }
        // The queue is started with requests, so it waits for room when this returns.
        let session = bench.open();
        bench.start(&session);
        session
    });
    let (policy, window) = (Policy::default(), Window { requests: 6, bytes: 32 << 20 });
    bench.device.edit(vec![Edit::SetPolicies { vm: "vm".to_owned(), policy, window, volumes: vec![] }]).unwrap();
    while bench.outstanding() < 6 {
        std::thread::yield_now();
    }
    let clients = bench.device.watch().clients(Duration::from_secs(60)).unwrap();
    assert_eq!(clients.iter().map(|client| client.outstanding).collect::<Vec<_>>(), [1, 5]);
    drop(sessions);
}
