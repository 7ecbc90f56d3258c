//! Blocks of a source that writes have claimed, for volumes whose guests have smaller blocks than the disk.
//!
//! Such a write reads a block of the disk and writes it back with the guest's part replaced. Another write to the same
//! block in between would be undone. So each write claims its blocks first, and keeps them until the kernel has completed
//! its last operation: a [`Claim`] belongs to the request in the table of the device thread, from which only that removes
//! it. If the kernel never completes it, the claim stays for as long as the source is open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The claimed ranges of a source, shared by the threads of its device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Start and end of each range, in bytes. They do not overlap.
    taken: Mutex<BTreeMap<u64, u64>>,
    /// Requests that wait for a claim.
    waiting: AtomicU32,
}

/// A claimed range. Dropping it releases the range.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Claims,
    start: u64,
}

/// A request that waits for a claim. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct Waiting(Claims);

impl Claims {
    /// Claims a range in bytes; `None` if a part of it is claimed.
    pub(crate) fn claim(&self, range: &Range<u64>) -> Option<Claim> {
        let mut taken = self.taken();
        let before = taken.range(..range.end).next_back();
        if before.is_some_and(|(_, end)| *end > range.start) {
            return None;
        }
        taken.insert(range.start, range.end);
        Some(Claim { claims: self.clone(), start: range.start })
    }

    /// Counts a request that waits for a claim. To be called before the last attempt to claim: then either that succeeds, or
    /// the release of the range finds the request counted.
    pub(crate) fn wait(&self) -> Waiting {
        self.0.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self.clone())
    }

    /// Whether requests wait, of any thread.
    pub(crate) fn are_awaited(&self) -> bool {
        self.0.waiting.load(Ordering::SeqCst) > 0
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.taken().remove(&self.start);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_claimed_once_until_it_is_released() {
        let claims = Claims::default();
        let middle = claims.claim(&(4096..12288)).unwrap();
        for overlapping in [0..4097, 4096..8192, 8192..12288, 12287..16384, 0..16384] {
            assert!(claims.claim(&overlapping).is_none(), "{overlapping:?}");
        }
        let (_before, _after) = (claims.claim(&(0..4096)).unwrap(), claims.clone().claim(&(12288..16384)).unwrap());
        drop(middle);
        assert!(claims.claim(&(4096..12288)).is_some());
        let waiting = claims.wait();
        assert!(claims.are_awaited());
        drop(waiting);
        assert!(!claims.are_awaited());
    }
}
