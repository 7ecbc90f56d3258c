//! An offload header and a frame of a guest: parsing, guard, switch, cost and segments. Nothing panics. What was decided holds for the
//! frames that are sent: finished checksums change no decision, and segments come from the same sender and cost what was charged.
#![no_main]

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sluice_net::checksum::finish;
use sluice_net::flood::{CopyLimit, FloodLimit};
use sluice_net::switch::Limits;
use sluice_net::{
    Drop, Frame, Guard, HEADER_LEN, Mac, OffloadHeader, PREFIX_LEN, Port, Switch, Target, parse, segments, tag, wire,
};
use sluice_sched::Instant;

const OWN: Mac = Mac([0x52, 0, 0, 0, 0, 1]);

thread_local! {
    static SWITCH: RefCell<Switch> = RefCell::new(switch());
}

fn switch() -> Switch {
    let per_second = NonZeroU32::new(1_000).expect("it is not 0");
    let flood = FloodLimit { frames_per_second: per_second, burst: per_second };
    let limits = Limits {
        ports: 4,
        addresses_per_port: 4,
        addresses_of_uplink: 16,
        age: Duration::from_secs(300),
        copies: CopyLimit { per_second, burst: per_second },
        port_flood: flood,
        uplink_flood: flood,
    };
    let mut switch = Switch::new(Instant::ZERO, limits);
    switch.add(Instant::ZERO, Port(0), Some(OWN), None).expect("it is free");
    switch.add(Instant::ZERO, Port(1), None, None).expect("it is free");
    switch.add(Instant::ZERO, Port(2), None, Some(20)).expect("it is free");
    switch
}

fn seen(bytes: &[u8]) -> Result<Frame, Drop> {
    parse(&bytes[..bytes.len().min(PREFIX_LEN)], bytes.len() as u32)
}

fn guard() -> Guard {
    let addresses = ["10.0.0.5/32", "fd00::5/128"].map(|network| network.parse().expect("it is a network"));
    Guard { mac: Some(OWN), addresses: addresses.to_vec(), dhcp_server: false, router_advertisement: false }
}

/// Sends the frame from each port and from the uplink.
fn forward(frame: &Frame) {
    SWITCH.with_borrow_mut(|switch| {
        for port in (0..3).map(Port) {
            let target = switch.from_port(Instant::ZERO, port, frame);
            assert_ne!(target, Target::Port(port), "it came from there");
            assert!(switch.flooded(Some(port), frame).all(|other| other != port));
        }
        assert_ne!(switch.from_uplink(Instant::ZERO, frame), Target::Uplink, "it came from there");
    });
}

fn check_segments(frame: &Frame, header: &OffloadHeader, bytes: &[u8], group_max: u32) {
    let length = bytes.len() as u32;
    let cost = wire(frame, header, length).expect("it was checked");
    let mut end = None;
    let mut frames = 0;
    for segment in segments(frame, header, bytes, length, group_max).expect("it was checked") {
        assert!(end.is_none_or(|end| end == segment.payload.start), "no byte is sent twice, none is left out");
        end = Some(segment.payload.end);
        let payload = &bytes[segment.payload.start as usize..segment.payload.end as usize];
        let again = seen(&[segment.headers(), payload].concat()).expect("it has an Ethernet header");
        assert_eq!((again.source, again.network, again.transport), (frame.source, frame.network, frame.transport));
        frames += u32::from(wire(&again, &segment.offload, segment.length()).expect("it is possible").frames);
    }
    assert_eq!((end, frames), (Some(length), u32::from(cost.frames)));
}

fuzz_target!(|data: &[u8]| {
    let Some((group_max, data)) = data.split_first_chunk::<2>() else { return };
    let Some((header, bytes)) = data.split_first_chunk::<HEADER_LEN>() else { return };
    let header = OffloadHeader::parse(header);
    let Ok(frame) = seen(bytes) else { return };
    let _ = guard().check(&frame);
    forward(&frame);
    let mut space = [0; tag::TAGGED_LEN];
    let mut tagged = tag::put_on(&bytes[..bytes.len().min(PREFIX_LEN)], 20, &mut space).to_vec();
    assert_eq!(tag::take_off(&mut tagged).expect("it was put on"), &bytes[..bytes.len().min(PREFIX_LEN)]);
    if wire(&frame, &header, bytes.len() as u32).is_err() {
        return;
    }
    check_segments(&frame, &header, bytes, u16::from_le_bytes(*group_max).into());
    let mut finished = bytes.to_vec();
    finish(header, &mut finished).expect("the position was checked");
    assert_eq!(seen(&finished), Ok(frame), "the checksum was written over what was decided on");
});
