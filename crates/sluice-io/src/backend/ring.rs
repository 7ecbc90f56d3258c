//! The ring of a device thread: one io_uring for disk, sockets, wake-ups and time.
//!
//! One iteration of the loop costs one system call, and one more for every few operations of the disk, which need not wait for
//! the end of the iteration. [`Ring::submit_and_wait`] submits all pushed operations, and waits for a completion or for the
//! next timer, whichever is first. How many operations the kernel holds is counted, so that memory is given up only when none is left.
//!
//! Pushing cannot fail. When the kernel takes nothing (it is short of memory, or wants completions to be fetched first) or
//! takes a part, the rest stays in the submission queue, what finds no room there waits in a list behind it, and the next
//! turns try again. The list is as long as there are operations at most, which their owners bound.

use std::collections::VecDeque;
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
/// Worker threads beside those for the device's slots: for a sync of each file that covers flushes of several slots.
const WORKERS_MORE: u32 = 8;
/// How long to wait before the kernel is asked again when it took nothing and had nothing for us.
const RETRY: Duration = Duration::from_micros(200);

/// One io_uring and the count of what it works on.
pub struct Ring {
    ring: IoUring,
    in_kernel: u64,
    /// The kernel says in shared memory when it has something for us.
    tells: bool,
    /// Operations for the disk that were pushed and not submitted.
    pending: u32,
    /// What found no room in the submission queue, in order.
    overflow: VecDeque<squeue::Entry>,
    #[cfg(test)]
    pub(crate) faults: Faults,
}

/// What tests have the kernel do.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Faults {
    /// Submissions that are refused from now on, with EAGAIN and EBUSY in turn.
    pub(crate) refused: u32,
    /// Operations for the disk are held back, as if only the others had been taken.
    pub(crate) holding: bool,
    pub(crate) held: Vec<squeue::Entry>,
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
        Ok(Ring {
            ring,
            in_kernel: 0,
            tells,
            pending: 0,
            overflow: VecDeque::new(),
            #[cfg(test)]
            faults: Faults::default(),
        })
    }

    /// Lets the kernel use as many worker threads as the device has slots. Operations that may block (a discard or zeroes on a
    /// file, a sync, everything on a network file system) run on these threads, which are few by default: then a VM whose
    /// operations are slow holds up the syncs of others. A kernel that cannot set it (before 5.15) keeps its default.
    pub(crate) fn allow_workers(&self, depth: u32) {
        let _ = self.ring.submitter().register_iowq_max_workers(&mut [depth + WORKERS_MORE, 0]);
    }

    /// Queues an operation for the next turn.
    ///
    /// # Safety
    /// Every buffer, descriptor and structure that `entry` refers to stays valid until the event with its user data has
    /// come.
    pub unsafe fn push(&mut self, entry: squeue::Entry) {
        self.in_kernel += 1;
        // SAFETY: the caller's promise.
        if self.overflow.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.overflow.push_back(entry);
        // If it does not work now, the next turn tries again.
        let _ = self.submit();
        self.refill();
    }

    /// Queues an operation for the disk, which goes there with a few others, at the latest with the next turn.
    ///
    /// # Safety
    /// As [`Ring::push`].
    pub unsafe fn push_disk_op(&mut self, entry: squeue::Entry) {
        #[cfg(test)]
        if self.faults.holding {
            return self.faults.held.push(entry);
        }
        // SAFETY: the caller's promise.
        unsafe { self.push(entry) };
        self.pending += 1;
        if self.pending >= BATCH {
            self.pending = 0;
            let _ = self.submit();
        }
    }

    /// Moves on what has overflowed, as far as there is room.
    fn refill(&mut self) {
        while let Some(entry) = self.overflow.front() {
            // SAFETY: who pushed it has promised that all it refers to stays until its event has come.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.overflow.pop_front();
        }
    }

    fn submit(&mut self) -> io::Result<usize> {
        #[cfg(test)]
        self.refuse()?;
        self.ring.submit()
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
        !pending && self.overflow.is_empty() && self.tells && self.ring.completion().is_empty()
    }

    /// Submits, waits for at least one event or until `patience` is over (`None`: for ever), and appends the events. Comes
    /// back early if the kernel has not taken all that was pushed.
    pub fn submit_and_wait(&mut self, patience: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        #[cfg(test)]
        self.release_held();
        if patience == Some(Duration::ZERO) && self.is_quiet() {
            return Ok(());
        }
        self.pending = 0;
        // More than the queue has entries goes in several calls.
        while !self.overflow.is_empty() && self.submit().is_ok_and(|taken| taken > 0) {
            self.refill();
        }
        let patience = if self.overflow.is_empty() { patience } else { Some(Duration::ZERO) };
        let mut stuck = false;
        if let Err(error) = self.enter(patience) {
            match error.raw_os_error() {
                // Time is over, or a signal came.
                Some(libc::ETIME | libc::EINTR) => {}
                // It has no memory for more, or the completion queue must be emptied first.
                Some(libc::EBUSY | libc::EAGAIN) => stuck = true,
                _ => return Err(error),
            }
        }
        let completions = self.ring.completion();
        stuck &= completions.is_empty();
        for entry in completions {
            self.in_kernel -= 1;
            events.push(Event { user_data: entry.user_data(), result: entry.result() });
        }
        if stuck {
            std::thread::sleep(RETRY);
        }
        Ok(())
    }

    fn enter(&mut self, patience: Option<Duration>) -> io::Result<usize> {
        #[cfg(test)]
        self.refuse()?;
        match patience {
            Some(Duration::ZERO) => self.ring.submitter().submit_with_args(0, &types::SubmitArgs::new()),
            Some(patience) => {
                let time = types::Timespec::from(patience);
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
            None => self.ring.submit_and_wait(1),
        }
    }
}

#[cfg(test)]
impl Ring {
    fn refuse(&mut self) -> io::Result<()> {
        if self.faults.refused == 0 {
            return Ok(());
        }
        self.faults.refused -= 1;
        let errno = if self.faults.refused.is_multiple_of(2) { libc::EAGAIN } else { libc::EBUSY };
        Err(io::Error::from_raw_os_error(errno))
    }

    fn release_held(&mut self) {
        if !self.faults.holding {
            for entry in std::mem::take(&mut self.faults.held) {
                // SAFETY: who pushed it has promised that all it refers to stays until its event has come.
                unsafe { self.push(entry) };
            }
        }
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
    use io_uring::opcode;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_the_kernel_does_not_take_at_once_is_done_once_and_in_order() {
        let mut ring = Ring::new().unwrap();
        for refused in [0, 1, 2, 50] {
            ring.faults.refused = refused;
            let count = u64::from(ENTRIES) * 3 + 7;
            for user_data in 0..count {
                // SAFETY: an operation that does nothing refers to nothing.
                unsafe { ring.push(opcode::Nop::new().build().user_data(user_data)) };
            }
            assert_eq!(ring.in_kernel(), count);
            let mut events = Vec::new();
            while ring.in_kernel() > 0 {
                ring.submit_and_wait(None, &mut events).unwrap();
            }
            let done: Vec<u64> = events.iter().map(|event| event.user_data).collect();
            assert_eq!(done, (0..count).collect::<Vec<_>>(), "{refused} refused");
        }
    }

    #[test]
    fn a_submission_that_stops_in_the_middle_is_taken_up_again() {
        let mut ring = Ring::new().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        // The kernel stops behind an operation that it finds wrong.
        let wrong = types::FsyncFlags::from_bits_retain(1 << 31);
        for user_data in 0..30 {
            let entry = match user_data % 3 {
                0 => opcode::Fsync::new(types::Fd(null.as_raw_fd())).flags(wrong).build(),
                _ => opcode::Nop::new().build(),
            };
            // SAFETY: the file is open to the end, and nothing else is referred to.
            unsafe { ring.push(entry.user_data(user_data)) };
        }
        let mut events = Vec::new();
        while ring.in_kernel() > 0 {
            ring.submit_and_wait(None, &mut events).unwrap();
        }
        let results: Vec<(u64, i32)> = events.iter().map(|event| (event.user_data, event.result)).collect();
        let expected = (0..30).map(|n| (n, if n % 3 == 0 { -libc::EINVAL } else { 0 }));
        assert_eq!(results, expected.collect::<Vec<_>>());
    }

    #[test]
    fn too_little_locked_memory_was_cannot_allocate_memory() {
        let said = explain(io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(said.contains("raise LimitMEMLOCK"), "{said}");
        assert_eq!(explain(io::Error::from_raw_os_error(libc::EPERM)).raw_os_error(), Some(libc::EPERM));
    }
}
