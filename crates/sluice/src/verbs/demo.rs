//! `sluice demo`

use crate::demo;
use crate::output::Format;
use clap::Args;
use sluice_daemon::failure::Failure;

/// Show in less than a minute how a reservation protects a VM from a noisy neighbour.
///
/// Serves temporary disks on a device of known capacity to three VMs, through real sockets: first with noop, then with
/// mClock. Then their NICs share a link of 100 Mbit/s, over vhost-user-net. Does not need root. Its disks are temporary files, which it removes at the end. The exit code is 0 only if every
/// guarantee was kept. If other programs keep the CPUs busy, it measures how late its threads were, and does not judge a guarantee that
/// was missed while they were.
#[derive(Args)]
pub(crate) struct Demo {
    /// Minimum measuring time for each scheduler.
    #[arg(long, value_name = "SECONDS", hide = true, default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=5))]
    seconds: u16,
}

impl Demo {
    pub(crate) fn run(self, format: Format, quiet: bool) -> Result<(), Failure> {
        let report = sluice_testbed::run(demo::run(usize::from(self.seconds), quiet))?;
        report.print(format);
        if report.is_ok() { Ok(()) } else { Err(Failure::No) }
    }
}
