//! `sluice accept-loss VM[/VOLUME]`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::output::Format;

/// Let writes go on where a failed sync may have lost data.
///
/// When a disk reports that a sync or flush failed, data that a VM was told are safe may be gone. From then on writes and
/// flushes of every volume on that file or disk fail with an I/O error, so that no VM builds on them; reads with direct I/O go
/// on, those through the page cache fail. A forced write with direct I/O to a block device concerns its volume alone. The log
/// says so, as do the accounts and `sluice set` (`writes_fail`). Check the disk and what is on it first: nothing that was lost
/// comes back by this. It ends too when all volumes on the file or disk have been detached.
#[derive(Args)]
pub(crate) struct AcceptLoss {
    /// VM, or VM and volume, for example db1/data. What it accepts for a file or disk holds for all volumes on that.
    target: String,
    #[command(flatten)]
    daemon: Daemon,
}

impl AcceptLoss {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        self.daemon.ask(&Request::AcceptLoss { target: self.target }, format)
    }
}
