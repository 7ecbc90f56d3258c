//! Calibration of iocost's parameters, the six runs as on a host, on modelled devices: a device made of the parameters
//! returns them, and those of a disk and a flash drive match their data sheets.
//!
//! The runs are those of resctl-demo's generator: 128 MiB sequentially, one at a time; 4 KiB sequentially and at
//! random, 256 outstanding; each for reads and writes.

use std::time::Duration;

use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{Bytes, Gate, GateSettings, Instant, Policy, schedulers};
use sluice_sim::checks::check;
use sluice_sim::devices::Model;
use sluice_sim::devices::linear::{Coefficients, Linear};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::scenario::{models, written};
use sluice_sim::workloads::{Address, Closed, Mix};

const LARGE: u32 = 128 << 20;

/// Requests and bytes per second of one run.
fn run(model: Box<dyn Model>, mix: Mix, outstanding: u32, seconds: u64) -> (f64, f64) {
    let noop = schedulers::find("noop").unwrap();
    let scheduler = noop.build(&DeviceInfo::default(), &ParamTable::new()).unwrap();
    let transfer_max = Bytes(u64::from(LARGE));
    let settings = GateSettings { depth: outstanding, transfer_max, merging: false, ..GateSettings::default() };
    let warm = Duration::from_secs(seconds / 10);
    let mut simulation = Simulation::new(Gate::new(scheduler, settings), model, warm, Duration::from_secs(seconds));
    let load = Closed::new(outstanding, Duration::ZERO, mix, Instant::ZERO, stream(1, "load"));
    simulation.add_vm(Policy::default(), 0, Box::new(load)).unwrap();
    simulation.run_until(Instant::from_millis(1000 * seconds));
    assert_eq!(check(&simulation), []);
    let (record, time) = (simulation.record(0), (seconds - seconds / 10) as f64);
    (record.measured as f64 / time, record.bytes as f64 / time)
}

/// Parameters of a device of `span` bytes, which is new for each run of `seconds` seconds.
fn calibrate(make: impl Fn() -> Box<dyn Model>, span: u64, seconds: u64) -> Coefficients {
    let one = |reads: f64| {
        let in_order = Mix { reads, length: 4096, address: Address::sequential(0, span) };
        let anywhere = Mix { reads, length: 4096, address: Address::random(0, span) };
        let large = Mix { reads, length: LARGE, address: Address::sequential(0, span) };
        let (_, bytes) = run(make(), large, 1, seconds);
        [bytes, run(make(), in_order, 256, seconds).0, run(make(), anywhere, 256, seconds).0]
            .map(|rate| rate.round() as u64)
    };
    let ([rbps, rseqiops, rrandiops], [wbps, wseqiops, wrandiops]) = (one(1.0), one(0.0));
    Coefficients { rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops }
}

fn numbers(of: &Coefficients) -> [u64; 6] {
    [of.rbps, of.rseqiops, of.rrandiops, of.wbps, of.wseqiops, of.wrandiops]
}

fn close(got: &Coefficients, wanted: &Coefficients, off: f64) {
    for (got_, wanted_) in numbers(got).into_iter().zip(numbers(wanted)) {
        assert!((got_ as f64 / wanted_ as f64 - 1.0).abs() <= off, "{got}\n{wanted}");
    }
}

#[test]
fn calibration_returns_the_parameters_of_a_linear_device() {
    for numbers in [Coefficients::HDD, Coefficients::SSD_QD1, Coefficients::SSD] {
        let measured = calibrate(|| Box::new(Linear::new(&numbers)), 1 << 40, 30);
        // A second has few requests of 128 MiB, and each has its base cost in addition to its pages.
        close(&measured, &numbers, 0.05);
        // The result is written as the kernel writes it, and a device made of it measures the same.
        let line = measured.to_string().parse().unwrap();
        close(&calibrate(|| Box::new(Linear::new(&line)), 1 << 40, 30), &measured, 0.05);
    }
}

fn of_model(name: &str, params: &[(&str, &str)], seconds: u64) -> Coefficients {
    let params: ParamTable = params.iter().map(|(name, value)| ((*name).to_owned(), written(value))).collect();
    let (known, context) = (models::find(name).unwrap(), models::BuildContext::default());
    let span = known.derive(&params).unwrap().span;
    calibrate(|| known.build(&params, &context).unwrap(), span, seconds)
}

#[test]
fn calibration_of_a_disk_matches_its_data_sheet() {
    let disk = of_model("sata-7200-1tb", &[("queue", "32")], 60);
    // Sequential requests start at the outermost zone, 125 MB/s.
    assert!((118_000_000..=125_000_000).contains(&disk.rbps) && disk.wbps <= disk.rbps, "{disk}");
    // 175 random requests, of which the disk sorts 32.
    assert!((160..=190).contains(&disk.rrandiops) && (150..=190).contains(&disk.wrandiops), "{disk}");
    // Sequential reads from its cache: 200 us per command, and 14 us for the interface. Without a write cache, a write
    // waits for the platter at 120 revolutions per second.
    assert!(disk.rseqiops.abs_diff(4681) < 50 && (120..=480).contains(&disk.wseqiops), "{disk}");
}

#[test]
fn calibration_of_a_flash_drive_matches_its_geometry() {
    let small =
        [("blocks", "800"), ("page_size", "\"4KiB\""), ("pages", "64"), ("state", "\"aged\""), ("aged_by", "0.0")];
    let params = [&[("dies", "2")], &small[..]].concat();
    let drive = of_model("ssd", &params, 2);
    // 16 planes that read in 75 us and program in 750 us; the bus transfers 134,277 pages per second.
    assert!((120_000..=134_277).contains(&drive.rseqiops), "{drive}");
    // A large request is read from the flash first, at 874 MB/s, and then transferred at 550 MB/s.
    assert!((300_000_000..=550_000_000).contains(&drive.rbps) && drive.wbps <= 87_381_334, "{drive}");
    assert!(drive.wrandiops <= 21_333 && drive.wseqiops <= 21_333 && drive.wrandiops <= drive.wseqiops, "{drive}");
}
