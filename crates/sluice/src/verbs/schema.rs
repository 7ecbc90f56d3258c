//! `sluice schema`

use clap::Args;

use crate::failure::Failure;
use crate::output;

/// Print the JSON Schema of the host file, for editors.
#[derive(Args)]
pub(crate) struct Schema {}

impl Schema {
    pub(crate) fn run(self) -> Result<(), Failure> {
        output::line(&serde_json::to_string_pretty(&sluice_config::schema())?);
        Ok(())
    }
}
