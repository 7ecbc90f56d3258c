//! Taking the lock of an image away from the client that has it.
//!
//! Without an address it only tells who has the lock. With one it takes the lock from that client and no other: the operator has seen whose it is.

use std::time::UNIX_EPOCH;

use sluice_api::change::Takeover;
use sluice_api::event::EventKind;
use sluice_api::object::ObjectId;
use tokio::sync::watch;

use super::change::{Kind, make};
use super::refused::Refused;
use super::shared::Shared;
use crate::control::audit::Author;
use crate::control::socket::Peer;
use crate::control::target::known;
use crate::control::{Code, Reply, Request};
use crate::server::Absence;

/// Answers `takeover`.
pub(super) async fn take_over(
    shared: &Shared,
    (target, from): (&str, Option<&str>),
    peer: &Peer,
    later: &mut watch::Receiver<()>,
) -> Result<Option<Reply>, Refused> {
    let (name, owner) = owner(shared, target).map_err(Refused::Reply)?;
    let Some(from) = from else { return Ok(Some(Reply::with(&owner))) };
    if from != owner.address {
        let error = format!("The lock of {target} is not that of {from}, but of {}", owner.address);
        return Err(Refused::Reply(Reply::failed(Code::Refused, error)));
    }
    shared.in_force.borrow().server.grant_lock(&name, Some(from));
    let made = make(shared, &Kind::Retry(name.clone()), later).await;
    // What was refused now must not be done by a retry later.
    shared.in_force.borrow().server.grant_lock(&name, None);
    made?;
    let in_force = shared.in_force.borrow();
    if let Some(reason) = in_force.server.absent().get(&name).map(Absence::reason) {
        return Ok(Some(Reply::failed(Code::Refused, format!("{target} stays out of service: {reason}"))));
    }
    let request = Request::Takeover { target: target.to_owned(), from: Some(from.to_owned()) };
    shared.report([Author::of(&request, peer, &in_force.roles).did(EventKind::TakenOver, target)]);
    tracing::warn!(who = %peer, target, from, "The lock of an image was taken over: its owner is locked out of the cluster");
    Ok(Some(Reply::with(&Takeover { taken: true, ..owner })))
}

/// Returns the volume, and who has its lock.
fn owner(shared: &Shared, target: &str) -> Result<(ObjectId, Takeover), Reply> {
    let server = &shared.in_force.borrow().server;
    let known = known(server, target)?;
    let Some(volume) = &known.volume else {
        return Err(Reply::failed(
            Code::Invalid,
            format!("{target} is a VM: write VM/VOLUME, for example {target}/root"),
        ));
    };
    let name = ObjectId::volume(&known.vm, volume);
    let Some(owner) = server.lock_owner(&name) else {
        let error = format!("No other client keeps {target} out of service by the lock of its image");
        return Err(Reply::failed(Code::Refused, error));
    };
    let (host, since) = owner.host.unzip();
    let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs());
    Ok((name, Takeover { target: target.to_owned(), address: owner.address, host, since, taken: false }))
}
