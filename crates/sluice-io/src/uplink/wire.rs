//! The device of an uplink's gate: sends frames to the interface at the rate of the wire.

use std::collections::VecDeque;
use std::time::Duration;

use libc::iovec;
use sluice_net::drop::Drop as Reason;
use sluice_net::wire::OVERHEAD;
use sluice_sched::gate::{Slot, Submission};
use sluice_sched::{Device, Instant};

use crate::slab::Slab;
use crate::uplink::ids::{NicId, PacketId};
use crate::uplink::link::{Link, Sent};
use crate::uplink::pacer::Pacer;
use crate::uplink::packet::Packet;

/// Pause before a frame is offered again to an interface that was full, if the interface does not report when it has room.
const FULL_PAUSE: Duration = Duration::from_micros(100);
/// Longest such pause. It doubles while the interface takes nothing: one that hangs must not cost CPU time.
const FULL_PAUSE_MAX: Duration = Duration::from_millis(1);

/// A frame that the gate has let through.
#[derive(Debug, Clone, Copy)]
struct Flying {
    slot: Slot,
    packet: PacketId,
    /// When it has left the wire.
    end: Instant,
    /// Why the interface did not take it.
    lost: Option<Reason>,
}

/// A frame that has left the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Landed {
    pub(crate) slot: Slot,
    pub(crate) packet: PacketId,
    /// Why it is lost: the interface did not take it.
    pub(crate) lost: Option<Reason>,
}

/// Counters of the interface.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WireStats {
    /// Frames and segments that were written.
    pub(crate) sent: u64,
    /// Their bytes, without offload headers.
    pub(crate) sent_bytes: u64,
    /// Number of times that the interface took no more.
    pub(crate) full: u64,
    /// Frames that the interface refused.
    pub(crate) lost: u64,
}

/// The interface, its pacing, and the frames on the way.
pub(crate) struct Wire {
    pub(crate) link: std::sync::Arc<Link>,
    pub(crate) pacer: Pacer,
    pub(crate) packets: Slab<PacketId, Packet>,
    /// Frames that were written, until they have left the wire, in order.
    flying: VecDeque<Flying>,
    /// Frames that the interface did not take yet, in order.
    stalled: VecDeque<Flying>,
    /// When the first of them is offered again.
    retry_at: Option<Instant>,
    /// Last pause before that.
    pause: Duration,
    pub(crate) stats: WireStats,
    parts: Vec<iovec>,
    /// Frames that the gate has let through since the last call of [`Wire::next_started`].
    started: Vec<PacketId>,
}

impl Wire {
    pub(crate) fn new(link: std::sync::Arc<Link>, pacer: Pacer) -> Self {
        Wire {
            link,
            pacer,
            packets: Slab::default(),
            flying: VecDeque::new(),
            stalled: VecDeque::new(),
            retry_at: None,
            pause: FULL_PAUSE,
            stats: WireStats::default(),
            parts: Vec::new(),
            started: Vec::new(),
        }
    }

    /// Writes a frame to the interface.
    fn write(&mut self, id: PacketId) -> Sent {
        let packet = &self.packets[id];
        packet.data.list(&mut self.parts);
        // SAFETY: the parts lie in what the packet holds: own memory, or guest memory that it keeps mapped.
        let sent = unsafe { self.link.send(&packet.header, &mut self.parts) };
        match sent {
            Sent::Done => {
                self.stats.sent += 1;
                self.stats.sent_bytes += u64::from(packet.length);
            }
            Sent::Full => self.stats.full += 1,
            Sent::Lost(_) => self.stats.lost += 1,
        }
        sent
    }

    /// Offers the frames again that the interface did not take.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.retry_at = None;
        let before = self.stalled.len();
        while let Some(first) = self.stalled.front().copied() {
            let sent = self.write(first.packet);
            if sent == Sent::Full {
                let has_moved = self.stalled.len() < before;
                self.pause = if has_moved { FULL_PAUSE } else { (2 * self.pause).min(FULL_PAUSE_MAX) };
                self.retry_at = Some(now + self.pause);
                return;
            }
            self.stalled.pop_front();
            self.flying.push_back(Flying { end: first.end.max(now), lost: sent.loss(), ..first });
        }
    }

    /// Takes back the frames of a NIC that the interface did not take yet. The caller completes their slots.
    pub(crate) fn take_back(&mut self, nic: NicId) -> Vec<(Slot, PacketId)> {
        let packets = &self.packets;
        let is_own = |flying: &Flying| packets[flying.packet].nic == nic;
        let back =
            self.stalled.iter().filter(|flying| is_own(flying)).map(|flying| (flying.slot, flying.packet)).collect();
        self.stalled.retain(|flying| !is_own(flying));
        if self.stalled.is_empty() {
            self.retry_at = None;
        }
        back
    }

    /// Returns the next frame that has left the wire by now. Call it until it returns `None`.
    pub(crate) fn next_landed(&mut self, now: Instant) -> Option<Landed> {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry(now);
        }
        let first = self.flying.front().filter(|first| first.end <= now)?;
        let landed = Landed { slot: first.slot, packet: first.packet, lost: first.lost };
        self.flying.pop_front();
        Some(landed)
    }

    /// Returns a frame that the gate has let through. Call it until it returns `None`.
    pub(crate) fn next_started(&mut self) -> Option<&Packet> {
        self.started.pop().map(|packet| &self.packets[packet])
    }

    /// Whether a frame has left the wire by now.
    pub(crate) fn has_landed(&self, now: Instant) -> bool {
        self.flying.front().is_some_and(|first| first.end <= now)
    }

    /// Returns when half of the frames on the way have left the wire: waking up for each of them would keep a CPU busy
    /// on a fast uplink.
    pub(crate) fn next_wakeup(&self) -> Option<Instant> {
        let half = self.flying.len().saturating_sub(1) / 2;
        [self.flying.get(half).map(|flying| flying.end), self.retry_at].into_iter().flatten().min()
    }

    /// Whether a frame waits for the interface.
    pub(crate) fn is_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }
}

impl Device for Wire {
    /// Large segments fill the wire for long before the slots of the gate are used up.
    fn has_room(&self, now: Instant) -> bool {
        self.pacer.has_room(now)
    }

    fn submit(&mut self, now: Instant, submission: &Submission) {
        let packet = self.packets.id_at(submission.token);
        let state = &mut self.packets[packet];
        state.waited = now.since(submission.request.arrival);
        let end = self.pacer.send(now, u64::from(state.charge + OVERHEAD));
        self.started.push(packet);
        let sent = if self.is_stalled() { Sent::Full } else { self.write(packet) };
        let flying = Flying { slot: submission.slot, packet, end, lost: sent.loss() };
        match sent {
            Sent::Done | Sent::Lost(_) => self.flying.push_back(flying),
            Sent::Full => {
                self.stalled.push_back(flying);
                if self.retry_at.is_none() {
                    self.pause = FULL_PAUSE;
                    self.retry_at = Some(now + self.pause);
                }
            }
        }
    }
}
