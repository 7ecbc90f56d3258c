//! Descriptors that the service manager has kept for this process while it was down, and passes to it at its start.
//!
//! The protocol is that of systemd: `LISTEN_FDS` descriptors from number 3 on, for the process `LISTEN_PID`, with their names in
//! `LISTEN_FDNAMES`, separated by colons.

use std::env;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// Maximum number of them.
const COUNT_MAX: RawFd = 1 << 16;

/// Returns the descriptors with their names. Later calls return none. Until then other programs would inherit them.
#[must_use]
pub fn take() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |key: &str| env::var(key).ok()?.parse::<u32>().ok();
    if TAKEN.swap(true, Ordering::Relaxed) || number("LISTEN_PID") != Some(std::process::id()) {
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
