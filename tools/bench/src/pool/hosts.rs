//! Four daemons stand for four hosts before one throttle of 2,000 requests per second. Each row runs with the exchange and beside it
//! without (`depth` alone), and states the total, so that no promise is kept by wasting the storage.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Options;
use super::bed::{Bed, Storage};
use super::load::{Outcome, Vm};
use crate::report::{Bound, Cell, Report, Table};
use crate::stats::Samples;

/// Requests per second of the storage.
const IOPS: u32 = 2000;
const HOSTS: u32 = 4;
const LATENCY_MS: f64 = 8.0;
/// Seconds at the beginning that do not count, and seconds after an event that are counted apart.
const BEGIN: usize = 3;
const APART: usize = 5;
/// Windows that overlap this time after a jump of the VM are counted apart: three periods.
const AFTER_JUMP: f64 = 1.5;
/// From this time after a jump of any VM on the time at the storage counts, in seconds.
const SETTLED: f64 = 4.0;

/// What happens in the middle of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happens {
    Nothing,
    /// The daemon of the last host is killed.
    HostDies,
    /// The meeting place does not respond for a third of the run, at most for 60 s.
    PlaceAway,
}

/// A row.
struct Row {
    name: &'static str,
    vms: Vms,
    storage: Storage,
    /// Stated capacity.
    capacity: u32,
    happens: Happens,
    /// Most seconds that may be short, in percent.
    short_max: f64,
}

/// Which VMs a row has.
#[derive(Debug, Clone, Copy)]
enum Vms {
    /// One that reserves 800 with 16 outstanding, and three with 32 of this size.
    Busy(&'static str),
    /// Each host has three, which reserve 300, 100 and 0. Each jumps every 5 +- 2 s between none, a quarter and all of its outstanding
    /// requests.
    Jump,
    /// A light one on each host, and from 10 s on 32 outstanding of another one.
    Flood,
}

const ROWS: [Row; 9] = [
    Row::new("3 busy hosts", Vms::Busy("8k"), Happens::Nothing),
    Row { storage: Storage::InBatches, ..Row::new("storage that serves batches", Vms::Busy("8k"), Happens::Nothing) },
    Row::new("12 VMs that jump", Vms::Jump, Happens::Nothing),
    Row::new("light load, then a flood", Vms::Flood, Happens::Nothing),
    Row::new("requests of 64 KiB", Vms::Busy("64k"), Happens::Nothing),
    Row::new("requests of 256 KiB", Vms::Busy("256k"), Happens::Nothing),
    Row {
        capacity: IOPS * 13 / 10,
        short_max: 5.0,
        ..Row::new("capacity 30 % too high", Vms::Busy("8k"), Happens::Nothing)
    },
    Row::new("a host is killed", Vms::Busy("8k"), Happens::HostDies),
    Row::new("the meeting place is away", Vms::Busy("8k"), Happens::PlaceAway),
];

impl Row {
    const fn new(name: &'static str, vms: Vms, happens: Happens) -> Row {
        Row { name, vms, storage: Storage::InOrder, capacity: IOPS, happens, short_max: 1.0 }
    }
}

impl Vms {
    fn list(self, seconds: usize, seed: u64) -> Vec<Vm> {
        match self {
            Vms::Busy(size) => {
                let others = (2..=HOSTS).map(|host| Vm { size, ..Vm::new(host, 0, 32) });
                [Vm::new(1, 800, 16)].into_iter().chain(others).collect()
            }
            Vms::Jump => {
                let of_host =
                    |host| [(300, 20), (100, 8), (0, 32)].map(|(reserved, depth)| Vm::new(host, reserved, depth));
                let mut vms: Vec<Vm> = (1..=HOSTS).flat_map(of_host).collect();
                let mut random = Random(seed);
                vms.iter_mut().for_each(|vm| vm.levels = random.levels(seconds));
                vms
            }
            Vms::Flood => {
                let flood = |host| Vm { levels: vec![(10, 100)], ..Vm::new(host, if host == 1 { 800 } else { 0 }, 32) };
                let light = |host| Vm { think_us: 10_000, ..Vm::new(host, 0, 1) };
                (1..=HOSTS).map(flood).chain((1..=HOSTS).map(light)).collect()
            }
        }
    }
}

/// Numbers from a seed, by a linear congruence.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn levels(&mut self, seconds: usize) -> Vec<(usize, u32)> {
        let (mut at, mut levels) = (0, Vec::<(usize, u32)>::new());
        while at < seconds {
            let others: Vec<u32> =
                [0, 25, 100].into_iter().filter(|level| levels.last().is_none_or(|(_, last)| last != level)).collect();
            levels.push((at, others[self.below(others.len())]));
            at += 3 + self.below(5);
        }
        levels
    }
}

/// What all runs of a row gave, with the exchange or without.
#[derive(Default)]
struct Counts {
    /// Windows of VMs that reserve: short ones and all.
    windows: [usize; 2],
    /// The same soon after the VM's own jump, or after what happens.
    apart: [usize; 2],
    /// Sums of the rates of the first VM and of all VMs, and their number of seconds.
    own: f64,
    /// p99 of the first VM in ms, of each run.
    p99: Samples,
    all: f64,
    seconds: usize,
    /// Errors of VMs whose hosts live.
    errors: usize,
    /// Seconds from a jump until a VM gets 90 % of its reservation.
    reached: Samples,
    /// Times at the storage in ms, while it has settled, and the largest one before.
    settled: Samples,
    peak: f64,
    /// Whether a daemon said that the pool gives less than its capacity.
    has_told: bool,
}

/// A run: what the VMs got, and times at the storage in ms, with their second.
struct Run {
    outcome: Outcome,
    device: Vec<(f64, f64)>,
    has_told: bool,
}

pub(super) fn measure(options: &Options, quick: bool, report: &mut Report) -> Result<(), String> {
    let columns = [
        "row",
        "exchange",
        "short [%]",
        "of windows",
        "short apart",
        "of these",
        "first VM",
        "its p99 [ms]",
        "all",
        "device [ms]",
        "its peak",
        "until due [s]",
        "errors",
    ];
    let title = format!("{HOSTS} hosts before {IOPS} iops; seconds below 95 % of a reservation are short");
    let mut table = Table::new(title, &columns);
    let can_run =
        |row: &&Row| options.ceph.is_none() || row.storage == Storage::InOrder && row.happens == Happens::Nothing;
    for row in ROWS.iter().filter(|row| row.name.contains(&options.only)).filter(can_run) {
        let (rounds, seconds) = if quick { (1, 15) } else { (options.rounds, options.seconds) };
        let mut measured = [Counts::default(), Counts::default()];
        for round in 0..rounds {
            let vms = row.vms.list(seconds, 1 + round as u64);
            for (is_pool, counts) in [true, false].into_iter().zip(&mut measured) {
                let beside = if is_pool { "with" } else { "without" };
                eprintln!("pool: {}, round {} of {rounds}, {beside}", row.name, round + 1);
                let bed = match &options.ceph {
                    Some(cluster) => Bed::on_ceph(cluster, vms.len())?,
                    None => Bed::new(row.storage, IOPS, vms.len())?,
                };
                let run = row.run(bed, &vms, is_pool, seconds)?;
                counts.add(&run, row, &vms, seconds, is_pool);
            }
        }
        for (name, counts) in ["yes", "no"].into_iter().zip(&measured) {
            table.row(counts.cells(row.name, name));
        }
        match &options.ceph {
            Some(_) => row.targets_on_ceph(&measured, report),
            None => row.targets(&measured, report),
        }
    }
    report.table(table);
    Ok(())
}

impl Row {
    fn run(&self, mut bed: Bed, vms: &[Vm], is_pool: bool, seconds: usize) -> Result<Run, String> {
        let place = if is_pool { Some(bed.make_place(HOSTS, self.capacity)?) } else { None };
        let storage = bed.storage();
        for host in 1..=HOSTS {
            let mut device = format!("{}capacity = \"{} iops\"\n", bed.device(), self.capacity);
            if let Some(place) = &place {
                device +=
                    &format!("latency = \"{LATENCY_MS}ms\"\n[device.vms.pool]\nmeeting = \"{}\"\n", place.display());
                device += &format!("host = {host}\n");
            }
            bed.start(&bed.host_file(host, &device, vms, &storage), vms)?;
        }
        // Hosts see each other before they are busy.
        sleep(Duration::from_secs(2));
        let load = bed.load(vms, seconds)?;
        let (begin, mut device) = (Instant::now(), Vec::new());
        let (mut has_happened, mut is_over) = (false, false);
        while begin.elapsed() < Duration::from_secs(seconds as u64) {
            let at = begin.elapsed().as_secs_f64();
            let [from, to] = self.event(seconds);
            if at >= from as f64 && !has_happened {
                has_happened = true;
                match self.happens {
                    Happens::Nothing => {}
                    Happens::HostDies => bed.kill_last(),
                    Happens::PlaceAway => bed.set_place_away(true),
                }
            }
            if at >= to as f64 && !is_over {
                is_over = true;
                bed.set_place_away(false);
            }
            let answer = bed.ask(1, &["get", "devices"]);
            device.extend(answer.as_ref().and_then(device_ms).map(|ms| (begin.elapsed().as_secs_f64(), ms)));
            sleep(Duration::from_millis(500).saturating_sub(begin.elapsed() - Duration::from_secs_f64(at)));
        }
        let outcome = load.finish()?;
        let events = bed.ask(1, &["events"]).map(|events| events.to_string()).unwrap_or_default();
        Ok(Run { outcome, device, has_told: events.contains("gives") })
    }

    /// Seconds at which it begins and ends.
    fn event(&self, seconds: usize) -> [usize; 2] {
        match self.happens {
            Happens::Nothing => [usize::MAX; 2],
            Happens::HostDies => [seconds / 3, usize::MAX],
            Happens::PlaceAway => [seconds / 3, seconds / 3 + (seconds / 3).min(60)],
        }
    }

    /// An OSD serves some requests much later than others, so both are compared with the same hosts without the exchange.
    fn targets_on_ceph(&self, [with, without]: &[Counts; 2], report: &mut Report) {
        let (name, third) = (self.name, 1.0 / 3.0);
        report.target(
            format!("short / without: {name}"),
            Bound::AtMost(third),
            with.percent() / without.percent().max(0.1),
        );
        report.target(format!("p99 / without: {name}"), Bound::AtMost(0.5), with.p99.median() / without.p99.median());
        report.target(format!("all / without: {name}"), Bound::AtLeast(0.97), with.rate() / without.rate().max(1.0));
        report.target(format!("errors: {name}"), Bound::AtMost(0.0), with.errors as f64);
    }

    fn targets(&self, [with, without]: &[Counts; 2], report: &mut Report) {
        let name = self.name;
        report.target(format!("short [%]: {name}"), Bound::AtMost(self.short_max), with.percent());
        report.target(format!("all / without: {name}"), Bound::AtLeast(0.97), with.rate() / without.rate().max(1.0));
        report.target(format!("errors: {name}"), Bound::AtMost(0.0), with.errors as f64);
        if self.happens == Happens::Nothing && self.capacity == IOPS && !matches!(self.vms, Vms::Jump) {
            let settled = (with.settled.median() / LATENCY_MS - 1.0).abs() * 100.0;
            report.target(format!("device time off its latency [%]: {name}"), Bound::AtMost(15.0), settled);
            report.target(format!("its peak / latency: {name}"), Bound::AtMost(2.0), with.peak / LATENCY_MS);
        }
        if !with.reached.is_empty() {
            report.target(format!("until due [s]: {name}"), Bound::AtMost(1.5), with.reached.median());
        }
        if self.capacity != IOPS {
            report.target(
                format!("told that it gives less: {name}"),
                Bound::AtLeast(1.0),
                f64::from(u8::from(with.has_told)),
            );
        }
    }
}

/// The mean time at the device in the last period.
fn device_ms(devices: &serde_json::Value) -> Option<f64> {
    let device = &devices["devices"][0];
    let micros = device["pool"]["latency_us"].as_f64().or_else(|| device["rates"]["1s"]["p50_us"].as_f64());
    Some(micros? / 1000.0)
}

impl Counts {
    fn add(&mut self, run: &Run, row: &Row, vms: &[Vm], seconds: usize, is_pool: bool) {
        let outcome = &run.outcome;
        let events = row.event(seconds);
        let is_after_event =
            |second: usize| events.iter().any(|at| second + 1 > *at && second < at.saturating_add(APART));
        for (number, vm) in vms.iter().enumerate().filter(|(_, vm)| vm.reserved > 0) {
            for second in BEGIN..seconds {
                let (from, to) = (second as f64, second as f64 + 1.0);
                let ((since, percent), (_, before)) = (vm.level(to - 0.001), vm.level(from));
                if percent == 0 || before == 0 {
                    continue;
                }
                let is_short = (outcome.count(number, from, to) as f64) < 0.95 * f64::from(vm.reserved);
                let has_jumped = since > 0 && from < since as f64 + AFTER_JUMP;
                let is_apart = has_jumped || is_after_event(second);
                let counts = if is_apart { &mut self.apart } else { &mut self.windows };
                counts[0] += usize::from(is_short);
                counts[1] += 1;
                if is_short && is_pool && !is_apart {
                    eprintln!("  short: VM {number}, second {second}, {} requests", outcome.count(number, from, to));
                }
            }
            for (at, percent) in vm.levels.iter().filter(|(at, _)| *at > 0) {
                if *percent > 0 {
                    self.reached.push(reached(outcome, number, *at as f64, 0.9 * f64::from(vm.reserved)));
                }
            }
        }
        for second in (BEGIN..seconds).filter(|second| !is_after_event(*second)) {
            let (from, to) = (second as f64, second as f64 + 1.0);
            self.own += outcome.count(0, from, to) as f64;
            self.all += (0..vms.len()).map(|vm| outcome.count(vm, from, to)).sum::<usize>() as f64;
            self.seconds += 1;
        }
        let dies = |vm: &Vm| row.happens == Happens::HostDies && vm.host == HOSTS;
        self.errors +=
            outcome.errors.iter().zip(vms).filter(|(_, vm)| !dies(vm)).map(|(errors, _)| errors).sum::<usize>();
        let jumps: Vec<f64> = vms.iter().flat_map(|vm| vm.levels.iter().map(|(at, _)| *at as f64)).collect();
        for (at, ms) in run.device.iter().filter(|(at, _)| *at >= 1.0) {
            let is_settled = jumps.iter().all(|jump| *at < *jump || *at >= jump + SETTLED);
            match is_settled {
                true => self.settled.push(*ms),
                false => self.peak = self.peak.max(*ms),
            }
        }
        self.p99.push(outcome.p99_ms(0, BEGIN as f64));
        self.has_told |= run.has_told;
    }

    fn percent(&self) -> f64 {
        100.0 * self.windows[0] as f64 / self.windows[1].max(1) as f64
    }

    fn rate(&self) -> f64 {
        self.all / self.seconds.max(1) as f64
    }

    fn cells(&self, row: &str, exchange: &str) -> Vec<Cell> {
        let shown = |value: f64, digits: usize| match value.is_finite() {
            true => Cell::text(format!("{value:.digits$}")),
            false => Cell::text("-"),
        };
        let until = match self.reached.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.2}, at most {:.2}", self.reached.median(), self.reached.range().1),
        };
        vec![
            Cell::text(row),
            Cell::text(exchange),
            shown(self.percent(), 1),
            Cell::text(self.windows[1].to_string()),
            Cell::text(self.apart[0].to_string()),
            Cell::text(self.apart[1].to_string()),
            shown(self.own / self.seconds.max(1) as f64, 0),
            shown(self.p99.median(), 1),
            shown(self.rate(), 0),
            shown(self.settled.median(), 1),
            shown(self.peak, 1),
            Cell::text(until),
            Cell::text(self.errors.to_string()),
        ]
    }
}

/// Seconds after `from` until a VM has a quarter of a second at this rate.
fn reached(outcome: &Outcome, vm: usize, from: f64, rate: f64) -> f64 {
    let steps = (0..200).map(|step| f64::from(step) * 0.05);
    let is_there = |after: &f64| outcome.count(vm, from + after, from + after + 0.25) as f64 >= rate * 0.25;
    steps.into_iter().find(is_there).unwrap_or(10.0)
}
