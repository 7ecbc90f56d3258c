//! Turns a request into a change of the host file, which is checked as a whole and applied like a reload, all or
//! nothing.

use std::sync::Arc;

use serde_json::{Value, json};
use sluice_config::changes::{Changes, Target};
use sluice_config::{Files, Host, Vm, Volume};
use sluice_sched::Bytes;

use super::{Code, Reply, Request};
use crate::failure::chain;
use crate::server::{Extra, LossQuery, Server, ServerError, VolumeName};

/// The configuration in force: the files as they were loaded, and the changes since.
pub(crate) struct State {
    pub(crate) files: Files,
    pub(crate) changes: Changes,
}

/// A proposed host file.
pub(crate) struct Proposal {
    pub(crate) host: Arc<Host>,
    /// A further action of the change.
    pub(crate) extra: Extra,
    /// For a request: its target, the target's previous state, and all changes including this one.
    asked: Option<(Target, Value, Changes)>,
}

impl Proposal {
    /// Proposes a host file without a request of the control socket.
    pub(crate) fn of(host: Arc<Host>) -> Proposal {
        Proposal { host, extra: Extra::Nothing, asked: None }
    }

    /// Proposes the host file in force, with another attempt to open a volume that is out of service.
    pub(crate) fn retry(host: Arc<Host>, volume: VolumeName) -> Proposal {
        Proposal { host, extra: Extra::Retry(volume), asked: None }
    }
}

/// Returns the proposal of a request, on top of the configuration in force.
pub(crate) fn propose(server: &Server, state: &State, request: &Request) -> Result<Proposal, Reply> {
    let mut changes = state.changes.clone();
    let mut extra = Extra::Nothing;
    let target = match request.clone() {
        Request::AcceptLoss { .. } => unreachable!("no part of the host file changes"),
        Request::Attach { target, keys, vm } => attach(server, &mut changes, &target, keys, vm)?,
        Request::Detach { target } => {
            let target = known(server, &target)?;
            changes.remove(target.clone());
            target
        }
        Request::Set { target, keys } => {
            let target = known(server, &target)?;
            changes.set(target.clone(), keys);
            target
        }
        Request::Resize { target, size } => {
            let target = known(server, &target)?;
            let Some(volume) = target.volume.clone() else {
                let names: Vec<&str> = server.host().vms[&target.vm].volumes.keys().map(String::as_str).collect();
                let error = format!("{target} is a VM; name one of its volumes: {}", names.join(", "));
                return Err(Reply::failed(Code::Invalid, error));
            };
            size.parse::<Bytes>().map_err(|error| Reply::failed(Code::Invalid, format!("size: {error}")))?;
            changes.set(target.clone(), toml::Table::from_iter([("size".to_owned(), size.into())]));
            extra = Extra::Grow((target.vm.clone(), volume));
            target
        }
    };
    let host = state.files.changed(&changes).map_err(|found| Reply::failed(Code::Invalid, found.to_string()))?;
    let before = describe(server, &target);
    let host = Arc::new(host);
    Ok(Proposal { host, extra, asked: Some((target, before, changes)) })
}

/// Records that the proposal of a request is in force, except on devices that are `unapplied`. Returns the reply to
/// the request.
pub(crate) fn accept(server: &Server, state: &mut State, proposal: Proposal, unapplied: &[ServerError]) -> Reply {
    let (target, before, changes) = proposal.asked.expect("only a request is answered");
    state.changes = changes;
    let after = describe(server, &target);
    if !unapplied.is_empty() {
        let errors: Vec<_> = unapplied.iter().map(ToString::to_string).collect();
        let (code, error) = (Some(Code::Incomplete), Some(errors.join("; ")));
        return Reply { ok: false, code, error, before, after };
    }
    tracing::info!(target = %target, "Changed at run time");
    Reply { ok: true, code: None, error: None, before, after }
}

/// Returns the files that must be queried before the loss of a VM or volume is accepted.
pub(crate) fn loss_query(server: &Server, target: &str) -> Result<LossQuery, Reply> {
    known(server, target).map(|target| server.loss_query(&target))
}

/// Accepts the loss, after all files have been queried. The VM or volume may have been removed since.
pub(crate) fn accept_loss(server: &Server, target: &str) -> Reply {
    let target = match known(server, target) {
        Ok(target) => target,
        Err(reply) => return reply,
    };
    let before = describe(server, &target);
    match server.accept_loss(&target) {
        Ok(true) => {
            tracing::warn!(target = %target, "Loss accepted: writes and flushes resume");
            Reply { ok: true, code: None, error: None, before, after: describe(server, &target) }
        }
        Ok(false) => {
            let error = format!("No loss to accept: no sync of {target} has failed");
            Reply::failed(Code::Refused, error)
        }
        Err(error) => Reply::failed(Code::Refused, chain(&error)),
    }
}

fn attach(
    server: &Server,
    changes: &mut Changes,
    target: &str,
    keys: toml::Table,
    vm: toml::Table,
) -> Result<Target, Reply> {
    let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let known = server.host().vms.get(&target.vm);
    let Some(volume) = &target.volume else {
        return Err(Reply::failed(
            Code::Invalid,
            format!("'{target}' is a VM; write VM/VOLUME, for example {target}/data"),
        ));
    };
    if known.is_some_and(|vm| vm.volumes.contains_key(volume)) {
        return Err(Reply::failed(Code::Exists, format!("{target} exists already; detach it first")));
    }
    if known.is_some() && !vm.is_empty() {
        let error = format!("VM {} exists already; change it with set, not with vm.KEY", target.vm);
        return Err(Reply::failed(Code::Exists, error));
    }
    if known.is_none() {
        changes.set(Target { vm: target.vm.clone(), volume: None }, vm);
    }
    changes.set(target.clone(), keys);
    Ok(target)
}

fn known(server: &Server, target: &str) -> Result<Target, Reply> {
    let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let vms = &server.host().vms;
    let Some(vm) = vms.get(&target.vm) else {
        let names: Vec<&str> = vms.keys().take(10).map(String::as_str).collect();
        let are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let error = format!("There is no VM {}; there are {are}", target.vm);
        return Err(Reply::failed(Code::NotFound, error));
    };
    match &target.volume {
        Some(volume) if !vm.volumes.contains_key(volume) => {
            let names: Vec<&str> = vm.volumes.keys().map(String::as_str).collect();
            let has = if names.is_empty() { "no other".to_owned() } else { names.join(", ") };
            let error = format!("VM {} has no volume {volume}; it has {has}", target.vm);
            Err(Reply::failed(Code::NotFound, error))
        }
        _ => Ok(target),
    }
}

/// Describes a VM or a volume; null if it does not exist.
fn describe(server: &Server, target: &Target) -> Value {
    let Some(vm) = server.host().vms.get(&target.vm) else { return Value::Null };
    let loss = |volume: &Volume| server.loss(&target.vm, &volume.name);
    match &target.volume {
        None => describe_vm(vm, loss),
        Some(volume) => vm.volumes.get(volume).map_or(Value::Null, |volume| describe_volume(volume, loss(volume))),
    }
}

fn describe_vm(vm: &Vm, loss: impl Fn(&Volume) -> Option<&'static str>) -> Value {
    let volumes: Vec<&String> = vm.volumes.keys().collect();
    let lost = vm.volumes.values().filter(|volume| loss(volume).is_some()).map(|volume| &volume.name);
    json!({ "policy": describe_policy(&vm.policy), "volumes": volumes, "writes_fail": lost.collect::<Vec<_>>() })
}

fn describe_volume(volume: &Volume, loss: Option<&str>) -> Value {
    json!({
        "device": volume.device,
        "source": volume.source,
        "size_bytes": volume.size,
        "writes_fail": loss.map(|reason| format!("yes: {reason}")),
        "policy": describe_policy(&volume.policy),
    })
}

fn describe_policy(policy: &sluice_sched::Policy) -> Value {
    json!({
        "reservation_iops": policy.reservation.iops.map(sluice_sched::Iops::as_f64),
        "reservation_bytes_per_second": policy.reservation.bytes.map(sluice_sched::ByteRate::bytes_per_second),
        "limit_iops": policy.limit.iops.map(sluice_sched::Iops::as_f64),
        "limit_bytes_per_second": policy.limit.bytes.map(sluice_sched::ByteRate::bytes_per_second),
        "weight": policy.weight.map(sluice_sched::Weight::as_f64),
        "burst": policy.burst,
        "idle_credit": policy.idle_credit,
        "latency_p99_us": policy.latency.map(|target| target.p99.as_secs_f64() * 1e6),
        "latency_reads_only": policy.latency.map(|target| target.reads_only),
        "class": policy.class,
        "priority_class": policy.priority_class,
        "priority_level": policy.priority_level,
    })
}
