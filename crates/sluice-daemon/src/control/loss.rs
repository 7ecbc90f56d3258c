//! Writes that a failed sync may have lost, and their acceptance.

use sluice_api::change::{Effect, Preview, Settings};
use sluice_config::changes::Target;

use super::describe::{describe, difference};
use super::socket::Peer;
use super::target::known;
use super::{Code, Reply};
use crate::failure::chain;
use crate::server::{LossQuery, Server};

/// Returns the files that must be queried before the loss of a VM or volume is accepted.
pub(super) fn loss_query(server: &Server, target: &str) -> Result<LossQuery, Reply> {
    known(server, target).map(|target| server.loss_query(&target))
}

/// Accepts the loss, after all files have been queried. The VM or volume may have been removed since.
pub(super) fn accept_loss(server: &Server, target: &str, who: Peer) -> Reply {
    let target = match known(server, target) {
        Ok(target) => target,
        Err(reply) => return reply,
    };
    let before = describe(server, &target);
    match server.accept_loss(&target) {
        Ok(true) => {
            let after = describe(server, &target);
            let (old, new) = difference(before.as_ref(), after.as_ref());
            tracing::warn!(%who, what = %format_args!("accept-loss {target}"), before = old, after = new, "Loss accepted: writes and flushes resume");
            Reply::changed(before, after)
        }
        Ok(false) => nothing_lost(&target.to_string()),
        Err(error) => Reply::failed(Code::Refused, chain(&error)),
    }
}

/// Returns what it would change to accept the loss.
pub(super) fn preview_of_loss(server: &Server, target: &str) -> Reply {
    let fails = |target: Target| match describe(server, &target) {
        Some(Settings::Vm(vm)) => vm.writes_fail.iter().map(|volume| format!("{}/{volume}", target.vm)).collect(),
        Some(Settings::Volume(volume)) if volume.writes_fail.is_some() => vec![target.to_string()],
        _ => Vec::new(),
    };
    let volumes = match known(server, target) {
        Ok(target) => fails(target),
        Err(reply) => return reply,
    };
    if volumes.is_empty() {
        return nothing_lost(target);
    }
    let [key, before, after, effect] =
        ["writes", "fail", "are taken", "its writes and flushes resume, and what was lost stays lost"];
    let of = |name| {
        let [key, before, after, effect] = [key, before, after, effect].map(str::to_owned);
        Effect { name, key, before, after, effect }
    };
    Reply::with(&Preview { changes: volumes.into_iter().map(of).collect(), ..Preview::default() })
}

fn nothing_lost(target: &str) -> Reply {
    Reply::failed(
        Code::Refused,
        format!("No loss to accept: no sync of {target} has failed, so nothing needs to be done"),
    )
}
