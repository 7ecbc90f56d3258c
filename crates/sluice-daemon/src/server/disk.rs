//! The disks of devices: of those that start, and of those that run and may have got more.
//!
//! A device of several disks has the disks that its paths lead to when it starts. A disk that appears later joins when a volume names
//! it ([`Growth`]), and a disk that a reload adds to the list joins with the reload. One that goes away stays a member until another one
//! has its device number: its volumes fail or are out of service until it is there again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use sluice_api::object::ObjectId;
use sluice_config::{Device, DiskPath};
use sluice_io::source::{DiskSet, Place, SourceError};

use super::change::Change;
use super::kinds::{Job, Kind, Resource, ResourceKey, caught};
use super::tolerance::Tolerance;
use super::{Guard, Server, ServerError, translate};
use crate::failure::chain;

/// The paths of a device, which must be resolved to disks.
#[derive(Clone)]
pub(super) struct Disk {
    pub(super) device: String,
    paths: Vec<DiskPath>,
    matches: Matches,
}

/// How many disks are looked for at a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matches {
    All,
    /// One shows that it matches, and is enough each second: others join when volumes name them.
    One,
}

/// The disks that the paths of a device lead to.
pub struct Disks {
    /// At least one.
    pub found: DiskSet,
    /// Why a path leads to no disk, if one does not.
    pub lacking: Option<String>,
}

impl Disks {
    /// Looks where the paths of a device lead. `waits_for` is called with each path before a look at it, which may hang.
    ///
    /// # Errors
    /// None of them leads to a disk, or two lead to one disk.
    pub fn of(paths: &[DiskPath], matches: Matches, mut waits_for: impl FnMut(&Path)) -> Result<Disks, SourceError> {
        let (mut found, mut lacking, mut known) = (DiskSet::default(), Vec::new(), BTreeMap::new());
        for path in paths {
            waits_for(path.path());
            let disks = match path.is_pattern() {
                true => matched(path, matches, &mut waits_for),
                false => Place::of_path(path.path()).and_then(|place| match known.insert(place.whole, path.path()) {
                    Some(other) => Err(SourceError::SameDisk { path: path.path().to_owned(), other: other.to_owned() }),
                    None => Ok(place.disks),
                }),
            };
            match disks {
                Ok(disks) => found.add(disks),
                Err(error @ SourceError::SameDisk { .. }) => return Err(error),
                Err(error) => lacking.push(error),
            }
        }
        let more = lacking.len().saturating_sub(1);
        match lacking.into_iter().next() {
            Some(error) if found.is_empty() => Err(error),
            Some(error) if more > 0 => {
                Ok(Disks { found, lacking: Some(format!("{} (and {more} more)", chain(&error))) })
            }
            error => Ok(Disks { found, lacking: error.map(|error| chain(&error)) }),
        }
    }

    /// Returns the error of a device that would run without some of its disks.
    pub(super) fn lack(&self, device: &str) -> Option<ServerError> {
        let reason = self.lacking.clone()?;
        Some(ServerError::LacksDisks { device: device.to_owned(), reason })
    }
}

/// Returns the disks that a pattern matches. Files and folders with such names are none, and neither is a link that leads nowhere.
fn matched(pattern: &DiskPath, matches: Matches, waits_for: &mut impl FnMut(&Path)) -> Result<DiskSet, SourceError> {
    let failed = |source| SourceError::NoMatch { path: pattern.path().to_owned(), source };
    let (mut disks, mut other) = (DiskSet::default(), None);
    for path in pattern.found().map_err(failed)? {
        // The time of each look counts alone.
        waits_for(pattern.path());
        match Place::of_path(&path) {
            Ok(place) if place.is_block_device => disks.add(place.disks),
            Ok(_) | Err(_) => other = Some(path),
        }
        if matches == Matches::One && !disks.is_empty() {
            break;
        }
    }
    if disks.is_empty() {
        let why = match other {
            Some(path) => format!("{} is no block device", path.display()),
            None => "no block device has such a name".to_owned(),
        };
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, why)));
    }
    Ok(disks)
}

impl Disk {
    fn failed(&self, source: SourceError) -> ServerError {
        ServerError::Disk { device: self.device.clone(), source }
    }
}

impl Resource for Disk {
    fn key(&self) -> ResourceKey {
        ResourceKey::Disk(self.device.clone())
    }

    fn path(&self) -> PathBuf {
        self.paths.first().map_or_else(PathBuf::new, |path| path.path().to_owned())
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.paths.iter().map(|path| path.path().to_owned()).collect()
    }

    fn silent(&self, path: &Path, seconds: u64) -> ServerError {
        self.failed(SourceError::Silent { path: path.to_owned(), seconds })
    }
}

impl Kind for Disk {
    type Open = Disks;

    fn needed(server: &Server, change: &Change, _guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let started = change.devices.iter().map(|(device, tolerance)| (device, *tolerance, Matches::All));
        // Of those that run: with other paths now, and those that are retried because they lack disks.
        let running = server.devices.keys().filter_map(|device| {
            let (old, new) = (server.host.devices.get(device)?, change.host.devices.get(device)?);
            let name = ObjectId::Device(device.clone());
            let is_retried = server.absent.is_out(&name) && !change.staying.contains(&name);
            let matches = if old.paths == new.paths { Matches::One } else { Matches::All };
            let is_needed = is_retried || matches == Matches::All;
            is_needed.then(|| (device, change.tolerance_of(server, &name), matches))
        });
        let needed = started.chain(running).filter(|(device, ..)| translate::has_disk(&change.host.devices[*device]));
        let need = |device: &String, matches| {
            let (device, paths) = (device.clone(), change.host.devices[device].paths.clone());
            Disk { device, paths, matches }
        };
        Ok(needed.map(|(device, tolerance, matches)| (tolerance, need(device, matches))).collect())
    }

    fn is_met_by(&self, other: &Self) -> bool {
        self.paths == other.paths
    }

    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        let resolve =
            |disk: &Disk| caught(&disk.path(), || Disks::of(&disk.paths, disk.matches, |path| job.progress.set(path)));
        job.open_each(all, |disk| resolve(disk).map_err(|source| disk.failed(source)))
    }
}

/// The paths of a running device whose disks may become more. Which disks these are now is looked up once for a change.
pub(super) struct Growth {
    paths: Vec<DiskPath>,
    now: OnceLock<DiskSet>,
}

impl Growth {
    /// `None` for a device that has one disk.
    pub(super) fn of(device: &Device) -> Option<Arc<Growth>> {
        device.may_grow().then(|| Arc::new(Growth { paths: device.paths.clone(), now: OnceLock::new() }))
    }

    /// Whether a volume on these disks belongs to the device. The source of most volumes is a disk with a name that the device has, which
    /// needs no look at the others.
    pub(super) fn admits(&self, source: &Path, is_block_device: bool, disks: &DiskSet) -> bool {
        let names = |path: &DiskPath| path.covers(source) && (is_block_device || !path.is_pattern());
        let now = || {
            self.now.get_or_init(|| {
                Disks::of(&self.paths, Matches::All, |_| {}).map(|disks| disks.found).unwrap_or_default()
            })
        };
        self.paths.iter().any(names) || disks.is_subset_of(now())
    }
}
