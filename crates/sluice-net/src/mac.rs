//! Ethernet addresses.

use core::fmt;
use core::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

/// A text that is not an Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a MAC address; write for example \"52:54:00:12:34:56\"")]
pub struct MacError(pub String);

impl Mac {
    /// The address of all stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// The address of a NIC for which none is stated: locally administered, and the same for the same names on every host and after
    /// every restart.
    #[must_use]
    pub fn of(vm: &str, nic: &str) -> Mac {
        // FNV-1a. A name contains no slash, so different pairs of names are different texts.
        let text = vm.bytes().chain(*b"/").chain(nic.bytes());
        let hash = text
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // Its high bits depend on all bytes, unlike the low ones.
        let [first, rest @ ..] = hash.to_be_bytes();
        let [b, c, d, e, f, ..] = rest;
        Mac([first & 0xfc | 0x02, b, c, d, e, f])
    }

    /// Whether the address names a group of stations. A broadcast is such a group. No station sends from it.
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    #[must_use]
    pub fn is_broadcast(self) -> bool {
        self == Mac::BROADCAST
    }

    /// Whether one station can have this address: it is not a group, and not zero.
    #[must_use]
    pub fn is_station(self) -> bool {
        !self.is_multicast() && self != Mac([0; 6])
    }

    /// Whether IEEE 802.1D reserves the address for a link between neighbours (`01:80:c2:00:00:00` to `0f`): spanning tree,
    /// pause, LACP, LLDP. A switch does not forward such frames.
    #[must_use]
    pub fn is_link_local(self) -> bool {
        self.0[..5] == [0x01, 0x80, 0xc2, 0, 0] && self.0[5] <= 0x0f
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = MacError;

    /// Reads six bytes in hexadecimal, two digits each, with colons or with hyphens between them.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut parts = text.split(separator);
        let mut byte = || {
            let part =
                parts.next().filter(|part| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
            u8::from_str_radix(part, 16).ok()
        };
        let mut bytes = [0; 6];
        for slot in &mut bytes {
            *slot = byte().ok_or_else(|| MacError(text.to_owned()))?;
        }
        if parts.next().is_some() {
            return Err(MacError(text.to_owned()));
        }
        Ok(Mac(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_is_read_as_it_is_written() {
        let mac = Mac([0x52, 0x54, 0, 0x12, 0xab, 0xff]);
        assert_eq!(mac.to_string(), "52:54:00:12:ab:ff");
        assert_eq!("52:54:00:12:ab:ff".parse(), Ok(mac));
        assert_eq!("52-54-00-12-AB-FF".parse(), Ok(mac));
    }

    #[test]
    fn a_text_that_is_no_mac_is_rejected() {
        for text in [
            "",
            "52",
            "52:54:00:12:34",
            "52:54:00:12:34:56:78",
            "52:54:00:12:34:5",
            "52:54:00:12:34:+5",
            "5g:54:00:12:34:56",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(MacError(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn the_default_address_is_stable_and_local_and_differs_between_names() {
        // Stated as a number, because guests keep it: it must be the same in every version.
        assert_eq!(Mac::of("db1", "eth0").to_string(), "4e:ba:3c:e4:4d:b8");
        let mut all: Vec<Mac> = (0..100)
            .flat_map(|vm| (0..100).map(move |nic| Mac::of(&format!("vm{vm}"), &format!("eth{nic}"))))
            .collect();
        assert!(all.iter().all(|mac| mac.is_station() && mac.0[0] & 2 == 2));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        assert_ne!(Mac::of("a", "b1"), Mac::of("ab", "1"));
    }

    #[test]
    fn groups_are_no_stations() {
        assert!(Mac::BROADCAST.is_multicast() && Mac::BROADCAST.is_broadcast() && !Mac::BROADCAST.is_station());
        assert!(!Mac([0; 6]).is_station() && !Mac([0; 6]).is_multicast());
        assert!(Mac([0x52, 0, 0, 0, 0, 1]).is_station());
        assert!(Mac([0x01, 0x80, 0xc2, 0, 0, 0x0e]).is_link_local());
        assert!(!Mac([0x01, 0x80, 0xc2, 0, 0, 0x10]).is_link_local());
    }
}
