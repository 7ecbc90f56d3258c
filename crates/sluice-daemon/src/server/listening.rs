//! A socket that accepts clients.

use std::sync::Arc;

use sluice_config::Protocol;
use sluice_io::endpoint::{Bound, Endpoint, ListenError};
use sluice_io::nbd::listener::{Access, Catalogue, NbdListener};
use sluice_io::shared_limit::SharedLimit;
use sluice_io::socket_file::FileId;
use sluice_io::vhost_user::counts::Counts;
use sluice_io::vhost_user::listener::VhostListener;
use sluice_io::vhost_user::net::Net;

/// Clients of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serves {
    /// Clients of NBD.
    Nbd,
    /// VMMs with a disk.
    Disk,
    /// VMMs with a NIC.
    Nic,
}

impl From<Protocol> for Serves {
    fn from(protocol: Protocol) -> Serves {
        match protocol {
            Protocol::Nbd => Serves::Nbd,
            Protocol::VhostUserBlk { .. } => Serves::Disk,
        }
    }
}

/// A socket that accepts clients. Dropping it may hang with the file system of its folder.
pub(super) enum Listening {
    Nbd(NbdListener),
    Disk(VhostListener),
    Nic(VhostListener<Net>),
}

macro_rules! any {
    ($socket:expr, $listener:ident => $call:expr) => {
        match $socket {
            Listening::Nbd($listener) => $call,
            Listening::Disk($listener) => $call,
            Listening::Nic($listener) => $call,
        }
    };
}

impl Listening {
    /// Accepts clients, which wait until the socket is opened.
    pub(super) fn start(
        bound: Bound,
        serves: Serves,
        limit: &Arc<SharedLimit>,
        access: &Arc<Access>,
    ) -> Result<Listening, ListenError> {
        Ok(match serves {
            Serves::Nbd => Listening::Nbd(NbdListener::start(bound, Catalogue::default(), limit, Arc::clone(access))?),
            Serves::Disk => Listening::Disk(VhostListener::start(bound, None, limit)?),
            Serves::Nic => Listening::Nic(VhostListener::start(bound, None, limit)?),
        })
    }

    pub(super) fn serves(&self) -> Serves {
        match self {
            Listening::Nbd(_) => Serves::Nbd,
            Listening::Disk(_) => Serves::Disk,
            Listening::Nic(_) => Serves::Nic,
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        any!(self, listener => listener.endpoint())
    }

    /// Returns the file of a Unix socket.
    pub(super) fn file(&self) -> Option<FileId> {
        match self {
            Listening::Nbd(listener) => listener.file(),
            Listening::Disk(listener) => Some(listener.file()),
            Listening::Nic(listener) => Some(listener.file()),
        }
    }

    /// Counts of the sessions of VMMs.
    pub(super) fn counts(&self) -> Option<&Arc<Counts>> {
        match self {
            Listening::Nbd(_) => None,
            Listening::Disk(listener) => Some(listener.counts()),
            Listening::Nic(listener) => Some(listener.counts()),
        }
    }

    /// Keeps its file, because its change is in force.
    pub(super) fn keep(&mut self) {
        any!(self, listener => listener.keep());
    }

    /// Lets clients in.
    pub(super) fn open(&mut self) {
        any!(self, listener => listener.open());
    }
}
