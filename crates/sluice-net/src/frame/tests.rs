use super::*;
use etherparse::{IpNumber, Ipv6FragmentHeader, Ipv6RawExtHeader, PacketBuilder};

const SOURCE: [u8; 6] = [0x52, 0, 0, 0, 0, 1];
const DESTINATION_MAC: [u8; 6] = [0x52, 0, 0, 0, 0, 2];
const RA: [u8; 16] = [134, 0, 0, 0, 64, 0, 0, 30, 0, 0, 0, 0, 0, 0, 0, 0];

fn ethernet(ether_type: u16, rest: &[u8]) -> Vec<u8> {
    [&DESTINATION_MAC[..], &SOURCE, &ether_type.to_be_bytes(), rest].concat()
}

fn seen(frame: &[u8]) -> Frame {
    parse(&frame[..frame.len().min(PREFIX_LEN)], frame.len() as u32).unwrap()
}

/// An IPv6 packet with `chain` between the header, whose next header is `next`, and nothing added behind it.
fn ipv6(next: u8, chain: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, chain.len() as u8, next, 255];
    packet.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
    packet.extend(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
    packet.extend(chain);
    packet
}

#[test]
fn a_tcp_segment_is_seen_with_all_its_places() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(SOURCE, DESTINATION_MAC).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    builder.tcp(1000, 80, 7, 1000).write(&mut frame, &[0; 200]).unwrap();
    let frame = seen(&frame);
    let network = Network::Ipv4 { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 0, 2) };
    assert_eq!((frame.network, frame.transport), (network, Transport::Tcp));
    assert_eq!((frame.network_at, frame.transport_at, frame.headers), (14, 34, 54));
    assert_eq!((frame.source, frame.destination), (Mac(SOURCE), Mac(DESTINATION_MAC)));
    assert_eq!((frame.vlan, frame.tags, frame.ether_type), (None, 0, IPV4));
}

#[test]
fn tags_are_followed_and_the_outer_one_is_the_vlan() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(SOURCE, DESTINATION_MAC)
        .double_vlan(20.try_into().unwrap(), 30.try_into().unwrap())
        .ipv6([1; 16], [2; 16], 64);
    builder.udp(53, 54).write(&mut frame, &[]).unwrap();
    let outer_is_8021ad = seen(&frame);
    assert_eq!((outer_is_8021ad.vlan, outer_is_8021ad.tags, outer_is_8021ad.headers), (None, 2, 70));
    assert_eq!(outer_is_8021ad.transport, Transport::Udp { source: 53, destination: 54 });
    frame[12..14].copy_from_slice(&VLAN_TAG.to_be_bytes());
    assert_eq!((seen(&frame).vlan, seen(&frame).tags), (Some(20), 2));
}

/// CVE-2021-27853 and CVE-2021-27854: guards that do not follow tags of VLAN 0 and LLC/SNAP let such packets pass.
#[test]
fn a_router_advertisement_is_seen_behind_tags_and_llc() {
    let packet = ipv6(ICMPV6, &RA);
    let snap = [0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd];
    let bridged = [0xaa, 0xaa, 3, 0, 0, 0xf8, 0x86, 0xdd];
    let tag = [0, 0, 0x86, 0xdd];
    let tagged_snap = [&[0, 0, 0, 24][..], &snap].concat();
    let snap_tagged = [&snap[..6], &[0x81, 0], &tag].concat();
    for (ether_type, wrap) in [
        (IPV6, &[][..]),
        (24, &snap),
        (24, &bridged),
        // A length that is not the packet's.
        (0, &snap),
        (VLAN_TAG, &tag),
        (0x88a8, &tag),
        (VLAN_TAG, &tagged_snap),
        (24, &snap_tagged),
    ] {
        let frame = seen(&ethernet(ether_type, &[wrap, &packet].concat()));
        assert_eq!(frame.transport, Transport::Icmpv6 { kind: ROUTER_ADVERTISEMENT, target: None }, "{wrap:?}");
        assert_eq!(frame.ether_type, IPV6);
    }
    let tags: Vec<u8> = [0, 0, 0x81, 0].repeat(5);
    let frame = seen(&ethernet(VLAN_TAG, &[&tags, &packet[..]].concat()));
    assert_eq!(
        (frame.network, frame.transport),
        (Network::Malformed, Transport::Hidden),
        "more tags than are followed"
    );
}

#[test]
fn extension_headers_and_fragments_do_not_hide_a_router_advertisement() {
    let ra = Transport::Icmpv6 { kind: ROUTER_ADVERTISEMENT, target: None };
    let options = |next: u8, len: u8| [vec![next, len], vec![0; 6 + usize::from(len) * 8]].concat();
    let first = [ICMPV6, 0, 0, 1, 0, 0, 0, 9];
    let later = [ICMPV6, 0, 0, 8, 0, 0, 0, 9];
    let rows: [(u8, Vec<u8>, Transport); 8] = [
        (DESTINATION, [&options(ICMPV6, 0)[..], &RA].concat(), ra),
        (HOP_BY_HOP, [&options(DESTINATION, 1)[..], &options(ICMPV6, 2), &RA].concat(), ra),
        (AUTHENTICATION, [&[ICMPV6, 4][..], &[0; 22], &RA].concat(), ra),
        (FRAGMENT, [&first[..], &RA].concat(), ra),
        (FRAGMENT, [&later[..], &RA].concat(), Transport::Later),
        // A chain that reaches beyond the prefix, or beyond the end of the frame.
        (DESTINATION, [&options(ICMPV6, 10)[..], &RA].concat(), Transport::Hidden),
        (DESTINATION, options(ICMPV6, 1)[..8].to_vec(), Transport::Hidden),
        (FRAGMENT, vec![ICMPV6, 0], Transport::Hidden),
    ];
    for (next, chain, expected) in rows {
        let frame = seen(&ethernet(IPV6, &ipv6(next, &chain)));
        assert_eq!(frame.transport, expected, "{next} {chain:?}");
    }
}

#[test]
fn frames_that_cannot_be_cut_state_no_headers() {
    let tcp = [&[0; 12][..], &[0x50, 0, 0, 0, 0, 0, 0, 0]].concat();
    let chain = |next: u8, header: [u8; 8]| ethernet(IPV6, &ipv6(next, &[&header[..], &tcp].concat()));
    assert_eq!(seen(&chain(HOP_BY_HOP, [TCP, 0, 0, 0, 0, 0, 0, 0])).headers, 82);
    assert_eq!(seen(&chain(ROUTING, [TCP, 0, 0, 0, 0, 0, 0, 0])).headers, 0);
    assert_eq!(seen(&chain(FRAGMENT, [TCP, 0, 0, 0, 0, 0, 0, 0])).headers, 0);
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 0x86, 0xdd][..], &ipv6(TCP, &tcp)].concat();
    assert_eq!(seen(&ethernet(60, &snap)).headers, 0);
    let mut too_short = ipv6(TCP, &tcp);
    *too_short.get_mut(40 + 12).unwrap() = 0x40;
    assert_eq!(seen(&ethernet(IPV6, &too_short)).headers, 0, "a TCP header of 16 bytes");
}

#[test]
fn a_first_fragment_of_ipv4_shows_its_ports_and_a_later_one_none() {
    let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0x20, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend([0, 67, 0, 68, 0, 8, 0, 0]);
    let first = seen(&ethernet(IPV4, &packet));
    assert_eq!((first.transport, first.headers), (Transport::Udp { source: 67, destination: 68 }, 0));
    packet[7] = 1;
    assert_eq!(seen(&ethernet(IPV4, &packet)).transport, Transport::Later);
    packet[6..8].fill(0);
    assert_eq!(seen(&ethernet(IPV4, &packet[..26])).transport, Transport::Hidden, "truncated");
}

/// The guard would judge by ports that no receiver sees.
#[test]
fn padding_behind_the_packet_is_no_header() {
    let mut packet = vec![0x45, 0, 0, 20, 0, 1, 0, 0, 64, UDP, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    packet.extend([0, 68, 0, 67, 0, 8, 0, 0]);
    assert_eq!(seen(&ethernet(IPV4, &packet)).transport, Transport::Hidden);
    packet[3] = 28;
    assert_eq!(seen(&ethernet(IPV4, &packet)).transport, Transport::Udp { source: 68, destination: 67 });
    packet[3] = 19;
    assert_eq!(seen(&ethernet(IPV4, &packet)).network, Network::Malformed);
    let mut packet = ipv6(UDP, &[0, 68, 0, 67, 0, 8, 0, 0]);
    packet[5] = 7;
    assert_eq!(seen(&ethernet(IPV6, &packet)).transport, Transport::Hidden);
}

#[test]
fn arp_is_read_for_ethernet_and_ipv4_only() {
    let mut message = vec![0, 1, 8, 0, 6, 4, 0, 1];
    message.extend([&SOURCE[..], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 9]].concat());
    let arp = Arp { sender: Mac(SOURCE), sender_ip: Ipv4Addr::new(10, 0, 0, 1), target_ip: Ipv4Addr::new(10, 0, 0, 9) };
    assert_eq!(seen(&ethernet(ARP, &message)).network, Network::Arp(arp));
    assert_eq!(seen(&ethernet(REVERSE_ARP, &message)).network, Network::Arp(arp));
    assert!(seen(&ethernet(ARP, &message)).finds_neighbours());
    assert_eq!(seen(&ethernet(ARP, &message[..27])).network, Network::Malformed);
    message[4] = 8;
    assert_eq!(seen(&ethernet(ARP, &message)).network, Network::Malformed);
}

#[test]
fn a_frame_without_a_header_or_longer_than_ip_allows_is_dropped() {
    assert_eq!(parse(&[0; 13], 13), Err(Drop::Short));
    assert_eq!(parse(&[0; 60], 13), Err(Drop::Short));
    assert_eq!(parse(&[], 0), Err(Drop::Short));
    let packet = ethernet(IPV6, &ipv6(TCP, &[0; 90]));
    assert!(parse(&packet[..PREFIX_LEN], 65_535 + 14).is_ok());
    assert_eq!(parse(&packet[..PREFIX_LEN], 65_535 + 15), Err(Drop::TooLong));
    assert_eq!(parse(&packet[..PREFIX_LEN], u32::MAX), Err(Drop::TooLong));
}

/// The headers are also those of a parser that knows nothing of this one.
#[test]
fn extension_headers_are_measured_as_etherparse_does() {
    let extension = Ipv6RawExtHeader::new_raw(IpNumber(FRAGMENT), &[0; 14]).unwrap();
    let fragment = Ipv6FragmentHeader::new(IpNumber(UDP), 0.try_into().unwrap(), false, 3);
    let mut chain = extension.to_bytes().to_vec();
    chain.extend(fragment.to_bytes());
    chain.extend([0, 67, 0, 68, 0, 8, 0, 0]);
    let frame = ethernet(IPV6, &ipv6(DESTINATION, &chain));
    let theirs = etherparse::LaxSlicedPacket::from_ethernet(&frame).unwrap();
    let Some(etherparse::TransportSlice::Udp(udp)) = theirs.transport else { panic!("{theirs:?}") };
    let transport = Transport::Udp { source: udp.source_port(), destination: udp.destination_port() };
    assert_eq!(seen(&frame).transport, transport);
    assert_eq!(transport, Transport::Udp { source: 67, destination: 68 });
}
