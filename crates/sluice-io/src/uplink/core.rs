//! The way of a frame through an uplink's thread.
//!
//! ```text
//!     [port] --transmit--> guard, switch --> waiting --> Gate --> [wire] --> interface
//!        ^                      |                                             |
//!        '------ receive queue <-'<---------------- switch <------ receive ---'
//! ```
//!
//! A port calls the core; the core calls no port. It keeps what a port has to hear of until the event loop delivers it: chains that
//! may be returned, NICs with room at the gate, and received frames.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sluice_net::drop::{Drop as Reason, Drops};
use sluice_net::frame::Frame;
use sluice_net::header::{GSO_NONE, OffloadHeader};
use sluice_net::switch::{Port, Switch, Target};
use sluice_net::tag::take_off;
use sluice_net::wire::{OVERHEAD, SEGMENTS_MAX, Wire as Cost, wire};
use sluice_net::{PREFIX_LEN, Receive, parse, segments};
use sluice_sched::gate::GateStats;
use sluice_sched::{Arrival, Flags, Instant, Kind, OwnerId, Percent, Policy, Scope};

use crate::backend::ring::Ring;
use crate::cpu::{self, HasCpu, VmCpu};
use crate::reactor::base::{Base, Ending};
use crate::slab::{Id as _, Slab, VmId};
use crate::uplink::ids::{NicId, PacketId};
use crate::uplink::link::{FRAME_MAX, Read};
use crate::uplink::nic::{Incoming, Nic, WAIT_MAX, Watch};
use crate::uplink::packet::{Data, Origin, Packet};
use crate::uplink::wire::Wire;
use crate::virtio::sessions::Context;

/// Maximum number of rounds in which landed frames are replaced at the wire, for one iteration of the loop.
const ROUNDS_MAX: u32 = 256;
/// Maximum number of frames that are received from the interface in one iteration.
const RECEIVED_MAX: u32 = 128;
/// Bytes after which no more are received in one iteration: what the receive queue of one NIC holds has room for twice as much.
const RECEIVED_BYTES_MAX: usize = 256 << 10;

/// Length of a VLAN tag.
const TAG_LEN: u16 = 4;

/// A VM on an uplink.
pub(crate) struct Vm {
    pub(crate) name: String,
    pub(crate) owner: OwnerId,
    pub(crate) policy: Policy,
    pub(crate) nics: HashMap<String, NicId>,
    pub(crate) cpu: VmCpu,
    /// Whether frames of it were left where they are since it is held.
    pub(crate) is_waiting: bool,
    /// Its statistics in the last snapshot.
    pub(crate) copied_stats: Option<Arc<GateStats>>,
}

impl HasCpu for Vm {
    fn cpu(&mut self) -> &mut VmCpu {
        &mut self.cpu
    }

    fn is_waiting(&self) -> bool {
        self.is_waiting
    }
}

/// A frame that a port has taken from its VM.
pub(crate) struct Outgoing {
    pub(crate) header: OffloadHeader,
    pub(crate) data: Data,
    /// Length in bytes, without the header.
    pub(crate) length: u32,
    pub(crate) origin: Option<Origin>,
}

/// The shared state of all ports of an uplink.
pub(crate) struct Core {
    pub(crate) base: Base<Vm>,
    pub(crate) ring: Ring,
    pub(crate) wire: Wire,
    pub(crate) switch: Switch,
    pub(crate) nics: Slab<NicId, Nic>,
    /// Longest time that one frame may occupy the wire.
    pub(crate) frame_time_max: Duration,
    /// Frames from the interface that were dropped before a NIC was found for them, by reason.
    pub(crate) drops: Drops,
    /// Chains of which a frame has been sent.
    returned: VecDeque<Origin>,
    /// Whether NICs may have room at the gate again.
    resumable: bool,
    /// Number of the iteration.
    iteration: u64,
    /// Whether NICs have used up their part of this iteration.
    exhausted: bool,
    /// Frames for NICs.
    pub(crate) receive: Receive<Incoming>,
    room: Vec<u8>,
    packets_made: u64,
    started: Vec<NicId>,
}

impl Context for Core {
    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn is_open(&self) -> bool {
        self.base.ending == Ending::No
    }

    fn count_stale(&mut self) {
        self.base.stale_messages += 1;
    }
}

impl Core {
    pub(crate) fn new(base: Base<Vm>, ring: Ring, wire: Wire, switch: Switch, frame_time_max: Duration) -> Self {
        Core {
            base,
            ring,
            wire,
            switch,
            nics: Slab::default(),
            frame_time_max,
            drops: Drops::default(),
            returned: VecDeque::new(),
            resumable: false,
            iteration: 1,
            exhausted: false,
            receive: Receive::default(),
            room: vec![0; FRAME_MAX],
            packets_made: 0,
            started: Vec::new(),
        }
    }

    // ---- From a NIC to the uplink ----

    /// Takes a frame that a NIC sends. Returns the number of frames on their way to the uplink, each of which is reported by
    /// [`Core::next_returned`]; 0 if it was dropped, or went to other NICs only.
    pub(crate) fn transmit(&mut self, now: Instant, id: NicId, outgoing: Outgoing) -> u32 {
        self.count_sent(id, cpu::FRAME + 2 * cpu::copied(outgoing.length.into()));
        match self.admit(now, id, outgoing) {
            Ok(frames) => frames,
            Err(reason) => {
                self.nics[id].drop_frame(reason);
                0
            }
        }
    }

    /// Drops a frame of a guest before it is looked at.
    pub(crate) fn refuse(&mut self, id: NicId, reason: Reason) -> u32 {
        self.count_sent(id, cpu::FRAME);
        self.nics[id].drop_frame(reason);
        0
    }

    fn admit(&mut self, now: Instant, id: NicId, mut outgoing: Outgoing) -> Result<u32, Reason> {
        outgoing.header = outgoing.header.without_claims();
        let mut frame = parse(outgoing.data.prefix.bytes(), outgoing.length)?;
        let cost = wire(&frame, &outgoing.header, outgoing.length)?;
        frame.frames = cost.frames;
        self.count_segments(id, cost.frames - 1);
        let nic = &self.nics[id];
        nic.spec.guard.check(&frame)?;
        cost.check_mtu(nic.spec.mtu)?;
        outgoing.header = outgoing.header.forwarded(&frame);
        let port = nic.port;
        let target = self.switch.from_port(now, port, &frame);
        if !matches!(target, Target::Nowhere(_)) {
            let nic = &mut self.nics[id];
            nic.totals.sent += 1;
            nic.totals.sent_bytes += u64::from(outgoing.length);
        }
        match target {
            Target::Port(to) => {
                self.count_sent(id, cpu::copied(outgoing.length.into()));
                let incoming = Incoming { header: outgoing.header, bytes: outgoing.data.gather().into() };
                self.deliver_to(now, to, incoming, cost.occupied());
                Ok(0)
            }
            Target::Uplink => self.queue(now, id, outgoing, &frame, cost),
            Target::Flood => {
                self.count_sent(id, cpu::copied(outgoing.length.into()));
                let incoming = Incoming { header: outgoing.header, bytes: outgoing.data.gather().into() };
                self.flood(now, (Some(port), &frame), incoming, cost.occupied());
                self.queue(now, id, outgoing, &frame, cost)
            }
            Target::Nowhere(reason) => Err(reason),
        }
    }

    /// Queues a frame for the gate, which costs `cost` on the wire. A segment that would occupy the wire for too long is cut into
    /// shorter ones. Returns their number.
    fn queue(
        &mut self,
        now: Instant,
        nic: NicId,
        outgoing: Outgoing,
        frame: &Frame,
        cost: Cost,
    ) -> Result<u32, Reason> {
        let longest = self.wire.pacer.bytes_in(self.frame_time_max);
        if cost.frames == 1 || outgoing.length <= longest {
            return Ok(self.queue_part(now, nic, outgoing, cost));
        }
        let Outgoing { header, data, length, origin } = outgoing;
        let mut frames = 0;
        for part in segments(frame, &header, data.prefix.bytes(), length, longest)? {
            let cost = wire(frame, &part.offload, part.length())?;
            let part = Outgoing { header: part.offload, data: data.part(&part), length: part.length(), origin };
            frames += self.queue_part(now, nic, part, cost);
            self.count_sent(nic, if frames > 1 { cpu::FRAME } else { 0 });
        }
        Ok(frames)
    }

    /// Queues a frame that is not cut. Returns 1, or 0 if it was dropped.
    fn queue_part(&mut self, now: Instant, nic: NicId, outgoing: Outgoing, mut cost: Cost) -> u32 {
        let Outgoing { mut header, mut data, mut length, origin } = outgoing;
        if let Some(vlan) = self.nics[nic].spec.vlan {
            data.put_tag(vlan);
            (header, length, cost) = (header.shifted(TAG_LEN), length + u32::from(TAG_LEN), cost.with_tag());
        }
        let charge = cost.occupied() - OVERHEAD;
        let number = self.next_number();
        let waited = Duration::ZERO;
        self.wait(now, Packet { nic, header, data, length, charge, origin, arrived: now, number, waited }).into()
    }

    /// Lets a frame wait for the gate. One from a TAP is dropped if too many wait; then this returns `false`.
    fn wait(&mut self, now: Instant, packet: Packet) -> bool {
        let id = packet.nic;
        let nic = &mut self.nics[id];
        if packet.origin.is_none() && !nic.has_room_to_wait(packet.length as usize) {
            nic.drop_frame(Reason::QueueFull);
            return false;
        }
        nic.frames.waiting_bytes += packet.length as usize;
        let packet = self.wire.packets.insert(packet);
        nic.frames.waiting.push_back(packet);
        self.feed(now, id);
        true
    }

    /// Gives waiting frames of a NIC to the gate.
    fn feed(&mut self, now: Instant, id: NicId) {
        let depth = self.base.gate.settings().depth;
        loop {
            let nic = &mut self.nics[id];
            let Some(first) = nic.frames.waiting.front().copied() else { return };
            let packet = &self.wire.packets[first];
            let is_late = packet.origin.is_none() && now.since(packet.arrived) > WAIT_MAX;
            if !is_late && !nic.has_room_at_gate(depth) {
                return;
            }
            nic.frames.waiting.pop_front();
            nic.frames.waiting_bytes -= packet.length as usize;
            if is_late {
                nic.drop_frame(Reason::Waited);
                self.wire.packets.remove(first);
                continue;
            }
            let arrival = Arrival {
                owner: self.base.vms[nic.vm].owner,
                volume: nic.id,
                kind: Kind::Write,
                flags: Flags::NONE,
                offset: 0,
                length: packet.charge,
                token: first.index(),
                remote: None,
            };
            nic.frames.at_gate += 1;
            if self.base.gate.insert(now, &arrival).is_err() {
                nic.frames.at_gate -= 1;
                nic.drop_frame(Reason::QueueFull);
                self.forget(first);
            }
        }
    }

    /// Removes a frame, and reports it to the queue that it came from.
    pub(crate) fn forget(&mut self, id: PacketId) {
        let packet = self.wire.packets.remove(id);
        self.returned.extend(packet.origin);
    }

    /// Counts units of CPU time for what the VM of a NIC sends.
    pub(crate) fn count_sent(&mut self, id: NicId, units: u64) {
        let id = self.nics[id].vm;
        // A NIC that is being removed may outlive its VM.
        if let Some(vm) = self.base.vms.get_mut(id) {
            self.base.cpu.sent(id, &mut vm.cpu, units);
        }
    }

    /// Counts a kick of a guest.
    pub(crate) fn count_kick(&mut self, id: NicId) {
        let id = self.nics[id].vm;
        if let Some(vm) = self.base.vms.get_mut(id) {
            self.base.cpu.event(id, &mut vm.cpu, cpu::KICK);
        }
    }

    /// Counts units of CPU time for what the VM of a NIC receives.
    pub(crate) fn count_delivered(&mut self, id: NicId, units: u64) {
        let id = self.nics[id].vm;
        if let Some(vm) = self.base.vms.get_mut(id) {
            self.base.cpu.received(id, &mut vm.cpu, units);
        }
    }

    /// Whether the VM of a NIC has used up its CPU time. Then its frames stay where they are.
    pub(crate) fn is_held(&mut self, id: NicId) -> bool {
        let Some(vm) = self.base.vms.get_mut(self.nics[id].vm).filter(|vm| vm.cpu.is_held()) else { return false };
        vm.is_waiting = true;
        true
    }

    /// Changes how much CPU time a VM may use.
    pub(crate) fn set_cpu_limit(&mut self, now: Instant, id: VmId, limit: Option<Percent>) {
        self.base.vms[id].cpu.set_limit(now, limit);
        self.resumable = true;
    }

    /// Lets VMs continue that their limits of CPU time held back.
    pub(crate) fn release_held(&mut self, now: Instant) {
        while let Some(id) = self.base.cpu.release(now, &mut self.base.vms) {
            let vm = &mut self.base.vms[id];
            vm.is_waiting = false;
            self.resumable = true;
            // Frames may wait for buffers that their guests have added meanwhile.
            vm.nics.values().for_each(|nic| self.receive.resume(now, self.nics[*nic].port));
        }
    }

    /// Whether a guest's queue may be asked for another frame.
    pub(crate) fn has_room(&self, id: NicId) -> bool {
        let nic = &self.nics[id];
        self.base.vms.get(nic.vm).is_some_and(|vm| !vm.cpu.is_held())
            && nic.frames.waiting.is_empty()
            && nic.has_room_at_gate(self.base.gate.settings().depth)
            && nic.work.is_left(self.iteration)
    }

    /// Counts a frame of a guest's queue as work of this iteration.
    pub(crate) fn count_work(&mut self, id: NicId, bytes: u64, descriptors: u16) {
        self.exhausted |= self.nics[id].work.spend(self.iteration, bytes, descriptors);
        self.count_sent(id, cpu::DESCRIPTOR * u64::from(descriptors));
    }

    /// Counts the further frames of a large segment.
    fn count_segments(&mut self, id: NicId, segments: u16) {
        if segments > 0 {
            self.exhausted |= self.nics[id].work.spend_segments(self.iteration, segments);
            self.count_sent(id, cpu::SEGMENT * u64::from(segments));
        }
    }

    /// Ends an iteration: NICs that have used up their part of it continue in the next.
    pub(crate) fn end_of_iteration(&mut self) {
        self.iteration += 1;
        self.resumable |= std::mem::take(&mut self.exhausted);
    }

    /// Lets the gate fill the wire, and takes frames off that have left it.
    pub(crate) fn run_wire(&mut self, now: Instant) {
        for _ in 0..ROUNDS_MAX {
            self.take_landed(now);
            self.base.wake = self.base.gate.pump(now, &mut self.wire);
            let has_slot = self.base.gate.in_flight() < u64::from(self.base.gate.settings().depth);
            match has_slot && self.wire.pacer.has_room(now) {
                true => self.wire.pacer.note_idle(self.base.wake),
                false => self.wire.pacer.note_busy(),
            }
            let started = self.take_started(now);
            if !started && !self.wire.has_landed(now) {
                return;
            }
        }
    }

    fn take_landed(&mut self, now: Instant) {
        while let Some(landed) = self.wire.next_landed(now) {
            self.base.gate.complete(now, landed.slot, landed.lost.is_none());
            let id = self.wire.packets[landed.packet].nic;
            let nic = &mut self.nics[id];
            nic.left_wire(landed.lost);
            self.forget(landed.packet);
            self.remove_left(id);
        }
    }

    /// Replaces frames that have left the gate. Returns whether there were any.
    fn take_started(&mut self, now: Instant) -> bool {
        let mut started = std::mem::take(&mut self.started);
        while let Some(packet) = self.wire.next_started() {
            self.nics[packet.nic].left_gate(packet.waited);
            if started.last() != Some(&packet.nic) {
                started.push(packet.nic);
            }
        }
        let any = !started.is_empty();
        for id in started.drain(..) {
            self.feed(now, id);
            self.resumable = true;
        }
        self.started = started;
        any
    }

    /// Takes back all frames of a NIC that have not been sent: those that wait, those at the gate, and those that the interface did
    /// not take, which may be so for ever. Returns them in order. They are queued again or removed.
    pub(crate) fn recall(&mut self, now: Instant, id: NicId) -> Vec<PacketId> {
        let nic = &self.nics[id];
        let scope = Scope::Volume(self.base.vms[nic.vm].owner, nic.id);
        let mut finished = Vec::new();
        self.base.gate.cancel(now, scope, &mut finished);
        // For the other queues of the NIC.
        self.resumable = true;
        let mut recalled: Vec<PacketId> =
            finished.into_iter().map(|over| self.wire.packets.id_at(over.token)).collect();
        let nic = &mut self.nics[id];
        nic.frames.at_gate -= recalled.len() as u32;
        for (slot, packet) in self.wire.take_back(id) {
            self.base.gate.complete(now, slot, false);
            nic.frames.flying -= 1;
            recalled.push(packet);
        }
        nic.frames.waiting_bytes = 0;
        recalled.extend(std::mem::take(&mut nic.frames.waiting));
        recalled.sort_unstable_by_key(|packet| self.wire.packets[*packet].number);
        recalled
    }

    /// Queues recalled frames again.
    pub(crate) fn requeue(&mut self, now: Instant, id: NicId, recalled: Vec<PacketId>) {
        let nic = &mut self.nics[id];
        nic.frames.waiting_bytes +=
            recalled.iter().map(|packet| self.wire.packets[*packet].length as usize).sum::<usize>();
        nic.frames.waiting.extend(recalled);
        self.feed(now, id);
    }

    fn next_number(&mut self) -> u64 {
        self.packets_made += 1;
        self.packets_made
    }

    /// Returns the next chain of which a frame has been sent or dropped.
    pub(crate) fn next_returned(&mut self) -> Option<Origin> {
        self.returned.pop_front()
    }

    /// Returns whether NICs may have room at the gate again since the last call.
    pub(crate) fn take_resumable(&mut self) -> bool {
        std::mem::take(&mut self.resumable)
    }

    /// Whether NICs may have room at the gate again.
    pub(crate) fn has_resumable(&self) -> bool {
        self.resumable
    }

    /// Returns when something is to be done without an event.
    pub(crate) fn next_wakeup(&self) -> Option<Instant> {
        let times = [self.base.wake, self.wire.next_wakeup(), self.receive.next_due(), self.base.cpu.next_release()];
        times.into_iter().flatten().min()
    }

    // ---- From the uplink, or another NIC, to a NIC ----

    /// Receives frames from the interface. Returns whether there may be more.
    pub(crate) fn receive(&mut self, now: Instant) -> std::io::Result<bool> {
        let link = Arc::clone(&self.wire.link);
        let mut room = std::mem::take(&mut self.room);
        let mut result = Ok(true);
        let (mut frames, mut left) = (0, RECEIVED_BYTES_MAX);
        while frames < RECEIVED_MAX && left > 0 {
            match link.receive(&mut room) {
                Ok(Read::Frame(received)) => {
                    frames += 1;
                    left = left.saturating_sub(received.length);
                    let bytes = &mut room[received.start..received.start + received.length];
                    self.take_received(now, received.header, bytes);
                }
                Ok(Read::Dropped(reason)) => {
                    frames += 1;
                    self.drops.count(reason);
                }
                Ok(Read::Nothing) => result = Ok(false),
                Err(error) => result = Err(error),
            }
            if !matches!(result, Ok(true)) {
                break;
            }
        }
        self.room = room;
        result
    }

    fn take_received(&mut self, now: Instant, mut header: OffloadHeader, bytes: &mut [u8]) {
        let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
        let mut frame = match parse(prefix, bytes.len() as u32) {
            Ok(frame) => frame,
            Err(reason) => return self.drops.count(reason),
        };
        let length = bytes.len() as u32;
        // A driver gets a frame whose offloads are impossible as it is, if it takes such frames at all.
        let cost = wire(&frame, &header, length);
        let occupied = cost.map_or(sluice_net::wire::occupied(length), Cost::occupied);
        let impossible = if header.gso_type == GSO_NONE { 1 } else { SEGMENTS_MAX as u16 };
        frame.frames = cost.map_or(impossible, |cost| cost.frames);
        let target = self.switch.from_uplink(now, &frame);
        let mut bytes = &*bytes;
        let mut untagged = Vec::new();
        if frame.tags > 0 {
            untagged.extend_from_slice(bytes);
            if let Some(rest) = take_off(&mut untagged) {
                (bytes, header) = (rest, header.shifted_back(TAG_LEN));
            }
        }
        match target {
            Target::Port(port) => self.deliver_to(now, port, Incoming { header, bytes: bytes.into() }, occupied),
            Target::Flood => self.flood(now, (None, &frame), Incoming { header, bytes: bytes.into() }, occupied),
            Target::Uplink => self.drops.count(Reason::NoReceiver),
            Target::Nowhere(reason) => self.drops.count(reason),
        }
    }

    /// Gives a frame to the NICs of its VLAN that may be meant.
    fn flood(&mut self, now: Instant, (from, frame): (Option<Port>, &Frame), incoming: Incoming, occupied: u32) {
        let ports: Vec<Port> = self.switch.flooded(from, frame).collect();
        ports.into_iter().for_each(|port| self.deliver_to(now, port, incoming.clone(), occupied));
    }

    /// Queues a frame for a NIC, which occupies `occupied` bytes of the wire.
    fn deliver_to(&mut self, now: Instant, port: Port, incoming: Incoming, occupied: u32) {
        let id = self.nics.id_at(port.0);
        let nic = &mut self.nics[id];
        if !nic.has_receiver() {
            return nic.drop_frame(Reason::NoReceiver);
        }
        let size = incoming.size(occupied);
        if let Err(reason) = self.receive.push(now, port, incoming, size) {
            nic.drop_frame(reason);
        }
    }

    /// Looks at a NIC again whose guest may have buffers now.
    pub(crate) fn wake_receiver(&mut self, now: Instant, id: NicId) {
        self.receive.resume(now, self.nics[id].port);
    }

    /// Drops the frames that wait for a NIC, whose guest has left.
    pub(crate) fn drop_received(&mut self, id: NicId, reason: Reason) {
        let nic = &mut self.nics[id];
        self.receive.drain(nic.port).for_each(|_| nic.drop_frame(reason));
    }

    // ---- Names ----

    pub(crate) fn find_nic(&self, vm: &str, nic: &str) -> Option<NicId> {
        let vm = *self.base.vms_by_name.get(vm)?;
        self.base.vms[vm].nics.get(nic).copied()
    }

    /// Removes a NIC that is being removed, when nothing refers to it any more.
    pub(crate) fn remove_left(&mut self, id: NicId) {
        let Some(nic) = self.nics.get(id) else { return };
        let is_used = nic.session.is_some() || nic.frames.at_gate + nic.frames.flying > 0 || nic.watch != Watch::Idle;
        if !nic.is_leaving() || is_used {
            return;
        }
        self.nics.remove(id);
    }
}
