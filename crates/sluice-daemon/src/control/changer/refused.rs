//! Why a change is not made.

use std::path::PathBuf;
use std::time::Duration;

use sluice_config::Diagnostics;

use crate::control::Reply;
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

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Refused {
        Refused::Server(Box::new(error))
    }
}
