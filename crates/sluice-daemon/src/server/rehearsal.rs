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
use sluice_io::device::StoreSpec;
use sluice_io::endpoint::ListenError;
use sluice_io::source::{DiskSet, Holder, SourceError};

use super::ceph::Clusters;
use super::change::Change;
use super::disk::Disk;
use super::kinds::{Need, Resource as _, ResourceKey};
use super::tolerance::Tolerance;
use super::volume::Opening;
use super::{Blocks, Extra, Force, Found, Guard, Needs, Progress, Server, ServerError, guard, nics, stage};
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
    fn of(error: &ServerError, tolerance: Tolerance) -> ProblemKind {
        match error {
            ServerError::Listen(ListenError::InUse(_))
            | ServerError::Volume {
                source:
                    SourceError::Busy { holder: Holder::Process { .. } | Holder::Unknown, .. } | SourceError::Locked { .. },
                ..
            } => ProblemKind::Taken,
            error if tolerance.covers(error) => ProblemKind::OutOfService,
            _ => ProblemKind::Fatal,
        }
    }
}

/// Problems that a start would find.
#[derive(Default)]
pub struct Rehearsal {
    pub problems: Vec<Problem>,
    /// Volumes that would be held back, and why.
    pub held: Vec<(ObjectId, String)>,
    /// Volumes whose blocks are smaller than those of their disk.
    pub bridged: Vec<(ObjectId, Blocks)>,
    /// Volumes whose stated block size is not that of their GPT, with both in bytes.
    pub other_gpt: Vec<(ObjectId, u32, u32)>,
    /// Volumes whose images have limits of their own, with their options and values.
    pub limited: Vec<(ObjectId, Vec<(String, String)>)>,
}

/// Returns the block size that a start would give a volume with a source, in bytes. It does not lock the source.
///
/// # Errors
/// The source cannot be read, or only the host file can state its block size.
pub fn block_size(name: ObjectId, volume: &Arc<Volume>, saved: &Saved) -> Result<u32, SourceError> {
    let (force, held) = (Force::default(), BTreeMap::new());
    let guard = Guard { saved, force: &force, held: &held };
    let opening = Opening::new(&Server::default(), name, volume, (&guard, &guard.known()));
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
    let server = Server { clusters: Arc::new(Clusters::that_look()), ..Server::default() };
    let change = Change::new(&server, host, &Extra::Tolerate, guard);
    let (mut found, mut problems) = (Found::default(), Vec::new());
    let needs = match Needs::of(&server, &change, guard) {
        Ok(needs) => needs.without_waiting(),
        Err(error) => {
            problems.push(fatal(chain(&error)));
            return Ok(Rehearsal { problems, ..Rehearsal::default() });
        }
    };
    loop {
        if let Err(error) = needs.leave_out_hung(&mut found) {
            problems.push(fatal(chain(&error)));
            break;
        }
        let Some(rest) = needs.untried(&found) else { break };
        if let Some(path) = look(rest, &mut found, timeout, &mut waits_for)? {
            found.hangs(path, timeout);
        }
    }
    problems.extend(self::problems(&change, &needs, &found));
    let held = guard::differing(&server, &needs, &found, guard).into_iter().collect();
    let stores = needs
        .each::<Opening>()
        .filter_map(|(key, _, need)| Some((need.name.clone(), &found.opened::<Opening>(key)?.store)));
    let stores: Vec<_> = stores.collect();
    let limited = stores.iter().filter_map(|(name, store)| Some((name.clone(), limits(store)?))).collect();
    let opened = stores.into_iter().filter_map(|(name, store)| Some((name, store.source()?)));
    let opened: Vec<_> = opened.collect();
    let bridged = opened.iter().filter_map(|(name, source)| Some((name.clone(), Blocks::bridged(source)?))).collect();
    let other_gpt =
        opened.iter().filter_map(|(name, source)| Some((name.clone(), source.block_size(), source.gpt_block_size()?)));
    let other_gpt = other_gpt.collect();
    Ok(Rehearsal { problems, held, bridged, other_gpt, limited })
}

/// Returns the limits that an image has below the scheduler, if there are any.
fn limits(store: &StoreSpec) -> Option<Vec<(String, String)>> {
    let StoreSpec::Rbd(source) = store else { return None };
    let limits = source.kind().limits();
    (!limits.is_empty()).then(|| limits.to_vec())
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
fn problems(change: &Change, needs: &Needs, found: &Found) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (key, tolerance, need) in needs.iter() {
        let failed = found.error(key);
        let mut add = |error: &ServerError| problems.push(problem(key.to_string(), error, tolerance));
        match (failed, need) {
            (Some(error), _) => add(error),
            (None, Need::Disk(disk)) => {
                shared(&disk.device, change, found).iter().for_each(&mut add);
                let lack = found.opened::<Disk>(key).and_then(|disks| disks.lack(&disk.device));
                lack.iter().for_each(add);
            }
            (None, Need::Volume(opening)) => {
                of_volume(opening, change, found).err().iter().for_each(add);
            }
            (None, _) => {}
        }
    }
    problems.extend(nics::problems(&change.host).into_iter().map(|(about, text, may_pass)| {
        let is_out = may_pass || change.tolerance == Tolerance::Anything;
        let kind = if is_out { ProblemKind::OutOfService } else { ProblemKind::Fatal };
        Problem { about, text, kind }
    }));
    problems
}

/// Returns the texts of those for which a start fails.
pub(super) fn errors(change: &Change, needs: &Needs, found: &Found) -> Vec<String> {
    let is_fatal = |problem: &Problem| match problem.kind {
        ProblemKind::Fatal => true,
        ProblemKind::Taken => change.tolerance != Tolerance::Anything,
        ProblemKind::OutOfService => false,
    };
    problems(change, needs, found).into_iter().filter(is_fatal).map(|problem| problem.text).collect()
}

fn fatal(text: String) -> Problem {
    Problem { about: "host".to_owned(), text, kind: ProblemKind::Fatal }
}

fn problem(about: String, error: &ServerError, tolerance: Tolerance) -> Problem {
    Problem { about, text: chain(error), kind: ProblemKind::of(error, tolerance) }
}

fn disks<'a>(found: &'a Found, device: &str) -> Option<&'a DiskSet> {
    found.opened::<Disk>(&ResourceKey::Disk(device.to_owned())).map(|disks| &disks.found)
}

/// Returns the errors of a device that is on one disk with devices that are started before it.
fn shared(device: &str, change: &Change, found: &Found) -> Vec<ServerError> {
    let Some(own) = disks(found, device) else { return Vec::new() };
    let before = change.devices.iter().map(|(other, _)| other).take_while(|other| *other != device);
    let same = before.filter(|other| disks(found, other).is_some_and(|disks| disks.overlaps(own)));
    let error = |other: &String| {
        let (first, second, disks) = (other.clone(), device.to_owned(), own.to_string());
        ServerError::OneDisk { first, second, disks }
    };
    same.map(error).collect()
}

/// Checks an open volume against its device.
fn of_volume(opening: &Opening, change: &Change, found: &Found) -> Result<(), ServerError> {
    let Opening { name, volume, .. } = opening;
    let Some(opened) = found.opened::<Opening>(&opening.key()) else { return Ok(()) };
    let expected = disks(found, &volume.device);
    expected.map_or(Ok(()), |expected| stage::check_disks(name, volume, &opened.disks, expected))?;
    let rotational = change.host.devices[&volume.device].info(expected.is_some_and(DiskSet::is_rotational)).rotational;
    stage::volume_info(name, volume, Some(opened), rotational).map(drop)
}
