//! Table 5: idle credit serves bursts sooner.

use std::time::Duration;

use sluice_report::Table;
use sluice_sched::{Instant, Policy};
use sluice_sim::engine::Simulation;
use sluice_sim::workloads::{Address, Mix, Open, Pattern, Workload};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{Experiment, ExperimentVm, stream_of};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{Arrival, Device, Form, Load, Quantity, Trial, TrialVm};
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, policy, within};

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-idle-credit",
    paper: Paper::Mclock,
    label: "Table 5",
    title: "A bursty VM with an idle credit of 1 and of 64",
    setup: "Ten disks as RAID-0, 32 requests at the array. VM1: 128 reads of 4 KiB every 400 ms, 80 % of them random; VM2: 16 KiB reads, \
            20 % random, 32 outstanding. Equal weights (an axis; 1000 where shown), no reservation, no limit. In the published formula the number itself matters: \
            with weights below a VM's IOPS, 100 here, what VM1 used before counts against it when it comes back.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M7a",
            class: Class::Shape,
            must: "with 64 VM1's latency is at least 10 % lower and VM2's no higher, in both modes",
            paper: "VM1's latency falls, VM2's stays or falls slightly",
            note: "",
        },
        RowSpec {
            id: "M7b",
            class: Class::Shape,
            must: "the IOPS of both VMs within 5 % of those with 1, in both modes. VM2 is closed, so that its IOPS rise as its latency \
                   falls: M7a and a band of 2 % exclude each other",
            paper: "IOPS of both unchanged",
            note: "VM1's IOPS are the same to a tenth of a percent everywhere. VM2's rise, by 1.9 % at the nominal point (table: 1669 to 1701) and \
                   by up to 3.2 % where the arms are slower (its latency falls by as much): a burst that goes together means fewer ways \
                   of the arms between the two VMs' places. The paper suspects the same (\"increase in efficiency\"). ",
        },
    ],
    run: measure,
};

/// Each VM's IOPS and mean latency in milliseconds.
fn run_simulation(host: &Host, weight: u32, credit: u32, point: &BandPoint) -> Result<[(f64, f64); 2], LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let bursty = |span| -> Box<dyn Workload> {
        let pattern = Pattern::Bursts(128, Duration::from_millis(400));
        let mix = Mix { reads: 1.0, length: 4096, address: Address::mixed(0, span, 0.8) };
        Box::new(Open::new(pattern, mix, Instant::ZERO, stream_of(point, "VM1")))
    };
    let steady = |span| {
        let mix = Mix { reads: 1.0, length: 16 << 10, address: Address::mixed(0, span, 0.2) };
        closed(32, mix, point, "VM2")
    };
    let policy = Policy { idle_credit: credit, ..policy(0, 0, weight) };
    let experiment = Experiment {
        vms: vec![ExperimentVm { policy, start: 0, make: &bursty }, ExperimentVm { policy, start: 0, make: &steady }],
        changes: Vec::new(),
        span: device.place(0).1,
        seconds: 130,
    };
    let run: Simulation = experiment.run_simulation(host.gate()?, device.model(point), host.scheduler)?;
    Ok([0, 1].map(|vm| (mean_rate(&run, vm, 10, 130), mean_latency_ms(&run, vm, 10, 130))))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let modes = [("paper", Host::new("mclock-paper", 32)), ("product", Host::new("mclock", 32))];
    let columns = ["scheduler", "idle credit", "VM1 [IOPS]", "VM1 [ms]", "VM2 [IOPS]", "VM2 [ms]"];
    let mut table = Table::new("Bursty VM1, steady VM2", &columns);
    let mut finding = Finding::default();
    let mut line = |name: &str, credit: &str, [one, two]: [(f64, f64); 2]| {
        let cells = [one.0, one.1, two.0, two.1].map(|value| format!("{value:.1}"));
        table.row([name.to_owned(), credit.to_owned()].into_iter().chain(cells));
    };
    let weight = point.setting("equal-weight") as u32;
    let (mut sooner, mut same, mut changes) = (true, true, Vec::new());
    for (name, host) in &modes {
        let (small, large) = (run_simulation(host, weight, 1, point)?, run_simulation(host, weight, 64, point)?);
        line(&format!("mClock, {name}"), "1", small);
        line(&format!("mClock, {name}"), "64", large);
        sooner &= large[0].1 <= 0.9 * small[0].1 && large[1].1 <= small[1].1;
        same &= (0..2).all(|vm| within(large[vm].0, small[vm].0, 0.05));
        changes
            .push([0, 1].map(|vm| [large[vm].0 / small[vm].0, large[vm].1 / small[vm].1].map(|to| 100.0 * (to - 1.0))));
    }
    let words = |part: usize| {
        let each = changes.iter().map(|vms| format!("VM1 {:+.1} %, VM2 {:+.1} %", vms[0][part], vms[1][part]));
        each.collect::<Vec<_>>().join("; ")
    };
    finding.judge("M7a", sooner, format!("latency: {} (paper; product)", words(1)));
    finding.judge("M7b", same, format!("IOPS: {} (paper; product)", words(0)));
    if point.is_nominal() {
        for credit in [1, 64] {
            let got = run_simulation(&modes[0].1, 100, credit, point)?;
            line("mClock, paper, weights 100", &credit.to_string(), got);
        }
        line("SFQ(D)", "none", run_simulation(&Host::new("sfqd", 32), weight, 1, point)?);
    }
    finding.tables.push(table);
    Ok(finding)
}

/// Rate of the constant device on real I/O: the paper says nothing of it; that of Fig. 5.
const REAL_IOPS: f64 = 1600.0;

/// The same on real I/O, on a device of constant rate, to which a sequential read is no cheaper than a random one, and on the modelled
/// array. In mode "product" credit does not depend on the weights' size.
pub(crate) fn trials() -> Vec<Trial> {
    let vms = |idle_credit: u32| {
        let bursts = Load {
            arrival: Arrival::Bursts(Duration::from_millis(400)),
            outstanding: 128,
            write_percent: 0,
            length: 4096,
            random_percent: 80,
        };
        let steady = TrialVm::new("VM2", 100, 16 << 10);
        let load = Load { random_percent: 20, ..steady.load };
        vec![
            TrialVm { idle_credit, load: bursts, ..TrialVm::new("VM1", 100, 4096) },
            TrialVm { idle_credit, load, ..steady },
        ]
    };
    let both = [Quantity::Iops, Quantity::Latency];
    let constant = |idle_credit: u32| {
        let (vms, parts) = (vms(idle_credit), [(10, 130)]);
        let values = Trial::all_values(&parts, &vms, &both);
        Trial { values, ..Trial::constant(format!("idle credit {idle_credit}"), REAL_IOPS, vms, &parts) }
    };
    let disk_len = DeviceFile::load(FIGURE.device).map_or(0, |file| file.place(0).1);
    let array = |idle_credit: u32| {
        let (vms, parts) = (vms(idle_credit), [(10, 70)]);
        Trial {
            device: Device::Drive { file: FIGURE.device, form: Form::AsFile },
            disk_len,
            range: disk_len,
            values: Trial::all_values(&parts, &vms, &both),
            ..Trial::constant(format!("idle credit {idle_credit}, array"), 0.0, vms, &parts)
        }
    };
    vec![constant(1), constant(64), array(1), array(64)]
}
