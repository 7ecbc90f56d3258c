//! `sluice accept-loss VM[/VOLUME]`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::Format;
use sluice_daemon::failure::Failure;

/// Resume writes after a failed sync that may have lost data.
///
/// When a sync or flush fails, data that a VM believes to be safe may be lost. From then on, writes and flushes of every
/// volume on that file or disk fail with an I/O error, so that no VM relies on lost data. Direct reads continue; reads through
/// the page cache fail. A failed forced write with direct I/O to a block device affects only its volume. The log reports the
/// failure, and so do the statistics and `sluice set` (`writes_fail`). Check the disk and its data first: this command does
/// not recover lost data. Detaching all volumes on the file or disk also ends this state.
#[derive(Args)]
pub(crate) struct AcceptLoss {
    /// VM, or VM and volume, for example db1/data. Accepting the loss of a file or disk applies to all volumes on it.
    target: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl AcceptLoss {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.daemon.ask(&Request::AcceptLoss { target: self.target }, format)
    }
}
