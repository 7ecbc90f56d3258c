//! A NIC of a VM on an uplink's thread.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_net::drop::Drop as Reason;
use sluice_net::header::OffloadHeader;
use sluice_net::switch::Port;
use sluice_net::wire::OVERHEAD;
use sluice_sched::gate::GateStats;
use sluice_sched::{ByteRate, Instant, Policy, VolumeId};

use crate::slab::{VmId, ids};
use crate::uplink::link::{FRAME_MAX, Link};
use crate::uplink::packet::PacketId;
use crate::uplink::spec::NicSpec;
use crate::uplink::taps::Watch;
use crate::uplink::vhost_net::plain;
use crate::virtio::queue::SessionId;
use crate::volume::VolumeGeneration;
use sluice_net::NicTotals;

ids! {
    /// A NIC. The gate's `VolumeId` identifies it within its VM.
    NicId;
}

/// Maximum time that a frame of a TAP waits before it is dropped. A guest keeps what has to wait in its own queue; a program that
/// sends into a TAP cannot be held back, so a long queue would only delay its frames. The limit is a time and not a number of bytes, because
/// a NIC of a low weight fills the same bytes for much longer.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(20);
/// Maximum number of bytes of frames of one TAP that wait.
const WAITING_MAX: usize = 2 << 20;
/// Maximum number of them.
const WAITING_FRAMES_MAX: usize = 4096;
/// Minimum of the window of a NIC; see [`Nic::has_room_at_gate`].
pub(crate) const WINDOW_MIN: u32 = 2;
/// Maximum number of frames at the gate.
const WINDOW_MAX: u32 = 64;
/// Time that frames spend at the gate, if it gets as many as it may.
const AT_GATE: Duration = Duration::from_millis(1);
/// Maximum memory, in bytes, of frames that wait for the guest.
const RECEIVE_MAX: usize = 512 << 10;
/// Memory for a frame beside its bytes. Without it, 512 KiB of the shortest frames would take several times as much.
const FRAME_BESIDE: usize = 256;
/// Time that a limit of the receive side may lag: a late thread makes up for that much.
const RECEIVE_BURST: Duration = Duration::from_millis(5);

/// Work that a guest's queues may cause in one iteration of the loop, in bytes: then it is the turn of the others. It counts the bytes of
/// its frames, whether they go to the uplink, to another NIC or nowhere, and what each frame and each descriptor costs beside.
const WORK_MAX: u64 = 1 << 20;
const FRAME_WORK: u64 = 1024;
const DESCRIPTOR_WORK: u64 = 64;

/// Work for a NIC in an iteration of the loop.
#[derive(Debug, Default)]
pub(crate) struct Work {
    iteration: u64,
    spent: u64,
}

impl Work {
    /// Whether more may be done in this iteration.
    pub(crate) fn is_left(&self, iteration: u64) -> bool {
        self.iteration != iteration || self.spent < WORK_MAX
    }

    /// Counts a frame. Returns whether it used up the rest.
    pub(crate) fn spend(&mut self, iteration: u64, bytes: u64, descriptors: u16) -> bool {
        if self.iteration != iteration {
            *self = Work { iteration, spent: 0 };
        }
        let was_left = self.spent < WORK_MAX;
        self.spent += FRAME_WORK + DESCRIPTOR_WORK * u64::from(descriptors) + bytes.min(FRAME_MAX as u64);
        was_left && self.spent >= WORK_MAX
    }
}

/// A frame for a guest.
pub(crate) struct Incoming {
    pub(crate) header: OffloadHeader,
    pub(crate) bytes: Rc<[u8]>,
}

impl Incoming {
    /// Memory that it takes, in bytes.
    fn footprint(&self) -> usize {
        self.bytes.len() + FRAME_BESIDE
    }
}

/// What connects a NIC to its VM.
pub(crate) enum Plug {
    Tap(Arc<Link>),
    /// A socket, with the session of a VMM while one is connected.
    VhostUser,
}

/// A NIC.
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) generation: VolumeGeneration,
    pub(crate) vm: VmId,
    /// The VM's name, for log lines.
    pub(crate) vm_name: String,
    pub(crate) id: VolumeId,
    pub(crate) policy: Policy,
    pub(crate) spec: NicSpec,
    pub(crate) port: Port,
    pub(crate) plug: Plug,
    /// Frames from a TAP that wait for the gate, in order.
    pub(crate) waiting: VecDeque<PacketId>,
    pub(crate) waiting_bytes: usize,
    /// Frames at the gate.
    pub(crate) at_gate: u32,
    /// Maximum number of frames at the gate.
    pub(crate) window: u32,
    /// Frames on the wire.
    pub(crate) flying: u32,
    /// Work for its transmit queues in this iteration.
    pub(crate) work: Work,
    pub(crate) receive: ReceiveQueue,
    pub(crate) totals: NicTotals,
    /// The VMM that is connected.
    pub(crate) session: Option<SessionId>,
    /// Whether received frames wait until the guest adds buffers.
    pub(crate) waits_for_buffers: bool,
    /// Whether the kernel reports frames of its TAP.
    pub(crate) watch: Watch,
    pub(crate) protocol_errors: u64,
    pub(crate) leaving: bool,
    pub(crate) refuses_clients: bool,
    /// Its statistics in the last snapshot.
    pub(crate) copied_stats: Option<Arc<GateStats>>,
}

impl Nic {
    /// Whether the gate, which lets `depth` frames through at once, gets another frame.
    ///
    /// It always has one more than that, as long as there are any: to the scheduler a NIC without a frame at the gate is idle, and an idle
    /// NIC is owed nothing. A late thread makes up for the time of the wire by many frames at once; a NIC that ran out of frames at
    /// the gate meanwhile would lose the reservation of that time.
    pub(crate) fn has_room_at_gate(&self, depth: u32) -> bool {
        self.at_gate <= depth || self.at_gate < self.window
    }

    /// Records that a frame went from the gate to the wire after it had waited for `waited`. The number of frames at the gate follows the
    /// rate at which they are sent: those of about 1 ms. The others wait where they can be dropped, or in the guest's ring.
    pub(crate) fn left_gate(&mut self, waited: Duration) {
        self.at_gate -= 1;
        self.flying += 1;
        let window = if waited < AT_GATE { self.window + 1 } else { self.window - 1 };
        self.window = window.clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// Whether another frame of a TAP may wait.
    pub(crate) fn has_room_to_wait(&self, bytes: usize) -> bool {
        self.waiting_bytes + bytes <= WAITING_MAX && self.waiting.len() < WAITING_FRAMES_MAX
    }

    /// Removes the next received frame, and counts it against the limit.
    pub(crate) fn take_received(&mut self, now: Instant) -> Option<Incoming> {
        let limit = self.spec.receive_limit;
        self.receive.pop(now, limit)
    }

    /// Replaces the next received frame by those that it stands for, for a driver that cannot cut or sum it.
    pub(crate) fn make_plain(&mut self, now: Instant) {
        let Some(first) = self.receive.pop(now, None) else { return };
        match plain(&first) {
            Ok(frames) => self.receive.put_back(frames),
            Err(reason) => self.drop_frame(reason),
        }
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.totals.received += 1;
        self.totals.received_bytes += bytes as u64;
    }

    /// Drops all received frames, because nobody takes them.
    pub(crate) fn drop_received(&mut self, now: Instant, reason: Reason) {
        while self.receive.pop(now, None).is_some() {
            self.drop_frame(reason);
        }
    }

    pub(crate) fn drop_frame(&mut self, reason: Reason) {
        self.totals.drops.count(reason);
    }
}

/// Frames for a guest, which come at the rate that its limit allows.
#[derive(Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) frames: VecDeque<Incoming>,
    /// Memory that they take.
    bytes: usize,
    /// When the next frame may be delivered.
    due: Instant,
}

impl ReceiveQueue {
    /// Adds a frame; `false` if there is no room.
    pub(crate) fn push(&mut self, incoming: Incoming) -> bool {
        if self.bytes + incoming.footprint() > RECEIVE_MAX {
            return false;
        }
        self.bytes += incoming.footprint();
        self.frames.push_back(incoming);
        true
    }

    /// Puts frames before the others, in the place of one that was removed.
    pub(crate) fn put_back(&mut self, frames: Vec<Incoming>) {
        for incoming in frames.into_iter().rev() {
            self.bytes += incoming.footprint();
            self.frames.push_front(incoming);
        }
    }

    /// Returns the next frame if it may be delivered now.
    pub(crate) fn front(&self, now: Instant) -> Option<&Incoming> {
        if self.due > now { None } else { self.frames.front() }
    }

    /// Removes the next frame, and counts it against a limit.
    pub(crate) fn pop(&mut self, now: Instant, limit: Option<ByteRate>) -> Option<Incoming> {
        let first = self.frames.pop_front()?;
        self.bytes -= first.footprint();
        if let Some(limit) = limit {
            let charge = first.bytes.len() as u128 + u128::from(OVERHEAD);
            let nanos = charge * 1_000_000_000 / u128::from(limit.bytes_per_second());
            let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).max(1));
            self.due = self.due.max(now - RECEIVE_BURST) + time;
        }
        Some(first)
    }

    /// Returns when the next frame may be delivered.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (!self.frames.is_empty()).then_some(self.due)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
