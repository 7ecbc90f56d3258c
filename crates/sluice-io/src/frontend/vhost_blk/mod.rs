//! The vhost-user-blk frontend of a device thread: virtio block devices of guests.
//!
//! ```text
//!     kick --> [queue set] --chain--> [consumer] --Arrival--> Gate --Submission--> backend --op--> ring
//!                 ^ available ring                                                                  |
//!     interrupt <-- [queue set] <------ [replies] <------ completed request <---- op completed <----'
//!                        | used ring, in-flight log
//! ```
//!
//! Requests above a VM's window stay in its available ring, and queued requests return there when the queue stops
//! ([rewind]). Guest memory is read once. An invalid request fails; an invalid ring breaks the queue. Both are counted
//! for the VM.

mod consumer;
mod device_session;
mod replies;
mod request;
mod rewind;

use sluice_sched::Instant;

use crate::budget::Budget;
use crate::device::core::Core;
use crate::frontend::Frontend;
use crate::intake::Intake;
use crate::reactor::spec::ClientSnapshot;
use crate::slab::{ClientRef, FrontendNumber, IoId, Slab, VolumeKey};
use crate::vhost_user::message::SessionMessage;
use crate::virtio::queue::{SessionId, VirtQueue};
use crate::virtio::queue_set::{QueueId, QueueSet};
use crate::virtio::sessions::{Session, VirtioDevices as _};
use consumer::Blk;

/// The VMMs of a device thread.
pub(crate) struct VhostBlk {
    number: FrontendNumber,
    sessions: Slab<SessionId, Session<VolumeKey>>,
    queues: QueueSet,
}

impl Frontend for VhostBlk {
    type Command = SessionMessage;

    fn new(number: FrontendNumber) -> Self {
        VhostBlk { number, sessions: Slab::default(), queues: QueueSet::new(number) }
    }

    fn command(&mut self, core: &mut Core, now: Instant, message: SessionMessage) {
        self.message(core, now, message);
    }

    fn event(&mut self, core: &mut Core, now: Instant, operation: u8, index: u32, result: i32) {
        let (queues, mut consumer) = self.parts(core);
        queues.event(&mut consumer, now, (operation, index), result);
    }

    fn serve(&mut self, core: &mut Core, now: Instant, client: ClientRef, budget: Budget) {
        let id: QueueId = client.id();
        if let Some(queue) = self.queues.get_mut(id) {
            queue.intake = Intake::Open;
            let (queues, mut consumer) = self.parts(core);
            queues.take_chains(&mut consumer, now, id, budget);
        }
    }

    fn complete(&mut self, core: &mut Core, now: Instant, io: IoId) {
        self.reply(core, now, io);
    }

    fn takes_back(&mut self, core: &mut Core, now: Instant, io: IoId) -> bool {
        self.put_back_rest(core, now, io)
    }

    fn poll(&mut self, core: &mut Core, now: Instant) -> bool {
        let (queues, mut consumer) = self.parts(core);
        queues.poll(&mut consumer, now)
    }

    fn delivered(&mut self) {
        self.queues.publish();
    }

    fn end_of_iteration(&mut self, core: &mut Core, _now: Instant) {
        self.queues.signal_guests(&mut core.backend.ring);
        self.remove_ended_queues(core);
    }

    fn stop_polling(&mut self, core: &mut Core, now: Instant) -> bool {
        let (queues, mut consumer) = self.parts(core);
        queues.stop_polling(&mut consumer, now)
    }

    fn admit(&mut self, _core: &mut Core, _now: Instant, volume: VolumeKey) {
        self.sessions_of(volume).into_iter().for_each(|session| self.admit_queues(session));
    }

    fn close(&mut self, core: &mut Core, now: Instant, volume: VolumeKey) {
        self.sessions_of(volume).into_iter().for_each(|session| self.close_session(core, now, session, None));
    }

    fn drain(&mut self, _core: &mut Core) {}

    fn is_drained(&self) -> bool {
        self.queues.is_drained()
    }

    fn shut_down(&mut self, core: &mut Core) {
        self.queues.shut_down(&mut core.backend.ring);
    }

    fn clients(&self) -> usize {
        self.sessions.len()
    }

    fn list(&self, core: &Core, clients: &mut Vec<ClientSnapshot>) {
        let snapshot = |session: &Session<VolumeKey>| {
            let (vm, volume) = core.names_of(session.target);
            let outstanding = self.queues_of(session).map(|queue| queue.outstanding.requests.len()).sum();
            let (peer, queues) = (session.peer.clone(), Some(self.queues_of(session).count() as u32));
            ClientSnapshot { vm, volume, protocol: "vhost-user-blk", peer, queues, outstanding }
        };
        let open = self.sessions.iter().filter(|(_, session)| session.is_open());
        clients.extend(open.map(|(_, session)| snapshot(session)));
    }
}

impl VhostBlk {
    fn queues_of(&self, session: &Session<VolumeKey>) -> impl Iterator<Item = &VirtQueue> {
        session.queues.iter().filter_map(|(_, id)| self.queues.get(*id))
    }

    /// Returns the queues, and the consumer of their requests.
    fn parts<'a>(&'a mut self, core: &'a mut Core) -> (&'a mut QueueSet, Blk<'a>) {
        (&mut self.queues, Blk { number: self.number, core, sessions: &self.sessions })
    }

    fn sessions_of(&self, volume: VolumeKey) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, session)| session.target == volume).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests;
