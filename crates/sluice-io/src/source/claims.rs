//! Blocks of a source that writes have claimed, for volumes whose guests have smaller blocks than the disk.
//!
//! Such a write reads a block of the disk and writes it back with the guest's part replaced. Another write to the same
//! block in between would be undone. So each write claims its blocks first, and keeps them until the kernel has completed
//! its last operation: a [`Claim`] belongs to the request in the table of the device thread, from which only that removes
//! it. If the kernel never completes it, the claim stays for as long as the source is open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The claimed ranges of a source: start and end of each, in bytes. They do not overlap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<BTreeMap<u64, u64>>>);

/// A claimed range. Dropping it releases the range.
#[derive(Debug)]
pub(crate) struct Claim {
    claims: Claims,
    start: u64,
}

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

    fn taken(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.taken().remove(&self.start);
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
    }
}
