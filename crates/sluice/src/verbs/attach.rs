//! `sluice attach VM/VOLUME KEY=VALUE…`

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::{self, Assignment};
use crate::failure::Failure;
use crate::output::Format;

/// Serve another volume, of a VM that is there or a new one, while the daemon runs.
///
/// Keys are those of the host file, checked as there: `sluice attach db1/data device=nvme0 source=/srv/vm/data.img
/// export.type=vhost-user-blk export.socket=/run/sluice/db1-data.sock`. Of a new VM `vm.KEY=VALUE` gives the policy.
/// Holds until the daemon ends; a reload keeps it. Right after a detach it waits for the volume's last requests, at
/// most 5 s. It is refused when a path does not answer for 5 s; other changes do not wait for it.
#[derive(Args)]
pub(crate) struct Attach {
    /// VM and volume, for example db1/data.
    target: String,
    /// Keys of the volume; with `vm.` in front, of a new VM.
    #[arg(value_parser = keys::parse, required = true)]
    keys: Vec<Assignment>,
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
        };
        self.daemon.ask(&request, format)
    }
}
