//! `cargo xtask bench sim`: the speed of the simulator with the scheduler, on one core.
//!
//! It measures completed requests per second of the thread's CPU time, after a warm-up of half as many requests.
//! noop next to mClock shows the scheduler's part. Memory of each VM of a simulation is counted by the allocator at the end of its
//! rounds. That of an SSD of 400 GB for each of its pages is address space, because a drive maps its tables itself. A complete run also
//! ages such a drive.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sluice_sched::params::Value;
use sluice_sched::policy::Field;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{Gate, GateSettings, Instant, Policy};
use sluice_sim::checks::check;
use sluice_sim::devices::Model;
use sluice_sim::devices::array::{Array, Layout};
use sluice_sim::devices::hdd::{Hdd, HddSpec};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::ssd::{Geometry, Ssd, SsdSpec};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::scenario::models;
use sluice_sim::workloads::{Address, Closed, Mix};
use stats_alloc::Region;

use super::core::{ALLOCATOR, grown};
use super::report::{Bound, Cell, Report, Table};
use super::stats::Samples;

/// Maximum memory of a flash drive: for each page of its flash, and in addition.
const PAGE_BYTES: f64 = 10.0;
const DRIVE_BYTES: f64 = (64 << 20) as f64;
/// Maximum time to age a drive of 400 GB.
const AGEING_SECONDS: f64 = 20.0;
/// Maximum ratio of the cost of a request with 10,000 VMs to that with ten.
const MANY_VMS: f64 = 3.0;
/// Minimum number of measured requests of each VM.
const REQUESTS_PER_VM: u64 = 40;
/// Number of outstanding requests at the device.
const DEPTH: u32 = 32;

/// A simulation: name, device, number of VMs, and promised requests per second.
struct Case {
    name: &'static str,
    device: fn() -> (Box<dyn Model>, u64),
    reads: f64,
    vms: u32,
    wanted: Option<f64>,
}

const CASES: &[Case] = &[
    Case { name: "constant rate, 10 VMs", device: constant, reads: 1.0, vms: 10, wanted: Some(5e6) },
    Case { name: "constant rate, 10,000 VMs", device: constant, reads: 1.0, vms: 10_000, wanted: None },
    Case { name: "one hard disk, sorted, 10 VMs", device: disk, reads: 1.0, vms: 10, wanted: Some(2e6) },
    Case { name: "RAID-0 of 10, 10 VMs", device: array, reads: 1.0, vms: 10, wanted: Some(1e6) },
    Case { name: "flash drive that cleans up, 10 VMs", device: flash, reads: 0.0, vms: 10, wanted: Some(1e6) },
];

fn constant() -> (Box<dyn Model>, u64) {
    let time = ServiceTime::Fixed(Duration::from_micros(10));
    (Box::new(Servers::new(1, time, stream(1, "service"))), 1 << 40)
}

fn disk() -> (Box<dyn Model>, u64) {
    let spec = HddSpec { queue: DEPTH, ..HddSpec::sata_7200_1tb() };
    let size = spec.capacity;
    (Box::new(Hdd::new(spec)), size)
}

fn array() -> (Box<dyn Model>, u64) {
    let spec = HddSpec { queue: DEPTH, ..HddSpec::fc_15k_146gb() };
    let size = spec.capacity * 10;
    (Box::new(Array::new(Layout::Raid0, 10, 64 << 10, &spec)), size)
}

fn flash() -> (Box<dyn Model>, u64) {
    let geometry = Geometry {
        channels: 8,
        dies: 1,
        planes: 2,
        blocks: 1024,
        pages: 256,
        page_bytes: 8192,
        spare: 0.07,
        reserve: 3,
    };
    let spec = SsdSpec {
        geometry,
        read: Duration::from_micros(75),
        program: Duration::from_micros(750),
        erase: Duration::from_micros(3800),
        channel: 333e6,
        bus: 550e6,
        overhead: Duration::from_micros(10),
        buffer: 32 << 20,
    };
    let mut ssd = Ssd::new(spec).expect("the geometry has spare blocks enough");
    ssd.age(1.0, &mut stream(1, "age"));
    (Box::new(ssd), geometry.host_pages() * 8192)
}

fn build(case: &Case, scheduler: &str) -> Result<Simulation, String> {
    let descriptor = sluice_papers::find(scheduler).ok_or_else(|| format!("No scheduler {scheduler}"))?;
    let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
    let scheduler = descriptor.build(&info, &Default::default()).map_err(|error| error.to_string())?;
    let gate = Gate::new(scheduler, GateSettings { depth: DEPTH, merging: false, ..GateSettings::default() });
    let (device, size) = (case.device)();
    let mut simulation = Simulation::new(gate, device, Duration::ZERO, Duration::from_secs(3600));
    let enforced = descriptor.enforces(Field::Reservation);
    let outstanding = (4 * DEPTH / case.vms).max(2);
    for vm in 0..case.vms {
        let mut policy = Policy::default();
        if enforced {
            policy.weight = Some(Weight::new(100 + vm % 5));
            policy.reservation.iops = Some(Iops::per_second(1));
        }
        let mix = Mix { reads: case.reads, length: 8192, address: Address::random(0, size) };
        let random = stream(1, &format!("vm{vm}"));
        let workload = Closed::new(outstanding, Duration::ZERO, mix, Instant::ZERO, random);
        simulation.add_vm(policy, 0, Box::new(workload)).map_err(|error| error.to_string())?;
    }
    Ok(simulation)
}

/// Returns the CPU time of this thread, in seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn completed(simulation: &Simulation) -> u64 {
    (0..simulation.vms()).map(|vm| simulation.record(vm).completed).sum()
}

/// Runs until `requests` more requests have completed. Returns requests per second of CPU time.
fn measure(simulation: &mut Simulation, requests: u64) -> f64 {
    let before = completed(simulation);
    let (begin, mut step) = (cpu(), Duration::from_millis(100));
    let mut done = 0;
    while done < requests {
        simulation.run_until(Instant::from_nanos(simulation.now().as_nanos() + step.as_nanos() as u64));
        done = completed(simulation) - before;
        let rate = done as f64 / requests as f64;
        // Checking thousands of records after each step would dominate the measurement.
        if rate < 0.05 {
            step *= 4;
        }
    }
    done as f64 / (cpu() - begin)
}

/// Returns the address space of this process in bytes.
fn address_space() -> Result<f64, String> {
    let statm =
        fs::read_to_string("/proc/self/statm").map_err(|error| format!("Cannot read /proc/self/statm: {error}"))?;
    let pages = statm.split(' ').next().and_then(|pages| pages.parse::<f64>().ok());
    Ok(pages.ok_or("/proc/self/statm has no size")? * rustix::param::page_size() as f64)
}

/// Measures the memory of an SSD of 400 GB for each page of its flash.
fn flash_memory(report: &mut Report) -> Result<(), String> {
    let overrides = [("state".to_owned(), Value::Text("clean".to_owned()))].into();
    let before = address_space()?;
    let drive = models::find("ssd-sata-400-consumer").ok_or("No such device")?;
    let span = drive.derive(&overrides).map_err(|error| error.to_string())?.span;
    let device = drive.build(&overrides, &models::BuildContext::default()).map_err(|error| error.to_string())?;
    let bytes = address_space()? - before;
    drop(device);
    let pages = span as f64 / 8192.0 * 1.07;
    let mut table = Table::new("Memory of an SSD of 400 GB", &["pages of flash", "bytes", "B per page"]);
    table.row(vec![Cell::Number(pages, 0), Cell::Number(bytes, 0), Cell::Number(bytes / pages, 2)]);
    report.table(table);
    report.target("B of an SSD, 10 for each page and 64 MiB", Bound::AtMost(PAGE_BYTES * pages + DRIVE_BYTES), bytes);
    Ok(())
}

/// Measures how long the same drive takes to be aged as its preset says.
fn ageing(report: &mut Report, rounds: usize) -> Result<(), String> {
    let drive = models::find("ssd-sata-400-consumer").ok_or("No such device")?;
    let mut seconds = Samples::default();
    for round in 0..rounds {
        eprintln!("sim: ageing, round {} of {rounds}", round + 1);
        let begin = cpu();
        drive.build(&Default::default(), &models::BuildContext::default()).map_err(|error| error.to_string())?;
        seconds.push(cpu() - begin);
    }
    let mut table = Table::new("An aged SSD of 400 GB", &["CPU time until it is ready [s]"]);
    table.row(vec![Cell::spread(&seconds, 1)]);
    report.table(table);
    report.target("s until an aged SSD of 400 GB is ready", Bound::AtMost(AGEING_SECONDS), seconds.median());
    Ok(())
}

pub(super) fn run(quick: bool) -> Result<Report, String> {
    let (rounds, requests) = if quick { (1, 50_000) } else { (5, 2_000_000) };
    let mut report = Report::new("sim");
    let columns = &["simulation", "mclock", "noop", "mclock [ns per request]", "mclock / noop", "B per VM, both"];
    let mut table = Table::new("Requests per second of CPU time", columns);
    let mut medians = Vec::new();
    for case in CASES {
        // In its first requests a VM touches its memory for the first time, which is not what a request costs.
        let requests = requests.max(REQUESTS_PER_VM * u64::from(case.vms));
        let (mut rates, mut plain) = (Samples::default(), Samples::default());
        let region = Region::new(ALLOCATOR);
        let mut subjects = [build(case, "mclock")?, build(case, "noop")?];
        for simulation in &mut subjects {
            measure(simulation, requests / 2);
        }
        for round in 0..rounds {
            eprintln!("sim: {}, round {} of {rounds}", case.name, round + 1);
            rates.push(measure(&mut subjects[0], requests));
            plain.push(measure(&mut subjects[1], requests));
        }
        for simulation in &subjects {
            if let Some(broken) = check(simulation).first() {
                return Err(format!("{}: {broken}", case.name));
            }
        }
        table.row(vec![
            Cell::text(case.name),
            Cell::spread(&rates, 0),
            Cell::spread(&plain, 0),
            Cell::Number(1e9 / rates.median(), 0),
            Cell::spread(&rates.ratio(&plain), 2),
            Cell::Number(grown(&region) / f64::from(2 * case.vms), 0),
        ]);
        medians.push(rates.median());
        if let Some(wanted) = case.wanted {
            report.target(format!("requests/s, {}", case.name), Bound::AtLeast(wanted), rates.median());
        }
    }
    report.table(table);
    // The first two cases differ only in the number of VMs.
    report.target("cost of a request, 10,000 VMs / 10", Bound::AtMost(MANY_VMS), medians[0] / medians[1]);
    flash_memory(&mut report)?;
    if !quick {
        ageing(&mut report, 3)?;
    }
    report.note("B per VM: with the device, which is what counts in cases of few");
    report.note(format!("{rounds} rounds of {requests} requests each, mclock and noop in turns; depth {DEPTH}"));
    Ok(report)
}
