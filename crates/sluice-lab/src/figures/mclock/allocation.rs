//! Fig. 3: division of a throughput T among three VMs with reservations, a limit and shares.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sim::engine::Simulation;

use crate::band::BandPoint;
use crate::device::constant;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Quantity, Trial, TrialVm};
use crate::setup::{Host, closed, mean_rate, policy, random_reads, refused, run, slashed};

/// Shares, reservations and limits of the three: RD, OLTP and DM.
const VMS: [(&str, u64, u64, u32); 3] = [("RD", 250, 0, 100), ("OLTP", 250, 0, 200), ("DM", 0, 1000, 300)];
/// Capacities of the figure at which equation (1) gives the division, and the division.
const DIVISION: [(f64, [f64; 3]); 11] = [
    (400.0, [200.0, 200.0, 0.0]),
    (500.0, [250.0, 250.0, 0.0]),
    (600.0, [250.0, 250.0, 100.0]),
    (875.0, [250.0, 250.0, 375.0]),
    (1000.0, [250.0, 300.0, 450.0]),
    (1200.0, [250.0, 380.0, 570.0]),
    (1500.0, [250.0, 500.0, 750.0]),
    (1800.0, [300.0, 600.0, 900.0]),
    (2000.0, [333.3, 666.7, 1000.0]),
    (2500.0, [500.0, 1000.0, 1000.0]),
    (3000.0, [666.7, 1333.3, 1000.0]),
];
/// Start and end of the measurement in seconds.
const SECONDS: (usize, usize) = (10, 70);

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-allocation",
    paper: Paper::Mclock,
    label: "Fig. 3",
    title: "Allocation among VMs with different shares, reservations and limits",
    setup: "A device of T requests per second, one at a time, T from 400 to 3000; three VMs with shares 100:200:300, reservations \
            250/250/0 IOPS and a limit of 1000 IOPS for the third; each keeps 32 random reads of 8 KiB outstanding. Below \
            T = 500 the reservations are more than the device gives: admission = \"off\". The expected division is equation \
            (1) of the paper, which keeps nothing for a VM without a reservation: weight_floor = \"0%\". SFQ(D) beside it knows \
            shares alone.",
    device: "",
    rows: &[
        RowSpec {
            id: "M1a",
            class: Class::Conformance,
            must: "at each of 11 values of T every VM within 2 % of T of equation (1), mode \"product\"",
            paper: "T=1200: 250/380/570; RD 250 from 1500 on down, OLTP from 875 on; DM 1000 from 2000 on; below 500 equal",
            note: "",
        },
        RowSpec {
            id: "M1b",
            class: Class::Conformance,
            must: "the same in mode \"paper\" at every T from 500 on",
            paper: "as M1a",
            note: "",
        },
    ],
    run: measure,
};

/// IOPS of each VM that the text prints for a capacity; the others follow from equation (1).
fn printed(capacity: f64) -> [Option<f64>; 3] {
    let rd = (500.0..=1500.0).contains(&capacity).then_some(250.0);
    let oltp = (500.0..=875.0).contains(&capacity).then_some(250.0);
    let dm = if capacity < 500.0 { Some(0.0) } else { (capacity >= 2000.0).then_some(1000.0) };
    if capacity == 1200.0 { [rd, Some(380.0), Some(570.0)] } else { [rd, oltp, dm] }
}

fn divide(host: &Host, capacity: f64, point: &BandPoint) -> Result<[f64; 3], LabError> {
    let mut simulation = Simulation::new(host.gate()?, constant(capacity), Duration::ZERO, Duration::from_secs(1));
    for (vm, (name, reservation, limit, weight)) in VMS.into_iter().enumerate() {
        let workload = closed(32, random_reads(8192, 1 << 30), point, name);
        simulation.add_vm(policy(reservation, limit, weight), (vm as u64) << 30, workload).map_err(refused)?;
    }
    run(&mut simulation, SECONDS.1 as u64, &format!("{} at T = {capacity}", host.scheduler))?;
    Ok(std::array::from_fn(|vm| mean_rate(&simulation, vm, SECONDS.0, SECONDS.1)))
}

/// Largest deviation from the expected rates, as a part of T.
fn off(got: &[f64; 3], due: &[f64; 3], capacity: f64) -> f64 {
    got.iter().zip(due).map(|(got, due)| (got - due).abs() / capacity).fold(0.0, f64::max)
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let hosts = [
        ("product", Host::new("mclock", 1).text("weight_floor", "0%")),
        ("paper", Host::new("mclock-paper", 1)),
        ("SFQ(D)", Host::new("sfqd", 1)),
    ];
    let mut finding = Finding::default();
    let columns = ["T [IOPS]", "equation (1)", "product", "paper", "SFQ(D), shares alone"];
    let mut table = Table::new("RD/OLTP/DM [IOPS]", &columns);
    let mut worst = [(0.0f64, 0.0f64); 3];
    let mut lines: Vec<Line> = VMS.iter().map(|(name, ..)| Line::new(*name, Vec::new())).collect();
    for (capacity, due) in DIVISION {
        let mut cells = vec![format!("{capacity:.0}"), slashed(&due)];
        for (index, (_, host)) in hosts.iter().enumerate() {
            let got = divide(host, capacity, point)?;
            let distance = off(&got, &due, capacity);
            // The published formulas guarantee nothing if reservations cannot be met.
            if (index == 0 || capacity >= 500.0) && distance > worst[index].0 {
                worst[index] = (distance, capacity);
            }
            if index == 0 {
                for (line, (got, printed)) in lines.iter_mut().zip(got.into_iter().zip(printed(capacity))) {
                    line.points.push((capacity, got));
                    line.published.extend(printed.map(|printed| (capacity, printed)));
                }
            }
            cells.push(format!("{} ({:.1} % of T off)", slashed(&got), 100.0 * distance));
        }
        table.row(cells);
    }
    for (id, (distance, capacity)) in ["M1a", "M1b"].into_iter().zip(worst) {
        let measured = format!("furthest from what is due: {:.2} % of T, at T = {capacity:.0}", 100.0 * distance);
        finding.judge(id, distance <= 0.02, measured);
    }
    finding.tables.push(table);
    let chart = Chart::lines("Allocation, mode \"product\"", "throughput T [IOPS]", "IOPS", lines);
    finding.charts.push(chart.level("reservation of RD and OLTP", 250.0).level("limit of DM", 1000.0));
    Ok(finding)
}

/// The same on real I/O. Sixteen requests are at the device, so that a client or the daemon that the machine delays costs no capacity; the
/// division does not depend on it.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |(capacity, _): (f64, [f64; 3])| {
        let vm =
            |(name, reservation, limit, weight)| TrialVm { reservation, limit, ..TrialVm::new(name, weight, 8192) };
        let mut trial = Trial::constant(format!("T = {capacity:.0}"), capacity, VMS.map(vm).into(), &[SECONDS]);
        real::print(&mut trial.values, 0, Quantity::Iops, &printed(capacity));
        Trial { depth: 16, parameters: &[("weight_floor", "0%")], ..trial }
    };
    DIVISION.into_iter().map(trial).collect()
}
