//! A request as the block layer queues it, which blkparse prints and blktrace records.
//!
//! A write may ask for a flush before it (`F` in front of its letters). A request without sectors is an empty flush, or one
//! that nothing here replays: a reset of a zone, a command of SCSI.

use sluice_sched::Kind;

use super::{Entry, Row};

/// Label of requests that need sectors and have none.
pub const WITHOUT_DATA: &str = "requests without data";
/// Label of SCSI and NVMe commands that a program of the host sends.
pub(super) const PASSTHROUGH: &str = "passthrough commands";
/// Label of opening, closing, finishing, resetting and appending to a zone.
pub(super) const ZONE: &str = "operations on zones";
/// Label of all others.
pub(super) const UNKNOWN: &str = "requests of unknown kind";

#[derive(Debug)]
pub(super) struct Queued {
    /// In nanoseconds.
    pub(super) at: u64,
    pub(super) stream: u32,
    /// Whether the device flushes its cache first.
    pub(super) flushes: bool,
    pub(super) rest: Rest,
}

/// What a request does after its flush.
#[derive(Debug)]
pub(super) enum Rest {
    Nothing,
    /// Kind, offset and length in bytes.
    Data(Kind, u64, u32),
    /// Something that cannot be replayed.
    Skipped(&'static str),
}

impl Queued {
    /// Returns the flush and the request after it, as far as it has them.
    pub(super) fn entries(self) -> impl Iterator<Item = Entry> {
        let Queued { at, stream, .. } = self;
        let row = |kind, offset, length| Entry::Request(Row { at, stream, kind, offset, length });
        let rest = match self.rest {
            Rest::Nothing => None,
            Rest::Data(_, _, 0) => Some(Entry::Skipped(stream, WITHOUT_DATA)),
            Rest::Data(kind, offset, length) => Some(row(kind, offset, length)),
            Rest::Skipped(what) => Some(Entry::Skipped(stream, what)),
        };
        self.flushes.then(|| row(Kind::Flush, 0, 0)).into_iter().chain(rest)
    }
}
