//! File systems that honour a request for a durable write.
//!
//! A write with its own sync (`RWF_DSYNC`) costs one operation instead of two, and on a disk with FUA no flush of the
//! whole cache. But not every file system honours the flag for asynchronous direct writes: FUSE drops it, and an
//! acknowledged write is lost in a power failure. So the flag is used on block devices, and on file systems that
//! `crates/sluice/tests/forced.rs` has shown to flush. Everywhere else a sync follows the write.

use std::io;
use std::os::fd::BorrowedFd;

/// `f_type` of file systems that honour the flag: ext2 to ext4, xfs, btrfs.
const HONOURED_BY: [u64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Whether a completed direct write with `RWF_DSYNC` on this description is durable.
pub(super) fn is_honoured(fd: BorrowedFd<'_>, block_device: bool) -> io::Result<bool> {
    if block_device {
        return Ok(true);
    }
    let found = rustix::fs::fstatfs(fd)?;
    Ok(HONOURED_BY.contains(&(found.f_type as u64)))
}

/// `f_type` of file systems whose server may hang: NFS, SMB, SMB2, FUSE, 9P, Ceph.
const REMOTE: [u64; 6] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x6573_5546, 0x0102_1997, 0x00c3_6400];

/// Whether the submission of an operation may wait for a server, so that it must not happen on the device thread.
pub(super) fn submission_may_block(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(REMOTE.contains(&(rustix::fs::fstatfs(fd)?.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn an_untested_file_system_was_trusted_with_forced_writes() {
        let untested = memfd_create("untested", MemfdFlags::CLOEXEC).unwrap();
        assert!(!is_honoured(untested.as_fd(), false).unwrap());
        assert!(is_honoured(untested.as_fd(), true).unwrap(), "block devices are");
    }
}
