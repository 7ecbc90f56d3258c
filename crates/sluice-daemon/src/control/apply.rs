//! Turns a request into a change of the host file, which is checked as a whole and applied like a reload, all or
//! nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use sluice_api::change::{self, Changed, Holds, Settings};
use sluice_api::event::Event;
use sluice_api::object::ObjectId;
use sluice_api::request::{Names, Term};
use sluice_config::changes::{Object, Target, is_pattern};
use sluice_config::{Diagnostics, Files, Host};
use sluice_sched::Bytes;

use super::audit::{self, Author};
use super::describe::{describe, difference, fault};
use super::overdue::Overdue;
use super::socket::Peer;
use super::target::{has, known, matching, refuse_held};
use super::undo;
use super::{Code, Reply, Request};
use crate::server::{Extra, Server, ServerError};
use crate::state::Saved;
use crate::state::dropin::{DropIn, Part};
use crate::state::overrides::{Change, Compared, Gone, Lasts, Origin, Override, Overrides, file_value, flat};
use crate::state::time::Time;

/// The configuration in force: the files as they were loaded, and what was changed since.
pub struct State {
    pub files: Files,
    pub saved: Saved,
    pub overdue: Overdue,
}

/// Location of the daemon's configuration, and the time.
pub struct Place<'a> {
    /// The host file.
    pub file: &'a Path,
    /// The state directory.
    pub folder: Option<&'a Path>,
    pub now: Time,
}

/// A proposed host file.
pub struct Proposal {
    pub host: Arc<Host>,
    /// A further action of the change.
    pub extra: Extra,
    /// The state with this change.
    pub saved: Saved,
    /// Overrides that end with it.
    pub gone: Vec<(Override, Gone)>,
    /// Written before the change is in force.
    pub dropin: Option<DropIn>,
    asked: Option<Asked>,
}

/// Objects that a request changes.
enum Targets {
    One(Target),
    /// All that a pattern matches, or all that hold a policy; may be empty.
    Many(Vec<Target>),
    /// The objects of several changes that a request takes back.
    Unnamed,
}

impl Targets {
    fn list(&self) -> &[Target] {
        match self {
            Targets::One(target) => core::slice::from_ref(target),
            Targets::Many(targets) => targets,
            Targets::Unnamed => &[],
        }
    }
}

/// The target of a request.
struct Asked {
    targets: Targets,
    /// The previous state of each target.
    before: Vec<Option<Settings>>,
    /// Without targets: what is changed, and its previous state.
    unnamed: Vec<(Target, Option<Settings>)>,
    /// For the log.
    what: String,
    origin: Origin,
    holds: Holds,
}

impl Proposal {
    /// Proposes a host file with this state, without a request of the control socket.
    pub fn of(host: Arc<Host>, saved: Saved, gone: Vec<(Override, Gone)>) -> Proposal {
        Proposal { host, extra: Extra::Nothing, saved, gone, dropin: None, asked: None }
    }

    /// Proposes the host file in force, with another attempt to open a volume that is out of service.
    pub fn retry(host: Arc<Host>, saved: Saved, volume: ObjectId) -> Proposal {
        Proposal { extra: Extra::Retry(volume), ..Proposal::of(host, saved, Vec::new()) }
    }
}

/// Returns the proposal of a request, on top of the configuration in force.
pub fn propose(
    server: &Server,
    state: &State,
    place: &Place<'_>,
    (request, peer): (&Request, &Peer),
) -> Result<Proposal, Reply> {
    few_keys(request)?;
    let (reason, lasts) = terms(request, place)?;
    let origin = Origin { uid: peer.uid, gid: peer.gid, pid: peer.pid, at: place.now, reason };
    let permanent = request.how().is_some_and(|how| how.permanent);
    let mut draft = Draft { server, state, origin, lasts, permanent, saved: state.saved.clone(), parts: Vec::new() };
    let (mut extra, mut gone) = (Extra::Nothing, Vec::new());
    let (targets, what) = match request.clone() {
        Request::Attach { target, keys, vm, .. } => {
            let target = draft.attach(&target, keys, vm)?;
            (Targets::One(target.clone()), format!("attach {target}"))
        }
        Request::Detach { target, .. } => {
            let target = draft.detach(&target, place)?;
            (Targets::One(target.clone()), format!("detach {target}"))
        }
        Request::Set { target, keys, reset, .. } => {
            let keys = flat(keys);
            let names: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            if !reset.is_empty() {
                draft.take_back(Some(&reset))?;
                gone = draft.saved.overrides.settle(&state.files);
            }
            (draft.set_all(&target, &keys)?, format!("set {target} {}", names.join(" ")))
        }
        Request::Resize { target, size, .. } => {
            let (target, volume) = draft.resize(&target, size)?;
            extra = Extra::Grow(volume);
            (Targets::One(target.clone()), format!("resize {target}"))
        }
        Request::Reset { name, .. } => {
            let names = name.as_ref().map(Names::as_slice);
            let targets = draft.reset(names)?;
            gone = draft.saved.overrides.settle(&state.files);
            (targets, format!("reset {}", names.map_or_else(|| "--all".to_owned(), |names| names.join(" "))))
        }
        _ => unreachable!("nothing is changed"),
    };
    let Draft { saved, parts, origin, .. } = draft;
    let host = state.files.changed(&saved.overrides.changes());
    let host = Arc::new(host.map_err(|found| invalid(request, &found))?);
    let dropin = (!parts.is_empty()).then(|| DropIn::of(place.file, parts));
    let before = targets.list().iter().map(|target| describe(server, target)).collect();
    let holds = undo::holds(request, lasts, (&state.saved.overrides, &saved.overrides));
    let unnamed = match targets {
        Targets::Unnamed => unnamed(server, (&state.saved.overrides, &saved.overrides)),
        _ => Vec::new(),
    };
    let asked = Asked { targets, before, unnamed, what, origin, holds };
    Ok(Proposal { host, extra, saved, gone, dropin, asked: Some(asked) })
}

/// The reply to a request with which no host file could be valid.
fn invalid(request: &Request, found: &Diagnostics) -> Reply {
    let found = found.without_warnings();
    let object = request.target().and_then(|target| target.parse::<Object>().ok());
    let path = object.as_ref().map_or_else(Vec::new, Object::path);
    let faults = found.0.iter().map(|one| fault(one, &path)).collect();
    Reply { faults, ..Reply::failed(Code::Invalid, found.to_string()) }
}

/// Returns the VMs and volumes of which changes are taken back, as they are now; of many the first, which have events.
fn unnamed(server: &Server, (before, after): (&Overrides, &Overrides)) -> Vec<(Target, Option<Settings>)> {
    let (dropped, _) = before.differing(after);
    let targets = dropped.into_iter().filter_map(|known| match &known.target {
        Object::Target(target) => Some(target),
        Object::Policy(_) => None,
    });
    let targets: BTreeSet<&Target> = targets.collect();
    targets.into_iter().take(audit::OBJECTS_MAX).map(|target| (target.clone(), describe(server, target))).collect()
}

/// Maximum number of keys in one change, with those in its tables, and of names of changes: several times as many as an object has.
const KEYS_MAX: usize = 256;

/// Refuses a change of more keys than any object has, before anything is done for each of them.
fn few_keys(request: &Request) -> Result<(), Reply> {
    fn count(keys: &toml::Table) -> usize {
        keys.values().map(|value| 1 + value.as_table().map_or(0, count)).sum()
    }
    let (target, names, keys) = match request {
        Request::Attach { target, keys, vm, .. } => (target.as_str(), 0, count(keys) + count(vm)),
        Request::Set { target, keys, reset, .. } => (target.as_str(), reset.len(), count(keys)),
        Request::Reset { name: Some(names), .. } => ("reset", names.as_slice().len(), 0),
        _ => return Ok(()),
    };
    let (number, what) = if names > keys { (names, "names of changes") } else { (keys, "keys") };
    if number <= KEYS_MAX {
        return Ok(());
    }
    let error =
        format!("{target}: the change has {number} {what}, but at most {KEYS_MAX} are allowed; make several changes");
    Err(Reply::failed(Code::Invalid, error))
}

/// Returns why a change is made and how long it lasts, or why it cannot last so long.
fn terms(request: &Request, place: &Place<'_>) -> Result<(Option<String>, Lasts), Reply> {
    // A reset adds no change that could last.
    let (reason, term) =
        (request.reason().map(str::to_owned), request.how().map_or(Term::UntilRestart, |how| how.term));
    // It is shown on terminals of others.
    if let Some(error) = reason.as_deref().and_then(refused) {
        return Err(Reply::failed(Code::Invalid, error));
    }
    let lasts = match term {
        Term::Always if place.folder.is_none() => {
            let error = "This change would be lost at the next start, because the daemon has no state directory; set state = \
                         \"/var/lib/sluice\" in [daemon] and restart the daemon, or accept the loss with --until-restart, or \
                         write the change into a drop-in with --persist";
            return Err(Reply::failed(Code::Refused, error));
        }
        Term::Always => Lasts::Always,
        Term::UntilRestart => Lasts::UntilRestart,
        Term::Seconds(seconds) => Lasts::Until(Time(place.now.0.saturating_add(seconds))),
        Term::Until(end) if end <= place.now.0 => {
            let error = format!(
                "{} has passed, so the change would end at once; write a time to come, or take a change back with `sluice reset NAME`",
                Time(end)
            );
            return Err(Reply::failed(Code::Invalid, error));
        }
        Term::Until(end) => Lasts::Until(Time(end)),
        Term::Persist => Lasts::Persisted,
    };
    Ok((reason, lasts))
}

/// Maximum length of a reason, in characters.
const REASON_MAX: usize = 500;

/// Returns why a reason is refused, if it is.
fn refused(reason: &str) -> Option<String> {
    if reason.chars().any(audit::is_unprintable) {
        return Some("The reason has a line break or another control character; write it in one line".to_owned());
    }
    let length = reason.chars().count();
    (length > REASON_MAX)
        .then(|| format!("The reason has {length} characters, but at most {REASON_MAX} are allowed; shorten it"))
}

/// Records that the proposal of a request is in force, except on devices that are `unapplied`. Returns the reply to
/// the request, and events of what was done.
pub fn accept(
    server: &Server,
    state: &mut State,
    proposal: Proposal,
    (request, author): (&Request, &Author),
    (unapplied, warnings): (&[ServerError], &[String]),
) -> (Reply, Vec<Event>) {
    let Asked { targets, before, unnamed, what, origin, holds } = proposal.asked.expect("only a request is answered");
    let kept = proposal.saved.overrides.by_name();
    let taken_back: Vec<String> =
        state.saved.overrides.iter().map(Override::name).filter(|name| !kept.contains_key(name)).collect();
    let in_keys = in_keys(&state.saved.overrides.compared(&proposal.saved.overrides));
    let described = targets.list().iter().zip(&before).map(|(target, before)| (target, before.as_ref()));
    let described = described.chain(unnamed.iter().map(|(target, before)| (target, before.as_ref())));
    let described = described
        .map(|(target, before)| (target.clone().into(), (before.cloned(), describe(server, target))))
        .collect();
    let overrides = (&state.saved.overrides, &proposal.saved.overrides);
    let mut events = author.changed(request, overrides, &described, &holds);
    state.saved = proposal.saved;
    let reason = origin.reason.as_deref();
    let log = |name: Option<&Target>, before: Option<&Settings>, after: Option<&Settings>| {
        let (before, after) = match difference(before, after) {
            // Several objects, or a key that no description has.
            (old, new) if old == new => in_keys.clone(),
            differing => differing,
        };
        let name = name.map(ToString::to_string);
        tracing::info!(who = %origin, what, name, before, after, reason, "Changed at run time");
    };
    let mut changed: Vec<(&Target, Option<Settings>, Option<Settings>)> = Vec::new();
    for (target, before) in targets.list().iter().zip(before) {
        changed.push((target, before, describe(server, target)));
    }
    let mut result = Changed { taken_back: Some(taken_back), changed: None, warnings: warnings.to_vec(), holds };
    let reply = match &targets {
        Targets::Many(_) => {
            if changed.is_empty() {
                log(None, None, None);
            }
            let each = changed.into_iter().map(|(target, before, after)| {
                log(Some(target), before.as_ref(), after.as_ref());
                change::Change { name: target.to_string(), before, after }
            });
            result.changed = Some(each.collect());
            Reply::changed(None, None)
        }
        Targets::One(_) | Targets::Unnamed => {
            let (before, after) = changed.pop().map_or((None, None), |(_, before, after)| (before, after));
            if let Request::Resize { target, .. } = request {
                events = vec![author.resized(target, (before.as_ref(), after.as_ref()), &result.holds)];
            }
            log(None, before.as_ref(), after.as_ref());
            Reply::changed(before, after)
        }
    };
    (with_unapplied(reply.and(&result), unapplied), events)
}

/// Changes in words, by their names: what was in force before, and what is now.
fn in_keys(compared: &[Compared<'_>]) -> (String, String) {
    let differing = || compared.iter().filter(|one| one.before != one.after);
    let words = |value: fn(&Compared<'_>) -> String| {
        differing().map(|one| format!("{}={}", one.of.name(), value(one))).collect::<Vec<_>>().join(" ")
    };
    (words(|one| one.before.clone()), words(|one| one.after.clone()))
}

/// Makes a reply one of a failure if there are devices that have not confirmed their part.
pub(super) fn with_unapplied(reply: Reply, unapplied: &[ServerError]) -> Reply {
    if unapplied.is_empty() {
        return reply;
    }
    let errors: Vec<_> = unapplied.iter().map(ToString::to_string).collect();
    Reply { ok: false, code: Some(Code::Incomplete), error: Some(errors.join("; ")), ..reply }
}

/// A proposal in the making.
struct Draft<'a> {
    server: &'a Server,
    state: &'a State,
    origin: Origin,
    lasts: Lasts,
    /// Whether it may replace changes that end by themselves by one that does not.
    permanent: bool,
    saved: Saved,
    /// For the drop-in, if the change goes there.
    parts: Vec<Part>,
}

impl Draft<'_> {
    fn change(&self, target: &Object, change: Change) -> Override {
        let file = file_value(&self.state.files, target, &change);
        let (origin, lasts) = (self.origin.clone(), self.lasts);
        Override { target: target.clone(), change, file, origin, lasts, is_aside: false }
    }

    fn add(&mut self, target: &Object, change: Change) {
        self.saved.overrides.add(self.change(target, change));
    }

    fn persist(&mut self, part: impl FnOnce() -> Part) {
        if self.lasts == Lasts::Persisted {
            self.parts.push(part());
        }
    }

    fn set(&mut self, targets: &[Object], keys: &[(String, toml::Value)]) -> Result<(), Reply> {
        let mut changes = Vec::new();
        for (target, (key, value)) in targets.iter().flat_map(|target| keys.iter().map(move |key| (target, key))) {
            self.persist(|| Part::Set(target.clone(), sluice_config::changes::nested(key, value.clone())));
            changes.push(self.change(target, Change::Set { key: key.clone(), value: value.clone() }));
        }
        if self.permanent || self.lasts.is_temporary() {
            self.saved.overrides.add_all(changes);
            return Ok(());
        }
        // Without what the same command takes back by name.
        let before = self.saved.overrides.clone();
        self.saved.overrides.add_all(changes);
        undo::refuse_replacing(&before, &self.saved.overrides)
    }

    /// Sets keys of a VM, a volume or a policy, or of all VMs or volumes that match a pattern.
    fn set_all(&mut self, name: &str, keys: &[(String, toml::Value)]) -> Result<Targets, Reply> {
        let object: Object = name.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
        match object {
            Object::Policy(policy) if is_pattern(&policy) => {
                let error = format!("'{name}' is a pattern; name one policy, or a pattern of VMs such as 'web*'");
                Err(Reply::failed(Code::Invalid, error))
            }
            Object::Policy(policy) => self.set_policy(policy, keys),
            Object::Target(pattern) if is_pattern(name) => {
                let targets = matching(self.server, &pattern)?;
                let objects: Vec<Object> = targets.iter().cloned().map(Object::from).collect();
                self.set(&objects, keys)?;
                Ok(Targets::Many(targets))
            }
            Object::Target(_) => {
                let target = known(self.server, name)?;
                self.set(&[target.clone().into()], keys)?;
                Ok(Targets::One(target))
            }
        }
    }

    /// Sets keys of a named policy. Returns the VMs and volumes that hold it.
    fn set_policy(&mut self, policy: String, keys: &[(String, toml::Value)]) -> Result<Targets, Reply> {
        let object = Object::Policy(policy);
        let Object::Policy(policy) = &object else { unreachable!("it is one") };
        if !self.state.files.has(&object) {
            let names = self.state.files.policies();
            let are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let error = format!("There is no policy {policy}; there are {are}");
            return Err(Reply::failed(Code::NotFound, error));
        }
        self.set(core::slice::from_ref(&object), keys)?;
        Ok(Targets::Many(self.holders(policy)))
    }

    /// Returns the VMs, volumes and NICs that hold a named policy.
    fn holders(&self, policy: &str) -> Vec<Target> {
        let holds = |name: &Option<String>| name.as_deref() == Some(policy);
        let mut holders = Vec::new();
        for vm in self.server.host().vms.values() {
            if holds(&vm.policy_name) {
                holders.push(Target { vm: vm.name.clone(), volume: None });
            }
            let volumes = vm.volumes.values().filter(|volume| holds(&volume.policy_name));
            holders.extend(volumes.map(|volume| Target { vm: vm.name.clone(), volume: Some(volume.name.clone()) }));
            let nics = vm.nics.values().filter(|nic| holds(&nic.policy_name));
            holders.extend(nics.map(|nic| Target::nic(&vm.name, &nic.name)));
        }
        holders
    }

    fn resize(&mut self, target: &str, size: String) -> Result<(Target, ObjectId), Reply> {
        let target = known(self.server, target)?;
        if target.as_nic().is_some() {
            return Err(Reply::failed(Code::Invalid, format!("{target} is a NIC, which has no size; name a volume")));
        }
        let Some(volume) = target.volume.clone() else {
            let names: Vec<&str> = self.server.host().vms[&target.vm].volumes.keys().map(String::as_str).collect();
            let error = format!("{target} is a VM; name one of its volumes: {}", names.join(", "));
            return Err(Reply::failed(Code::Invalid, error));
        };
        let name = ObjectId::volume(&target.vm, &volume);
        if let Some(absence) = self.server.absent().get(&name) {
            let error = format!("{target} is out of service and cannot be extended: {}", absence.reason());
            return Err(Reply::failed(Code::Refused, error));
        }
        size.parse::<Bytes>().map_err(|error| Reply::failed(Code::Invalid, format!("size: {error}")))?;
        if matches!(self.lasts, Lasts::UntilRestart | Lasts::Until(_))
            && let Some(file) = self.state.files.stated(&target.clone().into(), "size")
        {
            let error = format!(
                "The file states size = {file} for {target}: when this change ends, the guest would see its disk shrink; make \
                 it without --until-restart and --for, or with --persist"
            );
            return Err(Reply::failed(Code::Refused, error));
        }
        self.set(&[target.clone().into()], &[("size".to_owned(), size.into())])?;
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
        refuse_held(self.server, &target)?;
        if known.is_some_and(|vm| has(vm, &target, volume)) {
            return Err(Reply::failed(
                Code::Exists,
                format!("{target} exists already; name another one, or change this one with `sluice set`"),
            ));
        }
        if known.is_some() && !vm.is_empty() {
            let error =
                format!("VM {} exists already, so vm.KEY=VALUE cannot set its policy; use `sluice set`", target.vm);
            return Err(Reply::failed(Code::Exists, error));
        }
        if self.lasts == Lasts::Persisted && self.state.files.has(&target.clone().into()) {
            let error = format!(
                "{target} is in the file and was detached at run time; undo the detach with `sluice reset {target}`"
            );
            return Err(Reply::failed(Code::Exists, error));
        }
        if known.is_none() {
            let owner: Object = Target { vm: target.vm.clone(), volume: None }.into();
            self.persist(|| Part::Set(owner.clone(), vm.clone()));
            self.add(&owner, Change::Attach { keys: vm });
        }
        let object: Object = target.clone().into();
        self.persist(|| Part::Set(object.clone(), keys.clone()));
        self.add(&object, Change::Attach { keys });
        Ok(target)
    }

    fn detach(&mut self, target: &str, place: &Place<'_>) -> Result<Target, Reply> {
        let target = known(self.server, target)?;
        let (files, object) = (&self.state.files, Object::from(target.clone()));
        if self.lasts == Lasts::Persisted
            && let Some(file) = files.file_of(&object)
        {
            let part = Part::Remove(object.clone());
            let dropin = DropIn::of(place.file, Vec::new());
            if Path::new(file) != dropin.file() {
                let error = format!(
                    "{file} has {target}, and a drop-in cannot remove it; delete its tables there and reload, or leave out --persist"
                );
                return Err(Reply::failed(Code::Refused, error));
            }
            self.parts.push(part);
        }
        let file = file_value(files, &object, &Change::Detach);
        let is_in_file = !file.is_null();
        let (origin, lasts) = (self.origin.clone(), self.lasts);
        let detached = Override { target: object, change: Change::Detach, file, origin, lasts, is_aside: false };
        match is_in_file || matches!(lasts, Lasts::UntilRestart | Lasts::Until(_)) {
            true => self.saved.overrides.add(detached),
            false => self.saved.overrides.replace(&[detached]),
        }
        Ok(target)
    }

    /// Takes back what has these names, or everything.
    fn take_back(&mut self, names: Option<&[String]>) -> Result<Vec<Override>, Reply> {
        let before = self.saved.overrides.clone();
        let taken = match names {
            Some(names) => self.saved.overrides.remove(names),
            None => self.saved.overrides.clear(),
        };
        if let Some(persisted) = taken.iter().find(|known| known.lasts == Lasts::Persisted) {
            let error = format!(
                "{} was written into a drop-in, which reset does not change; reload the daemon, then edit the drop-in",
                persisted.name()
            );
            return Err(Reply::failed(Code::Refused, error));
        }
        let is_unknown = |name: &&String| !taken.iter().any(|known| known.is_named(core::slice::from_ref(*name)));
        if let Some(name) = names.unwrap_or_default().iter().find(is_unknown) {
            let before: Vec<String> = before.iter().map(Override::name).collect();
            let are = if before.is_empty() { "none".to_owned() } else { before.join(", ") };
            let error = format!("No change made at run time is named {name}; existing changes: {are}");
            return Err(Reply::failed(Code::NotFound, error));
        }
        Ok(taken)
    }

    /// Takes back what has these names. Returns the VM or volume, if it is one, or all that hold the policy, if it is one.
    fn reset(&mut self, names: Option<&[String]>) -> Result<Targets, Reply> {
        let taken = self.take_back(names)?;
        let Some(first) = taken.first() else { return Ok(Targets::Many(Vec::new())) };
        Ok(match &first.target {
            _ if taken.iter().any(|other| other.target != first.target) => Targets::Unnamed,
            Object::Target(target) => Targets::One(target.clone()),
            Object::Policy(policy) => Targets::Many(self.holders(policy)),
        })
    }
}
