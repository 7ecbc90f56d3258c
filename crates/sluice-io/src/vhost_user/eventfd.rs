//! Whether a descriptor is an eventfd, which the kernel alone knows.
//!
//! It is asked through a ring of its own: a ring takes eventfds to be rung at completions, and nothing else. That needs no
//! /proc, and does nothing to the descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use io_uring::IoUring;

/// Whether it is one.
///
/// # Errors
/// If the kernel cannot be asked.
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
