//! Requests that a volume or NIC refuses its clients, and queues that have stopped: what the client sees, told to the operator.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faults of the clients of a volume or NIC, since the start of its device thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of refused requests.
    pub refused: u64,
    /// Why the last one was refused.
    pub refusal: Option<&'static str>,
    /// Queues that take no requests until their driver is reset.
    pub stopped_queues: u32,
    /// Why the last one has stopped.
    pub stopped: Option<&'static str>,
}

/// The faults of a volume or NIC, to which its stopped queues refer.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClientFaults(Arc<Mutex<Faults>>);

impl ClientFaults {
    pub(crate) fn read(&self) -> Faults {
        *self.lock()
    }

    /// Counts a refused request. Returns the number of them.
    pub(crate) fn refuse(&self, why: &'static str) -> u64 {
        let mut faults = self.lock();
        (faults.refused, faults.refusal) = (faults.refused + 1, Some(why));
        faults.refused
    }

    /// Counts a queue that has stopped.
    pub(crate) fn stop_queue(&self, why: &'static str) -> StoppedQueue {
        let mut faults = self.lock();
        (faults.stopped_queues, faults.stopped) = (faults.stopped_queues + 1, Some(why));
        StoppedQueue(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue that takes no requests. Until this is dropped, because the queue is reset or its VMM has left, it counts as stopped.
pub(crate) struct StoppedQueue(ClientFaults);

impl Drop for StoppedQueue {
    fn drop(&mut self) {
        self.0.lock().stopped_queues -= 1;
    }
}

/// Log message for a queue that has stopped. The reason says whose fault it is: the guest's, or that of a VMM which has not shared its memory.
pub(crate) const QUEUE_STOPPED: &str = "Queue stopped until its driver is reset";
