//! Results of real runs, of disks and NICs alike, beside the simulated ones.

use std::time::Duration;

use serde_json::{Map, Value as Json};
use sluice_lab::figure::Figure;

/// How real values were measured: a column of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Column {
    /// Its name in JSON and on the page.
    pub(super) name: &'static str,
    /// Its title on standard output.
    pub(super) title: &'static str,
}

/// A value in all runs, in the paper's units.
#[derive(Clone)]
pub(super) struct Compared {
    /// First second of the interval, and the one after the last.
    pub(super) seconds: (usize, usize),
    /// Index of the VM; `None`: all together.
    pub(super) vm: Option<usize>,
    pub(super) unit: &'static str,
    /// Value of the paper, if it states one.
    pub(super) paper: Option<f64>,
    /// `None`: the scheduler is the kernel's.
    pub(super) simulated: Option<f64>,
    pub(super) real: Vec<Real>,
}

/// A value of one column.
#[derive(Clone)]
pub(super) struct Real {
    pub(super) column: Column,
    pub(super) value: f64,
    /// Whether it is near the simulated one; `None`: there is none.
    pub(super) is_near: Option<bool>,
    /// Percent of its windows in which the machine paused.
    pub(super) paused_percent: f64,
}

/// A VM in tables and charts.
pub(super) struct ShownVm {
    pub(super) name: &'static str,
    /// Rates that are drawn as lines: what was reserved, and limits.
    pub(super) levels: Vec<(String, f64)>,
}

/// How a trial is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drawn {
    /// The rate of each VM over time.
    OverTime,
    /// Bars of each VM's values, with those of other trials.
    Bars,
}

/// A trial with its results.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) scheduler: &'static str,
    pub(super) vms: Vec<ShownVm>,
    /// Part of a simulated value by which a real one may differ.
    pub(super) tolerance: f64,
    /// Facts of its kind of trial, for JSON.
    pub(super) facts: Map<String, Json>,
    pub(super) values: Vec<Compared>,
    pub(super) drawn: Drawn,
    /// Unit of the rates over time.
    pub(super) rate_unit: &'static str,
    /// Rate of each VM in each window of the last run.
    pub(super) series: Vec<Vec<f64>>,
    /// Windows of all runs, those left out because the machine paused, and repeated runs.
    pub(super) windows: usize,
    pub(super) left_out: usize,
    pub(super) repeats: usize,
}

impl Measured {
    /// Name of the VM of a value.
    pub(super) fn vm_name(&self, compared: &Compared) -> &'static str {
        compared.vm.map_or("all", |vm| self.vms[vm].name)
    }
}

/// A figure with its results.
pub(super) struct Outcome {
    pub(super) figure: &'static Figure,
    /// Sentences on how it ran, for the page.
    pub(super) notes: Vec<String>,
    pub(super) trials: Vec<Measured>,
    pub(super) took: Duration,
    /// Load average of the machine over the last minute, at the end.
    pub(super) load: f64,
}

/// Returns the columns of the real values of these.
pub(super) fn columns<'a>(values: impl Iterator<Item = &'a Compared>) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for real in values.flat_map(|value| &value.real) {
        if !columns.contains(&real.column) {
            columns.push(real.column);
        }
    }
    columns
}

impl Outcome {
    /// The columns of its real values.
    pub(super) fn columns(&self) -> Vec<Column> {
        columns(self.trials.iter().flat_map(|trial| &trial.values))
    }
}
