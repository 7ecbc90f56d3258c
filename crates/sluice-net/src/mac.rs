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
    fn groups_are_no_stations() {
        assert!(Mac::BROADCAST.is_multicast() && Mac::BROADCAST.is_broadcast() && !Mac::BROADCAST.is_station());
        assert!(!Mac([0; 6]).is_station() && !Mac([0; 6]).is_multicast());
        assert!(Mac([0x52, 0, 0, 0, 0, 1]).is_station());
        assert!(Mac([0x01, 0x80, 0xc2, 0, 0, 0x0e]).is_link_local());
        assert!(!Mac([0x01, 0x80, 0xc2, 0, 0, 0x10]).is_link_local());
    }
}
