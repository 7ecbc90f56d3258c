//! `sluice set VM[/VOLUME] KEY=VALUE…`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::{self, Assignment};
use crate::failure::Failure;
use crate::output::Format;

/// Change what a VM or one of its volumes is promised, while it runs.
///
/// Keys are those of the host file, checked as there: `sluice set db1 limit="5000 iops" weight=300`. Holds until the daemon
/// ends; a reload keeps it.
#[derive(Args)]
pub(crate) struct Set {
    /// VM, or VM and volume, for example db1/data.
    target: String,
    /// Keys and their new values.
    #[arg(value_parser = keys::parse, required = true)]
    keys: Vec<Assignment>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Set {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let keys = keys::table(self.keys).map_err(|error| Failure::Run(error.into()))?;
        self.daemon.ask(&Request::Set { target: self.target, keys }, format)
    }
}
