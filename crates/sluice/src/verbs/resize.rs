//! `sluice resize VM/VOLUME SIZE`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::output::Format;

/// Give a volume more room while its VM uses it.
///
/// A regular file is made longer if it is too short. A guest on vhost-user sees the new size at once, NBD clients when they
/// connect again. Holds until the daemon ends; a reload keeps it.
#[derive(Args)]
pub(crate) struct Resize {
    /// VM and volume, for example db1/data.
    target: String,
    /// The new size, for example 20GiB.
    size: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl Resize {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.daemon.ask(&Request::Resize { target: self.target, size: self.size }, format)
    }
}
