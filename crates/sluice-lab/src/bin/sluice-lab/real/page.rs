//! The result of `sluice reproduce --real` for readers: a page of HTML, or Markdown with charts in files of their own.

use std::path::Path;

use sluice_lab::report::write;
use sluice_lab::{LabError, Paper};
use sluice_report::{Chart, Line, Page, Table};

use super::Report;
use super::nics::NOT_HERE;
use super::report::{BOUND, cells, deviation_percent, pauses};
use super::results::{Compared, Drawn, Measured, Outcome, ShownVm, columns};

/// A part of the page.
enum Block {
    /// A title with its anchor.
    Heading(String, &'static str),
    Paragraph(String),
    Table(Table),
    Chart(Box<Chart>, &'static str),
}

impl Report {
    /// Name of the page without its ending.
    fn name(&self) -> &'static str {
        if self.in_guests { "guests" } else { "real" }
    }

    fn title(&self) -> &'static str {
        if self.in_guests { "Figures in guests" } else { "Figures on real I/O" }
    }

    /// Writes the page as Markdown, with its charts.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn write_docs(&self, folder: &Path) -> Result<(), LabError> {
        let option = if self.in_guests { "--real --guests" } else { "--real" };
        let mut text =
            format!("# {}\n\nWritten by `sluice reproduce {option} --docs DIR`; do not edit.\n", self.title());
        let mut charts = 0;
        for block in self.blocks() {
            text += "\n";
            text += &match block {
                Block::Heading(title, _) => {
                    charts = 0;
                    format!("## {title}\n")
                }
                Block::Paragraph(words) => format!("{words}\n"),
                Block::Table(table) => table.markdown(),
                Block::Chart(chart, figure) => {
                    charts += 1;
                    let file = format!("{}-{figure}-{charts}.svg", self.name());
                    write(&folder.join(&file), &chart.svg())?;
                    format!("![{}]({file})\n", chart.title)
                }
            };
        }
        write(&folder.join(format!("{}.md", self.name())), &text)
    }

    /// Writes the page as HTML, and the results as JSON.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn write_page(&self, folder: &Path) -> Result<(), LabError> {
        let mut page = Page::new(self.title());
        for block in self.blocks() {
            match block {
                Block::Heading(title, id) => page.heading(2, id, &title),
                // Of Markdown the page knows bold text alone.
                Block::Paragraph(words) => {
                    page.paragraph(&words.replace("[README.md](README.md)", "docs/papers/README.md").replace('`', ""))
                }
                Block::Table(table) => page.table(&table),
                Block::Chart(chart, _) => page.chart(&chart),
            };
        }
        write(&folder.join(format!("{}.html", self.name())), &page.html())?;
        write(&folder.join(format!("{}.json", self.name())), &format!("{:#}\n", self.as_json()))
    }

    fn blocks(&self) -> Vec<Block> {
        let mut blocks =
            vec![Block::Paragraph(self.answer()), Block::Paragraph(self.introduction()), Block::Table(self.summary())];
        blocks.extend(self.lacking.iter().map(|lacking| Block::Paragraph(format!("{}.", lacking.text()))));
        if self.outcomes.iter().any(|outcome| outcome.figure.paper == Paper::Netback) {
            blocks.push(Block::Paragraph(NOT_HERE.to_owned()));
        }
        for outcome in &self.outcomes {
            let figure = outcome.figure;
            let title = format!("{} {}: {}", figure.paper.name(), figure.label, figure.title);
            blocks.push(Block::Heading(title, figure.id));
            blocks.push(Block::Paragraph(figure.setup.to_owned()));
            blocks.extend(outcome.notes.iter().cloned().map(Block::Paragraph));
            blocks.push(Block::Table(values(outcome)));
            blocks.extend(charts(outcome).into_iter().map(|chart| Block::Chart(Box::new(chart), figure.id)));
        }
        blocks
    }

    /// Returns a sentence with the number of values that are near, and the figures that have others.
    fn answer(&self) -> String {
        let far = |outcome: &Outcome| {
            let values = outcome.trials.iter().flat_map(|trial| &trial.values);
            let far = values.flat_map(|value| &value.real).filter(|real| real.is_near == Some(false)).count();
            let (paper, label) = (outcome.figure.paper.name(), outcome.figure.label);
            (far > 0).then(|| format!("{paper} {label} ({far})"))
        };
        let (near, all) = self.near();
        let far: Vec<String> = self.outcomes.iter().filter_map(far).collect();
        let rest = if far.is_empty() { String::new() } else { format!(" The others are in {}.", far.join(", ")) };
        format!("**Found.** {near} of {all} real values are near the simulated ones.{rest}")
    }

    fn introduction(&self) -> String {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let how = if self.in_guests {
            "Three Linux guests under QEMU, emulated without KVM, each with a disk that is a part of one real file. The daemon serves the file at the \
             figure's rate over vhost-user-blk. Rates and latencies are what the guest's kernel counts. The kernel's own schedulers, bfq and \
             blk-throttle, run on a loop device over the same file at the same rate: bfq has the VMs' weights, and blk-throttle limits each VM to \
             what simulated mClock gives it at the end. A reader or writer is a process that goes through the disk from a place of its own; to the file all places are \
             alike. Differences from the figure's own set-up are in [README.md](README.md)."
        } else {
            "The daemon on a real file, whose requests complete at the figure's rate or when a model of the drive says, with clients over NBD and \
             vhost-user-blk; for netback with NICs on a link of 100 Mbit/s. [README.md](README.md) describes devices and times."
        };
        let part = match (self.quick, self.in_guests) {
            (false, _) => "",
            (true, false) => " This was a quick run: only a part of each figure's time was measured.",
            (true, true) => " This was a quick run: only a tenth of each figure's time was measured.",
        };
        format!(
            "{how}{part} A real value in parentheses is its difference from the simulated one; with ! it is more than {BOUND}. The largest \
             difference leaves out what is near by that half percent alone. \"Paused\" is the part of a value's seconds in which the \
             machine did not run for a moment, and which were therefore left out. A machine \
             with {cpus} CPUs, Sluicegate {}.",
            env!("CARGO_PKG_VERSION")
        )
    }

    /// One line for each figure.
    fn summary(&self) -> Table {
        let columns = [
            "figure",
            "values",
            "near the simulated ones",
            "largest difference",
            "paused",
            "runs repeated",
            "time",
            "load",
        ];
        let mut table = Table::new("All figures", &columns);
        for Outcome { figure, trials, took, load, .. } in &self.outcomes {
            let compared = || trials.iter().flat_map(|trial| &trial.values).filter(|value| value.simulated.is_some());
            let real = || compared().flat_map(|value| value.real.iter().map(move |real| (real, value.simulated)));
            let off = trials.iter().flat_map(differences_percent);
            let largest = off.max_by(|a, b| a.abs().total_cmp(&b.abs()));
            let (windows, left_out, repeats) = pauses(trials);
            table.row([
                format!("{} {}", figure.paper.name(), figure.label),
                real().count().to_string(),
                real().filter(|(real, _)| real.is_near == Some(true)).count().to_string(),
                largest.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1} %")),
                percent(100.0 * left_out as f64 / windows.max(1) as f64),
                repeats.to_string(),
                format!("{:.0} s", took.as_secs_f64()),
                format!("{load:.1}"),
            ]);
        }
        table
    }
}

/// Differences of a trial's values from the simulated ones, but for those that are near because the device's rate is so much more.
fn differences_percent(trial: &Measured) -> impl Iterator<Item = f64> {
    let of = |compared: &Compared| {
        let off = |real| deviation_percent(real, compared.simulated).map(|off| (off, real.is_near));
        compared.real.iter().filter_map(off).collect::<Vec<_>>()
    };
    let counts = |(off, is_near): &(f64, Option<bool>)| *is_near == Some(false) || off.abs() <= 100.0 * trial.tolerance;
    trial.values.iter().flat_map(of).filter(counts).map(|(off, _)| off)
}

fn values(outcome: &Outcome) -> Table {
    let of_figure = outcome.columns();
    let mut columns = vec!["trial", "seconds", "VM", "unit", "paper", "simulated"];
    columns.extend(of_figure.iter().map(|column| column.name));
    columns.push("paused");
    let mut table = Table::new("Values, in the paper's units", &columns);
    for measured in &outcome.trials {
        for compared in &measured.values {
            let paused: Vec<String> = compared.real.iter().map(|real| percent(real.paused_percent)).collect();
            let cells = cells(measured, compared, &of_figure).into_iter();
            table.row(cells.chain([paused.join(", ")]).collect::<Vec<_>>());
        }
    }
    table
}

fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

/// Returns the charts of a figure.
fn charts(outcome: &Outcome) -> Vec<Chart> {
    let drawn = |as_what: Drawn| outcome.trials.iter().filter(move |measured| measured.drawn == as_what);
    let bars: Vec<&Measured> = drawn(Drawn::Bars).collect();
    let mut units: Vec<&str> = Vec::new();
    for unit in bars.iter().flat_map(|measured| &measured.values).map(|compared| compared.unit) {
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    drawn(Drawn::OverTime).map(rates).chain(units.into_iter().flat_map(|unit| by_vm(&bars, unit))).collect()
}

/// The rate of each VM over time, with what was reserved, the limits, and the paper's values.
fn rates(measured: &Measured) -> Chart {
    let line = |(number, vm): (usize, &ShownVm)| {
        let points = measured.series.iter().enumerate().map(|(second, rates)| (second as f64 + 0.5, rates[number]));
        let of_vm = measured.values.iter();
        let of_vm = of_vm.filter(|value| value.vm == Some(number) && value.unit == measured.rate_unit);
        let middle = |(from, to): (usize, usize)| (from + to) as f64 / 2.0;
        let published = of_vm.filter_map(|value| Some((middle(value.seconds), value.paper?)));
        Line::new(vm.name, points.collect()).published(published.collect())
    };
    let lines = measured.vms.iter().enumerate().map(line).collect();
    let chart = Chart::lines(&measured.name, "time [s]", measured.rate_unit, lines);
    let levels = measured.vms.iter().flat_map(|vm| &vm.levels);
    levels.fold(chart, |chart, (name, rate)| chart.level(name.clone(), *rate))
}

/// Bars of the values with a unit, a chart for each VM with a group for each trial.
fn by_vm(trials: &[&Measured], unit: &str) -> Vec<Chart> {
    let mut names: Vec<&str> = Vec::new();
    for measured in trials {
        for compared in measured.values.iter().filter(|compared| compared.unit == unit) {
            let vm = measured.vm_name(compared);
            if !names.contains(&vm) {
                names.push(vm);
            }
        }
    }
    names.into_iter().map(|vm| bars(vm, trials, unit)).collect()
}

fn bars(vm: &str, trials: &[&Measured], unit: &str) -> Chart {
    let found = |measured: &&Measured| {
        let is_it = |compared: &&Compared| compared.unit == unit && measured.vm_name(compared) == vm;
        measured.values.iter().find(is_it).map(|compared| (measured.name.clone(), compared.clone()))
    };
    let groups: Vec<(String, Compared)> = trials.iter().filter_map(found).collect();
    let mut lines = vec![Line::bars("simulated", &heights(&groups, |compared| compared.simulated))];
    for column in columns(groups.iter().map(|(_, compared)| compared)) {
        let of = |compared: &Compared| compared.real.iter().find(|real| real.column == column).map(|real| real.value);
        lines.push(Line::bars(column.name, &heights(&groups, of)));
    }
    if groups.iter().any(|(_, compared)| compared.paper.is_some()) {
        lines.insert(0, Line::bars("paper", &heights(&groups, |compared| compared.paper)));
    }
    let names: Vec<&str> = groups.iter().map(|(name, _)| name.as_str()).collect();
    let what = match unit {
        "ms" => "mean latency",
        "s" => "response time",
        "x last VM" => "throughput in multiples of the last VM's",
        _ => "throughput",
    };
    Chart::bars(&format!("{vm}: {what}"), unit, &names, lines)
}

/// A bar for each group, of no height where there is no value.
fn heights(groups: &[(String, Compared)], of: impl Fn(&Compared) -> Option<f64>) -> Vec<f64> {
    groups.iter().map(|(_, compared)| of(compared).unwrap_or(0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::results::{Column, Real};
    use super::*;

    #[test]
    fn a_rate_of_almost_nothing_was_the_largest_difference_of_a_figure_in_which_all_are_near() {
        let compared = |simulated: f64, value: f64, is_near| Compared {
            seconds: (0, 1),
            vm: None,
            unit: "Mb/s",
            paper: None,
            simulated: Some(simulated),
            real: vec![Real {
                column: Column { name: "tap", title: "TAP" },
                value,
                is_near: Some(is_near),
                paused_percent: 0.0,
            }],
        };
        let trial = Measured {
            name: String::new(),
            scheduler: "wrr",
            vms: Vec::new(),
            tolerance: 0.03,
            facts: serde_json::Map::new(),
            values: vec![compared(100.0, 102.0, true), compared(0.05, 0.15, true), compared(100.0, 95.0, false)],
            drawn: Drawn::Bars,
            rate_unit: "Mb/s",
            series: Vec::new(),
            windows: 1,
            left_out: 0,
            repeats: 0,
        };
        let rounded: Vec<f64> = differences_percent(&trial).map(f64::round).collect();
        assert_eq!(rounded, [2.0, -5.0]);
    }
}
