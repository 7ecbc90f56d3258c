//! Why a change is not made.

use std::path::PathBuf;
use std::time::Duration;

use sluice_config::Diagnostics;

use super::helpers::hangs;
use crate::control::Reply;
use crate::failure::chain;
use crate::server::{Found, ServerError};

/// Why a change is not made.
pub(super) enum Refused {
    /// The files would have errors.
    File(Diagnostics),
    Server(Box<ServerError>),
    /// The reply says it.
    Reply(Reply),
    Other(String),
    /// A file that the daemon does not serve was to be loaded.
    OtherFile(String),
    /// A helper was abandoned at this path after this time, with these results.
    Hangs(PathBuf, Duration, Box<Found>),
    /// A later reload has replaced it.
    Replaced,
    /// The daemon is exiting.
    Exit,
}

impl Refused {
    /// Why, in words. Files with errors have all of them.
    pub(super) fn in_words(&self) -> String {
        match self {
            Refused::File(found) => crate::jail::explained(found.without_warnings().to_string()),
            Refused::Server(error) => chain(&**error),
            Refused::Reply(reply) => reply.error.clone().unwrap_or_default(),
            Refused::Other(error) | Refused::OtherFile(error) => error.clone(),
            Refused::Hangs(path, time, _) => hangs(path, *time),
            Refused::Replaced => "A later reload has replaced this one; its result is in the log".to_owned(),
            Refused::Exit => "The daemon is exiting".to_owned(),
        }
    }
}

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Refused {
        Refused::Server(Box::new(error))
    }
}
