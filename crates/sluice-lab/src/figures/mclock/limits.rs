//! Fig. 5: limits hold as VMs start.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sim::engine::{Change, Simulation};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Quantity, Trial, TrialVm};
use crate::setup::{Host, at, closed, mean_rate, policy, random_reads, rates, refused, run, slashed};

/// Limits and weights; one more VM each minute.
const VMS: [(&str, u64, u32); 3] = [("VM1", 0, 1), ("VM2", 400, 1), ("VM3", 500, 2)];
/// Throughput of each VM that the text prints while one, two and three VMs run, in IOPS.
const PRINTED: [[Option<f64>; 3]; 3] =
    [[Some(1600.0), None, None], [None, Some(400.0), None], [None, Some(400.0), Some(500.0)]];
/// Measured seconds for each number of VMs: from ten seconds after the last start.
const PARTS: [(usize, usize); 3] = [(10, 60), (70, 120), (130, 180)];

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-limits",
    paper: Paper::Mclock,
    label: "Fig. 5",
    title: "mClock limits the throughput of VM2 and VM3 to 400 and 500 IOPS",
    setup: "Ten disks as RAID-0 of about 1600 random reads per second, 32 requests at the array. Weights 1:1:2, limits \
            none/400/500 IOPS; each VM keeps 32 random reads of 16 KiB outstanding; VM2 starts after 60 s, VM3 after 120 s. \
            SFQ(D) beside it has no limits.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M3a",
            class: Class::Conformance,
            must: "VM2 within 1 % of 400 IOPS and VM3 within 1 % of 500, in both modes; where their share by weight \
                   (SFQ(D) beside it) is less than that, no more than 1 % below the share",
            paper: "400 and 500 IOPS",
            note: "",
        },
        RowSpec {
            id: "M3b",
            class: Class::Shape,
            must: "what the limits leave is used: with one, two and three VMs all of them together get at least 98 % of what SFQ(D) gets \
                   of the same array without limits, in both modes",
            paper: "not stated: the text has what the limited VMs get, not what VM1 does",
            note: "The array's throughput falls as VMs come, since their disks lie apart (as in Fig. 6).",
        },
        RowSpec {
            id: "M3c",
            class: Class::Hardware,
            must: "capacity with one VM",
            paper: "about 1600 IOPS",
            note: "The device is fitted to this number.",
        },
    ],
    run: measure,
};

/// Results of one run: each VM's mean rate in each part, and its series.
struct Run {
    parts: [[f64; 3]; 3],
    series: Vec<Line>,
}

fn simulate(host: &Host, limits: bool, point: &BandPoint) -> Result<Run, LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let mut simulation = Simulation::new(host.gate()?, device.model(point), Duration::ZERO, Duration::from_secs(1));
    for (number, (name, limit, weight)) in VMS.into_iter().enumerate() {
        let (base, span) = device.place(number as u64);
        let workload = closed(32, random_reads(16 << 10, span), point, name);
        let policy = policy(0, if limits { limit } else { 0 }, weight);
        let vm = simulation.add_vm(policy, base, workload).map_err(refused)?;
        if vm > 0 {
            simulation.start_paused(vm);
            simulation.plan_change(at(60 * vm as u64), Change::Start(vm));
        }
    }
    run(&mut simulation, 180, host.scheduler)?;
    let parts = PARTS.map(|(from, to)| std::array::from_fn(|vm| mean_rate(&simulation, vm, from, to)));
    let series = VMS.iter().enumerate().map(|(vm, (name, ..))| Line::new(*name, rates(&simulation, vm))).collect();
    Ok(Run { parts, series })
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let hosts = [
        ("mClock, product", Host::new("mclock", 32), true),
        ("mClock, paper", Host::new("mclock-paper", 32), true),
        ("SFQ(D)", Host::new("sfqd", 32), false),
    ];
    let mut table = Table::new("VM1/VM2/VM3 [IOPS]", &["scheduler", "0 to 60 s", "60 to 120 s", "120 to 180 s"]);
    let mut runs = Vec::new();
    for (name, host, limits) in &hosts {
        let run = simulate(host, *limits, point)?;
        table.row(std::iter::once((*name).to_owned()).chain(run.parts.iter().map(|part| slashed(part))));
        runs.push(run);
    }
    let mut finding = Finding::default();
    // Which VM has which limit in which part.
    let held = [(1, 1, 400.0), (2, 1, 400.0), (2, 2, 500.0)];
    let (mut most, mut least, mut short) = (0.0f64, f64::MAX, false);
    for (run, (part, vm, limit)) in runs[..2].iter().flat_map(|run| held.map(|held| (run, held))) {
        let (got, share) = (run.parts[part][vm], runs[2].parts[part][vm]);
        (most, least) = (most.max(got / limit), least.min(got / limit));
        // On a slow device of the range its share is below its limit.
        short |= got < 0.99 * limit.min(share);
    }
    finding.judge("M3a", most <= 1.01 && !short, format!("{least:.3} to {most:.3} of the limits"));
    let capacity = runs[0].parts[0][0];
    let all = |run: &Run, part: usize| run.parts[part].iter().sum::<f64>();
    let used = |run: &Run| (0..PARTS.len()).map(|part| all(run, part) / all(&runs[2], part)).fold(f64::MAX, f64::min);
    let used = [used(&runs[0]), used(&runs[1])];
    let parts: Vec<String> = runs[0].parts.iter().enumerate().map(|(vms, part)| slashed(&part[..=vms])).collect();
    let measured = format!(
        "{:.1} and {:.1} % of SFQ(D)'s or more (product; paper): {} IOPS",
        100.0 * used[0],
        100.0 * used[1],
        parts.join("; ")
    );
    finding.judge("M3b", used.iter().all(|part| *part >= 0.98), measured);
    finding.show("M3c", format!("{capacity:.0} IOPS")).means([(1600.0, capacity)]);
    finding.tables.push(table);
    let series = runs.swap_remove(0).series.into_iter().enumerate().map(|(vm, line)| {
        let middle = |part: usize| (PARTS[part].0 + PARTS[part].1) as f64 / 2.0;
        let printed = PRINTED.iter().enumerate().filter_map(|(part, printed)| Some((middle(part), printed[vm]?)));
        line.published(printed.collect())
    });
    let chart = Chart::lines("Throughput, mClock", "time [s]", "IOPS", series.collect());
    finding.charts.push(chart.level("limit of VM2", 400.0).level("limit of VM3", 500.0));
    Ok(finding)
}

/// The same on real I/O, on a device of 1600 requests per second, which the paper's array had to the end of this figure.
pub(crate) fn trials() -> Vec<Trial> {
    let vm = |(number, (name, limit, weight)): (usize, (&'static str, u64, u32))| TrialVm {
        limit,
        start: 60 * number as u64,
        ..TrialVm::new(name, weight, 16 << 10)
    };
    let mut trial = Trial::constant("mClock", 1600.0, VMS.into_iter().enumerate().map(vm).collect(), &PARTS);
    for (part, printed) in PRINTED.iter().enumerate() {
        real::print(&mut trial.values, part, Quantity::Iops, printed);
    }
    vec![trial]
}
