//! `sluice man FOLDER`

use std::path::PathBuf;

use clap::Args;

use crate::pages;
use sluice_daemon::failure::Failure;

/// Write manual pages for man(1): one for each command, and sluice.toml(5) for the host file.
#[derive(Args)]
pub(crate) struct Man {
    /// Existing folder for the pages.
    folder: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> Result<(), Failure> {
        pages::write(&self.folder).map_err(|error| {
            let folder = self.folder.display();
            Failure::Run(format!("Cannot write pages into {folder}: {error}; name a folder that exists").into())
        })
    }
}
