//! `sluice status`

use clap::Args;
use sluice_api::status;
use sluice_api::summary::Summary;
use sluice_daemon::failure::Failure;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::rows::Form;
use crate::output::{self, watch};
use crate::show;

/// Show at a glance whether every promise is kept now.
///
/// Names each VM and volume whose reservation or latency target is broken now, with the cause, and each device with its load,
/// its capacity and its problems. Also names volumes whose requests fail, with the errors and what to do, and the VMs that cost the daemon
/// most CPU time. The exit code is 6 if a promise is broken, a device does not serve, a volume is not in service, or requests of a volume fail;
/// otherwise 0.
#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    watch: watch::Watch,
    #[command(flatten)]
    daemon: Daemon,
}

impl Status {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        let mut is_well = true;
        self.watch.run(form, || {
            let summary = Summary::from(self.daemon.get::<status::Status>(&Request::Status)?);
            is_well = summary.ok;
            Ok(match form {
                Form::Table | Form::Wide => show::status::table(&summary),
                Form::Json | Form::Jsonl => output::rows::one(&summary),
                Form::Csv => output::rows::csv(&summary.devices),
            })
        })?;
        if is_well { Ok(()) } else { Err(Failure::Broken) }
    }
}
