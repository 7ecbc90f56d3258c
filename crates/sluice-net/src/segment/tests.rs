use super::*;
use crate::checksum::finish;
use crate::header::{GSO_TCP4, GSO_TCP6, GSO_UDP};
use crate::wire::FRAME_MIN;
use crate::{parse, wire};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice, VlanSlice};
use proptest::prelude::*;

const SEQUENCE: u32 = u32::MAX - 5_000;
const IDENTIFICATION: u16 = u16::MAX - 3;

#[derive(Debug, Clone, Copy)]
struct Original {
    is_ipv6: bool,
    is_udp: bool,
    is_tagged: bool,
    options: bool,
    payload: usize,
    gso_size: u16,
}

impl Original {
    /// The frame, and its offload header, as a guest sends them: the checksum is the sum over the pseudo header.
    fn build(self) -> (Vec<u8>, OffloadHeader) {
        let payload: Vec<u8> = (0..self.payload).map(|at| (at * 7 + at / 251) as u8).collect();
        let (frame, transport_at) = self.packet(&payload);
        let gso_type = match (self.is_udp, self.is_ipv6) {
            (true, _) => GSO_UDP,
            (false, false) => GSO_TCP4 | GSO_ECN,
            (false, true) => GSO_TCP6,
        };
        let header = OffloadHeader {
            flags: NEEDS_CHECKSUM,
            gso_type,
            header_len: 0,
            gso_size: self.gso_size,
            checksum_start: transport_at,
            checksum_offset: if self.is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM },
            buffers: 0,
        };
        (frame, header)
    }

    fn packet(self, payload: &[u8]) -> (Vec<u8>, u16) {
        let ethernet = PacketBuilder::ethernet2([0x52, 0, 0, 0, 0, 1], [0x52, 0, 0, 0, 0, 2]);
        let network = if self.is_ipv6 {
            let ipv6 = etherparse::Ipv6Header {
                source: [0xfd; 16],
                destination: [0xfc; 16],
                hop_limit: 9,
                ..etherparse::Ipv6Header::default()
            };
            etherparse::IpHeaders::Ipv6(ipv6, etherparse::Ipv6Extensions::default())
        } else {
            let mut ipv4 =
                etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [10, 0, 0, 1], [10, 1, 0, 2]).unwrap();
            ipv4.identification = IDENTIFICATION;
            if self.options {
                ipv4.options = [1, 1, 1, 0].into();
            }
            etherparse::IpHeaders::Ipv4(ipv4, etherparse::Ipv4Extensions::default())
        };
        let network_len = network.header_len() as u16;
        let network = match self.is_tagged {
            true => ethernet.single_vlan(9.try_into().unwrap()).ip(network),
            false => ethernet.ip(network),
        };
        let mut frame = Vec::new();
        if self.is_udp {
            network.udp(1000, 2000).write(&mut frame, payload).unwrap();
        } else {
            let tcp = network.tcp(1000, 2000, SEQUENCE, 500).ack(77).psh().fin().cwr();
            let options: &[u8] = if self.options { &[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8] } else { &[] };
            tcp.options_raw(options).unwrap().write(&mut frame, payload).unwrap();
        }
        (frame, 14 + 4 * u16::from(self.is_tagged) + network_len)
    }

    fn strategy() -> impl Strategy<Value = Original> {
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
        (flags, 1usize..9_000, 8u16..3_000).prop_map(|((is_ipv6, is_udp, is_tagged, options), payload, gso_size)| {
            Original { is_ipv6, is_udp, is_tagged, options, payload, gso_size }
        })
    }
}

/// The frames that `bytes` is cut into, each with its offload header and all its bytes.
fn cut(bytes: &[u8], header: OffloadHeader, group_max: u32) -> Vec<(OffloadHeader, Vec<u8>)> {
    let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
    let frame = parse(prefix, bytes.len() as u32).unwrap();
    let all = segments(&frame, &header, prefix, bytes.len() as u32, group_max).unwrap();
    let whole = |segment: Segment| {
        let payload = &bytes[segment.payload.start as usize..segment.payload.end as usize];
        assert_eq!(segment.length() as usize, segment.headers().len() + payload.len());
        (segment.offload, [segment.headers(), payload].concat())
    };
    all.map(whole).collect()
}

/// Checks the checksums, lengths and numbers of a finished segment with etherparse, and returns its payload.
fn check_segment(original: Original, bytes: &[u8], number: usize, at: usize, is_last: bool) -> Vec<u8> {
    let packet = SlicedPacket::from_ethernet(bytes).expect("lengths and versions agree");
    let vlan = packet.vlan().map(|vlan| match vlan {
        VlanSlice::SingleVlan(vlan) => vlan.vlan_identifier().value(),
        VlanSlice::DoubleVlan(_) => panic!("there is one tag at most"),
    });
    assert_eq!(vlan, original.is_tagged.then_some(9));
    let transport = packet.transport.expect("it is no fragment");
    let payload = match &transport {
        TransportSlice::Tcp(tcp) => {
            let header = tcp.to_header();
            assert_eq!(header.sequence_number, SEQUENCE.wrapping_add(at as u32));
            assert_eq!((header.psh, header.fin, header.cwr, header.ack), (is_last, is_last, number == 0, true));
            assert_eq!(tcp.options().len(), if original.options { 12 } else { 0 });
            tcp.payload().to_vec()
        }
        TransportSlice::Udp(udp) => {
            assert_eq!(usize::from(udp.length()), udp.slice().len());
            udp.payload().to_vec()
        }
        other => panic!("{other:?}"),
    };
    let expected = match packet.net.expect("it is IP") {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum);
            assert_eq!(header.identification, IDENTIFICATION.wrapping_add(number as u16));
            match &transport {
                TransportSlice::Tcp(tcp) => tcp.calc_checksum_ipv4(header.source, header.destination).unwrap(),
                TransportSlice::Udp(udp) => udp.to_header().calc_checksum_ipv4(&header, &payload).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header().to_header();
            match &transport {
                TransportSlice::Tcp(tcp) => tcp.calc_checksum_ipv6(header.source, header.destination).unwrap(),
                TransportSlice::Udp(udp) => udp.to_header().calc_checksum_ipv6(&header, &payload).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    let written = match &transport {
        TransportSlice::Tcp(tcp) => tcp.checksum(),
        TransportSlice::Udp(udp) => udp.checksum(),
        other => panic!("{other:?}"),
    };
    // Zero and its other form are the same number.
    assert!(written == expected || written == 0xffff && expected == 0, "{written:#x} instead of {expected:#x}");
    payload
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// The receiver sees what the guest sent, in packets that an independent parser accepts.
    #[test]
    fn segments_put_together_are_the_payload(original in Original::strategy()) {
        let (bytes, header) = original.build();
        let segments = cut(&bytes, header, 0);
        let (mut payload, count) = (Vec::new(), segments.len());
        for (number, (offload, mut segment)) in segments.into_iter().enumerate() {
            let is_last = number + 1 == count;
            if count > 1 {
                prop_assert_eq!(offload.gso_type, GSO_NONE);
                finish(offload, &mut segment).unwrap();
                let part = check_segment(original, &segment, number, payload.len(), is_last);
                prop_assert!(is_last || part.len() == usize::from(original.gso_size));
                payload.extend(part);
            } else {
                payload.extend(&segment[segment.len() - original.payload..]);
            }
        }
        prop_assert_eq!(&payload[..], &bytes[bytes.len() - original.payload..]);
    }

    #[test]
    fn the_cost_on_the_wire_is_that_of_the_segments(original in Original::strategy()) {
        let (bytes, header) = original.build();
        let frame = parse(&bytes[..bytes.len().min(PREFIX_LEN)], bytes.len() as u32).unwrap();
        let cost = wire(&frame, &header, bytes.len() as u32).unwrap();
        let segments = cut(&bytes, header, 0);
        let lengths = || segments.iter().map(|(_, segment)| segment.len() as u32);
        prop_assert_eq!(usize::from(cost.frames), segments.len());
        prop_assert_eq!(cost.bytes, lengths().map(|length| length.max(FRAME_MIN)).sum::<u32>());
        prop_assert_eq!(cost.packet_max, lengths().max().unwrap() - u32::from(frame.network_at));
    }

    /// A NIC that cuts the groups sends the same packets as one that cuts the guest's frame.
    #[test]
    fn groups_are_cut_into_the_same_segments(original in Original::strategy(), group_max in 0u32..10_000) {
        let (bytes, header) = original.build();
        let groups = cut(&bytes, header, group_max);
        let segment = u32::from(original.gso_size).min(original.payload as u32);
        for (offload, group) in &groups {
            let frame = parse(&group[..group.len().min(PREFIX_LEN)], group.len() as u32).unwrap();
            let payload = group.len() as u32 - u32::from(frame.headers);
            prop_assert!(payload <= group_max.max(segment), "{} of at most {}", payload, group_max);
            prop_assert!(wire(&frame, offload, group.len() as u32).is_ok());
        }
        let twice: Vec<_> = groups.iter().flat_map(|(offload, group)| cut(group, *offload, 0)).collect();
        let once = cut(&bytes, header, 0);
        prop_assert_eq!(twice.len(), once.len());
        for ((first_offload, first), (second_offload, second)) in twice.into_iter().zip(once) {
            let (mut first, mut second) = (first, second);
            finish(first_offload, &mut first).unwrap();
            finish(second_offload, &mut second).unwrap();
            prop_assert_eq!(first, second);
        }
    }
}

#[test]
fn the_example_gives_eight_groups() {
    let original =
        Original { is_ipv6: false, is_udp: false, is_tagged: false, options: false, payload: 64_240, gso_size: 1460 };
    let (bytes, header) = original.build();
    let groups = cut(&bytes, header, 8_760);
    let payloads: Vec<usize> = groups.iter().map(|(_, group)| group.len() - 54).collect();
    assert_eq!(payloads, [8_760, 8_760, 8_760, 8_760, 8_760, 8_760, 8_760, 2_920]);
    let types: Vec<u8> = groups.iter().map(|(offload, _)| offload.gso_type).collect();
    assert_eq!((types[0], types[1], types[7]), (GSO_TCP4 | GSO_ECN, GSO_TCP4, GSO_TCP4), "CWR is in the first group");
}

#[test]
fn a_plain_frame_comes_out_as_it_is() {
    let frame: Vec<u8> = (0..200).collect();
    let header = OffloadHeader { header_len: 9_999, gso_size: 3, checksum_start: 7, ..OffloadHeader::default() };
    assert_eq!(cut(&frame, header, 0), [(OffloadHeader::default(), frame.clone())]);
    assert_eq!(cut(&frame[..20], header, 0), [(OffloadHeader::default(), frame[..20].to_vec())]);
}

#[test]
fn a_frame_that_fits_keeps_its_offload_and_gets_its_true_header_length() {
    let original =
        Original { is_ipv6: true, is_udp: false, is_tagged: true, options: true, payload: 3_000, gso_size: 1_000 };
    let (bytes, header) = original.build();
    let [(offload, same)] = &cut(&bytes, OffloadHeader { header_len: u16::MAX, ..header }, 3_000)[..] else {
        panic!("it was cut");
    };
    assert_eq!((offload.header_len, offload.gso_size, same), (90, 1_000, &bytes));
}
