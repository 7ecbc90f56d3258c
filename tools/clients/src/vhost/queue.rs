//! A queue as a driver keeps it: slots for requests, descriptors for slots, and as few system calls as possible.
//!
//! The caller numbers its requests by slot. A slot has space for header, data and status in guest memory. It is free
//! when its request completes; its data remain until the slot is used again. [`Queue::submit`] only writes memory.
//! [`Queue::publish`] makes submitted requests visible to the device, and kicks it if it requested that.
//! [`Queue::reap`] takes completions. Nothing here waits: see [`super::waiter`].
//!
//! Used entries are checked: a completion of a request that is not in flight is an error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};

use super::ClientError;
use super::memory::{Memory, PAGE};
use super::request::{Cuts, HEADER_LEN, Request, cut};
use super::ring::{self, DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, Ring, WRITE};

/// Initial value of a status byte, before the device writes it.
pub const STATUS_UNTOUCHED: u8 = 0xff;
/// Maximum number of descriptors in an indirect table, which lies in the page before a slot's data.
pub const INDIRECT_MAX: usize = (PAGE - HEADER_LEN - 64) / DESCRIPTOR_LEN;

/// Dimensions of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueDimensions {
    /// Number of ring entries, a power of two.
    pub(super) size: u16,
    /// Maximum number of requests in flight.
    pub(super) slots: u16,
    /// Maximum data of one request, in bytes.
    pub(super) data_len_max: usize,
}

impl QueueDimensions {
    /// Returns the distance between two slots, in bytes.
    fn stride(&self) -> usize {
        PAGE + self.data_len_max.next_multiple_of(PAGE)
    }

    /// Returns the size in guest memory, in bytes. The last page contains the last slot's status.
    pub(super) fn len_bytes(&self) -> usize {
        Ring::len_bytes(self.size) + usize::from(self.slots) * self.stride() + PAGE
    }
}

/// Ring features in use: notification, and the form of chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RingFeatures {
    pub(super) event_index: bool,
    pub(super) indirect: bool,
}

/// A segment of guest memory in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub address: u64,
    pub len: u32,
    /// Whether the device writes it.
    pub writable: bool,
}

/// A completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    pub slot: u16,
    /// Value of the status byte.
    pub status: u8,
    /// Number of bytes written, as reported by the device.
    pub written: u32,
}

/// One virtqueue.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<Memory>,
    ring: Ring,
    dimensions: QueueDimensions,
    ring_features: RingFeatures,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    /// Offset of the first slot.
    area: usize,
    slots: Vec<Slot>,
    /// The slot of each chain, by the chain's head, or [`NO_SLOT`].
    owners: Vec<u16>,
    /// Descriptors that are not part of a chain.
    free: Vec<u16>,
    segments: Vec<Segment>,
    /// The available index, including entries that are not published yet.
    filled: u16,
    published: u16,
    /// The used index up to which completions have been taken.
    taken: u16,
    in_flight: u16,
    kicks: u64,
}

const NO_SLOT: u16 = u16::MAX;

#[derive(Debug, Default)]
struct Slot {
    busy: bool,
    chain: Vec<u16>,
    /// Offset of its status byte.
    status: usize,
}

impl Queue {
    pub(super) fn new(
        memory: Arc<Memory>,
        offset: usize,
        dimensions: QueueDimensions,
        ring_features: RingFeatures,
    ) -> io::Result<Queue> {
        let new_eventfd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Queue {
            ring: Ring::new(Arc::clone(&memory), offset, dimensions.size),
            memory,
            dimensions,
            ring_features,
            kick: new_eventfd()?,
            call: new_eventfd()?,
            error: new_eventfd()?,
            area: offset + Ring::len_bytes(dimensions.size),
            slots: (0..dimensions.slots).map(|_| Slot::default()).collect(),
            owners: vec![NO_SLOT; dimensions.size.into()],
            free: (0..dimensions.size).rev().collect(),
            segments: Vec::new(),
            filled: 0,
            published: 0,
            taken: 0,
            in_flight: 0,
            kicks: 0,
        })
    }

    /// Returns the maximum number of requests in flight, if there are enough descriptors.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.dimensions.slots
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns the number of kicks sent to the device.
    #[must_use]
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Returns the ring, in which a test may write anything.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the offset of a slot's data in the memory. The header ends there.
    #[must_use]
    pub fn data(&self, slot: u16) -> usize {
        self.area + usize::from(slot) * self.dimensions.stride() + PAGE
    }

    /// Copies `bytes` into a slot's data, for the next request.
    ///
    /// # Panics
    /// If a slot holds less.
    pub fn write_data(&self, slot: u16, bytes: &[u8]) {
        assert!(bytes.len() <= self.dimensions.data_len_max);
        self.memory.write(self.data(slot), bytes);
    }

    /// Copies a slot's data to `bytes`.
    ///
    /// # Panics
    /// If a slot holds less.
    pub fn read_data(&self, slot: u16, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.dimensions.data_len_max);
        self.memory.read(self.data(slot), bytes);
    }

    /// Adds a request to the ring; [`Queue::publish`] makes it visible to the device.
    ///
    /// # Errors
    /// [`ClientError::Busy`], [`ClientError::Full`], [`ClientError::TooLong`]: the queue is unchanged.
    #[inline]
    pub fn submit(&mut self, slot: u16, request: Request) -> Result<(), ClientError> {
        self.submit_cut(slot, request, Cuts::default())
    }

    /// As [`Queue::submit`], split into descriptors as `cuts` states.
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub fn submit_cut(&mut self, slot: u16, request: Request, cuts: Cuts<'_>) -> Result<(), ClientError> {
        let form = request.form();
        let len = form.to_device as usize + form.from_device as usize;
        if len > self.dimensions.data_len_max {
            return Err(ClientError::TooLong { len_bytes: len });
        }
        self.check_free(slot)?;
        let data = self.data(slot);
        let header = data - HEADER_LEN;
        self.memory.u64(header).store(form.kind.into(), Ordering::Relaxed);
        self.memory.u64(header + 8).store(form.sector, Ordering::Relaxed);
        if let Some([sector, rest]) = form.range {
            self.memory.u64(data).store(sector, Ordering::Relaxed);
            self.memory.u64(data + 8).store(rest, Ordering::Relaxed);
        }
        let mut segments = std::mem::take(&mut self.segments);
        let from = data + form.to_device as usize;
        let memory = &self.memory;
        let mut add = |begin: usize, len, writable| {
            segments.push(Segment { address: memory.guest(begin), len, writable });
        };
        let to_device = HEADER_LEN as u32 + form.to_device;
        cut(to_device, cuts.readable, HEADER_LEN as u32, &mut |at, len| add(header + at as usize, len, false));
        cut(form.from_device + 1, cuts.writable, form.from_device, &mut |at, len| add(from + at as usize, len, true));
        let indirect = self.ring_features.indirect;
        let put = self.put(slot, &segments, indirect, from + form.from_device as usize);
        segments.clear();
        self.segments = segments;
        put
    }

    /// Adds any chain to the ring. The last byte that the device writes should be at `status` bytes from the start of
    /// the slot's data; otherwise the completion has [`STATUS_UNTOUCHED`].
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub fn submit_segments(
        &mut self,
        slot: u16,
        segments: &[Segment],
        indirect: bool,
        status: usize,
    ) -> Result<(), ClientError> {
        self.check_free(slot)?;
        self.put(slot, segments, indirect, self.data(slot) + status)
    }

    /// Adds a head without a slot to the available ring.
    pub fn push_head(&mut self, head: u16) {
        self.ring.write_available(self.filled, head);
        self.filled = self.filled.wrapping_add(1);
    }

    /// Makes submitted requests visible to the device, and kicks it if it requested that. Returns whether it did.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    #[inline]
    pub fn publish(&mut self) -> Result<bool, ClientError> {
        let (old, new) = (self.published, self.filled);
        if old == new {
            return Ok(false);
        }
        self.ring.set_available_index(new);
        self.published = new;
        let wanted = self.ring.wants_kick(self.ring_features.event_index, old, new);
        if wanted {
            self.kick()?;
        }
        Ok(wanted)
    }

    /// Kicks the device.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn kick(&mut self) -> Result<(), ClientError> {
        self.kicks += 1;
        match rustix::io::write(&self.kick, &1u64.to_ne_bytes()) {
            // The eventfd's counter is at its maximum; it is readable all the same.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(ClientError::Io(error.into())),
        }
    }

    /// Whether there are completions to take.
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.ring.used_index() != self.taken
    }

    /// Takes all completions and returns their number.
    ///
    /// # Errors
    /// [`ClientError::Protocol`]: the device completed a request that was not in flight. Earlier completions have
    /// been taken.
    #[inline]
    pub fn reap(&mut self, answered: &mut Vec<Completion>) -> Result<usize, ClientError> {
        let mut count = 0;
        loop {
            // Reads the index again after the last entry: taking new completions now is cheapest.
            let index = self.ring.used_index();
            if index == self.taken {
                return Ok(count);
            }
            if index.wrapping_sub(self.taken) > self.in_flight {
                return Err(ClientError::Protocol { what: "it completed more requests than were submitted" });
            }
            while self.taken != index {
                answered.push(self.take()?);
                count += 1;
            }
        }
    }

    /// Requests an interrupt for the next completion. Returns `false` if there are completions already, so that the
    /// caller need not sleep.
    pub fn arm(&self) -> bool {
        if self.ring_features.event_index {
            self.ring.set_used_event(self.taken);
        } else {
            self.ring.set_no_interrupt(false);
        }
        // The request must be visible before the last look at the ring; otherwise both sides may sleep.
        std::sync::atomic::fence(Ordering::SeqCst);
        !self.has_completions()
    }

    /// Disables interrupts, for a caller that polls.
    pub fn disarm(&self) {
        if self.ring_features.event_index {
            self.ring.set_used_event(self.taken.wrapping_sub(1));
        } else {
            self.ring.set_no_interrupt(true);
        }
    }

    /// Returns the eventfd by which the device reports completions.
    #[must_use]
    pub fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// Returns the eventfd by which the driver kicks the device.
    #[must_use]
    pub fn kick_descriptor(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Returns the eventfd by which the device reports a broken ring.
    #[must_use]
    pub fn error(&self) -> BorrowedFd<'_> {
        self.error.as_fd()
    }

    /// Whether the device has reported a broken ring since the last call.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        rustix::io::read(&self.error, &mut [0u8; 8]).is_ok()
    }

    fn check_free(&self, slot: u16) -> Result<(), ClientError> {
        match self.slots.get(usize::from(slot)) {
            Some(Slot { busy: false, .. }) => Ok(()),
            _ => Err(ClientError::Busy { slot }),
        }
    }

    /// Builds a chain and adds it to the available ring.
    fn put(&mut self, slot: u16, segments: &[Segment], indirect: bool, status: usize) -> Result<(), ClientError> {
        let indirect = indirect && segments.len() > 1;
        let needed = if indirect { 1 } else { segments.len() };
        if indirect && segments.len() > INDIRECT_MAX || segments.is_empty() || needed > self.free.len() {
            return Err(ClientError::Full);
        }
        let data = self.data(slot);
        let state = &mut self.slots[usize::from(slot)];
        state.chain.extend(self.free.drain(self.free.len() - needed..).rev());
        (state.busy, state.status) = (true, status);
        let last = segments.len() - 1;
        let descriptor = |at: usize, next| Descriptor {
            address: segments[at].address,
            len: segments[at].len,
            flags: if segments[at].writable { WRITE } else { 0 } | if at < last { NEXT } else { 0 },
            next: if at < last { next } else { 0 },
        };
        let head = state.chain[0];
        if indirect {
            let len = segments.len() * DESCRIPTOR_LEN;
            let table = data - HEADER_LEN - len;
            for at in 0..segments.len() {
                let each = descriptor(at, at as u16 + 1);
                ring::write_descriptor(&self.memory, table + at * DESCRIPTOR_LEN, each);
            }
            let address = self.memory.guest(table);
            let whole = Descriptor { address, len: len as u32, flags: INDIRECT, next: 0 };
            self.ring.write_descriptor(head, whole);
        } else {
            for (at, index) in state.chain.iter().enumerate() {
                let next = state.chain.get(at + 1).copied().unwrap_or(0);
                self.ring.write_descriptor(*index, descriptor(at, next));
            }
        }
        self.memory.u8(status).store(STATUS_UNTOUCHED, Ordering::Relaxed);
        self.owners[usize::from(head)] = slot;
        self.in_flight += 1;
        self.push_head(head);
        Ok(())
    }

    /// Takes the next completion.
    fn take(&mut self) -> Result<Completion, ClientError> {
        let used = self.ring.used(self.taken);
        let owner = self.owners.get_mut(used.head as usize).map(|owner| std::mem::replace(owner, NO_SLOT));
        let Some(slot) = owner.filter(|slot| *slot != NO_SLOT) else {
            return Err(ClientError::Protocol { what: "it completed a request that was not in flight" });
        };
        let state = &mut self.slots[usize::from(slot)];
        self.free.extend(state.chain.drain(..).rev());
        state.busy = false;
        self.in_flight -= 1;
        self.taken = self.taken.wrapping_add(1);
        Ok(Completion { slot, status: self.memory.u8(state.status).load(Ordering::Relaxed), written: used.len })
    }
}
