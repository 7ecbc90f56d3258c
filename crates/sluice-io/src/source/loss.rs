//! Data that a failed sync may have lost, and the volumes that it affects.
//!
//! The kernel reports once that data did not reach the disk, and may have dropped it. From then on writes and flushes
//! fail, so that no guest relies on lost data, until an operator accepts the loss. Reads with direct I/O return what is
//! on the disk and continue. Reads through the page cache may return data that never reached the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The data that may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// None.
    None = 0,
    /// A forced write of this volume to a block device.
    OfVolume = 1,
    /// Anything that was written to the file or disk before.
    OfFile = 2,
    /// Writes that another server has confirmed, and that were not flushed before the connection was lost: that server may have
    /// restarted.
    OfServer = 3,
}

impl Loss {
    /// Returns what has failed, as text; `None` if nothing has.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::OfVolume => Some("a forced write failed"),
            Self::OfFile => Some("a sync failed"),
            Self::OfServer => Some("its server was away"),
        }
    }
}

/// The loss of a volume, which its device thread sets and other threads read. It stays with the open volume.
#[derive(Debug, Clone, Default)]
pub(super) struct Mark(Arc<AtomicU8>);

impl Mark {
    pub(super) fn get(&self) -> Loss {
        match self.0.load(Ordering::Relaxed) {
            0 => Loss::None,
            1 => Loss::OfVolume,
            2 => Loss::OfFile,
            _ => Loss::OfServer,
        }
    }

    pub(super) fn set(&self, loss: Loss) {
        self.0.store(loss as u8, Ordering::Relaxed);
    }
}

/// Whether a forced write that failed with `errno` may have lost earlier acknowledged writes, because the disk, its
/// transport or its file system failed. The block layer uses many numbers for that, so all count except those that
/// reject only the write itself.
pub(crate) fn may_lose_earlier_writes(errno: i32) -> bool {
    const WRITE_REJECTED: [i32; 10] = [
        libc::EINVAL,
        libc::EOPNOTSUPP,
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EFBIG,
        libc::EPERM,
        libc::ENOMEM,
        libc::EAGAIN,
        libc::EINTR,
        libc::ECANCELED,
    ];
    !WRITE_REJECTED.contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_write_that_failed_on_a_broken_path_was_no_loss_as_its_error_was_not_eio() {
        let of_the_disk = [libc::EIO, libc::ENOLINK, libc::ETIMEDOUT, libc::EREMOTEIO, libc::ENODATA, libc::EILSEQ];
        let of_the_file_system = [libc::EROFS, libc::ESHUTDOWN, libc::ENODEV, libc::ENXIO];
        for errno in of_the_disk.into_iter().chain(of_the_file_system) {
            assert!(may_lose_earlier_writes(errno), "{errno}");
        }
        for errno in [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            assert!(!may_lose_earlier_writes(errno), "{errno}");
        }
    }
}
