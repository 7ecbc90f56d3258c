//! A change, from the proposal to the answer: [`make`] reads from top to bottom.
//!
//! ```text
//! read (a reload) --> [ propose --> prepare <--> open (a helper) ] --> save (the keeper) --> commit --> answer
//! ```
//!
//! Only who has the keeper proposes, prepares, saves and commits. It is free while a helper opens something, so that other changes go
//! on, and then the change is prepared against what is in force by then. The state is written between the part that may fail and the
//! part that may not, and before the answer: what is written is what is in force. A change that cannot be written is refused; a start, a
//! retry and an expiry are made all the same, and the write is repeated. If the state directory hangs, changes that need it are refused
//! until it responds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_api::change::Effect;
use sluice_api::object::ObjectId;
use sluice_config::Host;
use tokio::sync::{MutexGuard, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::helpers::{PATH_TIMEOUT, Purpose};
use super::record::record;
use super::refused::Refused;
use super::reload::{self, Read};
use super::shared::{InForce, ServerEvent, Shared};
use super::start::Start;
use super::{aside, expiry, loss, saving, start, takeover};
use crate::control::apply::{self, Proposal};
use crate::control::audit::{self, Author};
use crate::control::preview::preview;
use crate::control::socket::{Manner, Peer};
use crate::control::{Code, Reply, Request, keys, plan};
use crate::failure::Failure;
use crate::jail;
use crate::request_sizes;
use crate::server::{ClaimOf, Done, Force, Found, Guard, Needs, Prepared, Server, ServerError, Step, without};
use crate::state::keeper::Keeper;
use crate::state::overrides::{report_gone, with_file};
use crate::state::time::Time;

/// Maximum number of pending requested changes; further ones are rejected.
const CHANGES_MAX: usize = 64;
/// Maximum time that a volume waits for its bytes while the last requests of a detached volume hold them.
const REMOVED_VOLUME_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two looks whether they are over.
const PAUSE: Duration = Duration::from_millis(5);

/// A kind of change.
pub(super) enum Kind {
    Start(Box<Start>),
    Request(Request, Peer, Manner),
    /// A reload; `None`: a signal asked for it.
    Reload(Option<(Request, Peer)>),
    /// A retry of this volume, which is out of service.
    Retry(ObjectId),
    /// Overrides with these names end, because their time is over.
    Expiry(BTreeSet<String>),
}

/// Begins a change, unless too many are pending. Its answer is sent to the one who asked for it.
pub(super) fn begin(shared: &Rc<Shared>, kind: Kind, reply: Option<oneshot::Sender<Reply>>) {
    let (own, purpose) = (Rc::clone(shared), kind.purpose());
    let queued = shared.tasks.pending.borrow().values().filter(|other| **other == Purpose::Change).count();
    let is_refused = purpose == Purpose::Change && queued >= CHANGES_MAX;
    if !is_refused && matches!(kind, Kind::Reload(_)) {
        // An older file must not replace a newer one.
        shared.tasks.reloads.send_replace(());
    }
    let (number, later) = (shared.tasks.number(purpose), shared.tasks.reloads.subscribe());
    shared.tasks.set.borrow_mut().spawn_local(async move {
        let answer = match is_refused {
            true => {
                let error = format!("{CHANGES_MAX} changes are queued; retry when they have completed");
                refuse(&own, kind, Refused::Other(error))
            }
            false => run(&own, kind, later).await,
        };
        own.publish();
        if let (Some(reply), Some(answer)) = (reply, answer) {
            let _ = reply.send(answer);
        }
        number
    });
}

/// Makes a change, or reports why not. Returns the answer to the one who asked for it.
async fn run(shared: &Rc<Shared>, mut kind: Kind, mut later: watch::Receiver<()>) -> Option<Reply> {
    loop {
        let made = match &kind {
            Kind::Request(Request::AcceptLoss { target }, peer, manner) => {
                loss::accept(shared, target, peer, manner).await
            }
            Kind::Request(Request::Takeover { target, from }, peer, _) => {
                takeover::take_over(shared, (target, from.as_deref()), peer, &mut later).await
            }
            _ => make(shared, &kind, &mut later).await,
        };
        let refused = match made {
            Ok(answer) => return answer,
            Err(refused) => refused,
        };
        if let (Kind::Expiry(names), Refused::Server(error)) = (&mut kind, &refused)
            && let ServerError::InUse { volumes, .. } = &**error
            && expiry::keep_used(&mut shared.in_force.borrow_mut().state, names, volumes)
        {
            // The others end without them.
            if names.is_empty() {
                return None;
            }
            continue;
        }
        return refuse(shared, kind, refused);
    }
}

/// Makes a change. Returns the answer to the one who asked for it.
pub(super) async fn make(
    shared: &Shared,
    kind: &Kind,
    later: &mut watch::Receiver<()>,
) -> Result<Option<Reply>, Refused> {
    let mut ready = tokio::select! {
        biased;
        () = shared.exit() => return Err(Refused::Exit),
        Ok(()) = later.changed(), if matches!(kind, Kind::Reload(_)) => return Err(Refused::Replaced),
        ready = prepare(shared, kind) => ready?,
    };
    if kind.is_dry_run() {
        return Ok(Some(ready.planned(kind, &shared.in_force.borrow())));
    }
    if matches!(kind, Kind::Retry(_)) && ready.draft.held.is_empty() && ready.prepared.is_void() {
        shared.in_force.borrow_mut().server.still_absent(ready.prepared);
        return Ok(None);
    }
    shared.in_force.borrow().server.refuse_clients(&mut ready.prepared)?;
    if let Err(refused) = claim_and_save(shared, kind, &mut ready).await {
        shared.in_force.borrow_mut().server.restate_pools();
        return Err(refused);
    }
    let Ready { prepared, proposal, draft, mut keeper } = ready;
    match commit(shared, kind, prepared) {
        Ok(done) => {
            keeper.keep();
            Ok(draft.done(shared, kind, proposal, &done))
        }
        Err(error) => {
            // It was claimed and saved, and is not in force.
            shared.in_force.borrow_mut().server.restate_pools();
            saving::write_in_force(shared, &mut keeper).await;
            Err(error.into())
        }
    }
}

/// A change that can be put into force, as long as the keeper is not released.
struct Ready<'a> {
    prepared: Prepared,
    proposal: Proposal,
    draft: Draft,
    keeper: MutexGuard<'a, Keeper>,
}

/// A change on its way.
struct Draft {
    since: Instant,
    /// The files of a reload.
    read: Option<Read>,
    found: Found,
    /// The proposal, and the version of the configuration for which it was made.
    proposal: Option<(u64, Proposal)>,
    /// Volumes that it holds back because their source or offset has changed, or they are smaller, and why; in addition to
    /// those that are held back already.
    held: BTreeMap<ObjectId, String>,
    /// Whether it has waited for the last requests of a removed volume.
    has_waited: bool,
}

/// Prepares a change, with what helpers open for it. Waits until no other change is being made.
async fn prepare<'a>(shared: &'a Shared, kind: &Kind) -> Result<Ready<'a>, Refused> {
    let since = Instant::now();
    let read = match kind {
        Kind::Reload(asked) => Some(reload::read_again(shared, asked.as_ref().map(|(request, _)| request)).await?),
        _ => None,
    };
    let (found, held) = (Found::default(), BTreeMap::new());
    let mut draft = Draft { since, read, found, proposal: None, held, has_waited: false };
    loop {
        let keeper = shared.keeper.lock().await;
        match draft.step(shared, kind, keeper.folder())? {
            Some(Step::Prepared(prepared)) => {
                let (_, proposal) = draft.proposal.take().expect("it was prepared");
                return Ok(Ready { prepared: *prepared, proposal, draft, keeper });
            }
            Some(Step::Held(held)) => draft.hold(kind, held)?,
            Some(Step::Needs(needs)) => {
                drop(keeper);
                draft.open(shared, kind, *needs).await?;
            }
            None => {
                drop(keeper);
                sleep(PAUSE).await;
            }
        }
    }
}

impl Draft {
    /// Proposes the change, unless that was done for what is in force, and prepares it as far as possible without a wait. Returns
    /// `None` while the last requests of a removed volume hold what it needs.
    fn step(&mut self, shared: &Shared, kind: &Kind, folder: Option<&Path>) -> Result<Option<Step>, Refused> {
        let in_force = &mut *shared.in_force.borrow_mut();
        let proposal = match self.proposal.take() {
            Some((version, proposal)) if version == in_force.version => proposal,
            before => {
                if before.is_some() {
                    // What it has found different may be another volume now.
                    self.held.clear();
                }
                self.propose(kind, in_force, &apply::Place { file: &shared.file, folder, now: Time::now() })?
            }
        };
        let force = kind.force();
        refuse_nothing(kind, in_force, &proposal.host, &force)?;
        if let (Kind::Reload(_) | Kind::Request(..), Some(why)) = (kind, jail::refuses(&proposal.host)) {
            return Err(Refused::Other(why));
        }
        let leaving = in_force.server.had_removed();
        let held = self.all_held(kind, in_force);
        let guard = Guard { saved: &proposal.saved, force: &force, held: &held };
        let host = match held.is_empty() {
            true => Arc::clone(&proposal.host),
            false => Arc::new(without(&proposal.host, held.keys()).into_owned()),
        };
        let step = match in_force.server.prepare(&host, &proposal.extra, &mut self.found, &guard) {
            Ok(step) => Some(step),
            Err(error) => {
                // Its sockets are removed before the rejection is reported, because a rejected start ends the process.
                self.found = Found::default();
                let waits = error.is_busy() && leaving && self.since.elapsed() < REMOVED_VOLUME_TIMEOUT;
                if !waits && matches!(kind, Kind::Reload(_)) {
                    reload::warn(&proposal.host, &shared.at_start);
                }
                self.has_waited |= waits;
                if waits { None } else { return Err(error.into()) }
            }
        };
        self.proposal = Some((in_force.version, proposal));
        Ok(step)
    }

    fn propose(&mut self, kind: &Kind, in_force: &InForce, place: &apply::Place<'_>) -> Result<Proposal, Refused> {
        let InForce { server, state, .. } = in_force;
        let proposal = match kind {
            Kind::Start(start) => start.propose(),
            Kind::Reload(_) => self
                .read
                .as_ref()
                .expect("it is proposed when it has been read")
                .propose(state.saved.clone())
                .map_err(Refused::File)?,
            Kind::Retry(name) => Proposal::retry(Arc::clone(server.host()), state.saved.clone(), name.clone()),
            Kind::Expiry(names) => expiry::propose(state, names).map_err(Refused::File)?,
            Kind::Request(request, peer, manner) => {
                keys::is_current(state, request, manner).map_err(Refused::Reply)?;
                return apply::propose(server, state, place, (request, peer)).map_err(Refused::Reply);
            }
        };
        if kind.looks_at_all() {
            self.held.extend(aside::held(&proposal.saved.overrides, &proposal.host));
        }
        Ok(proposal)
    }

    /// Returns what is held back when this change is in force.
    fn all_held(&self, kind: &Kind, in_force: &InForce) -> BTreeMap<ObjectId, String> {
        let mut held: BTreeMap<ObjectId, String> = match kind.looks_at_all() {
            true => BTreeMap::new(),
            false => in_force.server.absent().held_back().map(|(name, how)| (name.clone(), how.to_owned())).collect(),
        };
        held.extend(self.held.clone());
        held
    }

    /// Holds volumes back that may not be served as they are, until the file is corrected or `--force` names them: their source or
    /// offset differs from when they were last served, or they are smaller.
    fn hold(&mut self, kind: &Kind, held: BTreeMap<ObjectId, String>) -> Result<(), Refused> {
        if let (Kind::Request(..), Some((name, how))) = (kind, held.first_key_value()) {
            return Err(Refused::Other(format!(
                "{name} is held back: {how}; correct the change or restore the source, or accept it with --force {name}"
            )));
        }
        for (name, how) in held {
            let reason = format!(
                "{how}; correct the file or restore the source, and reload, or accept it with `sluice apply FILE --force {name}`"
            );
            let (vm, volume) = name.parts();
            tracing::error!(
                vm,
                volume = &*volume,
                reason,
                "Volume held back: its source or offset differs from when it was last served, or it is smaller"
            );
            self.held.insert(name, reason);
        }
        Ok(())
    }

    /// Opens what the change needs, on a helper thread. A start goes on with what was found before a path that hangs.
    async fn open(&mut self, shared: &Shared, kind: &Kind, needs: Needs) -> Result<(), Refused> {
        let paths = needs.paths();
        match shared.helpers.run(kind.purpose(), &paths, move |progress| needs.meet(progress)).await {
            Err(Refused::Hangs(path, time, found)) if matches!(kind, Kind::Start(_)) => {
                self.found.add(*found);
                self.found.hangs(path, time);
            }
            opened => self.found.add(opened?.1),
        }
        Ok(())
    }

    /// Records and reports a change that is in force. Returns the answer to the one who asked for it.
    fn done(
        self,
        shared: &Shared,
        kind: &Kind,
        proposal: Proposal,
        (done, effects): &(Done, Effects),
    ) -> Option<Reply> {
        let mut borrowed = shared.in_force.borrow_mut();
        let in_force = &mut *borrowed;
        in_force.version += 1;
        if self.has_waited {
            let waited_ms = self.since.elapsed().as_millis();
            tracing::info!(waited_ms, "Waited for in-flight requests of a detached volume");
        }
        // The change may have removed the last device that was not down.
        shared.check_devices(&in_force.server);
        let held = self.all_held(kind, in_force);
        in_force.server.hold(held);
        report_gone(&proposal.gone);
        let ended = audit::gone(&in_force.server, &proposal.gone);
        let (plan, warnings) = effects;
        match kind {
            Kind::Request(request, peer, _) => {
                let done = (done.unapplied.as_slice(), warnings.as_slice());
                let author = Author::of(request, peer, &in_force.roles);
                let (reply, events) =
                    apply::accept(&in_force.server, &mut in_force.state, proposal, (request, &author), done);
                shared.report(events.into_iter().chain(ended));
                return Some(reply);
            }
            Kind::Reload(asked) => {
                let author = reload::author(asked.as_ref(), &in_force.roles);
                shared.report(author.applied(plan).into_iter().chain(ended));
                in_force.refused_reload = None;
                reload::warn(&proposal.host, &shared.at_start);
                let read = self.read.expect("it is in force when it has been read");
                return Some(read.applied(in_force, asked.as_ref(), proposal, done, (plan, warnings)));
            }
            Kind::Start(_) | Kind::Retry(_) | Kind::Expiry(_) => in_force.state.saved = proposal.saved,
        }
        shared.report(ended);
        if matches!(kind, Kind::Start(_)) {
            let started = start::started(in_force);
            drop(borrowed);
            shared.report([start::event(&started.0)]);
            // A client that waits for the start may ask at once.
            shared.publish();
            let _ = shared.news.send(ServerEvent::Started(Ok(started)));
        }
        None
    }
}

/// Rejects a file without volumes if there are some now: it is more likely a mistake than a wish.
fn refuse_nothing(kind: &Kind, in_force: &InForce, host: &Host, force: &Force) -> Result<(), Refused> {
    let old: Vec<String> = match kind {
        Kind::Start(start) => start.served_from_file(),
        Kind::Reload(_) => {
            let vms = in_force.server.host().vms.values();
            vms.flat_map(|vm| vm.volumes.keys().map(|volume| format!("{}/{volume}", vm.name))).collect()
        }
        Kind::Request(..) | Kind::Retry(_) | Kind::Expiry(_) => return Ok(()),
    };
    if old.is_empty() || force.is_all() || host.vms.values().any(|vm| !(vm.volumes.is_empty() && vm.nics.is_empty())) {
        return Ok(());
    }
    let (count, first) = (old.len(), old.iter().take(3).cloned().collect::<Vec<_>>().join(", "));
    Err(Refused::Other(format!(
        "The host file has no volume, and {count} were served until now ({first}{}); correct the file, or repeat with --force '*'",
        if count > 3 { ", ..." } else { "" }
    )))
}

/// Has what the change promises more confirmed by the other hosts of its pools. What is served without being asked for is claimed when it is
/// in force: VMs do not wait for the other hosts.
async fn claim(shared: &Shared, kind: &Kind, ready: &Ready<'_>) -> Result<(), Refused> {
    let is_judged = match kind {
        Kind::Start(start) => start.strict,
        Kind::Request(..) | Kind::Reload(_) => true,
        Kind::Retry(_) | Kind::Expiry(_) => false,
    };
    if !is_judged {
        return Ok(());
    }
    let claims = shared.in_force.borrow().server.claim(&ready.prepared);
    for ClaimOf { device, meeting, answer } in claims {
        let answer = tokio::select! {
            biased;
            () = shared.exit() => return Err(Refused::Exit),
            answer = timeout(PATH_TIMEOUT, answer) => answer,
        };
        let why = match answer {
            Ok(Ok(Ok(()))) => continue,
            Ok(Ok(Err(why))) => why,
            Ok(Err(_)) => "its exchange with other hosts has ended".to_owned(),
            Err(_) => format!("it has not responded for {} s", PATH_TIMEOUT.as_secs()),
        };
        return Err(Refused::Other(format!(
            "Device {device}: nothing more can be reserved of the pool that hosts share at {meeting}: {why}"
        )));
    }
    Ok(())
}

async fn claim_and_save(shared: &Shared, kind: &Kind, ready: &mut Ready<'_>) -> Result<(), Refused> {
    claim(shared, kind, ready).await?;
    // From here on nothing but the end of the daemon cancels it.
    save(shared, kind, ready).await
}

/// Writes what must be on disk before the change is in force, if anything must.
async fn save(shared: &Shared, kind: &Kind, ready: &mut Ready<'_>) -> Result<(), Refused> {
    let Ready { prepared, proposal, draft, keeper } = ready;
    record(&mut proposal.saved, prepared, &draft.all_held(kind, &shared.in_force.borrow()));
    let error = match saving::write(shared, keeper, proposal.dropin.take(), &proposal.saved).await {
        Some(Ok(_)) => return Ok(()),
        // The next start ends what is over.
        None if matches!(kind, Kind::Expiry(_)) => return Err(Refused::Exit),
        None => return Err(Refused::Other("The daemon is exiting".to_owned())),
        Some(Err(error)) => error,
    };
    if kind.purpose() == Purpose::Change {
        shared.tasks.unsaved.notify_one();
        return Err(Refused::Other(error));
    }
    saving::retry(shared, &error);
    Ok(())
}

fn commit(shared: &Shared, kind: &Kind, prepared: Prepared) -> Result<(Done, Effects), ServerError> {
    let _sockets = shared.sockets.enter();
    let server = &mut shared.in_force.borrow_mut().server;
    let effects = effects(kind, server, &prepared);
    let done = server.commit(prepared)?;
    effects.1.iter().for_each(|warning| tracing::warn!("{warning}"));
    Ok((done, effects))
}

/// Differences between two host files if a reload makes them, and warnings about the new one.
type Effects = (Vec<Effect>, Vec<String>);

fn effects(kind: &Kind, server: &Server, prepared: &Prepared) -> Effects {
    let plan = match kind {
        Kind::Reload(_) => plan::plan(server.host(), prepared.host()),
        _ => Vec::new(),
    };
    (plan, request_sizes::narrowed(server.host(), prepared.host()))
}

impl Ready<'_> {
    /// Returns what a file or a request would change.
    fn planned(&self, kind: &Kind, in_force: &InForce) -> Reply {
        if let Kind::Request(..) = kind {
            let warnings = request_sizes::narrowed(in_force.server.host(), self.prepared.host());
            return Reply::with(&preview(in_force.server.host(), self.prepared.host(), &warnings));
        }
        let (plan, warnings) = effects(kind, &in_force.server, &self.prepared);
        let overrides = with_file(&self.proposal.saved.overrides, &self.proposal.gone);
        let held = self.draft.all_held(kind, in_force);
        let held = held.iter().map(|(name, how)| (name, how.as_str()));
        Reply::with(&plan::result(&plan, held, overrides, &warnings))
    }
}

/// Reports why a change is not made. Returns the answer to the one who asked for it.
fn refuse(shared: &Rc<Shared>, kind: Kind, refused: Refused) -> Option<Reply> {
    let failed = |error: &str| Some(Reply::failed(Code::Refused, error));
    let was_tried = !matches!(refused, Refused::Exit | Refused::Replaced | Refused::OtherFile(_));
    if let Kind::Reload(asked) = &kind
        && !kind.is_dry_run()
        && was_tried
    {
        let event = reload::refused(&mut shared.in_force.borrow_mut(), asked.as_ref(), &refused);
        shared.report([event]);
    }
    let words = refused.in_words();
    let error = match refused {
        Refused::Exit => return None,
        Refused::Reply(reply) => return Some(reply),
        Refused::Replaced | Refused::OtherFile(_) => return failed(&words),
        Refused::File(found) => match &kind {
            Kind::Expiry(_) => words,
            Kind::Reload(_) if kind.is_dry_run() => return Some(reload::invalid(found)),
            Kind::Reload(_) => {
                return Some(reload::refuse_file(found, &shared.in_force.borrow().state.saved.overrides));
            }
            Kind::Start(_) | Kind::Request(..) | Kind::Retry(_) => {
                crate::output::message(&found);
                "the configuration would not be valid; see above".to_owned()
            }
        },
        Refused::Server(error) if matches!(kind, Kind::Start(_)) => {
            let _ = shared.news.send(ServerEvent::Started(Err(error.into_failure())));
            return None;
        }
        Refused::Server(_) | Refused::Hangs(..) | Refused::Other(_) => words,
    };
    match kind {
        Kind::Start(_) => drop(shared.news.send(ServerEvent::Started(Err(Failure::Run(error.into()))))),
        Kind::Request(Request::Reset { .. }, ..) => {
            return failed(&format!(
                "{error}. Nothing was taken back; `sluice reset` takes changes that `sluice get overrides` lists back by name"
            ));
        }
        Kind::Request(..) => return failed(&error),
        Kind::Reload(_) if kind.is_dry_run() => return failed(&error),
        Kind::Reload(_) => {
            tracing::error!(error, "Reload failed: the running configuration is unchanged");
            return failed(&error);
        }
        Kind::Retry(name) => {
            let (vm, volume) = name.parts();
            tracing::error!(vm, volume = &*volume, error, "{} stays out of service", name.kind());
        }
        Kind::Expiry(names) => {
            let halves = expiry::halves(&mut shared.in_force.borrow_mut().state, &names, &error);
            halves.into_iter().for_each(|names| begin(shared, Kind::Expiry(names), None));
        }
    }
    None
}

impl Kind {
    pub(super) fn purpose(&self) -> Purpose {
        match self {
            Kind::Start(_) => Purpose::Start,
            // No retry runs beside it.
            Kind::Request(Request::Takeover { target, .. }, ..) if target.contains('/') => {
                let (vm, volume) = target.split_once('/').unwrap_or_default();
                Purpose::Retry(ObjectId::volume(vm, volume))
            }
            Kind::Request(..) | Kind::Reload(_) => Purpose::Change,
            Kind::Retry(name) => Purpose::Retry(name.clone()),
            Kind::Expiry(names) => Purpose::Expiry(names.clone()),
        }
    }

    /// Whether it looks at all volumes again, also at those that are held back.
    fn looks_at_all(&self) -> bool {
        matches!(self, Kind::Start(_) | Kind::Reload(_))
    }

    fn force(&self) -> Force {
        match self {
            Kind::Start(start) => start.force.clone(),
            Kind::Request(request, ..) | Kind::Reload(Some((request, _))) => Force::new(request.force().to_vec()),
            Kind::Reload(None) | Kind::Retry(_) | Kind::Expiry(_) => Force::default(),
        }
    }

    fn is_dry_run(&self) -> bool {
        match self {
            Kind::Reload(Some((Request::Apply { dry_run, .. }, _))) => *dry_run,
            Kind::Request(_, _, manner) => manner.is_dry_run,
            _ => false,
        }
    }
}
