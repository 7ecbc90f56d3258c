//! `sluice reset NAME`, `sluice reset --all`

use std::path::PathBuf;

use clap::Args;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::Reason;
use crate::output::{self, Format};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::folder::StateFolder;
use sluice_daemon::state::overrides::Override;

/// Undo changes made at run time, so that the file's values apply again.
///
/// `sluice get overrides` lists their names. A name stands for everything below it: `db1/limit` for one key, `db1/root` for a
/// volume, `db1` for a VM and its volumes. A volume that was attached is detached, and one that was detached is served again.
#[derive(Args)]
pub(crate) struct Reset {
    /// Names of the changes, for example db1/limit or db1/root/size. Several are undone in one step: all of them, or none.
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    names: Vec<String>,
    /// Undoes all changes.
    #[arg(long)]
    all: bool,
    /// Changes the state directory of a daemon that does not run.
    #[arg(long, value_name = "FOLDER", conflicts_with = "socket")]
    state: Option<PathBuf>,
    #[command(flatten)]
    reason: Reason,
    /// Closes or replaces this VM or volume (db1 or db1/root) although clients are connected to it.
    #[arg(long, value_name = "NAME")]
    force: Vec<String>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Reset {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let Some(folder) = &self.state else {
            let name = (!self.all).then(|| self.names.into());
            let request = Request::Reset { name, reason: self.reason.reason, force: self.force };
            return self.daemon.ask(&request, format);
        };
        let (folder, mut saved) = StateFolder::open_existing(folder)?;
        let taken = match self.all {
            false => saved.overrides.remove(&self.names),
            true => saved.overrides.clear(),
        };
        let is_unknown = |name: &&String| !taken.iter().any(|known| known.is_named(std::slice::from_ref(*name)));
        if let Some(name) = self.names.iter().find(is_unknown) {
            return Err(Failure::NotFound(format!("No change made at run time is named {name}")));
        }
        folder.write(&saved)?;
        let names: Vec<String> = taken.iter().map(Override::name).collect();
        match format {
            Format::Json => output::json(&serde_json::json!({ "ok": true, "taken_back": names })),
            Format::Table => output::line(&format!("Undone: {}", names.join(", "))),
        }
        Ok(())
    }
}
