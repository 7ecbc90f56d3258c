//! What may block and is no I/O of a VM: jobs for the helper thread of a device, and their results.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use sluice_sched::gate::Slot;

use crate::slab::{IoId, VolumeKey};
use crate::source::{ByteRange, ExtentMap, Source, Span, Support};

/// A job.
pub(crate) enum BlockingJob {
    /// Which parts hold data?
    Allocation {
        /// Of this request.
        io: IoId,
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
    /// Waits until the sender is dropped.
    #[cfg(test)]
    Hang(std::sync::mpsc::Receiver<()>),
    /// Nothing: the last one who has it closes it, and a block device is written back then.
    Close(Arc<Source>),
}

/// The result of a job.
pub(crate) enum BlockingResult {
    /// No spans: there is no memory for them.
    Allocation {
        io: IoId,
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

/// Where jobs go. Discards have a thread of their own, so that a question of one VM does not wait for the discards of another.
pub(crate) struct Jobs {
    pub(crate) questions: Sender<BlockingJob>,
    pub(crate) discards: Sender<BlockingJob>,
}

impl Jobs {
    /// Hands a job over; returns `false` if its thread has ended.
    pub(crate) fn send(&self, job: BlockingJob) -> bool {
        match job {
            BlockingJob::Discard { .. } => self.discards.send(job).is_ok(),
            _ => self.questions.send(job).is_ok(),
        }
    }
}
