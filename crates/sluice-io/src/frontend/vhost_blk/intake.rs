//! From the available ring of a guest to arrivals at the gate.

use std::sync::Arc;

use io_uring::{opcode, types};
use sluice_sched::{Instant, Kind};

use crate::backend::disk::{IoRequest, RequestSource, VolumeStore};
use crate::backend::retry::is_put_off;
use crate::backend::tag::{Tag, tag};
use crate::device::event_loop::{Ending, Loop};
use crate::device::requests::ClientId;
use crate::device::slab::{Id, IoId, QueueId, VolumeKey};
use crate::frontend::vhost_blk::request::{self, Asked, ID_LEN, Parsed, Status};
use crate::virtio::chain::{Chain, Piece};
use crate::virtio::{GuestData, VirtQueue};

impl Loop {
    /// The guest has kicked.
    pub(crate) fn kicked(&mut self, now: Instant, index: QueueId, result: i32) {
        let queue = &mut self.queues[index];
        queue.operations -= 1;
        queue.listening = false;
        if queue.is_over() {
            return self.ended_queues.push(index);
        }
        if result < 0 && !is_put_off(result) {
            if queue.takes() && result != -libc::ECANCELED {
                self.break_queue(index, "its kick descriptor cannot be read");
            }
            return;
        }
        self.heat(index);
        self.take_chains(now, index, u32::MAX);
    }

    /// Looks at a queue in every turn from now on.
    pub(crate) fn heat(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        if !queue.polled {
            queue.polled = true;
            queue.disable_notification();
            self.polled.push(index);
        }
    }

    /// Takes what guests have put into the queues that are being looked at; whether there was anything.
    pub(crate) fn poll_queues(&mut self, now: Instant) -> bool {
        let mut found = false;
        for place in 0..self.polled.len() {
            let index = self.polled[place];
            found |=
                self.queues.get_mut(index).is_some_and(VirtQueue::is_ready) && self.take_chains(now, index, u32::MAX);
        }
        found
    }

    /// Asks the guests of all queues to kick; `false`: something has come meanwhile.
    pub(crate) fn rearm_idle_queues(&mut self, now: Instant) -> bool {
        let mut polled = std::mem::take(&mut self.polled);
        let mut all_rest = true;
        polled.retain(|&index| {
            let Some(queue) = self.queues.get_mut(index).filter(|queue| queue.takes()) else {
                if let Some(queue) = self.queues.get_mut(index) {
                    queue.polled = false;
                }
                return false;
            };
            if queue.enable_notification() {
                queue.disable_notification();
                all_rest = false;
                return true;
            }
            queue.polled = false;
            self.listen_to(index);
            false
        });
        self.polled.append(&mut polled);
        if !all_rest {
            self.poll_queues(now);
        }
        all_rest
    }

    /// Reads the next kick.
    pub(crate) fn listen_to(&mut self, index: QueueId) {
        let queue = &mut self.queues[index];
        if queue.listening {
            return;
        }
        let place = (&raw mut *queue.kicks).cast();
        let entry = opcode::Read::new(types::Fd(queue.kick_fd()), place, 8).build();
        // SAFETY: the eight bytes are boxed, and a queue with an operation in the kernel is not removed; its descriptor
        // neither.
        unsafe { self.backend.ring.push(entry.user_data(tag(Tag::Kick, index.index()))) };
        queue.listening = true;
        queue.operations += 1;
    }

    /// Takes up to `budget` requests of a queue, as far as its VM has room; whether there was any. The next turn goes on
    /// behind as many as the queue has entries: a guest may fill it as fast as it is emptied.
    pub(crate) fn take_chains(&mut self, now: Instant, index: QueueId, mut budget: u32) -> bool {
        let mut found = false;
        let mut chain = std::mem::take(&mut self.chain);
        for left in (0..=self.queues[index].size()).rev() {
            if left == 0 {
                self.heat(index);
                break;
            }
            let queue = &mut self.queues[index];
            if !queue.takes() || self.ending != Ending::No {
                break;
            }
            match queue.has_next() {
                Ok(true) => {}
                Ok(false) => {
                    // It was looked at last when it stood in line for room.
                    self.heat(index);
                    break;
                }
                Err(_) => {
                    self.break_queue(index, "its available ring jumped");
                    break;
                }
            }
            found = true;
            let volume = self.sessions[self.queues[index].session].volume;
            if budget == 0 || !self.has_room(volume) {
                self.park_client(volume, ClientId::Queue(index));
                break;
            }
            budget -= 1;
            match self.queues[index].take() {
                Ok(Some(taken)) => self.take_chain(now, index, volume, taken, &mut chain),
                Ok(None) => {}
                Err(_) => self.break_queue(index, "its available ring cannot be read"),
            }
        }
        self.chain = chain;
        found
    }

    fn take_chain(
        &mut self,
        now: Instant,
        index: QueueId,
        volume: VolumeKey,
        (head, place): (u16, Option<u16>),
        chain: &mut Chain,
    ) {
        let queue = &mut self.queues[index];
        let memory = Arc::clone(&queue.memory);
        let export = &self.backend.volumes[volume].export;
        let parsed = chain.follow(&memory, &queue.table, head).and_then(|()| request::parse(chain, export));
        let Parsed { status, asked } = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => return self.break_queue(index, &reason.to_string()),
        };
        let io = IoRequest::of(RequestSource::Virtio { queue: index, head, place, status }, volume);
        match asked {
            Ok(Asked::Device { kind, offset, length, no_hole }) => {
                let held = if matches!(kind, Kind::Read | Kind::Write) { u64::from(length) } else { 0 };
                let forced = kind != Kind::Read && !self.sessions[queue.session].write_back && kind != Kind::Flush;
                let io = IoRequest { kind: Some(kind), offset, length, no_hole, forced, held, ..io };
                let token = self.open_io(io);
                self.attach_data(token, kind, chain, memory);
                match self.backend.ios[token].errno {
                    0 => self.arrive(now, token),
                    _ => self.reply(token),
                }
            }
            Ok(Asked::Id) => {
                let mut id = [0; ID_LEN];
                let name = self.backend.volumes[volume].name.as_bytes();
                let len = name.len().min(ID_LEN);
                id[..len].copy_from_slice(&name[..len]);
                let (guest, errno) = with_errno(GuestData::new(&chain.writable, memory));
                guest.fill(&id);
                let token = self.open_io(IoRequest { length: ID_LEN as u32, guest: Some(guest), errno, ..io });
                self.reply(token);
            }
            Err(status) => {
                let errno = if status == Status::Unsupported { libc::EOPNOTSUPP } else { libc::EIO };
                let token = self.open_io(IoRequest { errno, ..io });
                self.vms[self.backend.volumes[volume].vm].refused += 1;
                self.reply(token);
            }
        }
    }

    /// Where the data of a transfer are: in the guest, and on their way in a buffer of ours if the disk wants them aligned
    /// and they are not; with an error of the request where there is no memory for that. A request without data has its status
    /// byte there, so it too keeps the memory that it came with.
    fn attach_data(&mut self, token: IoId, kind: Kind, chain: &Chain, memory: Arc<crate::vhost_user::memory::Memory>) {
        let pieces: &[Piece] = match kind {
            Kind::Read => &chain.writable,
            Kind::Write => &chain.readable,
            Kind::Flush | Kind::Discard | Kind::WriteZeroes => &[],
        };
        let (guest, errno) = with_errno(GuestData::new(pieces, memory));
        let room = self.room_for(token);
        let io = &mut self.backend.ios[token];
        io.errno = errno;
        if errno == 0
            && let VolumeStore::File { source, .. } = &self.backend.volumes[io.volume].store
            && !source.is_buffered()
            && !guest.is_aligned(source.alignment().memory as usize)
        {
            let length = io.length as usize;
            io.buffer = self.backend.pool.take(length, room);
            match &mut io.buffer {
                Some(buffer) if kind == Kind::Write => guest.copy_to(buffer.bytes_mut(length)),
                Some(_) => {}
                None => io.errno = libc::ENOMEM,
            }
        }
        io.guest = Some(guest);
    }

    /// The ring makes no sense, or a chain of which not even the frame is sound: the queue takes nothing more until it is
    /// started anew. To give such a chain back would not do: its status byte, wherever it is, may say that all went well.
    pub(crate) fn break_queue(&mut self, index: QueueId, reason: &str) {
        self.queues[index].broken = true;
        self.count_fault(index, reason);
        self.signal_error(index);
    }

    fn count_fault(&mut self, index: QueueId, reason: &str) {
        let queue = &self.queues[index];
        let volume = &self.backend.volumes[self.sessions[queue.session].volume];
        let vm = &mut self.vms[volume.vm];
        vm.protocol_errors += 1;
        // A guest that does it on purpose must not fill the log.
        if vm.protocol_errors.is_power_of_two() {
            let times = vm.protocol_errors;
            tracing::warn!(
                vm = vm.name,
                volume = volume.name,
                queue = queue.index,
                reason,
                times,
                "Guest violated the protocol"
            );
        }
    }
}

/// The data of a request, and the error with which it ends where there is no memory to list them.
fn with_errno(data: Result<GuestData, GuestData>) -> (GuestData, i32) {
    match data {
        Ok(data) => (data, 0),
        Err(data) => (data, libc::ENOMEM),
    }
}
