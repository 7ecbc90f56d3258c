//! From a descriptor chain of a guest to an arrival at the gate.

use std::sync::Arc;

use sluice_sched::{Instant, Kind};

use crate::backend::request::IoRequest;
use crate::backend::ring::Ring;
use crate::backend::volume::VolumeStore;
use crate::device::core::{Core, Ending};
use crate::frontend::vhost_blk::request::{self, Asked, ID_LEN, Parsed, Status};
use crate::frontend::vhost_blk::session::SessionState;
use crate::slab::{ClientRef, FrontendNumber, IoId, Slab, VolumeKey};
use crate::vhost_user::device_session::SessionId;
use crate::vhost_user::memory::Memory;
use crate::virtio::GuestData;
use crate::virtio::chain::{Chain, Malformed, Piece};
use crate::virtio::queue::{Taken, VirtQueue};
use crate::virtio::queue_set::{Consumer, QueueId};

/// Takes requests for the volumes of sessions.
pub(crate) struct Blk<'a> {
    pub(crate) number: FrontendNumber,
    pub(crate) core: &'a mut Core,
    pub(crate) sessions: &'a Slab<SessionId, SessionState>,
}

impl Consumer for Blk<'_> {
    fn ring(&mut self) -> &mut Ring {
        &mut self.core.backend.ring
    }

    fn is_open(&self) -> bool {
        self.core.ending == Ending::No
    }

    fn has_room(&self, queue: &VirtQueue) -> bool {
        self.core.has_room(self.volume(queue))
    }

    fn park(&mut self, id: QueueId, queue: &VirtQueue) {
        self.core.park(self.volume(queue), ClientRef::new(self.number, id));
    }

    fn take(
        &mut self,
        now: Instant,
        id: QueueId,
        queue: &mut VirtQueue,
        taken: Taken,
        chain: &mut Chain,
    ) -> Result<(), Malformed> {
        let session = &self.sessions[queue.session];
        let volume = session.volume;
        let memory = Arc::clone(&queue.memory);
        chain.follow(&memory, &queue.table, taken.head)?;
        let Parsed { status, asked } = request::parse(chain, &self.core.backend.volumes[volume].export)?;
        let io = IoRequest::of(ClientRef::new(self.number, id), taken.pack(), volume);
        match asked {
            Ok(Asked::Device { kind, offset, length, no_hole }) => {
                let held = if matches!(kind, Kind::Read | Kind::Write) { u64::from(length) } else { 0 };
                let forced = kind != Kind::Read && !session.write_back && kind != Kind::Flush;
                let io = IoRequest { kind: Some(kind), offset, length, no_hole, forced, held, ..io };
                let io = self.core.open(&mut queue.requests, io);
                self.attach_data(io, kind, chain, status, memory);
                match self.core.backend.ios[io].errno {
                    0 => self.core.arrive(now, io),
                    _ => self.core.complete(io),
                }
            }
            Ok(Asked::Id) => {
                let mut id = [0; ID_LEN];
                let name = self.core.backend.volumes[volume].name.as_bytes();
                let len = name.len().min(ID_LEN);
                id[..len].copy_from_slice(&name[..len]);
                let (guest, errno) = with_errno(GuestData::new(&chain.writable, status, memory));
                guest.fill(&id);
                let io = IoRequest { length: ID_LEN as u32, guest: Some(guest), errno, ..io };
                let io = self.core.open(&mut queue.requests, io);
                self.core.complete(io);
            }
            Err(refusal) => {
                let errno = if refusal == Status::Unsupported { libc::EOPNOTSUPP } else { libc::EIO };
                let (guest, _) = with_errno(GuestData::new(&[], status, memory));
                let io = IoRequest { errno, guest: Some(guest), ..io };
                let io = self.core.open(&mut queue.requests, io);
                self.core.count_refused(volume);
                self.core.complete(io);
            }
        }
        Ok(())
    }

    fn broken(&mut self, queue: &VirtQueue, reason: &str) {
        let volume = self.volume(queue);
        let times = self.core.count_protocol_error(volume);
        let volume = &self.core.backend.volumes[volume];
        // A guest that does it on purpose must not fill the log.
        if times.is_power_of_two() {
            tracing::warn!(
                vm = volume.vm_name,
                volume = volume.name,
                queue = queue.index,
                reason,
                times,
                "Guest violated the protocol"
            );
        }
    }
}

impl Blk<'_> {
    fn volume(&self, queue: &VirtQueue) -> VolumeKey {
        self.sessions[queue.session].volume
    }

    /// Sets where the data of a transfer are: in the guest, and a copy in a buffer of ours if the disk wants them aligned and
    /// they are not. Where there is no memory for that, the request has an error. A request without data keeps the memory
    /// table that it came with too, because its status byte lies there.
    fn attach_data(&mut self, id: IoId, kind: Kind, chain: &Chain, status: *mut u8, memory: Arc<Memory>) {
        let pieces: &[Piece] = match kind {
            Kind::Read => &chain.writable,
            Kind::Write => &chain.readable,
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => &[],
        };
        let (guest, errno) = with_errno(GuestData::new(pieces, status, memory));
        let room = self.core.room_for(id);
        let backend = &mut self.core.backend;
        let io = &mut backend.ios[id];
        io.errno = errno;
        if errno == 0
            && let VolumeStore::File { source, .. } = &backend.volumes[io.volume].store
            && !source.is_buffered()
            && !guest.is_aligned(source.alignment().memory as usize)
        {
            let length = io.length as usize;
            io.buffer = backend.pool.take(length, room);
            match &mut io.buffer {
                Some(buffer) if kind == Kind::Write => guest.copy_to(buffer.bytes_mut(length)),
                Some(_) => {}
                None => io.errno = libc::ENOMEM,
            }
        }
        io.guest = Some(guest);
    }
}

/// The data of a request, and the error with which it ends where there is no memory to list them.
fn with_errno(data: Result<GuestData, GuestData>) -> (GuestData, i32) {
    match data {
        Ok(data) => (data, 0),
        Err(data) => (data, libc::ENOMEM),
    }
}
