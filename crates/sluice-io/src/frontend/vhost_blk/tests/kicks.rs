//! Kicks without requests, which cost the daemon CPU time.

use std::time::Instant;

use sluice_sched::Percent;

use super::*;
use crate::device::Snapshot;

/// A kick descriptor that is read as often as one likes: each read takes one from its counter.
fn endless() -> OwnedFd {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
    eventfd(0, flags).and_then(|kick| rustix::io::write(&kick, &(1u64 << 62).to_ne_bytes()).map(|_| kick)).unwrap()
}

/// The thread polls for requests in flight while there is work. Kicks are work that brings it no nearer to them, and it polled at the cost
/// of nobody.
#[test]
fn a_guest_that_kicks_without_pause_kept_the_thread_busy_whatever_its_limit() {
    let time = ServiceTime::Fixed(Duration::from_secs(3600));
    let delay = DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 };
    let bench = delayed_bench(Policy::default(), StoreSpec::Null, 1 << 30, 64, Some(delay));
    let session = bench.open();
    let mut guest = bench.start(&session);
    let head = guest.request(0, 0, 0, 512);
    guest.offer(head);
    guest.kick();
    while bench.device.snapshot().unwrap().in_flight == 0 {
        std::thread::yield_now();
    }
    let vm = "vm".to_owned();
    bench.device.edit(vec![Edit::SetCpu { vm, limit: Some(Percent::from_hundredths(200)) }]).unwrap();
    let other = bench.open();
    bench.start_as(&other, |spec| spec.kick = endless());
    let (began, before) = (Instant::now(), bench.device.snapshot().unwrap());
    let used = |now: &Snapshot| now.vms[0].cpu.used_nanos - before.vms[0].cpu.used_nanos;
    let mut now = bench.device.snapshot().unwrap();
    while used(&now) < 10_000_000 {
        // polls: the thread has used 10 ms; a snapshot costs it time too.
        std::thread::sleep(Duration::from_millis(20));
        now = bench.device.snapshot().unwrap();
    }
    let (elapsed, iterations) = (began.elapsed().as_nanos() as u64, now.iterations - before.iterations);
    assert!(used(&now) <= elapsed / 50 + 2_200_000, "{} of {elapsed} ns", used(&now));
    assert!(iterations <= used(&now) / 1000, "{iterations} iterations in {} ns: the thread polled", used(&now));
}
