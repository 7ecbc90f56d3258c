//! `sluice completions SHELL`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use sluice_daemon::failure::Failure;

/// Print shell completions.
///
/// The script is for packages, and completes commands and options. To complete the names of running VMs, volumes and devices too,
/// put a line into the start-up file of the shell instead: `source <(COMPLETE=bash sluice)` for bash, `source <(COMPLETE=zsh
/// sluice)` for zsh, `COMPLETE=fish sluice | source` for fish.
#[derive(Args)]
pub(crate) struct Completions {
    /// Shell to print them for.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut command = crate::Cli::command();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "sluice", &mut script);
        // Into memory first, because the generator panics if it cannot write.
        crate::output::raw(&script);
        Ok(())
    }
}
