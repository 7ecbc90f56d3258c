//! What a source can do besides reading and writing: punch holes, write zeroes, discard.
//!
//! For a block device the queue's limits in sysfs say so. For a file only an attempt says so: it is
//! [`Support::Assumed`], and who gets "not supported" for an attempt puts [`Support::No`] in its copy and
//! falls back to writing zeroes (or, for a discard, to doing nothing, which a discard allows).

use super::sysfs::Sysfs;

/// Whether an operation works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// The device says that it can.
    Yes,
    /// Nobody says; try it, and note [`Support::No`] at the first "not supported".
    Assumed,
    /// It cannot, or the volume is read-only.
    No,
}

impl Support {
    /// Whether to try.
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
    /// `fallocate` with `PUNCH_HOLE | KEEP_SIZE`: space is given back and reads as zeroes.
    pub punch_hole: Support,
    /// `fallocate` with `ZERO_RANGE | KEEP_SIZE`: reads as zeroes, space stays. A block device is never refused: where it
    /// has no such command, the kernel writes every zero itself, which costs as much as the writes.
    pub zero_range: Support,
    /// Discard: content afterwards undefined. For a file the same as `punch_hole`.
    pub discard: Support,
    /// Smaller discards than this have no effect, in bytes; 0 when unknown.
    pub discard_granularity_bytes: u64,
    /// Whether the block device has a spindle; `false` for a file, see [`super::DiskSet::is_rotational`].
    pub rotational: bool,
}

impl Capabilities {
    /// Of a regular file with this preferred block size (`st_blksize`).
    pub(super) fn of_file(block_bytes: u64) -> Self {
        Self {
            punch_hole: Support::Assumed,
            zero_range: Support::Assumed,
            discard: Support::Assumed,
            discard_granularity_bytes: block_bytes,
            rotational: false,
        }
    }

    /// Of a block device or partition, by its number.
    ///
    /// `zero_range` is at most `Assumed`: a loop device on a file system that cannot make zeroes says that it can, until it
    /// is asked for the first time. See [`Capabilities::zeroing_now`].
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

    /// Whether a block device has a command that makes zeroes, as far as the kernel knows now. The kernel forgets it when the
    /// device refuses it.
    pub(super) fn zeroing_now(sysfs: &Sysfs, dev: u64) -> Support {
        Support::by_limit(sysfs.queue(dev, "write_zeroes_max_bytes"))
    }

    /// The same without everything that changes the content.
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
