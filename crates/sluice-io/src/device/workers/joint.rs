//! A reply that several workers make together. It is sent when the last of them has dropped it.

use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

pub(crate) struct Joint<T> {
    reply: Sender<T>,
    value: Mutex<Option<T>>,
}

impl<T> Joint<T> {
    pub(crate) fn new(reply: Sender<T>, value: T) -> Self {
        Joint { reply, value: Mutex::new(Some(value)) }
    }

    /// Changes what is replied.
    pub(crate) fn update(&self, update: impl FnOnce(&mut T)) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = value.as_mut() {
            update(value);
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
