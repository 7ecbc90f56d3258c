//! Arguments of `sluice schema`.

use clap::{Args, ValueEnum};

/// Print the JSON Schema of the host file or of the scenario file, for editors.
#[derive(Args)]
pub struct Schema {
    /// File to describe.
    #[arg(value_enum, default_value_t = Described::Host)]
    pub of: Described,
}

/// The files with a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Described {
    /// Host file, as read by `sluice serve`.
    Host,
    /// Scenario file, as read by `sluice sim`.
    Scenario,
}
