//! Memory for frames that are read from TAPs.
//!
//! A long frame stays in the room into which it was read until it has been sent, and the next one is read into another room. Copying it
//! would cost about as much as one of the two copies that the kernel makes. A short frame is copied: it would occupy 64 KiB while it waits.

use std::cell::RefCell;
use std::ops::{Deref, Range};
use std::rc::Rc;

use sluice_net::PREFIX_LEN;

use crate::uplink::link::FRAME_MAX;
use crate::uplink::packet::{Data, Prefix, Rest};

/// Shortest frame that is not copied: what waits takes at most twice the memory of its bytes.
const LONG: usize = FRAME_MAX / 2;
/// Maximum number of unused rooms that are kept: 4 MiB.
const UNUSED_MAX: usize = 64;

type Unused = Rc<RefCell<Vec<Box<[u8]>>>>;

/// The rooms of a thread.
pub(crate) struct Rooms {
    /// The next frame is read into it.
    next: Box<[u8]>,
    unused: Unused,
}

impl Rooms {
    pub(crate) fn new() -> Self {
        Rooms { next: new_room(), unused: Unused::default() }
    }

    /// Returns room for the next frame.
    pub(crate) fn next(&mut self) -> &mut [u8] {
        &mut self.next
    }

    /// Takes the frame that was read into the room.
    pub(crate) fn take(&mut self, frame: Range<usize>) -> Data {
        if frame.len() < LONG {
            return Data::own(&self.next[frame]);
        }
        let next = self.unused.borrow_mut().pop().unwrap_or_else(new_room);
        let bytes = std::mem::replace(&mut self.next, next);
        let prefix = Prefix::new(&[&bytes[frame.start..frame.start + PREFIX_LEN]]);
        let room = Room { bytes, unused: Rc::clone(&self.unused) };
        Data { prefix, rest: Rest::Own(Own::Room(Rc::new(room)), frame.start + PREFIX_LEN..frame.end) }
    }
}

fn new_room() -> Box<[u8]> {
    vec![0; FRAME_MAX].into()
}

/// A room with a frame. When it is dropped, another frame may be read into it.
pub(crate) struct Room {
    bytes: Box<[u8]>,
    unused: Unused,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut unused = self.unused.borrow_mut();
        if unused.len() < UNUSED_MAX {
            unused.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// Bytes in memory of the daemon.
#[derive(Clone)]
pub(crate) enum Own {
    Copied(Rc<[u8]>),
    Room(Rc<Room>),
}

impl Deref for Own {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Own::Copied(bytes) => bytes,
            Own::Room(room) => &room.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_frame_keeps_its_room_and_a_short_one_does_not() {
        let mut rooms = Rooms::new();
        let mut read = |length: usize, byte: u8| {
            rooms.next()[4..4 + length].fill(byte);
            rooms.take(4..4 + length)
        };
        let frames: Vec<Data> =
            [(60, 1), (LONG, 2), (1514, 3), (60_000, 4), (LONG - 1, 5)].map(|(length, byte)| read(length, byte)).into();
        for (frame, (length, byte)) in frames.iter().zip([(60, 1), (LONG, 2), (1514, 3), (60_000, 4), (LONG - 1, 5)]) {
            assert_eq!(frame.gather(), vec![byte; length]);
        }
        let is_in_room = |frame: &Data| matches!(frame.rest, Rest::Own(Own::Room(_), _));
        assert_eq!(frames.iter().map(is_in_room).collect::<Vec<_>>(), [false, true, false, true, false]);
        let unused = Rc::clone(&rooms.unused);
        assert_eq!(unused.borrow().len(), 0);
        drop(frames);
        assert_eq!(unused.borrow().len(), 2);
        rooms.take(0..FRAME_MAX);
        assert_eq!(unused.borrow().len(), 2, "one was used again, and has come back");
        let many: Vec<Data> = (0..100).map(|_| rooms.take(0..FRAME_MAX)).collect();
        drop(many);
        assert_eq!(unused.borrow().len(), UNUSED_MAX);
    }
}
