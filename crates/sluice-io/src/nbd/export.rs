//! One export: what a client is told about a volume before it may use it.
//!
//! The values come from the volume: a file that wants 4096-byte alignment for direct I/O has
//! `block_minimum = 4096`, and a misaligned request is then refused, as a 4Kn disk does. The protocol
//! wants the three block sizes in a certain relation, so an [`Export`] is checked once when the volume is opened.

use super::wire::{PAYLOAD_LEN_MAX, STRING_LEN_MAX, transmission_flag};

/// Largest minimum block size, in bytes, that the protocol allows.
pub const BLOCK_MINIMUM_MAX: u32 = 64 << 10;

/// What one export offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Name by which clients ask for it, 1 to 4096 bytes.
    pub name: String,
    /// Text for people, at most 4096 bytes; empty means none.
    pub description: String,
    /// Size in bytes, a multiple of `block_minimum`.
    pub size_bytes: u64,
    /// Writes, trims and zeroing are refused.
    pub read_only: bool,
    /// `FLUSH` is offered.
    pub flush: bool,
    /// Writes may ask to be durable before they are answered.
    pub fua: bool,
    /// `TRIM` is offered.
    pub trim: bool,
    /// `WRITE_ZEROES` is offered.
    pub write_zeroes: bool,
    /// Zeroing that is no faster than writing can be refused; needs `write_zeroes`.
    pub fast_zero: bool,
    /// A flush on one connection covers what was completed on all others.
    pub multi_conn: bool,
    /// A rotating disk.
    pub rotational: bool,
    /// Offsets and lengths are multiples of this many bytes; a power of two, at most 64 KiB.
    pub block_minimum: u32,
    /// Requests of this many bytes are efficient; a power of two, at least `block_minimum` and 512.
    pub block_preferred: u32,
    /// Longest read or write in bytes; a multiple of `block_minimum`, from `block_preferred` to 64 MiB.
    pub block_maximum: u32,
}

/// Why an export cannot be offered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The name is empty or too long.
    #[error("The export name has {len_bytes} bytes: give it 1 to {STRING_LEN_MAX}")]
    NameLength {
        /// Its length.
        len_bytes: usize,
    },
    /// The description is too long.
    #[error("The description of export {name:?} has {len_bytes} bytes: shorten it to {STRING_LEN_MAX}")]
    DescriptionLength {
        /// The export.
        name: String,
        /// Its length.
        len_bytes: usize,
    },
    /// The block sizes contradict each other or the protocol.
    #[error("Export {name:?} has block sizes {minimum}/{preferred}/{maximum} bytes: {rule}")]
    BlockSizes {
        /// The export.
        name: String,
        /// `block_minimum`.
        minimum: u32,
        /// `block_preferred`.
        preferred: u32,
        /// `block_maximum`.
        maximum: u32,
        /// What must hold.
        rule: &'static str,
    },
    /// The size is not a multiple of the minimum block size.
    #[error("Export {name:?} has {size_bytes} bytes, which is not a multiple of its minimum block size {minimum}")]
    Size {
        /// The export.
        name: String,
        /// Its size.
        size_bytes: u64,
        /// `block_minimum`.
        minimum: u32,
    },
}

impl Export {
    /// Returns a writable export with every feature, without a description, and with block sizes of 512 B, 4 KiB and 1 MiB.
    #[must_use]
    pub fn with_all_features(name: impl Into<String>, size_bytes: u64) -> Export {
        Export {
            name: name.into(),
            description: String::new(),
            size_bytes,
            read_only: false,
            flush: true,
            fua: true,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            multi_conn: true,
            rotational: false,
            block_minimum: 512,
            block_preferred: 4096,
            block_maximum: 1 << 20,
        }
    }

    /// Checks the rules stated at the fields.
    ///
    /// # Errors
    /// [`ExportError`] names the first rule that is broken.
    pub fn validate(&self) -> Result<(), ExportError> {
        let len_bytes = self.name.len();
        if len_bytes == 0 || len_bytes > STRING_LEN_MAX {
            return Err(ExportError::NameLength { len_bytes });
        }
        if self.description.len() > STRING_LEN_MAX {
            let len_bytes = self.description.len();
            return Err(ExportError::DescriptionLength { name: self.name.clone(), len_bytes });
        }
        if let Some(rule) = self.broken_block_rule() {
            return Err(ExportError::BlockSizes {
                name: self.name.clone(),
                minimum: self.block_minimum,
                preferred: self.block_preferred,
                maximum: self.block_maximum,
                rule,
            });
        }
        if !self.size_bytes.is_multiple_of(u64::from(self.block_minimum)) {
            let (size_bytes, minimum) = (self.size_bytes, self.block_minimum);
            return Err(ExportError::Size { name: self.name.clone(), size_bytes, minimum });
        }
        Ok(())
    }

    /// The transmission flags of this export. `structured_replies` says what the client negotiated:
    /// `DF` (do not fragment) may be offered only then, and always is, because a read is answered by
    /// one chunk anyway. `CACHE` and resize are never offered.
    pub fn transmission_flags(&self, structured_replies: bool) -> u16 {
        let bits = [
            (true, transmission_flag::HAS_FLAGS),
            (self.read_only, transmission_flag::READ_ONLY),
            (self.flush, transmission_flag::SEND_FLUSH),
            (self.fua, transmission_flag::SEND_FUA),
            (self.rotational, transmission_flag::ROTATIONAL),
            (self.trim, transmission_flag::SEND_TRIM),
            (self.write_zeroes, transmission_flag::SEND_WRITE_ZEROES),
            (self.write_zeroes && self.fast_zero, transmission_flag::SEND_FAST_ZERO),
            (self.multi_conn, transmission_flag::CAN_MULTI_CONN),
            (structured_replies, transmission_flag::SEND_DF),
        ];
        bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit)
    }

    /// Whether a client that was told `told` is served right by this: nothing is different, but it may have grown.
    #[must_use]
    pub fn keeps(&self, told: &Export) -> bool {
        let grown = Export { size_bytes: self.size_bytes, ..told.clone() };
        grown == *self && self.size_bytes >= told.size_bytes
    }

    fn broken_block_rule(&self) -> Option<&'static str> {
        let (minimum, preferred, maximum) = (self.block_minimum, self.block_preferred, self.block_maximum);
        if !minimum.is_power_of_two() || minimum > BLOCK_MINIMUM_MAX {
            return Some("make the minimum a power of two from 1 to 65536");
        }
        if !preferred.is_power_of_two() || preferred < minimum.max(512) {
            return Some("make the preferred size a power of two, at least 512 and at least the minimum");
        }
        if maximum < preferred || maximum > PAYLOAD_LEN_MAX || !maximum.is_multiple_of(minimum) {
            return Some("make the maximum a multiple of the minimum, from the preferred size to 64 MiB");
        }
        None
    }
}

/// Returns an export of 1 MiB with every feature and a description, for tests.
#[cfg(test)]
pub(crate) fn sample(name: &str) -> Export {
    Export { description: format!("about {name}"), ..Export::with_all_features(name, 1 << 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_follow_the_fields() {
        let all = sample("a");
        assert_eq!(all.transmission_flags(true), 0b1001_1110_1101);
        assert_eq!(all.transmission_flags(false), 0b1001_0110_1101);
        let bare = Export {
            read_only: true,
            flush: false,
            fua: false,
            trim: false,
            write_zeroes: false,
            multi_conn: false,
            rotational: true,
            ..all
        };
        assert_eq!(bare.transmission_flags(false), 0b1_0011, "no fast zero without zeroing");
    }

    #[test]
    fn what_was_told_is_kept_by_the_same_that_may_have_grown() {
        let told = sample("a");
        let with_size = |size_bytes| Export { size_bytes, ..sample("a") };
        assert!(told.keeps(&told) && with_size(2 << 20).keeps(&told));
        assert!(!with_size(1 << 19).keeps(&told));
        assert!(!Export { read_only: true, ..sample("a") }.keeps(&told) && !sample("b").keeps(&told));
    }

    #[test]
    fn rules_of_validate() {
        type Case = (&'static str, fn(&mut Export), bool);
        let cases: [Case; 14] = [
            ("the sample", |_| (), true),
            ("an empty name", |e| e.name.clear(), false),
            ("the longest name", |e| e.name = "x".repeat(4096), true),
            ("a longer name", |e| e.name = "x".repeat(4097), false),
            ("a long description", |e| e.description = "x".repeat(4097), false),
            ("minimum 1", |e| e.block_minimum = 1, true),
            ("minimum 0", |e| e.block_minimum = 0, false),
            ("minimum 513", |e| e.block_minimum = 513, false),
            ("minimum 128 KiB", |e| e.block_minimum = 128 << 10, false),
            ("preferred below minimum", |e| e.block_minimum = 8192, false),
            ("preferred 256", |e| (e.block_minimum, e.block_preferred) = (1, 256), false),
            ("maximum below preferred", |e| e.block_maximum = 2048, false),
            ("maximum above 64 MiB", |e| e.block_maximum = (64 << 20) + 512, false),
            ("a size off the grid", |e| e.size_bytes = 1000, false),
        ];
        for (what, change, valid) in cases {
            let mut export = sample("a");
            change(&mut export);
            assert_eq!(export.validate().is_ok(), valid, "{what}: {:?}", export.validate());
        }
    }
}
