//! Jobs of a device's helper threads: calls that may block and are not I/O of a VM.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::FileVolumeKey;
use crate::slab::IoId;
use crate::source::rbd::Rbd;
use crate::source::remote::{Reached, Remote};
use crate::source::{ByteRange, ExtentMap, Source, Span, Support};
use crate::store::OpIndex;
use crate::store::rbd::RbdKey;
use crate::store::remote::RemoteKey;

/// A job of a helper thread.
pub(crate) enum BlockingJob {
    /// Finds the parts of a range that hold data.
    Allocation {
        /// The request that needs it.
        io: IoId,
        /// Gets the maximum number of parts.
        find: Box<dyn FnOnce(usize) -> Vec<Span> + Send>,
        spans_max: usize,
    },
    /// Maps the blocks of a volume to addresses on the disk.
    Extents { volume: FileVolumeKey, source: Arc<Source> },
    /// Reads again whether a block device can zero by itself.
    Zeroing { volume: FileVolumeKey, source: Arc<Source> },
    /// Discards a range of a block device.
    Discard {
        op: OpIndex,
        source: Arc<Source>,
        /// In bytes of the device, not of the volume.
        part: ByteRange,
    },
    /// Connects again to the server of a volume.
    Dial { volume: RemoteKey, source: Arc<Source<Remote>> },
    /// Asks for the size of an image that has changed.
    ImageSize { volume: RbdKey, source: Arc<Source<Rbd>> },
    /// Waits until the sender is dropped.
    #[cfg(test)]
    Hang(std::sync::mpsc::Receiver<()>),
    /// Drops a source. The last reference closes it: closing a block device writes it back, and an image tells its cluster.
    Close(Box<dyn Any + Send>),
}

/// The result of a job.
pub(crate) enum BlockingResult {
    /// The spans are empty if there is no memory for them.
    Allocation {
        io: IoId,
        spans: Vec<Span>,
    },
    Extents {
        volume: FileVolumeKey,
        source: Arc<Source>,
        extents: Option<ExtentMap>,
    },
    Zeroing {
        volume: FileVolumeKey,
        source: Arc<Source>,
        found: Support,
    },
    Discard {
        op: OpIndex,
        /// 0, or a negated errno.
        result: i32,
    },
    ImageSize {
        volume: RbdKey,
        /// In bytes.
        size: Option<u64>,
    },
    Dial {
        volume: RemoteKey,
        /// The connection, or why there is none.
        result: Result<Reached, String>,
    },
}

/// The queues of the helper threads. Discards have a separate thread, so that a job of one VM does not wait for the
/// discards of another.
pub(crate) struct Jobs {
    pub(crate) queries: Sender<BlockingJob>,
    pub(crate) discards: Sender<BlockingJob>,
}

impl Jobs {
    /// Drops a source in a helper thread, or here if that has ended.
    pub(crate) fn close(&self, source: impl Any + Send) {
        self.send(BlockingJob::Close(Box::new(source)));
    }

    /// Sends a job. Returns `false` if its thread has ended.
    pub(crate) fn send(&self, job: BlockingJob) -> bool {
        match job {
            BlockingJob::Discard { .. } => self.discards.send(job).is_ok(),
            _ => self.queries.send(job).is_ok(),
        }
    }
}
