//! The listeners on new sockets.

use std::collections::BTreeMap;

use sluice_io::endpoint::{Bound, ListenError};
use sluice_io::nbd::listener::{Catalogue, NbdListener};
use sluice_io::vhost_user::listener::VhostListener;

use super::change::Change;
use super::objects::name_of;
use super::socket::{Serves, Socket};
use super::stage::Staged;
use super::{Found, Needs, Reason, Server, ServerError, commit, missing};

/// Starts to accept clients on the new sockets. What has one for which this fails is put out of service, if that is tolerated.
pub(super) fn listen(
    server: &Server,
    change: &Change,
    needs: &Needs,
    found: &mut Found,
    staged: &mut Staged,
) -> Result<(), ServerError> {
    let mut failed = BTreeMap::new();
    for (key, tolerance, socket) in needs.each::<Socket>() {
        let listening = found.take::<Socket>(key).and_then(|bound| {
            let bound = bound.flatten().expect("what is needed was made");
            Ok(accept(server, socket, bound, staged)?)
        });
        match listening {
            Err(error) if tolerance.covers(&error) => {
                drop(failed.insert(socket.endpoint.to_string(), Reason::of(&error)))
            }
            listening => listening?,
        }
    }
    if !failed.is_empty() {
        missing::leave_out_sockets(server, change, &failed, &mut staged.missing);
        commit::lose(&change.host, &mut staged.volumes, &mut staged.missing, |volume| {
            failed.get(&name_of(&volume.export.endpoint)).cloned()
        });
    }
    Ok(())
}

fn accept(server: &Server, socket: &Socket, bound: Bound, staged: &mut Staged) -> Result<(), ListenError> {
    let (name, limit) = (socket.endpoint.to_string(), &server.connection_limit);
    match socket.serves {
        Serves::Nbd => drop(staged.listeners.insert(name, NbdListener::start(bound, Catalogue::default(), limit)?)),
        Serves::Disk => drop(staged.guests.insert(name, VhostListener::start(bound, None, limit)?)),
        Serves::Nic => drop(staged.nics.sockets.insert(name, VhostListener::start(bound, None, limit)?)),
    }
    Ok(())
}
