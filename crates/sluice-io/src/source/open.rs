//! Opens a volume: the checks in the order in which they can be answered.
//!
//! One description is opened and does everything: it carries the I/O, the lock and `O_DIRECT`. Opening
//! a second one for the lock would lose the guarantee that [`super::lock`] explains.
//!
//! The path is looked up once, and symbolic links that a tenant can change are refused ([`crate::path_walk`]). What is
//! opened afterwards is compared with what was checked: a file that has taken its place in between is refused.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::alignment::{self, Alignment};
use super::allocation::{self, Span};
use super::capabilities::{Capabilities, Support};
use super::disk::DiskSet;
use super::error::SourceError;
use super::extents::ExtentMap;
use super::forcing;
use super::lock;
use super::loss::{Loss, Mark};
use super::range::ByteRange;
use super::sysfs::Sysfs;
use crate::path_walk::{self, Found, Trust, WalkError};

/// What the configuration says about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// A raw regular file or a block device.
    pub path: PathBuf,
    /// Where the volume starts in it, in bytes.
    pub offset: u64,
    /// How long it is, in bytes; `None` means to the end of the file or device.
    pub length: Option<u64>,
    /// Opened and locked for reading only.
    pub read_only: bool,
    /// Through the page cache (`cache = "buffered"`); promises are then not given, because writeback
    /// escapes the gate.
    pub buffered: bool,
}

impl SourceSpec {
    /// All of `path`, for reading and writing, with direct I/O.
    #[must_use]
    pub fn whole(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), offset: 0, length: None, read_only: false, buffered: false }
    }

    fn range_in(&self, size_bytes: u64) -> ByteRange {
        let length = self.length.unwrap_or_else(|| size_bytes.saturating_sub(self.offset));
        ByteRange::new(self.offset, length)
    }
}

/// Which file or device a description belongs to, whatever path led there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The filesystem's device number; for a block device its own.
    pub dev: u64,
    /// The inode number; 0 for a block device.
    pub ino: u64,
}

/// An open, checked and locked volume. The lock ends with the last reference to its descriptor.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    path: PathBuf,
    range: ByteRange,
    id: FileId,
    alignment: Alignment,
    capabilities: Capabilities,
    block_device: bool,
    read_only: bool,
    buffered: bool,
    forces: bool,
    submission_may_block: bool,
    waited: Duration,
    lost: Mark,
}

impl Source {
    /// Opens, checks and locks a volume; a lock that is taken is refused at once.
    ///
    /// # Errors
    /// Every [`SourceError`] but `Disk`.
    pub fn open(spec: &SourceSpec) -> Result<Self, SourceError> {
        Self::open_within(spec, Duration::ZERO)
    }

    /// As [`Source::open`], but waits for the lock at most `wait`: after a crash, requests of the dead daemon
    /// may still be in the kernel. [`Source::waited`] tells how long it took.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_within(spec: &SourceSpec, wait: Duration) -> Result<Self, SourceError> {
        let path = &spec.path;
        let found = find(spec)?;
        let stat = found.stat();
        let block_device = is_block_device(stat, path)?;
        if block_device && !spec.read_only && is_claimed_by_host(&found) {
            return Err(SourceError::InUse { path: path.clone() });
        }
        let fd = open_description(spec, &found)?;
        let size_bytes = size_of(fd.as_fd(), stat, block_device).map_err(|error| inspect(path, "size", error))?;
        let range = spec.range_in(size_bytes);
        check_extent(path, range, size_bytes)?;
        let alignment = alignment_of(spec, fd.as_fd(), block_device, size_bytes)?;
        check_alignment(path, range, alignment).map_err(|misaligned| match format_of(&found) {
            Some(format) => SourceError::NotRaw { path: path.clone(), format },
            None => misaligned,
        })?;
        let forces = forcing::is_honoured(fd.as_fd(), block_device);
        let forces = forces.map_err(|error| inspect(path, "file system", error))? && !spec.buffered;
        let submission_may_block = forcing::submission_may_block(fd.as_fd());
        let submission_may_block = submission_may_block.map_err(|error| inspect(path, "file system", error))?;
        let waited = lock::lock_within(fd.as_fd(), path, range, !spec.read_only, wait)?;
        Ok(Self {
            path: path.clone(),
            range,
            id: id_of(stat, block_device),
            alignment,
            capabilities: capabilities_of(spec, stat, block_device),
            block_device,
            read_only: spec.read_only,
            buffered: spec.buffered,
            forces,
            submission_may_block,
            waited,
            lost: Mark::default(),
            fd,
        })
    }

    /// The same volume with another length, on the same description and so under the same lock, which covers what is
    /// added. `None`: up to the end of the file or device as it is now.
    ///
    /// # Errors
    /// As [`Source::open`]; nothing has changed then.
    pub fn resized(&self, length: Option<u64>) -> Result<Self, SourceError> {
        let path = &self.path;
        let stat = rustix::fs::fstat(&self.fd).map_err(|errno| inspect(path, "type", errno.into()))?;
        let size_bytes =
            size_of(self.fd.as_fd(), &stat, self.block_device).map_err(|error| inspect(path, "size", error))?;
        let length = length.unwrap_or_else(|| size_bytes.saturating_sub(self.range.offset));
        let range = ByteRange::new(self.range.offset, length);
        check_extent(path, range, size_bytes)?;
        check_alignment(path, range, self.alignment)?;
        lock::lock_within(self.fd.as_fd(), path, range, !self.read_only, Duration::ZERO)?;
        let fd = self.fd.try_clone().map_err(|error| inspect(path, "descriptor", error))?;
        let waited = Duration::ZERO;
        Ok(Self { path: path.clone(), range, waited, fd, lost: self.lost.clone(), ..*self })
    }

    /// Gives back the lock of what `longer` has beyond this: it came out of [`Source::resized`] and is not put into force.
    ///
    /// # Errors
    /// [`SourceError::Lock`].
    pub fn give_back(&self, longer: &Source) -> Result<(), SourceError> {
        let (end, length) = (self.range.end(), longer.range.end().saturating_sub(self.range.end()));
        if length == 0 {
            return Ok(());
        }
        lock::unlock(self.fd.as_fd(), &self.path, ByteRange::new(end, length))
    }

    /// Makes a regular file long enough for the volume to have `length` bytes; a longer one stays as it is, and so does a
    /// block device, which must be long enough. Returns the size that it had.
    ///
    /// # Errors
    /// [`SourceError::Length`]: too short and not a regular file that may be written, or the file system refuses.
    /// [`SourceError::Inspect`].
    pub fn extend(&self, length: u64) -> Result<u64, SourceError> {
        let inspected = |error: io::Error| inspect(&self.path, "size", error);
        let stat = rustix::fs::fstat(&self.fd).map_err(|errno| inspected(errno.into()))?;
        let before = size_of(self.fd.as_fd(), &stat, self.block_device).map_err(inspected)?;
        let end = self.range.offset.saturating_add(length);
        if end > before {
            if self.block_device || self.read_only {
                return Err(self.cannot_be_long(end, Errno::INVAL));
            }
            rustix::fs::ftruncate(&self.fd, end).map_err(|errno| self.cannot_be_long(end, errno))?;
        }
        Ok(before)
    }

    /// Gives a regular file the size that it had before [`Source::extend`].
    ///
    /// # Errors
    /// [`SourceError::Length`]: the file system refuses.
    pub fn cut(&self, size_bytes: u64) -> Result<(), SourceError> {
        rustix::fs::ftruncate(&self.fd, size_bytes).map_err(|errno| self.cannot_be_long(size_bytes, errno))
    }

    fn cannot_be_long(&self, length_bytes: u64, errno: Errno) -> SourceError {
        SourceError::Length { path: self.path.clone(), length_bytes, source: errno.into() }
    }

    /// Says that `reader` reads here, on a volume that is opened for reading only. Waits at most `wait` for the last requests
    /// of who did so under that name before, with whom the lock of a reader may be shared; `None` does not wait. Returns how
    /// long it waited.
    ///
    /// # Errors
    /// [`SourceError::Busy`], [`SourceError::Lock`].
    pub fn read_as(&self, reader: &str, wait: Option<Duration>) -> Result<Duration, SourceError> {
        lock::read_as(self.fd.as_fd(), &self.path, self.range, reader, wait)
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the volume lies in its file: a request at byte `n` of the volume is I/O at `range().offset + n`.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// The volume's size in bytes, a multiple of `alignment().offset`.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.range.length
    }

    /// Which file or device it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// What I/O on it wants.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// What it can do besides reading and writing.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether the disk has a command that makes zeroes, as far as the kernel knows now; for a block device. Reads sysfs.
    #[must_use]
    pub fn zeroing_now(&self) -> Support {
        Capabilities::zeroing_now(&Sysfs::host(), self.id.dev)
    }

    /// Whether it is (a range of) a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// Whether it is opened and locked for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether it goes through the page cache, so that its promises are not given.
    #[must_use]
    pub fn is_buffered(&self) -> bool {
        self.buffered
    }

    /// Whether a write that is asked to make itself durable (`RWF_DSYNC`) does; else a sync must follow it. Never through the
    /// page cache, where it is often others' writes that the sync fails for.
    #[must_use]
    pub fn forces_writes(&self) -> bool {
        self.forces
    }

    /// Whether even the submission of an operation may wait, for a server of the file system.
    #[must_use]
    pub fn submission_may_block(&self) -> bool {
        self.submission_may_block
    }

    /// How long opening waited for the lock.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What may have been lost of it, so that its writes and flushes fail.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.lost.get()
    }

    /// Notes a loss, or that it has been accepted.
    pub fn set_loss(&self, loss: Loss) {
        self.lost.set(loss);
    }

    /// Takes from the kernel what it would still say of writes that were lost before: it says so once to each description,
    /// and to none that has heard of it already. Blocks as long as a sync takes.
    pub fn hear_of_loss(&self) {
        let _ = rustix::fs::fdatasync(&self.fd);
    }

    /// Whether both have a byte of the same file or device: also through two nodes of one block device,
    /// which locks do not see.
    #[must_use]
    pub fn shares_bytes_with(&self, other: &Self) -> bool {
        self.id == other.id && self.range.overlaps(other.range)
    }

    /// The disks that serve it.
    ///
    /// # Errors
    /// [`SourceError::Disk`].
    pub fn disks(&self) -> Result<DiskSet, SourceError> {
        DiskSet::of_fd(&self.fd, &self.path)
    }

    /// Where its bytes lie on the disk, as of now.
    ///
    /// # Errors
    /// [`SourceError::Inspect`].
    pub fn extents(&self) -> Result<ExtentMap, SourceError> {
        ExtentMap::load(self.fd.as_fd(), self.range).map_err(|error| inspect(&self.path, "extents", error))
    }

    /// Which parts of `part` (bytes of the volume) hold data: at most `spans_max` spans from its start on.
    #[must_use]
    pub fn allocation(&self, part: ByteRange, spans_max: usize) -> Vec<Span> {
        allocation::allocation(self.fd.as_fd(), self.range, part, spans_max)
    }

    /// The description, for I/O. Every duplicate of it keeps the lock.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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

fn inspect(path: &Path, what: &'static str, source: io::Error) -> SourceError {
    SourceError::Inspect { path: path.to_path_buf(), what, source }
}

/// Asked before opening, because opening a pipe or a tape has effects of its own.
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

/// Whether a mount, swap, RAID or volume group of this host has the device for itself: the kernel then
/// refuses to open it exclusively. The exclusive descriptor is closed at once, since volumes on other
/// ranges of the device must be able to ask the same; and one at a time, or two of our own opens would
/// take each other for a mount.
fn is_claimed_by_host(device: &Found) -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    matches!(device.open(OFlags::RDONLY | OFlags::EXCL), Err(Errno::BUSY))
}

fn open_description(spec: &SourceSpec, found: &Found) -> Result<OwnedFd, SourceError> {
    let access = if spec.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let cache = if spec.buffered { OFlags::empty() } else { OFlags::DIRECT };
    found.open(access | cache).map_err(|errno| match errno {
        // The one reason for EINVAL on an existing file: its filesystem does not know O_DIRECT.
        Errno::INVAL if !spec.buffered => SourceError::NotDirect { path: spec.path.clone() },
        Errno::STALE => SourceError::Replaced { path: spec.path.clone() },
        errno => cannot_open(spec, errno),
    })
}

/// A block device has no size in its inode; its end is where seeking to the end leads.
fn size_of(fd: BorrowedFd<'_>, stat: &Stat, block_device: bool) -> io::Result<u64> {
    if block_device {
        return Ok(rustix::fs::seek(fd, SeekFrom::End(0))?);
    }
    Ok(u64::try_from(stat.st_size).expect("the kernel keeps no file of negative size"))
}

fn check_extent(path: &Path, range: ByteRange, size_bytes: u64) -> Result<(), SourceError> {
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

fn check_alignment(path: &Path, range: ByteRange, alignment: Alignment) -> Result<(), SourceError> {
    for (what, value_bytes) in [("offset", range.offset), ("length", range.length)] {
        if !alignment.fits(value_bytes) {
            let alignment_bytes = alignment.offset;
            return Err(SourceError::Misaligned { path: path.to_path_buf(), what, value_bytes, alignment_bytes });
        }
    }
    Ok(())
}

/// The format of a disk image that is not raw, by its first bytes. A raw disk may begin like one too, if its guest wants it so.
fn format_of(file: &Found) -> Option<&'static str> {
    let mut start = [0; 8];
    rustix::io::read(file.open(OFlags::RDONLY).ok()?, &mut start).ok()?;
    let formats = [(b"QFI\xfb".as_slice(), "qcow2"), (b"KDMV", "VMDK"), (b"vhdxfile", "VHDX")];
    formats.into_iter().find_map(|(magic, format)| start.starts_with(magic).then_some(format))
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
    if spec.read_only { found.read_only() } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Holder, Support};
    use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, StatxFlags, fcntl_getfl, mknodat, statx};
    use tempfile::{NamedTempFile, TempDir};

    const MIB: u64 = 1 << 20;
    /// Long enough for any machine; the event comes first.
    const LONG: Duration = Duration::from_secs(60);

    fn image(size_bytes: u64) -> NamedTempFile {
        let image = NamedTempFile::new().unwrap();
        image.as_file().set_len(size_bytes).unwrap();
        image
    }

    /// For tests in which the way to the disk does not matter.
    fn buffered(image: &NamedTempFile, offset: u64, length: Option<u64>) -> SourceSpec {
        SourceSpec { offset, length, buffered: true, ..SourceSpec::whole(image.path()) }
    }

    /// What the kernel itself says about direct I/O on a file, asked without our code.
    fn kernel_does_direct(path: &Path) -> bool {
        let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::DIRECT, Mode::empty());
        let told = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).unwrap();
        let refused = told.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && told.stx_dio_offset_align == 0;
        opened.is_ok() && !refused
    }

    fn read_first_block(source: &Source) -> Vec<u8> {
        let alignment = source.alignment();
        let (memory, block) = (alignment.memory as usize, alignment.offset as usize);
        let mut buffer = vec![0; memory + block];
        let start = buffer.as_ptr().align_offset(memory);
        let read = rustix::io::pread(source, &mut buffer[start..start + block], source.range().offset).unwrap();
        assert_eq!(read, block);
        buffer[start..start + block].to_vec()
    }

    #[test]
    fn direct_io_is_what_the_kernel_says_it_is() {
        for folder in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
            let image = NamedTempFile::new_in(&folder).unwrap();
            std::fs::write(image.path(), vec![7; MIB as usize]).unwrap();
            let expected = kernel_does_direct(image.path());
            match Source::open(&SourceSpec::whole(image.path())) {
                Ok(source) => {
                    assert!(expected, "{}", folder.display());
                    assert!(fcntl_getfl(&source).unwrap().contains(OFlags::DIRECT));
                    assert!(source.alignment().offset >= 512);
                    assert!(read_first_block(&source).iter().all(|&byte| byte == 7));
                }
                Err(SourceError::NotDirect { .. }) => assert!(!expected, "{}", folder.display()),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_buffered_volume_has_no_direct_flag_and_sectors_of_512() {
        let image = image(512 * 3);
        let source = Source::open(&buffered(&image, 512, None)).unwrap();
        assert!(!fcntl_getfl(&source).unwrap().contains(OFlags::DIRECT));
        assert_eq!(source.alignment(), Alignment { memory: 1, offset: 512 });
        assert_eq!((source.size_bytes(), source.range().offset), (1024, 512));
        assert!(source.is_buffered() && !source.is_block_device() && !source.is_read_only());
        assert_eq!(read_first_block(&source).len(), 512);
    }

    #[test]
    fn ranges_must_lie_in_the_file_and_fit_its_blocks() {
        let image = image(MIB);
        let refusal = |offset, length| Source::open(&buffered(&image, offset, length)).unwrap_err();
        assert!(
            matches!(refusal(0, Some(MIB + 1)), SourceError::TooShort { size_bytes: MIB, end_bytes, .. } if end_bytes == MIB + 1)
        );
        assert!(matches!(refusal(2 * MIB, None), SourceError::TooShort { .. }));
        assert!(matches!(refusal(512, Some(u64::MAX)), SourceError::TooShort { end_bytes: u64::MAX, .. }));
        assert!(matches!(refusal(MIB, None), SourceError::Empty { .. }));
        assert!(matches!(refusal(0, Some(0)), SourceError::Empty { .. }));
        assert!(matches!(refusal(100, None), SourceError::Misaligned { what: "offset", value_bytes: 100, .. }));
        assert!(matches!(refusal(0, Some(1000)), SourceError::Misaligned { what: "length", alignment_bytes: 512, .. }));
    }

    #[test]
    fn a_qcow2_image_of_odd_length_was_to_be_truncated() {
        let image = image(1000);
        rustix::io::pwrite(&image, b"QFI\xfb\0\0\0\x03", 0).unwrap();
        let refusal = Source::open(&buffered(&image, 0, None)).unwrap_err();
        assert!(matches!(refusal, SourceError::NotRaw { format: "qcow2", .. }), "{refusal}");
        rustix::io::pwrite(&image, &[0; 8], 0).unwrap();
        let refusal = Source::open(&buffered(&image, 0, None)).unwrap_err();
        assert!(matches!(refusal, SourceError::Misaligned { .. }), "{refusal}");
    }

    #[test]
    fn empty_files_are_refused_whatever_the_cache() {
        let image = image(0);
        for buffered in [false, true] {
            let spec = SourceSpec { buffered, ..SourceSpec::whole(image.path()) };
            assert!(matches!(Source::open(&spec), Err(SourceError::Empty { .. })));
        }
    }

    #[test]
    fn only_files_and_block_devices_are_volumes() {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for (path, expected) in
            [(folder.path(), "folder"), (&pipe, "pipe"), (Path::new("/dev/null"), "character device")]
        {
            match Source::open(&SourceSpec::whole(path)) {
                Err(SourceError::NotAVolume { kind, .. }) => assert_eq!(kind, expected),
                other => panic!("{other:?}"),
            }
        }
        let missing = Source::open(&SourceSpec::whole(folder.path().join("missing"))).unwrap_err();
        assert!(matches!(&missing, SourceError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn one_writer_per_byte_by_whatever_name() {
        let image = image(MIB);
        let folder = TempDir::new().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(image.path(), &link).unwrap();

        let first = Source::open(&buffered(&image, 0, Some(4096))).unwrap();
        let by_link = SourceSpec { path: link, ..buffered(&image, 0, None) };
        match Source::open(&by_link) {
            Err(SourceError::Busy { holder, range, .. }) => {
                assert_eq!((holder, range), (Holder::ThisProcess, ByteRange::new(0, MIB)));
            }
            other => panic!("{other:?}"),
        }
        let second = Source::open(&SourceSpec { offset: 4096, ..by_link }).unwrap();
        assert_eq!(first.id(), second.id());
        assert!(!first.shares_bytes_with(&second) && first.shares_bytes_with(&first));
    }

    #[test]
    fn a_link_that_a_tenant_put_in_place_of_its_image_gave_it_the_file_of_another() {
        let here = TempDir::new().unwrap();
        let (theirs, secret) = (here.path().join("theirs"), here.path().join("secret"));
        std::fs::create_dir(&theirs).unwrap();
        std::fs::File::create_new(&secret).unwrap().set_len(MIB).unwrap();
        let image = theirs.join("a.img");
        let spec = SourceSpec { buffered: true, ..SourceSpec::whole(&image) };
        std::os::unix::fs::symlink(&secret, &image).unwrap();
        assert!(Source::open(&spec).is_ok(), "only this user can have put it there");
        std::os::unix::fs::chown(&theirs, Some(54_321), None).unwrap();
        match Source::open(&spec) {
            Err(SourceError::Link { link, .. }) => assert_eq!(link, image),
            other => panic!("{other:?}"),
        }
        // The same while the path is being opened: now an image, now a link.
        let secret_inode = rustix::fs::stat(&secret).unwrap().st_ino;
        let own = theirs.join("own");
        std::fs::File::create_new(&own).unwrap().set_len(MIB).unwrap();
        let swap = || rustix::fs::renameat_with(CWD, &own, CWD, &image, RenameFlags::EXCHANGE).unwrap();
        path_walk::beside(swap, || {
            for _ in 0..2000 {
                match Source::open(&spec) {
                    Ok(source) => assert_ne!(rustix::fs::fstat(&source).unwrap().st_ino, secret_inode),
                    Err(SourceError::Link { .. } | SourceError::Replaced { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }

    #[test]
    fn readers_share() {
        let image = image(MIB);
        let reader = SourceSpec { read_only: true, ..buffered(&image, 0, None) };
        let (first, second) = (Source::open(&reader).unwrap(), Source::open(&reader).unwrap());
        assert_eq!(first.capabilities().discard, Support::No);
        assert!(second.is_read_only());
        assert!(matches!(Source::open(&buffered(&image, 0, None)), Err(SourceError::Busy { .. })));
    }

    #[test]
    fn a_duplicate_of_the_description_keeps_the_volume_and_opening_can_wait_for_it() {
        let image = image(MIB);
        let spec = buffered(&image, 0, None);
        let duplicate = Source::open(&spec).unwrap().into_fd().try_clone().unwrap();
        assert!(matches!(Source::open(&spec), Err(SourceError::Busy { .. })));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| Source::open_within(&spec, LONG));
            drop(duplicate);
            waiter.join().unwrap().unwrap();
        });
    }

    #[test]
    fn an_open_volume_answers_for_its_own_range() {
        let image = image(4 * MIB);
        rustix::io::pwrite(&image, &vec![7; MIB as usize], 2 * MIB).unwrap();
        image.as_file().sync_all().unwrap();
        let source = Source::open(&buffered(&image, 2 * MIB, None)).unwrap();

        let spans = source.allocation(ByteRange::new(0, 2 * MIB), 16);
        assert_eq!(spans.iter().map(|span| span.length).sum::<u64>(), 2 * MIB);
        assert_eq!(spans[0].kind, crate::source::Allocation::Data);
        assert!(source.extents().unwrap().physical(0).is_some());
        assert_eq!(source.disks().unwrap(), DiskSet::of_path(image.path()).unwrap());
    }
}
