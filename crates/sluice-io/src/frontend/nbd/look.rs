//! Ends connections of a volume whose clients have gone, before another client of the volume is served.
//!
//! A client that was killed may have left writes in its socket. The thread may find them later than the first write of the client that
//! was started in its place, and an old write would overwrite a newer one. So a new client is not read until the loop has looked at the
//! others of its volume. What a client without `NBD_CMD_DISC` has left is dropped.
//!
//! The loop looks at the end of an iteration, when it has handled what its ring has received. Where a receive has all that a client has
//! left, but has not ended yet, it looks again in the next iteration.

use std::os::fd::AsFd as _;

use crate::device::core::Core;
use crate::frontend::nbd::Nbd;
use crate::frontend::nbd::connection::{For, Life};
use crate::slab::VolumeKey;
use crate::vhost_user::socket::hung_up;

impl Nbd {
    /// Looks at the volumes of new clients, and serves those at whose volumes nothing is left of others.
    pub(super) fn look(&mut self, core: &mut Core) {
        for id in std::mem::take(&mut self.new) {
            let Some(volume) = self.connections.get(id).map(|connection| connection.volume) else { continue };
            if !self.disconnect_gone(core, volume) {
                self.new.push(id);
                continue;
            }
            let connection = &mut self.connections[id];
            if connection.life() == Life::Waits(For::Look) {
                let has_predecessor = core.backend.volumes[volume].has_abandoned();
                connection.step(if has_predecessor { Life::Waits(For::Predecessor) } else { Life::Serving });
                self.receive(core, id);
            }
        }
    }

    /// Disconnects the clients of a volume that have gone. One whose last request was to disconnect is served to its end. Returns `false` if a
    /// receive of one that has gone has not ended.
    fn disconnect_gone(&mut self, core: &mut Core, volume: VolumeKey) -> bool {
        let mut all_ended = true;
        for id in self.clients_of(volume) {
            let connection = &self.connections[id];
            if !connection.is_open() || !hung_up(connection.socket.as_fd()) {
                continue;
            }
            if connection.has_received_all() {
                all_ended = false;
            } else if !connection.ended_with_disconnect() {
                self.disconnect(core, id);
            }
        }
        all_ended
    }
}
