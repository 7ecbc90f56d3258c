//! The result of `sluice reproduce --real` on standard output: a table for each figure, or one JSON object.

use serde_json::{Value as Json, json};
use sluice_lab::real::{Quantity, Trial};

use super::host::Protocol;
use super::{Compared, Measured, Outcome, Real, unit};
use sluice_console::table::table;
use sluice_daemon::output::{self, Format};

/// Results of all figures.
pub(crate) struct Report {
    pub(super) outcomes: Vec<Outcome>,
    /// Whether the VMs were guests.
    pub(super) in_guests: bool,
    /// Whether only a part of each figure's time was measured.
    pub(super) quick: bool,
    /// Why the kernel's schedulers did not run beside the guests.
    pub(super) no_kernel: Option<String>,
}

impl Report {
    /// Whether every real value is near the simulated one.
    pub(crate) fn is_ok(&self) -> bool {
        self.real().all(|real| real.is_near)
    }

    /// Every value over each protocol.
    pub(super) fn real(&self) -> impl Iterator<Item = &Real> {
        let trials = self.outcomes.iter().flat_map(|outcome| &outcome.trials);
        trials.flat_map(|trial| &trial.values).flat_map(|value| &value.real)
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
            object["no_kernel"] = self.no_kernel.clone().into();
        }
        object
    }

    fn print_text(&self) {
        for Outcome { figure, trials, took, .. } in &self.outcomes {
            let figure = figure.figure;
            output::line(&format!("{} {}: {}", figure.paper.name(), figure.label, figure.title));
            output::line(&self.table(trials));
            let (windows, left_out, repeats) = pauses(trials);
            output::line(&format!(
                "{:.0} s; {left_out} of {windows} windows left out because the machine paused, {repeats} runs repeated\n",
                took.as_secs_f64(),
            ));
        }
        if let Some(reason) = &self.no_kernel {
            output::line(&format!("The kernel's schedulers did not run: {reason}.\n"));
        }
        let (all, far) = (self.real().count(), self.real().filter(|real| !real.is_near).count());
        let how = "3 % of the simulated ones, or 10 % on a modelled drive";
        output::line(&match far {
            0 => format!("All {all} real values are within {how}."),
            _ => format!("{far} of {all} real values, marked with !, are not within {how}."),
        });
    }

    /// A table of a figure's values, in the paper's units.
    fn table(&self, trials: &[Measured]) -> String {
        let mut columns = vec!["TRIAL", "SECONDS", "VM", "", "PAPER", "SIMULATED"];
        columns.extend(self.protocols().iter().map(|protocol| title(*protocol)));
        let mut table = table(&columns);
        for Measured { trial, values, .. } in trials {
            for compared in values {
                table.add_row(self.cells(trial, compared));
            }
        }
        table.to_string()
    }

    /// The cells of a value: trial, seconds, VM, unit, paper, simulated, and over each protocol.
    pub(super) fn cells(&self, trial: &Trial, compared: &Compared) -> Vec<String> {
        let value = &compared.value;
        let mut cells = vec![
            trial.name.clone(),
            seconds(trial, value.part),
            vm_name(trial, compared).to_owned(),
            unit(value.quantity).to_owned(),
            value.paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.*}", decimals(value.quantity))),
            compared.simulated.map_or_else(|| "-".to_owned(), |simulated| format!("{simulated:.1}")),
        ];
        cells.extend(self.protocols().iter().map(|protocol| {
            let real = compared.real.iter().find(|real| real.protocol == *protocol);
            real.map_or_else(|| "-".to_owned(), |real| cell(real, compared.simulated))
        }));
        cells
    }

    /// The columns of real values.
    pub(super) fn protocols(&self) -> &'static [Protocol] {
        if self.in_guests { &[Protocol::Guest] } else { &Protocol::CLIENTS }
    }
}

/// Title of a column of real values.
fn title(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Nbd => "NBD",
        Protocol::Vhost => "VHOST-USER",
        Protocol::Guest => "IN THE GUEST",
    }
}

/// Returns windows, those left out, and repeated runs of all trials.
pub(super) fn pauses(trials: &[Measured]) -> (usize, usize, usize) {
    let sum = |of: fn(&Measured) -> usize| -> usize { trials.iter().map(of).sum() };
    (sum(|trial| trial.windows), sum(|trial| trial.left_out), sum(|trial| trial.repeats))
}

/// Decimals of the paper's values.
fn decimals(quantity: Quantity) -> usize {
    match quantity {
        Quantity::Iops | Quantity::Latency => 0,
        Quantity::Seconds | Quantity::Ratio => 1,
    }
}

fn seconds(trial: &Trial, part: usize) -> String {
    let (from, to) = trial.parts[part];
    format!("{from} to {to}")
}

/// A real value with its deviation from the simulated one.
fn cell(real: &Real, simulated: Option<f64>) -> String {
    let mark = if real.is_near { "" } else { " !" };
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

pub(super) fn vm_name(trial: &Trial, compared: &Compared) -> &'static str {
    compared.value.vm.map_or("all", |vm| trial.vms[vm].name)
}

/// The largest deviation of a trial, for the progress.
pub(super) fn outline(measured: &Measured) -> String {
    let real = || measured.values.iter().flat_map(|compared| &compared.real);
    let (all, near) = (real().count(), real().filter(|real| real.is_near).count());
    let Measured { windows, left_out, repeats, .. } = measured;
    let values = match measured.trial.kernel {
        None => format!("{near} of {all} values near the simulated ones"),
        Some(_) => format!("{all} values, not simulated"),
    };
    format!("{values}; {left_out} of {windows} windows left out, {repeats} runs repeated")
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
        "load_average": outcome.load,
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
            "simulated": compared.simulated.map(rounded),
            "real": by_protocol(&|real| rounded(real.value).into()),
            "near": by_protocol(&|real| real.is_near.into()),
            "paused_percent": by_protocol(&|real| rounded(real.paused_percent).into()),
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
        "runs_repeated": measured.repeats,
        "scheduler": trial.kernel.map_or(trial.scheduler, |kernel| kernel.name()),
    })
}
