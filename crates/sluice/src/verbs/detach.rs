//! `sluice detach VM[/VOLUME]`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::Lasting;
use crate::output::Format;
use sluice_daemon::failure::Failure;

/// Detach a volume, a NIC or a whole VM from the running daemon.
///
/// A VM is detached with all its volumes and NICs. Disconnects the clients; requests in flight complete at the device. Queued NBD requests fail. Queued vhost-user requests
/// stay in the guest's rings until the volume is attached again. The change survives restarts
/// until the file's value changes or `sluice reset` undoes it; without a state directory, --until-restart, --for or --persist is required. If
/// the device does not confirm the change within 1 s, the command fails and says so; clients are disconnected when the device
/// responds again.
#[derive(Args)]
pub(crate) struct Detach {
    /// VM, or VM and volume or NIC, for example db1/data or db1/nic/eth1.
    target: String,
    #[command(flatten)]
    lasting: Lasting,
    #[command(flatten)]
    daemon: Daemon,
}

impl Detach {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.daemon.ask(&Request::Detach { target: self.target, how: self.lasting.how() }, format)
    }
}
