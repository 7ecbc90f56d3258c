//! A reply that several workers make together.
//!
//! It is sent when the last of them has done its part. If one does not, because its thread has panicked or ended, nothing is sent, and
//! the one that waits for the reply learns that the device has stopped.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

struct Joint<T> {
    reply: Sender<T>,
    /// `None`: a part was not done.
    value: Mutex<Option<T>>,
}

/// What one worker has to do for a reply. Dropping it without [`Part::done`] means that this was not done.
pub(crate) struct Part<T> {
    joint: Arc<Joint<T>>,
    is_done: bool,
}

impl<T> Part<T> {
    /// Begins a reply. Each clone is a further part.
    pub(crate) fn of(reply: Sender<T>, value: T) -> Self {
        Part { joint: Arc::new(Joint { reply, value: Mutex::new(Some(value)) }), is_done: false }
    }

    /// Changes what is replied.
    pub(crate) fn update(&self, update: impl FnOnce(&mut T)) {
        let mut value = self.joint.value.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = value.as_mut() {
            update(value);
        }
    }

    pub(crate) fn done(mut self) {
        self.is_done = true;
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Part { joint: Arc::clone(&self.joint), is_done: false }
    }
}

impl<T> Drop for Part<T> {
    fn drop(&mut self) {
        if !self.is_done {
            *self.joint.value.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl<T> Drop for Joint<T> {
    fn drop(&mut self) {
        let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = value.take() {
            let _ = self.reply.send(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    #[test]
    fn a_reply_is_sent_when_all_have_done_their_parts() {
        let (reply, replied) = channel();
        let first = Part::of(reply, 1);
        let second = first.clone();
        first.done();
        assert_eq!(replied.try_recv(), Err(TryRecvError::Empty));
        second.update(|value| *value += 1);
        second.done();
        assert_eq!(replied.try_recv(), Ok(2));
    }

    #[test]
    fn a_part_that_was_not_done_was_replied_as_done() {
        for panics_first in [true, false] {
            let (reply, replied) = channel();
            let first = Part::of(reply, 1);
            let second = first.clone();
            let panics = move || {
                let _part = second;
                panic!("panic requested by a test");
            };
            let (mut panics, mut first) = (Some(panics), Some(first));
            let mut panic = || assert!(std::thread::spawn(panics.take().unwrap()).join().is_err());
            if panics_first {
                panic();
                first.take().unwrap().done();
            } else {
                first.take().unwrap().done();
                panic();
            }
            assert_eq!(replied.try_recv(), Err(TryRecvError::Disconnected));
        }
    }
}
