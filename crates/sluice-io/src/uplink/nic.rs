//! A NIC of a VM on an uplink's thread.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_net::NicTotals;
use sluice_net::drop::Drop as Reason;
use sluice_net::header::OffloadHeader;
use sluice_net::receive::{Bounds, ReceiveLimit, ReceivePolicy, Size};
use sluice_net::switch::Port;
use sluice_net::{PREFIX_LEN, flow, parse};
use sluice_sched::gate::GateStats;
use sluice_sched::{Kind, VolumeId};

use crate::backend::client_faults::ClientFaults;
use crate::slab::VmId;
use crate::source::{Failure, FaultReport};
use crate::uplink::ids::PacketId;
use crate::uplink::link::FRAME_MAX;
use crate::uplink::spec::{NicPlug, NicSpec};
use crate::virtio::queue::SessionId;

/// Maximum time that a frame of a TAP waits before it is dropped. A guest keeps what has to wait in its own queue; a program that
/// sends into a TAP cannot be held back, so a long queue would only delay its frames. The limit is a time and not a number of bytes, because
/// a NIC of a low weight fills the same bytes for much longer.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(20);
/// Maximum number of bytes of frames of one TAP that wait.
const WAITING_MAX: usize = 2 << 20;
/// Maximum number of them.
const WAITING_FRAMES_MAX: usize = 4096;
/// Minimum of the window of a NIC; see [`Nic::has_room_at_gate`].
const WINDOW_MIN: u32 = 2;
/// Maximum number of frames at the gate.
const WINDOW_MAX: u32 = 64;
/// Time that frames spend at the gate, if it gets as many as it may.
const AT_GATE: Duration = Duration::from_millis(1);
/// Bounds of the frames that wait for the guest.
pub(crate) const RECEIVE_BOUNDS: Bounds = Bounds { frames: 2048, memory: 512 << 10 };
/// Memory for a frame beside its bytes. Without it, 512 KiB of the shortest frames would take several times as much.
const FRAME_BESIDE: usize = 256;
/// Burst of a limit of the receive side, in bursts per second: a late thread makes up for 5 ms.
const RECEIVE_BURSTS_PER_SECOND: u64 = 200;

/// Work that a guest's queues may cause in one iteration of the loop, in bytes: then it is the turn of the others. It counts the bytes of
/// its frames, whether they go to the uplink, to another NIC or nowhere, and what each frame, each descriptor and each frame of a segment costs
/// beside.
const WORK_MAX: u64 = 1 << 20;
const FRAME_WORK: u64 = 1024;
const DESCRIPTOR_WORK: u64 = 64;
/// Each further frame of a large segment.
const SEGMENT_WORK: u64 = 256;

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
        let work = FRAME_WORK + DESCRIPTOR_WORK * u64::from(descriptors) + bytes.min(FRAME_MAX as u64);
        self.add(iteration, work)
    }

    /// Counts the frames of a large segment, as [`Work::spend`].
    pub(crate) fn spend_segments(&mut self, iteration: u64, segments: u16) -> bool {
        self.add(iteration, SEGMENT_WORK * u64::from(segments))
    }

    fn add(&mut self, iteration: u64, work: u64) -> bool {
        if self.iteration != iteration {
            *self = Work { iteration, spent: 0 };
        }
        let was_left = self.spent < WORK_MAX;
        self.spent += work;
        was_left && self.spent >= WORK_MAX
    }
}

/// A frame for a guest.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) header: OffloadHeader,
    pub(crate) bytes: Rc<[u8]>,
}

impl Incoming {
    /// Returns the size of a frame that occupies `wire` bytes of the wire.
    pub(crate) fn size(&self, wire: u32) -> Size {
        Size { wire, memory: (self.bytes.len() + FRAME_BESIDE) as u32 }
    }

    /// Returns the number of its connection; see [`flow`].
    pub(crate) fn flow(&self) -> u32 {
        let prefix = &self.bytes[..self.bytes.len().min(PREFIX_LEN)];
        parse(prefix, self.bytes.len() as u32).map_or(0, |frame| flow(&frame, prefix))
    }
}

/// Returns the policy of a NIC's receive side.
pub(crate) fn receive_policy(spec: &NicSpec) -> ReceivePolicy {
    let limit = spec.receive_limit.and_then(|rate| NonZeroU64::new(rate.bytes_per_second()));
    let burst = |rate: NonZeroU64| NonZeroU64::new(rate.get() / RECEIVE_BURSTS_PER_SECOND).unwrap_or(NonZeroU64::MIN);
    let limit = limit.map(|rate| ReceiveLimit { bytes_per_second: rate, burst: burst(rate) });
    ReceivePolicy { limit, weight: spec.receive_weight }
}

/// Whether the kernel was asked to report frames of a TAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Watch {
    /// Neither an operation nor the list of TAPs to read refers to the NIC.
    #[default]
    Idle,
    /// An operation waits for frames.
    Waiting,
    /// It has frames, as far as is known, or cannot be read.
    Ready,
}

/// Frames that a NIC sends, on their way to the interface.
pub(crate) struct Frames {
    /// Frames from a TAP that wait for the gate, in order.
    pub(crate) waiting: VecDeque<PacketId>,
    pub(crate) waiting_bytes: usize,
    /// Frames at the gate.
    pub(crate) at_gate: u32,
    /// Maximum number of frames at the gate.
    window: u32,
    /// Frames on the wire.
    pub(crate) flying: u32,
}

/// Frames that the interface of the uplink did not take, because it is down or fails.
#[derive(Default)]
struct Unsent {
    count: u64,
    /// Whether it has taken one since.
    has_recovered: bool,
}

/// Whether a NIC accepts VMMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    RefusesClients,
    /// It was removed. It ends when nothing refers to it any more.
    Leaving,
}

/// A NIC.
pub(crate) struct Nic {
    pub(crate) vm: VmId,
    /// The VM's name, for log lines.
    pub(crate) vm_name: String,
    pub(crate) id: VolumeId,
    /// Its present description.
    pub(crate) spec: NicSpec,
    pub(crate) port: Port,
    pub(crate) frames: Frames,
    /// Work for its transmit queues in this iteration.
    pub(crate) work: Work,
    pub(crate) totals: NicTotals,
    /// The VMM that is connected.
    pub(crate) session: Option<SessionId>,
    /// Whether the kernel reports frames of its TAP.
    pub(crate) watch: Watch,
    /// Faults of its guest: broken queues, and what was refused.
    pub(crate) faults: GuestFaults,
    unsent: Unsent,
    pub(crate) standing: Standing,
    /// Its statistics in the last snapshot.
    pub(crate) copied_stats: Option<Arc<GateStats>>,
}

/// Faults of a NIC's guest.
#[derive(Default)]
pub(crate) struct GuestFaults {
    pub(crate) protocol_errors: u64,
    pub(crate) clients: ClientFaults,
}

impl Nic {
    /// Creates a NIC, which the gate knows as `id`, of a VM.
    pub(crate) fn new((vm, vm_name): (VmId, &str), id: VolumeId, spec: NicSpec) -> Self {
        let frames = Frames { waiting: VecDeque::new(), waiting_bytes: 0, at_gate: 0, window: WINDOW_MIN, flying: 0 };
        Nic {
            vm,
            vm_name: vm_name.to_owned(),
            id,
            spec,
            port: Port(0),
            frames,
            work: Work::default(),
            totals: NicTotals::default(),
            session: None,
            watch: Watch::Idle,
            faults: GuestFaults::default(),
            unsent: Unsent::default(),
            standing: Standing::Open,
            copied_stats: None,
        }
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.standing == Standing::Leaving
    }

    /// Whether the gate, which lets `depth` frames through at once, gets another frame.
    ///
    /// It always has one more than that, as long as there are any: to the scheduler a NIC without a frame at the gate is idle, and an idle
    /// NIC is owed nothing. A late thread makes up for the time of the wire by many frames at once; a NIC that ran out of frames at
    /// the gate meanwhile would lose the reservation of that time.
    pub(crate) fn has_room_at_gate(&self, depth: u32) -> bool {
        self.frames.at_gate <= depth || self.frames.at_gate < self.frames.window
    }

    /// Records that a frame went from the gate to the wire after it had waited for `waited`. The number of frames at the gate follows the
    /// rate at which they are sent: those of about 1 ms. The others wait where they can be dropped, or in the guest's ring.
    pub(crate) fn left_gate(&mut self, waited: Duration) {
        self.frames.at_gate -= 1;
        self.frames.flying += 1;
        let window = if waited < AT_GATE { self.frames.window + 1 } else { self.frames.window - 1 };
        self.frames.window = window.clamp(WINDOW_MIN, WINDOW_MAX);
    }

    /// Records that a frame has left the wire, or was lost there for a reason.
    pub(crate) fn left_wire(&mut self, lost: Option<Reason>) {
        self.frames.flying -= 1;
        match lost {
            None => self.unsent.has_recovered = true,
            Some(Reason::LinkDown) => self.unsent = Unsent { count: self.unsent.count + 1, has_recovered: false },
            Some(_) => {}
        }
        lost.into_iter().for_each(|reason| self.drop_frame(reason));
    }

    /// Whether another frame of a TAP may wait.
    pub(crate) fn has_room_to_wait(&self, bytes: usize) -> bool {
        self.frames.waiting_bytes + bytes <= WAITING_MAX && self.frames.waiting.len() < WAITING_FRAMES_MAX
    }

    /// Whether a VMM or a TAP takes received frames.
    pub(crate) fn has_receiver(&self) -> bool {
        self.session.is_some() || matches!(self.spec.plug, NicPlug::Tap(_))
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.totals.received += 1;
        self.totals.received_bytes += bytes as u64;
    }

    /// Returns the frames that the interface of the uplink did not take.
    pub(crate) fn faults(&self) -> FaultReport {
        let Unsent { count, has_recovered } = self.unsent;
        let failed = Failure { kind: Kind::Write, errno: libc::ENETDOWN, count, has_recovered };
        FaultReport { failures: if count > 0 { vec![failed] } else { Vec::new() }, ..FaultReport::default() }
    }

    pub(crate) fn drop_frame(&mut self, reason: Reason) {
        self.totals.drops.count(reason);
    }
}
