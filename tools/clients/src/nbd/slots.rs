//! Table of requests in flight.
//!
//! A reply identifies its request only by the cookie, and a simple reply to a read does not state how many bytes
//! follow. So each request has a slot. Its cookie on the wire is the slot's index, with a generation in the upper
//! half. The generation changes when the slot is freed, so a duplicate or invented reply is detected.

use super::{ClientError, IN_FLIGHT_MAX};
use sluice_io::nbd::wire::{self, Errno};

/// Contents that a reply may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data of a read.
    Read,
    /// Extents.
    BlockStatus,
    /// Nothing.
    Plain,
}

impl From<wire::Command> for Kind {
    fn from(command: wire::Command) -> Kind {
        match command {
            wire::Command::Read => Kind::Read,
            wire::Command::BlockStatus => Kind::BlockStatus,
            _ => Kind::Plain,
        }
    }
}

/// One request in flight.
#[derive(Debug)]
pub(super) struct Slot {
    generation: u32,
    busy: bool,
    pub(super) cookie: u64,
    pub(super) kind: Kind,
    pub(super) offset: u64,
    pub(super) len: u32,
    /// Number of bytes of a read that have arrived.
    pub(super) received: u32,
    /// Errno of the first chunk that reports an error.
    pub(super) errno: Option<Errno>,
    /// Data of a reply that arrived in several chunks; empty in the common case of one chunk.
    pub(super) gathered: Vec<u8>,
}

/// All slots, free and in use.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot and returns its cookie for the wire, or `None` if all are in use.
    pub(super) fn insert(&mut self, cookie: u64, kind: Kind, offset: u64, len: u32) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < IN_FLIGHT_MAX => self.grow(),
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        (slot.busy, slot.cookie, slot.kind, slot.offset, slot.len) = (true, cookie, kind, offset, len);
        (slot.received, slot.errno) = (0, None);
        Some(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// Returns the slot of a cookie from the wire.
    pub(super) fn find(&mut self, wire_cookie: u64) -> Result<(u32, &mut Slot), ClientError> {
        let (generation, index) = ((wire_cookie >> 32) as u32, wire_cookie as u32);
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.busy && slot.generation == generation => Ok((index, slot)),
            _ => Err(ClientError::Protocol { what: "a reply has an unknown cookie" }),
        }
    }

    /// Returns the slot with an index that [`Slots::find`] returned.
    pub(super) fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// Frees a slot that is in use.
    pub(super) fn release(&mut self, index: u32) {
        let slot = self.slot(index);
        slot.busy = false;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }

    fn grow(&mut self) -> u32 {
        self.slots.push(Slot {
            generation: 0,
            busy: false,
            cookie: 0,
            kind: Kind::Plain,
            offset: 0,
            len: 0,
            received: 0,
            errno: None,
            gathered: Vec::new(),
        });
        (self.slots.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_valid_once() {
        let mut slots = Slots::default();
        let first = slots.insert(77, Kind::Read, 0, 512).expect("room");
        let second = slots.insert(77, Kind::Plain, 0, 0).expect("room");
        assert_ne!(first, second);
        let (index, slot) = slots.find(first).expect("in flight");
        assert_eq!((slot.cookie, slot.kind, slot.len), (77, Kind::Read, 512));
        slots.release(index);
        assert!(slots.find(first).is_err(), "freed");
        let third = slots.insert(78, Kind::Plain, 0, 0).expect("room");
        assert_eq!(third as u32, first as u32, "the slot is used again");
        assert!(slots.find(first).is_err(), "another generation");
        assert_eq!(slots.in_flight(), 2);
        assert!(slots.find(u64::MAX).is_err());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut slots = Slots::default();
        for cookie in 0..IN_FLIGHT_MAX as u64 {
            assert!(slots.insert(cookie, Kind::Plain, 0, 0).is_some());
        }
        assert_eq!(slots.insert(0, Kind::Plain, 0, 0), None);
        slots.release(3);
        assert!(slots.insert(0, Kind::Plain, 0, 0).is_some());
    }
}
