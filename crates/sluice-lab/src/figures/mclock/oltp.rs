//! Fig. 8: a reservation protects databases from a VM that starts later.

use sluice_report::{Chart, Line, Table};
use sluice_sched::Instant;
use sluice_sched::params::{ParamTable, Value};
use sluice_sim::engine::Simulation;
use sluice_sim::workloads::{Workload, profiles};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{Experiment, ExperimentVm, stream_of};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Load, Quantity, Trial, TrialVm};
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, policy, random_reads, rates, refused, slashed};

/// Reservations and weights.
const VMS: [(&str, u64, u32); 3] = [("OLTP1", 500, 2), ("OLTP2", 500, 1), ("Iometer", 0, 1)];
/// Start of Iometer in seconds.
const START: u64 = 115;
/// A database's disk and its log, in bytes; the VMs' disks lie side by side.
const SPAN: u64 = 11_000_000_000;
/// Measured intervals before and after, in seconds.
const PARTS: [(usize, usize); 2] = [(20, 115), (125, 285)];

/// Printed IOPS of each VM with Iometer: with mClock, and without.
const PROTECTED: [Option<f64>; 3] = [Some(500.0), Some(500.0), None];
const UNPROTECTED: [Option<f64>; 3] = [None, Some(250.0), None];

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-oltp",
    paper: Paper::Mclock,
    label: "Fig. 8",
    title: "Two OLTP VMs with reservations, and Iometer from 115 s on",
    setup: "Ten disks as RAID-5, 32 requests at the array, with the disks and the overhead of Fig. 5 and a write cache of 512 MiB for the group (an \
            axis). Two VMs run the block-level profile of Filebench's oltp with 200 readers of 2 KiB, the tool's own number (an axis), \
            ten writers and a log, and no flush after a write; weights 2:1, reservations of 500 IOPS. The third, weight 1, keeps 32 random \
            reads of 16 KiB outstanding from 115 s on. Assumed: guests without barriers, as those of the time on such disks; no page cache.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M8a",
            class: Class::Shape,
            must: "with mClock, in both modes, both OLTP VMs get at least 98 % of 500 IOPS while Iometer works, where the device gives the \
                   three together, without mClock, the 1000 that are reserved",
            paper: "both achieved their reservations of 500 IOPS",
            note: "Nothing is fitted to this figure. With 50 to 150 readers both VMs get 495 IOPS or more at the nominal device. With 200, \
                   the tool's \
                   own number, OLTP2 gets 490 in mode \"paper\", and where the array is slow or has no write cache as little as 430, and OLTP1 470: readers wait \
                   for the ten writers, so that the VM has too few requests waiting to use its reservation. A reservation is a \
                   promise to those who wait.",
        },
        RowSpec {
            id: "M8b",
            class: Class::Shape,
            must: "without (SFQ(D)) OLTP2 misses its 500 IOPS after Iometer has come, by at least half as much as in the paper",
            paper: "OLTP2 about 250 IOPS",
            note: "",
        },
        RowSpec {
            id: "M8c",
            class: Class::Hardware,
            must: "latency of the block requests of OLTP1/OLTP2 without and with mClock",
            paper: "Filebench's operations per second higher and latency per operation lower in the OLTP VMs",
            note: "OLTP1 gives up what OLTP2 gains. Filebench's own operations are not modelled.",
        },
    ],
    run: measure,
};

/// Assumptions of the profile: readers, and whether a flush follows each write.
#[derive(Clone, Copy)]
struct Assumed(i64, bool);

/// A run with the reservations of both OLTP VMs, or without.
fn run_simulation(
    host: &Host,
    reserved: bool,
    Assumed(readers, flush): Assumed,
    point: &BandPoint,
) -> Result<Simulation, LabError> {
    let cache = (point.setting("array-cache") * f64::from(1 << 20)) as u64;
    let (device, span) = (DeviceFile::load(FIGURE.device)?.as_raid5(cache, 0), SPAN);
    // Built once for its error, then for the experiment.
    let oltp = |vm: &str, volume| {
        let context = profiles::BuildContext { volume, start: Instant::ZERO, random: stream_of(point, vm) };
        let table = [("readers", Value::Integer(readers)), ("flush", Value::Bool(flush))];
        let table: ParamTable = table.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        profiles::build("filebench-oltp", context, &table)
    };
    oltp("OLTP1", span).map_err(refused)?;
    let databases = ["OLTP1", "OLTP2"].map(|vm| {
        move |span| -> Box<dyn Workload> { oltp(vm, span).expect("it could be made before, of the same size") }
    });
    let iometer = |span| closed(32, random_reads(16 << 10, span), point, "Iometer");
    let makes: [&dyn Fn(u64) -> Box<dyn Workload>; 3] = [&databases[0], &databases[1], &iometer];
    let vms = VMS.iter().zip(makes).enumerate().map(|(number, ((_, reservation, weight), make))| ExperimentVm {
        policy: policy(if reserved { *reservation } else { 0 }, 0, *weight),
        start: if number == 2 { START } else { 0 },
        make,
    });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span, seconds: PARTS[1].1 as u64 };
    experiment.run_simulation(host.gate()?, device.model(point), host.scheduler)
}

/// The same with other profiles.
fn sweep(point: &BandPoint) -> Result<Table, LabError> {
    let columns = ["readers", "flush after a write", "mClock, product [IOPS]", "mClock, paper [IOPS]", "SFQ(D) [IOPS]"];
    let mut table = Table::new("OLTP1/OLTP2/Iometer with Iometer, other profiles", &columns);
    for assumed in [Assumed(50, false), Assumed(50, true), Assumed(200, true)] {
        let mut cells = vec![assumed.0.to_string(), if assumed.1 { "yes" } else { "no" }.to_owned()];
        for (_, host, reserved) in hosts() {
            let run = run_simulation(&host, reserved, assumed, point)?;
            cells.push(slashed(&[0, 1, 2].map(|vm| mean_rate(&run, vm, PARTS[1].0, PARTS[1].1))));
        }
        table.row(cells);
    }
    Ok(table)
}

fn hosts() -> [(&'static str, Host, bool); 3] {
    [
        ("mClock, product", Host::new("mclock", 32), true),
        ("mClock, paper", Host::new("mclock-paper", 32), true),
        ("SFQ(D)", Host::new("sfqd", 32), false),
    ]
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let assumed = Assumed(point.setting("oltp-readers") as i64, false);
    let run = |(name, host, reserved): (&'static str, Host, bool)| {
        Ok((name, run_simulation(&host, reserved, assumed, point)?))
    };
    let runs: Vec<_> = hosts().into_iter().map(run).collect::<Result<_, LabError>>()?;
    let columns = ["scheduler", "before [IOPS]", "[ms]", "with Iometer [IOPS]", "[ms]"];
    let mut table = Table::new("OLTP1/OLTP2/Iometer", &columns);
    let rate = |run: &Simulation, part: usize| [0, 1, 2].map(|vm| mean_rate(run, vm, PARTS[part].0, PARTS[part].1));
    let latency =
        |run: &Simulation, part: usize| [0, 1, 2].map(|vm| mean_latency_ms(run, vm, PARTS[part].0, PARTS[part].1));
    for (name, simulation) in &runs {
        let cells = [0, 1].map(|part| [slashed(&rate(simulation, part)), slashed(&latency(simulation, part))]);
        table.row(std::iter::once((*name).to_owned()).chain(cells.concat()));
    }
    let mut finding = Finding::default();
    let enough = rate(&runs[2].1, 1).iter().sum::<f64>() >= 1000.0;
    let kept = runs[..2].iter().all(|(_, run)| rate(run, 1)[..2].iter().all(|got| *got >= 490.0));
    let means: Vec<_> = runs[..2].iter().map(|(_, run)| slashed(&rate(run, 1)[..2])).collect();
    let published = rate(&runs[1].1, 1);
    finding
        .judge_if(enough, "M8a", kept, format!("{} IOPS (product; paper)", means.join("; ")))
        .means(PROTECTED.into_iter().flatten().zip(published));
    let without = rate(&runs[2].1, 1)[1];
    finding
        .judge_effects("M8b", true, format!("{without:.0} IOPS"), vec![(-0.5, without / 500.0 - 1.0)])
        .means(UNPROTECTED[1].map(|printed| (printed, without)));
    let [product, paper, none] = [0, 1, 2].map(|number| slashed(&latency(&runs[number].1, 1)[..2]));
    finding.show("M8c", format!("{none} ms without, {product} (product) and {paper} ms (paper) with"));
    finding.tables.push(table);
    if point.is_nominal() {
        finding.tables.push(sweep(point)?);
    }
    for ((name, simulation), printed) in [&runs[0], &runs[2]].into_iter().zip([PROTECTED, UNPROTECTED]) {
        let middle = (PARTS[1].0 + PARTS[1].1) as f64 / 2.0;
        let line = |vm: usize| {
            let published = printed[vm].map(|iops| (middle, iops));
            Line::new(VMS[vm].0, rates(simulation, vm)).published(published.into_iter().collect())
        };
        finding.charts.push(Chart::lines(name, "time [s]", "IOPS", (0..VMS.len()).map(line).collect()));
    }
    Ok(finding)
}

/// Rate of the constant device in guests: what the paper's numbers imply of the array with the three VMs, "around 250 IOPS" for a
/// quarter of the weights and 500 for two VMs that reserve them, and what the device file was fitted to.
const GUEST_IOPS: f64 = 1100.0;
/// Measured intervals in guests: shorter than in the paper after Iometer has started.
const GUEST_PARTS: [(usize, usize); 2] = [(15, 115), (125, 185)];

/// The same with guests on a device of constant rate: 50 readers and five writers in each database, which is the profile's ratio of one
/// write to ten reads without its log. A request has 4 KiB and not 2: busybox reads less than a page through the page cache. To the
/// device all sizes are alike. The paper prints rates with Iometer alone.
pub(crate) fn guest_trials() -> Vec<Trial> {
    let trial = |scheduler, reserved: bool, printed: [Option<f64>; 3]| {
        let vm = |(name, reservation, weight)| {
            let (length, start) = if name == "Iometer" { (16 << 10, START) } else { (4 << 10, 0) };
            let vm = TrialVm { start, ..TrialVm::new(name, weight, length) };
            let load = if start == 0 { Load { outstanding: 55, write_percent: 9, ..vm.load } } else { vm.load };
            TrialVm { reservation: if reserved { reservation } else { 0 }, load, ..vm }
        };
        let vms: Vec<TrialVm> = VMS.map(vm).into();
        let mut values = Trial::all_values(&GUEST_PARTS, &vms, &[Quantity::Iops, Quantity::Latency]);
        real::print(&mut values, 1, Quantity::Iops, &printed);
        Trial { scheduler, values, in_guests: true, ..Trial::constant(scheduler, GUEST_IOPS, vms, &GUEST_PARTS) }
    };
    vec![trial("sfqd", false, UNPROTECTED), trial("mclock", true, PROTECTED)]
}
