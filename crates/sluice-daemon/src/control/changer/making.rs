//! Makes a change: proposes it, prepares it, writes the state, puts it into force.
//!
//! ```text
//! propose --> prepare <--> helper
//!                |
//!                '--> save (the keeper's thread) --> commit --> reply
//! ```
//!
//! The state is written between the part that may fail and the part that may not, and before the reply. From the write
//! to the commit no other change is made, so what is written is what is in force. A change that cannot be written is
//! refused; a start, a retry and an expiry are made all the same, and the write is repeated. If the state directory
//! hangs, changes that need it are refused until it responds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_api::change::{Effect, Plan};
use sluice_config::{DaemonSettings, Diagnostics, Host};

use super::super::apply::{self, Proposal};
use super::super::socket::Asked;
use super::super::{Code, Reply, Request, plan};
use super::helpers::hangs;
use super::record::record;
use super::watch::serving;
use super::{
    Attempt, Kind, Outcome, PATH_TIMEOUT, REMOVED_VOLUME_TIMEOUT, Reload, ServerEvent, Start, Thread, WaitsFor, aside,
};
use crate::failure::{Failure, chain};
use crate::metrics::Load;
use crate::request_sizes;
use crate::server::{Done, Extra, Force, Found, Guard, Prepared, Progress, ServerError, Step, without};
use crate::state::Saved;
use crate::state::dropin::{DropIn, Undo};
use crate::state::keeper::{Job, Written};
use crate::state::overrides::{Override, report_gone, with_file};
use crate::state::time::Time;

/// Interval between attempts to write a state that could not be written.
const REPEAT_EVERY: Duration = Duration::from_secs(10);

/// A change that is being saved.
pub(super) struct Saving {
    pub(super) number: u64,
    since: Instant,
    saved: Option<Saved>,
    /// `None`: the state in force is written again, for no change.
    pub(super) change: Option<(Attempt, Proposal, Prepared)>,
}

pub(super) enum Refused {
    Reply(Reply),
    File(Diagnostics),
}

impl Thread {
    /// Makes the change, or starts to wait for what it needs.
    pub(super) fn advance(&mut self, mut attempt: Attempt) {
        if self.saving.is_some() {
            attempt.waits = WaitsFor::Turn;
            return self.attempts.push(attempt);
        }
        let proposal = match attempt.proposal.take() {
            Some((version, proposal)) if version == self.version => Ok(proposal),
            Some(_) => {
                // What it has found different may be another volume now.
                attempt.held.clear();
                self.propose(&mut attempt)
            }
            None => self.propose(&mut attempt),
        };
        let proposal = match proposal {
            Ok(proposal) => proposal,
            Err(Refused::Reply(reply)) => return answer(attempt, reply),
            Err(Refused::File(diagnostics)) => return self.refuse_file(attempt, &diagnostics),
        };
        let force = attempt.force();
        if let Err(error) = self.refuse_nothing(&attempt, &proposal.host, &force) {
            return self.refuse(attempt, &error);
        }
        let leaving = self.server.had_removed();
        let held = self.held_with(&attempt);
        let guard = Guard { saved: &proposal.saved, force: &force, held: &held };
        let host = match held.is_empty() {
            true => Arc::clone(&proposal.host),
            false => Arc::new(without(&proposal.host, held.keys()).into_owned()),
        };
        match self.server.prepare(&host, &proposal.extra, &mut attempt.found, &guard) {
            Ok(Step::Prepared(prepared)) if attempt.is_dry_run() => self.planned(attempt, &proposal, &host, *prepared),
            Ok(Step::Prepared(prepared)) if attempt.is_void(&prepared) => {
                self.server.still_missing(*prepared);
            }
            Ok(Step::Prepared(prepared)) => self.save(attempt, proposal, *prepared),
            Ok(Step::Held(held)) => self.hold(attempt, held),
            Ok(Step::Needs(needs)) => {
                attempt.proposal = Some((self.version, proposal));
                self.help(attempt, &needs.paths(), move |progress: &Progress| {
                    needs.meet(progress);
                    Outcome::Found
                });
            }
            Err(error) if error.is_busy() && leaving && attempt.since.elapsed() < REMOVED_VOLUME_TIMEOUT => {
                (attempt.found, attempt.waits, attempt.has_waited) = (Found::default(), WaitsFor::RemovedVolume, true);
                self.attempts.push(attempt);
            }
            Err(error) => {
                if matches!(attempt.kind, Kind::Reload(_)) {
                    self.warn(&proposal.host);
                }
                // Its sockets are removed before the rejection is reported, because a rejected start ends the
                // process.
                attempt.found = Found::default();
                self.failed(attempt, error);
            }
        }
    }

    /// Rejects a file without volumes if there are some now: it is more likely a mistake than a wish.
    fn refuse_nothing(&self, attempt: &Attempt, host: &Host, force: &Force) -> Result<(), String> {
        let old = match &attempt.kind {
            Kind::Start(start) => start.served_from_file(),
            Kind::Reload(_) => {
                let vms = self.server.host().vms.values();
                vms.flat_map(|vm| vm.volumes.keys().map(|volume| format!("{}/{volume}", vm.name))).collect()
            }
            Kind::Change(_) | Kind::Retry(_) | Kind::Expire(_) => return Ok(()),
        };
        if old.is_empty()
            || force.is_all()
            || host.vms.values().any(|vm| !(vm.volumes.is_empty() && vm.nics.is_empty()))
        {
            return Ok(());
        }
        let (count, first) = (old.len(), old.iter().take(3).cloned().collect::<Vec<_>>().join(", "));
        Err(format!(
            "The host file has no volume, and {count} were served until now ({first}{}); correct the file, or repeat with --force '*'",
            if count > 3 { ", ..." } else { "" }
        ))
    }

    /// Answers what a file would change.
    fn planned(&mut self, attempt: Attempt, proposal: &Proposal, host: &Host, prepared: Prepared) {
        drop(prepared);
        let plan = plan::plan(self.server.host(), host);
        let warnings = request_sizes::narrowed(self.server.host(), host);
        let held = self.held_with(&attempt);
        if let Kind::Reload(Reload { asked: Some(asked), .. }) = attempt.kind {
            let overrides = with_file(&proposal.saved.overrides, &proposal.gone);
            let _ = asked.reply.send(Reply::with(&plan::result(&plan, &held, overrides, &warnings)));
        }
    }

    /// Prints warnings about a reloaded file.
    fn warn(&self, host: &Host) {
        host.warnings.iter().for_each(crate::output::message);
        let socket = |settings: &DaemonSettings| {
            let access = &settings.access;
            (settings.control.clone(), access.group.clone(), access.mode)
        };
        if socket(&host.daemon) != socket(&self.at_start) {
            tracing::warn!("Restart the daemon to change the path, the group or the mode of the control socket");
        }
        if host.daemon.metrics != self.at_start.metrics {
            tracing::warn!("Restart the daemon to change where metrics are served");
        }
        if host.daemon.real_time != self.at_start.real_time {
            tracing::warn!("Restart the daemon to change real_time: its threads keep the priority that they have");
        }
        if host.daemon.state != self.server.host().daemon.state {
            tracing::warn!("Restart the daemon to move the state directory");
        }
    }

    fn propose(&self, attempt: &mut Attempt) -> Result<Proposal, Refused> {
        let saved = self.state.saved.clone();
        match &mut attempt.kind {
            Kind::Start(start) => {
                let Start { host, saved, gone, strict, .. } = &**start;
                let extra = if *strict { Extra::Nothing } else { Extra::Tolerate };
                let mut proposal = Proposal::of(Arc::clone(host), saved.clone(), gone.clone());
                proposal.extra = extra;
                Ok(proposal)
            }
            Kind::Retry(name) => Ok(Proposal::retry(Arc::clone(self.server.host()), saved, name.clone())),
            Kind::Expire(names) => {
                let (mut saved, files) = (saved, &self.state.files);
                let mut gone = saved.overrides.expire(Time::now(), |known| !names.contains(&known.name()));
                gone.extend(saved.overrides.settle(files));
                let host = files.changed(&saved.overrides.changes()).map_err(Refused::File)?;
                Ok(Proposal::of(Arc::new(host), saved, gone))
            }
            Kind::Reload(Reload { read, .. }) => {
                let files = &read.as_ref().expect("a file is applied when it has been read").files;
                let mut saved = saved;
                let gone = saved.overrides.settle(files);
                // What was set aside is tried again. A file that another change does not fit is refused.
                let before = saved.overrides.clone();
                if saved.overrides.fit(files, || {}) {
                    saved.overrides = before;
                }
                let host = files.changed(&saved.overrides.changes()).map_err(Refused::File)?;
                attempt.held.extend(aside::held(&saved.overrides, &host));
                Ok(Proposal::of(Arc::new(host), saved, gone))
            }
            Kind::Change(Asked { request, peer, .. }) => {
                let folder = self.keeper.folder().map(|path| &**path);
                let place = apply::Place { file: &self.file, folder, now: Time::now() };
                apply::propose(&self.server, &self.state, &place, (request, peer)).map_err(Refused::Reply)
            }
        }
    }

    /// Writes what must be on disk before the change is in force, if anything must.
    fn save(&mut self, attempt: Attempt, mut proposal: Proposal, mut prepared: Prepared) {
        if let Err(error) = self.server.refuse_clients(&mut prepared) {
            drop(prepared);
            return self.failed(attempt, error);
        }
        record(&mut proposal.saved, &prepared, &self.held_with(&attempt));
        let saved = self.to_write(&proposal.saved);
        if saved.is_none() && proposal.dropin.is_none() {
            return self.commit(attempt, proposal, prepared, None);
        }
        if self.hung_save.is_some() {
            return self.not_saved(attempt, proposal, prepared, &self.hangs());
        }
        let dropin = proposal.dropin.clone();
        self.write(dropin, saved, Some((attempt, proposal, prepared)));
    }

    /// Returns the state for the state directory if that has another one, or may have.
    pub(super) fn to_write(&self, saved: &Saved) -> Option<Saved> {
        let saved = Saved { overrides: saved.overrides.without_persisted(), ..saved.clone() };
        (self.keeper.folder().is_some() && self.on_disk.as_ref() != Some(&saved)).then_some(saved)
    }

    fn write(&mut self, dropin: Option<DropIn>, saved: Option<Saved>, change: Option<(Attempt, Proposal, Prepared)>) {
        self.next += 1;
        let (number, since) = (self.next, Instant::now());
        self.keeper.run(Job { number, dropin, saved: saved.clone(), ..Job::default() });
        self.saving = Some(Saving { number, since, saved, change });
    }

    fn hangs(&self) -> String {
        let folder = self.keeper.folder().map_or_else(|| self.file.with_extension("d"), Clone::clone);
        hangs(&folder, PATH_TIMEOUT)
    }

    /// The keeper has finished a job.
    pub(super) fn saved(&mut self, number: u64, result: Written) {
        if self.hung_save == Some(number) {
            // What is on disk now is not known, so it is written again. The change was refused.
            (self.hung_save, self.on_disk) = (None, None);
            self.put_back(result.ok().flatten());
            return self.repeat();
        }
        let Some(Saving { saved, change, .. }) = self.saving.take_if(|saving| saving.number == number) else { return };
        if let Some(saved) = saved {
            // A write that failed may have failed after the file was replaced.
            self.on_disk = result.is_ok().then_some(saved);
        }
        match (result, change) {
            (Ok(undo), Some((attempt, proposal, prepared))) => self.commit(attempt, proposal, prepared, undo),
            (Err(error), Some((attempt, proposal, prepared))) => self.not_saved(attempt, proposal, prepared, &error),
            (Ok(_), None) => tracing::info!("State directory is up to date again"),
            (Err(error), None) => {
                tracing::error!(
                    error,
                    "Cannot write the state directory: its content differs from the changes in force; retrying"
                );
                self.repeat_later();
            }
        }
    }

    /// Gives up a write that hangs.
    pub(super) fn check_saving(&mut self) {
        let is_late = |saving: &mut Saving| saving.since.elapsed() >= PATH_TIMEOUT;
        if let Some(Saving { number, change, .. }) = self.saving.take_if(is_late) {
            self.hung_save = Some(number);
            let error = self.hangs();
            match change {
                Some((attempt, proposal, prepared)) => self.not_saved(attempt, proposal, prepared, &error),
                None => tracing::error!(
                    error,
                    "Cannot write the state directory: its content differs from the changes in force"
                ),
            }
        }
        if self.repeat_at.is_some_and(|at| Instant::now() >= at) {
            self.repeat();
        }
    }

    fn repeat_later(&mut self) {
        self.repeat_at = Some(Instant::now() + REPEAT_EVERY);
    }

    /// Writes the state in force if the state directory has another one.
    fn repeat(&mut self) {
        if self.saving.is_some() || self.hung_save.is_some() {
            return;
        }
        self.repeat_at = None;
        if let Some(saved) = self.to_write(&self.state.saved) {
            self.write(None, Some(saved), None);
        }
    }

    /// The change could not be saved. A change without a client that waits for its result is made all the same.
    fn not_saved(&mut self, attempt: Attempt, proposal: Proposal, prepared: Prepared, error: &str) {
        match attempt.kind {
            Kind::Change(_) | Kind::Reload(_) => {
                drop(prepared);
                self.refuse(attempt, error);
                self.repeat_later();
            }
            Kind::Start(_) | Kind::Retry(_) | Kind::Expire(_) => {
                tracing::error!(
                    error,
                    "Cannot write the state directory: its content differs from the changes in force; retrying"
                );
                self.repeat_later();
                self.commit(attempt, proposal, prepared, None);
            }
        }
    }

    /// `undo` takes back what was written into a drop-in, if the change cannot be made.
    fn commit(&mut self, attempt: Attempt, proposal: Proposal, prepared: Prepared, undo: Option<Undo>) {
        let plan = match attempt.kind {
            Kind::Reload(_) => plan::plan(self.server.host(), prepared.host()),
            _ => Vec::new(),
        };
        let warnings = request_sizes::narrowed(self.server.host(), prepared.host());
        match self.server.commit(prepared) {
            Ok(done) => {
                warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                self.done(attempt, proposal, &done, (&plan, &warnings));
            }
            Err(error) => {
                // It was saved, and is not in force.
                self.put_back(undo);
                self.failed(attempt, error);
                self.repeat();
            }
        }
    }

    /// Takes back what was written into a drop-in for a change that is not made. Returns the number of the job.
    pub(super) fn put_back(&mut self, undo: Option<Undo>) -> Option<u64> {
        undo.map(|undo| {
            self.next += 1;
            self.keeper.run(Job { number: self.next, undo: Some(undo), ..Job::default() });
            self.next
        })
    }

    fn done(&mut self, attempt: Attempt, proposal: Proposal, done: &Done, (plan, warnings): (&[Effect], &[String])) {
        self.version += 1;
        if attempt.has_waited {
            let waited_ms = attempt.since.elapsed().as_millis();
            tracing::info!(waited_ms, "Waited for in-flight requests of a detached volume");
        }
        // The change may have removed the last device that was not down.
        self.check_devices();
        let held = self.held_with(&attempt);
        let before = std::mem::replace(&mut self.server.held, held);
        for name in before.into_keys().filter(|name| !self.server.held.contains_key(name)) {
            let (vm, volume) = name.parts();
            tracing::info!(vm, volume = &*volume, "Volume is not held back any more");
        }
        report_gone(&proposal.gone);
        match attempt.kind {
            Kind::Start(_) => {
                self.state.saved = proposal.saved;
                self.await_clients_of_overdue();
                self.report_kept();
                self.stated = self.version;
                // A client that waits for the start may ask at once.
                self.publish();
                drop(
                    self.news.send(ServerEvent::Started(Ok((serving(&self.server), self.watch.status(&self.server))))),
                );
            }
            Kind::Retry(_) => self.state.saved = proposal.saved,
            Kind::Expire(names) => {
                self.state.saved = proposal.saved;
                self.state.overdue.retain(|name, _| !names.contains(name));
            }
            Kind::Change(Asked { reply, .. }) => {
                let done = (done.unapplied.as_slice(), warnings);
                let _ = reply.send(apply::accept(&self.server, &mut self.state, proposal, done));
            }
            Kind::Reload(reload) => self.reloaded(reload, proposal, done, (plan, warnings)),
        }
    }

    /// Records and reports a reload that is in force.
    fn reloaded(
        &mut self,
        Reload { read, asked }: Reload,
        proposal: Proposal,
        done: &Done,
        (plan, warnings): (&[Effect], &[String]),
    ) {
        self.warn(&proposal.host);
        let read = read.expect("a file is applied when it has been read");
        (self.state.files, self.state.saved) = (read.files, proposal.saved);
        self.roles = read.roles;
        let who = asked.as_ref().map_or_else(|| "SIGHUP".to_owned(), |asked| asked.peer.to_string());
        plan::log(plan, &who);
        self.report_kept();
        self.load = Load::now(done.unapplied.is_empty());
        let (changes, kept) = (done.changes, self.state.saved.overrides.in_force().count());
        let files = self.state.files.names().collect::<Vec<_>>().join(" ");
        let reason = asked.as_ref().and_then(|asked| match &asked.request {
            Request::Apply { reason, .. } => reason.as_deref(),
            _ => None,
        });
        match done.unapplied.is_empty() {
            true => tracing::info!(changes, kept, who, files, reason, "Reload applied"),
            false => tracing::error!(
                changes,
                kept,
                who,
                files,
                reason,
                "Only part of the reload was applied: some devices have not confirmed their part"
            ),
        }
        let overrides = with_file(&self.state.saved.overrides, &proposal.gone);
        answer_reload(asked, &plan::result(plan, &self.server.held, overrides, warnings), &done.unapplied);
    }

    /// Writes a line for each override that is still in force, and for each that stays set aside.
    fn report_kept(&self) {
        for known in self.state.saved.overrides.aside() {
            let (name, value) = (known.name(), known.value());
            tracing::warn!(name, value, "Override stays set aside: with it the host file is not valid");
        }
        for kept in self.state.saved.overrides.in_force() {
            let (name, value, hides, until) = (kept.name(), kept.value(), kept.hidden(), kept.lasts.to_string());
            tracing::info!(name, value, hides, until, "Override stays in force and replaces the file's value");
        }
    }

    /// Records that the host file could not be loaded, if the attempt was to do that.
    fn count_refused(&mut self, attempt: &Attempt) {
        if matches!(attempt.kind, Kind::Reload(_)) && !attempt.is_dry_run() {
            self.load = Load::now(false);
        }
    }

    fn failed(&mut self, attempt: Attempt, error: ServerError) {
        let Some(attempt) = self.without_used(attempt, &error) else { return };
        match attempt.kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Err(error.into_failure())))),
            _ => self.refuse(attempt, &chain(&error)),
        }
    }

    /// Rejects the attempt. The configuration in force does not change.
    pub(super) fn refuse(&mut self, attempt: Attempt, error: &str) {
        self.count_refused(&attempt);
        let Attempt { kind, found, waits, .. } = attempt;
        drop((found, waits));
        match kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Err(Failure::Run(error.into()))))),
            Kind::Change(Asked { reply, request: Request::Reset { .. }, .. }) => {
                let error = format!(
                    "{error}. Nothing was taken back; `sluice reset` takes changes that `sluice get overrides` lists back by name"
                );
                drop(reply.send(Reply::failed(Code::Refused, error)));
            }
            Kind::Change(Asked { reply, .. }) => drop(reply.send(Reply::failed(Code::Refused, error))),
            Kind::Reload(reload) => {
                tracing::error!(error, "Reload failed: the running configuration is unchanged");
                reload.answer(Code::Refused, error);
            }
            Kind::Retry(name) => {
                let (vm, volume) = name.parts();
                tracing::error!(vm, volume = &*volume, error, "{} stays out of service", name.kind());
            }
            Kind::Expire(names) => self.cannot_end(&names, error),
        }
    }

    /// Rejects files with errors.
    pub(super) fn refuse_file(&mut self, attempt: Attempt, diagnostics: &Diagnostics) {
        let without_warnings = || diagnostics.clone().without_warnings().to_string();
        if let Kind::Expire(names) = &attempt.kind {
            return self.cannot_end(names, &without_warnings());
        }
        crate::output::message(diagnostics);
        self.count_refused(&attempt);
        match attempt.kind {
            Kind::Reload(_) => {
                if self.state.saved.overrides.len() > 0 {
                    let names: Vec<String> = self.state.saved.overrides.iter().map(|known| known.name()).collect();
                    let overrides = names.join(", ");
                    tracing::error!(
                        overrides,
                        "The files were checked with these overrides applied; `sluice reset` removes overrides"
                    );
                }
                let errors = diagnostics.errors();
                tracing::error!(errors, "Reload rejected: the running configuration is unchanged");
                if let Kind::Reload(reload) = attempt.kind {
                    reload.answer(Code::Invalid, &without_warnings());
                }
            }
            _ => self.refuse(attempt, "the configuration would not be valid; see above"),
        }
    }
}

fn answer_reload(asked: Option<Asked>, plan: &Plan, unapplied: &[ServerError]) {
    let Some(asked) = asked else { return };
    let mut reply = Reply::with(plan);
    if !unapplied.is_empty() {
        let errors: Vec<_> = unapplied.iter().map(ToString::to_string).collect();
        (reply.ok, reply.code, reply.error) = (false, Some(Code::Incomplete), Some(errors.join("; ")));
    }
    let _ = asked.reply.send(reply);
}

impl Attempt {
    /// Whether it is a retry that changes nothing, not even what is held back.
    fn is_void(&self, prepared: &Prepared) -> bool {
        matches!(self.kind, Kind::Retry(_)) && self.held.is_empty() && prepared.is_void()
    }

    fn force(&self) -> Force {
        match &self.kind {
            Kind::Start(start) => start.force.clone(),
            Kind::Change(asked) | Kind::Reload(Reload { asked: Some(asked), .. }) => {
                Force::new(asked.request.force().to_vec())
            }
            Kind::Reload(_) | Kind::Retry(_) | Kind::Expire(_) => Force::default(),
        }
    }

    fn is_dry_run(&self) -> bool {
        let Kind::Reload(Reload { asked: Some(asked), .. }) = &self.kind else { return false };
        matches!(asked.request, Request::Apply { dry_run: true, .. })
    }
}

impl Start {
    /// Returns the volumes that the host file had when they were last served: not those that a change made at run time had added
    /// which ended meanwhile or is set aside. Of a damaged state it is not known which these are.
    fn served_from_file(&self) -> Vec<String> {
        if self.is_damaged {
            return Vec::new();
        }
        let ended = self.gone.iter().map(|(old, _)| old);
        let attached: Vec<&Override> =
            ended.chain(self.saved.overrides.aside()).filter(|known| known.is_attach()).collect();
        let served = self.saved.exports.iter().filter(|(_, served)| !served.gone).map(|(name, _)| name);
        served.filter(|name| !attached.iter().any(|known| known.concerns(name))).cloned().collect()
    }
}

impl Reload {
    fn answer(self, code: Code, error: &str) {
        if let Some(asked) = self.asked {
            let _ = asked.reply.send(Reply::failed(code, error));
        }
    }
}

/// A later reload replaces this one.
pub(super) fn replaced(attempt: Attempt) {
    if let Kind::Reload(reload) = attempt.kind {
        reload.answer(Code::Refused, "A later reload has replaced this one; its result is in the log");
    }
}

pub(super) fn answer(attempt: Attempt, answer: Reply) {
    if let Kind::Change(Asked { reply, .. }) = attempt.kind {
        let _ = reply.send(answer);
    }
}
