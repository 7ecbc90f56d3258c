//! `sluice state restore`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::output::{self, Format};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::folder::StateFolder;

/// Look after the state directory of a daemon that does not run.
#[derive(Args)]
pub(crate) struct State {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Restore(Restore),
}

/// Take back the state from before an upgrade, so that an older program can serve again.
///
/// A program whose state has a newer version keeps the older file next to it when it first writes. The older program refuses the
/// newer state. This command, of either program, puts the older file in place. Changes that were made at run time since
/// then are not in it, and volumes that were first served since then count as new. The newer file is kept as state.json.vN.replaced.
#[derive(Args)]
struct Restore {
    /// State directory: the `state` in `[daemon]` of the host file.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/sluice")]
    state: PathBuf,
}

impl State {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let What::Restore(Restore { state }) = self.what;
        let (newer, older) = StateFolder::restore(&state)?;
        match format {
            Format::Json => output::json(&serde_json::json!({ "ok": true, "version": older, "kept_version": newer })),
            Format::Table => output::line(&format!(
                "The state of version {older} is in place. The one of version {newer} is kept as {}/state.json.v{newer}.replaced",
                state.display()
            )),
        }
        Ok(())
    }
}
