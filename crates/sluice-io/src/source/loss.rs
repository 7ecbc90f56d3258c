//! What a failed sync may have lost, and whom it concerns.
//!
//! The kernel says once that data did not reach the disk, and may have thrown them away. Whoever wrote them must hear of it:
//! from then on writes and flushes fail, so that nobody builds on what may be gone, until an operator accepts the loss.
//! Reads with direct I/O say what is on the disk and go on; those through the page cache may show what never got there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What may have been lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// Nothing that is known.
    None = 0,
    /// A forced write of this volume, which went to a block device by itself.
    OfVolume = 1,
    /// Anything that was written to the file or disk before.
    OfFile = 2,
}

impl Loss {
    /// What has failed, in words; `None`: nothing.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::OfVolume => Some("a forced write failed"),
            Self::OfFile => Some("a sync failed"),
        }
    }
}

/// The mark of a volume, which its device thread sets and others read. It stays with the open volume.
#[derive(Debug, Clone, Default)]
pub(super) struct Mark(Arc<AtomicU8>);

impl Mark {
    pub(super) fn get(&self) -> Loss {
        match self.0.load(Ordering::Relaxed) {
            0 => Loss::None,
            1 => Loss::OfVolume,
            _ => Loss::OfFile,
        }
    }

    pub(super) fn set(&self, loss: Loss) {
        self.0.store(loss as u8, Ordering::Relaxed);
    }
}
