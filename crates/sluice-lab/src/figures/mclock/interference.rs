//! Fig. 4: a limit on a migration reduces the latency of others.

use std::time::Duration;

use sluice_report::{Chart, Line, Table};
use sluice_sched::Instant;
use sluice_sim::engine::{Change, Simulation};
use sluice_sim::workloads::{Address, Mix, Open, Pattern, Workload};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{Experiment, ExperimentVm, stream_of};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Arrival, Device, Form, Load, Quantity, Trial, TrialVm};
use crate::setup::{Host, closed, latencies_ms, mean_latency_ms, mean_rate, policy, rates, slashed, within};

/// The VMs in order.
const VMS: [&str; 3] = ["RD", "OLTP", "DM"];
/// When DM is limited, in seconds.
const LIMITED: u64 = 140;
/// Measured intervals before and after, in seconds.
const PARTS: [(usize, usize); 2] = [(60, 140), (160, 240)];

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-interference",
    paper: Paper::Mclock,
    label: "Fig. 4",
    title: "Latency with proportional shares alone, and with a limit of 300 IOPS on DM",
    setup: "Ten disks as RAID-5 (assumed), 32 requests at the array. RD: 32 random 4 KiB requests every 250 ms, 75 % reads; OLTP: 8 KiB random, \
            75 % reads, 16 outstanding; DM: 32 KiB sequential reads, 32 outstanding. Weights 2:2:1 (in units of 1000, an axis), no reservations; DM is limited \
            to 300 IOPS from 140 s on. The array has a write cache of 512 MiB for the group and reads 1 MiB ahead of a sequential stream (axes).",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M2a",
            class: Class::Shape,
            must: "before the limit DM gets more than its fifth of the requests, and OLTP less than its two fifths; mode \"paper\"",
            paper: "DM more, RD and OLTP less than their shares",
            note: "DM has more than its fifth with every size of the weights. OLTP is below its two fifths if they are 1000 or more for a weight of \
                   1; with 100 or 500 the published formulas give it 41 to 42 %.",
        },
        RowSpec {
            id: "M2b",
            class: Class::Shape,
            must: "with the limit OLTP's throughput rises and its latency falls by at least half as much as in the paper, RD's throughput within \
                   2 %; mode \"paper\"",
            paper: "100 % more throughput, latency from 36 to 16 ms, RD's throughput equal to its demand",
            note: "RD has its demand everywhere. What OLTP gains by the limit is what the stream took, and that depends on two facts that the \
                   paper does not state: how far the array reads ahead of the stream, and in the published form the size of the \
                   weights (sweeps). Either alone makes it 1.45 times; half of the published gain is reached at four of 21 points (1.52 to 1.61 times), and twice \
                   the throughput nowhere. With nothing of DM at all it is 1.4 times at the nominal point (table). Latency follows \
                   by Little's law.",
        },
        RowSpec {
            id: "M2d",
            class: Class::Shape,
            must: "as M2a in mode \"product\"",
            paper: "DM more, RD and OLTP less than their shares",
            note: "",
        },
        RowSpec {
            id: "M2e",
            class: Class::Shape,
            must: "as M2b in mode \"product\"",
            paper: "100 % more throughput, latency from 36 to 16 ms, RD's throughput equal to its demand",
            note: "With 8 MiB of read-ahead, which had once been fitted to the paper's 36 ms, it comes out; nothing else speaks for that number.",
        },
        RowSpec {
            id: "M2c",
            class: Class::Hardware,
            must: "OLTP's latency before and after, mode \"paper\"",
            paper: "36 and 16 ms",
            note: "",
        },
        RowSpec {
            id: "M2f",
            class: Class::Shape,
            must: "without a limit, with weights of 10:10:1 and of 100:100:1, RD and OLTP have at most 10 % less latency, and OLTP at most \
                   10 % more throughput, \
                   than with 2:2:1; mode \"paper\"",
            paper: "no significant improvement with other weight ratios",
            note: "What the other ratios give OLTP lies just below our 10 %, and is a third of what the limit gives at the nominal array (M2b); if the array does not read ahead it is nearly all.",
        },
    ],
    run: measure,
};

fn mixed(length: u32, range: u64) -> Mix {
    Mix { reads: 0.75, length, address: Address::random(0, range) }
}

/// A run with a weight of DM, in parts of its nominal one, and its limits before and after.
fn run_simulation(
    device: &DeviceFile,
    host: &Host,
    (dm_part, dm_limits): (u32, [u64; 2]),
    seconds: usize,
    point: &BandPoint,
) -> Result<Simulation, LabError> {
    let rd = |span| -> Box<dyn Workload> {
        let pattern = Pattern::Bursts(32, Duration::from_millis(250));
        Box::new(Open::new(pattern, mixed(4096, span), Instant::ZERO, stream_of(point, "RD")))
    };
    let oltp = |span| closed(16, mixed(8192, span), point, "OLTP");
    let dm = |span| {
        let mix = Mix { reads: 1.0, length: 32 << 10, address: Address::sequential(0, span) };
        closed(32, mix, point, "DM")
    };
    let unit = point.setting("weight-unit") as u32;
    let experiment = Experiment {
        vms: vec![
            ExperimentVm { policy: policy(0, 0, 2 * unit), start: 0, make: &rd },
            ExperimentVm { policy: policy(0, 0, 2 * unit), start: 0, make: &oltp },
            ExperimentVm { policy: policy(0, dm_limits[0], unit / dm_part), start: 0, make: &dm },
        ],
        changes: vec![(LIMITED, Change::Policy(2, policy(0, dm_limits[1], unit / dm_part)))],
        span: device.place(0).1,
        seconds: seconds as u64,
    };
    experiment.run_simulation(host.gate()?, device.model(point), host.scheduler)
}

/// The group of RAID-5 at a point.
fn array(point: &BandPoint) -> Result<DeviceFile, LabError> {
    let bytes = |axis: &str| (point.setting(axis) * f64::from(1 << 20)) as u64;
    Ok(DeviceFile::load(FIGURE.device)?.as_raid5(bytes("array-cache"), bytes("array-read-ahead")))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let hosts = [
        ("mClock, paper", Host::new("mclock-paper", 32), [0, 300]),
        ("mClock, product", Host::new("mclock", 32), [0, 300]),
        ("SFQ(D), no limit", Host::new("sfqd", 32), [0, 0]),
        ("mClock, DM at 1 IOPS all the time", Host::new("mclock", 32), [1, 1]),
    ];
    let columns = ["scheduler", "60 to 140 s [IOPS]", "[ms]", "160 to 240 s [IOPS]", "[ms]"];
    let mut table = Table::new("RD/OLTP/DM", &columns);
    let mut finding = Finding::default();
    let device = array(point)?;
    // Only the first two are judged.
    let rows = [["M2a", "M2b"], ["M2d", "M2e"]];
    let mut nominal = [[0.0; 2]; 2];
    let shown = if point.is_nominal() { hosts.len() } else { rows.len() };
    for (index, (name, host, limits)) in hosts.iter().take(shown).enumerate() {
        let simulation = run_simulation(&device, host, (1, *limits), PARTS[1].1, point)?;
        let rate = PARTS.map(|(from, to)| [0, 1, 2].map(|vm| mean_rate(&simulation, vm, from, to)));
        let latency = PARTS.map(|(from, to)| [0, 1, 2].map(|vm| mean_latency_ms(&simulation, vm, from, to)));
        let cells = [0, 1].map(|part| [slashed(&rate[part]), slashed(&latency[part])]);
        table.row(std::iter::once((*name).to_owned()).chain(cells.concat()));
        let Some([before, after]) = rows.get(index) else { continue };
        let total: f64 = rate[0].iter().sum();
        let (dm, oltp) = (rate[0][2] / total, rate[0][1] / total);
        finding.judge(before, dm > 0.2 && oltp < 0.4, format!("DM {:.0} %, OLTP {:.0} %", 100.0 * dm, 100.0 * oltp));
        let (faster, sooner) = (rate[1][1] / rate[0][1], latency[0][1] / latency[1][1]);
        let kept = rate[1][0] / rate[0][0];
        let measured = format!("throughput x {faster:.2}, latency / {sooner:.2}, RD x {kept:.3}");
        let effects = vec![(1.0, faster - 1.0), (16.0 / 36.0 - 1.0, 1.0 / sooner - 1.0)];
        let printed = [(36.0, latency[0][1]), (16.0, latency[1][1])];
        finding.judge_effects(after, within(kept, 1.0, 0.02), measured, effects).means(printed);
        if index > 0 {
            continue;
        }
        nominal = [[rate[0][0], rate[0][1]], [latency[0][0], latency[0][1]]];
        finding.show("M2c", format!("{:.0} and {:.0} ms", latency[0][1], latency[1][1])).means(printed);
        let lines = VMS.iter().enumerate().map(|(vm, name)| Line::new(*name, rates(&simulation, vm))).collect();
        finding.charts.push(Chart::lines("Throughput, DM limited from 140 s on", "time [s]", "IOPS", lines));
        let oltp = Line::new(VMS[1], latencies_ms(&simulation, 1)).published(vec![(100.0, 36.0), (200.0, 16.0)]);
        finding.charts.push(Chart::lines("Latency, DM limited from 140 s on", "time [s]", "ms", vec![oltp]));
    }
    finding.tables.push(table);
    judge_ratios(&mut finding, nominal, &device, point)?;
    Ok(finding)
}

/// Rates and latencies of RD and OLTP with other ratios of weights, of which DM has less and less, and no limit, beside those with 2:2:1.
fn judge_ratios(
    finding: &mut Finding,
    nominal: [[f64; 2]; 2],
    device: &DeviceFile,
    point: &BandPoint,
) -> Result<(), LabError> {
    let mut table = Table::new("By weights, no limit, 60 to 140 s", &["weights", "RD/OLTP [IOPS]", "RD/OLTP [ms]"]);
    let mut found = vec![nominal];
    for part in [5, 50] {
        let run = run_simulation(device, &Host::new("mclock-paper", 32), (part, [0, 0]), PARTS[0].1, point)?;
        let (from, to) = PARTS[0];
        found.push([
            [0, 1].map(|vm| mean_rate(&run, vm, from, to)),
            [0, 1].map(|vm| mean_latency_ms(&run, vm, from, to)),
        ]);
    }
    for (name, [rate, latency]) in ["2:2:1", "10:10:1", "100:100:1"].into_iter().zip(&found) {
        table.row([name.to_owned(), slashed(rate), slashed(latency)]);
    }
    let [rate, latency] = nominal;
    let better =
        |[other, sooner]: &[[f64; 2]; 2]| other[1] > 1.1 * rate[1] || (0..2).any(|vm| sooner[vm] < 0.9 * latency[vm]);
    let words = found.iter().map(|[rate, latency]| format!("{:.0} IOPS, {} ms", rate[1], slashed(latency)));
    let words: Vec<String> = words.collect();
    finding.judge("M2f", !found[1..].iter().any(better), words.join("; "));
    finding.tables.push(table);
    Ok(())
}

/// When DM is limited on real I/O, in seconds, and the measured intervals before and after.
const REAL_LIMITED: u64 = 25;
const REAL_PARTS: [(usize, usize); 2] = [(5, 25), (30, 50)];

/// The same on real I/O, in mode "product", at the nominal point.
pub(crate) fn trials() -> Vec<Trial> {
    let point = &BandPoint::NOMINAL;
    let bytes = |axis: &str| (point.setting(axis) * f64::from(1 << 20)) as u64;
    let form = Form::Raid5 { cache: bytes("array-cache"), read_ahead: bytes("array-read-ahead") };
    let unit = point.setting("weight-unit") as u32;
    let [rd, oltp, dm] = [(VMS[0], 2, 4 << 10), (VMS[1], 2, 8 << 10), (VMS[2], 1, 32 << 10)]
        .map(|(name, weight, length)| TrialVm::new(name, weight * unit, length));
    let bursts = Arrival::Bursts(Duration::from_millis(250));
    let vms = vec![
        TrialVm { load: Load { arrival: bursts, write_percent: 25, ..rd.load }, ..rd },
        TrialVm { load: Load { outstanding: 16, write_percent: 25, ..oltp.load }, ..oltp },
        TrialVm { load: Load { random_percent: 0, ..dm.load }, limit: 300, limit_from: REAL_LIMITED, ..dm },
    ];
    let mut values = Trial::all_values(&REAL_PARTS, &vms, &[Quantity::Iops, Quantity::Latency]);
    for (part, printed) in [36.0, 16.0].into_iter().enumerate() {
        real::print(&mut values, part, Quantity::Latency, &[None, Some(printed)]);
    }
    let disk_len = DeviceFile::load(FIGURE.device).map_or(0, |file| file.place(0).1);
    vec![Trial {
        device: Device::Drive { file: FIGURE.device, form },
        disk_len,
        range: disk_len,
        values,
        ..Trial::constant("mclock", 0.0, vms, &REAL_PARTS)
    }]
}
