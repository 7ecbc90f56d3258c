//! The io_uring of a device thread, for disk, sockets, wake-ups and timers.
//!
//! One iteration of the loop costs one system call, and one more for every few disk operations, which are submitted
//! before the end of the iteration. [`Ring::submit_and_wait`] submits all pushed operations, and waits for a completion
//! or the next timer. The operations in the kernel are counted, so that memory is freed only when none is left.
//!
//! Pushing cannot fail. If the kernel accepts nothing (it is short of memory, or completions must be read first) or
//! only a part, the rest stays in the submission queue. Operations that do not fit there wait in an overflow list, and
//! the next iterations submit them. The owners of the operations bound their number, and so the length of the list.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use io_uring::{IoUring, squeue, types};

use super::rings;

/// Disk operations per submission. A larger batch lets the disk wait while the rest is prepared, which costs throughput
/// when all requests of a client complete together and are resubmitted together.
const BATCH: u32 = 4;
/// Worker threads in addition to those for the device's slots: for a sync of each file, which covers flushes of several
/// slots.
const WORKERS_MORE: u32 = 8;
/// Pause before the next attempt if the kernel accepted nothing and there were no completions.
const RETRY: Duration = Duration::from_micros(200);

/// User data of operations whose completions are dropped.
const SILENT: u64 = u64::MAX;

/// An io_uring, with a count of the operations in the kernel.
pub struct Ring {
    /// Taken when this is dropped.
    ring: ManuallyDrop<IoUring>,
    in_kernel: u64,
    /// Number of operations that were ever pushed.
    pushed: u64,
    /// Whether the kernel reports pending work in shared memory.
    reports_work: bool,
    /// Disk operations that were pushed and not submitted.
    pending: u32,
    /// Operations that did not fit into the submission queue, in order.
    overflow: VecDeque<squeue::Entry>,
    #[cfg(test)]
    pub(crate) faults: Faults,
}

/// Faults of the kernel that tests inject.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Faults {
    /// Number of submissions that fail from now on, with EAGAIN and EBUSY alternately.
    pub(crate) refused: u32,
    /// Whether disk operations are held back, as if the kernel had accepted only the others.
    pub(crate) holding: bool,
    pub(crate) held: Vec<squeue::Entry>,
}

/// A completed operation.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// User data of the operation.
    pub user_data: u64,
    /// Number of bytes, or a negated errno.
    pub result: i32,
}

impl Ring {
    /// Takes a ring for the calling thread.
    ///
    /// # Errors
    /// If the kernel is too old, or refuses the memory; in a sealed process, if its rings are used up.
    pub fn new() -> io::Result<Self> {
        let ring = rings::take()?;
        // With this mode comes the flag by which the kernel reports pending work in shared memory.
        let reports_work = ring.params().is_setup_single_issuer();
        Ok(Ring {
            ring: ManuallyDrop::new(ring),
            in_kernel: 0,
            pushed: 0,
            reports_work,
            pending: 0,
            overflow: VecDeque::new(),
            #[cfg(test)]
            faults: Faults::default(),
        })
    }

    /// Allows the kernel as many worker threads as the device has slots. Operations that may block (a discard or
    /// zeroing on a file, a sync, everything on a network file system) run on these threads. With the small default
    /// number, slow operations of one VM delay the syncs of others. A kernel that cannot set it (before 5.15) keeps its
    /// default.
    pub(crate) fn allow_workers(&self, depth: u32) {
        let _ = self.ring.submitter().register_iowq_max_workers(&mut [depth + WORKERS_MORE, 0]);
    }

    /// Queues an operation for the next submission.
    ///
    /// # Safety
    /// Every buffer, descriptor and structure that `entry` refers to stays valid until the event with its user data has
    /// arrived.
    pub unsafe fn push(&mut self, entry: squeue::Entry) {
        self.in_kernel += 1;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(entry) };
    }

    /// Queues an operation that the kernel carries out while it is submitted, and whose result is not needed: it causes no
    /// event. Returns its position, for [`Ring::is_submitted`].
    ///
    /// # Safety
    /// As [`Ring::push`], until the operation is submitted.
    pub(crate) unsafe fn push_silent(&mut self, entry: squeue::Entry) -> u64 {
        let position = self.pushed;
        // A kernel that does not know the flag refuses operations with it.
        let skips = self.ring.params().is_feature_skip_cqe_on_success();
        let flags = if skips { squeue::Flags::SKIP_SUCCESS } else { squeue::Flags::empty() };
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(entry.flags(flags).user_data(SILENT)) };
        position
    }

    /// Whether the kernel has accepted the operation at this position. It does so in order.
    pub(crate) fn is_submitted(&mut self, position: u64) -> bool {
        let left = self.ring.submission().len() + self.overflow.len();
        position + (left as u64) < self.pushed
    }

    /// Whether no operation is in the kernel or on its way there.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.in_kernel == 0 && self.overflow.is_empty() && self.ring.submission().is_empty()
    }

    /// Appends an operation to the submission queue, or to the overflow list.
    ///
    /// # Safety
    /// As [`Ring::push`].
    unsafe fn enqueue(&mut self, entry: squeue::Entry) {
        self.pushed += 1;
        // SAFETY: the caller's promise.
        if self.overflow.is_empty() && unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        self.overflow.push_back(entry);
        // If it fails, the next iteration tries again.
        let _ = self.submit();
        self.refill();
    }

    /// Queues a disk operation, which is submitted together with a few others, at the latest in this iteration.
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

    /// Moves operations from the overflow list to the submission queue, while there is room.
    fn refill(&mut self) {
        while let Some(entry) = self.overflow.front() {
            // SAFETY: the caller of `push` promised that everything it refers to stays until its event has arrived.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.overflow.pop_front();
        }
    }

    /// Submits what was pushed. Returns the number of operations that the kernel has accepted.
    pub(crate) fn submit(&mut self) -> io::Result<usize> {
        #[cfg(test)]
        self.refuse()?;
        self.ring.submit()
    }

    /// Returns the number of operations in the kernel.
    #[must_use]
    pub fn in_kernel(&self) -> u64 {
        self.in_kernel
    }

    /// Whether an iteration without waiting would find nothing to do. Needs no system call.
    fn is_idle(&mut self) -> bool {
        let submissions = self.ring.submission();
        let pending = !submissions.is_empty() || submissions.taskrun() || submissions.cq_overflow();
        drop(submissions);
        !pending && self.overflow.is_empty() && self.reports_work && self.ring.completion().is_empty()
    }

    /// Submits the pushed operations, waits for at least one event or until `timeout` (`None`: without limit), and
    /// appends the events. Returns early if the kernel has not accepted all operations. Returns whether it has called the
    /// kernel: if not, no time has passed.
    ///
    /// # Errors
    /// If the ring cannot be used any more.
    pub fn submit_and_wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<bool> {
        #[cfg(test)]
        self.release_held();
        if timeout == Some(Duration::ZERO) && self.is_idle() {
            return Ok(false);
        }
        self.pending = 0;
        // Operations that exceed the queue are submitted by several calls.
        while !self.overflow.is_empty() && self.submit().is_ok_and(|taken| taken > 0) {
            self.refill();
        }
        let timeout = if self.overflow.is_empty() { timeout } else { Some(Duration::ZERO) };
        let mut stuck = false;
        if let Err(error) = self.enter(timeout) {
            match error.raw_os_error() {
                // The timeout has expired, or a signal has arrived.
                Some(libc::ETIME | libc::EINTR) => {}
                // The kernel has no memory for more operations, or the completion queue must be read first.
                Some(libc::EBUSY | libc::EAGAIN) => stuck = true,
                _ => return Err(error),
            }
        }
        let completions = self.ring.completion();
        stuck &= completions.is_empty();
        for entry in completions.filter(|entry| entry.user_data() != SILENT) {
            self.in_kernel -= 1;
            events.push(Event { user_data: entry.user_data(), result: entry.result() });
        }
        if stuck {
            std::thread::sleep(RETRY);
        }
        Ok(true)
    }

    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        #[cfg(test)]
        self.refuse()?;
        match timeout {
            Some(Duration::ZERO) => self.ring.submitter().submit_with_args(0, &types::SubmitArgs::new()),
            Some(timeout) => {
                let time = types::Timespec::from(timeout);
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
                // SAFETY: the caller of `push_disk_op` promised that everything it refers to stays until its event has
                // arrived.
                unsafe { self.push(entry) };
            }
        }
    }
}

/// Keeps the ring for its thread. It is dropped when nothing is in the kernel.
impl Drop for Ring {
    fn drop(&mut self) {
        let is_empty = self.is_empty();
        // SAFETY: nothing uses the field after this.
        let ring = unsafe { ManuallyDrop::take(&mut self.ring) };
        match is_empty {
            true => rings::give_back(ring),
            false => rings::lose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::opcode;
    use std::os::fd::AsRawFd;

    #[test]
    fn operations_that_the_kernel_refuses_at_first_are_done_once_and_in_order() {
        let mut ring = Ring::new().unwrap();
        for refused in [0, 1, 2, 50] {
            ring.faults.refused = refused;
            let count = u64::from(rings::ENTRIES) * 3 + 7;
            for user_data in 0..count {
                // SAFETY: a no-op refers to nothing.
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
    fn a_partial_submission_is_continued() {
        let mut ring = Ring::new().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        // The kernel stops submitting at an invalid operation.
        let wrong = types::FsyncFlags::from_bits_retain(1 << 31);
        for user_data in 0..30 {
            let entry = match user_data % 3 {
                0 => opcode::Fsync::new(types::Fd(null.as_raw_fd())).flags(wrong).build(),
                _ => opcode::Nop::new().build(),
            };
            // SAFETY: the file is open until the end, and nothing else is referred to.
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

    /// An interrupt of a guest whose eventfd is full has no effect, and must not stay in the kernel.
    #[test]
    fn a_silent_operation_is_carried_out_when_it_is_submitted_and_causes_no_event() {
        let mut ring = Ring::new().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let (one, full) = (1u64, u64::MAX - 1);
        let mut events = Vec::new();
        for (value, refused) in [(&one, 0), (&full, 0), (&one, 0), (&one, 3)] {
            let write = opcode::Write::new(types::Fd(event.as_raw_fd()), (&raw const *value).cast(), 8);
            // SAFETY: the value and the descriptor live until the end.
            let position = unsafe { ring.push_silent(write.rw_flags(libc::RWF_NOWAIT).build()) };
            ring.faults.refused = refused;
            assert!(!ring.is_submitted(position) && !ring.is_empty() && ring.in_kernel() == 0);
            while !ring.is_submitted(position) {
                ring.submit_and_wait(Some(Duration::ZERO), &mut events).unwrap();
            }
            assert!(events.is_empty() && ring.is_empty());
            let mut count = [0; 8];
            // The second one is not read, so that the third finds it full.
            if *value == 1 {
                rustix::io::read(&event, &mut count).unwrap();
                assert_ne!(u64::from_ne_bytes(count), 0);
            }
        }
    }
}
