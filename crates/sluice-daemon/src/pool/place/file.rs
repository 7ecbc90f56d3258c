//! A file or block device where hosts meet: blocks that are read and written without a cache.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use sluice_io::source::lock::lock_within;
use sluice_io::source::{ByteRange, SourceError};
use sluice_pool::block::{BLOCKS, SIZE};

use super::{Access, Place};

/// An open file or block device.
pub(super) struct Blocks {
    file: File,
    path: PathBuf,
}

impl Blocks {
    /// Opens a place for direct I/O whose writes are durable when they end.
    ///
    /// # Errors
    /// That of the file system; `EINVAL` where it has no direct I/O, `Unsupported` if it is neither a file nor a block device.
    pub(super) fn open(path: &Path, access: Access) -> io::Result<Blocks> {
        // Not even opened: a pipe waits for its other end.
        let is_wrong = |found: std::fs::Metadata| !found.is_file() && !found.file_type().is_block_device();
        if is_wrong(std::fs::metadata(path)?) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Blocks::open_as(path, if access == Access::Read { OFlags::RDONLY } else { OFlags::RDWR })
    }

    /// Makes a file full of zeroes.
    ///
    /// # Errors
    /// That of the file system, also if the file exists.
    pub(super) fn make(path: &Path) -> io::Result<Blocks> {
        let blocks = Blocks::open_as(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        let written = blocks.write(0, &vec![0; BLOCKS * SIZE]).and_then(|()| {
            // The name must outlast a crash of this host, too.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()
        });
        if let Err(error) = written {
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(blocks)
    }

    fn open_as(path: &Path, how: OFlags) -> io::Result<Blocks> {
        let flags = how | OFlags::DIRECT | OFlags::DSYNC | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
        Ok(Blocks { file, path: path.to_owned() })
    }
}

impl Place for Blocks {
    fn is_at_its_name(&self) -> io::Result<bool> {
        let (open, there) = (self.file.metadata()?, std::fs::metadata(&self.path)?);
        let same_disk = open.file_type().is_block_device() && open.rdev() == there.rdev();
        Ok(same_disk || (open.dev(), open.ino()) == (there.dev(), there.ino()))
    }

    fn read(&self, count: usize) -> io::Result<Vec<u8>> {
        let mut buffer = Aligned::new(count * SIZE);
        let mut filled = 0;
        while filled < count * SIZE {
            match rustix::io::pread(&self.file, &mut buffer.bytes()[filled..], filled as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(buffer.bytes().to_vec())
    }

    fn write(&self, first: usize, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = Aligned::new(bytes.len());
        buffer.bytes().copy_from_slice(bytes);
        let mut written = 0;
        while written < bytes.len() {
            let at = (first * SIZE + written) as u64;
            match rustix::io::pwrite(&self.file, &buffer.bytes()[written..], at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(wrote) => written += wrote,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn lock(&self, block: usize) -> io::Result<()> {
        let range = ByteRange::new((block * SIZE) as u64, SIZE as u64);
        let locked = lock_within(self.file.as_fd(), &self.path, range, true, Duration::ZERO);
        locked.map(drop).map_err(|error| match error {
            SourceError::Busy { .. } => io::Error::new(io::ErrorKind::ResourceBusy, error),
            other => io::Error::other(other),
        })
    }
}

/// Memory that is aligned for direct I/O.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Aligned {
        let memory = vec![0; length + SIZE];
        let start = memory.as_ptr().align_offset(SIZE);
        Aligned { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
