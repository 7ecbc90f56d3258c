//! The ring of a device thread: one io_uring for disk, sockets, wake-ups and time.
//!
//! One turn of the loop costs one system call, and one more for every few operations of the disk, which need not wait for the
//! end of the turn: [`Ring::turn`] submits all that was pushed, and waits for a completion or for the next timer, whichever is
//! first. How many operations the kernel holds is counted, so that memory is
//! given up only when none is left.

use std::io;
use std::time::Duration;

use io_uring::{IoUring, squeue, types};

/// Entries of the submission queue; more pushes in one turn are submitted early.
const ENTRIES: u32 = 512;
/// Operations for the disk that are submitted together: a larger batch keeps it waiting while the rest is prepared, which
/// shows as soon as all that a client has in flight completes at once and comes back at once.
const BATCH: u32 = 4;
/// Entries of the completion queue.
const COMPLETIONS: u32 = 8192;

/// One io_uring and the count of what it works on.
pub struct Ring {
    ring: IoUring,
    in_kernel: u64,
    /// The kernel says in shared memory when it has something for us.
    tells: bool,
    /// Operations for the disk that were pushed and not submitted.
    pending: u32,
}

/// An operation that is over.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// As given with the operation.
    pub user_data: u64,
    /// Bytes, or a negated errno.
    pub result: i32,
}

impl Ring {
    /// A new ring for the calling thread, with the cheapest kind of completion that the kernel has.
    pub fn new() -> io::Result<Self> {
        let mut modern = IoUring::builder();
        modern.setup_cqsize(COMPLETIONS).setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let mut plain = IoUring::builder();
        plain.setup_cqsize(COMPLETIONS);
        let (ring, tells) = match modern.build(ENTRIES) {
            Ok(ring) => (ring, true),
            Err(_) => (plain.build(ENTRIES).map_err(explain)?, false),
        };
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::other("The kernel's io_uring is too old: Linux 5.11 or newer is needed"));
        }
        Ok(Ring { ring, in_kernel: 0, tells, pending: 0 })
    }

    /// Queues an operation for the next turn.
    ///
    /// # Safety
    /// Every buffer, descriptor and structure that `entry` refers to stays valid until the event with its user data has
    /// come.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        self.in_kernel += 1;
        Ok(())
    }

    /// Queues an operation for the disk, which goes there with a few others, at the latest with the next turn.
    ///
    /// # Safety
    /// As [`Ring::push`].
    pub unsafe fn push_work(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.push(entry)? };
        self.pending += 1;
        if self.pending >= BATCH {
            self.pending = 0;
            // If it does not work now, the next turn tries again and reports it.
            let _ = self.ring.submit();
        }
        Ok(())
    }

    /// Operations whose events are still to come.
    #[must_use]
    pub fn in_kernel(&self) -> u64 {
        self.in_kernel
    }

    /// Whether a turn without waiting would find nothing to do. Costs no system call.
    fn is_quiet(&mut self) -> bool {
        let submissions = self.ring.submission();
        let pending = !submissions.is_empty() || submissions.taskrun() || submissions.cq_overflow();
        drop(submissions);
        !pending && self.tells && self.ring.completion().is_empty()
    }

    /// Submits, waits for at least one event or until `patience` is over (`None`: for ever), and appends the events.
    pub fn turn(&mut self, patience: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        if patience == Some(Duration::ZERO) && self.is_quiet() {
            return Ok(());
        }
        self.pending = 0;
        let submitted = match patience {
            Some(Duration::ZERO) => self.ring.submitter().submit_with_args(0, &types::SubmitArgs::new()),
            Some(patience) => {
                let time = types::Timespec::from(patience);
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
            None => self.ring.submit_and_wait(1),
        };
        match submitted {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                // Time is over, a signal came, or the completion queue must be emptied first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => return Err(error),
            },
        }
        let completions = self.ring.completion();
        for entry in completions {
            self.in_kernel -= 1;
            events.push(Event { user_data: entry.user_data(), result: entry.result() });
        }
        Ok(())
    }
}

/// Of an error that says nothing of what to change.
fn explain(error: io::Error) -> io::Error {
    if error.raw_os_error() != Some(libc::ENOMEM) {
        return error;
    }
    let advice = "The kernel lets this user lock too little memory for io_uring; raise LimitMEMLOCK (ulimit -l)";
    io::Error::new(io::ErrorKind::OutOfMemory, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_locked_memory_was_cannot_allocate_memory() {
        let said = explain(io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(said.contains("raise LimitMEMLOCK"), "{said}");
        assert_eq!(explain(io::Error::from_raw_os_error(libc::EPERM)).raw_os_error(), Some(libc::EPERM));
    }
}
