//! Everything that keeps a host file from being served on this host.
//!
//! A start looks at all disks, volumes and sockets before it fails, and [`problems`] lists what is wrong with them, so that
//! an operator corrects all of it in one pass. [`rehearse`] does the same without a daemon: it opens and locks each volume,
//! makes each socket without its name, and drops all of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use sluice_api::object::ObjectId;
use sluice_config::{Host, Volume};
use sluice_io::endpoint::ListenError;
use sluice_io::source::{DiskSet, Holder, SourceError};

use super::opening::{Needs, Opened, Opening};
use super::tolerance::{Fault, Tolerance};
use super::{
    Blocks, Changed, Extra, Force, Found, Guard, Progress, Server, ServerError, guard, nics, opening, stage, translate,
};
use crate::failure::chain;
use crate::state::Saved;

/// Interval between two looks at the path that a rehearsal waits for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A reason why a host file cannot be served as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// For example `volume db1/root`.
    pub about: String,
    /// The problem and its remedy.
    pub text: String,
    pub kind: ProblemKind,
}

/// The consequence of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// The start fails.
    Fatal,
    /// As the others, because another process has it.
    Taken,
    /// The others are served without it.
    OutOfService,
}

impl ProblemKind {
    fn of(fault: &impl Fault, tolerance: Tolerance) -> ProblemKind {
        if tolerance.covers(fault) { ProblemKind::OutOfService } else { ProblemKind::Fatal }
    }
}

/// Problems that a start would find.
pub struct Rehearsal {
    pub problems: Vec<Problem>,
    /// Volumes that would be held back, and why.
    pub held: Vec<(ObjectId, String)>,
    /// Volumes whose blocks are smaller than those of their disk.
    pub bridged: Vec<(ObjectId, Blocks)>,
    /// Volumes whose stated block size is not that of their GPT, with both in bytes.
    pub other_gpt: Vec<(ObjectId, u32, u32)>,
}

/// Returns the block size that a start would give a volume with a source, in bytes. It does not lock the source.
///
/// # Errors
/// The source cannot be read, or only the host file can state its block size.
pub fn block_size(name: ObjectId, volume: &Arc<Volume>, saved: &Saved) -> Result<u32, SourceError> {
    let (force, held) = (Force::default(), BTreeMap::new());
    let guard = Guard { saved, force: &force, held: &held };
    let opening = Opening::new(&Server::default(), name, (volume, Tolerance::Never), (&guard, &guard.known()));
    opening.locate(&Progress::default())?.block_size()
}

/// Looks at everything that a start needs, and keeps nothing of it. `waits_for` is called with the path that it waits for, and
/// a path is given up after `timeout`.
///
/// # Errors
/// If a thread cannot be started.
pub fn rehearse(
    host: &Arc<Host>,
    guard: &Guard<'_>,
    timeout: Duration,
    mut waits_for: impl FnMut(&Path),
) -> std::io::Result<Rehearsal> {
    let server = Server::default();
    let nothing = server.in_service();
    let changed = Changed::between(&nothing, host);
    let list = || opening::needs(&server, (&nothing, host), &changed, &Extra::Tolerate, guard);
    let mut found = Found::default();
    let mut problems = Vec::new();
    let needs = loop {
        let (needs, rest) = match (list(), list()) {
            (Ok(needs), Ok(rest)) => (needs, rest),
            (Err(error), _) | (_, Err(error)) => {
                problems.push(fatal("host", chain(&error)));
                return Ok(Rehearsal { problems, held: Vec::new(), bridged: Vec::new(), other_gpt: Vec::new() });
            }
        };
        if let Err(error) = needs.leave_out_hung(&mut found) {
            problems.push(fatal("host", chain(&error)));
            break needs;
        }
        let Some(rest) = rest.untried(&found) else { break needs };
        if let Some(path) = look(rest.without_waiting(), &mut found, timeout, &mut waits_for)? {
            found.hangs(path, timeout);
        }
    };
    problems.extend(self::problems(host, &needs, &found));
    let held = guard::differing(&server, &needs, &found, guard).into_iter().collect();
    let opened = |need: &Opening| Some((need.name.clone(), &found.volume(&need.name)?.as_ref().ok()?.source));
    let opened: Vec<_> = needs.volumes.iter().filter_map(opened).collect();
    let bridged = opened.iter().filter_map(|(name, source)| Some((name.clone(), Blocks::bridged(source)?))).collect();
    let other_gpt =
        opened.iter().filter_map(|(name, source)| Some((name.clone(), source.block_size(), source.gpt_block_size()?)));
    let other_gpt = other_gpt.collect();
    Ok(Rehearsal { problems, held, bridged, other_gpt })
}

/// Meets these needs in another thread. Returns the path that it hangs at, if it does.
fn look(
    needs: Needs,
    found: &mut Found,
    timeout: Duration,
    waits_for: &mut impl FnMut(&Path),
) -> std::io::Result<Option<PathBuf>> {
    let progress = Progress::default();
    let (own, (done, is_done)) = (progress.clone(), channel::<()>());
    thread::Builder::new().name("rehearse".to_owned()).spawn(move || {
        needs.meet(&own);
        drop(done);
    })?;
    loop {
        let ended = is_done.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
        let (path, since) = progress.now();
        waits_for(&path);
        if ended || since.elapsed() >= timeout {
            found.add(progress.take());
            return Ok((!ended).then_some(path));
        }
    }
}

/// Returns all problems in what was found.
pub(super) fn problems(host: &Host, needs: &Needs, found: &Found) -> Vec<Problem> {
    let mut problems = Vec::new();
    let disks = |device: &str| found.disks.get(device).and_then(|(_, disks)| disks.as_ref().ok());
    for (at, (device, _)) in needs.disks.iter().enumerate() {
        let about = format!("device {device}");
        match found.disks.get(device).map(|(_, disks)| disks) {
            Some(Err(error)) => {
                let text = format!("Device {device}: its path cannot be resolved to a disk: {}", chain(error));
                problems.push(Problem { about, text, kind: ProblemKind::of(error, needs.tolerance) });
            }
            Some(Ok(own)) => {
                let others = needs.disks[..at].iter().map(|(other, _)| other);
                let same = |other: &&String| disks(other).is_some_and(|disks| disks.overlaps(own));
                problems.extend(others.filter(same).map(|other| {
                    let (first, second, disks) = (other.clone(), device.clone(), own.to_string());
                    problem(&about, &ServerError::OneDisk { first, second, disks }, needs.tolerance)
                }));
            }
            None => {}
        }
    }
    for (device, _) in &needs.logs {
        if let Some((path, Err(error))) = found.logs.get(device) {
            let text =
                format!("Device {device}: cannot write its log {}: {error}; choose another path", path.display());
            let kind = ProblemKind::of(error, needs.tolerance);
            problems.push(Problem { about: format!("device {device}"), text, kind });
        }
    }
    for opening in &needs.volumes {
        problems.extend(of_volume(host, opening, found, disks(&opening.volume.device)));
    }
    problems.extend(needs.sockets.iter().filter_map(|socket| {
        let name = socket.endpoint.to_string();
        let made = found.sockets.get(&name).and_then(|(_, bound)| bound.as_ref().err());
        let error = made.or_else(|| found.tried.get(&name)?.as_ref().err())?;
        let kind = match error {
            ListenError::InUse(_) => ProblemKind::Taken,
            error => ProblemKind::of(error, socket.tolerance),
        };
        Some(Problem { about: format!("socket {name}"), text: chain(error), kind })
    }));
    problems.extend(nics::problems(host).into_iter().map(|(about, text, may_pass)| {
        let is_out = may_pass || needs.tolerance == Tolerance::Anything;
        let kind = if is_out { ProblemKind::OutOfService } else { ProblemKind::Fatal };
        Problem { about, text, kind }
    }));
    problems
}

/// Returns the texts of those for which a start fails.
pub(super) fn errors(host: &Host, needs: &Needs, found: &Found) -> Vec<String> {
    let is_fatal = |problem: &Problem| match problem.kind {
        ProblemKind::Fatal => true,
        ProblemKind::Taken => needs.tolerance != Tolerance::Anything,
        ProblemKind::OutOfService => false,
    };
    problems(host, needs, found).into_iter().filter(is_fatal).map(|problem| problem.text).collect()
}

fn fatal(about: &str, text: String) -> Problem {
    Problem { about: about.to_owned(), text, kind: ProblemKind::Fatal }
}

fn problem(about: &str, error: &ServerError, tolerance: Tolerance) -> Problem {
    Problem { about: about.to_owned(), text: chain(error), kind: ProblemKind::of(error, tolerance) }
}

fn of_volume(host: &Host, opening: &Opening, found: &Found, expected: Option<&DiskSet>) -> Option<Problem> {
    let Opening { name, volume, tolerance, .. } = opening;
    let (vm, name) = name.parts();
    let about = format!("volume {vm}/{name}");
    match found.volume(&opening.name)? {
        Err(error) => {
            let kind = match error {
                SourceError::Busy { holder: Holder::Process { .. }, .. } => ProblemKind::Taken,
                error => ProblemKind::of(error, *tolerance),
            };
            Some(Problem { about, text: format!("VM {vm}, volume {name}: {}", chain(error)), kind })
        }
        Ok(Opened { source, disks, .. }) => {
            if let Some(expected) = expected
                && !disks.is_subset_of(expected)
            {
                return Some(problem(&about, &stage::other_disk(vm, volume, disks, expected), *tolerance));
            }
            let rotational = expected.is_some_and(DiskSet::is_rotational);
            let rotational = host.devices[&volume.device].info(rotational).rotational;
            let invalid = translate::volume_info(volume, Some(&**source), rotational).validate().err()?;
            let (vm, volume) = (vm.to_owned(), name.into_owned());
            Some(problem(&about, &ServerError::VolumeInfo { vm, volume, source: invalid }, *tolerance))
        }
    }
}
