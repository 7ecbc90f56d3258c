//! State of a VM and of a volume that the workers of a device share: the window, the clients, and the CPU time.
//!
//! A worker changes it with single atomic operations. Two workers that see the last free place of a window at the same time
//! both take it, so a window may be exceeded by one request for each worker after the first.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_sched::Instant;

use crate::backend::volume::Outstanding;

/// [`Outstanding`] of all workers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    requests: AtomicU32,
    bytes: AtomicU64,
}

impl Tally {
    pub(crate) fn add(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.add_bytes(bytes);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Sequentially consistent, like [`VmCommon::wait`]: of a worker that frees room and one that waits for it, one sees the
    /// other.
    pub(crate) fn remove(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        self.requests.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn load(&self) -> Outstanding {
        Outstanding { requests: self.requests.load(Ordering::SeqCst), bytes: self.bytes.load(Ordering::SeqCst) }
    }
}

/// A VM of all workers.
#[derive(Debug, Default)]
pub(crate) struct VmCommon {
    pub(crate) outstanding: Tally,
    /// The workers with clients that wait for room, a bit for each.
    waiting: AtomicU32,
    /// See [`crate::device::vm::Vm`].
    pub(crate) protocol_errors: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) cpu: CpuCommon,
}

impl VmCommon {
    /// Records that a client waits at a worker, which looks for room once more afterwards.
    pub(crate) fn wait(&self, worker: u8) {
        self.waiting.fetch_or(1 << worker, Ordering::SeqCst);
    }

    /// Returns the other workers with clients that wait, a bit for each, and forgets them: each is told once.
    pub(crate) fn take_waiting(&self, worker: u8) -> u32 {
        let others = !(1 << worker);
        match self.waiting.load(Ordering::SeqCst) & others {
            0 => 0,
            _ => self.waiting.fetch_and(!others, Ordering::SeqCst) & others,
        }
    }
}

/// CPU time of a VM on all workers.
#[derive(Debug, Default)]
pub(crate) struct CpuCommon {
    pub(crate) used_nanos: AtomicU64,
    pub(crate) held_nanos: AtomicU64,
    /// When what all workers have used for it is paid for, in nanoseconds.
    paid: AtomicU64,
}

impl CpuCommon {
    /// Forgets what was used.
    pub(crate) fn forgive(&self, now: Instant) {
        self.paid.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Adds `price` to what is to be paid for since `earliest`. Returns when it is.
    pub(crate) fn spend(&self, earliest: Instant, price: u64) -> Instant {
        let later = |paid: u64| paid.max(earliest.as_nanos()).saturating_add(price);
        let before = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(later(paid)));
        Instant::from_nanos(later(before.unwrap_or(0)))
    }

    pub(crate) fn paid(&self) -> Instant {
        Instant::from_nanos(self.paid.load(Ordering::Relaxed))
    }
}

/// A volume of all workers.
#[derive(Debug)]
pub(crate) struct VolumeCommon {
    /// Its number at all workers, whose tables may differ.
    pub(crate) place: u32,
    pub(crate) outstanding: Tally,
    /// Submissions of disconnected clients. New clients wait for them.
    pub(crate) abandoned_in_flight: AtomicU32,
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
        let (outstanding, abandoned_in_flight) = (Tally::default(), AtomicU32::new(0));
        VolumeCommon { place, outstanding, abandoned_in_flight, clients: Mutex::default() }
    }

    pub(crate) fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
