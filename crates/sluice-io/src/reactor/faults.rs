//! Faults that tests inject into the restart of a device thread.

use std::cell::Cell;
use std::io;

thread_local! {
    /// Number of restarts of this thread's device that will fail.
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

pub(crate) fn refuse_restarts(times: u32) {
    REFUSED.set(times);
}

pub(crate) fn restart_is_allowed() -> io::Result<()> {
    let left = REFUSED.get();
    REFUSED.set(left.saturating_sub(1));
    if left == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}
