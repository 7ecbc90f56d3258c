use super::*;
use crate::{PREFIX_LEN, parse};
use etherparse::{IpNumber, LaxIpPayloadSlice, LaxNetSlice, LaxSlicedPacket, PacketBuilder};
use proptest::prelude::*;

const OWN: [u8; 6] = [0x52, 0, 0, 0, 0, 1];
const STRANGE: [u8; 6] = [0x52, 0, 0, 0, 0, 2];
const ALL: [u8; 6] = [0xff; 6];
const IP: [u8; 4] = [10, 0, 0, 5];
const STRANGE_IP: [u8; 4] = [10, 0, 0, 6];

fn ip6(last: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

fn link_local(last: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

fn strict() -> Guard {
    let addresses = vec!["10.0.0.5/32".parse().unwrap(), "fd00::5/128".parse().unwrap()];
    Guard { mac: Some(Mac(OWN)), addresses, dhcp_server: false, router_advertisement: false }
}

fn open() -> Guard {
    Guard { dhcp_server: true, router_advertisement: true, ..Guard::default() }
}

fn check(guard: &Guard, bytes: &[u8]) -> Result<(), Drop> {
    guard.check(&parse(&bytes[..bytes.len().min(PREFIX_LEN)], bytes.len() as u32)?)
}

fn arp(source: [u8; 6], sender: [u8; 6], ip: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    [&ALL[..], &source, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &sender, &ip, &[0; 6], &target].concat()
}

fn udp4(source: [u8; 4], from: u16, to: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(OWN, ALL)
        .ipv4(source, [10, 0, 0, 1], 9)
        .udp(from, to)
        .write(&mut bytes, &[0; 20])
        .unwrap();
    bytes
}

fn udp6(source: [u8; 16], from: u16, to: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(OWN, ALL).ipv6(source, ip6(1), 9).udp(from, to).write(&mut bytes, &[0; 20]).unwrap();
    bytes
}

/// An ICMPv6 message with 16 bytes behind its first 8, which are the target of neighbour discovery.
fn icmpv6(source: [u8; 16], kind: u8, target: [u8; 16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(OWN, [0x33, 0x33, 0, 0, 0, 1]).ipv6(source, ip6(1), 255);
    builder.icmpv6_raw(kind, 0, [0; 4]).write(&mut bytes, &target).unwrap();
    bytes
}

#[test]
fn own_addresses_pass() {
    let unspecified = [0; 16];
    for bytes in [
        arp(OWN, OWN, IP, [10, 0, 0, 1]),
        arp(OWN, OWN, IP, IP),
        arp(OWN, OWN, [0; 4], IP),
        udp4(IP, 5353, 53),
        udp4([0; 4], 68, 67),
        udp4(IP, 68, 67),
        udp6(ip6(5), 5353, 53),
        udp6(link_local(77), 546, 547),
        icmpv6(unspecified, 135, ip6(5)),
        icmpv6(unspecified, 135, link_local(77)),
        icmpv6(unspecified, 133, [0; 16]),
        icmpv6(unspecified, 143, [0; 16]),
        icmpv6(link_local(77), 135, ip6(9)),
        icmpv6(ip6(5), 136, ip6(5)),
        icmpv6(link_local(77), 136, link_local(77)),
    ] {
        assert_eq!(check(&strict(), &bytes), Ok(()), "{bytes:x?}");
    }
}

#[test]
fn strange_addresses_are_dropped() {
    let unspecified = [0; 16];
    let mut from_strange_mac = udp4(IP, 1, 2);
    from_strange_mac[6..12].copy_from_slice(&STRANGE);
    for (bytes, reason) in [
        (from_strange_mac, Drop::SourceMac),
        (arp(OWN, STRANGE, IP, IP), Drop::SourceMac),
        (arp(STRANGE, OWN, IP, IP), Drop::SourceMac),
        (arp(OWN, OWN, STRANGE_IP, [10, 0, 0, 1]), Drop::SourceIp),
        (arp(OWN, OWN, STRANGE_IP, STRANGE_IP), Drop::SourceIp),
        (udp4(STRANGE_IP, 1, 2), Drop::SourceIp),
        (udp4([0; 4], 1, 2), Drop::SourceIp),
        (udp6(ip6(6), 1, 2), Drop::SourceIp),
        (udp6(unspecified, 1, 2), Drop::SourceIp),
        (icmpv6(unspecified, 136, ip6(5)), Drop::SourceIp),
        (icmpv6(ip6(5), 136, ip6(6)), Drop::SourceIp),
        (icmpv6(unspecified, 135, ip6(6)), Drop::SourceIp),
    ] {
        assert_eq!(check(&strict(), &bytes), Err(reason), "{bytes:x?}");
    }
}

#[test]
fn servers_and_routers_are_dropped_unless_allowed() {
    let rows = [
        (udp4(IP, 67, 68), Drop::DhcpServer),
        (udp4(IP, 67, 67), Drop::DhcpServer),
        (udp4(IP, 9999, 68), Drop::DhcpServer),
        (udp6(ip6(5), 547, 546), Drop::DhcpServer),
        (udp6(link_local(1), 9999, 546), Drop::DhcpServer),
        (icmpv6(link_local(1), 134, [0; 16]), Drop::RouterAdvertisement),
        (icmpv6(link_local(1), 137, [0; 16]), Drop::RouterAdvertisement),
    ];
    for (bytes, reason) in rows {
        assert_eq!(check(&strict(), &bytes), Err(reason), "{bytes:x?}");
        assert_eq!(check(&Guard::default(), &bytes), Err(reason), "{bytes:x?}");
        let allowed = Guard { dhcp_server: true, router_advertisement: true, ..strict() };
        assert_eq!(check(&allowed, &bytes), Ok(()), "{bytes:x?}");
    }
}

/// A packet without its ICMPv6 header: the header is wrapped in `chain`, which ends with it.
fn hidden_advertisement(next: u8, chain: &[u8]) -> Vec<u8> {
    let mut bytes = icmpv6(link_local(1), 134, [0; 16]);
    let message = bytes.split_off(54);
    bytes[20] = next;
    bytes[19] = (chain.len() + message.len()).try_into().unwrap_or(0);
    [&bytes, chain, &message[..]].concat()
}

#[test]
fn fragments_and_extension_headers_hide_no_server_and_no_router() {
    let options = |len: u8| [vec![58, len], vec![0; 6 + usize::from(len) * 8]].concat();
    let fragment = |offset: u8| [58, 0, 0, offset | 1, 0, 0, 0, 1];
    let mut snap = icmpv6(link_local(1), 134, [0; 16]);
    snap.splice(12..14, [0, 70, 0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd]);
    let mut tagged = icmpv6(link_local(1), 134, [0; 16]);
    tagged.splice(12..12, [0x81, 0, 0, 0]);
    let mut dhcp_fragment = udp4(IP, 67, 68);
    dhcp_fragment[20] = 0x20;
    for (bytes, reason) in [
        (hidden_advertisement(60, &options(0)), Drop::RouterAdvertisement),
        (hidden_advertisement(0, &options(3)), Drop::RouterAdvertisement),
        (hidden_advertisement(44, &fragment(0)), Drop::RouterAdvertisement),
        (hidden_advertisement(60, &options(9)), Drop::HiddenHeader),
        (hidden_advertisement(60, &options(255)), Drop::HiddenHeader),
        (hidden_advertisement(44, &[fragment(0), [0; 8]].concat())[..60].to_vec(), Drop::HiddenHeader),
        (snap, Drop::RouterAdvertisement),
        (tagged, Drop::Vlan),
        (dhcp_fragment, Drop::DhcpServer),
    ] {
        for guard in [strict(), Guard::default()] {
            assert_eq!(check(&guard, &bytes), Err(reason), "{bytes:x?}");
        }
    }
    assert_eq!(check(&strict(), &hidden_advertisement(44, &fragment(8))), Ok(()), "a later fragment");
}

#[test]
fn other_protocols_pass_without_a_list_of_addresses() {
    let bytes = [&ALL[..], &OWN, &[0x88, 0xcc], &[0; 46]].concat();
    assert_eq!(check(&strict(), &bytes), Err(Drop::EtherType));
    assert_eq!(check(&Guard { addresses: Vec::new(), ..strict() }, &bytes), Ok(()));
    let broken_arp = arp(OWN, OWN, IP, IP)[..40].to_vec();
    assert_eq!(check(&Guard { addresses: Vec::new(), ..strict() }, &broken_arp), Err(Drop::Malformed));
    assert_eq!(check(&open(), &broken_arp), Ok(()), "nothing is guarded");
    let from_group = [&OWN[..], &ALL, &[8, 0], &[0; 46]].concat();
    assert_eq!(check(&open(), &from_group), Err(Drop::SourceMac), "no station has it");
}

/// A frame as a guest might send it, with some bytes changed.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let base = prop_oneof![
        Just(arp(OWN, OWN, IP, IP)),
        Just(arp(OWN, OWN, STRANGE_IP, IP)),
        Just(udp4(IP, 1, 2)),
        Just(udp4([0; 4], 68, 67)),
        Just(udp4(IP, 67, 68)),
        Just(udp6(ip6(5), 1, 2)),
        Just(udp6(link_local(1), 547, 546)),
        Just(icmpv6(ip6(5), 136, ip6(5))),
        Just(hidden_advertisement(60, &[58, 0, 0, 0, 0, 0, 0, 0])),
        Just(hidden_advertisement(44, &[58, 0, 0, 0, 0, 0, 0, 0])),
    ];
    let values = prop_oneof![Just(0u8), Just(67), Just(134), Just(0x45), Just(0x60), Just(44), Just(58), any::<u8>()];
    let changes = proptest::collection::vec((6usize..90, values), 0..4);
    let tags = prop_oneof![4 => Just(0usize), 1 => 1usize..3];
    (base, changes, tags).prop_map(|(mut bytes, changes, tags)| {
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        for _ in 0..tags {
            bytes.splice(12..12, [0x81, 0, 0, 0]);
        }
        bytes
    })
}

/// Ports, or type of ICMPv6, as etherparse finds them in a packet or a first fragment.
fn start_of(payload: &LaxIpPayloadSlice<'_>, is_later: bool) -> (Option<(u16, u16)>, Option<u8>) {
    let bytes = payload.payload;
    match payload.ip_number {
        IpNumber::UDP if !is_later && bytes.len() >= 8 => {
            let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            (Some((port(0), port(2))), None)
        }
        IpNumber::IPV6_ICMP if !is_later => (None, bytes.first().copied()),
        _ => (None, None),
    }
}

/// What etherparse says of a frame that the strict guard let pass.
fn assert_harmless(bytes: &[u8]) {
    let packet = LaxSlicedPacket::from_ethernet(bytes).unwrap();
    assert_eq!(bytes[6..12], OWN);
    assert!(packet.link_exts.is_empty(), "a tag");
    match &packet.net {
        Some(LaxNetSlice::Arp(arp)) => {
            assert_eq!(arp.sender_hw_addr(), OWN);
            assert!([&IP[..], &[0; 4]].contains(&arp.sender_protocol_addr()), "{arp:?}");
        }
        Some(LaxNetSlice::Ipv4(ip)) => {
            let (ports, _) = start_of(ip.payload(), ip.header().fragments_offset().value() > 0);
            let source = ip.header().source();
            assert!(source == IP || source == [0; 4] && ports == Some((68, 67)), "{source:?} {ports:?}");
            assert!(!ports.is_some_and(|(from, to)| from == 67 || to == 68), "{ports:?}");
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            // The offset of a fragment is read where it follows the fixed header. (etherparse's iterator over extension headers of
            // a truncated packet reads outside of it.)
            let is_whole = !ip.payload().fragmented;
            let is_first =
                ip.header().next_header() == IpNumber::IPV6_FRAGMENTATION_HEADER && bytes[56..58] < [0, 8][..];
            let is_later = !is_whole && !is_first;
            let (ports, kind) = start_of(ip.payload(), is_later);
            let source = ip.header().source_addr();
            let own = source == Ipv6Addr::from(ip6(5)) || source.is_unicast_link_local();
            let probe = kind.is_some_and(|kind| [131, 132, 133, 135, 143].contains(&kind));
            assert!(own || source.is_unspecified() && (probe || is_later), "{source} {kind:?}");
            assert!(!ports.is_some_and(|(from, to)| from == 547 || to == 546), "{ports:?}");
            assert!(kind != Some(134) && kind != Some(137));
        }
        None => panic!("neither ARP nor IP: {bytes:x?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_passes_in_which_another_parser_sees_a_strange_source(bytes in frames()) {
        if check(&strict(), &bytes).is_ok() {
            assert_harmless(&bytes);
        }
    }
}
