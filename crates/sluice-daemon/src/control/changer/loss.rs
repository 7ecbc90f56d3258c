//! Accepting a loss of writes.

use sluice_api::event::EventKind;

use super::helpers::Purpose;
use super::refused::Refused;
use super::shared::Shared;
use crate::control::audit::Author;
use crate::control::socket::{Manner, Peer};
use crate::control::{Reply, Request, keys, loss};

/// Accepts a loss of writes when the disks have reported all of it.
pub(super) async fn accept(
    shared: &Shared,
    target: &str,
    peer: &Peer,
    manner: &Manner,
) -> Result<Option<Reply>, Refused> {
    let query = loss::loss_query(&shared.in_force.borrow().server, target).map_err(Refused::Reply)?;
    let paths = query.paths();
    shared.helpers.run(Purpose::Change, &paths, move |progress| query.run(progress)).await?;
    let in_force = shared.in_force.borrow();
    let request = Request::AcceptLoss { target: target.to_owned() };
    keys::is_current(&in_force.state, &request, manner).map_err(Refused::Reply)?;
    if manner.is_dry_run {
        return Ok(Some(loss::preview_of_loss(&in_force.server, target)));
    }
    let reply = loss::accept_loss(&in_force.server, target, peer.clone());
    if reply.ok {
        shared.report([Author::of(&request, peer, &in_force.roles).did(EventKind::LossAccepted, target)]);
    }
    Ok(Some(reply))
}
