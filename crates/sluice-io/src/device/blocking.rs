//! Helper threads of a device thread, for calls that may block and are not I/O of a VM.
//!
//! A call that asks a file system where data lies can wait for its locks. The device thread sends such calls to a
//! helper as jobs and continues; the result arrives through its mailbox. A VM's window bounds the number of its jobs.
//!
//! A file system may never respond. Then the helper is abandoned when its device thread ends or restarts. Only a
//! discard must have ended before that: a late one would destroy data that was written after the restart.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::device::command::Command;
use crate::device::disk::Disk;
use crate::limits::is_memory_for_clients;
use crate::reactor::actor;
use crate::reactor::mailbox::Mailbox;
use crate::reactor::message::Message;
use crate::source::{ByteRange, ExtentMap, Source, Span};
use crate::store::file::jobs::{BlockingJob, BlockingResult, Jobs};

/// Maximum number of extents in the reply to a block status request.
const SPANS_MAX: usize = 4096;

/// Time limit for the end of a helper that runs no discard.
const END_MAX: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(5) };
/// Interval at which the end of a helper is checked.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Interval of the log lines while a discard is running.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// The helper of a device thread: a thread for queries and one for discards.
pub(crate) struct Helper {
    threads: [JoinHandle<()>; 2],
    /// Locked during a discard.
    may_discard: Arc<Mutex<bool>>,
}

/// Starts the helper, which ends when the returned jobs are dropped. Each result carries `generation`.
pub(crate) fn start(name: &str, generation: u64, mailbox: &Mailbox<Disk>) -> std::io::Result<(Jobs, Helper)> {
    let may_discard = Arc::new(Mutex::new(true));
    let spawn = |thread: &str| {
        let (sender, receiver) = channel();
        let (mailbox, may_discard) = (mailbox.clone(), Arc::clone(&may_discard));
        let builder = thread::Builder::new().name(format!("{name}-{thread}"));
        let thread = builder.spawn(move || run_jobs(&receiver, generation, &mailbox, &may_discard))?;
        Ok::<_, std::io::Error>((sender, thread))
    };
    let ((queries, first), (discards, second)) = (spawn("slow")?, spawn("discard")?);
    Ok((Jobs { queries, discards }, Helper { threads: [first, second], may_discard }))
}

impl actor::Helper for Helper {
    /// Ends the helper, whose jobs have been dropped. After that no discard is running or will be started. Other jobs
    /// change nothing; one that takes longer than 5 s ends later by itself.
    fn end(self, device: &str) {
        self.forbid_discards(device);
        let until = Instant::now() + END_MAX;
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if Instant::now() >= until {
                tracing::warn!(device, "A file system does not respond: not waiting for the helper thread");
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn keep(self, device: &str) {
        self.forbid_discards(device);
    }
}

impl Helper {
    /// Waits for the running discard, and prevents others.
    fn forbid_discards(&self, device: &str) {
        let mut logged = Instant::now();
        loop {
            match self.may_discard.try_lock() {
                Ok(mut may) => break *may = false,
                Err(TryLockError::Poisoned(poisoned)) => break *poisoned.into_inner() = false,
                Err(TryLockError::WouldBlock) => thread::sleep(LOOK_EVERY),
            }
            if logged.elapsed() >= LOG_EVERY {
                tracing::warn!(device, "Waiting for the disk to finish a discard");
                logged = Instant::now();
            }
        }
    }
}

/// Calls BLKDISCARD. Returns 0 or a negated errno.
fn discard(source: &Source, part: ByteRange) -> i32 {
    const BLKDISCARD: libc::c_ulong = 0x1277;
    let range = [part.offset, part.length];
    // SAFETY: the call reads two 64-bit numbers from the address, and `range` outlives the call.
    let result = unsafe { libc::ioctl(source.as_fd().as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if result == 0 { 0 } else { -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}

fn run_jobs(jobs: &Receiver<BlockingJob>, generation: u64, mailbox: &Mailbox<Disk>, may_discard: &Mutex<bool>) {
    while let Ok(job) = jobs.recv() {
        let result = match job {
            BlockingJob::Allocation { io, find, spans_max } => {
                let spans_max = spans_max.clamp(1, SPANS_MAX);
                let spans = match is_memory_for_clients(spans_max * size_of::<Span>()) {
                    true => find(spans_max),
                    false => Vec::new(),
                };
                BlockingResult::Allocation { io, spans }
            }
            BlockingJob::Extents { volume, source } => {
                let extents = match is_memory_for_clients(ExtentMap::LEN_MAX) {
                    true => ExtentMap::load(source.as_fd(), source.range()).ok(),
                    false => None,
                };
                BlockingResult::Extents { volume, source, extents }
            }
            BlockingJob::Zeroing { volume, source } => {
                let found = source.zeroing_now();
                BlockingResult::Zeroing { volume, source, found }
            }
            BlockingJob::Discard { op, source, part } => {
                let may = may_discard.lock().unwrap_or_else(PoisonError::into_inner);
                if !*may {
                    return;
                }
                let result = discard(&source, part);
                BlockingResult::Discard { op, result }
            }
            BlockingJob::Dial { volume, source } => {
                BlockingResult::Dial { volume, result: source.kind().connect_again() }
            }
            BlockingJob::ImageSize { volume, source } => {
                BlockingResult::ImageSize { volume, size: source.kind().image.size_bytes().ok() }
            }
            #[cfg(test)]
            BlockingJob::Hang(until) => {
                let _ = until.recv();
                continue;
            }
            BlockingJob::Close(source) => {
                drop(source);
                continue;
            }
        };
        if mailbox.send(Message::Command(Command::BlockingDone(generation, result))).is_err() {
            return;
        }
    }
}
