use super::*;
use crate::header::{GSO_ECN, HEADER_LEN};
use crate::{PREFIX_LEN, parse};
use etherparse::PacketBuilder;

const MACS: ([u8; 6], [u8; 6]) = ([0x52, 0, 0, 0, 0, 1], [0x52, 0, 0, 0, 0, 2]);

fn tcp4(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    builder.tcp(1000, 80, 7, 1000).write(&mut frame, &vec![0; payload]).unwrap();
    frame
}

fn udp6(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv6([1; 16], [2; 16], 64);
    builder.udp(1000, 80).write(&mut frame, &vec![0; payload]).unwrap();
    frame
}

fn cost(frame: &[u8], header: OffloadHeader) -> Result<Wire, Drop> {
    let length = frame.len() as u32;
    let parsed = parse(&frame[..frame.len().min(PREFIX_LEN)], length).unwrap();
    wire(&parsed, &header, length)
}

fn tso(gso_size: u16) -> OffloadHeader {
    OffloadHeader {
        flags: NEEDS_CHECKSUM,
        gso_type: GSO_TCP4,
        gso_size,
        checksum_start: 34,
        checksum_offset: TCP_CHECKSUM,
        ..OffloadHeader::default()
    }
}

#[test]
fn a_plain_frame_costs_its_length_and_a_short_one_the_shortest() {
    assert_eq!(cost(&tcp4(1460), OffloadHeader::default()), Ok(Wire { frames: 1, bytes: 1514, packet_max: 1500 }));
    let short = cost(&tcp4(0), OffloadHeader::default()).unwrap();
    assert_eq!((short, short.occupied()), (Wire { frames: 1, bytes: 60, packet_max: 40 }, 84));
    assert_eq!(short.with_tag().bytes, 64);
}

#[test]
fn headers_are_repeated_for_each_segment() {
    let two = cost(&tcp4(2920), tso(1460)).unwrap();
    assert_eq!((two, two.occupied()), (Wire { frames: 2, bytes: 3028, packet_max: 1500 }, 3076));
    let last_is_short = cost(&tcp4(2921), tso(1460)).unwrap();
    assert_eq!(last_is_short, Wire { frames: 3, bytes: 3028 + 60, packet_max: 1500 });
    let udp = OffloadHeader { gso_type: GSO_UDP, checksum_start: 54, checksum_offset: UDP_CHECKSUM, ..tso(1000) };
    assert_eq!(cost(&udp6(2000), udp), Ok(Wire { frames: 2, bytes: 2124, packet_max: 1048 }));
}

#[test]
fn a_frame_that_fits_into_one_segment_is_one_frame() {
    for payload in [1, 1459, 1460] {
        assert_eq!(cost(&tcp4(payload), tso(1460)).unwrap().frames, 1);
    }
    assert_eq!(cost(&tcp4(1461), tso(1460)).unwrap().frames, 2);
}

#[test]
fn the_mtu_is_that_of_the_packets_on_the_wire() {
    assert_eq!(cost(&tcp4(1461), OffloadHeader::default()).unwrap().check_mtu(1500), Err(Drop::TooLong));
    assert_eq!(cost(&tcp4(60_000), tso(1460)).unwrap().check_mtu(1500), Ok(()));
    assert_eq!(cost(&tcp4(60_000), tso(1461)).unwrap().check_mtu(1500), Err(Drop::TooLong));
}

#[test]
fn segments_that_cannot_be_are_dropped() {
    let good = tso(1000);
    let frame = tcp4(60_000);
    assert!(cost(&frame, good).is_ok());
    assert!(cost(&frame, OffloadHeader { gso_type: GSO_TCP4 | GSO_ECN, ..good }).is_ok());
    assert!(
        cost(&frame, OffloadHeader { flags: CHECKED, checksum_start: 0, ..good }).is_ok(),
        "received so from a NIC"
    );
    let bad = [
        OffloadHeader { gso_size: 0, ..good },
        OffloadHeader { gso_size: 65_500, ..good },
        OffloadHeader { gso_type: GSO_TCP6, ..good },
        OffloadHeader { gso_type: GSO_UDP, ..good },
        OffloadHeader { gso_type: GSO_ECN, ..good },
        OffloadHeader { gso_type: 2, ..good },
        OffloadHeader { gso_type: 3, ..good },
        OffloadHeader { gso_type: 0x7f, ..good },
        OffloadHeader { flags: 0, ..good },
        OffloadHeader { checksum_start: 35, ..good },
        OffloadHeader { checksum_offset: 6, ..good },
    ];
    for header in bad {
        assert_eq!(cost(&frame, header), Err(Drop::Offload), "{header:?}");
    }
    assert_eq!(cost(&udp6(2000), good), Err(Drop::Offload), "TCP over IPv4 is stated, and the frame is neither");
}

/// One frame of 64 KiB in segments of a byte would be 65,000 packets of work for the host.
#[test]
fn a_frame_of_too_many_segments_is_dropped() {
    let frame = tcp4(60_000);
    assert_eq!(cost(&frame, tso(1)), Err(Drop::Offload));
    assert_eq!(cost(&frame, tso(29)), Err(Drop::Offload));
    assert_eq!(cost(&frame, tso(30)).unwrap().frames, 2000);
}

/// The kernel or the NIC writes the checksum after the guard has looked at the addresses.
#[test]
fn a_checksum_is_not_written_over_headers_that_were_checked() {
    let header = |start, offset| OffloadHeader {
        flags: NEEDS_CHECKSUM,
        checksum_start: start,
        checksum_offset: offset,
        ..OffloadHeader::default()
    };
    let frame = udp6(100);
    for (start, offset) in [(0, 6), (14, 8), (14, 22), (54, 0), (54, 2), (0, 54), (40, 17)] {
        assert_eq!(cost(&frame, header(start, offset)), Err(Drop::Offload), "{start} + {offset}");
    }
    for (start, offset) in [(54, 6), (54, 106), (100, 16)] {
        assert!(cost(&frame, header(start, offset)).is_ok(), "{start} + {offset}: UDP, or what it carries");
    }
    for (start, offset) in [(54, 107), (162, 0), (u16::MAX, u16::MAX)] {
        assert_eq!(cost(&frame, header(start, offset)), Err(Drop::Offload), "{start} + {offset}: outside");
    }
}

#[test]
fn the_checksum_of_icmpv6_may_be_left_to_the_device_and_its_type_not() {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(MACS.0, MACS.1).ipv6([1; 16], [2; 16], 255);
    builder.icmpv6_raw(135, 0, [0; 4]).write(&mut frame, &[0; 16]).unwrap();
    let header = |start, offset| OffloadHeader {
        flags: 1,
        checksum_start: start,
        checksum_offset: offset,
        ..OffloadHeader::default()
    };
    assert!(cost(&frame, header(54, 2)).is_ok());
    assert_eq!(cost(&frame, header(54, 0)), Err(Drop::Offload));
    assert_eq!(cost(&frame, header(54, 10)), Err(Drop::Offload), "the address that is solicited");
    assert_eq!(cost(&frame, header(53, 3)), Err(Drop::Offload));
}

#[test]
fn no_header_panics() {
    let frame = tcp4(1000);
    for fill in [0, 1, 4, 0x7f, 0xff] {
        for at in 0..HEADER_LEN {
            let mut bytes = [0; HEADER_LEN];
            bytes[at] = fill;
            let _ = cost(&frame, OffloadHeader::parse(&bytes));
        }
        let _ = cost(&frame, OffloadHeader::parse(&[fill; HEADER_LEN]));
    }
}
