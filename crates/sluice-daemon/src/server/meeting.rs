//! The places where hosts meet that a change names for the first time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_config::Meeting as Place;
use sluice_pool::block::{self, Header};

use super::change::Change;
use super::kinds::{Job, Kind, Resource, ResourceKey};
use super::tolerance::Tolerance;
use super::{Guard, Server, ServerError, translate};
use crate::pool::{helper, manage};

/// Maximum time until the place responds: less than a change waits for a path, so that the place is named, and more than a connection to a cluster
/// takes.
const TIMEOUT: Duration = Duration::from_millis(4500);

/// How a place is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Not at all: a start serves VMs whatever is wrong there, and the exchange says so.
    None,
    /// By a process of its own: a thread of a daemon that hangs there would keep it when it is killed.
    Helper,
    /// By this process, which is no daemon: `sluice check --host`.
    Itself,
}

/// The place of a device whose pool is new.
#[derive(Clone)]
pub(super) struct Meeting {
    device: String,
    place: Place,
    host: u8,
    look: Look,
    /// Capacity in thousandths of a request per second, and the size of a request, that the host file states.
    capacity: (u64, u64),
}

impl Meeting {
    fn look(&self) -> io::Result<()> {
        let header = match self.look {
            Look::None => return Ok(()),
            Look::Itself => manage::header(&self.place).map_err(io::Error::other)?,
            Look::Helper => {
                let block = helper::read_header(&self.place, TIMEOUT).map_err(io::Error::other)?;
                block::decode::<Header>(&block).map_err(|why| io::Error::other(format!("its header {why}")))?
            }
        };
        if self.host > header.hosts {
            let (host, hosts) = (self.host, header.hosts);
            return Err(io::Error::other(format!(
                "the pool has the hosts 1 to {hosts}, and this one is {host}: use `sluice pool create {} --hosts N --capacity RATE --keep`",
                self.place.as_arguments()
            )));
        }
        if (header.milli_iops, header.request_bytes) != self.capacity {
            return Err(io::Error::other(manage::other_capacity(&header, &self.place)));
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> ServerError {
        ServerError::Meeting { device: self.device.clone(), path: self.path(), error }
    }
}

impl Resource for Meeting {
    fn key(&self) -> ResourceKey {
        ResourceKey::Meeting(self.device.clone())
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(self.place.to_string())
    }

    fn only_try(&mut self) {
        self.look = Look::Itself;
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
            let (device, place) = (device.name.clone(), pool.meeting.clone());
            let look = if tolerance == Tolerance::Anything { Look::None } else { Look::Helper };
            Some((tolerance, Meeting { device, place, host: pool.host, look, capacity }))
        });
        Ok(needed.collect())
    }

    fn open_all(all: Vec<(Tolerance, Self)>, job: &Job<'_>) -> Option<()> {
        job.open_each(all, |meeting| meeting.look().map_err(|error| meeting.failed(error)))
    }
}
