//! Whether a descriptor is an eventfd, which only the kernel knows.
//!
//! The check uses a separate io_uring, which accepts an eventfd for notifications of completions and nothing else. It
//! needs no /proc and has no effect on the descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use io_uring::IoUring;

/// Whether a descriptor is an eventfd.
///
/// # Errors
/// If the ring cannot be created.
pub(super) fn is_eventfd(descriptor: impl AsFd) -> io::Result<bool> {
    static ASKED: Mutex<Option<IoUring>> = Mutex::new(None);
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let ring = match &mut *asked {
        Some(ring) => ring,
        none => none.insert(IoUring::new(1)?),
    };
    match ring.submitter().register_eventfd(descriptor.as_fd().as_raw_fd()) {
        Ok(()) => ring.submitter().unregister_eventfd().map(|()| true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EBADF)) => Ok(false),
        Err(error) => Err(error),
    }
}
