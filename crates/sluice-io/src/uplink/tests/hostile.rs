//! Attacks of guests and VMMs on an uplink's thread. The guest is a piece of memory in which the test writes what it likes; time is an
//! argument.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use sluice_net::Mac;
use sluice_net::NicTotals;
use sluice_net::drop::Drop as Reason;
use sluice_net::header::{GSO_TCP6, HEADER_LEN, NEEDS_CHECKSUM, OffloadHeader};
use sluice_sched::Policy;
use tokio::sync::oneshot;
use vm_memory::{Bytes as _, GuestAddress};

use super::{Lab, add, frame, mac, nic};
use crate::reactor::actor::Actor as _;
use crate::uplink::link::tap;
use crate::uplink::spec::Edit;
use crate::uplink::spec::NicPlug;
use crate::vhost_user::device_kind::{DeviceKind as _, Driver};
use crate::vhost_user::memory::{Memory, unshared};
use crate::vhost_user::message::{SessionChange, SessionMessage};
use crate::vhost_user::net::Net;
use crate::virtio::queue::{QueueSpec, SessionId};
use crate::virtio::sessions::VirtioDevices as _;

#[path = "receive.rs"]
mod receive;
#[path = "removal.rs"]
mod removal;

/// Indices of the queues.
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const TRANSMIT_2: u16 = 3;
/// Entries of a ring.
const ENTRIES: u16 = 1024;
/// Bytes of memory for the three parts of a ring.
const RING: u64 = 0x8000;
/// Where the parts of a ring are.
const PARTS: [u64; 3] = [0, 0x4000, 0x5000];
/// Where frames and tables of the test are.
const DATA: u64 = 0x2_0000;
const MEMORY: usize = 4 << 20;
/// Flags of descriptors.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// A moment.
const MOMENT: Duration = Duration::from_micros(10);

/// Address, length, flags and next of a descriptor.
type Descriptor = (u64, u32, u16, u16);

/// A guest and its VMM.
struct Guest {
    vm: String,
    session: SessionId,
    memory: Arc<Memory>,
    size: u16,
    kicks: Vec<OwnedFd>,
}

impl Lab {
    /// Adds a VM whose NIC is served over vhost-user, and starts both rings.
    fn guest(&mut self, number: u8, features: u64, size: u16) -> Guest {
        let vm = format!("vm{number}");
        let spec = nic(number, NicPlug::VhostUser);
        let (volume, generation) = (spec.name.clone(), spec.generation);
        self.state.actor.edit(self.now, add(&vm, Policy::default(), spec)).unwrap();
        let (reply, mut opened) = oneshot::channel();
        let (peer, permit) = ("test".to_owned(), Box::new(()));
        self.tell(SessionMessage::Open { vm: vm.clone(), volume, generation, peer, permit, reply });
        let session = opened.try_recv().unwrap().unwrap();
        let memory = Arc::new(unshared(&[(GuestAddress(0), MEMORY)]).unwrap());
        let mut guest = Guest { vm, session, memory, size, kicks: Vec::new() };
        for index in [RECEIVE, TRANSMIT] {
            self.start(&mut guest, index, features);
        }
        guest
    }

    fn start(&mut self, guest: &mut Guest, index: u16, features: u64) {
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let [descriptors, available, used] = PARTS.map(|part| GuestAddress(u64::from(index) * RING + part));
        let kick = event();
        guest.kicks.push(kick.try_clone().unwrap());
        let queue = QueueSpec {
            index,
            size: guest.size,
            descriptors,
            available,
            used,
            next_available: 0,
            event_index: false,
            kick,
            call: Some(Arc::new(event())),
            error: None,
            log: None,
        };
        let (reply, mut started) = oneshot::channel();
        let driver = Driver { features, write_back: false };
        let memory = Arc::clone(&guest.memory);
        self.change(guest, SessionChange::Start { queue: Box::new(queue), memory, driver, reply });
        assert_eq!(started.try_recv().unwrap(), Some(0));
    }

    fn tell(&mut self, message: SessionMessage) {
        let now = self.now;
        self.state.actor.ports.vhost.message(&mut self.state.actor.core, now, message);
    }

    fn change(&mut self, guest: &Guest, change: SessionChange) {
        self.tell(SessionMessage::Change(guest.session, change));
    }

    fn totals(&mut self, guest: &Guest) -> NicTotals {
        let vms = self.state.snapshot().vms;
        *vms.into_iter().find(|vm| vm.vm == guest.vm).unwrap().volumes[0].nic.clone().unwrap()
    }

    fn protocol_errors(&mut self, guest: &Guest) -> u64 {
        self.state.snapshot().vms.into_iter().find(|vm| vm.vm == guest.vm).unwrap().protocol_errors
    }

    fn remove(&mut self, vm: &str) {
        let edits =
            vec![Edit::RemoveNic { vm: vm.to_owned(), nic: "eth0".to_owned() }, Edit::RemoveVm { vm: vm.to_owned() }];
        self.state.actor.edit(self.now, edits).unwrap();
    }
}

impl Guest {
    fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn word(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.memory.read_obj(GuestAddress(at)).unwrap())
    }

    /// Writes descriptor `index` of the table at `table`.
    fn descriptor(&self, table: u64, index: u16, (address, len, flags, next): Descriptor) {
        let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.write(table + 16 * u64::from(index), &bytes.concat());
    }

    /// Makes `count` more chains available, which begin at `head`.
    fn offer(&self, ring: u16, heads: impl Iterator<Item = u16>) {
        let available = u64::from(ring) * RING + PARTS[1];
        let mut index = self.word(available + 2);
        for head in heads {
            self.write(available + 4 + 2 * u64::from(index % self.size), &head.to_le_bytes());
            index = index.wrapping_add(1);
        }
        self.write(available + 2, &index.to_le_bytes());
    }

    fn used(&self, ring: u16) -> u16 {
        self.word(u64::from(ring) * RING + PARTS[2] + 2)
    }

    /// Writes a header and a frame at `at`.
    fn put(&self, at: u64, header: OffloadHeader, frame: &[u8]) {
        self.write(at, &[&header.to_bytes()[..], frame].concat());
    }

    /// Sends a frame in a chain of one descriptor.
    fn send(&self, slot: u16, header: OffloadHeader, frame: &[u8]) {
        self.send_in(TRANSMIT, slot, header, frame);
    }

    fn send_in(&self, ring: u16, slot: u16, header: OffloadHeader, frame: &[u8]) {
        let at = DATA + 0x800 * u64::from(slot);
        self.put(at, header, frame);
        self.descriptor(u64::from(ring) * RING, slot, (at, (HEADER_LEN + frame.len()) as u32, 0, 0));
        self.offer(ring, std::iter::once(slot));
    }

    /// Posts receive buffers of `len` bytes.
    fn post(&self, slots: std::ops::Range<u16>, len: u32) {
        for slot in slots.clone() {
            self.descriptor(0, slot, (DATA + 0x800 * u64::from(slot), len, WRITE, 0));
        }
        self.offer(RECEIVE, slots);
    }

    /// Returns the header and the first bytes of the frame in the entry `at` of the used receive ring.
    fn received(&self, at: u16) -> (OffloadHeader, Vec<u8>) {
        let entry = PARTS[2] + 4 + 8 * u64::from(at % self.size);
        let (head, len) = (self.word(entry), self.word(entry + 4));
        let mut bytes = vec![0; usize::from(len)];
        self.memory.read_slice(&mut bytes, GuestAddress(DATA + 0x800 * u64::from(head))).unwrap();
        let frame = bytes.split_off(HEADER_LEN);
        (OffloadHeader::parse(bytes.as_slice().try_into().unwrap()), frame)
    }
}

/// All features that the device offers.
fn all_features() -> u64 {
    Net { mac: mac(1), mtu: 1500, pairs: 1, offloads: true }.features()
}

/// A segment of TCP over IPv6 with the longest TCP header, with its offload header.
pub(super) fn tcp6(from: u8, to: Mac, length: usize, gso_size: u16) -> (OffloadHeader, Vec<u8>) {
    let mut bytes = [&to.0[..], &mac(from).0, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    bytes.extend(((length - 54) as u16).to_be_bytes());
    bytes.extend([6, 64]);
    bytes.resize(length, from);
    bytes[54 + 12] = 0xf0;
    let header = OffloadHeader {
        flags: NEEDS_CHECKSUM,
        gso_type: GSO_TCP6,
        header_len: 114,
        gso_size,
        checksum_start: 54,
        checksum_offset: 16,
        buffers: 0,
    };
    (header, bytes)
}

#[test]
fn a_segment_of_many_small_frames_was_charged_in_two_pieces_and_sent_twice() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    let (header, bytes) = tcp6(1, mac(200), 60_114, 30);
    guest.put(DATA, header, &bytes);
    guest.descriptor(RING, 0, (DATA, (HEADER_LEN + bytes.len()) as u32, 0, 0));
    guest.offer(TRANSMIT, std::iter::once(0));
    lab.step(MOMENT);
    assert_eq!(lab.far.all().len(), 1, "its charge is more than 256 KiB");
    assert_eq!((guest.used(TRANSMIT), lab.totals(&guest).drops.total()), (1, 0));
    assert!(lab.state.actor.core.has_room(lab.state.actor.core.find_nic("vm1", "eth0").unwrap()));
}

#[test]
fn a_segment_to_a_group_reached_each_neighbour_as_thousands_of_frames() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    let plain = Net { mac: mac(2), mtu: 1500, pairs: 1, offloads: false }.features();
    let neighbour = lab.guest(2, plain, ENTRIES);
    neighbour.post(0..ENTRIES, 2048);
    let group = Mac([0x33, 0x33, 0, 0, 0, 1]);
    // The burst of a NIC is 150 frames that are not ARP.
    for (gso_size, received) in [(30, 0), (1400, 43)] {
        let (header, bytes) = tcp6(1, group, 60_114, gso_size);
        guest.put(DATA, header, &bytes);
        guest.descriptor(RING, 0, (DATA, (HEADER_LEN + bytes.len()) as u32, 0, 0));
        guest.offer(TRANSMIT, std::iter::once(0));
        lab.step(MOMENT);
        assert_eq!(neighbour.used(RECEIVE), received, "segments of {gso_size} bytes");
    }
    assert_eq!(lab.totals(&guest).drops.of(Reason::FloodRate), 1);
}

#[test]
fn segments_that_a_driver_had_not_negotiated_were_cut_for_it() {
    let mut lab = Lab::new(None);
    let plain = Net { mac: mac(1), mtu: 1500, pairs: 1, offloads: false }.features();
    let guest = lab.guest(1, plain, ENTRIES);
    let (header, bytes) = tcp6(1, mac(200), 6_114, 1440);
    let is_plain = OffloadHeader { gso_type: 0, gso_size: 0, ..header };
    for (header, length) in [(header, bytes.len()), (is_plain, 1_400)] {
        guest.put(DATA, header, &bytes[..length]);
        guest.descriptor(RING, 0, (DATA, (HEADER_LEN + length) as u32, 0, 0));
        guest.offer(TRANSMIT, std::iter::once(0));
        lab.step(MOMENT);
    }
    assert_eq!(guest.used(TRANSMIT), 2, "both are returned");
    assert_eq!(lab.far.all().len(), 1);
    assert_eq!(lab.totals(&guest).drops.of(Reason::Offload), 1);
}

#[test]
fn segments_of_many_small_frames_filled_an_iteration_for_long() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    // For itself: it is dropped behind all checks.
    let (header, bytes) = tcp6(1, mac(1), 60_114, 30);
    guest.put(DATA, header, &bytes);
    for slot in 0..12 {
        guest.descriptor(RING, slot, (DATA, (HEADER_LEN + bytes.len()) as u32, 0, 0));
    }
    guest.offer(TRANSMIT, 0..12);
    lab.step(MOMENT);
    let first = guest.used(TRANSMIT);
    assert!((2..=5).contains(&first), "{first} segments of 2,000 frames in two iterations");
    (0..6).for_each(|_| lab.step(MOMENT));
    assert_eq!(guest.used(TRANSMIT), 12);
}

#[test]
fn kicks_for_buffers_that_do_not_suffice_were_no_part_of_a_limit_of_cpu_time() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    lab.limit_cpu("vm1", 10);
    guest.post(0..400, 64);
    let (header, bytes) = tcp6(200, mac(1), 60_114, 1400);
    lab.far.send(header, &bytes);
    lab.step(MOMENT);
    let (step, mut cpu, mut looks) = (Duration::from_micros(250), Duration::ZERO, 0);
    for _ in 0..4000 {
        rustix::io::write(&guest.kicks[0], &1u64.to_ne_bytes()).unwrap();
        lab.step(step);
        // What the thread has not read is still there.
        if rustix::io::read(&guest.kicks[0], &mut [0; 8]).is_err() {
            (looks, cpu) = (looks + 1, cpu + step);
        }
        let core = &mut lab.state.actor.core;
        if core.base.cpu.end_of_iteration(lab.now, step.as_nanos() as u64, true) {
            core.base.cpu.divide(lab.now, cpu, &mut core.base.vms);
        }
    }
    assert!((300..=500).contains(&looks), "{looks} of 4000 kicks");
    assert_eq!(lab.totals(&guest).received, 0);
    guest.post(400..1024, 0x800);
    lab.step(Duration::from_secs(1));
    assert_eq!(lab.totals(&guest).received, 1, "the frame waited for its buffers");
}

#[test]
fn a_tap_that_had_frames_when_it_was_removed_stopped_the_thread() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    lab.vm(Policy::default());
    lab.step(MOMENT);
    lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60));
    lab.nics[1].send(OffloadHeader::default(), &frame(2, mac(200), 60));
    // The kernel reports the frame together with the message that removes the NIC.
    assert!(lab.state.take_events(lab.now) > 0);
    lab.remove("vm1");
    lab.step(MOMENT);
    assert_eq!(lab.far.all(), [frame(2, mac(200), 60)]);
}

#[test]
fn a_nic_that_waited_for_buffers_when_it_was_removed_stopped_the_thread() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    lab.step(MOMENT);
    lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 60));
    lab.step(MOMENT);
    lab.remove("vm1");
    lab.step(MOMENT);
    // Its memory is not written any more.
    guest.post(0..1, 2000);
    rustix::io::write(&guest.kicks[0], &1u64.to_ne_bytes()).unwrap();
    lab.step(MOMENT);
    assert_eq!((guest.used(RECEIVE), lab.state.snapshot().connections), (0, 0));
}

#[test]
fn the_second_transmit_queue_of_a_nic_got_nothing_while_the_first_was_full() {
    let mut lab = Lab::new(Some(12_500_000));
    let mut guest = lab.guest(1, all_features(), ENTRIES);
    lab.start(&mut guest, TRANSMIT_2, all_features());
    for (ring, slots) in [(TRANSMIT, 0..500), (TRANSMIT_2, 500..1000)] {
        slots.for_each(|slot| guest.send_in(ring, slot, OffloadHeader::default(), &frame(1, mac(200), 1226)));
    }
    // 100 us for each frame.
    while guest.used(TRANSMIT) + guest.used(TRANSMIT_2) < 400 {
        lab.step(Duration::from_micros(100));
        lab.far.all();
    }
    let sent = [TRANSMIT, TRANSMIT_2].map(|ring| guest.used(ring));
    assert!(sent.iter().all(|sent| (150..=250).contains(sent)), "{sent:?}");
}

/// Lets a guest send more frames than the interface takes.
fn send_to_a_full_interface(lab: &mut Lab) -> (Guest, u16) {
    let guest = lab.guest(1, all_features(), ENTRIES);
    (0..500).for_each(|slot| guest.send(slot, OffloadHeader::default(), &frame(1, mac(200), 1000 + usize::from(slot))));
    lab.step(MOMENT);
    let sent = guest.used(TRANSMIT);
    assert!(sent < 500, "the interface took {sent} frames");
    (guest, sent)
}

#[test]
fn a_ring_whose_frames_the_interface_did_not_take_could_not_be_stopped() {
    let mut lab = Lab::new(None);
    let (mut guest, sent) = send_to_a_full_interface(&mut lab);
    let (reply, mut stopped) = oneshot::channel();
    lab.change(&guest, SessionChange::StopQueue { index: TRANSMIT, reply });
    (0..4).for_each(|_| lab.step(MOMENT));
    assert_eq!(stopped.try_recv(), Ok(sent), "at once, and what was not sent is in the ring");
    assert_eq!(guest.used(TRANSMIT), sent);
    lab.start(&mut guest, TRANSMIT, all_features());
    let mut lengths = Vec::new();
    while lengths.len() < 500 {
        let frames = lab.far.all();
        lengths.extend(frames.iter().map(Vec::len));
        lab.step(Duration::from_millis(1));
    }
    lab.step(Duration::from_millis(1));
    assert_eq!(lengths, (1000..1500).collect::<Vec<_>>(), "each once");
    assert_eq!((guest.used(TRANSMIT), lab.totals(&guest).drops.total()), (500, 0));
}

#[test]
fn a_nic_whose_frames_the_interface_did_not_take_could_not_be_removed() {
    let mut lab = Lab::new(None);
    let (guest, _) = send_to_a_full_interface(&mut lab);
    let (reply, mut closed) = oneshot::channel();
    lab.change(&guest, SessionChange::Close { reply: Some(reply) });
    lab.remove("vm1");
    (0..4).for_each(|_| lab.step(MOMENT));
    assert_eq!(closed.try_recv(), Ok(()));
    assert_eq!(
        (lab.state.snapshot().in_flight, lab.state.actor.core.nics.iter().count()),
        (0, 0),
        "nothing of it is left"
    );
}

#[test]
fn a_tap_that_was_deleted_kept_the_thread_busy() {
    let mut lab = Lab::new(None);
    // As a deleted TAP: it is always ready, and each read fails.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let plug = NicPlug::Tap(Arc::new(crate::uplink::link::tap::of_socket(OwnedFd::from(writer))));
    lab.state.actor.edit(lab.now, add("vm1", Policy::default(), nic(1, plug))).unwrap();
    (0..3).for_each(|_| lab.step(MOMENT));
    assert_eq!(lab.state.take_events(lab.now), 0, "it is left alone for a while");
    lab.step(Duration::from_millis(200));
    assert!(lab.state.wait_timeout(lab.now) > Some(Duration::ZERO), "it is looked at again after a pause");
    lab.step(Duration::from_millis(200));
    lab.remove("vm1");
    (0..3).for_each(|_| lab.step(MOMENT));
    assert_eq!(lab.state.actor.core.nics.iter().count(), 0);
}

#[test]
fn a_frame_in_more_parts_than_the_kernel_takes_was_lost() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    let bytes = frame(1, mac(200), 1200);
    guest.put(DATA, OffloadHeader::default(), &bytes);
    // One byte more than the header and what is copied of the frame, and then byte after byte.
    let first = (HEADER_LEN + bytes.len() - 1023) as u64;
    guest.descriptor(RING, 0, (DATA, first as u32, NEXT, 1));
    for index in 1..ENTRIES {
        let flags = if index < ENTRIES - 1 { NEXT } else { 0 };
        guest.descriptor(RING, index, (DATA + first + u64::from(index) - 1, 1, flags, index + 1));
    }
    guest.offer(TRANSMIT, std::iter::once(0));
    lab.step(MOMENT);
    assert_eq!(lab.totals(&guest).drops.total(), 0);
    assert_eq!((lab.far.all(), guest.used(TRANSMIT)), (vec![bytes], 1));
}

#[test]
fn a_guest_that_sends_much_to_its_neighbour_held_the_thread() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    let neighbour = mac(1);
    let large = lab.guest(2, all_features(), ENTRIES);
    let (header, bytes) = tcp6(2, neighbour, 60_114, 1400);
    large.put(DATA, header, &bytes);
    // Short frames in chains of many descriptors, of which all but one are empty.
    let small = lab.guest(3, all_features(), ENTRIES);
    small.put(DATA, OffloadHeader::default(), &frame(3, neighbour, 60));
    let table = DATA + 0x1000;
    for index in 0..1024 {
        let len = if index == 0 { HEADER_LEN as u32 + 60 } else { 0 };
        small.descriptor(table, index, (DATA, len, if index < 1023 { NEXT } else { 0 }, index + 1));
    }
    for head in 0..ENTRIES {
        large.descriptor(RING, head, (DATA, (HEADER_LEN + bytes.len()) as u32, 0, 0));
        small.descriptor(RING, head, (table, 16 * 1024, INDIRECT, 0));
    }
    [&large, &small].iter().for_each(|guest| guest.offer(TRANSMIT, 0..ENTRIES));
    lab.step(MOMENT);
    // A step is two iterations.
    let taken = [&large, &small].map(|guest| guest.used(TRANSMIT));
    assert!(taken.iter().all(|taken| (1..=64).contains(taken)), "{taken:?} frames in two iterations");
    let before = lab.nics[0].all().len();
    while [&large, &small].iter().any(|guest| guest.used(TRANSMIT) < ENTRIES) {
        assert!(lab.state.wait_timeout(lab.now) == Some(Duration::ZERO), "what is left waits for no event");
        lab.step(MOMENT);
    }
    assert!(before > 0);
}

#[test]
fn a_frame_was_looked_for_in_all_tiny_buffers_of_a_ring_at_each_kick() {
    let mut lab = Lab::new(None);
    let guest = lab.guest(1, all_features(), ENTRIES);
    for index in 0..1024 {
        let last = if index < 1023 { NEXT } else { 0 };
        guest.descriptor(DATA, index, (DATA + 0x8000, u32::from(index == 0), WRITE | last, index + 1));
    }
    for head in 0..ENTRIES {
        guest.descriptor(0, head, (DATA, 16 * 1024, INDIRECT, 0));
    }
    guest.offer(RECEIVE, 0..ENTRIES);
    lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 1500));
    lab.step(MOMENT);
    assert_eq!(lab.protocol_errors(&guest), 1, "a million descriptors were followed for one frame");
}

#[test]
fn short_frames_of_a_tap_waited_in_any_number() {
    let mut lab = Lab::new(Some(8192));
    lab.vm(Policy::default());
    for _ in 0..1000 {
        (0..8).for_each(|_| lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60)));
        lab.step(Duration::ZERO);
    }
    let id = lab.state.actor.core.find_nic("vm1", "eth0").unwrap();
    assert_eq!(lab.state.actor.core.nics[id].frames.waiting.len(), 4096);
    assert!(lab.drops("vm1").of(Reason::QueueFull) > 3000);
}

#[test]
fn rings_that_stop_start_and_are_disabled_in_a_loop_send_each_frame_once() {
    let mut lab = Lab::new(Some(1_250_000));
    let mut guest = lab.guest(1, all_features(), ENTRIES);
    (0..200).for_each(|slot| guest.send(slot, OffloadHeader::default(), &frame(1, mac(200), 100 + usize::from(slot))));
    let mut lengths = Vec::new();
    for round in 0..2000 {
        match round % 4 {
            0 | 1 => {
                let (reply, _done) = oneshot::channel();
                lab.change(&guest, SessionChange::Enable { index: TRANSMIT, enabled: round % 4 == 1, reply });
            }
            2 => {
                let (reply, mut stopped) = oneshot::channel();
                lab.change(&guest, SessionChange::StopQueue { index: TRANSMIT, reply });
                let base = (0..1000).find_map(|_| {
                    lab.step(MOMENT);
                    lengths.extend(lab.far.all().iter().map(Vec::len));
                    stopped.try_recv().ok()
                });
                assert_eq!(base, Some(guest.used(TRANSMIT)));
            }
            _ => lab.start(&mut guest, TRANSMIT, all_features()),
        }
        let table = SessionChange::SetMemory { memory: Arc::clone(&guest.memory), reply: oneshot::channel().0 };
        lab.change(&guest, table);
        lab.step(MOMENT);
        lengths.extend(lab.far.all().iter().map(Vec::len));
    }
    assert_eq!(lengths, (100..300).collect::<Vec<_>>());
    assert_eq!(lab.protocol_errors(&guest), 0);
}

#[test]
fn chains_that_are_no_frames_are_returned_or_break_their_ring_only() {
    let header = HEADER_LEN as u32;
    // Only the header; less than it; nothing; only a part to write; a length above 4 GiB; a loop; outside of the memory.
    let chains: [(&[Descriptor], bool); 7] = [
        (&[(DATA, header, 0, 0)], false),
        (&[(DATA, header - 1, 0, 0)], true),
        (&[(DATA, 0, 0, 0)], true),
        (&[(DATA, 2000, WRITE, 0)], true),
        (&[(0, MEMORY as u32, NEXT, 1), (0, MEMORY as u32, NEXT, 2), (0, MEMORY as u32, 0, 0)], false),
        (&[(DATA, 100, NEXT, 0)], true),
        (&[(u64::MAX - 50, 100, 0, 0)], true),
    ];
    for (chain, breaks) in chains {
        let mut lab = Lab::new(None);
        lab.vm(Policy::default());
        let guest = lab.guest(2, all_features(), ENTRIES);
        for (index, descriptor) in (0..).zip(chain) {
            guest.descriptor(RING, index, *descriptor);
        }
        guest.offer(TRANSMIT, std::iter::once(0));
        lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60));
        (0..3).for_each(|_| lab.step(MOMENT));
        assert_eq!(lab.far.all(), [frame(1, mac(200), 60)], "{chain:?}");
        let (returned, errors) = if breaks { (0, 1) } else { (1, 0) };
        assert_eq!((guest.used(TRANSMIT), lab.protocol_errors(&guest)), (returned, errors), "{chain:?}");
        lab.remove("vm2");
        (0..3).for_each(|_| lab.step(MOMENT));
        assert_eq!(lab.state.actor.core.nics.iter().count(), 1, "{chain:?}");
    }
}

#[test]
fn a_queue_that_waited_for_room_never_got_it_when_another_one_of_its_nic_was_stopped() {
    const SECOND: u16 = 3;
    // 8 kbyte/s: a frame takes 0.19 s.
    let mut lab = Lab::new(Some(8192));
    let mut guest = lab.guest(1, all_features(), ENTRIES);
    (0..8).for_each(|slot| guest.send(slot, OffloadHeader::default(), &frame(1, mac(200), 1500)));
    lab.step(MOMENT);
    lab.start(&mut guest, SECOND, all_features());
    let bytes = frame(1, mac(200), 70);
    guest.put(DATA + 0x4000, OffloadHeader::default(), &bytes);
    guest.descriptor(u64::from(SECOND) * RING, 0, (DATA + 0x4000, (HEADER_LEN + bytes.len()) as u32, 0, 0));
    guest.offer(SECOND, std::iter::once(0));
    lab.step(MOMENT);
    let (reply, _stopped) = oneshot::channel();
    lab.change(&guest, SessionChange::StopQueue { index: TRANSMIT, reply });
    let mut frames = Vec::new();
    for _ in 0..8 {
        lab.step(Duration::from_millis(200));
        frames.extend(lab.far.all());
    }
    assert_eq!(frames.last(), Some(&bytes), "of {}", frames.len());
}

#[test]
fn an_interface_that_hung_was_tried_ten_thousand_times_a_second() {
    let mut lab = Lab::new(None);
    let (guest, sent) = send_to_a_full_interface(&mut lab);
    let before = lab.state.actor.core.wire.stats.full;
    for _ in 0..10_000 {
        lab.step(Duration::from_micros(100));
    }
    let tried = lab.state.actor.core.wire.stats.full - before;
    assert!((900..1100).contains(&tried), "{tried} times in a second");
    // When it takes some, it gets the next soon.
    let mut count = lab.far.all().len();
    assert_eq!(count, usize::from(sent));
    lab.step(Duration::from_millis(1));
    for _ in 0..10 {
        count += lab.far.all().len();
        lab.step(Duration::from_micros(200));
    }
    assert_eq!((count, guest.used(TRANSMIT)), (500, 500));
}

/// An interface that was deleted can be "read" at any time, and each read fails. It was looked at ten times a second, with a line in the log
/// each time.
#[test]
fn an_interface_that_was_deleted_filled_the_log() {
    let mut lab = Lab::new(None);
    // A folder behaves like that.
    let folder = std::fs::File::open(".").unwrap();
    lab.state.actor.core.wire.link = Arc::new(tap::of_socket(folder.into()));
    for _ in 0..1000 {
        lab.step(Duration::from_millis(1));
    }
    assert_eq!(lab.state.actor.link_failures, 1, "it is reported once");
}

#[test]
fn a_vm_with_frames_on_the_wire_is_removed() {
    let mut lab = Lab::new(Some(8192));
    let guest = lab.guest(1, all_features(), ENTRIES);
    (0..8).for_each(|slot| guest.send(slot, OffloadHeader::default(), &frame(1, mac(200), 1500)));
    lab.step(MOMENT);
    assert!(lab.state.snapshot().in_flight > 0);
    lab.remove("vm1");
    for _ in 0..4 {
        lab.step(Duration::from_millis(200));
    }
    let snapshot = lab.state.snapshot();
    assert_eq!((snapshot.in_flight, snapshot.connections, guest.used(TRANSMIT)), (0, 0, 0));
    assert_eq!(lab.state.actor.core.nics.iter().count(), 0);
    let again = lab.guest(1, all_features(), ENTRIES);
    again.send(0, OffloadHeader::default(), &frame(1, mac(200), 70));
    lab.far.all();
    (0..3).for_each(|_| lab.step(Duration::from_millis(10)));
    assert_eq!(lab.far.all(), [frame(1, mac(200), 70)], "the next VM of that name is served");
}
