//! What the requests of a VM, or of one of its volumes, occupy of the window: counted by one thread, or by several together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of a VM's window that requests occupy, from their arrival at a frontend to their reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// [`Outstanding`] of all threads, in one word that each changes with single atomic operations: requests above, bytes below.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

/// Bits for the bytes. A VM has at most 65,536 requests and one for each thread.
const BYTES_BITS: u32 = 44;
/// Bytes up to which a window has room. One request more, of any length, still fits into the word.
pub(crate) const BYTES_MAX: u64 = 1 << (BYTES_BITS - 1);

impl Tally {
    fn add(&self, more: Outstanding) {
        self.0.fetch_add(pack(more), Ordering::Relaxed);
    }

    /// Sequentially consistent: of a worker that frees room and one that says that it waits for it, one sees the other.
    fn remove(&self, less: Outstanding) {
        self.0.fetch_sub(pack(less), Ordering::SeqCst);
    }

    fn load(&self) -> Outstanding {
        let word = self.0.load(Ordering::SeqCst);
        Outstanding { requests: (word >> BYTES_BITS) as u32, bytes: word & ((1 << BYTES_BITS) - 1) }
    }
}

fn pack(outstanding: Outstanding) -> u64 {
    u64::from(outstanding.requests) << BYTES_BITS | outstanding.bytes
}

/// A count that the threads of a device share, and the part of it that this thread has freed and not given back. Its next
/// requests take that part first. Otherwise threads that serve the same VM would take the word away from each other twice for
/// each request.
#[derive(Debug)]
pub(crate) struct Shared {
    tally: Arc<Tally>,
    spare: Outstanding,
}

/// A count of one thread, or the one that the threads of a device share.
#[derive(Debug)]
pub(crate) enum Occupancy {
    Own(Outstanding),
    Shared(Shared),
}

impl Occupancy {
    pub(crate) fn new(shared: Option<Arc<Tally>>) -> Self {
        let share = |tally| Occupancy::Shared(Shared { tally, spare: Outstanding::default() });
        shared.map_or(Occupancy::Own(Outstanding::default()), share)
    }

    /// Counts a request that occupies `bytes`.
    pub(crate) fn add(&mut self, bytes: u64) {
        match self {
            Occupancy::Own(own) => (own.requests, own.bytes) = (own.requests + 1, own.bytes + bytes),
            Occupancy::Shared(Shared { spare, .. }) if spare.requests > 0 && spare.bytes >= bytes => {
                (spare.requests, spare.bytes) = (spare.requests - 1, spare.bytes - bytes);
            }
            Occupancy::Shared(Shared { tally, .. }) => tally.add(Outstanding { requests: 1, bytes }),
        }
    }

    /// Counts more bytes of a request.
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        match self {
            Occupancy::Own(own) => own.bytes += bytes,
            Occupancy::Shared(Shared { tally, .. }) => tally.add(Outstanding { requests: 0, bytes }),
        }
    }

    /// Counts the end of a request. A shared count stays as it is until [`Occupancy::give_back`].
    pub(crate) fn remove(&mut self, bytes: u64) {
        match self {
            Occupancy::Own(own) => (own.requests, own.bytes) = (own.requests - 1, own.bytes - bytes),
            Occupancy::Shared(Shared { spare, .. }) => {
                (spare.requests, spare.bytes) = (spare.requests + 1, spare.bytes + bytes);
            }
        }
    }

    /// Returns what this thread has freed and not given back.
    pub(crate) fn spare(&self) -> Outstanding {
        match self {
            Occupancy::Own(_) => Outstanding::default(),
            Occupancy::Shared(Shared { spare, .. }) => *spare,
        }
    }

    /// Gives back what this thread has freed.
    pub(crate) fn give_back(&mut self) {
        if let Occupancy::Shared(Shared { tally, spare }) = self
            && *spare != Outstanding::default()
        {
            tally.remove(std::mem::take(spare));
        }
    }

    /// Returns what requests of all threads occupy, with what other threads have not given back.
    pub(crate) fn load(&self) -> Outstanding {
        match self {
            Occupancy::Own(own) => *own,
            Occupancy::Shared(Shared { tally, spare }) => {
                let all = tally.load();
                Outstanding { requests: all.requests - spare.requests, bytes: all.bytes - spare.bytes }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_has_freed_is_its_own_until_it_gives_it_back() {
        let tally = Arc::new(Tally::default());
        let [mut own, mut other] = [(); 2].map(|()| Occupancy::new(Some(Arc::clone(&tally))));
        (0..3).for_each(|_| own.add(4096));
        other.add(BYTES_MAX);
        own.remove(4096);
        let loaded = |of: &Occupancy| (of.load().requests, of.load().bytes - BYTES_MAX);
        assert_eq!((loaded(&own), loaded(&other)), ((3, 2 * 4096), (4, 3 * 4096)));
        own.add(4096);
        assert_eq!((loaded(&other), own.spare()), ((4, 3 * 4096), Outstanding::default()), "it has taken its own part");
        own.remove(4096);
        own.add(8192);
        assert_eq!(loaded(&own), (4, 4 * 4096), "a part that is too small is left");
        own.give_back();
        own.give_back();
        assert_eq!((loaded(&own), loaded(&other)), ((4, 4 * 4096), (4, 4 * 4096)));
    }
}
