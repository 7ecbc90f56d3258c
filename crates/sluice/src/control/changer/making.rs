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
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use sluice_config::{Diagnostics, Host};

use super::super::apply::{self, Proposal};
use super::super::socket::Asked;
use super::super::{Code, Reply};
use super::helpers::hangs;
use super::{
    Attempt, Event, Kind, Outcome, PATH_TIMEOUT, REMOVED_VOLUME_TIMEOUT, ServerEvent, Start, Thread, WaitsFor,
};
use crate::failure::{Failure, chain};
use crate::server::{Done, Found, Prepared, Progress, ServerError, Step};
use crate::state::Saved;
use crate::state::dropin::DropIn;
use crate::state::keeper::Job;
use crate::state::overrides::report_gone;
use crate::state::time::Time;

/// Interval between attempts to write a state that could not be written, and to end what has expired.
const REPEAT_EVERY: Duration = Duration::from_secs(10);
/// Maximum time for the last write before the daemon exits.
const LAST_WRITE_MAX: Duration = Duration::from_secs(1);

/// A change that is being saved.
pub(super) struct Saving {
    number: u64,
    since: Instant,
    saved: Option<Saved>,
    /// `None`: the state in force is written again, for no change.
    change: Option<(Attempt, Proposal, Prepared)>,
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
        let known = attempt.proposal.take().filter(|(version, _)| *version == self.version);
        let proposal = match known.map_or_else(|| self.propose(&mut attempt), |(_, proposal)| Ok(proposal)) {
            Ok(proposal) => proposal,
            Err(Refused::Reply(reply)) => return answer(attempt, reply),
            Err(Refused::File(diagnostics)) => return self.refuse_file(attempt, &diagnostics),
        };
        let leaving = self.server.had_removed();
        match self.server.prepare(&proposal.host, &proposal.extra, &mut attempt.found) {
            Ok(Step::Prepared(prepared)) => self.save(attempt, proposal, *prepared),
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

    /// Prints warnings about a reloaded file.
    fn warn(&self, host: &Host) {
        host.warnings.iter().for_each(crate::output::message);
        if host.daemon.control != self.control {
            tracing::warn!("Restart the daemon to move the control socket");
        }
        if host.daemon.state != self.server.host().daemon.state {
            tracing::warn!("Restart the daemon to move the state directory");
        }
    }

    fn propose(&self, attempt: &mut Attempt) -> Result<Proposal, Refused> {
        let saved = self.state.saved.clone();
        match &mut attempt.kind {
            Kind::Start(start) => {
                let Start { host, saved, gone } = &**start;
                Ok(Proposal::of(Arc::clone(host), saved.clone(), gone.clone()))
            }
            Kind::Retry(name) => Ok(Proposal::retry(Arc::clone(self.server.host()), saved, name.clone())),
            Kind::Expire => {
                let (mut saved, files) = (saved, &self.state.files);
                let mut gone = saved.overrides.expire(Time::now());
                gone.extend(saved.overrides.settle(files));
                let host = files.changed(&saved.overrides.changes()).map_err(Refused::File)?;
                Ok(Proposal::of(Arc::new(host), saved, gone))
            }
            Kind::Reload(read) => {
                let files = &read.as_ref().expect("a file is applied when it has been read").0;
                let mut saved = saved;
                let gone = saved.overrides.settle(files);
                let host = files.changed(&saved.overrides.changes()).map_err(Refused::File)?;
                Ok(Proposal::of(Arc::new(host), saved, gone))
            }
            Kind::Change(Asked { request, peer, .. }) => {
                let folder = self.keeper.folder().map(|path| &**path);
                let place = apply::Place { file: &self.file, folder, now: Time::now() };
                apply::propose(&self.server, &self.state, &place, (request, *peer)).map_err(Refused::Reply)
            }
        }
    }

    /// Writes what must be on disk before the change is in force, if anything must.
    fn save(&mut self, attempt: Attempt, proposal: Proposal, prepared: Prepared) {
        let saved = self.to_write(&proposal.saved);
        if saved.is_none() && proposal.dropin.is_none() {
            return self.commit(attempt, proposal, prepared);
        }
        if self.hung_save.is_some() {
            return self.not_saved(attempt, proposal, prepared, &self.hangs());
        }
        let dropin = proposal.dropin.clone();
        self.write(dropin, saved, Some((attempt, proposal, prepared)));
    }

    /// Returns the state for the state directory if that has another one, or may have.
    fn to_write(&self, saved: &Saved) -> Option<Saved> {
        let saved = Saved { overrides: saved.overrides.without_persisted() };
        (self.keeper.folder().is_some() && self.on_disk.as_ref() != Some(&saved)).then_some(saved)
    }

    fn write(&mut self, dropin: Option<DropIn>, saved: Option<Saved>, change: Option<(Attempt, Proposal, Prepared)>) {
        self.next += 1;
        let (number, since) = (self.next, Instant::now());
        self.keeper.run(Job { number, dropin, saved: saved.clone() });
        self.saving = Some(Saving { number, since, saved, change });
    }

    fn hangs(&self) -> String {
        let folder = self.keeper.folder().map_or_else(|| self.file.with_extension("d"), Clone::clone);
        hangs(&folder, PATH_TIMEOUT)
    }

    /// The keeper has finished a job.
    pub(super) fn saved(&mut self, number: u64, result: Result<(), String>) {
        if self.hung_save == Some(number) {
            // What is on disk now is not known, so it is written again.
            (self.hung_save, self.on_disk) = (None, None);
            return self.repeat();
        }
        let Some(Saving { saved, change, .. }) = self.saving.take_if(|saving| saving.number == number) else { return };
        if let Some(saved) = saved {
            // A write that failed may have failed after the file was replaced.
            self.on_disk = result.is_ok().then_some(saved);
        }
        match (result, change) {
            (Ok(()), Some((attempt, proposal, prepared))) => self.commit(attempt, proposal, prepared),
            (Err(error), Some((attempt, proposal, prepared))) => self.not_saved(attempt, proposal, prepared, &error),
            (Ok(()), None) => tracing::info!("State directory is up to date again"),
            (Err(error), None) => {
                tracing::error!(error, "State directory differs from what is in force; retrying");
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
                None => tracing::error!(error, "State directory differs from what is in force"),
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

    /// The change could not be saved. A change that nobody asked for just now is made all the same.
    fn not_saved(&mut self, attempt: Attempt, proposal: Proposal, prepared: Prepared, error: &str) {
        match attempt.kind {
            Kind::Change(_) | Kind::Reload(_) => {
                drop(prepared);
                self.refuse(attempt, error);
                self.repeat_later();
            }
            Kind::Start(_) | Kind::Retry(_) | Kind::Expire => {
                tracing::error!(error, "State directory differs from what is in force; retrying");
                self.repeat_later();
                self.commit(attempt, proposal, prepared);
            }
        }
    }

    fn commit(&mut self, attempt: Attempt, proposal: Proposal, prepared: Prepared) {
        match self.server.commit(prepared) {
            Ok(done) => self.done(attempt, proposal, &done),
            Err(error) => {
                self.failed(attempt, error);
                // It was saved, and is not in force.
                self.repeat();
            }
        }
    }

    fn done(&mut self, attempt: Attempt, proposal: Proposal, done: &Done) {
        self.version += 1;
        if attempt.has_waited {
            let waited_ms = attempt.since.elapsed().as_millis();
            tracing::info!(waited_ms, "Waited for in-flight requests of a detached volume");
        }
        // The change may have removed the last device that was not down.
        self.check_devices();
        report_gone(&proposal.gone);
        match attempt.kind {
            Kind::Start(_) => {
                self.state.saved = proposal.saved;
                self.report_kept();
                drop(self.news.send(ServerEvent::Started(Ok(()))));
            }
            Kind::Retry(_) | Kind::Expire => self.state.saved = proposal.saved,
            Kind::Change(Asked { reply, .. }) => {
                let _ = reply.send(apply::accept(&self.server, &mut self.state, proposal, &done.unapplied));
            }
            Kind::Reload(read) => {
                self.warn(&proposal.host);
                let read = read.expect("a file is applied when it has been read");
                (self.state.files, self.state.saved) = (read.0, proposal.saved);
                self.report_kept();
                let (changes, kept) = (done.changes, self.state.saved.overrides.len());
                match done.unapplied.is_empty() {
                    true => tracing::info!(changes, kept, "Reload applied"),
                    false => tracing::error!(
                        changes,
                        kept,
                        "Only part of the reload was applied: devices have not confirmed theirs"
                    ),
                }
            }
        }
    }

    /// Writes a line for each override that is still in force.
    fn report_kept(&self) {
        for kept in self.state.saved.overrides.iter() {
            let (name, value, hides, until) = (kept.name(), kept.value(), kept.hidden(), kept.lasts.to_string());
            tracing::info!(name, value, hides, until, "Override stays in force over the file");
        }
    }

    fn failed(&mut self, attempt: Attempt, error: ServerError) {
        match attempt.kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Err(error.into())))),
            _ => self.refuse(attempt, &chain(&error)),
        }
    }

    /// Rejects the attempt. The configuration in force does not change.
    pub(super) fn refuse(&mut self, attempt: Attempt, error: &str) {
        let Attempt { kind, found, waits, .. } = attempt;
        drop((found, waits));
        match kind {
            Kind::Start(_) => drop(self.news.send(ServerEvent::Started(Err(Failure::Run(error.into()))))),
            Kind::Change(Asked { reply, .. }) => drop(reply.send(Reply::failed(Code::Refused, error))),
            Kind::Reload(_) => tracing::error!(error, "Reload failed: the running configuration is unchanged"),
            Kind::Retry((vm, volume)) => tracing::error!(vm, volume, error, "Volume stays out of service"),
            Kind::Expire => {
                tracing::error!(
                    error,
                    "Expired overrides stay in force, because what they hide is not possible now; retrying"
                );
                self.repeat_later();
            }
        }
    }

    /// Rejects files with errors.
    pub(super) fn refuse_file(&mut self, attempt: Attempt, diagnostics: &Diagnostics) {
        crate::output::message(diagnostics);
        match attempt.kind {
            Kind::Reload(_) => {
                if self.state.saved.overrides.len() > 0 {
                    let names: Vec<String> = self.state.saved.overrides.iter().map(|known| known.name()).collect();
                    let overrides = names.join(", ");
                    tracing::error!(
                        overrides,
                        "Changes at run time apply to the files as well; `sluice reset` takes them back"
                    );
                }
                let errors = diagnostics.errors();
                tracing::error!(errors, "Reload rejected: the running configuration is unchanged");
            }
            _ => self.refuse(attempt, "the configuration would not be valid; see above"),
        }
    }

    /// Ends changes whose time is over.
    pub(super) fn expire(&mut self) {
        let is_due = self.state.saved.overrides.next_expiry().is_some_and(|at| at <= Time::now());
        let is_running = self.saving.is_some()
            || self.repeat_at.is_some()
            || self.attempts.iter().any(|attempt| matches!(attempt.kind, Kind::Start(_) | Kind::Expire));
        if is_due && !is_running {
            self.begin(Kind::Expire);
        }
    }

    /// Writes the state for the next start. A change that is being saved is not made, so it must not stay in the state.
    pub(super) fn end(&mut self, is_stop: bool, inbox: &Receiver<Event>) {
        if let Some(Saving { change: Some((attempt, _, prepared)), .. }) = self.saving.take() {
            drop(prepared);
            self.refuse(attempt, "The daemon is exiting");
            self.on_disk = None;
        }
        if is_stop {
            report_gone(&self.state.saved.overrides.stop());
        }
        let Some(saved) = self.to_write(&self.state.saved) else { return };
        self.next += 1;
        self.keeper.run(Job { number: self.next, dropin: None, saved: Some(saved) });
        let deadline = Instant::now() + LAST_WRITE_MAX;
        while let Ok(event) = inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            match event {
                Event::Saved(number, Ok(())) if number == self.next => return,
                Event::Saved(number, Err(error)) if number == self.next => {
                    return tracing::error!(error, "Changes until the restart may be in force after it");
                }
                _ => {}
            }
        }
        let error = hangs(self.keeper.folder().expect("there is a state to write"), LAST_WRITE_MAX);
        tracing::error!(error, "Changes until the restart may be in force after it");
    }
}

pub(super) fn answer(attempt: Attempt, answer: Reply) {
    if let Kind::Change(Asked { reply, .. }) = attempt.kind {
        let _ = reply.send(answer);
    }
}
