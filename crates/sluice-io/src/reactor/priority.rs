//! Real-time priority of device threads, so that busy processes of the host do not delay them.
//!
//! A thread that wakes up late wastes time of its device: the time slices of other processes are milliseconds long, requests and frames are not.
//! With real-time priority it gets a CPU at once. Such a thread never polls: it would take the CPU from everything else for nothing. Threads of
//! the same priority take turns (SCHED_RR), so that one with much work does not end the others. The lowest priority is enough, and the
//! threads that a device thread starts do not inherit it.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

/// Priority of the device threads of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Priority {
    Normal,
    RealTime,
    /// Real-time priority was wanted, and the kernel did not allow it.
    Refused,
}

/// Settings that allow real-time priority, for messages.
pub const FIX: &str =
    "LimitRTPRIO=1 and RestrictRealtime=no in the unit (contrib/systemd/real-time.conf), or CAP_SYS_NICE";

static OF_THREADS: AtomicU8 = AtomicU8::new(Priority::Normal as u8);

/// Gives real-time priority to device threads that start from now on.
///
/// # Errors
/// The kernel does not allow it: they start with normal priority.
pub fn use_real_time() -> io::Result<()> {
    let tried = thread::scope(|scope| scope.spawn(set_real_time).join());
    let tried = tried.unwrap_or_else(|_| Err(io::Error::other("The thread that tried to set the priority panicked")));
    let priority = if tried.is_ok() { Priority::RealTime } else { Priority::Refused };
    OF_THREADS.store(priority as u8, Ordering::Relaxed);
    tried
}

impl Priority {
    /// Name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Priority::Normal => "off",
            Priority::RealTime => "on",
            Priority::Refused => "refused",
        }
    }
}

/// Returns the priority of the device threads of this process.
#[must_use]
pub fn of_threads() -> Priority {
    match OF_THREADS.load(Ordering::Relaxed) {
        value if value == Priority::RealTime as u8 => Priority::RealTime,
        value if value == Priority::Refused as u8 => Priority::Refused,
        _ => Priority::Normal,
    }
}

/// Gives this device thread its priority.
pub(crate) fn start(device: &str) {
    if of_threads() == Priority::RealTime
        && let Err(error) = set_real_time()
    {
        tracing::warn!(device, %error, "The device thread has no real-time priority");
    }
}

fn set_real_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads the structure, and affects only this thread.
    let result =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const parameters) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
