//! `sluice set VM[/VOLUME]|policy/NAME KEY=VALUE…`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::{self, Assignment, Lasting};
use crate::output::Format;
use sluice_daemon::failure::Failure;

/// Change the policy of a running VM or of one of its volumes, of several at once, or a named policy.
///
/// Takes the keys of the host file and makes the same checks: `sluice set db1 limit="5000 iops" weight=300`. The change survives restarts
/// until the file's value changes or `sluice reset` undoes it; without a state directory, --until-restart, --for or --persist is required. If the device does not confirm the change within 1 s, the command fails and says
/// so; the device applies the change when it responds again.
#[derive(Args)]
pub(crate) struct Set {
    /// VM, or VM and volume, for example db1/data; a pattern of them, for example 'web*'; or a named policy, for example policy/gold.
    target: String,
    /// Keys and their new values.
    #[arg(value_name = "KEY=VALUE", value_parser = keys::parse, required = true)]
    keys: Vec<Assignment>,
    /// Takes this change back in the same step, so that its key has the file's value; for example db1/limit. Either all of it is done or nothing.
    #[arg(long, value_name = "NAME")]
    reset: Vec<String>,
    #[command(flatten)]
    lasting: Lasting,
    #[command(flatten)]
    daemon: Daemon,
}

impl Set {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let keys = keys::table(self.keys).map_err(|error| Failure::Run(error.into()))?;
        let request = Request::Set { target: self.target, keys, reset: self.reset, how: self.lasting.how() };
        self.daemon.ask(&request, format)
    }
}
