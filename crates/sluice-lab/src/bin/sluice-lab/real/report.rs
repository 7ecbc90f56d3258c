//! The result of `sluice reproduce --real` on standard output: a table for each figure, or one JSON object.

use serde_json::{Value as Json, json};

use super::Lacking;
use super::results::{Column, Compared, Measured, Outcome, Real};
use sluice_console::table::table;
use sluice_daemon::output::{self, Format};

/// By how much a real value may differ from the simulated one.
pub(super) const BOUND: &str = "3 % (10 % on a modelled drive or behind a queue that drops; half a percent of the device's rate where that is more)";

/// Results of all figures.
pub(crate) struct Report {
    pub(super) outcomes: Vec<Outcome>,
    /// Whether the VMs were guests.
    pub(super) in_guests: bool,
    /// Whether only a part of each figure's time was measured.
    pub(super) quick: bool,
    pub(super) lacking: Option<Lacking>,
}

impl Report {
    /// Whether there are values with a simulated one, and all are near it.
    pub(crate) fn is_ok(&self) -> bool {
        let (near, all) = self.near();
        near == all && all > 0
    }

    /// Number of values over each protocol that are near the simulated one, and of all that have one.
    pub(super) fn near(&self) -> (usize, usize) {
        let trials = self.outcomes.iter().flat_map(|outcome| &outcome.trials);
        let real = trials.flat_map(|trial| &trial.values).flat_map(|value| &value.real);
        let near: Vec<bool> = real.filter_map(|real| real.is_near).collect();
        (near.iter().filter(|near| **near).count(), near.len())
    }

    pub(crate) fn print(&self, format: Format) {
        match format {
            Format::Json => output::json(&self.as_json()),
            Format::Table => self.print_text(),
        }
    }

    /// Returns everything as one object.
    pub(super) fn as_json(&self) -> Json {
        let figures: Vec<Json> = self.outcomes.iter().map(figure_as_json).collect();
        let mut object = json!({ "figures": figures, "ok": self.is_ok(), "quick": self.quick });
        if self.in_guests {
            // null: they ran.
            object["no_kernel"] = Json::Null;
        } else {
            object["no_nics"] = Json::Null;
        }
        match &self.lacking {
            Some(Lacking::Kernel(reason)) => object["no_kernel"] = reason.as_str().into(),
            Some(Lacking::Nics(reason)) => object["no_nics"] = reason.as_str().into(),
            None => {}
        }
        object
    }

    fn print_text(&self) {
        for outcome in &self.outcomes {
            let Outcome { figure, trials, took, .. } = outcome;
            output::line(&format!("{} {}: {}", figure.paper.name(), figure.label, figure.title));
            output::line(&text_table(outcome));
            let (windows, left_out, repeats) = pauses(trials);
            output::line(&format!(
                "{:.0} s; {left_out} of {windows} windows left out because the machine paused, {repeats} runs repeated\n",
                took.as_secs_f64(),
            ));
        }
        if let Some(lacking) = &self.lacking {
            output::line(&format!("{}.\n", lacking.text()));
        }
        output::line(&match self.near() {
            (_, 0) => "Nothing was measured that has a simulated value.".to_owned(),
            (near, all) if near == all => format!("All {all} real values are within {BOUND} of the simulated ones."),
            (near, all) => {
                format!(
                    "{} of {all} real values, marked with !, are not within {BOUND} of the simulated ones.",
                    all - near
                )
            }
        });
    }
}

/// A table of a figure's values, in the paper's units.
fn text_table(outcome: &Outcome) -> String {
    let of_figure = outcome.columns();
    let mut columns = vec!["TRIAL", "SECONDS", "VM", "", "PAPER", "SIMULATED"];
    columns.extend(of_figure.iter().map(|column| column.title));
    let mut table = table(&columns);
    for measured in &outcome.trials {
        for compared in &measured.values {
            table.add_row(cells(measured, compared, &of_figure));
        }
    }
    table.to_string()
}

/// The cells of a value: trial, seconds, VM, unit, paper, simulated, and each column of real values.
pub(super) fn cells(measured: &Measured, compared: &Compared, columns: &[Column]) -> Vec<String> {
    let (from, to) = compared.seconds;
    let mut cells = vec![
        measured.name.clone(),
        format!("{from} to {to}"),
        measured.vm_name(compared).to_owned(),
        compared.unit.to_owned(),
        compared.paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.*}", decimals(compared.unit))),
        compared.simulated.map_or_else(|| "-".to_owned(), |simulated| format!("{simulated:.1}")),
    ];
    cells.extend(columns.iter().map(|column| {
        let real = compared.real.iter().find(|real| real.column == *column);
        real.map_or_else(|| "-".to_owned(), |real| cell(real, compared.simulated))
    }));
    cells
}

/// Returns windows, those left out, and repeated runs of all trials.
pub(super) fn pauses(trials: &[Measured]) -> (usize, usize, usize) {
    let sum = |of: fn(&Measured) -> usize| -> usize { trials.iter().map(of).sum() };
    (sum(|trial| trial.windows), sum(|trial| trial.left_out), sum(|trial| trial.repeats))
}

/// Decimals of the paper's values.
fn decimals(unit: &str) -> usize {
    if matches!(unit, "s" | "x last VM") { 1 } else { 0 }
}

/// A real value with its deviation from the simulated one.
fn cell(real: &Real, simulated: Option<f64>) -> String {
    let mark = if real.is_near == Some(false) { " !" } else { "" };
    match deviation_percent(real, simulated) {
        Some(off) => format!("{:.1} ({off:+.1} %){mark}", real.value),
        None => format!("{:.1}{mark}", real.value),
    }
}

/// By how much a real value differs from the simulated one, if that is not 0.
pub(super) fn deviation_percent(real: &Real, simulated: Option<f64>) -> Option<f64> {
    let off = 100.0 * (real.value / simulated? - 1.0);
    off.is_finite().then_some(off)
}

/// How many values of a trial are near, and its pauses, for the progress.
pub(super) fn outline(measured: &Measured) -> String {
    let real = || measured.values.iter().flat_map(|compared| &compared.real);
    let (all, near) = (real().count(), real().filter(|real| real.is_near == Some(true)).count());
    let Measured { windows, left_out, repeats, .. } = measured;
    let is_simulated = measured.values.iter().all(|compared| compared.simulated.is_some());
    let values = match is_simulated {
        true => format!("{near} of {all} values near the simulated ones"),
        false => format!("{all} values, not simulated"),
    };
    format!("{values}; {left_out} of {windows} windows left out, {repeats} runs repeated")
}

fn figure_as_json(outcome: &Outcome) -> Json {
    let figure = outcome.figure;
    let trials: Vec<Json> = outcome.trials.iter().map(trial_as_json).collect();
    json!({
        "id": figure.id,
        "paper": figure.paper,
        "figure": figure.label,
        "trials": trials,
        "took_s": (outcome.took.as_secs_f64() * 10.0).round() / 10.0,
        "load_average": outcome.load,
    })
}

fn trial_as_json(measured: &Measured) -> Json {
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let value = |compared: &Compared| {
        let by_column = |of: &dyn Fn(&Real) -> Json| -> Json {
            let pairs = compared.real.iter().map(|real| (real.column.name.to_owned(), of(real)));
            pairs.collect::<serde_json::Map<_, _>>().into()
        };
        json!({
            "seconds": [compared.seconds.0, compared.seconds.1],
            "vm": compared.vm.map(|vm| measured.vms[vm].name),
            "unit": compared.unit,
            "paper": compared.paper.map(rounded),
            "simulated": compared.simulated.map(rounded),
            "real": by_column(&|real| rounded(real.value).into()),
            "near": by_column(&|real| real.is_near.into()),
            "paused_percent": by_column(&|real| rounded(real.paused_percent).into()),
        })
    };
    let mut object = json!({
        "name": measured.name,
        "tolerance": measured.tolerance,
        "values": measured.values.iter().map(value).collect::<Vec<_>>(),
        "windows": measured.windows,
        "windows_left_out": measured.left_out,
        "runs_repeated": measured.repeats,
        "scheduler": measured.scheduler,
    });
    if let Json::Object(object) = &mut object {
        object.extend(measured.facts.clone());
    }
    object
}
