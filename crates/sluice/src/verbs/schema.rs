//! `sluice schema [host|scenario]`

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::output;

/// Print the JSON Schema of the host file or of the scenario file, for editors.
#[derive(Args)]
pub(crate) struct Schema {
    /// File to describe.
    #[arg(value_enum, default_value_t = Of::Host)]
    of: Of,
}

/// The files with a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Host file, as read by `sluice serve`.
    Host,
    /// Scenario file, as read by `sluice sim`.
    Scenario,
}

impl Schema {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let schema = match self.of {
            Of::Host => sluice_config::schema(),
            Of::Scenario => sluice_sim::scenario::file::schema(),
        };
        output::line(&serde_json::to_string_pretty(&schema)?);
        Ok(())
    }
}
