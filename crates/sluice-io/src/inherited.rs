//! Descriptors that the service manager has kept for this process while it was down, and passes to it at its start.
//!
//! The protocol is that of systemd: `LISTEN_FDS` descriptors from number 3 on, for the process `LISTEN_PID`, with their names in
//! `LISTEN_FDNAMES`, separated by colons.

use std::env;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// Maximum number of them.
const COUNT_MAX: RawFd = 1 << 16;

/// The descriptors with their names, from the first look on.
static HELD: Mutex<Option<Vec<(String, OwnedFd)>>> = Mutex::new(None);

/// Keeps the descriptors from programs that this process starts, which would inherit them.
pub fn hold() {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(passed);
}

/// Returns the descriptors with their names. Later calls return none.
#[must_use]
pub fn take() -> Vec<(String, OwnedFd)> {
    std::mem::take(HELD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(passed))
}

fn passed() -> Vec<(String, OwnedFd)> {
    let number = |key: &str| env::var(key).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let count = RawFd::try_from(number("LISTEN_FDS").unwrap_or(0)).unwrap_or(0).min(COUNT_MAX);
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    (FIRST..FIRST + count).zip(names).filter_map(|(fd, name)| Some((name, own(fd)?))).collect()
}

/// Takes a descriptor, if it is open.
fn own(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: by the protocol nothing else of this process owns the descriptor, and the caller takes each of them once. One that
    // is not open is given up without being closed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if fcntl_getfd(&fd).and_then(|flags| fcntl_setfd(&fd, flags | FdFlags::CLOEXEC)).is_ok() {
        return Some(fd);
    }
    std::mem::forget(fd);
    None
}
