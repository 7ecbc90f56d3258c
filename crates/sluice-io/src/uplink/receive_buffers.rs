//! Memory for frames that are read from TAPs.
//!
//! A long frame stays in the buffer into which it was read until it has been sent, and the next one is read into another buffer. Copying it
//! would cost about as much as one of the two copies that the kernel makes. A short frame is copied: it would occupy 64 KiB while it waits.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use crate::uplink::link::FRAME_MAX;

/// Shortest frame that is not copied: what waits takes at most twice the memory of its bytes.
const LONG: usize = FRAME_MAX / 2;
/// Maximum number of unused buffers that are kept: 4 MiB.
const UNUSED_MAX: usize = 64;

type Unused = Rc<RefCell<Vec<Box<[u8]>>>>;

/// The buffers of a thread.
pub(crate) struct ReceiveBuffers {
    /// The next frame is read into it.
    next: Box<[u8]>,
    unused: Unused,
}

impl ReceiveBuffers {
    pub(crate) fn new() -> Self {
        ReceiveBuffers { next: new_buffer(), unused: Unused::default() }
    }

    /// Returns the buffer for the next frame.
    pub(crate) fn next(&mut self) -> &mut [u8] {
        &mut self.next
    }

    /// Takes the buffer, if the frame of `length` bytes in it is not to be copied. The next one is read into another buffer.
    pub(crate) fn keep(&mut self, length: usize) -> Option<Own> {
        if length < LONG {
            return None;
        }
        let next = self.unused.borrow_mut().pop().unwrap_or_else(new_buffer);
        let bytes = std::mem::replace(&mut self.next, next);
        Some(Own::Buffer(Rc::new(Buffer { bytes, unused: Rc::clone(&self.unused) })))
    }
}

fn new_buffer() -> Box<[u8]> {
    vec![0; FRAME_MAX].into()
}

/// A buffer with a frame. When it is dropped, another frame may be read into it.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    unused: Unused,
}

impl Drop for Buffer {
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
    Buffer(Rc<Buffer>),
}

impl Deref for Own {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Own::Copied(bytes) => bytes,
            Own::Buffer(buffer) => &buffer.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_frame_keeps_its_buffer_and_a_short_one_does_not() {
        let mut buffers = ReceiveBuffers::new();
        let mut read = |length: usize, byte: u8| {
            buffers.next()[..length].fill(byte);
            buffers.keep(length)
        };
        assert!(read(60, 1).is_none() && read(LONG - 1, 2).is_none());
        let kept: Vec<Own> = [(LONG, 3), (FRAME_MAX, 4)].map(|(length, byte)| read(length, byte).unwrap()).into();
        assert_eq!([&kept[0][..LONG], &kept[1][..]], [&[3; LONG][..], &[4; FRAME_MAX]]);
        let unused = Rc::clone(&buffers.unused);
        assert_eq!(unused.borrow().len(), 0);
        drop(kept);
        assert_eq!(unused.borrow().len(), 2);
        drop(buffers.keep(LONG));
        assert_eq!(unused.borrow().len(), 2, "one was used again, and has come back");
        let many: Vec<Option<Own>> = (0..100).map(|_| buffers.keep(LONG)).collect();
        drop(many);
        assert_eq!(unused.borrow().len(), UNUSED_MAX);
    }
}
