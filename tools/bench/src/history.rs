//! `cargo xtask bench history`: the past of a large host on disk, in simulated time.
//!
//! 1,000 VMs with a volume and a NIC each are always busy, with other figures in each minute: the worst case, because intervals without
//! requests take no room. Their minutes of 35 days are written as the daemon writes them. CPU time is that of this process, as a part of the
//! simulated time; figures are made before it is taken. A query is `get history VM --minutes --since 7days` for a VM with both: the database is opened
//! as `sluice` does while the daemon does not run, and the reply is made as text.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sluice_api::list::{History, Step};
use sluice_api::request::Request;
use sluice_daemon::events::Writer;
use sluice_daemon::events::history::Keep;
use sluice_daemon::events::offline::Record;
use sluice_observe::interval::{BUCKETS, Interval, Minute};

use super::report::{Bound, Cell, Report, Table};
use super::stats::Samples;

const HOUR: u64 = 60;
const DAY: u64 = 24 * HOUR;
/// Days that are kept, and some more, for which the file must not grow.
const DAYS: u64 = 35;
/// Begin, in minutes since 1970.
const BEGIN: u64 = 20_000 * DAY;
const KEEP: Keep = Keep { minutes: Duration::from_hours(7 * 24), quarter_hours: Duration::from_hours(DAYS * 24) };
const GB: f64 = 1e9;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Number of VMs.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    vms: u64,
    /// Simulated days: more than 35 show that the file grows no more.
    #[arg(long, value_name = "N", default_value_t = DAYS)]
    days: u64,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    let (vms, days) = if quick { (10, 2) } else { (options.vms, options.days) };
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut writer = Writer::open(folder.path().to_owned());
    let (mut used, mut longest) = (Duration::ZERO, Duration::ZERO);
    let mut sizes = Vec::new();
    for day in 0..days {
        for minute in BEGIN + day * DAY..BEGIN + (day + 1) * DAY {
            let minutes = busy(vms, minute);
            let before = cpu();
            writer.keep(&minutes, &KEEP);
            let took = cpu() - before;
            (used, longest) = (used + took, longest.max(took));
        }
        sizes.push(bytes(folder.path())?);
        eprintln!("history: day {} of {days}, {:.2} GB", day + 1, sizes[sizes.len() - 1] / GB);
    }
    drop(writer);
    let query = query(folder.path(), vms, days)?;
    let percent = 100.0 * used.as_secs_f64() / (days * DAY * 60) as f64;
    let size = sizes[sizes.len() - 1] / GB;
    let mut report = Report::new("history");
    let title = format!("The past of {vms} VMs with a volume and a NIC each, after {days} days");
    let columns = ["GB on disk", "CPU [% of a core]", "longest write [ms of CPU]", "query of a week [ms]"];
    let mut table = Table::new(title, &columns);
    table.row(vec![
        Cell::Number(size, 2),
        Cell::Number(percent, 3),
        Cell::Number(longest.as_secs_f64() * 1000.0, 0),
        Cell::spread(&query, 1),
    ]);
    report.table(table);
    report.target("size on disk [GB]", Bound::AtMost(2.0), size);
    report.target("CPU [% of a core]", Bound::AtMost(1.0), percent);
    report.target("query of a week [ms]", Bound::AtMost(100.0), query.median());
    Ok(report)
}

/// CPU time of this process.
fn cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

fn bytes(folder: &std::path::Path) -> Result<f64, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    Ok(entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.len() as f64).sum())
}

/// A minute of busy VMs.
fn busy(vms: u64, minute: u64) -> Vec<Minute> {
    let object = |vm: u64, is_link: bool| {
        let mut random = minute.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (vm * 2 + u64::from(is_link));
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let requests = 50_000 + next(1_000_000);
        let interval = Interval {
            nanos: 60_000_000_000,
            broken_seconds: next(61),
            requests,
            normalised_64ths: requests * (64 + next(64)),
            bytes: requests * (4096 + next(8192)),
            failed: next(100),
            outstanding: next(4096) as f64 / 16.0,
            p50_nanos: 1 << (12 + next(12)),
            p99_nanos: 1 << (24 + next(6)),
            backlogged_percent: next(101) as u8,
            by_reservation_percent: next(101) as u8,
            wait: next(6) as u8,
            is_link,
            is_whole_vm: true,
            latency: [(); BUCKETS].map(|()| next(100_000)),
        };
        let (device, volume) = if is_link { ("uplink", "nic/eth0") } else { ("disk", "root") };
        Minute { device: device.to_owned(), vm: format!("vm{vm}"), volume: Some(volume.to_owned()), minute, interval }
    };
    (0..vms).flat_map(|vm| [object(vm, false), object(vm, true)]).collect()
}

/// Times of questions for a week of different VMs, in ms.
fn query(folder: &std::path::Path, vms: u64, days: u64) -> Result<Samples, String> {
    let (mut took, mut record) = (Samples::default(), Record::open(folder).map_err(|error| error.to_string())?);
    let until = (BEGIN + days * DAY) * 60;
    for number in 0..20 {
        let vm = format!("vm{}", number * vms / 20);
        let since = Some(until - 7 * DAY * 60);
        let request = Request::History { vm, volume: None, step: Some(Step::Minute), since, until: Some(until) };
        let began = Instant::now();
        let reply = record.answer(&request);
        took.push(began.elapsed().as_secs_f64() * 1000.0);
        let found = reply.read::<History>().ok().flatten().ok_or("the reply has another form")?;
        let expected = 2 * days.min(7) * DAY;
        let points: usize = found.history.iter().map(|device| device.minutes.len()).sum();
        if points as u64 != expected {
            return Err(format!("{points} points of {expected}"));
        }
        // Each question is the first one of its command.
        record = Record::open(folder).map_err(|error| error.to_string())?;
    }
    Ok(took)
}
