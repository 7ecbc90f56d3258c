//! `sluice apply FILE`

use std::path::PathBuf;

use clap::Args;
use sluice_api::change::{Override, Plan, PlanResult};
use sluice_daemon::failure::Failure;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::control::keys::Reason;
use crate::output::{self, Format};

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
        let plan: Plan = daemon.get(&Request::Apply { file: Some(file), dry_run, force, reason: reason.reason })?;
        match format {
            Format::Json => output::json(&PlanResult { ok: true, dry_run, plan }),
            Format::Table => {
                print(&plan, dry_run);
                plan.warnings.iter().for_each(output::message);
            }
        }
        Ok(())
    }
}

fn print(plan: &Plan, dry_run: bool) {
    if plan.changes.is_empty() {
        output::line("Nothing changes");
    } else {
        let mut table = output::table(&["NAME", "KEY", "BEFORE", "AFTER", "EFFECT"]);
        table.add_rows(plan.changes.iter().map(|one| {
            let [key, before, after] = one.in_units();
            [one.name.clone(), key, before, after, one.effect.clone()]
        }));
        output::line(&table.to_string());
    }
    for held in &plan.held_back {
        output::line(&format!("Volume {} is held back: {}", held.volume, held.reason));
    }
    let (stay, end) = if dry_run { ("would stay", "would end") } else { ("stay", "end") };
    let value = |known: &Override| known.value.as_str().map_or_else(|| known.value.to_string(), str::to_owned);
    print_overrides(
        &plan.overrides,
        &format!("Overrides {stay} in force and hide the file's value:"),
        &["NAME", "FILE", "IN FORCE", "UNTIL"],
        |known| vec![known.name.clone(), known.file_in_words.clone(), value(known), known.until.clone()],
    );
    print_overrides(
        &plan.overrides_set_aside,
        "Overrides that are set aside, because the file does not allow them:",
        &["NAME", "VALUE", "UNTIL"],
        |known| vec![known.name.clone(), value(known), known.until.clone()],
    );
    print_overrides(&plan.overrides_ended, &format!("Overrides {end}:"), &["NAME", "VALUE", "WHY"], |known| {
        vec![known.name.clone(), value(known), known.why.clone().unwrap_or_default()]
    });
}

fn print_overrides(overrides: &[Override], title: &str, header: &[&str], row: impl Fn(&Override) -> Vec<String>) {
    if overrides.is_empty() {
        return;
    }
    output::line(title);
    let mut table = output::table(header);
    table.add_rows(overrides.iter().map(row));
    output::line(&table.to_string());
}
