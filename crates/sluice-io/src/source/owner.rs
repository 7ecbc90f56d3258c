//! The client that has the lock of an RBD image.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::ceph::{CephError, Image};

/// Key of the metadata in which the owner of the lock says who it is.
const OWNER_KEY: &str = "sluicegate.owner";

/// Who has the lock of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Address of its connection.
    pub address: String,
    /// Its host, and since when it has the lock; `None` if it is no daemon of this kind.
    pub host: Option<(String, SystemTime)>,
}

impl Owner {
    /// Stores with an image that this host has its lock.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub(super) fn sign(image: &Image, host: &str) -> Result<(), CephError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        image.set_note(OWNER_KEY, &format!("{} {} {host}", image.cluster().address(), now.as_secs()))
    }

    /// Asks who has the lock of an image; `None`: nobody has.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn of(image: &Image) -> Result<Option<Owner>, CephError> {
        let Some(address) = image.owner()? else { return Ok(None) };
        let note = image.note(OWNER_KEY).ok().flatten();
        // An earlier owner has left its note.
        let host = note.and_then(|note| {
            let (since, host) = note.strip_prefix(&address)?.strip_prefix(' ')?.split_once(' ')?;
            Some((host.to_owned(), UNIX_EPOCH.checked_add(Duration::from_secs(since.parse().ok()?))?))
        });
        Ok(Some(Owner { address, host }))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some((host, _)) => write!(f, "the daemon of host {host} has the lock of the image, as {}", self.address),
            None => write!(f, "another client has the lock of the image, as {}", self.address),
        }
    }
}
