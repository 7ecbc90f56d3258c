//! What only a reload does: it reads the host file again, and reports its differences.

use std::path::{Path, PathBuf};

use sluice_api::change::Effect;
use sluice_api::event::Event;
use sluice_api::problem::Fault;
use sluice_api::status::RefusedReload;
use sluice_config::{DaemonSettings, Diagnostic, Diagnostics, Files, Host, Severity};

use super::helpers::Purpose;
use super::refused::Refused;
use super::shared::{InForce, Shared};
use crate::control::apply::{self, Proposal};
use crate::control::audit::Author;
use crate::control::describe::fault;
use crate::control::roles::{self, Roles};
use crate::control::socket::{Group, Peer};
use crate::control::{Code, Reply, Request, plan};
use crate::jail;
use crate::metrics::Load;
use crate::server::{Done, Progress};
use crate::state::Saved;
use crate::state::overrides::{Overrides, with_file};
use crate::state::time::Time;

/// The files, read again. They are right without changes at run time.
pub(super) struct Read {
    files: Files,
    roles: Roles,
}

/// Reads the host file again, on a helper thread; another one for a request that only asks what that would change.
pub(super) async fn read_again(shared: &Shared, asked: Option<&Request>) -> Result<Read, Refused> {
    let named = match asked {
        Some(Request::Apply { file: Some(file), dry_run, .. }) => Some((file.clone(), *dry_run)),
        _ => None,
    };
    let (file, group) = (shared.file.clone(), shared.in_force.borrow().roles.group);
    let paths = [file.clone()];
    let read = move |progress: &Progress| read(&file, named, group, progress);
    shared.helpers.run(Purpose::Change, &paths, read).await?.0
}

/// Reads the host file `file`, or `named`, which must be the same unless nothing is to change.
///
/// `group` owns the control socket.
fn read(
    file: &Path,
    named: Option<(PathBuf, bool)>,
    group: Option<Group>,
    progress: &Progress,
) -> Result<Read, Refused> {
    progress.set(file);
    let (named, dry_run) = named.unwrap_or_else(|| (file.to_owned(), false));
    let is_same =
        || named == file || matches!((named.canonicalize(), file.canonicalize()), (Ok(one), Ok(other)) if one == other);
    if !dry_run && !is_same() {
        let (named, own) = (named.display(), file.display());
        let error = format!(
            "The daemon serves {own}, not {named}; change {own}, or use --dry-run to see what {named} would change"
        );
        return Err(Refused::OtherFile(error));
    }
    let (files, host) = sluice_config::load_files(&named).map_err(Refused::File)?;
    progress.set(Path::new(roles::LOOKUP));
    Ok(Read { files, roles: Roles::of(&host.daemon.access, group) })
}

impl Read {
    /// Proposes the files with the changes made at run time that stay.
    pub(super) fn propose(&self, mut saved: Saved) -> Result<Proposal, Diagnostics> {
        let gone = saved.overrides.settle(&self.files);
        // What was set aside is tried again. A file that another change does not fit is refused.
        let before = saved.overrides.clone();
        if saved.overrides.fit(&self.files, || {}) {
            saved.overrides = before;
        }
        let host = self.files.changed(&saved.overrides.changes())?;
        Ok(Proposal::of(host.into(), saved, gone))
    }

    /// Records and reports a reload that is in force. Returns the reply to the request for it.
    pub(super) fn applied(
        self,
        in_force: &mut InForce,
        asked: Option<&(Request, Peer)>,
        proposal: Proposal,
        done: &Done,
        (plan, warnings): (&[Effect], &[String]),
    ) -> Reply {
        (in_force.state.files, in_force.state.saved, in_force.roles) = (self.files, proposal.saved, self.roles);
        let overrides = &in_force.state.saved.overrides;
        let who = asked.map_or_else(|| "SIGHUP".to_owned(), |(_, peer)| peer.to_string());
        plan::log(plan, &who);
        report_kept(overrides);
        in_force.load = Load::now(done.unapplied.is_empty());
        let (changes, kept) = (done.changes, overrides.in_force().count());
        let files = in_force.state.files.names().collect::<Vec<_>>().join(" ");
        let reason = asked.and_then(|(request, _)| request.reason());
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
        let overrides = with_file(overrides, &proposal.gone);
        let result = plan::result(plan, in_force.server.absent().held_back(), overrides, warnings);
        apply::with_unapplied(Reply::with(&result), &done.unapplied)
    }
}

/// The author of a reload: the client that has asked, or the sender of the signal.
pub(super) fn author(asked: Option<&(Request, Peer)>, roles: &Roles) -> Author {
    asked.map_or_else(|| Author::signal("SIGHUP"), |(request, peer)| Author::of(request, peer, roles))
}

/// Notes that a reload was refused. Returns the event.
pub(super) fn refused(in_force: &mut InForce, asked: Option<&(Request, Peer)>, refused: &Refused) -> Event {
    let why = refusal(refused);
    let event = author(asked, &in_force.roles).reload_refused(why.in_words());
    (in_force.load, in_force.refused_reload) = (Load::now(false), Some(why));
    event
}

/// What a refusal of a reload is, for those who ask later.
fn refusal(refused: &Refused) -> RefusedReload {
    let time = Time::of_clock().0;
    let first = match refused {
        Refused::File(found) => found.0.iter().find(|found| found.severity == Severity::Error),
        _ => None,
    };
    match first {
        Some(Diagnostic { file, line, message, .. }) => {
            let (file, line) = (Some(file.clone()), (*line > 0).then_some(*line));
            RefusedReload { time, file, line, error: message.clone() }
        }
        None => RefusedReload { time, error: refused.in_words(), ..RefusedReload::default() },
    }
}

/// Prints warnings about a reloaded file.
pub(super) fn warn(host: &Host, at_start: &DaemonSettings) {
    host.warnings.iter().for_each(crate::output::message);
    let socket = |settings: &DaemonSettings| {
        let access = &settings.access;
        (settings.control.clone(), access.group.clone(), access.mode)
    };
    if socket(&host.daemon) != socket(at_start) {
        tracing::warn!("Restart the daemon to change the path, the group or the mode of the control socket");
    }
    if host.daemon.metrics != at_start.metrics {
        tracing::warn!("Restart the daemon to change where metrics are served");
    }
    if host.daemon.real_time != at_start.real_time {
        tracing::warn!("Restart the daemon to change real_time: its threads keep the priority that they have");
    }
    if jail::is_changed(host) {
        tracing::warn!("Restart the daemon to change jail: it is sealed as it was started");
    }
    if host.daemon.state != at_start.state {
        tracing::warn!("Restart the daemon to move the state directory");
    }
}

/// Writes a line for each override that is still in force, and for each that stays set aside.
pub(super) fn report_kept(overrides: &Overrides) {
    for known in overrides.aside() {
        let (name, value) = (known.name(), known.value());
        tracing::warn!(name, value, "Override stays set aside: with it the host file is not valid");
    }
    for kept in overrides.in_force() {
        let (name, value, hides, until) = (kept.name(), kept.value(), kept.hidden(), kept.lasts.to_string());
        tracing::info!(name, value, hides, until, "Override stays in force and replaces the file's value");
    }
}

/// Reports files with errors that were to be in force. Returns the reply.
pub(super) fn refuse_file(found: Diagnostics, overrides: &Overrides) -> Reply {
    crate::output::message(&found);
    if overrides.len() > 0 {
        let names: Vec<String> = overrides.iter().map(|known| known.name()).collect();
        let overrides = names.join(", ");
        tracing::error!(
            overrides,
            "The files were checked with these overrides applied; `sluice reset` removes overrides"
        );
    }
    let errors = found.errors();
    tracing::error!(errors, "Reload rejected: the running configuration is unchanged");
    invalid(found)
}

/// The reply about files with errors.
pub(super) fn invalid(found: Diagnostics) -> Reply {
    let found = found.without_warnings();
    let faults = found.0.iter().map(|one| Fault { pointer: None, ..fault(one, &[]) }).collect();
    Reply { faults, ..Reply::failed(Code::Invalid, found.to_string()) }
}
