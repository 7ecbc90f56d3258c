//! `sluice resize VM/VOLUME SIZE`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::output::Format;

/// Grow a volume while its VM uses it.
///
/// Extends a regular file if it is too short. A vhost-user guest is notified of the new size; NBD clients see it when they
/// reconnect. The change lasts until the daemon exits; a reload keeps it.
#[derive(Args)]
pub(crate) struct Resize {
    /// VM and volume, for example db1/data.
    target: String,
    /// New size, for example 20GiB.
    size: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl Resize {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.daemon.ask(&Request::Resize { target: self.target, size: self.size }, format)
    }
}
