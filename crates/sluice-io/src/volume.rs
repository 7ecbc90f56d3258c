//! A volume, as the control plane gives it to a device thread and as every frontend sees it.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_sched::Policy;

use crate::store::StoreSpec;

/// Largest minimum block size, in bytes, that the NBD protocol allows.
pub const BLOCK_MINIMUM_MAX: u32 = 64 << 10;
/// Largest `block_maximum` of a volume, in bytes.
pub const BLOCK_MAXIMUM_MAX: u32 = 64 << 20;

/// Distinguishes a volume from others of the same VM and name. Each opened volume has another generation. It stays the
/// same after a resize or a restart of the device thread.
///
/// Example: `web/root` is detached, and another disk is attached under that name. A client whose handshake started
/// before refers to the old generation, and the device thread disconnects it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeGeneration(u64);

impl VolumeGeneration {
    /// Returns a generation that no other volume of this process has.
    #[must_use]
    pub fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        VolumeGeneration(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A volume, and how it is served.
#[derive(Debug, Clone)]
pub struct VolumeSpec {
    /// Name in the host file.
    pub name: String,
    pub generation: VolumeGeneration,
    /// Policy within its VM.
    pub policy: Policy,
    pub store: StoreSpec,
    pub info: VolumeInfo,
}

/// Size and properties of a volume, the same for every frontend.
///
/// `block_minimum` belongs to the volume's data ([`crate::source::block_size`]), and frontends refuse a request that is not
/// aligned to it, as a disk does. `block_preferred` is at least the alignment that the source needs. The NBD protocol limits how the three block sizes relate,
/// so [`VolumeInfo::validate`] checks them once when the volume is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Size in bytes, a multiple of `block_minimum`.
    pub size_bytes: u64,
    /// Serial number, at most 20 bytes.
    pub serial: String,
    /// Whether writes, discards and zeroing are refused.
    pub read_only: bool,
    /// Whether flushes are supported.
    pub flush: bool,
    /// Whether a write may be forced (FUA).
    pub fua: bool,
    /// Whether discards are supported.
    pub trim: bool,
    /// Whether zeroing a range is supported.
    pub write_zeroes: bool,
    /// Whether zeroing that is no faster than writing can be refused; needs `write_zeroes`.
    pub fast_zero: bool,
    /// Whether it is on a rotating disk.
    pub rotational: bool,
    /// Offsets and lengths are multiples of this many bytes; a power of two, at most 64 KiB.
    pub block_minimum: u32,
    /// Efficient request size in bytes; a power of two, at least `block_minimum` and 512.
    pub block_preferred: u32,
    /// Maximum length of a read or write in bytes; a multiple of `block_minimum`, from `block_preferred` to 64 MiB.
    pub block_maximum: u32,
}

/// Why a volume cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VolumeInfoError {
    /// The block sizes contradict each other or the NBD protocol.
    #[error("The block sizes are {minimum}/{preferred}/{maximum} bytes: {rule}")]
    BlockSizes {
        /// `block_minimum`.
        minimum: u32,
        /// `block_preferred`.
        preferred: u32,
        /// `block_maximum`.
        maximum: u32,
        /// The violated rule.
        rule: &'static str,
    },
    /// The size is not a multiple of the minimum block size.
    #[error("The size of {size_bytes} bytes is not a multiple of the minimum block size {minimum}")]
    Size {
        /// Size of the volume.
        size_bytes: u64,
        /// `block_minimum`.
        minimum: u32,
    },
}

impl VolumeInfo {
    /// Returns a writable volume with every feature and block sizes of 512 B, 4 KiB and 1 MiB.
    #[must_use]
    pub fn with_all_features(size_bytes: u64) -> VolumeInfo {
        VolumeInfo {
            size_bytes,
            serial: String::new(),
            read_only: false,
            flush: true,
            fua: true,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            rotational: false,
            block_minimum: 512,
            block_preferred: 4096,
            block_maximum: 1 << 20,
        }
    }

    /// Checks the rules stated at the fields.
    ///
    /// # Errors
    /// [`VolumeInfoError`] for the first violated rule.
    pub fn validate(&self) -> Result<(), VolumeInfoError> {
        let (minimum, preferred, maximum) = (self.block_minimum, self.block_preferred, self.block_maximum);
        if let Some(rule) = self.broken_block_rule() {
            return Err(VolumeInfoError::BlockSizes { minimum, preferred, maximum, rule });
        }
        if !self.size_bytes.is_multiple_of(u64::from(minimum)) {
            return Err(VolumeInfoError::Size { size_bytes: self.size_bytes, minimum });
        }
        Ok(())
    }

    /// Whether a client that negotiated with `offered` may use this volume: only the size may differ, and it may only have
    /// grown.
    #[must_use]
    pub fn extends(&self, offered: &VolumeInfo) -> bool {
        let grown = VolumeInfo { size_bytes: self.size_bytes, ..offered.clone() };
        grown == *self && self.size_bytes >= offered.size_bytes
    }

    fn broken_block_rule(&self) -> Option<&'static str> {
        let (minimum, preferred, maximum) = (self.block_minimum, self.block_preferred, self.block_maximum);
        if !minimum.is_power_of_two() || minimum > BLOCK_MINIMUM_MAX {
            return Some("make the minimum a power of two from 1 to 65536");
        }
        if !preferred.is_power_of_two() || preferred < minimum.max(512) {
            return Some("make the preferred size a power of two, at least 512 and at least the minimum");
        }
        if maximum < preferred || maximum > BLOCK_MAXIMUM_MAX || !maximum.is_multiple_of(minimum) {
            return Some("make the maximum a multiple of the minimum, from the preferred size to 64 MiB");
        }
        None
    }
}

/// Returns a volume of 1 MiB with every feature, for tests.
#[cfg(test)]
pub(crate) fn sample() -> VolumeInfo {
    VolumeInfo::with_all_features(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_has_only_grown_extends_what_a_client_was_offered() {
        let offered = sample();
        let with_size = |size_bytes| VolumeInfo { size_bytes, ..sample() };
        assert!(offered.extends(&offered) && with_size(2 << 20).extends(&offered));
        assert!(!with_size(1 << 19).extends(&offered));
        assert!(!VolumeInfo { read_only: true, ..sample() }.extends(&offered));
    }

    #[test]
    fn rules_of_validate() {
        type Case = (&'static str, fn(&mut VolumeInfo), bool);
        let cases: [Case; 10] = [
            ("the sample", |_| (), true),
            ("minimum 1", |e| e.block_minimum = 1, true),
            ("minimum 0", |e| e.block_minimum = 0, false),
            ("minimum 513", |e| e.block_minimum = 513, false),
            ("minimum 128 KiB", |e| e.block_minimum = 128 << 10, false),
            ("preferred below minimum", |e| e.block_minimum = 8192, false),
            ("preferred 256", |e| (e.block_minimum, e.block_preferred) = (1, 256), false),
            ("maximum below preferred", |e| e.block_maximum = 2048, false),
            ("maximum above 64 MiB", |e| e.block_maximum = (64 << 20) + 512, false),
            ("a size that is not a multiple of the minimum", |e| e.size_bytes = 1000, false),
        ];
        for (what, change, valid) in cases {
            let mut info = sample();
            change(&mut info);
            assert_eq!(info.validate().is_ok(), valid, "{what}: {:?}", info.validate());
        }
    }
}
