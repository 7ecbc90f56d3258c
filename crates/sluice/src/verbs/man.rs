//! `sluice man FOLDER`

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use sluice_daemon::failure::Failure;

/// Write manual pages for man(1): one for each command.
#[derive(Args)]
pub(crate) struct Man {
    /// Existing folder for the pages.
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> Result<(), Failure> {
        // The page of `help` would say nothing.
        let command = crate::Cli::command().disable_help_subcommand(true);
        Ok(clap_mangen::generate_to(command, &self.folder)?)
    }
}
