//! The rings of this process, and what the kernel carries out for them.
//!
//! io_uring has operations that open files, connect and rename, and no filter of system calls sees them. So a ring is made disabled,
//! restricted to the operations that the data plane uses, and then enabled. A sealed process may make no ring, so it makes a pool before.
//!
//! A ring belongs to the thread that enabled it (`IORING_SETUP_SINGLE_ISSUER`): nothing else can use it. So one that is given back stays with
//! its thread, for the next device there ([`crate::reactor`] keeps such threads).

use std::cell::RefCell;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue};

/// Entries of the submission queue. If more are pushed in an iteration, the first are submitted early.
pub(super) const ENTRIES: u32 = 512;
/// Entries of the completion queue. More completions than that wait in the kernel until there is room.
const COMPLETIONS: u32 = 2048;

/// An operation that a ring carries out, with the reason.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    pub name: &'static str,
    /// Its number in a submission.
    pub code: u8,
    pub reason: &'static str,
}

const fn operation(name: &'static str, code: u8, reason: &'static str) -> Operation {
    Operation { name, code, reason }
}

/// Operations that a restricted ring carries out.
pub const OPERATIONS: &[Operation] = &[
    operation("Read", opcode::Read::CODE, "data of volumes; kicks and wake-ups"),
    operation("Readv", opcode::Readv::CODE, "data of volumes into several pieces of guest memory"),
    operation("Write", opcode::Write::CODE, "data of volumes; interrupts"),
    operation("Writev", opcode::Writev::CODE, "data of volumes from several pieces of guest memory"),
    operation("Fsync", opcode::Fsync::CODE, "flushes"),
    operation("Fallocate", opcode::Fallocate::CODE, "discards and zeroes"),
    operation("Recv", opcode::Recv::CODE, "requests of NBD clients"),
    operation("Send", opcode::Send::CODE, "a reply to an NBD client"),
    operation("SendMsg", opcode::SendMsg::CODE, "several replies to an NBD client"),
    operation("PollAdd", opcode::PollAdd::CODE, "the end of an NBD client that is not read; frames of a TAP"),
    operation("Timeout", opcode::Timeout::CODE, "when a request is to be dispatched"),
    operation("AsyncCancel", opcode::AsyncCancel::CODE, "ends what waits, before its descriptor is closed"),
];

/// Number of a register operation that the library has no name for.
const REGISTER_IOWQ_MAX_WORKERS: u8 = 19;

/// Register operations of a restricted ring, of which the number, the name and the reason.
pub const REGISTRATIONS: &[Operation] = &[operation(
    "IORING_REGISTER_IOWQ_MAX_WORKERS",
    REGISTER_IOWQ_MAX_WORKERS,
    "how many operations that block run at the same time",
)];

/// Flags of an entry that a restricted ring accepts: an interrupt needs no event, and a worker of the kernel carries out what may block.
pub const FLAGS: squeue::Flags = squeue::Flags::SKIP_SUCCESS.union(squeue::Flags::ASYNC);

/// How many rings a sealed process has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Rings that no device has used yet.
    pub free: usize,
    /// Rings that could not be drained, and are not used again.
    pub lost: u64,
}

struct Pool {
    is_restricted: bool,
    /// Whether no ring may be made.
    is_sealed: bool,
    /// Disabled rings.
    free: Vec<IoUring>,
    lost: u64,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { is_restricted: false, is_sealed: false, free: Vec::new(), lost: 0 });

thread_local! {
    /// The enabled ring of this thread that is not in use.
    static OWN: RefCell<Option<IoUring>> = const { RefCell::new(None) };
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the kernel can restrict rings.
///
/// # Errors
/// It cannot, or has no ring for this user.
pub fn can_be_restricted() -> io::Result<()> {
    make(true).map(drop)
}

/// Whether the rings that are made from now on are restricted to [`OPERATIONS`].
pub fn restrict(is_restricted: bool) {
    pool().is_restricted = is_restricted;
}

/// Makes the rings that this process will ever use.
///
/// # Errors
/// That of the kernel: see [`super::ring::Ring::new`].
pub fn fill(count: usize) -> io::Result<()> {
    let mut pool = pool();
    while pool.free.len() < count {
        let ring = make(pool.is_restricted)?;
        pool.free.push(ring);
    }
    Ok(())
}

/// From now on a ring comes from those that were made.
pub fn seal() {
    pool().is_sealed = true;
}

/// Counts the rings; `None` unless they are sealed.
#[must_use]
pub fn count() -> Option<Count> {
    let pool = pool();
    pool.is_sealed.then_some(Count { free: pool.free.len(), lost: pool.lost })
}

/// Whether this thread has a ring for its next device.
pub(crate) fn has_own() -> bool {
    OWN.with_borrow(Option::is_some)
}

/// Records that a ring is not used again, because the kernel may still use its memory.
pub(crate) fn lose() {
    pool().lost += 1;
}

/// Returns an enabled ring for this thread: its own from before, or one of the pool.
pub(super) fn take() -> io::Result<IoUring> {
    if let Some(own) = OWN.take() {
        return Ok(own);
    }
    let mut pool = pool();
    let ring = match pool.free.pop() {
        Some(ring) => ring,
        None if pool.is_sealed => return Err(io::Error::other(USED_UP)),
        None => make(pool.is_restricted)?,
    };
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// Keeps a ring that has nothing in the kernel for this thread.
pub(super) fn give_back(mut ring: IoUring) {
    ring.completion().for_each(drop);
    // A thread that ends closes its ring.
    let _ = OWN.try_with(|own| own.replace(Some(ring)));
}

const USED_UP: &str =
    "The daemon has sealed itself and its io_uring rings are used up: restart it to serve more devices at once";

/// Makes a disabled ring with the cheapest completion mode that the kernel supports.
fn make(is_restricted: bool) -> io::Result<IoUring> {
    let mut modern = IoUring::builder();
    modern
        .setup_cqsize(COMPLETIONS)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_r_disabled();
    let mut plain = IoUring::builder();
    plain.setup_cqsize(COMPLETIONS).setup_r_disabled();
    let ring = modern.build(ENTRIES).or_else(|_| plain.build(ENTRIES)).map_err(explain)?;
    if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
        return Err(io::Error::other("The kernel's io_uring is too old: Linux 5.11 or newer is needed"));
    }
    if is_restricted {
        let operations = OPERATIONS.iter().map(|operation| Restriction::sqe_op(operation.code));
        let registrations = REGISTRATIONS.iter().map(|operation| Restriction::register_op(operation.code));
        let flags = [Restriction::sqe_flags_allowed(FLAGS.bits())];
        let mut all: Vec<Restriction> = operations.chain(registrations).chain(flags).collect();
        ring.submitter().register_restrictions(&mut all)?;
    }
    Ok(ring)
}

/// Adds advice to an error that does not say what to change.
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
    fn the_error_for_too_little_locked_memory_was_cannot_allocate_memory() {
        let text = explain(io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(text.contains("raise LimitMEMLOCK"), "{text}");
        assert_eq!(explain(io::Error::from_raw_os_error(libc::EPERM)).raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_ring_stays_with_its_thread() {
        let descriptor = || {
            let ring = take().unwrap();
            let number = std::os::fd::AsRawFd::as_raw_fd(&ring);
            give_back(ring);
            number
        };
        assert_eq!(descriptor(), descriptor());
    }
}
