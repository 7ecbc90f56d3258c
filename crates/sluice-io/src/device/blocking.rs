//! What may block and is not I/O of a VM: a helper thread beside each device thread.
//!
//! Asking a file system where data lies can wait for its locks. The device thread hands such questions over and goes on;
//! the answer comes back through its mailbox. The questions of one VM are bounded by its window.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use sluice_sched::gate::Slot;

use crate::device::Message;
use crate::device::mailbox::Mailbox;
use crate::device::slab::{IoId, VolumeKey};
use crate::limits::is_memory_for_clients;
use crate::source::{ByteRange, ExtentMap, Source, Span, Support};

/// Most extents in one answer to a block status request.
const SPANS_MAX: usize = 4096;

/// A question.
pub(crate) enum BlockingJob {
    /// Which parts hold data?
    Allocation {
        /// Of this request.
        token: IoId,
        source: Arc<Source>,
        part: ByteRange,
        spans_max: usize,
    },
    /// Where does it lie on the disk?
    Extents {
        /// Of this volume.
        volume: VolumeKey,
        source: Arc<Source>,
    },
    /// Does the block device still make zeroes by itself?
    Zeroing {
        /// Of this volume.
        volume: VolumeKey,
        source: Arc<Source>,
    },
    /// Give up these bytes of the block device.
    Discard {
        /// At work in this slot.
        slot: Slot,
        source: Arc<Source>,
        /// Of the device, not of the volume.
        part: ByteRange,
    },
    /// Nothing: the last one who has it closes it, and a block device is written back then.
    Close(Arc<Source>),
}

/// An answer.
pub(crate) enum BlockingResult {
    /// No spans: there is no memory for them.
    Allocation {
        token: IoId,
        spans: Vec<Span>,
    },
    Extents {
        volume: VolumeKey,
        source: Arc<Source>,
        extents: Option<ExtentMap>,
    },
    Zeroing {
        volume: VolumeKey,
        source: Arc<Source>,
        found: Support,
    },
    /// 0, or a negated errno.
    Discard {
        slot: Slot,
        result: i32,
    },
}

/// Starts the helper; it ends when the sender is dropped. Who joins it knows that nothing it did is still to come.
/// `generation` goes with each answer.
pub(crate) fn start(
    name: &str,
    generation: u64,
    mailbox: Mailbox,
) -> std::io::Result<(Sender<BlockingJob>, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let helper = thread::Builder::new().name(format!("{name}-slow"));
    let handle = helper.spawn(move || answer(&receiver, generation, &mailbox))?;
    Ok((sender, handle))
}

/// BLKDISCARD.
fn discard(source: &Source, part: ByteRange) -> i32 {
    const BLKDISCARD: libc::c_ulong = 0x1277;
    let range = [part.offset, part.length];
    // SAFETY: the request reads two 64-bit numbers from the address, which `range` holds for the time of the call.
    let result = unsafe { libc::ioctl(source.as_fd().as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if result == 0 { 0 } else { -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}

fn answer(jobs: &Receiver<BlockingJob>, generation: u64, mailbox: &Mailbox) {
    while let Ok(job) = jobs.recv() {
        let answer = match job {
            BlockingJob::Allocation { token, source, part, spans_max } => {
                let spans_max = spans_max.clamp(1, SPANS_MAX);
                let spans = match is_memory_for_clients(spans_max * size_of::<Span>()) {
                    true => source.allocation(part, spans_max),
                    false => Vec::new(),
                };
                BlockingResult::Allocation { token, spans }
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
            BlockingJob::Discard { slot, source, part } => {
                let result = discard(&source, part);
                BlockingResult::Discard { slot, result }
            }
            BlockingJob::Close(source) => {
                drop(source);
                continue;
            }
        };
        if mailbox.send(Message::BlockingDone(generation, answer)).is_err() {
            return;
        }
    }
}
