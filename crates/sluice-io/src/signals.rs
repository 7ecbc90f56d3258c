//! Signals that come before their handlers are there.
//!
//! SIGHUP and SIGUSR1 end a process that does not handle them. A supervisor may send one right after it has started the daemon, so
//! the daemon blocks them first of all. The kernel keeps them, and delivers them to the handlers when they are released.

use std::ptr;

/// Blocks SIGHUP and SIGUSR1 for this thread and those that it starts.
pub fn hold() {
    mask(libc::SIG_BLOCK);
}

/// Unblocks them for this thread; those that have come meanwhile take effect.
pub fn release() {
    mask(libc::SIG_UNBLOCK);
}

fn mask(how: libc::c_int) {
    // SAFETY: an all-zero set is a valid value, which `sigemptyset` then makes empty. The calls take pointers to it that are valid,
    // and null for what is not asked. They fail only for wrong arguments, and concern the mask of this thread alone.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGHUP);
        libc::sigaddset(&raw mut set, libc::SIGUSR1);
        libc::pthread_sigmask(how, &raw const set, ptr::null_mut());
    }
}
