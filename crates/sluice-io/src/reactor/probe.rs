//! Probes of a device thread: whether its loop runs, and whether its disk completes requests.
//!
//! A probe is a message that the loop answers between two iterations, so an answer shows that the thread is not stuck. The
//! answer of a thread whose disk hangs still arrives, because the loop never waits for a disk.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use crate::reactor::life::Life;
use crate::reactor::spec::Health;

/// Reply of the loop to a probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Requests (pieces) in flight.
    pub in_flight: u64,
    /// Disk operations completed since the start of the thread.
    pub completed: u64,
}

/// A probe that was sent.
pub struct Probe {
    pub(super) life: Arc<Life>,
    pub(super) answer: Option<Receiver<Pulse>>,
}

/// State of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Pulse(Pulse),
    /// The thread serves and has not answered.
    Pending,
    /// No answer is expected: the thread is being restarted, is down, or has ended.
    NotServing,
}

impl Probe {
    /// Returns the answer, once. Does not wait.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self.answer.as_ref().map_or(Err(TryRecvError::Disconnected), Receiver::try_recv) {
            Ok(pulse) => Answer::Pulse(pulse),
            Err(TryRecvError::Empty) if self.life.health() == Health::Serving => Answer::Pending,
            Err(_) => Answer::NotServing,
        }
    }
}
