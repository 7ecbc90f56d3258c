//! A request of a client, from its arrival at a frontend to its reply.

use sluice_sched::Kind;

use crate::backend::buffer::{Buffer, Room};
use crate::slab::{ClientRef, IoId, VolumeKey};
use crate::source::Span;
use crate::virtio::GuestData;

/// One request of a client.
pub(crate) struct IoRequest {
    pub(crate) client: ClientRef,
    /// What the client's frontend needs for the reply; only that frontend reads it.
    pub(crate) cookie: u64,
    pub(crate) volume: VolumeKey,
    /// Its position in the list of its client's requests.
    pub(crate) position: u32,
    /// `None`: nothing is done at the device, because it asks about the volume or is refused; see
    /// [`IoRequest::gate_kind`].
    pub(crate) kind: Option<Kind>,
    /// From the start of the volume.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) forced: bool,
    pub(crate) no_hole: bool,
    pub(crate) fast: bool,
    /// Its data, or with `guest` a copy of them that is aligned.
    pub(crate) buffer: Option<Buffer>,
    /// The memory that a buffer may be taken from.
    pub(crate) room: Room,
    /// Its data go between the disk and the guest without a copy.
    pub(crate) direct: bool,
    /// Its data in the memory of a guest.
    pub(crate) guest: Option<GuestData>,
    /// 0, or a Linux errno.
    pub(crate) errno: i32,
    /// Its client has gone: what is not at the device yet is not done.
    pub(crate) abandoned: bool,
    /// Its submissions at the device.
    pub(crate) in_flight: u32,
    /// It asks which parts of its range hold data.
    pub(crate) question: Option<Box<Question>>,
    /// Bytes that it holds of its VM's window.
    pub(crate) held: u64,
    /// Bytes that it takes of the daemon's memory for its VM. The copy of a guest's data is not counted: it lasts only while
    /// the request is at the device.
    pub(crate) buffered: u64,
    /// Bytes from its start that are done.
    pub(crate) done: u32,
    /// Bytes after them that are at the gate.
    pub(crate) part: u32,
    /// The device cannot do what the gate let through; `part` is not done.
    pub(crate) refused: bool,
}

/// What is known of a request when it enters the table.
pub(crate) struct Opening {
    pub(crate) client: ClientRef,
    pub(crate) cookie: u64,
    pub(crate) volume: VolumeKey,
    /// See [`IoRequest::held`] and [`IoRequest::buffered`].
    pub(crate) held: u64,
    pub(crate) buffered: u64,
}

impl IoRequest {
    /// A request that asks for nothing yet.
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
            in_flight: 0,
            question: None,
            held: opening.held,
            buffered: opening.buffered,
            done: 0,
            part: 0,
            refused: false,
        }
    }

    /// Drops what it owns.
    pub(crate) fn release(&mut self) -> Option<Buffer> {
        self.guest = None;
        self.question = None;
        self.buffer.take()
    }

    /// Nothing is done of it; it ends with `errno` when the gate lets it through.
    pub(crate) fn refuse(&mut self, errno: i32) {
        // What came without data is charged without any, however long its range is.
        if self.kind != Some(Kind::Write) {
            self.length = 0;
        }
        (self.kind, self.errno, self.done) = (None, errno, 0);
        (self.offset, self.forced, self.question) = (0, false, None);
    }

    /// Its kind at the gate. A question about the volume is charged as a flush, and so is a request that is refused, or as a
    /// write of the data that came with it: a client that sends nothing else must not have the device thread for itself.
    pub(crate) fn gate_kind(&self) -> Kind {
        match self.kind {
            Some(kind) => kind,
            None if self.gate_length() > 0 => Kind::Write,
            None => Kind::Flush,
        }
    }

    /// How many bytes the gate is told.
    pub(crate) fn gate_length(&self) -> u32 {
        if self.kind.is_some() || self.errno != 0 { self.length } else { 0 }
    }

    /// The memory of `length` bytes behind the first `skip`; more than one piece is listed in `pieces`. `None`: there is no
    /// memory for the list.
    pub(crate) fn data<'a>(&self, skip: u32, length: u32, pieces: &'a mut Vec<libc::iovec>) -> Option<Data<'a>> {
        match (&self.buffer, &self.guest) {
            (Some(buffer), _) => Some(Data::One(buffer.as_ptr().wrapping_add(skip as usize), length)),
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

/// Which parts of a range hold data.
pub(crate) struct Question {
    /// Most spans in the answer.
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = IoId> {
        self.0.iter().copied()
    }

    /// Where the next one will be.
    pub(crate) fn next_position(&self) -> u32 {
        self.0.len() as u32
    }

    pub(crate) fn push(&mut self, id: IoId) {
        self.0.push(id);
    }

    /// Removes the one at `position`; returns the one that is there now.
    pub(crate) fn remove(&mut self, position: u32) -> Option<IoId> {
        self.0.swap_remove(position as usize);
        self.0.get(position as usize).copied()
    }
}
