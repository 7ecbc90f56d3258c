//! Signals that arrive before their handlers are installed.
//!
//! SIGHUP and SIGUSR1 end a process that does not handle them. A service manager may send one right after it has
//! started the daemon, so the daemon blocks them first. The kernel keeps them, and delivers them when they are
//! unblocked.

use std::ptr;

/// Blocks SIGHUP and SIGUSR1 for this thread and the threads that it starts.
pub fn hold() {
    mask(libc::SIG_BLOCK);
}

/// Takes from them, and from those of a terminal, that they end this process, for one that ends with another. Programs that it starts have the
/// default.
pub fn ignore() {
    for signal in [libc::SIGHUP, libc::SIGUSR1, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler does nothing, and the call that it interrupts is restarted.
        unsafe { libc::signal(signal, nothing as *const () as usize) };
    }
    release();
}

extern "C" fn nothing(_signal: i32) {}

/// Unblocks them for this thread. Signals that arrived in the meantime are delivered.
pub fn release() {
    mask(libc::SIG_UNBLOCK);
}

fn mask(how: libc::c_int) {
    // SAFETY: an all-zero set is a valid value, which `sigemptyset` then makes empty. The pointers are valid for the
    // calls, or null for results that are not needed. The calls fail only for wrong arguments, and affect only the
    // signal mask of this thread.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGHUP);
        libc::sigaddset(&raw mut set, libc::SIGUSR1);
        libc::pthread_sigmask(how, &raw const set, ptr::null_mut());
    }
}
