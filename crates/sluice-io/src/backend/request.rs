//! A request of a client, from its arrival at a frontend to its reply.

use sluice_sched::Kind;

use crate::backend::bridge::Bridged;
use crate::backend::buffer::{Buffer, Room};
use crate::slab::{ClientRef, IoId, VolumeKey};
use crate::source::Span;
use crate::virtio::GuestData;

/// A request in the table.
pub(crate) struct IoRequest {
    pub(crate) client: ClientRef,
    /// Data of the client's frontend for the reply; only that frontend reads it.
    pub(crate) cookie: u64,
    pub(crate) volume: VolumeKey,
    /// Its position in the list of its client's requests.
    pub(crate) position: u32,
    /// `None` if nothing is done at the device, because the request is a query or is refused; see [`IoRequest::gate_kind`].
    pub(crate) kind: Option<Kind>,
    /// Offset from the start of the volume.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) forced: bool,
    pub(crate) no_hole: bool,
    pub(crate) fast: bool,
    /// The data of a client without memory of its own; an aligned copy of the data in `guest`, for the part that is at the gate; or the
    /// data of the steps of a bridged request, until it ends.
    pub(crate) buffer: Option<Buffer>,
    /// The memory from which a buffer may be taken.
    pub(crate) room: Room,
    /// Whether the data goes between the disk and the guest without a copy.
    pub(crate) direct: bool,
    /// The data in the memory of a guest.
    pub(crate) guest: Option<GuestData>,
    /// 0, or a Linux errno.
    pub(crate) errno: i32,
    /// Whether its client has disconnected. It is not dispatched any more.
    pub(crate) abandoned: bool,
    /// Its steps, if the disk has larger blocks than the guest.
    pub(crate) bridge: Option<Box<Bridged>>,
    /// Number of its submissions in flight.
    pub(crate) in_flight: u32,
    /// A query for the allocated parts of its range.
    pub(crate) question: Option<Box<Question>>,
    /// Bytes of its VM's window that it occupies.
    pub(crate) held: u64,
    /// Bytes of its VM's share of the daemon's memory that it occupies. The copy of a guest's data is not counted: the window bounds it.
    pub(crate) buffered: u64,
    /// Bytes from its start that have completed.
    pub(crate) done: u32,
    /// Bytes after them that are at the gate.
    pub(crate) part: u32,
    /// Whether the device cannot do what was dispatched. Then `part` has not been done.
    pub(crate) refused: bool,
}

/// The properties of a request that are fixed when it enters the table.
pub(crate) struct Opening {
    pub(crate) client: ClientRef,
    pub(crate) cookie: u64,
    pub(crate) volume: VolumeKey,
    /// See [`IoRequest::held`] and [`IoRequest::buffered`].
    pub(crate) held: u64,
    pub(crate) buffered: u64,
}

impl IoRequest {
    /// Creates a request that has only a client and a volume.
    pub(crate) fn new(opening: &Opening, position: u32, room: Room) -> Self {
        IoRequest {
            client: opening.client,
            cookie: opening.cookie,
            volume: opening.volume,
            position,
            kind: None,
            offset: 0,
            length: 0,
            forced: false,
            no_hole: false,
            fast: false,
            buffer: None,
            room,
            direct: false,
            guest: None,
            errno: 0,
            abandoned: false,
            bridge: None,
            in_flight: 0,
            question: None,
            held: opening.held,
            buffered: opening.buffered,
            done: 0,
            part: 0,
            refused: false,
        }
    }

    /// Drops what it owns, and returns its buffer.
    pub(crate) fn release(&mut self) -> Option<Buffer> {
        self.guest = None;
        self.question = None;
        self.bridge = None;
        self.buffer.take()
    }

    /// Refuses the request: nothing is done, and it ends with `errno` when the gate dispatches it.
    pub(crate) fn refuse(&mut self, errno: i32) {
        // A request without data is charged as one, however long its range is.
        if self.kind != Some(Kind::Write) {
            self.length = 0;
        }
        (self.kind, self.errno, self.done) = (None, errno, 0);
        (self.offset, self.forced, self.question) = (0, false, None);
    }

    /// Returns its kind at the gate. A query is charged as a flush. A refused request is charged as a flush, or as a
    /// write of the data that came with it. Otherwise a client that sends nothing else could occupy the device thread.
    pub(crate) fn gate_kind(&self) -> Kind {
        match self.kind {
            Some(kind) => kind,
            None if self.gate_length() > 0 => Kind::Write,
            None => Kind::Flush,
        }
    }

    /// Returns its length at the gate.
    pub(crate) fn gate_length(&self) -> u32 {
        if self.kind.is_some() || self.errno != 0 { self.length } else { 0 }
    }

    /// Returns the memory of `length` bytes after the first `skip`. Several segments are listed in `pieces`. `None` if
    /// there is no memory for the list.
    pub(crate) fn data<'a>(&self, skip: u32, length: u32, pieces: &'a mut Vec<libc::iovec>) -> Option<Data<'a>> {
        match (&self.buffer, &self.guest) {
            (Some(buffer), guest) => {
                let at = match guest {
                    _ if self.bridge_len().is_some() => self.step_at() + skip as usize,
                    Some(_) => (skip - self.done) as usize,
                    None => skip as usize,
                };
                Some(Data::One(buffer.as_ptr().wrapping_add(at), length))
            }
            (None, Some(guest)) => {
                let listed = guest.list(skip, length, pieces);
                listed.then(|| match pieces.as_slice() {
                    [only] => Data::One(only.iov_base.cast(), length),
                    _ => Data::Pieces(pieces),
                })
            }
            (None, None) => unreachable!("a transfer has its data in a buffer or in a guest"),
        }
    }
}

/// A query for the allocated parts of a range.
pub(crate) struct Question {
    /// Maximum number of spans in the answer.
    pub(crate) spans_max: usize,
    pub(crate) answer: Vec<Span>,
}

/// The memory of an operation.
pub(crate) enum Data<'a> {
    One(*mut u8, u32),
    Pieces(&'a [libc::iovec]),
}

/// The requests of one client, in no order.
#[derive(Default)]
pub(crate) struct RequestList(Vec<IoId>);

impl RequestList {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> u32 {
        self.next_position()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = IoId> {
        self.0.iter().copied()
    }

    /// Returns the position of the next request.
    pub(crate) fn next_position(&self) -> u32 {
        self.0.len() as u32
    }

    pub(crate) fn push(&mut self, id: IoId) {
        self.0.push(id);
    }

    /// Removes the request at `position`. Returns the one that is there now.
    pub(crate) fn remove(&mut self, position: u32) -> Option<IoId> {
        self.0.swap_remove(position as usize);
        self.0.get(position as usize).copied()
    }
}
