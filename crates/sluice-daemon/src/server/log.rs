//! The logs of new devices.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sluice_io::store::slot_log;

use super::change::Change;
use super::kinds::{Job, Kind, Resource, ResourceKey};
use super::tolerance::Tolerance;
use super::{Guard, Server, ServerError};

/// The log of a new device.
#[derive(Clone)]
pub(super) struct Log {
    device: String,
    path: PathBuf,
}

impl Log {
    fn failed(&self, error: io::Error) -> ServerError {
        ServerError::Log { device: self.device.clone(), path: self.path.clone(), error }
    }
}

impl Resource for Log {
    fn key(&self) -> ResourceKey {
        ResourceKey::Log(self.device.clone())
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn silent(&self, _path: &Path, seconds: u64) -> ServerError {
        self.failed(io::Error::new(io::ErrorKind::TimedOut, format!("no response for {seconds} s")))
    }
}

impl Kind for Log {
    type Open = File;

    fn needed(_server: &Server, change: &Change, _guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let needed = change.devices.iter().filter_map(|(device, tolerance)| {
            let path = change.host.devices[device].delay.as_ref()?.log.clone()?;
            Some((*tolerance, Log { device: device.clone(), path }))
        });
        Ok(needed.collect())
    }

    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        job.open_each(all, |log| slot_log::open(&log.path).map_err(|error| log.failed(error)))
    }
}
