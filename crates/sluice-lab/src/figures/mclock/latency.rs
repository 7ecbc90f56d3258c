//! Table 4: a reservation chosen by Little's law gives a latency.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::Simulation;

use crate::band::BandPoint;
use crate::experiment::{Experiment, ExperimentVm};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Device, Quantity, Trial, TrialVm};
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, policy, random_reads, slashed, within};

/// Weights of the four VMs.
const WEIGHTS: [(&str, u32); 4] = [("VM1", 1), ("VM2", 1), ("VM3", 2), ("VM4", 2)];
/// Requests per second: "slightly smaller than the sum of reservations", which is 2048.
const CAPACITY: f64 = 2040.0;

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-latency",
    paper: Paper::Mclock,
    label: "Table 4",
    title: "Reservations of 1 and of 512 IOPS: throughput and latency",
    setup: "A device of 2040 requests per second with exponential service times, one at a time: all that the paper says of it is that it \
            gave slightly less than 4 x 512. How much less, and how many requests it served at once, are axes. Four VMs with weights 1:1:2:2 and 32 requests \
            outstanding each; reservations of 1 IOPS, then of 512, which is more than the device gives: admission = \"off\". SFQ(D) \
            beside it knows weights alone.",
    device: "",
    rows: &[RowSpec {
        id: "M6",
        class: Class::Shape,
        must: "with 512: VM1 and VM2 within 10 % of 500 IOPS and of 65 ms, more than with 1; VM3 and VM4 less than with 1",
        paper: "330 and 390 to about 500 IOPS, near 65 ms; the others fall",
        note: "",
    }],
    run: measure,
};

fn run_simulation(host: &Host, reservation: u64, point: &BandPoint) -> Result<Simulation, LabError> {
    let servers = point.setting("at-once") as u32;
    let time = ServiceTime::Exponential(Duration::from_secs_f64(f64::from(servers) / point.setting("capacity")));
    let makes = WEIGHTS.map(|(name, _)| move |span| closed(32, random_reads(8192, span), point, name));
    let vms = WEIGHTS.iter().zip(&makes);
    let vms = vms.map(|((_, weight), make)| ExperimentVm { policy: policy(reservation, 0, *weight), start: 0, make });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span: 1 << 30, seconds: 70 };
    experiment.run_simulation(
        host.gate()?,
        Box::new(Servers::new(servers, time, point.stream("service"))),
        host.scheduler,
    )
}

/// Throughput and latency of the four VMs after the start.
fn got(run: &Simulation) -> ([f64; 4], [f64; 4]) {
    let vms = [0, 1, 2, 3];
    (vms.map(|vm| mean_rate(run, vm, 10, 70)), vms.map(|vm| mean_latency_ms(run, vm, 10, 70)))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let modes = [("product", Host::new("mclock", 32)), ("paper", Host::new("mclock-paper", 32))];
    let columns = ["scheduler", "reservation [IOPS]", "throughput [IOPS]", "latency [ms]"];
    let mut table = Table::new("VM1/VM2/VM3/VM4", &columns);
    let (mut all, mut columns) = (Vec::new(), Vec::new());
    for (name, host) in &modes {
        for reservation in [1, 512] {
            let (rate, latency) = got(&run_simulation(host, reservation, point)?);
            table.row([format!("mClock, {name}"), reservation.to_string(), slashed(&rate), slashed(&latency)]);
            columns.push(Line::bars(format!("{name}, r = {reservation}"), &rate));
            all.push((rate, latency));
        }
    }
    let (rate, latency) = got(&run_simulation(&Host::new("sfqd", 32), 0, point)?);
    table.row(["SFQ(D)".to_owned(), "none".to_owned(), slashed(&rate), slashed(&latency)]);
    let holds = all.chunks(2).all(|pair| {
        let ((before, _), (after, latency)) = (pair[0], pair[1]);
        let near =
            (0..2).all(|vm| within(after[vm], 500.0, 0.1) && within(latency[vm], 65.0, 0.1) && after[vm] > before[vm]);
        near && (2..4).all(|vm| after[vm] < before[vm])
    });
    let mut finding = Finding::default();
    let ((before, _), (after, latency)) = (all[0], all[1]);
    let measured =
        format!("{} to {} IOPS, {:.0} and {:.0} ms", slashed(&before), slashed(&after), latency[0], latency[1]);
    finding.judge("M6", holds, measured);
    finding.tables.push(table);
    finding.charts.push(Chart::bars("Throughput", "IOPS", &WEIGHTS.map(|(name, _)| name), columns));
    Ok(finding)
}

/// The same on real I/O.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |reservation: u64, printed: [Option<f64>; 2], milliseconds: [Option<f64>; 2]| {
        let vm = |(name, weight)| TrialVm { reservation, ..TrialVm::new(name, weight, 8192) };
        let (vms, parts): (Vec<TrialVm>, _) = (WEIGHTS.map(vm).into(), [(10, 70)]);
        let mut values = Trial::all_values(&parts, &vms, &[Quantity::Iops, Quantity::Latency]);
        real::print(&mut values, 0, Quantity::Iops, &printed);
        real::print(&mut values, 0, Quantity::Latency, &milliseconds);
        let device = Device::Exponential(CAPACITY);
        Trial { device, values, ..Trial::constant(format!("r = {reservation}"), CAPACITY, vms, &parts) }
    };
    vec![trial(1, [Some(330.0), Some(390.0)], [None; 2]), trial(512, [Some(500.0); 2], [Some(65.0); 2])]
}
