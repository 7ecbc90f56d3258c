//! A queue as a driver keeps it: slots for requests, descriptors for slots, and no system call that can be spared.
//!
//! The caller numbers its requests by slot. A slot has a place for header, data and status in guest memory and is free
//! again when its request is answered; its data stay until it is used anew. [`Queue::submit`] only writes memory,
//! [`Queue::publish`] lets the device see all that was submitted and rings if the device asked for it, [`Queue::reap`]
//! takes what has been answered. Nothing here waits: see [`super::waiter`].
//!
//! What the device returns is checked: an answer for a request that is not in flight, or a second one, is an error.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};

use super::ClientError;
use super::memory::{Memory, PAGE};
use super::request::{Cuts, HEADER_LEN, Request, cut};
use super::ring::{self, DESCRIPTOR_LEN, Descriptor, INDIRECT, NEXT, Ring, WRITE};

/// Status of a request that the device has not touched.
pub const STATUS_UNTOUCHED: u8 = 0xff;
/// Most descriptors in an indirect table: it lies in the page before a slot's data.
pub const INDIRECT_MAX: usize = (PAGE - HEADER_LEN - 64) / DESCRIPTOR_LEN;

/// Measures of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measures {
    /// Entries of its ring, a power of two.
    pub(super) size: u16,
    /// Requests that can be in flight.
    pub(super) slots: u16,
    /// Most data of one request, in bytes.
    pub(super) data_len_max: usize,
}

impl Measures {
    /// From one slot to the next.
    fn stride(&self) -> usize {
        PAGE + self.data_len_max.next_multiple_of(PAGE)
    }

    /// Bytes of guest memory. The last page holds the last slot's status.
    pub(super) fn len_bytes(&self) -> usize {
        Ring::len_bytes(self.size) + usize::from(self.slots) * self.stride() + PAGE
    }
}

/// How the device notifies and how chains are laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Manner {
    pub(super) event_index: bool,
    pub(super) indirect: bool,
}

/// A piece of guest memory in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it.
    pub writable: bool,
}

/// A request that has been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Its slot.
    pub slot: u16,
    /// What the device put into its status byte.
    pub status: u8,
    /// Bytes that the device says to have written.
    pub written: u32,
}

/// One virtqueue.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<Memory>,
    ring: Ring,
    measures: Measures,
    manner: Manner,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    /// Where the slots begin.
    area: usize,
    slots: Vec<Slot>,
    /// Which slot a chain belongs to, by its head; [`NOBODY`] for none.
    owners: Vec<u16>,
    /// Descriptors that no chain uses.
    free: Vec<u16>,
    pieces: Vec<Piece>,
    /// The available index with what is not published yet.
    filled: u16,
    published: u16,
    /// The used index up to which answers have been taken.
    taken: u16,
    in_flight: u16,
    kicks: u64,
}

const NOBODY: u16 = u16::MAX;

#[derive(Debug, Default)]
struct Slot {
    busy: bool,
    chain: Vec<u16>,
    /// Where its status is.
    status: usize,
}

impl Queue {
    pub(super) fn new(memory: Arc<Memory>, offset: usize, measures: Measures, manner: Manner) -> io::Result<Queue> {
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Queue {
            ring: Ring::new(Arc::clone(&memory), offset, measures.size),
            memory,
            measures,
            manner,
            kick: bell()?,
            call: bell()?,
            error: bell()?,
            area: offset + Ring::len_bytes(measures.size),
            slots: (0..measures.slots).map(|_| Slot::default()).collect(),
            owners: vec![NOBODY; measures.size.into()],
            free: (0..measures.size).rev().collect(),
            pieces: Vec::new(),
            filled: 0,
            published: 0,
            taken: 0,
            in_flight: 0,
            kicks: 0,
        })
    }

    /// Requests that can be in flight, as far as there are descriptors.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.measures.slots
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// How often the device has been rung.
    #[must_use]
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// The ring itself: what a test writes there is its own affair.
    #[must_use]
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The guest memory that it lies in.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where the data of a slot lie in the memory; the header ends there.
    #[must_use]
    pub fn data(&self, slot: u16) -> usize {
        self.area + usize::from(slot) * self.measures.stride() + PAGE
    }

    /// Copies into a slot's data, for a request that is submitted next.
    ///
    /// # Panics
    /// If it is more than a slot holds.
    pub fn write_data(&self, slot: u16, bytes: &[u8]) {
        assert!(bytes.len() <= self.measures.data_len_max);
        self.memory.write(self.data(slot), bytes);
    }

    /// Copies a slot's data out.
    ///
    /// # Panics
    /// If it is more than a slot holds.
    pub fn read_data(&self, slot: u16, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.measures.data_len_max);
        self.memory.read(self.data(slot), bytes);
    }

    /// Puts a request into the ring; [`Queue::publish`] shows it to the device.
    ///
    /// # Errors
    /// [`ClientError::Busy`], [`ClientError::Full`], [`ClientError::TooLong`]: nothing has changed.
    #[inline]
    pub fn submit(&mut self, slot: u16, request: Request) -> Result<(), ClientError> {
        self.submit_cut(slot, request, Cuts::default())
    }

    /// The same, cut into descriptors as wanted.
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub fn submit_cut(&mut self, slot: u16, request: Request, cuts: Cuts<'_>) -> Result<(), ClientError> {
        let form = request.form();
        let len = form.to_device as usize + form.from_device as usize;
        if len > self.measures.data_len_max {
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
        let mut pieces = std::mem::take(&mut self.pieces);
        let from = data + form.to_device as usize;
        let memory = &self.memory;
        let mut add = |begin: usize, len, writable| {
            pieces.push(Piece { address: memory.guest(begin), len, writable });
        };
        let to_device = HEADER_LEN as u32 + form.to_device;
        cut(to_device, cuts.readable, HEADER_LEN as u32, &mut |at, len| add(header + at as usize, len, false));
        cut(form.from_device + 1, cuts.writable, form.from_device, &mut |at, len| add(from + at as usize, len, true));
        let indirect = self.manner.indirect;
        let put = self.put(slot, &pieces, indirect, from + form.from_device as usize);
        pieces.clear();
        self.pieces = pieces;
        put
    }

    /// Puts any chain into the ring, whatever lies there. Its last byte that the device writes ought to be in the slot's
    /// data, at `status` bytes from their start, else the completion says [`STATUS_UNTOUCHED`].
    ///
    /// # Errors
    /// As [`Queue::submit`].
    pub fn submit_pieces(
        &mut self,
        slot: u16,
        pieces: &[Piece],
        indirect: bool,
        status: usize,
    ) -> Result<(), ClientError> {
        self.check_free(slot)?;
        self.put(slot, pieces, indirect, self.data(slot) + status)
    }

    /// Puts a head into the available ring that belongs to no slot.
    pub fn push_head(&mut self, head: u16) {
        self.ring.write_available(self.filled, head);
        self.filled = self.filled.wrapping_add(1);
    }

    /// Shows the device what was submitted, and rings if it asked for that; whether it did.
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
        let wanted = self.ring.wants_kick(self.manner.event_index, old, new);
        if wanted {
            self.kick()?;
        }
        Ok(wanted)
    }

    /// Rings.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn kick(&mut self) -> Result<(), ClientError> {
        self.kicks += 1;
        match rustix::io::write(&self.kick, &1u64.to_ne_bytes()) {
            // So often rung and never heard: it is readable all the same.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(ClientError::Io(error.into())),
        }
    }

    /// Whether there are answers to be taken.
    #[inline]
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.ring.used_index() != self.taken
    }

    /// Takes all answers that there are; returns how many.
    ///
    /// # Errors
    /// [`ClientError::Protocol`]: the device answered what it was not asked. Answers before that have been taken.
    #[inline]
    pub fn reap(&mut self, answered: &mut Vec<Completion>) -> Result<usize, ClientError> {
        let mut count = 0;
        loop {
            // Once more after the last: more may have come meanwhile, and taking them now is cheapest.
            let index = self.ring.used_index();
            if index == self.taken {
                return Ok(count);
            }
            if index.wrapping_sub(self.taken) > self.in_flight {
                return Err(ClientError::Protocol { what: "more answers than requests" });
            }
            while self.taken != index {
                answered.push(self.take()?);
                count += 1;
            }
        }
    }

    /// Asks to be woken by the next answer; false if there are some already, so that there is no need to sleep.
    pub fn arm(&self) -> bool {
        if self.manner.event_index {
            self.ring.set_used_event(self.taken);
        } else {
            self.ring.set_no_interrupt(false);
        }
        // What we ask for must be out before we look for the last time, else both sides may go to sleep.
        std::sync::atomic::fence(Ordering::SeqCst);
        !self.has_answers()
    }

    /// Asks not to be woken: for who polls.
    pub fn disarm(&self) {
        if self.manner.event_index {
            self.ring.set_used_event(self.taken.wrapping_sub(1));
        } else {
            self.ring.set_no_interrupt(true);
        }
    }

    /// What the device rings when it has answered.
    #[must_use]
    pub fn call(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// What we ring.
    #[must_use]
    pub fn kick_descriptor(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// What the device rings when it finds the ring broken.
    #[must_use]
    pub fn error(&self) -> BorrowedFd<'_> {
        self.error.as_fd()
    }

    /// Whether the device has found the ring broken since this was asked last.
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

    /// Lays a chain and puts it into the available ring.
    fn put(&mut self, slot: u16, pieces: &[Piece], indirect: bool, status: usize) -> Result<(), ClientError> {
        let indirect = indirect && pieces.len() > 1;
        let needed = if indirect { 1 } else { pieces.len() };
        if indirect && pieces.len() > INDIRECT_MAX || pieces.is_empty() || needed > self.free.len() {
            return Err(ClientError::Full);
        }
        let data = self.data(slot);
        let state = &mut self.slots[usize::from(slot)];
        state.chain.extend(self.free.drain(self.free.len() - needed..).rev());
        (state.busy, state.status) = (true, status);
        let last = pieces.len() - 1;
        let descriptor = |at: usize, next| Descriptor {
            address: pieces[at].address,
            len: pieces[at].len,
            flags: if pieces[at].writable { WRITE } else { 0 } | if at < last { NEXT } else { 0 },
            next: if at < last { next } else { 0 },
        };
        let head = state.chain[0];
        if indirect {
            let len = pieces.len() * DESCRIPTOR_LEN;
            let table = data - HEADER_LEN - len;
            for at in 0..pieces.len() {
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

    /// Takes the next answer.
    fn take(&mut self) -> Result<Completion, ClientError> {
        let used = self.ring.used(self.taken);
        let owner = self.owners.get_mut(used.head as usize).map(|owner| std::mem::replace(owner, NOBODY));
        let Some(slot) = owner.filter(|slot| *slot != NOBODY) else {
            return Err(ClientError::Protocol { what: "an answer to no request in flight" });
        };
        let state = &mut self.slots[usize::from(slot)];
        self.free.extend(state.chain.drain(..).rev());
        state.busy = false;
        self.in_flight -= 1;
        self.taken = self.taken.wrapping_add(1);
        Ok(Completion { slot, status: self.memory.u8(state.status).load(Ordering::Relaxed), written: used.len })
    }
}
