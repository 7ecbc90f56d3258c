//! Operations of a source other than reading and writing: punch holes, zero ranges, discard.
//!
//! For a block device the queue limits in sysfs state them. For a file only an attempt shows them: it is
//! [`Support::Assumed`], and after a "not supported" the user sets [`Support::No`] in its copy. It then writes zeroes
//! instead, or ignores a discard, which is allowed.

use super::sysfs::Sysfs;

/// Whether an operation is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// The device reports that it is.
    Yes,
    /// Not known. Try it, and record [`Support::No`] at the first "not supported".
    Assumed,
    /// It is not, or the volume is read-only.
    No,
}

impl Support {
    /// Whether an attempt is worthwhile.
    #[must_use]
    pub const fn is_worth_trying(self) -> bool {
        !matches!(self, Self::No)
    }

    const fn by_limit(bytes_max: Option<u64>) -> Self {
        match bytes_max {
            Some(0) | None => Self::No,
            Some(_) => Self::Yes,
        }
    }
}

/// The operations that a source offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// `fallocate` with `PUNCH_HOLE | KEEP_SIZE`: frees space, which then reads as zeroes.
    pub punch_hole: Support,
    /// `fallocate` with `ZERO_RANGE | KEEP_SIZE`: reads as zeroes, and the space stays allocated. A block device never refuses it: without such a command the kernel writes the zeroes itself, at the cost of normal writes.
    pub zero_range: Support,
    /// Discard: the contents are undefined afterwards. For a file the same as `punch_hole`.
    pub discard: Support,
    /// Smaller discards than this have no effect, in bytes; 0 if unknown.
    pub discard_granularity_bytes: u64,
    /// Whether the block device is a rotating disk; `false` for a file, see [`super::DiskSet::is_rotational`].
    pub rotational: bool,
}

impl Capabilities {
    /// Returns those of a regular file with this preferred block size (`st_blksize`).
    pub(super) fn of_file(block_bytes: u64) -> Self {
        Self {
            punch_hole: Support::Assumed,
            zero_range: Support::Assumed,
            discard: Support::Assumed,
            discard_granularity_bytes: block_bytes,
            rotational: false,
        }
    }

    /// Returns those of a block device or partition, by its number.
    ///
    /// `zero_range` is at most `Assumed`: a loop device on a file system that cannot zero reports that it can, until the first attempt. See [`Capabilities::zeroing_now`].
    pub(super) fn of_block_device(sysfs: &Sysfs, dev: u64) -> Self {
        let punch_hole = Self::zeroing_now(sysfs, dev);
        let zero_range = if punch_hole.is_worth_trying() { Support::Assumed } else { Support::No };
        Self {
            punch_hole,
            zero_range,
            discard: Support::by_limit(sysfs.queue(dev, "discard_max_bytes")),
            discard_granularity_bytes: sysfs.queue(dev, "discard_granularity").unwrap_or(0),
            rotational: sysfs.queue(dev, "rotational") == Some(1),
        }
    }

    /// Whether a block device can zero by itself, as far as the kernel knows now. The kernel corrects this when the
    /// device refuses the command.
    pub(super) fn zeroing_now(sysfs: &Sysfs, dev: u64) -> Support {
        Support::by_limit(sysfs.queue(dev, "write_zeroes_max_bytes"))
    }

    /// Removes all operations that free space.
    pub(super) fn without_unmapping(self) -> Self {
        Self { punch_hole: Support::No, discard: Support::No, ..self }
    }

    /// Removes all operations that change the contents.
    pub(super) fn read_only(self) -> Self {
        Self { punch_hole: Support::No, zero_range: Support::No, discard: Support::No, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::disk::testing::FakeSysfs;
    use rustix::fs::makedev;

    #[test]
    fn a_block_devices_limits_decide() {
        let fake = FakeSysfs::new();
        fake.disk("sda", 8, 0, true);
        fake.write("sda", "queue/discard_max_bytes", "2147450880\n");
        fake.write("sda", "queue/discard_granularity", "4096\n");
        fake.write("sda", "queue/write_zeroes_max_bytes", "0\n");
        fake.partition("sda", "sda1", 8, 1, 2048);

        let found = Capabilities::of_block_device(&fake.sysfs(), makedev(8, 1));
        assert_eq!((found.discard, found.punch_hole, found.zero_range), (Support::Yes, Support::No, Support::No));
        assert_eq!((found.discard_granularity_bytes, found.rotational), (4096, true));
    }

    #[test]
    fn an_unknown_device_offers_nothing() {
        let fake = FakeSysfs::new();
        let found = Capabilities::of_block_device(&fake.sysfs(), makedev(8, 1));
        assert!(!found.discard.is_worth_trying() && !found.zero_range.is_worth_trying());
    }

    #[test]
    fn files_are_assumed_able_unless_read_only() {
        let file = Capabilities::of_file(4096);
        assert!(file.punch_hole.is_worth_trying() && file.discard.is_worth_trying());
        let read_only = file.read_only();
        assert_eq!(read_only.punch_hole, Support::No);
        assert_eq!(read_only.discard_granularity_bytes, 4096);
    }
}
