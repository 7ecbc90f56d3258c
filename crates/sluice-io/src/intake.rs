//! Whether requests are taken from a virtqueue.

/// Whether requests are taken from a virtqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intake {
    Open,
    /// It waits for window space, in its VM's queue.
    WaitsForRoom,
    /// It waits for in-flight requests of disconnected clients of its volume.
    WaitsForPredecessor,
}

impl Intake {
    /// Returns the state of a client that has just connected.
    pub(crate) fn of_new(has_no_predecessor: bool) -> Self {
        if has_no_predecessor { Intake::Open } else { Intake::WaitsForPredecessor }
    }
}
