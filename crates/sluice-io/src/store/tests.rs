//! Wrappers around stores, and memory in pieces.

use std::sync::mpsc::channel;
use std::time::Duration;

use sluice_pool::Aim;
use sluice_sched::{Cost, Flags, Iops, OwnerId, Phase, RequestId, VolumeId, Wait};

use super::delay::{Delay, DelaySpec, Delayed, ServiceTime};
use super::window::Windowed;
use super::*;

/// Fails every second operation.
struct Faulty<S> {
    below: S,
    started: u32,
    failed: Vec<OpIndex>,
}

impl<S: Store> Store for Faulty<S> {
    fn info(&self, volume: StoreRef) -> &StoreInfo {
        self.below.info(volume)
    }

    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        self.started += 1;
        match self.started.is_multiple_of(2) {
            true => self.failed.push(op.index),
            false => self.below.start(context, op),
        }
    }

    fn next_done(&mut self, now: Instant) -> Option<(OpIndex, Done)> {
        let failed = self.failed.pop().map(|index| (index, Done::Failed(libc::EIO)));
        failed.or_else(|| self.below.next_done(now))
    }
}

pub(super) fn request(length: u32) -> Request {
    Request {
        id: RequestId(0),
        arrival: Instant::ZERO,
        offset: 0,
        length,
        cost: Cost::ONE,
        owner: OwnerId(0),
        token: 0,
        rho: 0,
        delta: 0,
        volume: VolumeId(0),
        kind: Kind::Read,
        flags: Flags::NONE,
        phase: Phase::None,
        wait: Wait::None,
    }
}

#[test]
fn wrappers_chain_and_each_sees_every_operation_and_every_result() {
    let (time, request) = (ServiceTime::Fixed(Duration::from_millis(4)), request(4096));
    let delay = Delay::new(DelaySpec { time, parallel: 1, bandwidth: None, seed: 1 }, None).unwrap();
    let mut stores = Stores::new();
    let label = Label { vm: "vm".to_owned(), volume: "disk".to_owned() };
    let volume = stores.open(Instant::ZERO, label, StoreSpec::Null);
    let below = Faulty { below: stores, started: 0, failed: Vec::new() };
    let mut store = Delayed { delay: Some(delay), below };
    let (mut ring, jobs) = (Ring::new().unwrap(), Jobs { queries: channel().0, discards: channel().0 });
    let mut context = Context { now: Instant::ZERO, ring: &mut ring, jobs: &jobs };
    for slot in 0..3 {
        let (what, memory, first) = (What::Read, Memory::None, Some(&request));
        let (index, slot) = (OpIndex(slot * 2), Slot(slot));
        store.start(
            &mut context,
            &Op { index, volume, what, offset: 0, length: 4096, forced: false, memory, slot, first },
        );
    }
    assert_eq!(store.next_done(Instant::ZERO), None, "the delay holds them");
    assert_eq!(store.next_wakeup(), Some(Instant::from_millis(4)));
    let mut at = |millis| store.next_done(Instant::from_millis(millis));
    assert_eq!([at(4), at(7)], [Some((OpIndex(0), Done::Ok)), None]);
    assert_eq!([at(8), at(11)], [Some((OpIndex(2), Done::Failed(libc::EIO))), None]);
    assert_eq!([at(12), at(99)], [Some((OpIndex(4), Done::Ok)), None]);
}

#[test]
fn a_short_transfer_continues_in_the_piece_where_it_stopped() {
    let mut bytes = [0u8; 24];
    let start = bytes.as_mut_ptr();
    let pieces = || {
        [(0, 8), (8, 4), (12, 12)].map(|(at, iov_len)| libc::iovec { iov_base: start.wrapping_add(at).cast(), iov_len })
    };
    for (advanced, left) in [
        (0, vec![(0, 8), (8, 4), (12, 12)]),
        (3, vec![(3, 5), (8, 4), (12, 12)]),
        (8, vec![(8, 4), (12, 12)]),
        (13, vec![(13, 11)]),
    ] {
        let mut list = pieces();
        let mut memory = Memory::Pieces(list.as_mut_ptr(), 3);
        // SAFETY: the list has 24 bytes.
        unsafe { memory.advance(advanced) };
        let Memory::Pieces(first, count) = memory else { unreachable!("it has pieces") };
        // SAFETY: the list lives until the end of the round.
        let rest = unsafe { std::slice::from_raw_parts(first, count as usize) };
        let rest: Vec<_> = rest.iter().map(|piece| (piece.iov_base as usize - start as usize, piece.iov_len)).collect();
        assert_eq!(rest, left, "{advanced}");
    }
    let mut one = Memory::One(start);
    // SAFETY: 24 bytes follow.
    unsafe { one.advance(5) };
    assert!(matches!(one, Memory::One(at) if at as usize == start as usize + 5));
}

#[test]
fn a_window_counts_a_merged_request_once_and_until_its_last_operation_has_ended() {
    let delay = DelaySpec { time: ServiceTime::Fixed(Duration::from_millis(4)), parallel: 1, bandwidth: None, seed: 1 };
    let mut below = Stores::new();
    let label = Label { vm: "vm".to_owned(), volume: "disk".to_owned() };
    let volume = below.open(Instant::ZERO, label, StoreSpec::Null);
    let below = Delayed { delay: Some(Delay::new(delay, None).unwrap()), below };
    let aim = Aim::new(Iops::per_second(1000), Duration::from_millis(1));
    let mut store = Windowed::new(Instant::ZERO, Some(aim), below);
    let (mut ring, jobs) = (Ring::new().unwrap(), Jobs { queries: channel().0, discards: channel().0 });
    let mut context = Context { now: Instant::ZERO, ring: &mut ring, jobs: &jobs };
    let request = request(8192);
    for (index, first) in [(0, Some(&request)), (1, None)] {
        let (what, memory, slot) = (What::Read, Memory::None, Slot(0));
        let op =
            Op { index: OpIndex(index), volume, what, offset: 0, length: 4096, forced: false, memory, slot, first };
        store.start(&mut context, &op);
    }
    let in_flight = |store: &Windowed<_>| store.state().unwrap().in_flight;
    assert_eq!((in_flight(&store), store.has_room(Instant::ZERO)), (1.0, false), "the window is one request");
    let end = Instant::from_millis(4);
    assert!(store.next_done(Instant::ZERO).is_none());
    assert_eq!(store.next_wakeup(), Some(end));
    assert!(store.next_done(end).is_some());
    assert_eq!(in_flight(&store), 1.0, "the other one has not ended");
    assert!(store.next_done(end).is_some() && store.next_done(end).is_none());
    assert_eq!((in_flight(&store), store.has_room(end)), (0.0, true));
    // Without a window nothing is counted, and what is in flight when one comes is not.
    store.set_aim(end, None);
    let (what, memory, slot) = (What::Read, Memory::None, Slot(0));
    let (index, first) = (OpIndex(0), Some(&request));
    store.start(&mut context, &Op { index, volume, what, offset: 0, length: 8192, forced: false, memory, slot, first });
    store.set_aim(end, Some(aim));
    assert!(store.next_done(Instant::from_millis(8)).is_some());
    assert_eq!(in_flight(&store), 0.0);
}
