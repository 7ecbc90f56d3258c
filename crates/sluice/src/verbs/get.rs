//! `sluice get overrides`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::control::Request;
use crate::control::client::Daemon;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::state::folder::StateFolder;
use crate::state::overrides::Override;

/// Show the state of the running daemon.
#[derive(Args)]
pub(crate) struct Get {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Overrides(Overrides),
}

/// List the changes made at run time, which differ from the files.
///
/// Each line has the name for `sluice reset`, the file's value that is hidden, the value in force, who made the change (user,
/// group and process), when and why, and the time at which it ends at the latest.
#[derive(Args)]
struct Overrides {
    /// Reads the state directory of a daemon that does not run.
    #[arg(long, value_name = "FOLDER", conflicts_with = "socket")]
    state: Option<PathBuf>,
    #[command(flatten)]
    daemon: Daemon,
}

impl Get {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let What::Overrides(Overrides { state, daemon }) = self.what;
        let overrides = match state {
            Some(folder) => {
                let (_folder, saved) = StateFolder::open(&folder)?;
                Value::Array(saved.overrides.iter().map(Override::to_json).collect())
            }
            None => daemon.get(&Request::GetOverrides)?["overrides"].clone(),
        };
        match format {
            Format::Json => output::json(&json!({ "ok": true, "overrides": overrides })),
            Format::Table => output::line(&table(&overrides)),
        }
        Ok(())
    }
}

fn table(overrides: &Value) -> String {
    let mut table = output::table(&["NAME", "FILE", "IN FORCE", "WHO", "WHEN", "UNTIL", "WHY"]);
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for known in overrides.as_array().into_iter().flatten() {
        let who = format!("uid {}, gid {}, pid {}", known["uid"], known["gid"], text(&known["pid"]));
        let cells = ["name", "file_in_words", "value", "", "at", "until", "reason"];
        table.add_row(cells.map(|key| if key.is_empty() { who.clone() } else { text(&known[key]) }));
    }
    table.to_string()
}
