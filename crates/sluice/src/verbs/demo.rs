//! `sluice demo`

use clap::Args;

use crate::failure::Failure;
use crate::output::Format;

/// Show in less than a minute what a reservation does for a VM with a noisy neighbour.
#[derive(Args)]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self, _format: Format, _quiet: bool) -> Result<(), Failure> {
        Ok(())
    }
}
