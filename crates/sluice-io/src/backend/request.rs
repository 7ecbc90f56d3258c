//! A request of a client, from its arrival at a frontend to its reply.

use sluice_sched::gate::{Finished, Service};
use sluice_sched::tracker::Told;
use sluice_sched::{Kind, Phase};

use crate::backend::bridge::Bridged;
use crate::backend::buffer::{Buffer, Room};
use crate::slab::{ClientRef, IoId, VolumeKey};
use crate::source::Span;
use crate::store::Memory;
use crate::virtio::GuestData;

/// A request in the table.
pub(crate) struct IoRequest {
    pub(crate) origin: Origin,
    pub(crate) volume: VolumeKey,
    pub(crate) body: Body,
    /// Offset from the start of the volume.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// Whether what it changes is durable when it ends.
    pub(crate) forced: bool,
    pub(crate) data: RequestData,
    /// 0, or a Linux errno.
    pub(crate) errno: i32,
    /// Whether its client has disconnected. It is not dispatched any more.
    pub(crate) abandoned: bool,
    /// Its steps, if the disk has larger blocks than the guest.
    pub(crate) bridge: Option<Box<Bridged>>,
    /// Number of its submissions in flight.
    pub(crate) in_flight: u32,
    pub(crate) occupies: Occupied,
    pub(crate) served: Served,
    /// Bytes from its start that have completed.
    pub(crate) done: u32,
    /// Bytes after them that are at the gate; 0 if the device cannot do what was dispatched, so that none of them completes.
    pub(crate) part: u32,
}

/// The operation that a client asks for.
pub(crate) enum Body {
    Read,
    Write,
    Zero {
        /// Whether the range stays allocated.
        no_hole: bool,
        /// Whether it is refused if zeroing is no faster than writing.
        fast: bool,
    },
    Discard,
    Flush,
    /// Asks for the allocated parts of its range.
    Query(Box<Question>),
    /// No operation: the answer is known.
    Answered,
    /// No operation: the request ends with `errno` when the gate dispatches it. Its length is that of the data that came with it.
    Refused,
}

/// The client of a request.
pub(crate) struct Origin {
    pub(crate) client: ClientRef,
    /// Data of the client's frontend for the reply; only that frontend reads it.
    pub(crate) cookie: u64,
    /// Its position in the list of its client's requests.
    pub(crate) position: u32,
}

/// The memory of a request's data.
pub(crate) struct RequestData {
    /// The data in the memory of a guest.
    pub(crate) guest: Option<GuestData>,
    pub(crate) place: Place,
    /// The memory from which a buffer may be taken.
    pub(crate) room: Room,
}

/// The memory between which and the disk the data goes.
pub(crate) enum Place {
    /// Not known yet.
    Open,
    /// That of the guest.
    Guest,
    /// A buffer: the data of a client without memory of its own; an aligned copy of the guest's data, for the part that is at the gate;
    /// or the data of the steps of a bridged request, until it ends.
    Buffer(Buffer),
}

/// Bytes that a request holds of its VM's bounds until it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupied {
    /// Bytes of the VM's window.
    pub(crate) window: u64,
    /// Bytes of the VM's share of the daemon's memory. The copy of a guest's data is not counted, because the window bounds it.
    pub(crate) memory: u64,
}

/// The dmClock figures of a request: the client's report comes with it, and the server's answer goes back with the reply.
#[derive(Debug)]
pub(crate) struct Served {
    /// Its report of the service at other servers, until the first part is at the gate.
    pub(crate) report: Option<Box<Told>>,
    /// Phase in which the last part was dispatched.
    pub(crate) phase: Phase,
    /// Service of all parts, and what of it was given in the reservation phase.
    pub(crate) service: Service,
    pub(crate) reserved: Service,
}

/// The properties of a request that are fixed when it enters the table.
pub(crate) struct Opening {
    pub(crate) client: ClientRef,
    pub(crate) cookie: u64,
    pub(crate) volume: VolumeKey,
    pub(crate) occupies: Occupied,
}

impl Body {
    /// Returns what is done at the device; `None` for nothing.
    pub(crate) fn kind(&self) -> Option<Kind> {
        Some(match self {
            Body::Read => Kind::Read,
            Body::Write => Kind::Write,
            Body::Zero { .. } => Kind::WriteZeroes,
            Body::Discard => Kind::Discard,
            Body::Flush => Kind::Flush,
            Body::Query(_) | Body::Answered | Body::Refused => return None,
        })
    }

    /// Whether it is refused if zeroing is no faster than writing.
    pub(crate) fn is_fast(&self) -> bool {
        matches!(self, Body::Zero { fast: true, .. })
    }
}

impl Default for Served {
    fn default() -> Self {
        Served { report: None, phase: Phase::None, service: Service::NONE, reserved: Service::NONE }
    }
}

impl Served {
    /// Adds a part that the gate has completed.
    pub(crate) fn add(&mut self, part: &Finished) {
        self.phase = part.phase;
        self.service.add(part.service);
        self.reserved.add(part.reserved);
    }
}

impl RequestData {
    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        if let Place::Buffer(buffer) = &self.place { Some(buffer) } else { None }
    }

    pub(crate) fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        if let Place::Buffer(buffer) = &mut self.place { Some(buffer) } else { None }
    }

    /// Forgets where the data is. Returns its buffer.
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        match std::mem::replace(&mut self.place, Place::Open) {
            Place::Buffer(buffer) => Some(buffer),
            Place::Open | Place::Guest => None,
        }
    }

    /// Sets the buffer. Returns whether there is one.
    pub(crate) fn set_buffer(&mut self, buffer: Option<Buffer>) -> bool {
        self.place = buffer.map_or(Place::Open, Place::Buffer);
        self.buffer().is_some()
    }
}

impl IoRequest {
    /// Creates a request that has only a client and a volume.
    pub(crate) fn new(opening: &Opening, position: u32, room: Room) -> Self {
        IoRequest {
            origin: Origin { client: opening.client, cookie: opening.cookie, position },
            volume: opening.volume,
            body: Body::Answered,
            offset: 0,
            length: 0,
            forced: false,
            data: RequestData { guest: None, place: Place::Open, room },
            errno: 0,
            abandoned: false,
            bridge: None,
            in_flight: 0,
            occupies: opening.occupies,
            served: Served::default(),
            done: 0,
            part: 0,
        }
    }

    /// Sets what the client asks for.
    pub(crate) fn ask(&mut self, body: Body, offset: u64, length: u32, forced: bool) {
        (self.body, self.offset, self.length, self.forced) = (body, offset, length, forced);
    }

    /// Drops what it owns, and returns its buffer.
    pub(crate) fn release(&mut self) -> Option<Buffer> {
        self.body = Body::Answered;
        self.bridge = None;
        self.data.guest = None;
        self.data.take_buffer()
    }

    /// Refuses the request: nothing is done, and it ends with `errno` when the gate dispatches it.
    pub(crate) fn refuse(&mut self, errno: i32) {
        // A request without data is charged as one, however long its range is.
        if !matches!(self.body, Body::Write) {
            self.length = 0;
        }
        (self.body, self.errno) = (Body::Refused, errno);
        (self.offset, self.forced, self.done) = (0, false, 0);
    }

    /// Returns its kind at the gate. A query is charged as a flush. A refused request is charged as a flush, or as a
    /// write of the data that came with it. Otherwise a client that sends nothing else could occupy the device thread.
    pub(crate) fn gate_kind(&self) -> Kind {
        match self.body.kind() {
            Some(kind) => kind,
            None if self.gate_length() > 0 => Kind::Write,
            None => Kind::Flush,
        }
    }

    /// Returns its length at the gate.
    pub(crate) fn gate_length(&self) -> u32 {
        if matches!(self.body, Body::Query(_) | Body::Answered) { 0 } else { self.length }
    }

    /// Returns the memory of `length` bytes after the first `skip`. Several segments are listed in `pieces`. `None` if
    /// there is no memory for the list.
    pub(crate) fn memory(&self, skip: u32, length: u32, pieces: &mut Vec<libc::iovec>) -> Option<Memory> {
        match (&self.data.place, &self.data.guest) {
            (Place::Buffer(buffer), guest) => {
                let at = match guest {
                    _ if self.bridge_len().is_some() => self.step_at() + skip as usize,
                    Some(_) => (skip - self.done) as usize,
                    None => skip as usize,
                };
                Some(Memory::One(buffer.as_ptr().wrapping_add(at)))
            }
            (_, Some(guest)) => {
                let listed = guest.list(skip, length, pieces);
                listed.then(|| match pieces.as_mut_slice() {
                    [only] => Memory::One(only.iov_base.cast()),
                    pieces => Memory::Pieces(pieces.as_mut_ptr(), pieces.len() as u32),
                })
            }
            (_, None) => unreachable!("a transfer has its data in a buffer or in a guest"),
        }
    }
}

/// A query for the allocated parts of a range.
pub(crate) struct Question {
    /// Maximum number of spans in the answer.
    pub(crate) spans_max: usize,
    pub(crate) answer: Vec<Span>,
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

#[cfg(test)]
mod tests {
    use sluice_sched::gate::Outcome;
    use sluice_sched::{Cost, Instant};

    use super::*;

    #[test]
    fn a_long_request_keeps_the_service_of_all_its_parts_and_the_phase_of_the_last_one() {
        let part = |phase, bytes| {
            let service = Service { cost: Cost::ONE, bytes };
            let (token, outcome, dispatched) = (0, Outcome::Done, Instant::ZERO);
            Finished { token, outcome, phase, dispatched, service, reserved: service.if_reserved(phase) }
        };
        let mut served = Served::default();
        served.add(&part(Phase::Reservation, 4096));
        served.add(&part(Phase::Weight, 512));
        assert_eq!(served.phase, Phase::Weight);
        assert_eq!((served.service.bytes, served.service.cost), (4608, Cost::ONE.plus(Cost::ONE)));
        assert_eq!((served.reserved.bytes, served.reserved.cost), (4096, Cost::ONE));
    }
}
