//! State of a volume that the threads of a device share: its part of the window, and its clients.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::client_faults::SharedFaults;
use crate::backend::occupancy::Tally;

/// A volume of all workers.
#[derive(Debug)]
pub(crate) struct VolumeCommon {
    /// Its number at all workers, whose tables may differ.
    pub(crate) place: u32,
    pub(crate) outstanding: Arc<Tally>,
    /// Submissions of disconnected clients. New clients wait for them.
    pub(crate) abandoned_in_flight: AtomicU32,
    pub(crate) faults: SharedFaults,
    clients: Mutex<Clients>,
}

/// The clients of a volume. Behind a lock, because a client must not come in between when the volume is looked at for
/// clients and then refuses them.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) open: u32,
    pub(crate) refused: bool,
}

impl VolumeCommon {
    pub(crate) fn at(place: u32) -> Self {
        let (outstanding, abandoned_in_flight, faults) = (Arc::default(), AtomicU32::new(0), SharedFaults::default());
        VolumeCommon { place, outstanding, abandoned_in_flight, faults, clients: Mutex::default() }
    }

    pub(crate) fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
