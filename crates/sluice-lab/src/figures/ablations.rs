//! Each mechanism off and on: its effect alone.

use std::time::Duration;

use sluice_report::Table;
use sluice_sched::params::{ParamTable, Value};
use sluice_sched::policy::{Class as Kind, LatencyTarget};
use sluice_sched::{Bytes, CostModel, Instant, Policy};
use sluice_sim::devices::Model;
use sluice_sim::devices::link::{CompletesWhen, Link, LinkParams};
use sluice_sim::engine::{Placement, Simulation, Thread};
use sluice_sim::scenario::models;
use sluice_sim::workloads::{Address, DatagramParams, Datagrams, Mix, Open, Pattern, Workload};

use crate::band::BandPoint;
use crate::device::DeviceFile;
use crate::experiment::{self, Experiment};
use crate::figure::{Class, Figure, Finding, LabError, Paper, RowSpec};
use crate::setup::{Host, closed, mean_latency_ms, mean_rate, policy, random_reads, refused, run};

/// Start and end of the measurement in seconds.
const SECONDS: (usize, usize) = (5, 35);
/// The same if slices are corrected: after two windows of ten seconds. In a minute the VM of the smallest weight would
/// have too few of an aged drive's bursts for a stable result.
const SLICES: (usize, usize) = (20, 620);
/// Distance and size of the VMs' disks.
const SPAN: u64 = 16_000_000_000;

macro_rules! row {
    ($id:literal, $must:literal) => {
        RowSpec { id: $id, class: Class::Hardware, must: $must, paper: "not measured apart", note: "" }
    };
}

pub(in crate::figures) const FIGURE: Figure = Figure {
    id: "mechanisms",
    paper: Paper::Ablations,
    label: "Mechanisms",
    title: "Each mechanism off and on",
    setup: "One mechanism is switched off and on, with nothing else changed. mClock as in its product mode (A8: as published) with 32 \
            requests at the array of mclock-array.toml, batches with one request at the disk of two-tier-sas.toml, as Flubber; \
            MoTS with windows of ten seconds on the simulator's own flash drive of 8 GiB, on which everything has been written \
            three times; WRR on the link of netback-link.toml. Measured from 5 to 35 s, A6 and A7 after two windows, from 20 to \
            620 s, A8 from 15 s on. A disk of another kind gives other numbers.",
    device: "mclock-array",
    rows: &[
        row!("A1", "idle credit of mClock, 1 to 64: latency of a VM that comes in bursts beside a steady one"),
        row!("A2", "size normalisation of mClock: small requests for each large one, of two equal VMs"),
        row!("A3", "batching of mClock, 1 to 8: requests of two VMs that read in order, on one disk"),
        row!(
            "A4",
            "batch and delay of Flubber, interval factor 1 without a wait to 32 with one: requests of a VM that reads in order \
             beside one that reads anywhere"
        ),
        row!("A5", "background queue of Flubber: latency of a VM beside a backup that is its equal, or background"),
        row!("A6", "slices corrected by bandwidth (MoTS), 8 requests at the SSD: furthest from the weights 10:7:4:1"),
        row!("A7", "the same with 32 requests at the SSD, where slices overlap"),
        row!("A8", "tag adjustment of mClock, mode \"paper\": a VM beside an equal one that has come 15 s after it"),
        row!(
            "A9",
            "inactivity delay of WRR, 0 to 10 ms, turns held: a NIC of weight 1 beside one of 30 that uses a fifth of the link"
        ),
    ],
    run: measure,
};

/// A VM's policy, and its workload for a disk of this size.
type ExperimentVm<'a> = (Policy, &'a dyn Fn(u64) -> Box<dyn Workload>);

fn run_simulation(
    host: &Host,
    model: Box<dyn Model>,
    span: u64,
    vms: &[ExperimentVm<'_>],
) -> Result<Simulation, LabError> {
    run_until_second(SECONDS.1, host, model, span, vms)
}

fn run_until_second(
    seconds: usize,
    host: &Host,
    model: Box<dyn Model>,
    span: u64,
    vms: &[ExperimentVm<'_>],
) -> Result<Simulation, LabError> {
    let mut simulation = Simulation::new(host.gate()?, model, Duration::ZERO, Duration::from_secs(1));
    for (number, (policy, make)) in vms.iter().enumerate() {
        let vm = simulation.add_vm_at(Placement::Pinned(0), *policy).map_err(refused)?;
        let thread = Thread::new(make(span)).at(number as u64 * span).synchronous();
        simulation.add_thread(vm, thread).map_err(refused)?;
    }
    run(&mut simulation, seconds as u64, host.scheduler)?;
    Ok(simulation)
}

fn rate(simulation: &Simulation, vm: usize) -> f64 {
    mean_rate(simulation, vm, SECONDS.0, SECONDS.1)
}

fn latency(simulation: &Simulation, vm: usize) -> f64 {
    mean_latency_ms(simulation, vm, SECONDS.0, SECONDS.1)
}

/// Megabytes per second.
fn megabytes(simulation: &Simulation, vm: usize, (from, to): (usize, usize)) -> f64 {
    let windows = simulation.record(vm).series().iter().take(to).skip(from);
    windows.map(|window| window.bytes).sum::<u64>() as f64 / 1e6 / (to - from) as f64
}

fn array(point: &BandPoint) -> Result<Box<dyn Model>, LabError> {
    Ok(DeviceFile::load("mclock-array")?.model(point))
}

fn disk(point: &BandPoint) -> Result<Box<dyn Model>, LabError> {
    Ok(DeviceFile::load("two-tier-sas")?.model(point))
}

fn in_order(outstanding: u32, length: u32, name: &str, span: u64, point: &BandPoint) -> Box<dyn Workload> {
    closed(outstanding, Mix { reads: 1.0, length, address: Address::sequential(0, span) }, point, name)
}

/// Latency of a bursty VM in milliseconds.
fn idle_credit(credit: u32, point: &BandPoint) -> Result<f64, LabError> {
    let bursty = |span| -> Box<dyn Workload> {
        let pattern = Pattern::Bursts(128, Duration::from_millis(400));
        let mix = Mix { reads: 1.0, length: 4096, address: Address::mixed(0, span, 0.8) };
        Box::new(Open::new(pattern, mix, Instant::ZERO, point.stream("bursty")))
    };
    let steady = |span| closed(32, random_reads(16 << 10, span), point, "steady");
    let policy = Policy { idle_credit: credit, ..policy(0, 0, 100) };
    let host = Host::new("mclock", 32);
    Ok(latency(&run_simulation(&host, array(point)?, SPAN, &[(policy, &bursty), (policy, &steady)])?, 0))
}

/// Number of small requests per large one, of two equal VMs.
fn normalisation(cost: CostModel, point: &BandPoint) -> Result<f64, LabError> {
    let [small, large] = [4 << 10, 256 << 10]
        .map(|length| move |span| closed(32, random_reads(length, span), point, &format!("{length}")));
    let host = Host::new("mclock", 32).cost(cost);
    let all = run_simulation(&host, array(point)?, SPAN, &[(policy(0, 0, 100), &small), (policy(0, 0, 100), &large)])?;
    Ok(rate(&all, 0) / rate(&all, 1))
}

/// Requests per second of two sequential readers.
fn batching(most: i64, point: &BandPoint) -> Result<f64, LabError> {
    let [one, two] = ["one", "two"].map(|name| move |span| in_order(16, 16 << 10, name, span, point));
    let host = Host::new("mclock", 1).rotational().number("batch", most);
    let all = run_simulation(&host, disk(point)?, SPAN, &[(policy(0, 0, 100), &one), (policy(0, 0, 100), &two)])?;
    Ok(rate(&all, 0) + rate(&all, 1))
}

/// A policy for Flubber: bandwidth and latency target.
fn promised(iops: u64, millis: u64, class: Kind) -> Policy {
    let latency = Some(LatencyTarget { p99: Duration::from_millis(millis), reads_only: false });
    Policy { latency, class, ..policy(iops, 0, 100) }
}

/// Requests per second of a sequential reader next to a random one.
fn batch_and_delay(on: bool, point: &BandPoint) -> Result<f64, LabError> {
    let ordered = |span| in_order(16, 16 << 10, "in order", span, point);
    let anywhere = |span| closed(8, random_reads(16 << 10, span), point, "anywhere");
    let host = Host::new("flubber", 1).rotational();
    let host = if on { host } else { host.number("beta", 1).text("max_wait", "0ms") };
    let vms: [ExperimentVm<'_>; 2] =
        [(promised(1000, 80, Kind::Foreground), &ordered), (promised(120, 60, Kind::Foreground), &anywhere)];
    Ok(rate(&run_simulation(&host, disk(point)?, SPAN, &vms)?, 0))
}

/// Latency of a VM next to a backup, in milliseconds.
fn background(class: Kind, point: &BandPoint) -> Result<f64, LabError> {
    let anywhere = |span| closed(8, random_reads(16 << 10, span), point, "anywhere");
    let backup = |span| in_order(4, 44 << 10, "backup", span, point);
    let host = Host::new("flubber", 1).rotational();
    let vms: [ExperimentVm<'_>; 2] =
        [(promised(100, 80, Kind::Foreground), &anywhere), (promised(100, 80, class), &backup)];
    Ok(latency(&run_simulation(&host, disk(point)?, SPAN, &vms)?, 0))
}

/// The largest deviation of a VM's part of the bandwidth from its part of the weights, in percent of the latter.
fn time_slices(scheduler: &'static str, depth: u32, point: &BandPoint) -> Result<f64, LabError> {
    let weights = [10, 7, 4, 1];
    let kind = models::find("ssd").expect("there is such a model");
    let params: ParamTable = [("state".to_owned(), Value::Text("aged".to_owned()))].into();
    let of_run = models::BuildContext { seed: point.seed(), name: "device".to_owned() };
    let span = kind.derive(&params).map_err(refused)?.span / 4;
    let model = kind.build(&params, &of_run).map_err(refused)?;
    let mixed = |span| {
        let mix = Mix { reads: 0.5, length: 16 << 10, address: Address::random(0, span) };
        closed(64, mix, point, "mixed")
    };
    let vms: Vec<ExperimentVm<'_>> =
        weights.iter().map(|weight| (policy(0, 0, weight * 100), &mixed as &dyn Fn(u64) -> _)).collect();
    let host = Host::new(scheduler, depth).merging(Bytes::kib(256));
    let all = run_until_second(SLICES.1, &host, model, span, &vms)?;
    let got: Vec<f64> = (0..4).map(|vm| megabytes(&all, vm, SLICES)).collect();
    let (sum, due) = (got.iter().sum::<f64>(), f64::from(weights.iter().sum::<u32>()));
    let off = got.iter().zip(weights).map(|(got, weight)| 100.0 * (got / sum / (f64::from(weight) / due) - 1.0).abs());
    Ok(off.fold(0.0, f64::max))
}

/// Requests per second of a VM after an equal one has started.
fn tag_adjustment(on: bool, point: &BandPoint) -> Result<f64, LabError> {
    let makes = ["first", "second"].map(|name| move |span| closed(32, random_reads(16 << 10, span), point, name));
    let starts = [0, 15].into_iter().zip(&makes);
    let vms = starts.map(|(start, make)| experiment::ExperimentVm { policy: policy(0, 0, 100), start, make });
    let experiment = Experiment { vms: vms.collect(), changes: Vec::new(), span: SPAN, seconds: SECONDS.1 as u64 };
    let host = Host::new("mclock-paper", 32).flag("tag_adjustment", on);
    Ok(mean_rate(&experiment.run_simulation(host.gate()?, array(point)?, host.scheduler)?, 0, 15, SECONDS.1))
}

/// Megabits per second of a light NIC next to a heavy one with short pauses and little to send.
fn inactivity_delay(delay: &str, point: &BandPoint) -> Result<f64, LabError> {
    let link = DeviceFile::load("netback-link")?.link(point)?;
    let model = Box::new(Link::new(LinkParams { completes_when: CompletesWhen::Sent, ..link.params() }));
    let rounds = Host::new("wrr", 16).text("rounds", "published").text("unit", "packets");
    let host = rounds.flag("hold", true).text("delay", delay);
    let mut simulation = Simulation::new(host.gate()?, model, Duration::ZERO, Duration::from_secs(1));
    for (name, weight, part) in [("heavy", 30, 5), ("light", 1, 1)] {
        let bits_per_second = link.bits_per_second / part;
        let params = DatagramParams { payload: 1472, bits_per_second, jitter: link.jitter, buffer: link.buffer };
        let vm = simulation.add_vm_at(Placement::Pinned(0), Policy::weighted(weight)).map_err(refused)?;
        let flow = Datagrams::new(params, Instant::ZERO, point.stream(name));
        simulation.add_thread(vm, Thread::new(Box::new(flow))).map_err(refused)?;
    }
    run(&mut simulation, SECONDS.1 as u64, host.scheduler)?;
    Ok(8.0 * megabytes(&simulation, 1, SECONDS))
}

/// Id, mechanism, metric, and results without and with the mechanism.
type Ablation = (&'static str, &'static str, &'static str, f64, f64);

fn ablations(point: &BandPoint) -> Result<[Ablation; 9], LabError> {
    let equal = CostModel::per_request();
    Ok([
        ("A1", "idle credit 64", "latency of the bursty VM [ms]", idle_credit(1, point)?, idle_credit(64, point)?),
        (
            "A2",
            "size normalisation",
            "requests of 4 KiB for each of 256 KiB",
            normalisation(equal, point)?,
            normalisation(CostModel::paper(), point)?,
        ),
        ("A3", "batches of 8", "requests of both [IOPS]", batching(1, point)?, batching(8, point)?),
        (
            "A4",
            "batch and delay",
            "requests in order [IOPS]",
            batch_and_delay(false, point)?,
            batch_and_delay(true, point)?,
        ),
        (
            "A5",
            "background queue",
            "latency beside a backup [ms]",
            background(Kind::Foreground, point)?,
            background(Kind::Background, point)?,
        ),
        (
            "A6",
            "MoTS, 8 at the SSD",
            "furthest from the weights [%]",
            time_slices("cfq", 8, point)?,
            time_slices("mcfq", 8, point)?,
        ),
        (
            "A7",
            "MoTS, 32 at the SSD",
            "furthest from the weights [%]",
            time_slices("cfq", 32, point)?,
            time_slices("mcfq", 32, point)?,
        ),
        ("A8", "tag adjustment", "the first VM [IOPS]", tag_adjustment(false, point)?, tag_adjustment(true, point)?),
        (
            "A9",
            "inactivity delay",
            "the light NIC [Mb/s]",
            inactivity_delay("0ms", point)?,
            inactivity_delay("10ms", point)?,
        ),
    ])
}

fn measure(point: &BandPoint) -> Result<Finding, LabError> {
    let mut finding = Finding::default();
    let mut table = Table::new("Mechanisms", &["row", "mechanism", "metric", "off", "on", "change"]);
    for (id, mechanism, metric, off, on) in ablations(point)? {
        let change = format!("{:+.0} %", 100.0 * (on / off - 1.0));
        finding.show(id, format!("{metric}: {off:.2} off, {on:.2} on ({change})"));
        table.row([id, mechanism, metric].map(str::to_owned).into_iter().chain([
            format!("{off:.2}"),
            format!("{on:.2}"),
            change,
        ]));
    }
    finding.tables.push(table);
    Ok(finding)
}
