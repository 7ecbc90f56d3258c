//! An NBD export: a volume under the name by which clients request it.

use super::wire::transmission_flag;
use crate::volume::VolumeInfo;

/// A volume as NBD offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Name by which clients request it, 1 to 4096 bytes.
    pub name: String,
    /// Description for people, at most 4096 bytes; empty means none.
    pub description: String,
    /// Size, properties and block sizes.
    pub info: VolumeInfo,
}

impl Export {
    /// Returns a writable export with every feature ([`VolumeInfo::with_all_features`]) and without a description.
    #[must_use]
    pub fn with_all_features(name: impl Into<String>, size_bytes: u64) -> Export {
        let info = VolumeInfo::with_all_features(size_bytes);
        Export { name: name.into(), description: String::new(), info }
    }
}

/// Returns the transmission flags of a volume. `structured_replies` states whether the client negotiated them.
///
/// `DF` (do not fragment) may be offered only with structured replies. It is then always offered, because the reply to a
/// read is always one chunk. Several connections are always allowed, because a flush covers the writes that completed on
/// all of them. `CACHE` and resize are never offered.
#[must_use]
pub fn transmission_flags(info: &VolumeInfo, structured_replies: bool) -> u16 {
    let bits = [
        (true, transmission_flag::HAS_FLAGS),
        (info.read_only, transmission_flag::READ_ONLY),
        (info.flush, transmission_flag::SEND_FLUSH),
        (info.fua, transmission_flag::SEND_FUA),
        (info.rotational, transmission_flag::ROTATIONAL),
        (info.trim, transmission_flag::SEND_TRIM),
        (info.write_zeroes, transmission_flag::SEND_WRITE_ZEROES),
        (info.write_zeroes && info.fast_zero, transmission_flag::SEND_FAST_ZERO),
        (true, transmission_flag::CAN_MULTI_CONN),
        (structured_replies, transmission_flag::SEND_DF),
    ];
    bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit)
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
        let all = VolumeInfo::with_all_features(1 << 20);
        assert_eq!(transmission_flags(&all, true), 0b1001_1110_1101);
        assert_eq!(transmission_flags(&all, false), 0b1001_0110_1101);
        let bare = VolumeInfo {
            read_only: true,
            flush: false,
            fua: false,
            trim: false,
            write_zeroes: false,
            rotational: true,
            ..all
        };
        assert_eq!(transmission_flags(&bare, false), 0b1_0001_0011, "no fast zero without zeroing");
    }
}
