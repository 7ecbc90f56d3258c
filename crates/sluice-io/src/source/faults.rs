//! Errors that the kernel returned for requests of a volume, and the end of its file, if that lies inside the volume.
//!
//! Device threads record both, and other threads read them. They stay with the open volume when it is resized and when its device
//! thread restarts.
//!
//! A file that another program cuts while it is served must not grow again by writes past its end: what the guest had there is
//! gone, and a file that is whole again hides that. The kernel has no write that refuses to extend a file, and asking for
//! the size before each write would cost as much as a small request. So a device thread asks at most once in
//! `LOOK_EVERY` for each volume, with the first write after that time. A write that follows the cut by less may still extend the
//! file. On file systems with a server, where the question may hang, only the control plane asks. A block device cannot grow by a
//! write, but the kernel says of one past its end that there is no space, and leaves out that part of zeroes without an error.
//!
//! Discards and holes past the end extend nothing, and the kernel reports success for them. So they fail as a write does. They are
//! rarer and take longer than writes, and a device thread asks before each of them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluice_sched::{Instant, Kind};

use super::facts::Facts;
use super::loss::Loss;
use super::open::size_of;
use super::opened::Source;

/// Minimum time between two looks of a device thread at the size of a file.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Faults of an open volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultReport {
    /// Requests that have failed.
    pub failures: Vec<Failure>,
    /// Whether writes and flushes fail, because a failed sync may have lost data.
    pub is_lost: bool,
    /// End of the file in bytes, if it lies inside the volume.
    pub ends_at: Option<u64>,
    /// End of the volume in the file, in bytes.
    pub needs: u64,
    /// Whether the file is a block device.
    pub is_device: bool,
    /// Since when its server is away, if it is on one.
    pub away_since: Option<Instant>,
}

/// Failed requests of one kind with one error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub errno: i32,
    /// Their number since the volume was opened.
    pub count: u64,
    /// Whether a request of that kind has succeeded since the last of them.
    pub has_recovered: bool,
}

/// Failed requests of a source so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Only accessed when an operation has failed, or for a snapshot.
    failed: Mutex<BTreeMap<(Kind, i32), Tally>>,
    /// The kinds with a failure that has not recovered, a bit for each [`Kind`]. So that a success finds nothing to do without the lock.
    failing: AtomicU8,
}

/// Number of failures, and whether a request of their kind has succeeded since the last one.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    count: u64,
    has_recovered: bool,
}

/// Sizes of the file of a volume, or of its block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSizes {
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes that the file system has allocated; of a block device all.
    pub allocated_bytes: u64,
}

impl Facts {
    /// Counts a request that has failed.
    pub(crate) fn tally_failure(&self, kind: Kind, errno: i32) {
        let mut failed = self.failures.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = failed.entry((kind, errno)).or_default();
        *tally = Tally { count: tally.count + 1, has_recovered: false };
        self.failures.failing.fetch_or(bit(kind), Ordering::Relaxed);
    }

    /// Records that a request has succeeded.
    pub(crate) fn count_success(&self, kind: Kind) {
        if self.failures.failing.load(Ordering::Relaxed) & bit(kind) == 0 {
            return;
        }
        let mut failed = self.failures.failed.lock().unwrap_or_else(PoisonError::into_inner);
        self.failures.failing.fetch_and(!bit(kind), Ordering::Relaxed);
        failed.iter_mut().filter(|((failed, _), _)| *failed == kind).for_each(|(_, tally)| tally.has_recovered = true);
    }

    /// Returns the failed requests, and whether data may be lost.
    pub(crate) fn failures(&self) -> FaultReport {
        let failed = self.failures.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = failed.iter().map(|(&(kind, errno), &Tally { count, has_recovered })| Failure {
            kind,
            errno,
            count,
            has_recovered,
        });
        FaultReport { failures: failures.collect(), is_lost: self.loss() != Loss::None, ..FaultReport::default() }
    }
}

impl Source {
    /// Counts a request that has failed, and looks whether the reason is that the file or device has become too short.
    pub(crate) fn count_failure(&self, kind: Kind, errno: i32) {
        self.tally_failure(kind, errno);
        if self.has_size_at_hand() {
            // The failure counts without a size as well.
            let _ = self.look_at_sizes();
        }
    }

    /// Returns what has failed.
    #[must_use]
    pub fn faults(&self) -> FaultReport {
        let (end, needs) = (self.kind.end.load(Ordering::Relaxed), self.range().end());
        let ends_at = (end < needs).then_some(end);
        FaultReport { ends_at, needs, is_device: self.kind.block_device, ..self.failures() }
    }

    /// Asks for the sizes of the file. Records where it ends, if it is shorter than the volume.
    ///
    /// # Errors
    /// The file system does not state them.
    pub fn look_at_sizes(&self) -> io::Result<FileSizes> {
        let stat = rustix::fs::fstat(&self.kind.fd)?;
        let size_bytes = size_of(self.kind.fd.as_fd(), &stat, self.kind.block_device)?;
        let is_whole = size_bytes >= self.range().end();
        self.kind.end.store(if is_whole { u64::MAX } else { size_bytes }, Ordering::Relaxed);
        let allocated_bytes = match self.kind.block_device {
            true => size_bytes,
            false => u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
        };
        Ok(FileSizes { size_bytes, allocated_bytes })
    }

    /// Whether a device thread may ask for the size: it is known without a server.
    pub(crate) fn has_size_at_hand(&self) -> bool {
        !self.kind.submission_may_block
    }

    /// Whether the file was cut and ends before byte `end`, up to which an operation changes it.
    pub(crate) fn is_cut_before(&self, end: u64) -> bool {
        end > self.kind.end.load(Ordering::Relaxed)
    }
}

fn bit(kind: Kind) -> u8 {
    1 << kind as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceSpec;

    #[test]
    fn the_end_of_a_cut_file_is_known_after_a_look_and_forgotten_when_it_is_whole_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.img");
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let source = Source::open(&SourceSpec { buffered: true, ..SourceSpec::whole(&path) }).unwrap();
        assert_eq!(source.look_at_sizes().unwrap(), FileSizes { size_bytes: 1 << 20, allocated_bytes: 0 });
        assert!(!source.is_cut_before(1 << 20));
        file.set_len(4096).unwrap();
        source.look_at_sizes().unwrap();
        assert!(source.is_cut_before(4097) && !source.is_cut_before(4096));
        assert_eq!((source.faults().ends_at, source.faults().needs), (Some(4096), 1 << 20));
        file.set_len(1 << 20).unwrap();
        source.look_at_sizes().unwrap();
        assert!(!source.is_cut_before(1 << 20));
    }

    #[test]
    fn failures_are_counted_by_operation_and_error_and_stay_when_the_volume_is_resized() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.img");
        std::fs::File::create_new(&path).unwrap().set_len(1 << 20).unwrap();
        let source = Source::open(&SourceSpec { buffered: true, ..SourceSpec::whole(&path) }).unwrap();
        source.count_failure(Kind::Write, libc::ENOSPC);
        let smaller = source.resized(Some(4096)).unwrap();
        smaller.count_failure(Kind::Write, libc::ENOSPC);
        smaller.count_failure(Kind::Read, libc::EIO);
        source.count_success(Kind::Write);
        smaller.count_failure(Kind::Write, libc::EIO);
        let expected = [
            (Kind::Read, libc::EIO, 1, false),
            (Kind::Write, libc::EIO, 1, false),
            (Kind::Write, libc::ENOSPC, 2, true),
        ];
        let expected =
            expected.map(|(kind, errno, count, has_recovered)| Failure { kind, errno, count, has_recovered });
        assert_eq!(source.faults().failures, expected);
    }
}
