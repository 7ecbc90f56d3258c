//! The places where hosts meet that a change names for the first time.

use std::io;
use std::path::{Path, PathBuf};

use sluice_pool::block::Header;

use super::change::Change;
use super::kinds::{Job, Kind, Resource, ResourceKey};
use super::tolerance::Tolerance;
use super::{Guard, Server, ServerError, translate};
use crate::pool::manage;

/// The place of a device whose pool is new.
#[derive(Clone)]
pub(super) struct Meeting {
    device: String,
    path: PathBuf,
    host: u8,
    /// Capacity in thousandths of a request per second, and the size of a request, that the host file states.
    capacity: (u64, u64),
}

impl Meeting {
    fn look(&self) -> io::Result<()> {
        let header: Header = manage::header(&self.path).map_err(io::Error::other)?;
        if self.host > header.hosts {
            let (host, hosts) = (self.host, header.hosts);
            let path = self.path.display();
            return Err(io::Error::other(format!(
                "the pool has the hosts 1 to {hosts}, and this one is {host}: use `sluice pool create {path} --hosts N --capacity RATE --keep`"
            )));
        }
        if (header.milli_iops, header.request_bytes) != self.capacity {
            return Err(io::Error::other(manage::other_capacity(&header, &self.path)));
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> ServerError {
        ServerError::Meeting { device: self.device.clone(), path: self.path.clone(), error }
    }
}

impl Resource for Meeting {
    fn key(&self) -> ResourceKey {
        ResourceKey::Meeting(self.device.clone())
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn silent(&self, _path: &Path, seconds: u64) -> ServerError {
        self.failed(io::Error::new(io::ErrorKind::TimedOut, format!("no response for {seconds} s")))
    }
}

impl Kind for Meeting {
    type Open = ();

    fn needed(server: &Server, change: &Change, _guard: &Guard<'_>) -> Result<Vec<(Tolerance, Self)>, ServerError> {
        let needed = change.host.devices.values().filter_map(|device| {
            let pool = device.pool.as_ref()?;
            let is_known = server.host.devices.get(&device.name).is_some_and(|known| known.pool.as_ref() == Some(pool));
            let started = change.devices.iter().find(|(name, _)| *name == device.name);
            let tolerance = started.map(|(_, tolerance)| *tolerance).or((!is_known).then_some(change.tolerance))?;
            let settings = translate::pool(&change.host, device)?.settings;
            let capacity = (settings.capacity.iops?.milli(), settings.request_bytes);
            let (device, path) = (device.name.clone(), pool.meeting.clone());
            Some((tolerance, Meeting { device, path, host: pool.host, capacity }))
        });
        Ok(needed.collect())
    }

    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        job.open_each(all, |meeting| meeting.look().map_err(|error| meeting.failed(error)))
    }
}
