//! Table 3 and the results: five workloads.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Instant;
use sluice_sched::params::ParamTable;
use sluice_sim::workloads::profiles;

use crate::band::BandPoint;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{Host, refused};

use super::sharing::{self, DEVICE, Drives, Shares, VMS, long, share};

/// Workloads, the profile of each, and its rows in modes paper and window.
const WORKLOADS: [(&str, &str, [&str; 2]); 5] = [
    ("Fileserver", "filebench-fileserver", ["C3a", "C3f"]),
    ("Varmail", "filebench-varmail", ["C3b", "C3g"]),
    ("MSN", "lookalike-msn", ["C3c", "C3h"]),
    ("Exchange", "lookalike-exchange", ["C3d", "C3i"]),
    ("Financial", "lookalike-financial", ["C3e", "C3j"]),
];
const MODES: [&str; 2] = ["paper", "window"];

const PAPER: &str = "With the whole correction each second the manager swings (C2a); with a part of it some loads come nearer than under CFQ at \
                     the nominal drive (sweep of mots-gain), and not over the range. How much the paper's applied is not readable.";
const MSN: &str = "CFQ is near already, within 0.62 everywhere. There is nothing to correct but the noise of a window, and a correction by noise is an \
                   error: where the row fails CFQ is within 0.50.";
const EXCHANGE: &str = "Where it fails CFQ is within 0.50, and what the correction by a noisy window leaves is more; where CFQ is further off it comes \
                        nearer.";

const fn row(id: &'static str, must: &'static str, note: &'static str) -> RowSpec {
    let paper = "no sentence of a single workload; the curves cannot be read";
    RowSpec { id, class: Class::Shape, must, paper, note }
}

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mcfq-workloads",
    paper: Paper::Mcfq,
    label: "Table 3",
    title: "Five workloads under CFQ and MCFQ",
    setup: "The four VMs and the aged drive of Fig. 2, each VM with the same workload: Filebench's fileserver and varmail, and synthetic workloads like \
            the MSN, Exchange and Financial traces by their ratio of writes to reads and mean size (Table 3; the traces are \
            not free). Assumed: 16 requests outstanding in a synthetic workload, anywhere in the volume. A window of 10 s, measured \
            for ten minutes from 40 s on at the nominal point, elsewhere for 200 s.",
    device: DEVICE,
    rows: &[
        row("C3a", "Fileserver: the error of the ratio is no larger under MoTS than under CFQ, mode \"paper\"", PAPER),
        row("C3b", "Varmail: as C3a", PAPER),
        row("C3c", "MSN: as C3a", PAPER),
        row("C3d", "Exchange: as C3a", PAPER),
        row("C3e", "Financial: as C3a", PAPER),
        row("C3f", "Fileserver: the same in mode \"window\"", ""),
        row("C3g", "Varmail: as C3f", ""),
        row("C3h", "MSN: as C3f", MSN),
        row("C3i", "Exchange: as C3f", EXCHANGE),
        row("C3j", "Financial: as C3f", ""),
    ],
    run: measure,
};

fn test(host: &Host, profile: &str, drives: &Drives, point: &BandPoint) -> Result<Shares, LabError> {
    let volume = drives.volume();
    share(host, &drives.aged, volume, long(point), |vm| {
        let context = profiles::BuildContext { volume, start: Instant::ZERO, random: point.stream(VMS[vm]) };
        profiles::build(profile, context, &ParamTable::new()).map_err(refused)
    })
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let drives = Drives::new(point)?;
    let columns = ["workload", "CFQ", "error", "MB/s", "MCFQ, paper", "error", "MB/s", "MCFQ, window", "error", "MB/s"];
    let mut table =
        Table::new("Bandwidth in multiples of VM4's (10:7:4:1 is due), and the error of the ratio", &columns);
    let mut finding = Finding::default();
    let mut errors = [const { Vec::new() }; 3];
    for (name, profile, rows) in WORKLOADS {
        let mcfq = |mode| sharing::mcfq(mode, 10).number("gain", sharing::gain(point));
        let hosts = [sharing::cfq(), mcfq(MODES[0]), mcfq(MODES[1])];
        let mut cells = vec![name.to_owned()];
        for (host, errors) in hosts.iter().zip(&mut errors) {
            let shares = test(host, profile, &drives, point)?;
            cells.extend([shares.text(), format!("{:.2}", shares.error()), format!("{:.1}", shares.rate())]);
            errors.push(shares.error());
        }
        table.row(cells);
        let last = errors.each_ref().map(|errors| *errors.last().expect("just measured"));
        for (row, error) in rows.into_iter().zip(&last[1..]) {
            finding.judge(row, *error <= last[0], format!("{error:.2}, under CFQ {:.2}", last[0]));
        }
    }
    finding.tables.push(table);
    let names = WORKLOADS.map(|(name, ..)| name);
    let bars = ["CFQ", "MCFQ, paper", "MCFQ, window"].into_iter().zip(&errors);
    let bars = bars.map(|(name, errors)| Line::bars(name, errors)).collect();
    finding.charts.push(Chart::bars("Error of the ratio by workload", "sum of relative errors", &names, bars));
    Ok(finding)
}
