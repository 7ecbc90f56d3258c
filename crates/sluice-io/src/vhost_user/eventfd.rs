//! Whether a descriptor is an eventfd, which only the kernel knows.
//!
//! The check uses a separate io_uring, which accepts an eventfd for notifications of completions and nothing else. It
//! needs no /proc and has no effect on the descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};

static ASKED: Mutex<Option<IoUring>> = Mutex::new(None);

/// Makes the ring, for a process that may make none later.
///
/// # Errors
/// If the ring cannot be created.
pub(crate) fn prepare() -> io::Result<()> {
    with_ring(|_| Ok(()))
}

/// Whether a descriptor is an eventfd.
///
/// # Errors
/// If the ring cannot be created.
pub(super) fn is_eventfd(descriptor: impl AsFd) -> io::Result<bool> {
    with_ring(|ring| match ring.submitter().register_eventfd(descriptor.as_fd().as_raw_fd()) {
        Ok(()) => ring.submitter().unregister_eventfd().map(|()| true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EBADF)) => Ok(false),
        Err(error) => Err(error),
    })
}

fn with_ring<T>(ask: impl FnOnce(&IoUring) -> io::Result<T>) -> io::Result<T> {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *asked {
        Some(ring) => ask(ring),
        none => ask(none.insert(make()?)),
    }
}

/// Makes a ring that answers this question alone.
fn make() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(1)?;
    let questions = QUESTIONS.map(Restriction::register_op);
    // It gets no operations.
    let mut all: Vec<Restriction> = questions.into_iter().chain([Restriction::sqe_op(opcode::Nop::CODE)]).collect();
    ring.submitter().register_restrictions(&mut all)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// `IORING_REGISTER_EVENTFD` and `IORING_UNREGISTER_EVENTFD`, for which the library has no names.
const QUESTIONS: [u8; 2] = [4, 5];
