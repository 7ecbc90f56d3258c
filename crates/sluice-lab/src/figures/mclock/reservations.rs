//! Fig. 6: reservations hold as VMs start and the array slows down.

use sluice_report::{Chart, Line, Table};
use sluice_sim::engine::Simulation;

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{Experiment, ExperimentVm};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::real::{self, Device, Form, Quantity, Trial, TrialVm, Value};
use crate::setup::{
    Host, closed, least_rate, mean_latency_ms, mean_rate, policy, random_reads, rates, run, slashed, within,
};

/// Reservations and weights; one more VM each minute.
const VMS: [(&str, u64, u32); 5] = [("VM1", 300, 1), ("VM2", 250, 1), ("VM3", 0, 2), ("VM4", 0, 2), ("VM5", 0, 2)];

/// What the paper prints of the end, in the order of the VMs: with SFQ(D), and with mClock.
const SHARED: [f64; 5] = [160.0, 160.0, 320.0, 320.0, 320.0];
const RESERVED: [f64; 2] = [300.0, 250.0];

pub(crate) const FIGURE: Figure = Figure {
    id: "mclock-reservations",
    paper: Paper::Mclock,
    label: "Fig. 6",
    title: "Five VMs with reservations, SFQ(D) and mClock",
    setup: "Ten disks as RAID-0, 32 requests at the array. Weights 1:1:2:2:2, reservations 300/250/0/0/0 IOPS; each VM keeps 32 \
            random reads of 16 KiB outstanding, and one more starts each minute.",
    device: "mclock-array",
    rows: &[
        RowSpec {
            id: "M4a",
            class: Class::Conformance,
            must: "with mClock, in both modes, VM1 is dispatched 300 and VM2 250 requests in every second from 5 s after its start, \
                   at most 2 % less",
            paper: "300 and 250 IOPS",
            note: "",
        },
        RowSpec {
            id: "M4e",
            class: Class::Hardware,
            must: "the fewest that were completed in a second",
            paper: "300 and 250 IOPS",
            note: "Requests are dispatched in time (M4a). How many are completed in a second depends on how long the array takes for each.",
        },
        RowSpec {
            id: "M4b",
            class: Class::Shape,
            must: "with SFQ(D) the five VMs stand as 1:1:2:2:2, each within 5 %; with mClock the three without reservation within 5 % of \
                   each other",
            paper: "160/160/320/320/320 IOPS; with mClock VM1 300 and VM2 250",
            note: "",
        },
        RowSpec {
            id: "M4c",
            class: Class::Shape,
            must: "the array's throughput falls from one VM to five, by at least half of what the paper's numbers imply, 1600 to 1280 IOPS",
            paper: "the overall throughput from the array decreased",
            note: "",
        },
        RowSpec {
            id: "M4d",
            class: Class::Hardware,
            must: "what each gets with SFQ(D) at the end",
            paper: "160/160/320/320/320 IOPS",
            note: "",
        },
        RowSpec {
            id: "M4f",
            class: Class::Shape,
            must: "at the end VM1 and VM2 have a smaller mean latency with mClock, in both modes, than with SFQ(D)",
            paper: "a smaller latency for VM1 and VM2, which proportional shares alone would not give",
            note: "By Little's law it follows from the reservations (M4a): 32 outstanding at 300 a second take 107 ms. That shares cannot do \
                   it is not tested.",
        },
    ],
    run: measure,
};

/// A run, and the smallest number of dispatches of VM1 and VM2 in any second from 5 s after their start.
fn run_simulation(host: &Host, reserved: bool, point: &BandPoint) -> Result<(Simulation, [u64; 2]), LabError> {
    let device = DeviceFile::load(FIGURE.device)?;
    let makes = VMS.map(|(name, ..)| move |span| closed(32, random_reads(16 << 10, span), point, name));
    let vms = VMS.iter().zip(&makes).enumerate().map(|(number, ((_, reservation, weight), make))| ExperimentVm {
        policy: policy(if reserved { *reservation } else { 0 }, 0, *weight),
        start: 60 * number as u64,
        make,
    });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span: device.place(0).1, seconds: 300 };
    let mut simulation = experiment.build(host.gate()?, device.model(point))?;
    let (mut least, mut before) = ([u64::MAX; 2], [0; 2]);
    for second in 1..=experiment.seconds {
        run(&mut simulation, second, host.scheduler)?;
        for vm in 0..2 {
            let so_far = simulation.stats(vm).dispatched.iter().sum();
            if second > 5 + 60 * vm as u64 {
                least[vm] = least[vm].min(so_far - before[vm]);
            }
            before[vm] = so_far;
        }
    }
    Ok((simulation, least))
}

/// Rate of each VM in the last fifty seconds.
fn last(simulation: &Simulation) -> [f64; 5] {
    std::array::from_fn(|vm| mean_rate(simulation, vm, 250, 300))
}

/// Mean latency of each VM in milliseconds in the last fifty seconds.
fn latencies(simulation: &Simulation) -> [f64; 5] {
    std::array::from_fn(|vm| mean_latency_ms(simulation, vm, 250, 300))
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let (sfq, _) = run_simulation(&Host::new("sfqd", 32), false, point)?;
    let (product, least_product) = run_simulation(&Host::new("mclock", 32), true, point)?;
    let (paper, least_paper) = run_simulation(&Host::new("mclock-paper", 32), true, point)?;
    let mut finding = Finding::default();
    let least = [least_product, least_paper];
    let kept = least.iter().all(|[one, two]| *one >= 294 && *two >= 245);
    let words: Vec<String> = least.iter().map(|[one, two]| format!("{one} and {two}")).collect();
    finding.judge("M4a", kept, format!("least in any second: {} IOPS (product; paper)", words.join("; ")));
    let completed = [&product, &paper].map(|run| [least_rate(run, 0, 5, 300), least_rate(run, 1, 65, 300)]);
    let words: Vec<String> = completed.iter().map(|[one, two]| format!("{one} and {two}")).collect();
    let least = RESERVED.into_iter().zip(completed[1].map(|rate| rate as f64));
    finding.show("M4e", format!("{} IOPS (product; paper)", words.join("; "))).means(least);
    let (shares, mine) = (last(&sfq), last(&product));
    let unit = shares.iter().sum::<f64>() / 8.0;
    let proportional = shares.iter().zip(VMS).all(|(got, (_, _, weight))| within(*got, unit * f64::from(weight), 0.05));
    let equal = mine[2..].iter().all(|got| within(*got, mine[2..].iter().sum::<f64>() / 3.0, 0.05));
    let published = last(&paper);
    finding
        .judge("M4b", proportional && equal, format!("{}; mClock {} IOPS", slashed(&shares), slashed(&mine)))
        .means(SHARED.into_iter().zip(shares))
        .means(RESERVED.into_iter().zip(published));
    let (first, end) = (mean_rate(&product, 0, 10, 60), mine.iter().sum::<f64>());
    let fall = 1.0 - end / first;
    let measured = format!("from {first:.0} to {end:.0} IOPS: {:.0} %", 100.0 * fall);
    finding.judge_effects("M4c", true, measured, vec![(1280.0 / 1600.0 - 1.0, -fall)]);
    finding.show("M4d", format!("{} IOPS", slashed(&shares))).means(SHARED.into_iter().zip(shares));
    let [shared, product_ms, paper_ms] = [&sfq, &product, &paper].map(latencies);
    let sooner = [product_ms, paper_ms].iter().all(|ms| (0..2).all(|vm| ms[vm] < shared[vm]));
    let words = [shared, product_ms, paper_ms].map(|ms| format!("{:.0} and {:.0}", ms[0], ms[1]));
    finding.judge("M4f", sooner, format!("{} ms (SFQ(D); product; paper)", words.join("; ")));
    let columns = ["scheduler", "throughput [IOPS]", "mean latency [ms]"];
    let mut table = Table::new("VM1/VM2/VM3/VM4/VM5, 250 to 300 s", &columns);
    for (name, rate, ms) in
        [("SFQ(D)", shares, shared), ("mClock, product", mine, product_ms), ("mClock, paper", published, paper_ms)]
    {
        table.row([name.to_owned(), slashed(&rate), slashed(&ms)]);
    }
    finding.tables.push(table);
    let printed: [&[f64]; 2] = [&SHARED, &RESERVED];
    for ((title, simulation), printed) in [("SFQ(D)", &sfq), ("mClock", &product)].into_iter().zip(printed) {
        let line = |(vm, (name, ..)): (usize, &(&str, u64, u32))| {
            let published = printed.get(vm).map(|rate| (275.0, *rate));
            Line::new(*name, rates(simulation, vm)).published(published.into_iter().collect())
        };
        let lines = VMS.iter().enumerate().map(line).collect();
        let chart = Chart::lines(title, "time [s]", "IOPS", lines);
        finding.charts.push(chart.level("reservation of VM1", 300.0).level("reservation of VM2", 250.0));
    }
    Ok(finding)
}

/// Measured seconds for each number of VMs.
const PARTS: [(usize, usize); 5] = [(10, 60), (70, 120), (130, 180), (190, 240), (250, 300)];

/// The same on real I/O: both schedulers on a device of the 1280 requests per second that the paper's array has left at the end, since
/// a device of constant rate does not slow down as VMs start; and mClock on the modelled array, which does.
pub(crate) fn trials() -> Vec<Trial> {
    let vms = |reserved: bool| -> Vec<TrialVm> {
        let vm = |(number, (name, reservation, weight)): (usize, (&'static str, u64, u32))| TrialVm {
            reservation: if reserved { reservation } else { 0 },
            start: 60 * number as u64,
            ..TrialVm::new(name, weight, 16 << 10)
        };
        VMS.into_iter().enumerate().map(vm).collect()
    };
    let constant = |scheduler, reserved, last: [Option<f64>; 5]| {
        let mut trial = Trial::constant(scheduler, 1280.0, vms(reserved), &PARTS);
        real::print(&mut trial.values, PARTS.len() - 1, Quantity::Iops, &last);
        Trial { scheduler, ..trial }
    };
    let disk_len = DeviceFile::load(FIGURE.device).map_or(0, |file| file.place(0).1);
    let total = |part: usize| Value { part, vm: None, quantity: Quantity::Iops, paper: None };
    let on_array = Trial {
        device: Device::Drive { file: FIGURE.device, form: Form::AsFile },
        disk_len,
        range: disk_len,
        values: vec![total(0), total(PARTS.len() - 1)],
        ..Trial::constant("mclock, array", 0.0, vms(true), &PARTS)
    };
    vec![
        constant("sfqd", false, SHARED.map(Some)),
        constant("mclock", true, [Some(300.0), Some(250.0), None, None, None]),
        on_array,
    ]
}

/// Measured seconds in guests for each number of VMs: as above, with three VMs.
const GUEST_PARTS: [(usize, usize); 3] = [(10, 60), (70, 120), (130, 180)];

/// The same with three guests, of which the third has the weights of the three VMs without reservation, on the device of 1280 requests
/// per second. What the paper states of the end, for the third the sum.
pub(crate) fn guest_trials() -> Vec<Trial> {
    let trial = |scheduler, reserved: bool, last: [Option<f64>; 3]| {
        let vm = |number: usize| {
            let (name, reservation, weight) = VMS[number];
            let weight = if number < 2 { weight } else { VMS[2..].iter().map(|(.., weight)| weight).sum() };
            let vm = TrialVm { start: 60 * number as u64, ..TrialVm::new(name, weight, 16 << 10) };
            TrialVm { reservation: if reserved { reservation } else { 0 }, ..vm }
        };
        let vms: Vec<TrialVm> = (0..3).map(vm).collect();
        let mut values = Trial::all_values(&GUEST_PARTS, &vms, &[Quantity::Iops, Quantity::Latency]);
        real::print(&mut values, GUEST_PARTS.len() - 1, Quantity::Iops, &last);
        Trial { scheduler, values, in_guests: true, ..Trial::constant(scheduler, 1280.0, vms, &GUEST_PARTS) }
    };
    vec![trial("sfqd", false, [160.0, 160.0, 960.0].map(Some)), trial("mclock", true, [Some(300.0), Some(250.0), None])]
}
