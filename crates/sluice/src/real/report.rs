//! The result of `sluice reproduce --real` on standard output: a table for each figure, or one JSON object.

use serde_json::{Value as Json, json};
use sluice_lab::real::Trial;

use super::host::Protocol;
use super::{Compared, Measured, Outcome, Real, unit};
use crate::output::{self, Format};

/// Results of all figures.
pub(crate) struct Report {
    pub(super) outcomes: Vec<Outcome>,
}

impl Report {
    /// Whether every real value is near the simulated one.
    pub(crate) fn is_ok(&self) -> bool {
        self.real().all(|real| real.is_near)
    }

    fn real(&self) -> impl Iterator<Item = &Real> {
        let trials = self.outcomes.iter().flat_map(|outcome| &outcome.trials);
        trials.flat_map(|trial| &trial.values).flat_map(|value| &value.real)
    }

    pub(crate) fn print(&self, format: Format) {
        match format {
            Format::Json => output::json(&self.as_json()),
            Format::Table => self.print_text(),
        }
    }

    fn as_json(&self) -> Json {
        let figures: Vec<Json> = self.outcomes.iter().map(figure_as_json).collect();
        json!({ "figures": figures, "ok": self.is_ok() })
    }

    fn print_text(&self) {
        for Outcome { figure, trials, took } in &self.outcomes {
            let figure = figure.figure;
            output::line(&format!("{} {}: {}", figure.paper.name(), figure.label, figure.title));
            output::line(&table(trials));
            let sum = |of: fn(&Measured) -> usize| -> usize { trials.iter().map(of).sum() };
            output::line(&format!(
                "{:.0} s; {} of {} windows left out because the machine paused\n",
                took.as_secs_f64(),
                sum(|trial| trial.left_out),
                sum(|trial| trial.windows)
            ));
        }
        let (all, far) = (self.real().count(), self.real().filter(|real| !real.is_near).count());
        let how = "3 % of the simulated ones, or 10 % on a modelled drive";
        output::line(&match far {
            0 => format!("All {all} real values are within {how}."),
            _ => format!("{far} of {all} real values, marked with !, are not within {how}."),
        });
    }
}

/// A table of a figure's values, in the paper's units.
fn table(trials: &[Measured]) -> String {
    let mut table = output::table(&["TRIAL", "SECONDS", "VM", "", "PAPER", "SIMULATED", "NBD", "VHOST-USER"]);
    for Measured { trial, values, .. } in trials {
        for compared in values {
            let value = &compared.value;
            let [nbd, vhost] = Protocol::ALL.map(|protocol| {
                let real = compared.real.iter().find(|real| real.protocol == protocol);
                real.map_or_else(|| "-".to_owned(), |real| cell(real, compared.simulated))
            });
            table.add_row([
                trial.name.clone(),
                seconds(trial, value.part),
                vm_name(trial, compared).to_owned(),
                unit(value.quantity).to_owned(),
                value.paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.0}")),
                format!("{:.1}", compared.simulated),
                nbd,
                vhost,
            ]);
        }
    }
    table.to_string()
}

fn seconds(trial: &Trial, part: usize) -> String {
    let (from, to) = trial.parts[part];
    format!("{from} to {to}")
}

/// A real value with its deviation from the simulated one.
fn cell(real: &Real, simulated: f64) -> String {
    let mark = if real.is_near { "" } else { " !" };
    let off = if real.value == simulated { 0.0 } else { 100.0 * (real.value / simulated - 1.0) };
    if off.is_finite() { format!("{:.1} ({off:+.1} %){mark}", real.value) } else { format!("{:.1}{mark}", real.value) }
}

fn vm_name(trial: &Trial, compared: &Compared) -> &'static str {
    compared.value.vm.map_or("all", |vm| trial.vms[vm].name)
}

/// The largest deviation of a trial, for the progress.
pub(super) fn outline(measured: &Measured) -> String {
    let real = || measured.values.iter().flat_map(|compared| &compared.real);
    let (all, near) = (real().count(), real().filter(|real| real.is_near).count());
    let Measured { windows, left_out, .. } = measured;
    format!("{near} of {all} values near the simulated ones; {left_out} of {windows} windows left out")
}

fn figure_as_json(outcome: &Outcome) -> Json {
    let figure = outcome.figure.figure;
    let trials: Vec<Json> = outcome.trials.iter().map(trial_as_json).collect();
    json!({
        "id": figure.id,
        "paper": figure.paper,
        "figure": figure.label,
        "trials": trials,
        "took_s": (outcome.took.as_secs_f64() * 10.0).round() / 10.0,
    })
}

fn trial_as_json(measured: &Measured) -> Json {
    let trial = &measured.trial;
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let value = |compared: &Compared| {
        let by_protocol = |of: &dyn Fn(&Real) -> Json| -> Json {
            let pairs = compared.real.iter().map(|real| (real.protocol.name().to_owned(), of(real)));
            pairs.collect::<serde_json::Map<_, _>>().into()
        };
        json!({
            "seconds": [trial.parts[compared.value.part].0, trial.parts[compared.value.part].1],
            "vm": compared.value.vm.map(|vm| trial.vms[vm].name),
            "unit": unit(compared.value.quantity),
            "paper": compared.value.paper.map(rounded),
            "simulated": rounded(compared.simulated),
            "real": by_protocol(&|real| rounded(real.value).into()),
            "near": by_protocol(&|real| real.is_near.into()),
        })
    };
    json!({
        "name": trial.name,
        "device_iops": trial.iops(),
        "speedup": trial.speedup(),
        "tolerance": trial.tolerance(),
        "values": measured.values.iter().map(value).collect::<Vec<_>>(),
        "windows": measured.windows,
        "windows_left_out": measured.left_out,
    })
}
