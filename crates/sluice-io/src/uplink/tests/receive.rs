//! Frames for guests: queues, limits, drivers that take little.

use sluice_sched::ByteRate;

use super::*;
use crate::uplink::spec::NicSpec;

/// Entries of each queue.
const FEW: u16 = 64;

/// The second receive queue.
const RECEIVE_2: u16 = 2;

/// A datagram for the first VM from a port.
fn from_port(port: u16) -> Vec<u8> {
    let mut bytes = frame(200, mac(1), 60);
    bytes[34..36].copy_from_slice(&port.to_be_bytes());
    bytes
}

/// Posts buffers in the second receive queue.
fn post_2(guest: &Guest, slots: std::ops::Range<u16>) {
    for slot in slots.clone() {
        let at = DATA + 0x800 * u64::from(guest.size + slot);
        guest.descriptor(u64::from(RECEIVE_2) * RING, slot, (at, 0x800, WRITE, 0));
    }
    guest.offer(RECEIVE_2, slots);
}

#[test]
fn a_limit_for_receiving_is_kept_to_the_frame() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    let spec = NicSpec { receive_limit: Some(ByteRate::per_second(1_250_000)), ..nic(1, NicPlug::VhostUser) };
    lab.state.actor.edit(lab.now, vec![Edit::SetNic { vm: "vm1".to_owned(), nic: Box::new(spec) }]).unwrap();
    // 1,250 bytes of the wire each, a millisecond at that rate. The burst is 5 ms.
    (0..32).for_each(|_| lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 1226)));
    let mut arrived = Vec::new();
    for _ in 0..30 {
        lab.step(Duration::from_millis(1));
        arrived.push(lab.nics[0].all().len());
    }
    assert_eq!(arrived, [&[5][..], &[1; 27], &[0, 0]].concat());
}

#[test]
fn frames_of_a_connection_stay_in_one_of_several_queues() {
    let mut lab = Lab::new(None);
    let mut guest = lab.guest(1, all_features(), FEW);
    lab.start(&mut guest, RECEIVE_2, all_features());
    guest.post(0..FEW, 0x800);
    post_2(&guest, 0..FEW);
    let mut queues = Vec::new();
    for port in (0..20).chain(0..20) {
        let before = guest.used(RECEIVE);
        lab.far.send(OffloadHeader::default(), &from_port(port));
        lab.step(MOMENT);
        queues.push(guest.used(RECEIVE) - before);
    }
    assert_eq!(queues[..20], queues[20..], "each connection in its own");
    assert_eq!(guest.used(RECEIVE) + guest.used(RECEIVE_2), 40);
    assert!((4..=16).contains(&queues[..20].iter().sum::<u16>()), "{queues:?}");
}

#[test]
fn a_nic_waits_for_buffers_of_the_queue_that_has_none() {
    let mut lab = Lab::new(None);
    let mut guest = lab.guest(1, all_features(), FEW);
    lab.start(&mut guest, RECEIVE_2, all_features());
    guest.post(0..FEW, 0x800);
    (0..20).for_each(|port| lab.far.send(OffloadHeader::default(), &from_port(port)));
    lab.step(MOMENT);
    assert!(guest.used(RECEIVE) < 20);
    post_2(&guest, 0..FEW);
    rustix::io::write(&guest.kicks[usize::from(RECEIVE_2)], &1u64.to_ne_bytes()).unwrap();
    lab.step(MOMENT);
    assert_eq!(guest.used(RECEIVE) + guest.used(RECEIVE_2), 20);
    assert_eq!(lab.totals(&guest).drops.total(), 0);
}

#[test]
fn frames_that_wait_for_a_queue_that_stops_go_to_another() {
    let mut lab = Lab::new(None);
    let mut guest = lab.guest(1, all_features(), FEW);
    lab.start(&mut guest, RECEIVE_2, all_features());
    guest.post(0..FEW, 0x800);
    (0..20).for_each(|port| lab.far.send(OffloadHeader::default(), &from_port(port)));
    lab.step(MOMENT);
    assert!(guest.used(RECEIVE) < 20);
    let (reply, _stopped) = oneshot::channel();
    lab.change(&guest, SessionChange::StopQueue { index: RECEIVE_2, reply });
    lab.step(MOMENT);
    assert_eq!(guest.used(RECEIVE), 20);
}

#[test]
fn frames_that_wait_for_a_queue_that_breaks_go_to_another() {
    let mut lab = Lab::new(None);
    let mut guest = lab.guest(1, all_features(), FEW);
    lab.start(&mut guest, RECEIVE_2, all_features());
    guest.post(0..FEW, 0x800);
    (0..20).for_each(|port| lab.far.send(OffloadHeader::default(), &from_port(port)));
    lab.step(MOMENT);
    assert!(guest.used(RECEIVE) < 20);
    // A descriptor without bytes.
    guest.descriptor(u64::from(RECEIVE_2) * RING, 0, (DATA, 0, WRITE, 0));
    guest.offer(RECEIVE_2, std::iter::once(0));
    rustix::io::write(&guest.kicks[usize::from(RECEIVE_2)], &1u64.to_ne_bytes()).unwrap();
    lab.step(MOMENT);
    assert_eq!((guest.used(RECEIVE), lab.protocol_errors(&guest)), (19, 1), "the frame that found it broken is lost");
}

#[test]
fn a_frame_that_no_ring_full_of_buffers_can_hold_blocked_those_behind_it() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), 8);
    guest.post(0..8, 128);
    lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 1500));
    lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 80));
    lab.step(MOMENT);
    assert_eq!(guest.used(RECEIVE), 1);
    assert_eq!(guest.received(0).1, frame(200, mac(1), 80));
    assert_eq!(lab.totals(&guest).drops.of(Reason::NoBuffers), 1);
}

#[test]
fn a_guest_without_offloads_got_segments_and_unfinished_checksums() {
    let mut lab = Lab::new(None);
    let plain = Net { mac: mac(1), mtu: 1500, pairs: 1, offloads: false }.features();
    let guest = lab.guest(1, plain, ENTRIES);
    guest.post(0..64, 2000);
    let (header, bytes) = tcp6(200, mac(1), 114 + 3000, 1400);
    lab.far.send(header, &bytes);
    lab.step(MOMENT);
    assert_eq!(guest.used(RECEIVE), 3);
    let mut payload = Vec::new();
    for at in 0..3 {
        let (header, mut frame) = guest.received(at);
        assert_eq!(header, OffloadHeader { buffers: 1, ..OffloadHeader::default() });
        payload.extend(frame.split_off(114));
        assert_ne!(frame[54 + 16..54 + 18], [0, 0], "it has a checksum");
    }
    assert_eq!(payload, bytes[114..]);
    // One that only has to be summed.
    lab.far.send(OffloadHeader { gso_type: 0, gso_size: 0, ..header }, &bytes[..600]);
    lab.step(MOMENT);
    let (header, frame) = guest.received(3);
    assert_eq!((header.flags, header.gso_type, frame.len()), (0, 0, 600));
    assert_eq!(lab.totals(&guest).drops.total(), 0);
}

#[test]
fn short_frames_filled_more_memory_than_a_queue_may_hold() {
    let mut lab = Lab::new(None);
    lab.guest(1, all_features(), ENTRIES);
    lab.step(MOMENT);
    for _ in 0..40_000 / 8 {
        (0..8).for_each(|_| lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 60)));
        lab.step(MOMENT);
    }
    let id = lab.state.actor.core.find_nic("vm1", "eth0").unwrap();
    let waiting = lab.state.actor.core.receive.queued(lab.state.actor.core.nics[id].port);
    assert!(waiting <= 2048, "{waiting} frames");
}
