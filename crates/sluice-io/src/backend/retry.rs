//! Operations that the kernel interrupts: their events are handled after a pause.
//!
//! The owner of an operation that ends with EAGAIN or EINTR submits it again. If the kernel interrupts it again each
//! time, a device thread that resubmits immediately would do nothing else. So the event is delayed by [`PAUSE`], and a
//! disk operation fails after [`TRIES_MAX`] pauses.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;

use crate::backend::ring::Event;

/// Delay of an event.
const PAUSE: Duration = Duration::from_millis(10);
/// Pauses after which a disk operation fails: 30 s, as long as a guest's own timeout.
pub(crate) const TRIES_MAX: u16 = if cfg!(test) { 20 } else { 3000 };

/// Delayed events, in order.
#[derive(Default)]
pub(crate) struct Later {
    waiting: VecDeque<(Instant, Event)>,
}

/// Whether an operation must be submitted again.
pub(crate) fn is_put_off(result: i32) -> bool {
    result == -libc::EAGAIN || result == -libc::EINTR
}

impl Later {
    /// Takes an event. Returns it if it is to be handled now.
    pub(crate) fn pass(&mut self, now: Instant, event: Event) -> Option<Event> {
        if is_put_off(event.result) {
            self.waiting.push_back((now + PAUSE, event));
            return None;
        }
        Some(event)
    }

    /// Returns the next event whose pause has ended.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Event> {
        self.waiting.pop_front_if(|(due, _)| *due <= now).map(|(_, event)| event)
    }

    /// Returns when the next pause ends.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.front().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interrupted_operations_wait() {
        let mut later = Later::default();
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let event = |result| Event { user_data: 7, result };
        for result in [0, 4096, -libc::EIO, -libc::EBUSY] {
            assert_eq!(later.pass(at(0), event(result)).unwrap().result, result);
        }
        assert!(later.pass(at(0), event(-libc::EAGAIN)).is_none());
        assert!(later.pass(at(3), event(-libc::EINTR)).is_none());
        assert_eq!(later.next(), Some(at(10)));
        assert!(later.pop(at(9)).is_none());
        assert_eq!(later.pop(at(12)).unwrap().result, -libc::EAGAIN);
        assert!(later.pop(at(12)).is_none());
        assert_eq!(later.pop(at(13)).unwrap().result, -libc::EINTR);
        assert_eq!(later.next(), None);
    }
}
