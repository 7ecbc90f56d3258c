//! `sluice resize VM/VOLUME SIZE`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::Lasting;
use crate::output::Format;
use sluice_daemon::failure::Failure;
use sluice_sched::Bytes;

/// Grow a volume while its VM uses it.
///
/// Extends a regular file if it is too short. A vhost-user guest is notified of the new size; NBD clients see it when they
/// reconnect. The change survives restarts
/// until the file's value changes or `sluice reset` undoes it; without a state directory, --until-restart, --for or --persist is required.
#[derive(Args)]
pub(crate) struct Resize {
    /// VM and volume, for example db1/data.
    target: String,
    /// New size, for example 20GiB.
    size: String,
    #[command(flatten)]
    lasting: Lasting,
    #[command(flatten)]
    daemon: Daemon,
}

impl Resize {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.size.parse::<Bytes>().map_err(|error| {
            let example = "sluice resize db1/data 20GiB";
            Failure::Run(format!("size: {error}; the new size follows the volume, as in `{example}`").into())
        })?;
        self.daemon.ask(&Request::Resize { target: self.target, size: self.size, how: self.lasting.how() }, format)
    }
}
