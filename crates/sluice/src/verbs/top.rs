//! `sluice top`

use std::time::Duration;

use clap::Args;
use sluice_sched::units::parse_duration;

use crate::control::client::Daemon;
use crate::output::rows::Form;
use crate::top::rows::{Sort, View};
use crate::top::{batch, session};
use sluice_daemon::failure::Failure;

/// Show VMs and devices, refreshed every second: each rate in its band from reservation to limit.
///
/// One row for each VM and device: whether its promises are kept (BROKEN if one is not), its rate in normalised requests per second in the last
/// second, drawn between its reservation (`|`) and its limit (`]`), p99 of the last 10 s, and why it does not get more. The header
/// has the load of each device, what is reserved on it, and whether its stated capacity is right. `?` lists the keys: details with the latency histogram, sorting, filter, tree, and
/// changes of policies. `NO_COLOR` is respected; no state is shown by a colour alone.
#[derive(Args)]
pub(crate) struct Top {
    /// Print text instead of drawing on the terminal, until interrupted or for -n refreshes; for scripts, with `-n1 -o json`.
    #[arg(long, short)]
    batch: bool,
    /// End after this number of refreshes. Without it the display continues until it is ended, also with --batch.
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    count: Option<u64>,
    /// Time between refreshes.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Order of the VMs.
    #[arg(long, value_enum, default_value_t = Sort::Broken)]
    sort: Sort,
    /// Only VMs with this text in their name, device, volumes or state.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Show devices with their VMs, and VMs with their volumes.
    #[arg(long)]
    tree: bool,
    #[command(flatten)]
    daemon: Daemon,
}

impl Top {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        let view = View { sort: self.sort, reversed: false, filter: self.filter, tree: self.tree };
        if self.batch {
            return batch::run(&self.daemon, self.interval, self.count, &view, form);
        }
        if !matches!(form, Form::Table | Form::Wide) {
            return Err(Failure::Run("This form needs --batch: `sluice top --batch -n1 -o json`".into()));
        }
        session::run(&self.daemon, self.interval, self.count, view)
    }
}

/// The daemon has new figures every second, so shorter intervals are refused.
fn interval(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|_| "it is no time; write for example 5s".to_owned())?;
    if time < Duration::from_secs(1) { Err("write a time of at least 1s, for example 5s".to_owned()) } else { Ok(time) }
}
