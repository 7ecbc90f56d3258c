//! Arguments of `sluice schema`.

use clap::{Args, ValueEnum};

/// Print the JSON Schema of the host file or of the scenario file, for editors, or the OpenAPI document of the control socket.
#[derive(Args)]
pub struct Schema {
    /// What to describe.
    #[arg(value_enum, default_value_t = Described::Host)]
    pub of: Described,
}

/// What has a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Described {
    /// Host file, as read by `sluice serve`.
    Host,
    /// Scenario file, as read by `sluice sim`.
    Scenario,
    /// HTTP on the control socket, as OpenAPI 3.1.
    Api,
}
