//! `sluice apply FILE`

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use crate::control::Request;
use crate::control::client::{Daemon, warnings};
use crate::control::keys::Reason;
use crate::output::{self, Format};
use crate::show::list;
use sluice_daemon::failure::Failure;

/// Reload the daemon's host file, wait for the result, and report what has changed.
///
/// Like SIGHUP, but it fails if the reload fails: exit code 1 if the file has errors, 4 if it is refused. A change that
/// would close a volume with clients, or give it another source, is refused unless `--force` names it. Changes made at run
/// time (overrides) stay in force where the file's value has not changed; those that stay, with the file's value that each
/// hides, and those that end are listed.
#[derive(Args)]
pub(crate) struct Apply {
    /// Host file of the daemon; with --dry-run, any file.
    file: PathBuf,
    /// Reports what would change, and whether it would be refused. Nothing changes.
    #[arg(long)]
    dry_run: bool,
    /// Accepted for scripts that state it: the command always waits for the result.
    #[arg(long)]
    wait: bool,
    /// Closes or replaces a volume, or those of a VM (db1/root or db1), although clients are connected, or serves it although it
    /// would be held back. '*' stands for all of them; it also accepts a file without volumes.
    #[arg(long, value_name = "NAME")]
    force: Vec<String>,
    #[command(flatten)]
    reason: Reason,
    #[command(flatten)]
    daemon: Daemon,
}

impl Apply {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let Apply { file, dry_run, force, reason, daemon, .. } = self;
        let file = std::path::absolute(file)?;
        let plan = daemon.get(&Request::Apply { file, dry_run, force, reason: reason.reason })?;
        match format {
            Format::Json => {
                let mut json = json!({ "ok": true, "dry_run": dry_run });
                if let Value::Object(plan) = plan {
                    json.as_object_mut().expect("it is one").extend(plan);
                }
                output::json(&json);
            }
            Format::Table => {
                print(&plan, dry_run);
                warnings(Some(&plan)).for_each(output::message);
            }
        }
        Ok(())
    }
}

fn print(plan: &Value, dry_run: bool) {
    let changes = plan["changes"].as_array().map_or(&[][..], Vec::as_slice);
    if changes.is_empty() {
        output::line("Nothing changes");
    } else {
        let mut table = output::table(&["NAME", "KEY", "BEFORE", "AFTER", "EFFECT"]);
        let keys = ["name", "key", "before", "after", "effect"];
        table.add_rows(changes.iter().map(|change| keys.map(|key| change[key].as_str().unwrap_or("-").to_owned())));
        output::line(&table.to_string());
    }
    for held in plan["held_back"].as_array().into_iter().flatten() {
        let text = |key: &str| held[key].as_str().unwrap_or("-").to_owned();
        output::line(&format!("Volume {} is held back: {}", text("volume"), text("reason")));
    }
    let (stay, end) = if dry_run { ("would stay", "would end") } else { ("stay", "end") };
    print_overrides(&plan["overrides"], &format!("Overrides {stay} in force and hide the file's value:"), &HIDES);
    let title = "Overrides that are set aside, because the file does not allow them:";
    print_overrides(&plan["overrides_set_aside"], title, &ASIDE);
    print_overrides(&plan["overrides_ended"], &format!("Overrides {end}:"), &ENDS);
}

/// Columns of overrides: headers, and keys.
const HIDES: [(&str, &str); 4] =
    [("NAME", "name"), ("FILE", "file_in_words"), ("IN FORCE", "value"), ("UNTIL", "until")];
const ASIDE: [(&str, &str); 3] = [("NAME", "name"), ("VALUE", "value"), ("UNTIL", "until")];
const ENDS: [(&str, &str); 3] = [("NAME", "name"), ("VALUE", "value"), ("WHY", "why")];

fn print_overrides(overrides: &Value, title: &str, columns: &[(&str, &str)]) {
    let overrides = list(overrides);
    if overrides.is_empty() {
        return;
    }
    output::line(title);
    let mut table = output::table(&columns.iter().map(|(header, _)| *header).collect::<Vec<_>>());
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    table.add_rows(overrides.iter().map(|known| columns.iter().map(|(_, key)| cell(&known[*key]))));
    output::line(&table.to_string());
}
