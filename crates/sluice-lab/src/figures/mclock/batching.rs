//! Section 3.1, "Request location": batches gain throughput on disks and delay reservations by a bounded time.

use sluice_report::Table;
use sluice_sim::devices::Model;
use sluice_sim::workloads::{Address, Mix};

use crate::band::Setting;
use crate::device::{DeviceFile, constant};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::scene::{Actor, Scene};
use crate::setup::{Host, closed, mean_rate, policy, run, slashed};

/// VMs, and the reservation of each.
const VMS: usize = 4;
const RESERVATION: u64 = 20;
/// Requests of a batch at most.
const BATCH: i64 = 8;
/// Requests per second of the device without places.
const FLAT: f64 = 1600.0;

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mclock-batching",
    paper: Paper::Mclock,
    label: "Section 3.1",
    title: "Batches of up to 8 requests that lie within 4 MB",
    setup: "Four VMs of equal weight with a reservation of 20 IOPS each keep 16 sequential reads of 8 KiB outstanding, on one disk of the array \
            with 4 requests at it, and on a device of 1600 requests per second to which all places are alike. Batches of 1 and of 8.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M12a",
            class: Class::Exact,
            must: "no VM falls behind its reservation by more than 8 N requests: what it was dispatched by any time t is at least r t - 8 N",
            paper: "a delay of at most 8 N I/Os",
            note: "",
        },
        RowSpec {
            id: "M12b",
            class: Class::Shape,
            must: "batches of 8 give more throughput on a disk, and within 1 % the same where places are alike",
            paper: "batching improves throughput by locality",
            note: "",
        },
    ],
    run: measure,
};

/// Requests per second of all, and how far the one that is furthest behind its reservation ever was, in requests.
fn play(batch: i64, model: Box<dyn Model>, span: u64, setting: &Setting) -> Result<(f64, f64), LabError> {
    let names = ["VM1", "VM2", "VM3", "VM4"];
    let makes = names.map(|name| {
        move |span| closed(16, Mix { reads: 1.0, length: 8192, address: Address::sequential(0, span) }, setting, name)
    });
    let actors = makes.iter().map(|make| Actor { policy: policy(RESERVATION, 0, 100), start: 0, make });
    let scene = Scene { actors: actors.collect(), changes: Vec::new(), span, seconds: 60 };
    let host = Host::new("mclock", 4).number("batch", batch).rotational();
    let mut simulation = scene.set_up(host.gate()?, model)?;
    let mut behind = 0.0f64;
    for second in 1..=scene.seconds {
        run(&mut simulation, second, "batches")?;
        for vm in 0..VMS {
            let got: u64 = simulation.account(vm).dispatched.iter().sum();
            behind = behind.max((RESERVATION * second) as f64 - got as f64);
        }
    }
    Ok(((0..VMS).map(|vm| mean_rate(&simulation, vm, 10, 60)).sum(), behind))
}

fn measure(setting: &Setting) -> Result<Finding, LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let span = device.place(0).1;
    let mut table = Table::new("Throughput of all", &["device", "batch", "[IOPS]", "furthest behind [requests]"]);
    let mut results = Vec::new();
    for (name, disk) in [("one disk", true), ("all places alike", false)] {
        for batch in [1, BATCH] {
            let model = if disk { device.drive(setting)? } else { constant(FLAT) };
            let (rate, behind) = play(batch, model, span, setting)?;
            table.row([name.to_owned(), batch.to_string(), slashed(&[rate]), slashed(&[behind])]);
            results.push((rate, behind));
        }
    }
    let mut finding = Finding::default();
    let behind = results.iter().map(|(_, behind)| *behind).fold(0.0, f64::max);
    finding.judge("M12a", behind <= (BATCH * VMS as i64) as f64, format!("{behind:.0} requests behind"));
    let (gain, flat) = (results[1].0 / results[0].0, results[3].0 / results[2].0);
    finding.judge("M12b", gain > 1.0 && (flat - 1.0).abs() <= 0.01, format!("disk x {gain:.3}, alike x {flat:.3}"));
    finding.tables.push(table);
    Ok(finding)
}
