//! Table 3 and the results: five workloads.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Instant;
use sluice_sched::params::ParamTable;
use sluice_sim::workloads::recipes;

use crate::band::Setting;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{Host, refused};

use super::sharing::{self, DEVICE, Drives, Shares, VMS, share};

/// Workloads, the recipe of each, and its rows in modes paper and window.
const WORKLOADS: [(&str, &str, [&str; 2]); 5] = [
    ("Fileserver", "filebench-fileserver", ["C3a", "C3f"]),
    ("Varmail", "filebench-varmail", ["C3b", "C3g"]),
    ("MSN", "lookalike-msn", ["C3c", "C3h"]),
    ("Exchange", "lookalike-exchange", ["C3d", "C3i"]),
    ("Financial", "lookalike-financial", ["C3e", "C3j"]),
];
/// Two results are equal when they differ by no more.
const EQUAL: f64 = 0.01;
/// Seconds that are measured: after two windows.
const SECONDS: (usize, usize) = (20, 60);
const MODES: [&str; 2] = ["paper", "window"];

const PAPER: &str = "As published the manager swings (C2a): see the column of the mode.";
const WINDOW: &str = "At the nominal point, where CFQ is far off (Fileserver, Varmail), it comes nearer. Where CFQ is near already, as with the \
                      look-alikes (errors of 0.1 to 0.3), there is nothing to correct but the noise of a window, and a \
                      correction by noise is an error.";

const fn row(id: &'static str, must: &'static str, note: &'static str) -> RowSpec {
    let paper = "better than CFQ (the curves cannot be read)";
    RowSpec { id, class: Class::Shape, must, paper, note }
}

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mcfq-workloads",
    paper: Paper::Mcfq,
    label: "Table 3",
    title: "Five workloads under CFQ and MCFQ",
    setup: "The four VMs and the aged drive of Fig. 2, each VM with the same workload: Filebench's fileserver and varmail, and look-alikes of \
            the MSN, Exchange and Financial traces by their ratio of writes to reads and mean size (Table 3; the traces are \
            not free). Assumed: 16 requests outstanding in a look-alike, anywhere in the volume. A window of 10 s, measured \
            from 20 to 60 s.",
    device: DEVICE,
    rows: &[
        row("C3a", "Fileserver: the error of the ratio is no larger under MoTS than under CFQ, mode \"paper\"", PAPER),
        row("C3b", "Varmail: as C3a", PAPER),
        row("C3c", "MSN: as C3a", PAPER),
        row("C3d", "Exchange: as C3a", PAPER),
        row("C3e", "Financial: as C3a", PAPER),
        row("C3f", "Fileserver: the same in mode \"window\"", WINDOW),
        row("C3g", "Varmail: as C3f", WINDOW),
        row("C3h", "MSN: as C3f", WINDOW),
        row("C3i", "Exchange: as C3f", WINDOW),
        row("C3j", "Financial: as C3f", WINDOW),
    ],
    run: measure,
};

fn test(host: &Host, recipe: &str, drives: &Drives, setting: &Setting) -> Result<Shares, LabError> {
    let volume = drives.volume();
    share(host, &drives.aged, volume, SECONDS, |vm| {
        let setting = recipes::Setting { volume, start: Instant::ZERO, random: setting.stream(VMS[vm]) };
        recipes::build(recipe, setting, &ParamTable::new()).map_err(refused)
    })
}

fn measure(setting: &Setting) -> Result<Finding, LabError> {
    let drives = Drives::new(setting)?;
    let columns = ["workload", "CFQ", "error", "MB/s", "MCFQ, paper", "error", "MB/s", "MCFQ, window", "error", "MB/s"];
    let mut table =
        Table::new("Bandwidth in multiples of VM4's (10:7:4:1 is due), and the error of the ratio", &columns);
    let mut finding = Finding::default();
    let mut errors = [const { Vec::new() }; 3];
    for (name, recipe, rows) in WORKLOADS {
        let hosts = [sharing::cfq(), sharing::mcfq(MODES[0], 10), sharing::mcfq(MODES[1], 10)];
        let mut cells = vec![name.to_owned()];
        for (host, errors) in hosts.iter().zip(&mut errors) {
            let shares = test(host, recipe, &drives, setting)?;
            cells.extend([shares.text(), format!("{:.2}", shares.error()), format!("{:.1}", shares.rate())]);
            errors.push(shares.error());
        }
        table.row(cells);
        let last = errors.each_ref().map(|errors| *errors.last().expect("just measured"));
        for (row, error) in rows.into_iter().zip(&last[1..]) {
            finding.judge(row, *error <= last[0] + EQUAL, format!("{error:.2}, under CFQ {:.2}", last[0]));
        }
    }
    finding.tables.push(table);
    let names = WORKLOADS.map(|(name, ..)| name);
    let bars = ["CFQ", "MCFQ, paper", "MCFQ, window"].into_iter().zip(&errors);
    let bars = bars.map(|(name, errors)| Line::bars(name, errors)).collect();
    finding.charts.push(Chart::bars("Error of the ratio by workload", "sum of relative errors", &names, bars));
    Ok(finding)
}
