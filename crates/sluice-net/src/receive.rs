//! Frames on their way to NICs: a bounded queue for each, a limit, and a share of the daemon's CPU time.
//!
//! Problem: a guest that takes its frames slowly, or not at all, must not hold up others, and one that is sent many small frames
//! must not keep the daemon's thread from the others. So each NIC has a queue with a bound in frames and in bytes, what does not fit
//! is dropped and counted, and the order between NICs is by CPU time.
//!
//! Model: the cost of a delivery is known afterwards, when the caller has measured it. Each NIC has a virtual time, which advances
//! by the CPU time that it took, divided by its weight. The NIC with the smallest goes next. One that was idle starts at the virtual
//! time of the NIC that was served last, so it does not catch up on the time in which it had nothing.
//!
//! A limit is in bytes on the wire, and paced: a token bucket says when the next frame may go.
//!
//! A receive *minimum* cannot be kept here: the frames that it would need are lost on the way, before they get to the host.
//!
//! Use: [`push`](Receive::push) what comes in. [`take`](Receive::take) a frame, deliver it, and [`charge`](Receive::charge) the time
//! that it took. If the guest has no buffers, [`give_back`](Receive::give_back) the frame, and [`resume`](Receive::resume) when it has.
//!
//! Example: weights 300 and 100; a frame of the first NIC takes 1 us and one of the second 2 us. In 8 us the first gets 6 us, which
//! are 6 frames, and the second 2 us, which are one.

use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::VecDeque;

use sluice_sched::tournament::Tournament;
use sluice_sched::{Instant, RequestId, Weight};

use crate::Drop;
use crate::bucket::Bucket;
use crate::drop::Drops;
use crate::switch::{Port, SwitchError};

/// Virtual time per nanosecond of CPU time at the default weight. The largest weight still advances by more than 1.
const VIRTUAL_PER_NANO: u128 = 1 << 14;
/// Above this, all virtual times are lowered by that of the NIC that is served.
const VIRTUAL_MAX: u64 = 1 << 62;
/// The orders hold port numbers below this.
const PORTS_MAX: u32 = 1 << 20;

/// What a NIC may receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivePolicy {
    /// `None`: unlimited.
    pub limit: Option<ReceiveLimit>,
    /// Share of CPU time among the NICs that have frames waiting.
    pub weight: Weight,
}

/// A limit in bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveLimit {
    pub bytes_per_second: NonZeroU64,
    /// Bytes that pass at once after a pause. A longer frame passes too, and is paid for afterwards.
    pub burst: NonZeroU64,
}

/// Bounds of a queue. A frame that is longer than `bytes` passes through an empty queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub frames: usize,
    pub bytes: u64,
}

/// A NIC's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Frames taken for delivery, less those given back.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// CPU time charged.
    pub cpu: Duration,
    pub queued_frames: usize,
    pub queued_bytes: u64,
    pub drops: Drops,
}

/// The next step of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Taken<P> {
    /// Deliver this. `bytes` is what was pushed with it.
    Packet { port: Port, packet: P, bytes: u32 },
    /// All frames that could be delivered wait for their limit, until this instant in the future.
    WaitUntil(Instant),
    /// Nothing can be delivered before a push or a resume.
    Idle,
}

/// The receive queues of NICs. `P` is what the caller keeps of a frame.
#[derive(Debug)]
pub struct Receive<P> {
    nics: Vec<Option<Nic<P>>>,
    /// NICs whose first frame may go, by virtual time.
    ready: Tournament,
    /// NICs whose first frame waits for their limit, by the instant.
    waiting: Tournament,
    /// Virtual time of the NIC that was served last.
    virtual_time: u64,
    /// Number of the next frame. Ties are decided by the order of arrival.
    arrival: u64,
}

#[derive(Debug)]
struct Nic<P> {
    queue: VecDeque<Queued<P>>,
    bounds: Bounds,
    weight: Weight,
    limit: Option<Bucket>,
    virtual_time: u64,
    /// The guest has no buffers.
    is_paused: bool,
    counters: Received,
}

#[derive(Debug)]
struct Queued<P> {
    packet: P,
    bytes: u32,
    arrival: RequestId,
}

impl<P> Default for Receive<P> {
    fn default() -> Self {
        Receive {
            nics: Vec::new(),
            ready: Tournament::default(),
            waiting: Tournament::default(),
            virtual_time: 0,
            arrival: 0,
        }
    }
}

impl<P> Receive<P> {
    /// Adds the queue of a NIC.
    ///
    /// # Errors
    /// If the number is in use, or 2^20 or more. Nothing is changed then.
    pub fn add(&mut self, now: Instant, port: Port, policy: ReceivePolicy, bounds: Bounds) -> Result<(), SwitchError> {
        if port.0 >= PORTS_MAX {
            return Err(SwitchError::PortRange { port: port.0, ports: PORTS_MAX });
        }
        if self.nic(port).is_some() {
            return Err(SwitchError::PortTaken(port.0));
        }
        let index = port.0 as usize;
        if self.nics.len() <= index {
            self.nics.resize_with(index + 1, || None);
        }
        self.nics[index] = Some(Nic {
            queue: VecDeque::new(),
            bounds,
            weight: policy.weight,
            limit: policy.limit.map(|limit| Bucket::new(now, limit.bytes_per_second, limit.burst)),
            virtual_time: self.virtual_time,
            is_paused: false,
            counters: Received::default(),
        });
        Ok(())
    }

    /// Removes a NIC, and returns the frames that waited for it.
    pub fn remove(&mut self, port: Port) -> impl Iterator<Item = P> + use<P> {
        let nic = self.nics.get_mut(port.0 as usize).and_then(Option::take);
        self.ready.remove(port.0);
        self.waiting.remove(port.0);
        nic.into_iter().flat_map(|nic| nic.queue).map(|queued| queued.packet)
    }

    /// Changes limit and weight while frames wait. A limit that was changed keeps its level, so a change gives no burst.
    pub fn set(&mut self, now: Instant, port: Port, policy: ReceivePolicy) {
        let Some(nic) = self.nic_mut(port) else { return };
        nic.weight = policy.weight;
        match (&mut nic.limit, policy.limit) {
            (Some(bucket), Some(limit)) => bucket.set(now, limit.bytes_per_second, limit.burst),
            (_, limit) => nic.limit = limit.map(|limit| Bucket::new(now, limit.bytes_per_second, limit.burst)),
        }
        self.schedule(now, port);
    }

    /// Queues a frame that takes `bytes` bytes of the wire ([`Wire::occupied`](crate::Wire::occupied)).
    ///
    /// # Errors
    /// Returns the frame if there is no such NIC, or if its queue is full; the latter is counted, as [`Drop::NoBuffers`] if the guest
    /// has none.
    pub fn push(&mut self, now: Instant, port: Port, packet: P, bytes: u32) -> Result<(), P> {
        let arrival = RequestId(self.arrival);
        let Some(nic) = self.nic_mut(port) else { return Err(packet) };
        let queued = (nic.counters.queued_frames, nic.counters.queued_bytes + u64::from(bytes));
        if queued.0 >= nic.bounds.frames || queued.0 > 0 && queued.1 > nic.bounds.bytes {
            nic.counters.drops.count(if nic.is_paused { Drop::NoBuffers } else { Drop::QueueFull });
            return Err(packet);
        }
        nic.queue.push_back(Queued { packet, bytes, arrival });
        (nic.counters.queued_frames, nic.counters.queued_bytes) = (queued.0 + 1, queued.1);
        self.arrival += 1;
        if queued.0 == 0 {
            self.schedule(now, port);
        }
        Ok(())
    }

    /// Takes the next frame to deliver.
    pub fn take(&mut self, now: Instant) -> Taken<P> {
        while let Some((at, _, port)) = self.waiting.peek().filter(|&(at, ..)| at <= now.as_nanos()) {
            debug_assert!(at > 0, "a limit waits for the future");
            self.schedule(now, Port(port));
        }
        let Some((virtual_time, _, port)) = self.ready.peek() else {
            return match self.waiting.peek() {
                Some((at, ..)) => Taken::WaitUntil(Instant::from_nanos(at)),
                None => Taken::Idle,
            };
        };
        self.advance(virtual_time);
        let port = Port(port);
        let nic = self.nic_mut(port).expect("an order holds NICs that are there");
        let Queued { packet, bytes, .. } = nic.queue.pop_front().expect("an order holds NICs with frames");
        nic.counters.queued_frames -= 1;
        nic.counters.queued_bytes -= u64::from(bytes);
        nic.counters.frames += 1;
        nic.counters.bytes += u64::from(bytes);
        if let Some(limit) = &mut nic.limit {
            limit.spend(now, u64::from(bytes));
        }
        self.schedule(now, port);
        Taken::Packet { port, packet, bytes }
    }

    /// Charges CPU time that deliveries to a NIC took. Before that, further frames are taken as if they had cost nothing.
    pub fn charge(&mut self, now: Instant, port: Port, cpu: Duration) {
        let Some(nic) = self.nic_mut(port) else { return };
        nic.counters.cpu += cpu;
        let weight = u128::from(nic.weight.hundredths());
        let nanos = cpu.as_nanos().min(u128::from(u64::MAX));
        let advance = nanos * VIRTUAL_PER_NANO * u128::from(Weight::DEFAULT.hundredths()) / weight;
        nic.virtual_time = nic.virtual_time.saturating_add(u64::try_from(advance).unwrap_or(u64::MAX));
        self.schedule(now, port);
    }

    /// Puts a frame that was taken back in front, because the guest has no buffers for it, and pauses the NIC.
    pub fn give_back(&mut self, now: Instant, port: Port, packet: P, bytes: u32) {
        let Some(nic) = self.nic_mut(port) else { return };
        // It keeps its place: nothing that is queued came before it.
        let arrival = nic.queue.front().map_or(RequestId(0), |next| next.arrival);
        nic.queue.push_front(Queued { packet, bytes, arrival });
        nic.counters.queued_frames += 1;
        nic.counters.queued_bytes += u64::from(bytes);
        nic.counters.frames -= 1;
        nic.counters.bytes -= u64::from(bytes);
        if let Some(limit) = &mut nic.limit {
            limit.refund(u64::from(bytes));
        }
        nic.is_paused = true;
        self.schedule(now, port);
    }

    /// Continues with a NIC whose guest has buffers again.
    pub fn resume(&mut self, now: Instant, port: Port) {
        if let Some(nic) = self.nic_mut(port) {
            nic.is_paused = false;
            self.schedule(now, port);
        }
    }

    /// Counts a frame for the NIC that was dropped elsewhere.
    pub fn count(&mut self, port: Port, reason: Drop) {
        if let Some(nic) = self.nic_mut(port) {
            nic.counters.drops.count(reason);
        }
    }

    /// The counters of a NIC.
    #[must_use]
    pub fn counters(&self, port: Port) -> Option<Received> {
        self.nic(port).map(|nic| nic.counters)
    }

    fn nic(&self, port: Port) -> Option<&Nic<P>> {
        self.nics.get(port.0 as usize)?.as_ref()
    }

    fn nic_mut(&mut self, port: Port) -> Option<&mut Nic<P>> {
        self.nics.get_mut(port.0 as usize)?.as_mut()
    }

    /// Puts a NIC into the order where it belongs, after anything about it has changed.
    fn schedule(&mut self, now: Instant, port: Port) {
        let virtual_time = self.virtual_time;
        let Some(nic) = self.nics.get_mut(port.0 as usize).and_then(Option::as_mut) else { return };
        let Some(first) = nic.queue.front().filter(|_| !nic.is_paused) else {
            self.ready.remove(port.0);
            self.waiting.remove(port.0);
            return;
        };
        let arrival = first.arrival;
        let ready = nic.limit.as_mut().and_then(|limit| limit.ready(now, u64::from(first.bytes)));
        if let Some(at) = ready {
            self.ready.remove(port.0);
            self.waiting.set(port.0, at.as_nanos(), arrival);
        } else {
            nic.virtual_time = nic.virtual_time.max(virtual_time);
            self.waiting.remove(port.0);
            self.ready.set(port.0, nic.virtual_time, arrival);
        }
    }

    /// Moves virtual time to that of the NIC that is served.
    fn advance(&mut self, served: u64) {
        self.virtual_time = self.virtual_time.max(served);
        if self.virtual_time > VIRTUAL_MAX {
            let by = self.virtual_time;
            self.ready.lower(by);
            for nic in self.nics.iter_mut().flatten() {
                nic.virtual_time = nic.virtual_time.saturating_sub(by);
            }
            self.virtual_time = 0;
        }
    }
}

#[cfg(test)]
#[path = "receive/tests.rs"]
mod tests;
