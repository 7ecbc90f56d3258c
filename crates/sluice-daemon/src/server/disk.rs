//! The disks of new devices.

use std::path::PathBuf;

use sluice_io::source::{DiskSet, SourceError};

use super::change::Change;
use super::kinds::{Job, Kind, Resource, ResourceKey, caught};
use super::tolerance::Tolerance;
use super::{Guard, Server, ServerError, translate};

/// The path of a new device, which must be resolved to a disk.
#[derive(Clone)]
pub(super) struct Disk {
    pub(super) device: String,
    path: PathBuf,
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
        self.path.clone()
    }

    fn silent(&self, seconds: u64) -> ServerError {
        self.failed(SourceError::Silent { path: self.path.clone(), seconds })
    }
}

impl Kind for Disk {
    type Open = DiskSet;

    fn needed(_server: &Server, change: &Change, _guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let needed = change.devices.iter().filter_map(|(device, tolerance)| {
            let spec = &change.host.devices[device];
            let path = spec.path.clone().filter(|_| translate::has_disk(spec))?;
            Some((*tolerance, Disk { device: device.clone(), path }))
        });
        Ok(needed.collect())
    }

    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        let resolve = |disk: &Disk| caught(&disk.path, || DiskSet::of_path(&disk.path));
        job.open_each(all, |disk| resolve(disk).map_err(|source| disk.failed(source)))
    }
}
