//! `cargo xtask bench`: builds the benchmarks (`tools/bench`) for release, where alone their numbers mean something, and runs them.

use std::process::ExitCode;

use crate::{Verb, workspace};

/// Measure promised numbers next to their baselines.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Bench {
    /// The benchmark and its options; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

impl Verb for Bench {
    const NAME: &'static str = "bench";

    fn run(self) -> Result<ExitCode, String> {
        let mut command = workspace::cargo();
        command.args(["run", "--quiet", "--release", "--package", "sluice-bench", "--"]).args(self.args);
        let status = command.status().map_err(|error| format!("Cannot start cargo: {error}"))?;
        Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
