//! The disk model against measured drives: 10,000 requests of each with the measured service time, one at a time.
//!
//! Traces and seek curves are those with which DiskSim is validated (`data/disksim`, with their licence). Rotation,
//! zones, cylinders and capacity are those of the drives' manuals. The overhead is the time of the fastest reads, which
//! were served by the cache. Nothing else is fitted.

use std::path::Path;

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};
use sluice_sim::devices::hdd::{Hdd, HddSpec, SeekCurve};
use sluice_sim::devices::{Job, Model};
use sluice_sim::traces::{Measured, Row, measured};

struct Drive {
    name: &'static str,
    rpm: u32,
    sectors: u64,
    cylinders: f64,
    /// Sectors per track, outermost and innermost.
    tracks: (f64, f64),
    segments: u32,
}

const DRIVES: [Drive; 3] = [
    Drive {
        name: "atlas10k",
        rpm: 10_025,
        sectors: 17_938_986,
        cylinders: 10_042.0,
        tracks: (334.0, 229.0),
        segments: 10,
    },
    Drive {
        name: "barracuda",
        rpm: 7_200,
        sectors: 4_110_000,
        cylinders: 5_172.0,
        tracks: (186.0, 119.0),
        segments: 3,
    },
    Drive {
        name: "cheetah9LP",
        rpm: 10_045,
        sectors: 17_783_240,
        cylinders: 6_962.0,
        tracks: (254.0, 167.0),
        segments: 16,
    },
];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/disksim").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn trace(name: &str) -> Vec<Measured> {
    measured(read(&format!("{name}.trace")).as_bytes()).collect::<Result<_, _>>().unwrap()
}

fn spec(drive: &Drive, trace: &[Measured]) -> HddSpec {
    let curve = read(&format!("{}.seek", drive.name));
    let points = curve.lines().skip(1).filter_map(|line| line.split_once(','));
    let point = |(cylinders, ms): (&str, &str)| {
        let (cylinders, ms): (f64, f64) = (cylinders.trim().parse().unwrap(), ms.trim().parse().unwrap());
        (cylinders / drive.cylinders, ms * 1e-3)
    };
    let turn = 60.0 / f64::from(drive.rpm);
    let rate = |sectors: f64| sectors * 512.0 / turn;
    let fastest = trace.iter().map(|measured| measured.service).min().unwrap();
    HddSpec {
        capacity: drive.sectors * 512,
        rpm: drive.rpm,
        seek: SeekCurve::Table(points.map(point).collect()),
        rates: (rate(drive.tracks.0), rate(drive.tracks.1)),
        overhead: fastest,
        bus: 40e6,
        queue: 1,
        segments: drive.segments,
        segment_bytes: 128 << 10,
        write_cache: 0,
    }
}

fn percentile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * part) as usize]
}

#[test]
fn read_times_match_the_measurements() {
    for drive in &DRIVES {
        let trace = trace(drive.name);
        let mut disk = Hdd::new(spec(drive, &trace));
        let mut now = Instant::ZERO;
        let (mut modelled, mut measured) = (Vec::new(), Vec::new());
        for request in &trace {
            let Row { kind, offset, length, .. } = request.row;
            disk.submit(now, Job { slot: Slot(0), kind, offset, length });
            disk.settle(now);
            let over = disk.next().unwrap();
            disk.take(over).unwrap();
            if kind == Kind::Read {
                modelled.push(over.nanos_since(now) as f64 / 1e3);
                measured.push(request.service.as_nanos() as f64 / 1e3);
            }
            now = Instant::from_nanos(over.as_nanos() + request.gap.as_nanos() as u64);
        }
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        let (model_mean, disk_mean) = (mean(&modelled), mean(&measured));
        let (model_p95, disk_p95) = (percentile(&mut modelled, 0.95), percentile(&mut measured, 0.95));
        println!("{}: mean {model_mean:.0} us ({disk_mean:.0}), p95 {model_p95:.0} us ({disk_p95:.0})", drive.name);
        assert!((model_mean / disk_mean - 1.0).abs() < 0.10, "{}: mean", drive.name);
        assert!((model_p95 / disk_p95 - 1.0).abs() < 0.15, "{}: p95", drive.name);
    }
}
