//! Health of a device thread, as other threads read it without its reply.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::reactor::spec::Health;

/// State of a device thread that others can read without its reply.
pub(crate) struct Life {
    health: AtomicU8,
    restarts: AtomicU64,
    /// Why the thread failed last.
    failure: Mutex<Option<String>>,
    /// Called when the device goes down.
    went_down: Box<dyn Fn() + Send + Sync>,
}

impl Life {
    pub(crate) fn new(went_down: Box<dyn Fn() + Send + Sync>) -> Self {
        Life {
            health: AtomicU8::new(Health::Serving as u8),
            restarts: AtomicU64::new(0),
            failure: Mutex::default(),
            went_down,
        }
    }

    pub(crate) fn health(&self) -> Health {
        let known = [Health::Serving, Health::Restarting, Health::Down, Health::Ended];
        let stored = self.health.load(Ordering::Acquire);
        known.into_iter().find(|health| *health as u8 == stored).expect("only these are stored")
    }

    /// Returns the number of restarts.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn set_restarts(&self, restarts: u64) {
        self.restarts.store(restarts, Ordering::Relaxed);
    }

    /// Returns why the thread failed last; `None` if it has not failed.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_failure(&self, failure: String) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }

    pub(crate) fn set(&self, health: Health) {
        self.health.store(health as u8, Ordering::Release);
    }

    pub(crate) fn go_down(&self) {
        self.set(Health::Down);
        (self.went_down)();
    }
}
