//! `sluice attach VM/VOLUME KEY=VALUE…`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::{self, Assignment, Lasting};
use crate::output::Format;
use sluice_daemon::failure::Failure;

/// Attach a volume or NIC of an existing or a new VM to the running daemon.
///
/// Takes the keys of the host file and makes the same checks: `sluice attach db1/data device=nvme0 source=/srv/vm/data.img
/// export.type=vhost-user-blk export.socket=/run/sluice/db1-data.sock`, or `sluice attach db1/nic/eth1 uplink=lan
/// socket=/run/sluice/db1-eth1.sock`. For a new VM, `vm.KEY=VALUE` sets the policy.
/// The change survives restarts
/// until the file's value changes or `sluice reset` undoes it; without a state directory, --until-restart, --for or --persist is required. After a detach it waits up to 5 s for the in-flight requests of
/// the previous volume. It fails when a path does not respond for 5 s; other changes do not wait for it.
#[derive(Args)]
pub(crate) struct Attach {
    /// VM and volume, for example db1/data, or VM and NIC, for example db1/nic/eth1.
    target: String,
    /// Keys of the volume or NIC; with the prefix `vm.`, keys of a new VM.
    #[arg(value_name = "KEY=VALUE", value_parser = keys::parse, required = true)]
    keys: Vec<Assignment>,
    #[command(flatten)]
    lasting: Lasting,
    #[command(flatten)]
    daemon: Daemon,
}

impl Attach {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let (vm, keys) = keys::of_vm(self.keys);
        let request = Request::Attach {
            target: self.target,
            keys: keys::table(keys).map_err(|error| Failure::Run(error.into()))?,
            vm: keys::table(vm).map_err(|error| Failure::Run(error.into()))?,
            how: self.lasting.how(),
        };
        self.daemon.ask(&request, format)
    }
}
