//! A timer in the ring for deadlines that are rarely reached: payload of a write arrives, replies are read.
//!
//! Almost every iteration has such a deadline. As a timeout of the wait it would make the kernel set and cancel a timer
//! each time, which costs about 1 us. So one timer keeps running, and the deadlines are checked when it fires. By then
//! most have been met, and the next one is later.

use std::time::Duration;

use io_uring::{opcode, types};

use crate::backend::ring::Ring;
use crate::backend::tag::Tag;

/// A timer of a device thread.
pub(crate) struct DeadlineTimer {
    /// User data of its event.
    tag: Tag,
    /// Used by the kernel until the timer fires.
    time: Box<types::Timespec>,
    runs: bool,
}

impl DeadlineTimer {
    pub(crate) fn new(tag: Tag) -> Self {
        DeadlineTimer { tag, time: Box::default(), runs: false }
    }

    /// Starts the timer with a duration of `time`, unless it is running.
    pub(crate) fn start(&mut self, ring: &mut Ring, time: Duration) {
        if self.runs {
            return;
        }
        *self.time = types::Timespec::from(time);
        let entry = opcode::Timeout::new(&raw const *self.time).build();
        // SAFETY: the time is boxed and stays until the timer has fired; a loop is dropped when the ring is empty.
        unsafe { ring.push(entry.user_data(self.tag.pack())) };
        self.runs = true;
    }

    /// Records that it has fired or was cancelled.
    pub(crate) fn fired(&mut self) {
        self.runs = false;
    }

    /// Makes it fire now.
    pub(crate) fn cancel(&mut self, ring: &mut Ring) {
        if self.runs {
            let entry = opcode::AsyncCancel::new(self.tag.pack()).build();
            // SAFETY: a cancellation refers to no memory.
            unsafe { ring.push(entry.user_data(Tag::Ignored.pack())) };
        }
    }
}
