//! Tests of polling queues, with a consumer that keeps the requests itself and instants that the tests choose.

use rustix::event::{EventfdFlags, eventfd};
use vm_memory::{Bytes as _, GuestAddress};

use super::*;
use crate::vhost_user::memory::{Memory, unshared};
use crate::virtio::queue::{QueueSpec, SessionId};

const ENTRIES: u16 = 16;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;

/// Takes all requests.
struct Keeper {
    ring: Ring,
    taken: u32,
}

impl Consumer for Keeper {
    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn is_open(&self) -> bool {
        true
    }

    fn has_room(&self, _queue: &VirtQueue) -> bool {
        true
    }

    fn park(&mut self, _id: QueueId, _queue: &VirtQueue) {
        unreachable!("there is room")
    }

    fn take(
        &mut self,
        _now: Instant,
        _id: QueueId,
        _queue: &mut VirtQueue,
        _taken: Taken,
        _chain: &mut Chain,
    ) -> Result<u64, Malformed> {
        self.taken += 1;
        Ok(0)
    }

    fn kicked(&mut self, _queue: &VirtQueue) -> bool {
        true
    }

    fn kicked_in_vain(&mut self) {}

    fn broken(&mut self, _queue: &VirtQueue, reason: &'static str) -> StoppedQueue {
        unreachable!("the queue broke: {reason}")
    }
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn start(queues: &mut QueueSet, memory: &Arc<Memory>) -> QueueId {
    let spec = QueueSpec {
        index: 0,
        size: ENTRIES,
        descriptors: GuestAddress(0x1000),
        available: GuestAddress(AVAILABLE),
        used: GuestAddress(USED),
        next_available: 0,
        event_index: true,
        kick: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap(),
        call: None,
        error: None,
        log: None,
    };
    let session: SessionId = Slab::default().insert(());
    queues.insert(VirtQueue::new(session, spec, Arc::clone(memory)).unwrap())
}

/// Returns guest memory, a queue in it, and its consumer.
fn polled() -> (Arc<Memory>, QueueSet, Keeper, QueueId) {
    let memory = Arc::new(unshared(&[(GuestAddress(0), 1 << 20)]).unwrap());
    let mut queues = QueueSet::new(FrontendNumber(1));
    let id = start(&mut queues, &memory);
    (memory, queues, Keeper { ring: Ring::new().unwrap(), taken: 0 }, id)
}

/// Returns the index that the guest has to pass for its next kick.
fn kick(memory: &Memory) -> u16 {
    u16::from_le(memory.read_obj(GuestAddress(USED + 4 + 8 * u64::from(ENTRIES))).unwrap())
}

/// Sets the index of the available ring.
fn offer(memory: &Memory, index: u16) {
    memory.write_obj(index.to_le(), GuestAddress(AVAILABLE + 2)).unwrap();
}

/// A disk takes longer than the loop polls after a request. The loop slept again as soon as it had returned the request, and
/// the guest, which sends one at a time, had to kick for each.
#[test]
fn a_guest_was_not_polled_after_a_reply_for_which_the_loop_had_slept() {
    let (memory, mut queues, mut keeper, id) = polled();
    let kick = || kick(&memory);
    let offer = |index| offer(&memory, index);

    offer(1);
    assert!(queues.resume(&mut keeper, at(1000), id));
    assert!(queues.stop_polling(&mut keeper, at(1070)));
    assert_eq!(kick(), 1, "the loop sleeps");

    queues.give_back(id, 0, 1);
    queues.note_returned(at(1200), id);
    assert_eq!(kick(), 0, "the loop polls, and the guest's index has passed that");
    offer(2);
    assert!(queues.poll(&mut keeper, at(1230)) && keeper.taken == 2);

    queues.note_returned(at(1300), id);
    assert!(queues.stop_polling(&mut keeper, at(1400)));
    assert_eq!(kick(), 2);
}

/// The loop never slept while other guests kept it busy, and looked at this queue in each iteration.
#[test]
fn a_guest_that_had_paused_was_polled_as_long_as_others_kept_the_loop_busy() {
    let (memory, mut queues, mut keeper, id) = polled();
    let kick = || kick(&memory);
    let offer = |index| offer(&memory, index);

    offer(1);
    assert!(queues.resume(&mut keeper, at(10_000), id));
    queues.queue(id).outstanding.held = 1;
    assert!(!queues.poll(&mut keeper, at(20_000)) && queues.is_polling(), "it waits for its reply");
    queues.queue(id).outstanding.held = 0;
    queues.note_returned(at(30_000), id);
    assert!(!queues.poll(&mut keeper, at(30_900)) && queues.is_polling());
    assert!(!queues.poll(&mut keeper, at(31_901)) && !queues.is_polling());
    assert_eq!((kick(), queues.queue(id).eventfds.kick.listening), (1, true), "the guest kicks for its next request");

    // A request that arrives while it is about to be left keeps it polled.
    assert!(!queues.resume(&mut keeper, at(40_000), id) && queues.is_polling());
    offer(2);
    assert!(!queues.rearm(&mut keeper, |_| true) && queues.is_polling());
    assert!(queues.poll(&mut keeper, at(50_000)) && keeper.taken == 2);
}
