//! Fig. 7: limits, reservations and shares among requests of different sizes.

use sluice_report::{Chart, Line, Table};
use sluice_sim::engine::Simulation;
use sluice_sim::workloads::{Address, Mix, Workload};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{Experiment, ExperimentVm};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Device, Form, Load, Quantity, Trial, TrialVm};
use crate::setup::{Host, closed, mean_rate, policy, rates, slashed, within};

/// A VM: name, request size in bytes, fraction of reads, fraction of random offsets, reservation, limit, weight.
struct Vm(&'static str, u32, f64, f64, u64, u64, u32);

const VMS: [Vm; 4] = [
    Vm("VM1", 4 << 10, 0.75, 1.0, 0, 0, 200),
    Vm("VM2", 8 << 10, 0.90, 1.0, 0, 700, 200),
    Vm("VM3", 32 << 10, 0.75, 1.0, 0, 0, 100),
    Vm("VM4", 8 << 10, 0.50, 1.0, 250, 0, 100),
];

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-mixed",
    paper: Paper::Mclock,
    label: "Fig. 7, Table 3",
    title: "Four VMs with requests of different sizes",
    setup: "Ten disks as RAID-0, 32 requests at the array; each VM keeps 32 requests outstanding. Table 3 of the paper is missing from \
            its text; these are our own workloads. VM1: 4 KiB, 75 % reads, all random, weight 2; VM2: 8 KiB, 90 % reads, all random, \
            weight 2, limit 700 IOPS; VM3: 32 KiB, 75 % reads, all random, weight 1; VM4: 8 KiB, 50 % reads, all random, weight 1, \
            reservation 250 IOPS. One more VM starts each minute. Requests count 1 whatever their size, as in the figure.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M5a",
            class: Class::Conformance,
            must: "with mClock, in both modes, VM2 at most 700 IOPS, while two VMs work and while four do, VM4 at least 250 when it has \
                   come, 5 % more or less",
            paper: "VM2 at most 700, VM4 at least 250 (SFQ about 190)",
            note: "",
        },
        RowSpec {
            id: "M5b",
            class: Class::Conformance,
            must: "with mClock, in both modes, VM1 gets twice what VM3 gets, within 5 %",
            paper: "VM1 twice VM3",
            note: "",
        },
        RowSpec {
            id: "M5c",
            class: Class::Hardware,
            must: "what SFQ(D) gives VM4",
            paper: "about 190 IOPS",
            note: "With sizes of our own.",
        },
    ],
    run: measure,
};

/// The workload of a VM on a disk of this size; Table 4 has the same.
pub(super) fn load(vm: usize, span: u64, point: &BandPoint) -> Box<dyn Workload> {
    let Vm(name, length, reads, random, ..) = VMS[vm];
    closed(32, Mix { reads, length, address: Address::mixed(0, span, random) }, point, name)
}

fn run_simulation(host: &Host, promised: bool, point: &BandPoint) -> Result<Simulation, LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let makes = [0, 1, 2, 3].map(|vm| move |span| load(vm, span, point));
    let vms = VMS.iter().zip(&makes).enumerate().map(|(number, (Vm(_, _, _, _, reservation, limit, weight), make))| {
        let policy = if promised { policy(*reservation, *limit, *weight) } else { policy(0, 0, *weight) };
        ExperimentVm { policy, start: 60 * number as u64, make }
    });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span: device.place(0).1, seconds: 240 };
    experiment.run_simulation(host.gate()?, device.model(point), host.scheduler)
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let runs = [
        ("mClock, product", run_simulation(&Host::new("mclock", 32), true, point)?),
        ("mClock, paper", run_simulation(&Host::new("mclock-paper", 32), true, point)?),
        ("SFQ(D)", run_simulation(&Host::new("sfqd", 32), false, point)?),
    ];
    let mut finding = Finding::default();
    let columns = ["scheduler", "VM1/VM2, 70 to 120 s", "VM1/VM2/VM3/VM4, 190 to 240 s"];
    let mut table = Table::new("Throughput [IOPS]", &columns);
    let early = |run: &Simulation| [0, 1].map(|vm| mean_rate(run, vm, 70, 120));
    let late = |run: &Simulation| [0, 1, 2, 3].map(|vm| mean_rate(run, vm, 190, 240));
    for (name, run) in &runs {
        table.row([(*name).to_owned(), slashed(&early(run)), slashed(&late(run))]);
    }
    let kept = runs[..2].iter().all(|(_, run)| early(run)[1].max(late(run)[1]) <= 735.0 && late(run)[3] >= 237.5);
    let measured = format!("VM2 {:.0}, VM4 {:.0} IOPS", early(&runs[0].1)[1], late(&runs[0].1)[3]);
    finding.judge("M5a", kept, measured);
    let ratios = [0, 1].map(|mode| late(&runs[mode].1)[0] / late(&runs[mode].1)[2]);
    let twice = ratios.iter().all(|ratio| within(*ratio, 2.0, 0.05));
    finding.judge("M5b", twice, format!("{:.3} times", ratios[0]));
    let shared = late(&runs[2].1)[3];
    finding.show("M5c", format!("{shared:.0} IOPS")).means([(190.0, shared)]);
    finding.tables.push(table);
    // Printed IOPS of each VM and when: VM2 while two VMs work, and VM4 with all four.
    let printed = [[None, Some((95.0, 700.0)), None, Some((215.0, 250.0))], [None, None, None, Some((215.0, 190.0))]];
    for ((name, run), printed) in [&runs[0], &runs[2]].into_iter().zip(printed) {
        let line = |vm: usize| Line::new(VMS[vm].0, rates(run, vm)).published(printed[vm].into_iter().collect());
        finding.charts.push(Chart::lines(name, "time [s]", "IOPS", (0..4).map(line).collect()));
    }
    Ok(finding)
}

/// From one VM to the next on real I/O, in seconds, and the measured intervals with two VMs and with four; with four alone.
const REAL_START: u64 = 15;
const REAL_PARTS: [(usize, usize); 2] = [(18, 30), (48, 63)];
const REAL_LATE: [(usize, usize); 1] = [(3, 18)];

/// A VM with its load on real I/O, and no promise; Table 4 has the same.
pub(super) fn trial_vm(number: usize) -> TrialVm {
    let Vm(name, length, reads, random, ..) = VMS[number];
    let plain = TrialVm::new(name, 1, length);
    let percent = |part: f64| (100.0 * part).round() as u32;
    let load = Load { write_percent: percent(1.0 - reads), random_percent: percent(random), ..plain.load };
    TrialVm { load, ..plain }
}

/// The same on real I/O: mClock in mode "product", and SFQ(D) with all four VMs.
pub(crate) fn trials() -> Vec<Trial> {
    let disk_len = DeviceFile::load(FIGURE.device).map_or(0, |file| file.place(0).1);
    let trial = |scheduler, promised: bool, parts: &[(usize, usize)]| {
        let vm = |number: usize| {
            let Vm(.., reservation, limit, weight) = VMS[number];
            let (reservation, limit, start) =
                if promised { (reservation, limit, REAL_START * number as u64) } else { (0, 0, 0) };
            TrialVm { reservation, limit, start, weight, ..trial_vm(number) }
        };
        Trial {
            device: Device::Drive { file: FIGURE.device, form: Form::AsFile },
            disk_len,
            range: disk_len,
            scheduler,
            ..Trial::constant(scheduler, 0.0, (0..VMS.len()).map(vm).collect(), parts)
        }
    };
    let (mut mclock, mut sfqd) = (trial("mclock", true, &REAL_PARTS), trial("sfqd", false, &REAL_LATE));
    real::print(&mut mclock.values, 0, Quantity::Iops, &[None, Some(700.0)]);
    real::print(&mut mclock.values, 1, Quantity::Iops, &[None, None, None, Some(250.0)]);
    real::print(&mut sfqd.values, 0, Quantity::Iops, &[None, None, None, Some(190.0)]);
    vec![mclock, sfqd]
}
