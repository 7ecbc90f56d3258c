//! `--batch`: the same figures as text, for scripts.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use sluice_api::status::State;
use sluice_api::top::{Figures, Top, Vm};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

use super::model::{failing, throughput_of};
use super::rows::{Row, View, rows};
use super::screen::amount;
use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::rows::{Form, of_programs, one};
use crate::output::{self, is_closed};
use crate::show::{NOTHING, devices, shown as shown_of};
use sluice_api::amount::{percent, rate, time};
use sluice_daemon::explain::promise::mark;

/// Prints the figures `count` times, or until its reader has gone.
pub(crate) fn run(
    daemon: &Daemon,
    interval: Duration,
    count: Option<u64>,
    view: &View,
    form: Form,
) -> Result<(), Failure> {
    let (mut next, mut left) = (Instant::now(), count);
    if count.is_none() {
        output::message("Runs until it is interrupted; -n 1 prints once");
    }
    loop {
        let snapshot = daemon.get(&Request::Top)?;
        let text = shown(&snapshot, view, form);
        // Without rows there are no lines.
        if form != Form::Jsonl || !text.is_empty() {
            output::line(&text);
        }
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) || is_closed() {
            return Ok(());
        }
        next += interval;
        sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// The figures as text, without a newline at the end.
pub(super) fn shown(snapshot: &Top, view: &View, form: Form) -> String {
    match form {
        Form::Json => one(&Shown { ok: true, top: Top { vms: vms(snapshot, view), ..snapshot.clone() } }),
        Form::Jsonl | Form::Csv => of_programs(form, "vms", &vms(snapshot, view)),
        Form::Table | Form::Wide => table(snapshot, view),
    }
}

/// The figures as programs see them.
#[derive(Serialize)]
struct Shown {
    ok: bool,
    #[serde(flatten)]
    top: Top,
}

/// The VMs in the order of the view, each with the time.
fn vms(snapshot: &Top, view: &View) -> Vec<Vm> {
    let flat = View { tree: false, ..view.clone() };
    let of = |row: Row<'_>| match row {
        Row::Vm(vm) => Some(Vm { time: Some(snapshot.time), ..vm.clone() }),
        Row::Device { .. } | Row::Volume { .. } => None,
    };
    rows(snapshot, &flat).into_iter().filter_map(of).collect()
}

fn table(snapshot: &Top, view: &View) -> String {
    let mut table = output::table(&[
        "VM",
        "DEVICE",
        "PROMISES",
        "RESERVED",
        "LIMIT",
        "IOPS",
        "MIB/S",
        "P50",
        "P99",
        "OUTSTANDING",
        "CPU",
        "HELD BY",
    ]);
    for row in rows(snapshot, view) {
        let (Some(name), Some((figures, rates))) = (row.name(), row.figures()) else { continue };
        let held_by = match row {
            Row::Vm(vm) => vm.held_by.map_or(NOTHING, |cause| cause.in_words()),
            Row::Device { .. } | Row::Volume { .. } => NOTHING,
        };
        let cpu = shown_of(row.cpu_percent(), percent);
        table.add_row([
            name.target(),
            name.device,
            state(figures),
            amount(&figures.reservation, &rates),
            amount(&figures.limit, &rates),
            rate(rates.iops),
            throughput_of(&rates),
            shown_of(rates.p50_us, time),
            shown_of(rates.p99_us, time),
            figures.outstanding.to_string(),
            cpu,
            held_by.to_owned(),
        ]);
    }
    let failing: String = failing(snapshot).map(|line| format!("{line}\n")).collect();
    format!("{}\n{}\n\n{table}\n{failing}", Time(snapshot.time), devices::table(&snapshot.devices, false))
}

fn state(figures: &Figures) -> String {
    mark(figures.state.unwrap_or(State::None)).to_owned()
}
