//! A timer in the ring for deadlines that are seldom reached: that data of a write come, that replies are read.
//!
//! Almost every iteration has such a deadline. Waiting with it as a time-out would have the kernel set and cancel a timer each
//! time, about 1 us. So one timer is left running, and what it is for is looked at when it fires: then the deadline has mostly
//! been met, and the next one is later.

use std::time::Duration;

use io_uring::{opcode, types};

use crate::backend::ring::Ring;
use crate::backend::tag::Tag;

/// The timer of a device thread.
#[derive(Default)]
pub(crate) struct DeadlineTimer {
    /// In the kernel until it fires.
    time: Box<types::Timespec>,
    runs: bool,
}

impl DeadlineTimer {
    /// Has the timer fire after `time`, unless it runs already.
    pub(crate) fn start(&mut self, ring: &mut Ring, time: Duration) {
        if self.runs {
            return;
        }
        *self.time = types::Timespec::from(time);
        let entry = opcode::Timeout::new(&raw const *self.time).build();
        // SAFETY: the time is boxed and stays until the timer has fired; a loop is dropped when the ring holds nothing.
        unsafe { ring.push(entry.user_data(Tag::Timer.pack())) };
        self.runs = true;
    }

    /// It has fired, or was cancelled.
    pub(crate) fn fired(&mut self) {
        self.runs = false;
    }

    /// Has it fire now.
    pub(crate) fn cancel(&mut self, ring: &mut Ring) {
        if self.runs {
            let entry = opcode::AsyncCancel::new(Tag::Timer.pack()).build();
            // SAFETY: a cancellation refers to no memory.
            unsafe { ring.push(entry.user_data(Tag::Ignored.pack())) };
        }
    }
}
