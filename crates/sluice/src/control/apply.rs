//! Turns a request into a change of the host file, which is checked as a whole and applied like a reload, all or
//! nothing.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_config::changes::Target;
use sluice_config::{Files, Host};
use sluice_sched::Bytes;

use super::describe::{describe, difference};
use super::socket::Peer;
use super::{Code, Reply, Request, Term};
use crate::failure::chain;
use crate::server::{Extra, LossQuery, Server, ServerError, VolumeName};
use crate::state::Saved;
use crate::state::dropin::{DropIn, Part};
use crate::state::overrides::{Change, Gone, Lasts, Origin, Override, Overrides, file_value, flat};
use crate::state::time::Time;

/// The configuration in force: the files as they were loaded, and what was changed since.
pub(crate) struct State {
    pub(crate) files: Files,
    pub(crate) saved: Saved,
}

/// Where the daemon keeps its configuration, and the time.
pub(crate) struct Place<'a> {
    /// The host file.
    pub(crate) file: &'a Path,
    /// The state directory.
    pub(crate) folder: Option<&'a Path>,
    pub(crate) now: Time,
}

/// A proposed host file.
pub(crate) struct Proposal {
    pub(crate) host: Arc<Host>,
    /// A further action of the change.
    pub(crate) extra: Extra,
    /// The state with this change.
    pub(crate) saved: Saved,
    /// Overrides that end with it.
    pub(crate) gone: Vec<(Override, Gone)>,
    /// Written before the change is in force.
    pub(crate) dropin: Option<DropIn>,
    asked: Option<Asked>,
}

/// The target of a request.
struct Asked {
    /// `None`: several VMs.
    target: Option<Target>,
    /// The target's previous state.
    before: Value,
    /// For the log.
    what: String,
    origin: Origin,
}

impl Proposal {
    /// Proposes a host file with this state, without a request of the control socket.
    pub(crate) fn of(host: Arc<Host>, saved: Saved, gone: Vec<(Override, Gone)>) -> Proposal {
        Proposal { host, extra: Extra::Nothing, saved, gone, dropin: None, asked: None }
    }

    /// Proposes the host file in force, with another attempt to open a volume that is out of service.
    pub(crate) fn retry(host: Arc<Host>, saved: Saved, volume: VolumeName) -> Proposal {
        Proposal { extra: Extra::Retry(volume), ..Proposal::of(host, saved, Vec::new()) }
    }
}

/// Returns the proposal of a request, on top of the configuration in force.
pub(crate) fn propose(
    server: &Server,
    state: &State,
    place: &Place<'_>,
    (request, peer): (&Request, Peer),
) -> Result<Proposal, Reply> {
    let (reason, lasts) = terms(request, place)?;
    let origin = Origin { uid: peer.uid, gid: peer.gid, pid: peer.pid, at: place.now, reason };
    let mut draft = Draft { server, state, origin, lasts, saved: state.saved.clone(), parts: Vec::new() };
    let (mut extra, mut gone) = (Extra::Nothing, Vec::new());
    let (target, what) = match request.clone() {
        Request::AcceptLoss { .. } | Request::GetOverrides | Request::Apply { .. } => {
            unreachable!("no object is changed")
        }
        Request::Attach { target, keys, vm, .. } => {
            let target = draft.attach(&target, keys, vm)?;
            (Some(target.clone()), format!("attach {target}"))
        }
        Request::Detach { target, .. } => {
            let target = draft.detach(&target, place)?;
            (Some(target.clone()), format!("detach {target}"))
        }
        Request::Set { target, keys, .. } => {
            let target = known(server, &target)?;
            let keys = flat(keys);
            let names: Vec<String> = keys.iter().map(|(key, _)| key.clone()).collect();
            draft.set(&target, keys);
            (Some(target.clone()), format!("set {target} {}", names.join(" ")))
        }
        Request::Resize { target, size, .. } => {
            let (target, volume) = draft.resize(&target, size)?;
            extra = Extra::Grow(volume);
            (Some(target.clone()), format!("resize {target}"))
        }
        Request::Reset { name, .. } => {
            let target = draft.reset(name.as_deref())?;
            gone = draft.saved.overrides.settle(&state.files);
            (target, format!("reset {}", name.as_deref().unwrap_or("--all")))
        }
    };
    let Draft { saved, parts, origin, .. } = draft;
    let host = state.files.changed(&saved.overrides.changes());
    let host = Arc::new(host.map_err(|found| Reply::failed(Code::Invalid, found.to_string()))?);
    let dropin = (!parts.is_empty()).then(|| DropIn::of(place.file, parts));
    let before = target.as_ref().map(|target| describe(server, target)).unwrap_or_default();
    Ok(Proposal { host, extra, saved, gone, dropin, asked: Some(Asked { target, before, what, origin }) })
}

/// Returns why a change is made and how long it lasts, or why it cannot last so long.
fn terms(request: &Request, place: &Place<'_>) -> Result<(Option<String>, Lasts), Reply> {
    let how = match request {
        Request::Attach { how, .. } | Request::Detach { how, .. } | Request::Resize { how, .. } => how,
        Request::Set { how, .. } => how,
        // It adds no change that could last.
        Request::Reset { reason, .. } => return Ok((reason.clone(), Lasts::Always)),
        Request::AcceptLoss { .. } | Request::GetOverrides | Request::Apply { .. } => {
            unreachable!("no object is changed")
        }
    };
    let lasts = match how.term {
        Term::Always if place.folder.is_none() => {
            let error = "This change would be lost at the next start, because the daemon has no state directory; set state = \
                         \"/var/lib/sluice\" in [daemon] and restart the daemon, or accept the loss with --until-restart, or \
                         write the change into a drop-in with --persist";
            return Err(Reply::failed(Code::Refused, error));
        }
        Term::Always => Lasts::Always,
        Term::UntilRestart => Lasts::UntilRestart,
        Term::Seconds(seconds) => Lasts::Until(Time(place.now.0.saturating_add(seconds))),
        Term::Persist => Lasts::Persisted,
    };
    Ok((how.reason.clone(), lasts))
}

/// Records that the proposal of a request is in force, except on devices that are `unapplied`. Returns the reply to
/// the request.
pub(crate) fn accept(server: &Server, state: &mut State, proposal: Proposal, unapplied: &[ServerError]) -> Reply {
    let Asked { target, before, what, origin } = proposal.asked.expect("only a request is answered");
    let names = |gone: &Overrides, of: &Overrides| -> Vec<String> {
        gone.iter().filter(|known| !of.iter().any(|other| other.name() == known.name())).map(Override::name).collect()
    };
    let taken_back = names(&state.saved.overrides, &proposal.saved.overrides);
    state.saved = proposal.saved;
    let after = target.as_ref().map(|target| describe(server, target)).unwrap_or_default();
    let (old, new) = difference(&before, &after);
    let reason = origin.reason.as_deref();
    tracing::info!(who = %origin, what, before = old, after = new, reason, "Changed at run time");
    let result = Some(Box::new(json!({ "taken_back": taken_back })));
    let reply = Reply { result, ..Reply::changed(before, after) };
    if unapplied.is_empty() {
        return reply;
    }
    let errors: Vec<_> = unapplied.iter().map(ToString::to_string).collect();
    Reply { ok: false, code: Some(Code::Incomplete), error: Some(errors.join("; ")), ..reply }
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
            Reply::changed(before, describe(server, &target))
        }
        Ok(false) => {
            let error = format!("No loss to accept: no sync of {target} has failed");
            Reply::failed(Code::Refused, error)
        }
        Err(error) => Reply::failed(Code::Refused, chain(&error)),
    }
}

/// Returns what differs from the files.
pub(crate) fn get_overrides(state: &State) -> Reply {
    Reply::with(json!({ "overrides": state.saved.overrides.iter().map(Override::to_json).collect::<Vec<_>>() }))
}

/// A proposal in the making.
struct Draft<'a> {
    server: &'a Server,
    state: &'a State,
    origin: Origin,
    lasts: Lasts,
    saved: Saved,
    /// For the drop-in, if the change goes there.
    parts: Vec<Part>,
}

impl Draft<'_> {
    fn add(&mut self, target: &Target, change: Change) {
        let file = file_value(&self.state.files, target, &change);
        let (origin, lasts) = (self.origin.clone(), self.lasts);
        self.saved.overrides.add(Override { target: target.clone(), change, file, origin, lasts });
    }

    fn persist(&mut self, part: impl FnOnce() -> Part) {
        if self.lasts == Lasts::Persisted {
            self.parts.push(part());
        }
    }

    fn set(&mut self, target: &Target, keys: Vec<(String, toml::Value)>) {
        for (key, value) in keys {
            self.persist(|| Part::Set(target.clone(), sluice_config::changes::nested(&key, value.clone())));
            self.add(target, Change::Set { key, value });
        }
    }

    fn resize(&mut self, target: &str, size: String) -> Result<(Target, VolumeName), Reply> {
        let target = known(self.server, target)?;
        let Some(volume) = target.volume.clone() else {
            let names: Vec<&str> = self.server.host().vms[&target.vm].volumes.keys().map(String::as_str).collect();
            let error = format!("{target} is a VM; name one of its volumes: {}", names.join(", "));
            return Err(Reply::failed(Code::Invalid, error));
        };
        size.parse::<Bytes>().map_err(|error| Reply::failed(Code::Invalid, format!("size: {error}")))?;
        if matches!(self.lasts, Lasts::UntilRestart | Lasts::Until(_))
            && let Some(file) = self.state.files.stated(&target, "size")
        {
            let error = format!(
                "The file states size = {file} for {target}: when this change ends, the guest would see its disk shrink; make \
                 it without --until-restart and --for, or with --persist"
            );
            return Err(Reply::failed(Code::Refused, error));
        }
        self.set(&target, vec![("size".to_owned(), size.into())]);
        let name = (target.vm.clone(), volume);
        Ok((target, name))
    }

    fn attach(&mut self, target: &str, keys: toml::Table, vm: toml::Table) -> Result<Target, Reply> {
        let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
        let known = self.server.host().vms.get(&target.vm);
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
        if self.lasts == Lasts::Persisted && self.state.files.has(&target) {
            let error = format!(
                "{target} is in the file and was detached at run time; undo the detach with `sluice reset {target}`"
            );
            return Err(Reply::failed(Code::Exists, error));
        }
        if known.is_none() {
            let owner = Target { vm: target.vm.clone(), volume: None };
            self.persist(|| Part::Set(owner.clone(), vm.clone()));
            self.add(&owner, Change::Attach { keys: vm });
        }
        self.persist(|| Part::Set(target.clone(), keys.clone()));
        self.add(&target, Change::Attach { keys });
        Ok(target)
    }

    fn detach(&mut self, target: &str, place: &Place<'_>) -> Result<Target, Reply> {
        let target = known(self.server, target)?;
        let files = &self.state.files;
        if self.lasts == Lasts::Persisted
            && let Some(file) = files.file_of(&target)
        {
            let part = Part::Remove(target.clone());
            let dropin = DropIn::of(place.file, Vec::new());
            if Path::new(file) != dropin.file() {
                let error = format!(
                    "{file} has {target}, and a drop-in cannot remove it; delete its tables there and reload, or leave out --persist"
                );
                return Err(Reply::failed(Code::Refused, error));
            }
            self.parts.push(part);
        }
        let file = file_value(files, &target, &Change::Detach);
        let is_in_file = !file.is_null();
        let (origin, lasts) = (self.origin.clone(), self.lasts);
        let detached = Override { target: target.clone(), change: Change::Detach, file, origin, lasts };
        match is_in_file || matches!(lasts, Lasts::UntilRestart | Lasts::Until(_)) {
            true => self.saved.overrides.add(detached),
            false => self.saved.overrides.replace(&detached),
        }
        Ok(target)
    }

    /// Takes back what has this name. Returns the VM or volume, if it is one.
    fn reset(&mut self, name: Option<&str>) -> Result<Option<Target>, Reply> {
        let before: Vec<String> = self.saved.overrides.iter().map(Override::name).collect();
        let taken = match name {
            Some(name) => self.saved.overrides.remove(name),
            None => self.saved.overrides.clear(),
        };
        if let Some(persisted) = taken.iter().find(|known| known.lasts == Lasts::Persisted) {
            let error = format!("{} is in a drop-in: reload the daemon, then change the drop-in", persisted.name());
            return Err(Reply::failed(Code::Refused, error));
        }
        if taken.is_empty()
            && let Some(name) = name
        {
            let are = if before.is_empty() { "none".to_owned() } else { before.join(", ") };
            let error = format!("No change made at run time is named {name}; existing changes: {are}");
            return Err(Reply::failed(Code::NotFound, error));
        }
        let one = taken.first().filter(|first| taken.iter().all(|other| other.target == first.target));
        Ok(one.map(|one| one.target.clone()))
    }
}

fn known(server: &Server, target: &str) -> Result<Target, Reply> {
    let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let vms = &server.host().vms;
    let held = server.held.iter().find(|((vm, volume), _)| *vm == target.vm && target.volume.as_ref() == Some(volume));
    if let Some((_, reason)) = held {
        return Err(Reply::failed(Code::Refused, format!("{target} is held back: {reason}")));
    }
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
