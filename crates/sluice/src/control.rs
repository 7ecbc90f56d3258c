//! The control socket, as a command uses it.

pub(crate) use sluice_api::request::{How, MetricsFormat, Request, Term};

pub(crate) mod client;
pub(crate) mod keys;
pub(crate) mod moment;
pub(crate) mod record;
