//! An open volume: its properties, changes of its length, and its lock.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::io::Errno;

#[cfg(test)]
use super::alignment::Alignment;
use super::allocation::{self, Span};
use super::capabilities::{Capabilities, Support};
use super::disk::DiskSet;
use super::error::SourceError;
use super::extents::ExtentMap;
use super::facts::Facts;
use super::lock;
use super::open::{check_alignment, check_extent, inspect, size_of};
use super::range::ByteRange;
use super::sysfs::Sysfs;

/// Identity of a file or device, independent of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The filesystem's device number; for a block device its own.
    pub dev: u64,
    /// The inode number; 0 for a block device.
    pub ino: u64,
}

/// An open source: what every source has, and what those of its kind have.
#[derive(Debug)]
pub struct Source<K = Descriptor> {
    pub(super) facts: Facts,
    pub(super) kind: K,
}

/// A checked and locked file or block device, or a range of one. The lock ends with the last reference to the descriptor.
#[derive(Debug)]
pub struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
    /// Start of the volume in the file, in bytes.
    pub(super) offset: u64,
    pub(super) id: FileId,
    pub(super) capabilities: Capabilities,
    pub(super) gpt_block_size: Option<u32>,
    pub(super) block_device: bool,
    pub(super) buffered: bool,
    pub(super) forces: bool,
    pub(super) submission_may_block: bool,
    pub(super) waited: Duration,
    /// End of the file in bytes; `u64::MAX` if the whole volume lies in front of it.
    pub(super) end: Arc<AtomicU64>,
}

impl<K> Deref for Source<K> {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl<K> Source<K> {
    /// Returns what those of its kind have.
    #[must_use]
    pub fn kind(&self) -> &K {
        &self.kind
    }
}

impl Source {
    /// Returns which operations it supports besides reading and writing.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.kind.capabilities
    }

    /// Returns the same volume with another length, on the same description and so under the same lock, which is
    /// extended to the new range. `None`: up to the current end of the file or device.
    ///
    /// # Errors
    /// As [`Source::open`]; then nothing has changed.
    pub fn resized(&self, length: Option<u64>) -> Result<Self, SourceError> {
        let path = &self.kind.path;
        let stat = rustix::fs::fstat(&self.kind.fd).map_err(|errno| inspect(path, "type", errno.into()))?;
        let size_bytes = size_of(self.kind.fd.as_fd(), &stat, self.kind.block_device)
            .map_err(|error| inspect(path, "size", error))?;
        let length = length.unwrap_or_else(|| size_bytes.saturating_sub(self.kind.offset));
        let range = ByteRange::new(self.kind.offset, length);
        check_extent(path, range, size_bytes)?;
        check_alignment(path, range, self.alignment)?;
        lock::lock_within(self.kind.fd.as_fd(), path, range, !self.read_only, Duration::ZERO)?;
        let fd = self.kind.fd.try_clone().map_err(|error| inspect(path, "descriptor", error))?;
        let facts = Facts { size_bytes: range.length, ..self.facts.clone() };
        let kind =
            Descriptor { fd, path: path.clone(), waited: Duration::ZERO, end: Arc::clone(&self.kind.end), ..self.kind };
        Ok(Self { facts, kind })
    }

    /// Releases the lock of what `longer` has past the end of this volume. `longer` is a result of [`Source::resized`]
    /// that is not put into force.
    ///
    /// # Errors
    /// [`SourceError::Lock`].
    pub fn release_growth(&self, longer: &Source) -> Result<(), SourceError> {
        let (end, length) = (self.range().end(), longer.range().end().saturating_sub(self.range().end()));
        if length == 0 {
            return Ok(());
        }
        lock::unlock(self.kind.fd.as_fd(), &self.kind.path, ByteRange::new(end, length))
    }

    /// Extends a regular file so that the volume can have `length` bytes. A longer file stays as it is; a block device
    /// must be long enough. Returns the previous size.
    ///
    /// # Errors
    /// [`SourceError::Length`]: it is too short and not a writable regular file, or the file system refuses.
    /// [`SourceError::TooShort`]: it does not have all of the volume any more. The guest would find zeroes in place of what was cut off.
    /// [`SourceError::Inspect`].
    pub fn extend(&self, length: u64) -> Result<u64, SourceError> {
        let inspected = |error: io::Error| inspect(&self.kind.path, "size", error);
        let stat = rustix::fs::fstat(&self.kind.fd).map_err(|errno| inspected(errno.into()))?;
        let before = size_of(self.kind.fd.as_fd(), &stat, self.kind.block_device).map_err(inspected)?;
        let end = self.kind.offset.saturating_add(length);
        if before < self.range().end() {
            let (path, end_bytes) = (self.kind.path.clone(), self.range().end());
            return Err(SourceError::TooShort { path, size_bytes: before, end_bytes });
        }
        if end > before {
            if self.kind.block_device || self.read_only {
                return Err(self.cannot_be_long(end, Errno::INVAL));
            }
            rustix::fs::ftruncate(&self.kind.fd, end).map_err(|errno| self.cannot_be_long(end, errno))?;
        }
        Ok(before)
    }

    /// Restores the size that a regular file had before [`Source::extend`].
    ///
    /// # Errors
    /// [`SourceError::Length`]: the file system refuses.
    pub fn cut(&self, size_bytes: u64) -> Result<(), SourceError> {
        rustix::fs::ftruncate(&self.kind.fd, size_bytes).map_err(|errno| self.cannot_be_long(size_bytes, errno))
    }

    fn cannot_be_long(&self, length_bytes: u64, errno: Errno) -> SourceError {
        SourceError::Length { path: self.kind.path.clone(), length_bytes, source: errno.into() }
    }

    /// Registers `reader` as the reader of a volume that is opened for reading only. Waits at most `wait` for the last
    /// requests of the previous reader of that name, which may share its lock; `None` does not wait. Returns how long
    /// it waited.
    ///
    /// # Errors
    /// [`SourceError::Busy`], [`SourceError::Lock`].
    pub fn read_as(&self, reader: &str, wait: Option<Duration>) -> Result<Duration, SourceError> {
        lock::read_as(self.kind.fd.as_fd(), &self.kind.path, self.range(), reader, wait)
    }

    /// Returns the path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.kind.path
    }

    /// Returns the volume's range in its file: a request at byte `n` of the volume is I/O at `range().offset + n`.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.kind.offset, self.size_bytes)
    }

    /// Returns the identity of its file or device.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.kind.id
    }

    /// Returns the block size for which the GPT of the volume was made when it was opened, if another one is stated for it: its
    /// guest finds no partitions.
    #[must_use]
    pub fn gpt_block_size(&self) -> Option<u32> {
        self.kind.gpt_block_size
    }

    /// As if its disk had blocks of this many bytes.
    #[cfg(test)]
    pub(crate) fn with_blocks(self, bytes: u32) -> Self {
        let alignment = Alignment { offset: bytes, ..self.alignment };
        Source { facts: Facts { alignment, ..self.facts }, kind: self.kind }
    }

    /// Whether a block device can zero by itself, as far as the kernel knows now. Reads sysfs.
    #[must_use]
    pub fn zeroing_now(&self) -> Support {
        Capabilities::zeroing_now(&Sysfs::host(), self.kind.id.dev)
    }

    /// Whether it is a block device, or a range of one.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.kind.block_device
    }

    /// Whether it uses the page cache, so that guarantees are not given.
    #[must_use]
    pub fn is_buffered(&self) -> bool {
        self.kind.buffered
    }

    /// Whether a write can be made durable by a flag (`RWF_DSYNC`). Otherwise a sync must follow it. Never with the
    /// page cache, where the sync often fails for writes of others.
    #[must_use]
    pub fn forces_writes(&self) -> bool {
        self.kind.forces
    }

    /// Whether the submission of an operation may wait for a server of the file system.
    #[must_use]
    pub fn submission_may_block(&self) -> bool {
        self.kind.submission_may_block
    }

    /// Returns how long opening waited for the lock.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.kind.waited
    }

    /// Consumes the kernel's report of writes that were lost before: the kernel reports them once to each description.
    /// Blocks as long as a sync takes.
    pub fn consume_loss_report(&self) {
        let _ = rustix::fs::fdatasync(&self.kind.fd);
    }

    /// Whether both have a byte of the same file or device, even through two nodes of one block device, which locks do
    /// not detect.
    #[must_use]
    pub fn shares_bytes_with(&self, other: &Self) -> bool {
        self.kind.id == other.kind.id && self.range().overlaps(other.range())
    }

    /// Returns the disks that serve it.
    ///
    /// # Errors
    /// [`SourceError::Disk`].
    pub fn disks(&self) -> Result<DiskSet, SourceError> {
        DiskSet::of_fd(&self.kind.fd, &self.kind.path)
    }

    /// Returns the current addresses of its bytes on the disk.
    ///
    /// # Errors
    /// [`SourceError::Inspect`].
    pub fn extents(&self) -> Result<ExtentMap, SourceError> {
        ExtentMap::load(self.kind.fd.as_fd(), self.range()).map_err(|error| inspect(&self.kind.path, "extents", error))
    }

    /// Returns which parts of `part` (bytes of the volume) hold data: at most `spans_max` spans from its start.
    #[must_use]
    pub fn allocation(&self, part: ByteRange, spans_max: usize) -> Vec<Span> {
        allocation::allocation(self.kind.fd.as_fd(), self.range(), part, spans_max)
    }

    /// Returns the description, for I/O. Every duplicate of it keeps the lock.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.kind.fd
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kind.fd.as_fd()
    }
}
