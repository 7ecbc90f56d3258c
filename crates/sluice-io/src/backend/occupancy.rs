//! What the requests of a VM, or of one of its volumes, occupy of the window: counted by one thread, or by several together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The part of a VM's window that requests occupy, from their arrival at a frontend to their reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// [`Outstanding`] of all threads, which each change with single atomic operations.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    requests: AtomicU32,
    bytes: AtomicU64,
}

impl Tally {
    fn add(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.add_bytes(bytes);
    }

    fn add_bytes(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Sequentially consistent: of a worker that frees room and one that says that it waits for it, one sees the other.
    fn remove(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        self.requests.fetch_sub(1, Ordering::SeqCst);
    }

    fn load(&self) -> Outstanding {
        Outstanding { requests: self.requests.load(Ordering::SeqCst), bytes: self.bytes.load(Ordering::SeqCst) }
    }
}

/// A count of one thread, or the one that the threads of a device share.
#[derive(Debug)]
pub(crate) enum Occupancy {
    Own(Outstanding),
    Shared(Arc<Tally>),
}

impl Occupancy {
    pub(crate) fn new(shared: Option<Arc<Tally>>) -> Self {
        shared.map_or(Occupancy::Own(Outstanding::default()), Occupancy::Shared)
    }

    /// Counts a request that occupies `bytes`.
    pub(crate) fn add(&mut self, bytes: u64) {
        match self {
            Occupancy::Own(own) => (own.requests, own.bytes) = (own.requests + 1, own.bytes + bytes),
            Occupancy::Shared(tally) => tally.add(bytes),
        }
    }

    /// Counts more bytes of a request.
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        match self {
            Occupancy::Own(own) => own.bytes += bytes,
            Occupancy::Shared(tally) => tally.add_bytes(bytes),
        }
    }

    /// Counts the end of a request.
    pub(crate) fn remove(&mut self, bytes: u64) {
        match self {
            Occupancy::Own(own) => (own.requests, own.bytes) = (own.requests - 1, own.bytes - bytes),
            Occupancy::Shared(tally) => tally.remove(bytes),
        }
    }

    /// Returns what requests of all threads occupy.
    pub(crate) fn load(&self) -> Outstanding {
        match self {
            Occupancy::Own(own) => *own,
            Occupancy::Shared(tally) => tally.load(),
        }
    }
}
