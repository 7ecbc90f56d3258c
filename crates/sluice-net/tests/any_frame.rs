//! Any bytes as offload header and frame: nothing panics, and what is decided about a frame stays true for what is sent.
#![forbid(unsafe_code)]

use proptest::prelude::*;
use sluice_net::checksum::finish;
use sluice_net::{Frame, HEADER_LEN, Network, OffloadHeader, PREFIX_LEN, Transport, parse, segments, wire};

/// Starts of frames: random bytes alone rarely get behind the ether type.
const STARTS: [&str; 6] = [
    "",
    "ffffffffffff 520000000001 0806 0001 0800 06 04 0001 520000000001 0a000005",
    "520000000002 520000000001 0800 45 00 1000 0001 0000 40 06 0000 0a000005 0a000006 1000 0050 00000001 00000002 50 18",
    "520000000002 520000000001 8100 0014 0800 46 00 0800 0001 2000 40 11 0000 0a000005 0a000006 01010100 0044 0043",
    "520000000002 520000000001 86dd 60000000 0800 06 40 fd000000000000000000000000000005 fd000000000000000000000000000006
     1000 0050 00000001 00000002 80 18",
    "3333ff000001 520000000001 86dd 60000000 0200 3c 40 fe800000000000000000000000000005 ff020000000000000000000000000001 3a 00",
];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec((12usize..120, any::<u8>()), 0..4);
    let rest = proptest::collection::vec(any::<u8>(), 0..1500);
    (0..STARTS.len(), rest, changes).prop_map(|(start, rest, changes)| {
        let mut bytes = [hex(STARTS[start]), rest].concat();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes
    })
}

/// Headers with values near those that fit.
fn headers() -> impl Strategy<Value = OffloadHeader> {
    const NEAR: [u16; 17] = [0, 2, 6, 8, 14, 16, 22, 26, 34, 38, 40, 54, 58, 74, 78, 100, 1000];
    let place = prop_oneof![4 => proptest::sample::select(&NEAR[..]).boxed(), 1 => any::<u16>().boxed()];
    let kind = prop_oneof![Just(0u8), Just(1), Just(4), Just(5), Just(0x81), any::<u8>()];
    let flags = prop_oneof![3 => Just(1u8), 1 => any::<u8>()];
    let size = prop_oneof![3 => 8u16..1500, 1 => any::<u16>()];
    (flags, kind, size, place.clone(), place, any::<u16>()).prop_map(
        |(flags, gso_type, gso_size, checksum_start, checksum_offset, header_len)| OffloadHeader {
            flags,
            gso_type,
            header_len,
            gso_size,
            checksum_start,
            checksum_offset,
            buffers: 0,
        },
    )
}

/// `header` with the type and the checksum position that `frame` has.
fn fitted(header: OffloadHeader, frame: &Frame) -> OffloadHeader {
    let (gso_type, checksum_offset) = match (frame.network, frame.transport) {
        (Network::Ipv4 { .. }, Transport::Tcp) => (1, 16),
        (_, Transport::Tcp) => (4, 16),
        _ => (5, 6),
    };
    OffloadHeader { flags: 1, gso_type, checksum_start: frame.transport_at, checksum_offset, ..header }
}

fn seen(bytes: &[u8]) -> Option<Frame> {
    parse(&bytes[..bytes.len().min(PREFIX_LEN)], bytes.len() as u32).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_frame_is_parsed_from_its_prefix_alone(bytes in frames(), length in any::<u32>()) {
        let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
        prop_assert_eq!(parse(&bytes, length), parse(prefix, length));
        if let Ok(frame) = parse(prefix, length) {
            prop_assert!(usize::from(frame.headers) <= prefix.len());
            prop_assert!(frame.headers == 0 || frame.network_at < frame.transport_at && frame.transport_at < frame.headers);
        }
    }

    /// The kernel or NIC writes the checksum after everything was decided.
    #[test]
    fn a_checksum_that_is_finished_later_changes_no_decision(mut bytes in frames(), header in headers()) {
        let Some(frame) = seen(&bytes) else { return Ok(()) };
        if wire(&frame, &header, bytes.len() as u32).is_ok() {
            finish(header, &mut bytes).expect("the position was checked");
            prop_assert_eq!(seen(&bytes), Some(frame));
        }
    }

    #[test]
    fn segments_are_from_the_same_sender_and_cost_what_was_charged(
        bytes in frames(), header in headers(), fits in any::<bool>(), group_max in 0u32..3000,
    ) {
        let Some(frame) = seen(&bytes) else { return Ok(()) };
        let header = if fits { fitted(header, &frame) } else { header };
        let length = bytes.len() as u32;
        let cost = wire(&frame, &header, length);
        let cut = segments(&frame, &header, &bytes, length, group_max);
        prop_assert_eq!(cost.err(), cut.as_ref().err().copied());
        let (Ok(cost), Ok(cut)) = (cost, cut) else { return Ok(()) };
        let mut end = None;
        let (mut frames, mut payload) = (0, 0);
        for segment in cut {
            prop_assert!(end.is_none_or(|end| end == segment.payload.start), "no byte is sent twice, none is left out");
            end = Some(segment.payload.end);
            let whole = [segment.headers(), &bytes[segment.payload.start as usize..segment.payload.end as usize]].concat();
            let again = seen(&whole).expect("it has an Ethernet header");
            prop_assert_eq!((again.source, again.destination, again.network), (frame.source, frame.destination, frame.network));
            prop_assert_eq!((again.transport, again.headers), (frame.transport, frame.headers));
            frames += u32::from(wire(&again, &segment.offload, segment.length()).expect("it is possible").frames);
            payload += segment.length() - u32::from(frame.headers);
        }
        prop_assert_eq!(end, Some(length));
        prop_assert_eq!((frames, payload), (u32::from(cost.frames), length - u32::from(frame.headers)));
    }

    #[test]
    fn any_twelve_bytes_are_a_header_that_is_written_back(bytes in any::<[u8; HEADER_LEN]>()) {
        prop_assert_eq!(OffloadHeader::parse(&bytes).to_bytes(), bytes);
    }
}
