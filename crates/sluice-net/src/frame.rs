//! Parses a frame from its first bytes.
//!
//! [`parse`] follows Ethernet, VLAN tags, ARP, IPv4, IPv6 with its extension headers, and the start of TCP, UDP and ICMPv6. It
//! reads nothing behind the first [`PREFIX_LEN`] bytes. A header that is cut off there, or that lies in another fragment, is
//! [`Transport::Hidden`] or [`Transport::Later`], so that a guard decides about it and does not take it for harmless.
//!
//! IP that is wrapped in LLC/SNAP (an 802.3 frame) is parsed as IP. Some receivers accept that form, and guards that do not look
//! into it have been bypassed with it, and with tags of VLAN 0.
//!
//! Example: an untagged TCP segment over IPv4 without options: `network_at` is 14, `transport_at` 34, `headers` 54.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::{Drop, Mac};

/// Bytes at the start of a frame that are copied, and from which everything is decided.
///
/// Tags, an IPv6 header and TCP with all its options need 8 + 14 + 40 + 60 = 122.
pub const PREFIX_LEN: usize = 128;

/// Length of an Ethernet header without tags.
pub(crate) const ETHERNET_LEN: usize = 14;
/// Length of a VLAN tag.
pub(crate) const TAG_LEN: usize = 4;
/// Longest packet behind the Ethernet header and tags: IP's length field has 16 bits.
const PACKET_MAX: u32 = 65_535;

/// Ether type of an 802.1Q tag.
pub(crate) const VLAN_TAG: u16 = 0x8100;
/// Ether types of tags: 802.1Q, 802.1ad and what older switches used for it.
const TAGS: [u16; 4] = [VLAN_TAG, 0x88a8, 0x9100, 0x9200];
/// Largest value of the type field that is a length (802.3).
const LLC_LENGTH_MAX: u16 = 1500;
/// Tags and LLC/SNAP headers that are followed, so that the IP header with all options is still in the prefix.
const WRAPS_MAX: usize = 4;

const ARP: u16 = 0x0806;
const REVERSE_ARP: u16 = 0x8035;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// ICMPv6 type of a router solicitation. This and the next three are neighbour discovery (RFC 4861).
pub(crate) const ROUTER_SOLICITATION: u8 = 133;
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// A parsed frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    pub destination: Mac,
    pub source: Mac,
    /// VLAN of the outer tag if that is an 802.1Q tag: 0 (only a priority) to 4095.
    pub vlan: Option<u16>,
    /// Tags of any type.
    pub tags: u8,
    /// The type behind tags and LLC/SNAP; below 1536 a length (802.3 without IP).
    pub ether_type: u16,
    pub network: Network,
    pub transport: Transport,
    /// Bytes up to the payload of TCP or UDP. 0 if that is not known, or if the frame cannot be cut into segments: a fragment, a
    /// packet with a routing header (its checksum is over another address), LLC/SNAP.
    pub headers: u16,
    /// First byte behind the Ethernet header and tags.
    pub network_at: u16,
    /// First byte of TCP, UDP, ICMPv6 or another protocol over IP. 0 if there is none or if it is not known.
    pub transport_at: u16,
    /// Bytes at the start on which decisions rest. No checksum may be written into them.
    pub decided: u16,
    /// Frames that it becomes on the wire. [`parse`] does not see the offload header, so this is 1 until the caller
    /// sets it from [`wire()`](crate::wire()).
    pub frames: u16,
}

/// The network protocol of a frame, with its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// ARP or reverse ARP for IPv4.
    Arp(Arp),
    Ipv4 {
        source: Ipv4Addr,
        destination: Ipv4Addr,
    },
    Ipv6 {
        source: Ipv6Addr,
        destination: Ipv6Addr,
    },
    /// Neither ARP nor IP.
    Other,
    /// ARP or IP with an impossible or truncated header, or more tags than are followed.
    Malformed,
}

/// An ARP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    pub sender: Mac,
    pub sender_ip: Ipv4Addr,
    pub target_ip: Ipv4Addr,
}

/// The protocol inside an IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Tcp,
    Udp {
        source: u16,
        destination: u16,
    },
    Icmpv6 {
        kind: u8,
        /// The address that a neighbour solicitation or advertisement is about.
        target: Option<Ipv6Addr>,
    },
    /// Another protocol.
    Other,
    /// A fragment other than the first.
    Later,
    /// The header is behind the prefix or truncated.
    Hidden,
    /// Not an IP packet.
    None,
}

impl Frame {
    /// Whether the frame is ARP or IPv6 neighbour discovery, without which stations do not find one another.
    #[must_use]
    pub fn finds_neighbours(&self) -> bool {
        let is_discovery = |kind| {
            matches!(
                kind,
                ROUTER_SOLICITATION | ROUTER_ADVERTISEMENT | NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT
            )
        };
        match (self.network, self.transport) {
            (Network::Arp(_), _) => true,
            (Network::Ipv6 { .. }, Transport::Icmpv6 { kind, .. }) => is_discovery(kind),
            _ => false,
        }
    }
}

/// Parses a frame of `length` bytes from its first bytes. `prefix` holds the first [`PREFIX_LEN`] bytes, or the whole frame if that is
/// shorter.
///
/// # Errors
/// [`Drop::Short`] without a whole Ethernet header, [`Drop::TooLong`] above the longest IP packet. Everything behind the Ethernet
/// header may be malformed: that is [`Network::Malformed`] or [`Transport::Hidden`], for the guard to judge.
pub fn parse(prefix: &[u8], length: u32) -> Result<Frame, Drop> {
    let seen = Seen(&prefix[..prefix.len().min(PREFIX_LEN).min(length as usize)]);
    let (Some(destination), Some(source), true) = (seen.array(0), seen.array(6), seen.0.len() >= ETHERNET_LEN) else {
        return Err(Drop::Short);
    };
    let link = Link::parse(seen);
    if length - link.network_at as u32 > PACKET_MAX {
        return Err(Drop::TooLong);
    }
    let mut frame = Frame {
        destination: Mac(destination),
        source: Mac(source),
        vlan: link.vlan,
        tags: link.tags,
        ether_type: link.ether_type,
        network: Network::Other,
        transport: Transport::None,
        headers: 0,
        network_at: link.network_at as u16,
        transport_at: 0,
        decided: link.network_at as u16,
        frames: 1,
    };
    let parsed = match link.ether_type {
        _ if link.too_many => None,
        ARP | REVERSE_ARP => parse_arp(seen, &mut frame),
        IPV4 => parse_ipv4(seen, &mut frame),
        IPV6 => parse_ipv6(seen, &mut frame),
        _ => Some(()),
    };
    if parsed.is_none() {
        (frame.network, frame.transport) = (Network::Malformed, Transport::Hidden);
        frame.decided = PREFIX_LEN as u16;
    }
    if link.is_llc {
        frame.headers = 0;
    }
    Ok(frame)
}

/// The bytes that may be read.
#[derive(Clone, Copy)]
struct Seen<'a>(&'a [u8]);

impl Seen<'_> {
    /// Without the bytes behind an IP packet of `length` bytes at `at`: padding, which is no header. A length of 0 states nothing; senders
    /// of offloaded frames may leave it to the device.
    fn packet(self, at: usize, length: usize) -> Self {
        if length == 0 { self } else { Seen(&self.0[..self.0.len().min(at + length)]) }
    }

    fn byte(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn word(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }
}

/// The Ethernet header with tags and LLC/SNAP.
struct Link {
    vlan: Option<u16>,
    tags: u8,
    ether_type: u16,
    network_at: usize,
    is_llc: bool,
    /// There are more than [`WRAPS_MAX`] tags, or they are truncated.
    too_many: bool,
}

impl Link {
    fn parse(seen: Seen<'_>) -> Link {
        let mut link = Link { vlan: None, tags: 0, ether_type: 0, network_at: 0, is_llc: false, too_many: false };
        let mut at = 2 * 6;
        for _ in 0..=WRAPS_MAX {
            let Some(ether_type) = seen.word(at) else { break };
            (link.ether_type, link.network_at) = (ether_type, at + 2);
            if TAGS.contains(&ether_type) {
                if link.tags == 0 && ether_type == VLAN_TAG {
                    link.vlan = seen.word(at + 2).map(|control| control & 0x0fff);
                }
                link.tags += 1;
                at += TAG_LEN;
            } else if ether_type <= LLC_LENGTH_MAX && Link::is_snap(seen, at + 2) {
                link.is_llc = true;
                at += 8;
            } else {
                return link;
            }
        }
        link.too_many = true;
        link
    }

    /// Whether a SNAP header with an ether type is at `at`: RFC 1042, or a bridge's encapsulation of it (802.1H).
    fn is_snap(seen: Seen<'_>, at: usize) -> bool {
        matches!(seen.array(at), Some([0xaa, 0xaa, 0x03, 0, 0, 0 | 0xf8]))
    }
}

/// Ethernet and IPv4 addresses: RFC 826. Returns `None` for other kinds and for truncated messages.
fn parse_arp(seen: Seen<'_>, frame: &mut Frame) -> Option<()> {
    let at = usize::from(frame.network_at);
    if seen.array(at)? != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let target_ip = Ipv4Addr::from(seen.array::<4>(at + 24)?);
    let sender_ip = Ipv4Addr::from(seen.array::<4>(at + 14)?);
    frame.network = Network::Arp(Arp { sender: Mac(seen.array(at + 8)?), sender_ip, target_ip });
    frame.decided = (at + 28) as u16;
    Some(())
}

fn parse_ipv4(seen: Seen<'_>, frame: &mut Frame) -> Option<()> {
    let at = usize::from(frame.network_at);
    let fixed: [u8; 20] = seen.array(at)?;
    let length = usize::from(fixed[0] & 0x0f) * 4;
    let seen = seen.packet(at, usize::from(u16::from_be_bytes([fixed[2], fixed[3]])));
    if fixed[0] >> 4 != 4 || length < 20 || seen.0.len() < at + length {
        return None;
    }
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = fixed;
    frame.network = Network::Ipv4 { source: Ipv4Addr::new(s0, s1, s2, s3), destination: Ipv4Addr::new(d0, d1, d2, d3) };
    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff;
    frame.decided = (at + length) as u16;
    if fragment & 0x1fff != 0 {
        frame.transport = Transport::Later;
        return Some(());
    }
    let protocol = if fixed[9] == ICMPV6 { None } else { Some(fixed[9]) };
    parse_transport(seen, frame, protocol, at + length);
    if fragment != 0 {
        frame.headers = 0;
    }
    Some(())
}

fn parse_ipv6(seen: Seen<'_>, frame: &mut Frame) -> Option<()> {
    let at = usize::from(frame.network_at);
    let fixed: [u8; 40] = seen.array(at)?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let payload = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    let seen = seen.packet(at, if payload == 0 { 0 } else { 40 + payload });
    let address = |from: usize| Seen(&fixed).array::<16>(from).map(Ipv6Addr::from);
    frame.network = Network::Ipv6 { source: address(8)?, destination: address(24)? };
    let (mut next, mut at) = (fixed[6], at + 40);
    let mut can_be_cut = true;
    // Each round moves on by 8 bytes or more, so the end of the prefix ends the loop.
    loop {
        let length = match next {
            HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6 => extension_length(seen, at, 8),
            AUTHENTICATION => extension_length(seen, at, 4),
            FRAGMENT => Some(8),
            _ => break,
        };
        can_be_cut &= !matches!(next, ROUTING | FRAGMENT | AUTHENTICATION);
        let (Some(length), Some(following)) = (length, seen.byte(at)) else {
            return hidden(frame);
        };
        if next == FRAGMENT {
            let Some(offset) = seen.word(at + 2) else { return hidden(frame) };
            if offset & 0xfff8 != 0 {
                (frame.transport, frame.decided) = (Transport::Later, (at + 8) as u16);
                return Some(());
            }
        }
        (next, at) = (following, at + length);
    }
    parse_transport(seen, frame, Some(next), at);
    if !can_be_cut {
        frame.headers = 0;
    }
    Some(())
}

/// Length in bytes of the IPv6 extension header at `at`, whose second byte counts `unit` bytes from the first 8.
fn extension_length(seen: Seen<'_>, at: usize, unit: usize) -> Option<usize> {
    seen.byte(at + 1).map(|count| 8 + usize::from(count) * unit)
}

fn hidden(frame: &mut Frame) -> Option<()> {
    (frame.transport, frame.decided) = (Transport::Hidden, PREFIX_LEN as u16);
    Some(())
}

/// Parses the start of `protocol` at `at`. `None` is a protocol that has no meaning over this version of IP.
fn parse_transport(seen: Seen<'_>, frame: &mut Frame, protocol: Option<u8>, at: usize) {
    frame.transport_at = at as u16;
    let known = match protocol {
        Some(TCP) => {
            let end = seen.byte(at + 12).map(|offset| at + usize::from(offset >> 4) * 4);
            frame.headers = end.filter(|&end| end >= at + 20 && end <= seen.0.len()).unwrap_or(0) as u16;
            // Its length is among the decided bytes.
            Some((Transport::Tcp, at + 13))
        }
        Some(UDP) => seen.array(at).map(|[s0, s1, d0, d1, _, _, _, _]: [u8; 8]| {
            frame.headers = (at + 8) as u16;
            let (source, destination) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
            (Transport::Udp { source, destination }, at + 4)
        }),
        Some(ICMPV6) => seen.byte(at).and_then(|kind| match kind {
            NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => {
                let target = seen.array::<16>(at + 8).map(Ipv6Addr::from)?;
                Some((Transport::Icmpv6 { kind, target: Some(target) }, at + 24))
            }
            _ => Some((Transport::Icmpv6 { kind, target: None }, at + 1)),
        }),
        _ => Some((Transport::Other, at.min(PREFIX_LEN))),
    };
    let (transport, decided) = known.unwrap_or((Transport::Hidden, PREFIX_LEN));
    (frame.transport, frame.decided) = (transport, decided as u16);
}

#[cfg(test)]
#[path = "frame/tests.rs"]
mod tests;
