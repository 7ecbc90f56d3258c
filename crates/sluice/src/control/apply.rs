//! A request becomes a change of the host file, checked with all of it, and applied like a reload: all or nothing.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_config::changes::{Changes, Target};
use sluice_config::{Files, Host, Vm, Volume};
use sluice_sched::Bytes;
use tokio::sync::oneshot;

use super::server::Asked;
use super::{Code, Reply, Request};
use crate::failure::chain;
use crate::plane::Plane;

/// What is in force: the files as they were loaded, and what was changed since.
pub(crate) struct State {
    pub(crate) files: Files,
    pub(crate) changes: Changes,
}

/// How long a volume waits for its bytes while the last requests of one that was detached hold them.
pub(crate) const LEAVING_MAX: Duration = Duration::from_secs(5);
/// How long to wait before the next attempt.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// A request on its way to a reply.
pub(crate) struct Attempt {
    request: Request,
    reply: oneshot::Sender<Reply>,
    since: Instant,
}

/// Why a request is not carried out.
enum Refusal {
    /// Somebody holds the bytes of a volume.
    Busy(Reply),
    Other(Reply),
}

impl From<Reply> for Refusal {
    fn from(reply: Reply) -> Refusal {
        Refusal::Other(reply)
    }
}

impl Attempt {
    pub(crate) fn new((request, reply): Asked) -> Attempt {
        Attempt { request, reply, since: Instant::now() }
    }

    /// Carries the request out and replies; comes back if that must be tried again after [`PAUSE`].
    pub(crate) fn carry_out(self, plane: &mut Plane, state: &mut State) -> Option<Attempt> {
        let (leaving, waited) = (plane.had_leaving(), self.since.elapsed());
        let reply = match carry_out(plane, state, self.request.clone()) {
            Err(Refusal::Busy(_)) if leaving && waited < LEAVING_MAX => return Some(self),
            Ok(reply) | Err(Refusal::Busy(reply) | Refusal::Other(reply)) => reply,
        };
        if waited >= PAUSE {
            let waited_ms = waited.as_millis();
            tracing::info!(waited_ms, "Waited for the last requests of a volume that was detached");
        }
        let _ = self.reply.send(reply);
        None
    }
}

fn carry_out(plane: &mut Plane, state: &mut State, request: Request) -> Result<Reply, Refusal> {
    let mut changes = state.changes.clone();
    let (target, grown) = match request {
        Request::Attach { target, keys, vm } => (attach(plane, &mut changes, &target, keys, vm)?, None),
        Request::Detach { target } => {
            let target = known(plane, &target)?;
            changes.remove(target.clone());
            (target, None)
        }
        Request::Set { target, keys } => {
            let target = known(plane, &target)?;
            changes.set(target.clone(), keys);
            (target, None)
        }
        Request::Resize { target, size } => {
            let target = known(plane, &target)?;
            if target.volume.is_none() {
                let names: Vec<&str> = plane.host().vms[&target.vm].volumes.keys().map(String::as_str).collect();
                let error = format!("{target} is a VM; name one of its volumes: {}", names.join(", "));
                return Err(Reply::failed(Code::Invalid, error).into());
            }
            let bytes: Bytes = size.parse().map_err(|error| Reply::failed(Code::Invalid, format!("size: {error}")))?;
            changes.set(target.clone(), toml::Table::from_iter([("size".to_owned(), size.into())]));
            (target, Some(bytes.0))
        }
    };
    let host = state.files.changed(&changes).map_err(|found| Reply::failed(Code::Invalid, found.to_string()))?;
    let before = describe(plane.host(), &target);
    let undo = grown.map(|bytes| plane.extend(&target, bytes)).transpose();
    let undo = undo.map_err(|error| Reply::failed(Code::Refused, chain(&error)))?.flatten();
    if let Err(error) = plane.apply(&host) {
        if let Some(undo) = undo {
            undo.cut();
        }
        let reply = Reply::failed(Code::Refused, chain(&error));
        return Err(if error.is_busy() { Refusal::Busy(reply) } else { Refusal::Other(reply) });
    }
    state.changes = changes;
    let after = describe(plane.host(), &target);
    tracing::info!(target = %target, "Changed at run time");
    Ok(Reply { ok: true, code: None, error: None, before, after })
}

fn attach(
    plane: &Plane,
    changes: &mut Changes,
    target: &str,
    keys: toml::Table,
    vm: toml::Table,
) -> Result<Target, Reply> {
    let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let known = plane.host().vms.get(&target.vm);
    let Some(volume) = &target.volume else {
        return Err(Reply::failed(
            Code::Invalid,
            format!("'{target}' is a VM; write VM/VOLUME, for example {target}/data"),
        ));
    };
    if known.is_some_and(|vm| vm.volumes.contains_key(volume)) {
        return Err(Reply::failed(Code::Exists, format!("{target} is there already; detach it first")));
    }
    if known.is_some() && !vm.is_empty() {
        let error = format!("VM {} is there already: change it with set, not with vm.KEY", target.vm);
        return Err(Reply::failed(Code::Exists, error));
    }
    if known.is_none() {
        changes.set(Target { vm: target.vm.clone(), volume: None }, vm);
    }
    changes.set(target.clone(), keys);
    Ok(target)
}

fn known(plane: &Plane, target: &str) -> Result<Target, Reply> {
    let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let vms = &plane.host().vms;
    let Some(vm) = vms.get(&target.vm) else {
        let names: Vec<&str> = vms.keys().take(10).map(String::as_str).collect();
        let error = format!("There is no VM {}; there are {}", target.vm, names.join(", "));
        return Err(Reply::failed(Code::NotFound, error));
    };
    match &target.volume {
        Some(volume) if !vm.volumes.contains_key(volume) => {
            let names: Vec<&str> = vm.volumes.keys().map(String::as_str).collect();
            let error = format!("VM {} has no volume {volume}; it has {}", target.vm, names.join(", "));
            Err(Reply::failed(Code::NotFound, error))
        }
        _ => Ok(target),
    }
}

/// A VM or a volume as it is; null if it is not there.
fn describe(host: &Host, target: &Target) -> Value {
    let Some(vm) = host.vms.get(&target.vm) else { return Value::Null };
    match &target.volume {
        None => describe_vm(vm),
        Some(volume) => vm.volumes.get(volume).map_or(Value::Null, describe_volume),
    }
}

fn describe_vm(vm: &Vm) -> Value {
    let volumes: Vec<&String> = vm.volumes.keys().collect();
    json!({ "policy": describe_policy(&vm.policy), "volumes": volumes })
}

fn describe_volume(volume: &Volume) -> Value {
    json!({
        "device": volume.device,
        "source": volume.source,
        "size_bytes": volume.size,
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
