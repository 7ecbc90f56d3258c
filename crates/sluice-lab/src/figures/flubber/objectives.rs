//! Table I: requirements of the VMs, and the resulting credits.

use std::time::Duration;

use sluice_report::Table;
use sluice_sim::engine::Simulation;

use crate::band::BandPoint;
use crate::device::constant;
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{Host, closed, policy, random_reads, refused, run};

use super::guests::{SLO, VMS};

/// Interval factors of Table II with its credits.
const CREDITS: [(i64, [u32; 2]); 5] = [(1, [8, 1]), (2, [16, 2]), (8, [64, 8]), (32, [256, 32]), (128, [1024, 128])];
/// Requests per second of the device, and length in seconds.
const DEVICE: (f64, u64) = (5000.0, 20);

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "flubber-objectives",
    paper: Paper::Flubber,
    label: "Table I",
    title: "What both VMs require, and the credits that follow from it",
    setup: "Required are 1000 block requests per second within 80 ms (16 threads read 128 files of 2 GB in order) and 120 within \
            60 ms (8 threads read 128 files of 1 GB anywhere). Credits show in what passes: a device of 5000 requests per \
            second, one at a time, and both VMs with twice their credits outstanding.",
    device: "",
    rows: &[RowSpec {
        id: "F1h",
        class: Class::Conformance,
        must: "credits of 1000 and 120 IOPS are 8:1 at every interval factor: both VMs backlogged, their requests are served \
                   in that ratio within 2 %, in both modes",
        paper: "8/1, 16/2, 64/8, 256/32, 1024/128",
        note: "The text says 265 once; Table II and the text before it say 256.",
    }],
    run: measure,
};

/// Requests served of each VM.
fn served(mode: &str, beta: i64, credits: [u32; 2], point: &BandPoint) -> Result<[u64; 2], LabError> {
    let host = Host::new("flubber", 1).text("mode", mode).number("beta", beta);
    let mut simulation = Simulation::new(host.gate()?, constant(DEVICE.0), Duration::ZERO, Duration::from_secs(1));
    for vm in 0..2 {
        let workload = closed(2 * credits[vm], random_reads(16 << 10, 1 << 30), point, VMS[vm]);
        simulation.add_vm(policy(SLO[vm].0, 0, 1), (vm as u64) << 40, workload).map_err(refused)?;
    }
    run(&mut simulation, DEVICE.1, &format!("credits at beta {beta}"))?;
    Ok([0, 1].map(|vm| simulation.record(vm).completed))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let columns = ["beta", "credits in Table II", "served Seq:Rnd, mode paper", "mode product"];
    let mut table = Table::new("Credits, and the ratio of what is served", &columns);
    let mut furthest = 0.0f64;
    for (beta, credits) in CREDITS {
        let mut cells = vec![beta.to_string(), format!("{}/{}", credits[0], credits[1])];
        for mode in ["paper", "product"] {
            let [seq, rnd] = served(mode, beta, credits, point)?;
            let ratio = seq as f64 / rnd.max(1) as f64;
            let due = f64::from(credits[0]) / f64::from(credits[1]);
            furthest = furthest.max((ratio / due - 1.0).abs());
            cells.push(format!("{seq}:{rnd} = {ratio:.2}"));
        }
        table.row(cells);
    }
    finding.judge("F1h", furthest <= 0.02, format!("8:1, at most {:.2} % off", 100.0 * furthest));
    finding.tables.push(table);
    Ok(finding)
}
