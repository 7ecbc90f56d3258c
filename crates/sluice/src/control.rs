//! The control socket, as a command uses it.

pub(crate) use sluice_daemon::control::*;

pub(crate) mod client;
