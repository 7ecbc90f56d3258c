//! `--batch`: the same figures as text, for scripts.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::model::{Figures, Snapshot};
use super::rows::{Row, View, rows};
use super::screen::amount;
use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::rows::{Form, csv};
use crate::output::{self, is_closed};
use crate::show::promise::{cause, mark};
use crate::show::{NOTHING, devices, percent, rate, time};
use sluice_daemon::failure::Failure;
use sluice_daemon::state::time::Time;

/// Prints the figures `count` times, or until its reader has gone.
pub(crate) fn run(
    daemon: &Daemon,
    interval: Duration,
    count: Option<u64>,
    view: &View,
    form: Form,
) -> Result<(), Failure> {
    let (mut next, mut left) = (Instant::now(), count);
    loop {
        let snapshot = daemon.read(&Request::Top)?;
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
pub(super) fn shown(snapshot: &Snapshot, view: &View, form: Form) -> String {
    match form {
        Form::Json => {
            let vms: Vec<Value> = vms(snapshot, view);
            json!({
                "ok": true,
                "version": 1,
                "time": snapshot.time,
                "devices": snapshot.devices,
                "vms": vms,
                "out_of_service": snapshot.out_of_service,
                "held_back": snapshot.held_back,
            })
            .to_string()
        }
        Form::Jsonl => vms(snapshot, view).iter().map(Value::to_string).collect::<Vec<_>>().join("\n"),
        Form::Csv => csv(&vms(snapshot, view)),
        Form::Table | Form::Wide => table(snapshot, view),
    }
}

/// The VMs in the order of the view, each with the time.
fn vms(snapshot: &Snapshot, view: &View) -> Vec<Value> {
    let flat = View { tree: false, ..view.clone() };
    let rows = rows(snapshot, &flat);
    let of = |row: &Row<'_>| match row {
        Row::Vm(vm) => {
            let mut json = serde_json::to_value(vm).expect("our own types have string keys");
            json["time"] = snapshot.time.into();
            Some(json)
        }
        Row::Device { .. } | Row::Volume { .. } => None,
    };
    rows.iter().filter_map(of).collect()
}

fn table(snapshot: &Snapshot, view: &View) -> String {
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
            Row::Vm(vm) => vm.held_by.as_deref().map_or(NOTHING, cause),
            Row::Device { .. } | Row::Volume { .. } => NOTHING,
        };
        let cpu = row.cpu_percent().map_or(NOTHING.to_owned(), |used| percent(&used.into()));
        let or_nothing = |us: Option<f64>| us.map_or(NOTHING.to_owned(), |us| time(&us.into()));
        table.add_row([
            name.target(),
            name.device,
            state(figures),
            amount(&figures.reservation, &rates),
            amount(&figures.limit, &rates),
            rate(&rates.iops.into()),
            rates.throughput(),
            or_nothing(rates.p50_us),
            or_nothing(rates.p99_us),
            figures.outstanding.to_string(),
            cpu,
            held_by.to_owned(),
        ]);
    }
    let failing: String = snapshot.failing().map(|line| format!("{line}\n")).collect();
    format!("{}\n{}\n\n{table}\n{failing}", Time(snapshot.time), devices::table(&snapshot.devices, false))
}

fn state(figures: &Figures) -> String {
    mark(&figures.state.as_deref().map_or(Value::Null, Value::from)).to_owned()
}
