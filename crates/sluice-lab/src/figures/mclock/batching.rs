//! Section 3.1, "Request location": batches gain throughput on disks and delay reservations by a bounded time.

use std::time::Duration;

use sluice_report::Table;
use sluice_sched::Instant;
use sluice_sim::devices::Model;
use sluice_sim::devices::pauses::Pauses;
use sluice_sim::workloads::{Address, Mix};

use crate::band::BandPoint;
use crate::device::{DeviceFile, constant};
use crate::experiment::{Experiment, ExperimentVm};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{Device, Form, Load, Quantity, Trial, TrialVm, Value};
use crate::setup::{Host, closed, mean_rate, policy, run, slashed};

/// Reservation and weight of each VM: the first two are served by their reservations.
const VMS: [(u64, u32); 4] = [(60, 1), (60, 1), (0, 100), (0, 100)];
const VM_NAMES: [&str; 4] = ["VM1", "VM2", "VM3", "VM4"];
/// Maximum number of requests in a batch.
const BATCH: i64 = 8;
/// Minimum gain of batches. The paper prints none; less than this would not be worth a parameter.
const GAIN: f64 = 1.05;
/// Requests per second of the device without seeks.
const FLAT: f64 = 1600.0;
const SECONDS: u64 = 60;
/// Time from one pause of the host to the next.
const PAUSE_PERIOD: Duration = Duration::from_secs(5);
/// Samples per second: few requests lie between two of them.
const STEPS: u64 = 1000;

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-batching",
    paper: Paper::Mclock,
    label: "Section 3.1",
    title: "Batches of up to 8 requests that lie within 4 MB",
    setup: "Four VMs keep 16 sequential reads of 8 KiB outstanding, two with a reservation of 60 IOPS and weight 1, two with weight 100, on one \
            disk of the array with 4 requests at it, and on a device of 1600 requests per second to which all places are alike. Batches of 1 and of 8.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M12a",
            class: Class::Conformance,
            must: "a VM that is behind its reservation waits for at most 8 N requests of others, N being the number of VMs",
            paper: "a delay of at most 8 N I/Os",
            note: "",
        },
        RowSpec {
            id: "M12b",
            class: Class::Shape,
            must: "batches of 8 give at least 5 % more throughput on a disk, and within 1 % the same where places are alike",
            paper: "batching improves throughput by locality",
            note: "",
        },
    ],
    run: measure,
};

/// Requests per second of all VMs, and the maximum number of requests of others that a VM behind its reservation waited
/// for.
fn run_simulation(batch: i64, model: Box<dyn Model>, span: u64, point: &BandPoint) -> Result<(f64, u64), LabError> {
    let makes = VM_NAMES.map(|name| {
        move |span| closed(16, Mix { reads: 1.0, length: 8192, address: Address::sequential(0, span) }, point, name)
    });
    let vms = makes.iter().zip(VMS);
    let vms = vms.map(|(make, (reservation, weight))| ExperimentVm {
        policy: policy(reservation, 0, weight),
        start: 0,
        make,
    });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span, seconds: SECONDS };
    let host = Host::new("mclock", 4).number("batch", batch).rotational();
    let mut simulation = experiment.build(host.gate()?, model)?;
    let mut delays = [Delay::default(); VMS.len()];
    for step in 1..=SECONDS * STEPS {
        simulation.run_until(Instant::from_millis(step * 1000 / STEPS));
        let dispatched: Vec<u64> = (0..VMS.len()).map(|vm| simulation.stats(vm).dispatched.iter().sum()).collect();
        for (vm, delay) in delays.iter_mut().enumerate() {
            let due = VMS[vm].0 * step / STEPS;
            delay.look(dispatched[vm], dispatched.iter().sum(), due);
        }
    }
    run(&mut simulation, SECONDS, "batches")?;
    let rate = (0..VMS.len()).map(|vm| mean_rate(&simulation, vm, 10, SECONDS as usize)).sum();
    Ok((rate, delays.iter().map(|delay| delay.longest).max().unwrap_or(0)))
}

/// Waiting time of a VM that is behind its reservation, in requests of others.
#[derive(Clone, Copy, Default)]
struct Delay {
    /// Requests of the VM at the last sample, and of all VMs when it was last served or not behind.
    mine: u64,
    since: u64,
    longest: u64,
}

impl Delay {
    /// Takes the dispatches of the VM and of all VMs so far, and the expected number of the VM.
    fn look(&mut self, mine: u64, all: u64, due: u64) {
        if mine > self.mine || mine >= due {
            (self.mine, self.since) = (mine, all);
        }
        self.longest = self.longest.max(all - self.since);
    }
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let span = device.place(0).1;
    let pause = Duration::from_millis(point.setting("host-pause") as u64);
    let mut table =
        Table::new("Throughput of all", &["device", "batch", "[IOPS]", "longest wait [requests of others]"]);
    let mut results = Vec::new();
    for (name, disk) in [("one disk", true), ("all places alike", false)] {
        for batch in [1, BATCH] {
            let model = if disk { device.drive(point)? } else { constant(FLAT) };
            let model = Box::new(Pauses::new(model, pause, PAUSE_PERIOD));
            let (rate, wait) = run_simulation(batch, model, span, point)?;
            table.row([name.to_owned(), batch.to_string(), slashed(&[rate]), wait.to_string()]);
            results.push((rate, wait));
        }
    }
    let mut finding = Finding::default();
    let wait = results.iter().map(|(_, wait)| *wait).max().unwrap_or(0);
    finding.judge("M12a", wait <= BATCH as u64 * VMS.len() as u64, format!("at most {wait} requests"));
    let (gain, flat) = (results[1].0 / results[0].0, results[3].0 / results[2].0);
    finding.judge("M12b", gain >= GAIN && (flat - 1.0).abs() <= 0.01, format!("disk x {gain:.3}, alike x {flat:.3}"));
    finding.tables.push(table);
    Ok(finding)
}

/// The same on real I/O: the throughput of one disk of the array with batches of 1 and of 8.
pub(crate) fn trials() -> Vec<Trial> {
    let disk_len = DeviceFile::load(FIGURE.device).map_or(0, |file| file.place(0).1);
    let trial = |name: &str, parameters| {
        let vm = |(name, (reservation, weight)): (&'static str, (u64, u32))| {
            let vm = TrialVm { reservation, ..TrialVm::new(name, weight, 8192) };
            TrialVm { load: Load { outstanding: 16, random_percent: 0, ..vm.load }, ..vm }
        };
        Trial {
            device: Device::Drive { file: FIGURE.device, form: Form::Single },
            disk_len,
            range: disk_len,
            rotational: true,
            depth: 4,
            parameters,
            values: vec![Value { part: 0, vm: None, quantity: Quantity::Iops, paper: None }],
            ..Trial::constant(name, 0.0, VM_NAMES.into_iter().zip(VMS).map(vm).collect(), &[(10, 40)])
        }
    };
    vec![trial("batches of 1", &[("batch", "1")]), trial("batches of 8", &[("batch", "8")])]
}
