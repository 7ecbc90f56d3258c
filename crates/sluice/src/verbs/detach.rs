//! `sluice detach VM[/VOLUME]`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::output::Format;

/// Stop serving a volume, or a VM with all its volumes, while the daemon runs.
///
/// Its clients are disconnected; requests at the device end there. Those that wait fail over NBD, and wait on in the guest
/// over vhost-user until the volume is attached again. Holds until the daemon ends; a reload keeps it.
#[derive(Args)]
pub(crate) struct Detach {
    /// VM, or VM and volume, for example db1/data.
    target: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl Detach {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.daemon.ask(&Request::Detach { target: self.target }, format)
    }
}
