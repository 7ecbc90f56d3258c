//! Queued requests: one arena for all, first-in-first-out lists threaded through it.
//!
//! Idea: a request and its link fill one cache line (64 bytes); memory comes in chunks, so a growing queue copies
//! nothing and a request costs what it occupies. An empty list costs twelve bytes.

use crate::request::{Request, RequestId};

const CHUNK_BITS: u32 = 9;
const CHUNK: usize = 1 << CHUNK_BITS;
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Node {
    request: Request,
    next: u32,
}

const _: () = assert!(size_of::<Node>() == 64);

/// Where the requests of all lists live.
#[derive(Debug)]
pub struct Arena {
    chunks: Vec<Vec<Node>>,
    free: u32,
    len: usize,
}

/// One list in an [`Arena`].
#[derive(Debug, Clone, Copy)]
pub struct Fifo {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { head: NIL, tail: NIL, len: 0 }
    }
}

impl Fifo {
    /// How many requests it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for Arena {
    fn default() -> Self {
        Arena::new()
    }
}

impl Arena {
    /// An empty arena.
    #[must_use]
    pub fn new() -> Self {
        Arena { chunks: Vec::new(), free: NIL, len: 0 }
    }

    /// How many requests it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn node(&self, index: u32) -> &Node {
        &self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK - 1)]
    }

    fn node_mut(&mut self, index: u32) -> &mut Node {
        &mut self.chunks[(index >> CHUNK_BITS) as usize][index as usize & (CHUNK - 1)]
    }

    fn allocate(&mut self, request: Request) -> u32 {
        self.len += 1;
        let node = Node { request, next: NIL };
        if self.free != NIL {
            let index = self.free;
            let place = self.node_mut(index);
            let next = place.next;
            *place = node;
            self.free = next;
            return index;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        let chunk = &mut self.chunks[last];
        chunk.push(node);
        let index = (last << CHUNK_BITS) + chunk.len() - 1;
        u32::try_from(index).expect("the gate bounds its queue far below 2^32 requests")
    }

    fn release(&mut self, index: u32) {
        let free = self.free;
        self.node_mut(index).next = free;
        self.free = index;
        self.len -= 1;
    }

    /// Appends.
    pub fn push(&mut self, fifo: &mut Fifo, request: Request) {
        let index = self.allocate(request);
        if fifo.tail == NIL {
            fifo.head = index;
        } else {
            self.node_mut(fifo.tail).next = index;
        }
        fifo.tail = index;
        fifo.len += 1;
    }

    /// The oldest.
    #[must_use]
    pub fn front(&self, fifo: &Fifo) -> Option<&Request> {
        (fifo.head != NIL).then(|| &self.node(fifo.head).request)
    }

    /// Takes the oldest.
    pub fn pop(&mut self, fifo: &mut Fifo) -> Option<Request> {
        if fifo.head == NIL {
            return None;
        }
        let index = fifo.head;
        let Node { request, next } = *self.node(index);
        fifo.head = next;
        if next == NIL {
            fifo.tail = NIL;
        }
        fifo.len -= 1;
        self.release(index);
        Some(request)
    }

    /// Takes every request for which `leaves` holds, in order; the others keep theirs. O(length).
    pub fn remove_if(&mut self, fifo: &mut Fifo, removed: &mut Vec<Request>, mut leaves: impl FnMut(&Request) -> bool) {
        let mut kept = Fifo::default();
        let mut index = fifo.head;
        while index != NIL {
            let Node { request, next } = *self.node(index);
            if leaves(&request) {
                removed.push(request);
                self.release(index);
            } else {
                match kept.tail {
                    NIL => kept.head = index,
                    tail => self.node_mut(tail).next = index,
                }
                kept.tail = index;
                kept.len += 1;
                self.node_mut(index).next = NIL;
            }
            index = next;
        }
        *fifo = kept;
    }

    /// The request `id` of a list, to be changed in place. O(length).
    pub fn find_mut(&mut self, fifo: &Fifo, id: RequestId) -> Option<&mut Request> {
        let mut index = fifo.head;
        while index != NIL {
            if self.node(index).request.id == id {
                return Some(&mut self.node_mut(index).request);
            }
            index = self.node(index).next;
        }
        None
    }
}
