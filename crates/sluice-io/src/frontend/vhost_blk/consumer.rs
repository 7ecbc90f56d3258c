//! Turns descriptor chains of guests into requests for the gate.

use std::rc::Rc;

use sluice_sched::{Instant, Kind};

use crate::backend::client_faults::{QUEUE_STOPPED, StoppedQueue};
use crate::backend::request::{Body, Occupied, Opening};
use crate::backend::ring::Ring;
use crate::cpu;
use crate::device::core::{Core, DataIn};
use crate::frontend::vhost_blk::request::{self, ID_LEN, Parsed, ParsedRequest, Refusal, Status};
use crate::reactor::base::Ending;
use crate::slab::{ClientRef, FrontendNumber, Slab, VolumeKey};
use crate::virtio::GuestData;
use crate::virtio::chain::{Chain, Malformed};
use crate::virtio::queue::SessionId;
use crate::virtio::queue::{Taken, VirtQueue};
use crate::virtio::queue_set::{Consumer, QueueId};
use crate::virtio::segment::Segment;
use crate::virtio::sessions::Session;

/// Takes requests for the volumes of sessions.
pub(crate) struct Blk<'a> {
    pub(crate) number: FrontendNumber,
    pub(crate) core: &'a mut Core,
    pub(crate) sessions: &'a Slab<SessionId, Session<VolumeKey>>,
}

impl Consumer for Blk<'_> {
    fn ring(&mut self) -> &mut Ring {
        &mut self.core.backend.ring
    }

    fn is_open(&self) -> bool {
        self.core.base.ending == Ending::No
    }

    fn has_room(&self, queue: &VirtQueue) -> bool {
        self.core.has_room(self.volume(queue), DataIn::Guest)
    }

    fn is_held(&self, queue: &VirtQueue) -> bool {
        self.core.is_held(self.volume(queue))
    }

    fn polls_always(&self) -> bool {
        self.core.busy_poll
    }

    fn park(&mut self, id: QueueId, queue: &VirtQueue) {
        self.core.park(self.volume(queue), ClientRef::new(self.number, id), DataIn::Guest);
    }

    fn take(
        &mut self,
        now: Instant,
        id: QueueId,
        queue: &mut VirtQueue,
        taken: Taken,
        chain: &mut Chain,
    ) -> Result<u64, Malformed> {
        let session = &self.sessions[queue.session];
        let volume = session.target;
        let memory = Rc::clone(&queue.memory);
        chain.follow(&memory, queue.descriptors(), taken.head)?;
        let Parsed { status, request } = request::parse(chain, &self.core.backend.volumes[volume].info)?;
        let (body, offset, length, errno) = match request {
            Ok(ParsedRequest::Device { kind, offset, length, no_hole }) => (body_of(kind, no_hole), offset, length, 0),
            Ok(ParsedRequest::Id) => (Body::Answered, 0, ID_LEN as u32, 0),
            Err(Refusal { status: Status::Unsupported, .. }) => (Body::Refused, 0, 0, libc::EOPNOTSUPP),
            Err(_) => (Body::Refused, 0, 0, libc::EIO),
        };
        let changes = matches!(body, Body::Write | Body::Discard | Body::Zero { .. });
        let window = if matches!(body, Body::Read | Body::Write) { self.core.held_by(volume, length) } else { 0 };
        let segments: &[Segment] = match request {
            Ok(ParsedRequest::Device { kind: Kind::Read, .. } | ParsedRequest::Id) => &chain.writable,
            Ok(ParsedRequest::Device { kind: Kind::Write, .. }) => &chain.readable,
            Ok(ParsedRequest::Device { kind: Kind::Flush | Kind::Discard | Kind::WriteZeroes, .. }) | Err(_) => &[],
        };
        // A request without data keeps its memory table too, because its status byte is in it.
        let guest = GuestData::new(segments, status, memory);
        let has_memory = guest.is_ok();
        let guest = guest.unwrap_or_else(|without_data| without_data);
        if request == Ok(ParsedRequest::Id) {
            guest.fill(0, &id_of(&self.core.backend.volumes[volume].info.serial));
        }
        let refusal =
            request.err().map(|refusal| refusal.reason).or((!has_memory).then_some("the daemon has too little memory"));
        if let Some(reason) = refusal {
            self.core.count_refused(volume, reason);
        }
        let opening = Opening {
            client: ClientRef::new(self.number, id),
            cookie: taken.pack(),
            volume,
            occupies: Occupied { window, memory: 0 },
        };
        let forced = changes && !session.driver.write_back;
        let (id, io) = self.core.open(&mut queue.outstanding.requests, &opening);
        io.ask(body, offset, length, forced);
        (io.errno, io.data.guest) = (errno, Some(guest));
        match has_memory {
            true => self.core.arrive(now, id),
            false => self.core.refuse(now, id, libc::ENOMEM),
        }
        Ok(window)
    }

    fn kicked(&mut self, queue: &VirtQueue) -> bool {
        self.core.count_event(self.volume(queue), cpu::KICK)
    }

    fn kicked_in_vain(&mut self) {
        self.core.base.cpu.note_in_vain();
    }

    fn broken(&mut self, queue: &VirtQueue, reason: &'static str) -> StoppedQueue {
        let volume = self.volume(queue);
        let times = self.core.count_protocol_error(volume);
        let volume = &self.core.backend.volumes[volume];
        // A guest that does this repeatedly must not fill the log.
        if times.is_power_of_two() {
            tracing::warn!(
                vm = volume.vm_name,
                volume = volume.name,
                queue = queue.index,
                reason,
                times,
                "{QUEUE_STOPPED}"
            );
        }
        volume.faults.stop_queue(reason)
    }
}

impl Blk<'_> {
    fn volume(&self, queue: &VirtQueue) -> VolumeKey {
        self.sessions[queue.session].target
    }
}

fn body_of(kind: Kind, no_hole: bool) -> Body {
    match kind {
        Kind::Read => Body::Read,
        Kind::Write => Body::Write,
        Kind::Flush => Body::Flush,
        Kind::Discard => Body::Discard,
        Kind::WriteZeroes => Body::Zero { no_hole, fast: false },
    }
}

/// Returns the reply to GET_ID: the serial number, cut off or padded with zeroes.
fn id_of(serial: &str) -> [u8; ID_LEN] {
    let mut id = [0; ID_LEN];
    let len = serial.len().min(ID_LEN);
    id[..len].copy_from_slice(&serial.as_bytes()[..len]);
    id
}
