//! Ends connections of a volume whose clients have gone, before another client of the volume is served.
//!
//! A client that was killed may have left writes in its socket. The thread that has its connection may find them later than the first
//! write of the client that was started in its place, because it had no CPU, or because another thread of the device has the new client.
//! An old write would overwrite a newer one. So a client is not read until all threads have looked at those that they have of the same
//! volume. What a client without `NBD_CMD_DISC` has left is dropped.
//!
//! Each thread gets the connections of a volume in the order in which they came, and its order to look after those that came before. It
//! looks at the end of an iteration, when it has handled what its ring has received. Where a receive has all that a client has left, but
//! has not ended yet, it looks again in the next iteration.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::core::Core;
use crate::device::mailbox::Mailbox;
use crate::device::message::Message;
use crate::device::vm::Intake;
use crate::frontend::Command;
use crate::frontend::nbd::connection::Phase;
use crate::frontend::nbd::{Arrived, Nbd, NbdCommand};
use crate::slab::VolumeKey;
use crate::vhost_user::socket::hung_up;
use crate::volume::VolumeGeneration;

/// The threads that have not looked yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Awaited(Arc<AtomicUsize>);

impl Awaited {
    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// Tells one thread to look. The thread of the new client hears when the last one is dropped, also if a thread has failed.
pub(crate) struct Look {
    vm: String,
    volume: String,
    generation: VolumeGeneration,
    awaited: Awaited,
    asks: Mailbox,
}

impl Look {
    /// Returns the orders for all `threads`, on behalf of a client of the one with this mailbox.
    pub(crate) fn of(arrived: &Arrived, asks: &Mailbox, threads: usize) -> (Awaited, Vec<Look>) {
        let awaited = Awaited(Arc::new(AtomicUsize::new(threads)));
        let look = |_| Look {
            vm: arrived.vm.clone(),
            volume: arrived.volume.clone(),
            generation: arrived.generation,
            awaited: awaited.clone(),
            asks: asks.clone(),
        };
        let looks = (0..threads).map(look).collect();
        (awaited, looks)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if self.awaited.0.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = self.asks.send(Message::Frontend(Command::Nbd(NbdCommand::Looked)));
        }
    }
}

impl Nbd {
    /// Looks as ordered in this iteration.
    pub(super) fn look(&mut self, core: &mut Core) {
        for look in std::mem::take(&mut self.looks) {
            if let Some(volume) = core.find_generation(&look.vm, &look.volume, look.generation)
                && !self.disconnect_gone(core, volume)
            {
                self.looks.push(look);
            }
        }
    }

    /// Disconnects the clients of a volume that have gone. One that has said so before is served to its end. Returns `false` if a
    /// receive of one that has gone has not ended.
    fn disconnect_gone(&mut self, core: &mut Core, volume: VolumeKey) -> bool {
        let mut all_ended = true;
        for id in self.clients_of(volume) {
            let connection = &self.connections[id];
            if connection.phase != Phase::Open || !hung_up(connection.socket.as_fd()) {
                continue;
            }
            if connection.is_heard_out() {
                all_ended = false;
            } else if !connection.has_said_so() {
                self.disconnect(core, id);
            }
        }
        all_ended
    }

    /// Serves clients at whose volumes all threads have looked.
    pub(super) fn looked(&mut self, core: &mut Core) {
        let waits = self.connections.iter().filter(|(_, known)| known.intake == Intake::WaitsForLook);
        let ready: Vec<_> = waits.filter(|(_, known)| known.awaited.is_over()).map(|(id, _)| id).collect();
        for id in ready {
            let connection = &mut self.connections[id];
            connection.intake = Intake::of_new(!core.backend.volumes[connection.volume].has_abandoned());
            self.receive(core, id);
        }
    }
}
