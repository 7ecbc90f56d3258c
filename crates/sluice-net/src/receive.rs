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
//! Use: [`push`](Receive::push) what comes in. While a NIC has its [`turn`](Receive::turn), [`take`](Receive::take) frames and deliver
//! them; then [`charge`](Receive::charge) the time that they took. If the guest has no buffers, [`give_back`](Receive::give_back) what
//! it did not take, and [`resume`](Receive::resume) when it has some.
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

/// Bounds of a queue. A frame that takes more than `memory` passes through an empty queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub frames: usize,
    /// In bytes.
    pub memory: u64,
}

/// Size of a frame, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// What it occupies of the wire ([`Wire::occupied`](crate::Wire::occupied)), for the limit.
    pub wire: u32,
    /// Memory that it takes, for the bound.
    pub memory: u32,
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
    /// Memory that the queue takes, in bytes.
    memory: u64,
    /// CPU time charged.
    cpu: Duration,
}

#[derive(Debug)]
struct Queued<P> {
    packet: P,
    size: Size,
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
            memory: 0,
            cpu: Duration::ZERO,
        });
        Ok(())
    }

    /// Removes a NIC, and returns the frames that waited for it.
    pub fn remove(&mut self, port: Port) -> impl Iterator<Item = P> + use<P> {
        let frames = self.drain(port);
        self.nics.get_mut(port.0 as usize).and_then(Option::take);
        frames
    }

    /// Returns the frames that wait for a NIC, which are not delivered.
    pub fn drain(&mut self, port: Port) -> impl Iterator<Item = P> + use<P> {
        self.ready.remove(port.0);
        self.waiting.remove(port.0);
        let queue = self.nic_mut(port).map(|nic| {
            nic.memory = 0;
            std::mem::take(&mut nic.queue)
        });
        queue.into_iter().flatten().map(|queued| queued.packet)
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

    /// Queues a frame.
    ///
    /// # Errors
    /// Why it is dropped: there is no such NIC, or its queue is full, with [`Drop::NoBuffers`] if the guest has no buffers.
    pub fn push(&mut self, now: Instant, port: Port, packet: P, size: Size) -> Result<(), Drop> {
        let arrival = RequestId(self.arrival);
        let nic = self.nic_mut(port).ok_or(Drop::NoReceiver)?;
        let memory = nic.memory + u64::from(size.memory);
        let was_empty = nic.queue.is_empty();
        if nic.queue.len() >= nic.bounds.frames || !was_empty && memory > nic.bounds.memory {
            return Err(if nic.is_paused { Drop::NoBuffers } else { Drop::QueueFull });
        }
        nic.queue.push_back(Queued { packet, size, arrival });
        nic.memory = memory;
        self.arrival += 1;
        if was_empty {
            self.schedule(now, port);
        }
        Ok(())
    }

    /// Returns the NIC to which the next frame is to be delivered. It is the same one until it is charged, or has no frame that may go.
    pub fn turn(&mut self, now: Instant) -> Option<Port> {
        while let Some((at, _, port)) = self.waiting.peek().filter(|&(at, ..)| at <= now.as_nanos()) {
            debug_assert!(at > 0, "a limit waits for the future");
            self.schedule(now, Port(port));
        }
        let (virtual_time, _, port) = self.ready.peek()?;
        self.advance(virtual_time);
        Some(Port(port))
    }

    /// Returns when a frame may be delivered: an instant in the past if one may be now, `None` before a push or a resume.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let now = self.ready.peek().map(|_| Instant::ZERO);
        now.or_else(|| self.waiting.peek().map(|(at, ..)| Instant::from_nanos(at)))
    }

    /// Takes the next frame of a NIC, which has its turn. `None` if there is none that may go.
    pub fn take(&mut self, now: Instant, port: Port) -> Option<(P, Size)> {
        let nic = self.nic_mut(port).filter(|nic| !nic.is_paused)?;
        let Queued { packet, size, .. } = nic.queue.pop_front()?;
        nic.memory -= u64::from(size.memory);
        if let Some(limit) = &mut nic.limit {
            limit.spend(now, u64::from(size.wire));
        }
        self.schedule(now, port);
        Some((packet, size))
    }

    /// Charges CPU time that deliveries to a NIC took. Before that, further frames are taken as if they had cost nothing.
    pub fn charge(&mut self, now: Instant, port: Port, cpu: Duration) {
        let Some(nic) = self.nic_mut(port) else { return };
        nic.cpu += cpu;
        let weight = u128::from(nic.weight.hundredths());
        let nanos = cpu.as_nanos().min(u128::from(u64::MAX));
        let advance = nanos * VIRTUAL_PER_NANO * u128::from(Weight::DEFAULT.hundredths()) / weight;
        nic.virtual_time = nic.virtual_time.saturating_add(u64::try_from(advance).unwrap_or(u64::MAX));
        self.schedule(now, port);
    }

    /// Puts frames that were taken back in front, in this order, because the guest has no buffers for them, and pauses the NIC.
    pub fn give_back(&mut self, now: Instant, port: Port, frames: impl DoubleEndedIterator<Item = (P, Size)>) {
        let Some(nic) = self.nic_mut(port) else { return };
        for (packet, size) in frames.rev() {
            // It keeps its place: nothing that is queued came before it.
            let arrival = nic.queue.front().map_or(RequestId(0), |next| next.arrival);
            nic.queue.push_front(Queued { packet, size, arrival });
            nic.memory += u64::from(size.memory);
            if let Some(limit) = &mut nic.limit {
                limit.refund(u64::from(size.wire));
            }
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

    /// Returns the CPU time that was charged to a NIC.
    #[must_use]
    pub fn cpu(&self, port: Port) -> Option<Duration> {
        self.nic(port).map(|nic| nic.cpu)
    }

    /// Returns how many frames wait for a NIC.
    #[must_use]
    pub fn queued(&self, port: Port) -> usize {
        self.nic(port).map_or(0, |nic| nic.queue.len())
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
        let ready = nic.limit.as_mut().and_then(|limit| limit.ready(now, u64::from(first.size.wire)));
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
