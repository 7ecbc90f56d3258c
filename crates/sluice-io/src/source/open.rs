//! Opens a volume: the checks, in the order in which they are possible.
//!
//! One open file description does everything: I/O, the lock and `O_DIRECT`. A second one for the lock would lose the
//! guarantee that [`super::lock`] explains.
//!
//! The path is walked once, and symbolic links that a tenant can change are rejected ([`crate::path_walk`]). The opened
//! file is compared with the checked one: a file that has replaced it in between is rejected.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

use super::alignment::{self, Alignment};
use super::block_size::{self, BlockSize, Known, MbrOnLargeBlocks, Partitions};
use super::capabilities::Capabilities;
use super::claims::Claims;
use super::error::SourceError;
use super::facts::Facts;
use super::faults::Failures;
use super::forcing;
use super::format::{self, Format};
use super::identity;
use super::lock;
use super::loss::Mark;
use super::opened::{Descriptor, FileId, Source};
use super::range::ByteRange;
use super::sysfs::Sysfs;
use crate::path_walk::{self, Found, Trust, WalkError};

/// The configuration of a volume's source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// A raw regular file or a block device.
    pub path: PathBuf,
    /// Start of the volume in it, in bytes.
    pub offset: u64,
    /// Length of the volume in bytes; `None` means to the end of the file or device.
    pub length: Option<u64>,
    /// Whether it is opened and locked for reading only.
    pub read_only: bool,
    /// Whether it uses the page cache (`cache = "buffered"`). Guarantees are then not given, because writeback bypasses
    /// the gate.
    pub buffered: bool,
    /// Whether discards free space, and zeroed ranges may be freed.
    pub unmaps: bool,
    /// The guest's block size.
    pub block_size: BlockSize,
    /// Whether its first bytes are looked at, which must not be those of another format.
    pub format: FormatCheck,
}

/// Whether the format of a volume is looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FormatCheck {
    /// Unless it was served before.
    UnlessKnown(Arc<Known>),
    /// No: it is said to be raw.
    #[default]
    Raw,
}

impl SourceSpec {
    /// Returns all of `path`, for reading and writing, with direct I/O.
    #[must_use]
    pub fn whole(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            offset: 0,
            length: None,
            read_only: false,
            buffered: false,
            unmaps: true,
            block_size: BlockSize::OfSource,
            format: FormatCheck::Raw,
        }
    }

    fn range_in(&self, size_bytes: u64) -> ByteRange {
        let length = self.length.unwrap_or_else(|| size_bytes.saturating_sub(self.offset));
        ByteRange::new(self.offset, length)
    }
}

impl Source {
    /// Opens, checks and locks a volume. Fails immediately if it is locked.
    ///
    /// # Errors
    /// Every [`SourceError`] except `Disk`.
    pub fn open(spec: &SourceSpec) -> Result<Self, SourceError> {
        Self::open_within(spec, Duration::ZERO)
    }

    /// As [`Source::open`], but waits for the lock at most `wait`: after a crash, requests of the dead daemon may still
    /// be in the kernel. [`Source::waited`] returns how long it took.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_within(spec: &SourceSpec, wait: Duration) -> Result<Self, SourceError> {
        Located::of(spec)?.open(wait)
    }
}

/// What the path of a volume leads to. It is known before anything is opened or locked.
#[derive(Debug)]
pub struct Located {
    spec: SourceSpec,
    found: Found,
    block_device: bool,
    identity: Option<String>,
}

impl Located {
    /// Walks the path.
    ///
    /// # Errors
    /// [`SourceError::Open`], [`SourceError::Link`], [`SourceError::NotAVolume`].
    pub fn of(spec: &SourceSpec) -> Result<Self, SourceError> {
        let found = find(spec)?;
        let block_device = is_block_device(found.stat(), &spec.path)?;
        let identity = match block_device {
            true => identity::of_block_device(&Sysfs::host(), found.stat().st_rdev),
            false => identity::of_file(found.path_fd()),
        };
        Ok(Located { spec: spec.clone(), found, block_device, identity })
    }

    /// Returns the identity of its file or device.
    #[must_use]
    pub fn id(&self) -> FileId {
        id_of(self.found.stat(), self.block_device)
    }

    /// As `Facts::identity`.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.spec.path
    }

    /// Whether the volume is opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.spec.read_only
    }

    /// Returns the error of a volume whose bytes belong to another one, `VM/VOLUME`.
    #[must_use]
    pub fn claimed_by(&self, other: String) -> SourceError {
        SourceError::Claimed { path: self.spec.path.clone(), other }
    }

    /// Returns the block size that the guest would get, in bytes. It opens the source only for reading, and does not lock it.
    ///
    /// # Errors
    /// As [`Located::open`].
    pub fn block_size(&self) -> Result<u32, SourceError> {
        let Located { spec, found, block_device, identity } = self;
        let spec = SourceSpec { read_only: true, ..spec.clone() };
        let fd = open_description(&spec, found)?;
        let size_bytes = size_of(fd.as_fd(), found.stat(), *block_device);
        let size_bytes = size_bytes.map_err(|error| inspect(&spec.path, "size", error))?;
        let alignment = alignment_of(&spec, fd.as_fd(), *block_device, size_bytes)?;
        block_size_of(&spec, identity.as_deref(), found, alignment)
    }

    /// Opens and locks what was located, as [`Source::open_within`].
    ///
    /// # Errors
    /// As [`Source::open`]; [`SourceError::Replaced`]: the path leads to something else now.
    pub fn open(self, wait: Duration) -> Result<Source, SourceError> {
        let Located { spec, found, block_device, identity } = &self;
        let (path, stat, block_device) = (&spec.path, found.stat(), *block_device);
        if block_device && !spec.read_only && is_claimed_by_host(found) {
            return Err(SourceError::InUse { path: path.clone() });
        }
        let fd = open_description(spec, found)?;
        let size_bytes = size_of(fd.as_fd(), stat, block_device).map_err(|error| inspect(path, "size", error))?;
        let range = spec.range_in(size_bytes);
        check_format(spec, identity.as_deref(), found)?;
        check_extent(path, range, size_bytes)?;
        let alignment = alignment_of(spec, fd.as_fd(), block_device, size_bytes)?;
        check_alignment(path, range, alignment)?;
        let block_size = block_size_of(spec, identity.as_deref(), found, alignment)?;
        let forces = forcing::is_honoured(fd.as_fd(), block_device);
        let forces = forces.map_err(|error| inspect(path, "file system", error))? && !spec.buffered;
        let submission_may_block = forcing::submission_may_block(fd.as_fd());
        let submission_may_block = submission_may_block.map_err(|error| inspect(path, "file system", error))?;
        let waited = lock::lock_within(fd.as_fd(), path, range, !spec.read_only, wait)?;
        let facts = Facts {
            name: path.display().to_string(),
            size_bytes: range.length,
            identity: identity.clone(),
            alignment,
            block_size,
            read_only: spec.read_only,
            lost: Mark::default(),
            failures: Arc::new(Failures::default()),
            claims: Claims::default(),
        };
        let kind = Descriptor {
            capabilities: capabilities_of(spec, stat, block_device),
            fd,
            path: path.clone(),
            offset: range.offset,
            id: id_of(stat, block_device),
            gpt_block_size: other_gpt(spec, found),
            block_device,
            buffered: spec.buffered,
            forces,
            submission_may_block,
            waited,
            end: Arc::new(AtomicU64::new(u64::MAX)),
        };
        Ok(Source { facts, kind })
    }
}

fn cannot_open(spec: &SourceSpec, errno: Errno) -> SourceError {
    let (access, advice) = if spec.read_only {
        ("reading", "that this user may read it")
    } else {
        ("writing", "that this user may write it, or declare the volume read-only")
    };
    SourceError::Open { path: spec.path.clone(), access, advice, source: errno.into() }
}

fn find(spec: &SourceSpec) -> Result<Found, SourceError> {
    path_walk::to_file(&spec.path, &Trust::daemon()).map_err(|error| match error {
        WalkError::System(errno) => cannot_open(spec, errno),
        WalkError::Link { link, by } => SourceError::Link { path: spec.path.clone(), link, by },
    })
}

pub(super) fn inspect(path: &Path, what: &'static str, source: io::Error) -> SourceError {
    SourceError::Inspect { path: path.to_path_buf(), what, source }
}

impl Source {
    /// Checks that its path still leads to the file or device that is open. A file that was renamed over it is another volume,
    /// and what is open then has no name any more.
    ///
    /// # Errors
    /// [`SourceError::OtherFile`]; or why there is nothing at the path.
    pub fn check_path(&self) -> Result<(), SourceError> {
        let path = &self.kind.path;
        let spec = SourceSpec { read_only: self.is_read_only(), ..SourceSpec::whole(path) };
        let found = find(&spec)?;
        let is_same = is_block_device(found.stat(), path)
            .is_ok_and(|block_device| id_of(found.stat(), block_device) == self.kind.id);
        if is_same { Ok(()) } else { Err(SourceError::OtherFile { path: path.clone() }) }
    }
}

/// Checked before opening, because opening a pipe or a tape has side effects.
fn is_block_device(stat: &Stat, path: &Path) -> Result<bool, SourceError> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(false),
        FileType::BlockDevice => return Ok(true),
        FileType::Directory => "folder",
        FileType::CharacterDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        _ => "special file",
    };
    Err(SourceError::NotAVolume { path: path.to_path_buf(), kind })
}

/// Whether a mount, swap, RAID or volume group of this host uses the device exclusively. The kernel then refuses to
/// open it exclusively. The exclusive descriptor is closed immediately, because volumes on other ranges of the device
/// must be able to check the same. Checks are made one at a time, otherwise two of our own would conflict.
fn is_claimed_by_host(device: &Found) -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    matches!(device.open(OFlags::RDONLY | OFlags::EXCL), Err(Errno::BUSY))
}

fn open_description(spec: &SourceSpec, found: &Found) -> Result<OwnedFd, SourceError> {
    let access = if spec.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let cache = if spec.buffered { OFlags::empty() } else { OFlags::DIRECT };
    found.open(access | cache).map_err(|errno| match errno {
        // EINVAL for an existing file has only one reason: its filesystem does not support O_DIRECT.
        Errno::INVAL if !spec.buffered => SourceError::NotDirect { path: spec.path.clone() },
        Errno::STALE => SourceError::Replaced { path: spec.path.clone() },
        errno => cannot_open(spec, errno),
    })
}

/// A block device has no size in its inode. The kernel answers the question for it without a lock; a seek to its end would wait for
/// discards and zeroes that are under way.
pub(super) fn size_of(fd: BorrowedFd<'_>, stat: &Stat, block_device: bool) -> io::Result<u64> {
    if block_device {
        const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
        // SAFETY: the opcode is BLKGETSIZE64, which writes 64 bits, whatever the size of a pointer that is in its number.
        return Ok(unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }?);
    }
    Ok(u64::try_from(stat.st_size).expect("the kernel keeps no file of negative size"))
}

pub(super) fn check_extent(path: &Path, range: ByteRange, size_bytes: u64) -> Result<(), SourceError> {
    let path = path.to_path_buf();
    if range.end() > size_bytes {
        return Err(SourceError::TooShort { path, size_bytes, end_bytes: range.end() });
    }
    if range.length == 0 {
        return Err(SourceError::Empty { path });
    }
    Ok(())
}

fn alignment_of(
    spec: &SourceSpec,
    fd: BorrowedFd<'_>,
    block_device: bool,
    size_bytes: u64,
) -> Result<Alignment, SourceError> {
    if spec.buffered {
        return Ok(Alignment::BUFFERED);
    }
    alignment::of_direct(fd, block_device, size_bytes)
        .map_err(|error| inspect(&spec.path, "alignment", error))?
        .ok_or_else(|| SourceError::NotDirect { path: spec.path.clone() })
}

pub(super) fn check_alignment(path: &Path, range: ByteRange, alignment: Alignment) -> Result<(), SourceError> {
    for (what, value_bytes) in [("offset", range.offset), ("length", range.length)] {
        if !alignment.fits(value_bytes) {
            let alignment_bytes = alignment.offset;
            return Err(SourceError::Misaligned { path: path.to_path_buf(), what, value_bytes, alignment_bytes });
        }
    }
    Ok(())
}

/// A volume of another format would be overwritten by its guest, and is as long as its file, not as its disk. The length of
/// such a file often fits no block either, so this comes before the alignment.
fn check_format(spec: &SourceSpec, identity: Option<&str>, found: &Found) -> Result<(), SourceError> {
    let FormatCheck::UnlessKnown(known) = &spec.format else { return Ok(()) };
    if identity.is_some_and(|identity| known.contains_key(&(identity.to_owned(), spec.offset))) {
        return Ok(());
    }
    match Format::of(read_start::<{ format::START }>(spec, found)?.as_slice()) {
        Some(format) => Err(SourceError::NotRaw { path: spec.path.clone(), format }),
        None => Ok(()),
    }
}

fn block_size_of(
    spec: &SourceSpec,
    identity: Option<&str>,
    found: &Found,
    alignment: Alignment,
) -> Result<u32, SourceError> {
    let known = match (&spec.block_size, identity) {
        (BlockSize::Remembered(known), Some(identity)) => known.get(&(identity.to_owned(), spec.offset)).copied(),
        _ => None,
    };
    let start = match (&spec.block_size, known) {
        (BlockSize::Remembered(_), None) => read_start::<{ block_size::START }>(spec, found)?,
        _ => Vec::new(),
    };
    block_size::choose(&spec.block_size, known, || Partitions::of(&start), alignment.offset).map_err(
        |MbrOnLargeBlocks| SourceError::BlockSizeUnknown { path: spec.path.clone(), alignment_bytes: alignment.offset },
    )
}

/// Returns the block size for which the GPT of a volume was made, if the host file states another one.
fn other_gpt(spec: &SourceSpec, found: &Found) -> Option<u32> {
    let BlockSize::Stated(stated) = spec.block_size else { return None };
    match Partitions::of(&read_start::<{ block_size::START }>(spec, found).ok()?) {
        Partitions::Gpt(block) => (block != stated).then_some(block),
        Partitions::Mbr | Partitions::None => None,
    }
}

/// Returns the first `N` bytes of the volume, or fewer if it is shorter. What cannot be read must not count as missing: the disk would be
/// taken for one without partitions, or for a raw one.
fn read_start<const N: usize>(spec: &SourceSpec, found: &Found) -> Result<Vec<u8>, SourceError> {
    let mut start = vec![0; N];
    let read = found.open(OFlags::RDONLY).and_then(|fd| rustix::io::pread(fd, &mut start, spec.offset));
    let inspect =
        |errno: Errno| SourceError::Inspect { path: spec.path.clone(), what: "first bytes", source: errno.into() };
    start.truncate(read.map_err(inspect)?);
    Ok(start)
}

fn id_of(stat: &Stat, block_device: bool) -> FileId {
    if block_device { FileId { dev: stat.st_rdev, ino: 0 } } else { FileId { dev: stat.st_dev, ino: stat.st_ino } }
}

fn capabilities_of(spec: &SourceSpec, stat: &Stat, block_device: bool) -> Capabilities {
    let found = if block_device {
        Capabilities::of_block_device(&Sysfs::host(), stat.st_rdev)
    } else {
        Capabilities::of_file(u64::try_from(stat.st_blksize).unwrap_or(0))
    };
    match (spec.read_only, spec.unmaps) {
        (true, _) => found.read_only(),
        (false, true) => found,
        (false, false) => found.without_unmapping(),
    }
}

#[cfg(test)]
mod tests;
