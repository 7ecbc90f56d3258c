//! One host: a VM that keeps one request outstanding and reserves a fifth, beside four that keep 32. With `latency` as `check` proposes
//! it, with the default depth, and with the depth that serves the VM best. And a `latency` below the device's own time, which the daemon
//! must find.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use super::Options;
use super::bed::{Bed, Storage, check};
use super::load::{VOLUME_MIB, Vm};
use crate::report::{Bound, Cell, Report, Table};
use crate::server::written_file;
use crate::stats::Samples;

/// Seconds at the beginning that do not count.
const BEGIN: f64 = 3.0;
/// Depths that are tried by hand.
const DEPTHS: [u32; 7] = [1, 2, 4, 8, 12, 16, 24];
/// A depth that gives less of the throughput is not the best one.
const THROUGHPUT_MIN: f64 = 0.9;
const VMS: usize = 5;

/// A device.
struct Device {
    name: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A throttle of this number of requests per second.
    Throttle(u32),
    /// A file whose requests take this number of ms, `parallel` at a time.
    Delay { ms: u32, parallel: u32 },
    /// A file on the disk of this machine. Its rate is measured.
    File,
}

/// Results of the runs with one setting: rate and p99 of the VM with one request outstanding, and the rate of all VMs.
#[derive(Default)]
struct Got {
    rate: Samples,
    p99_ms: Samples,
    all: Samples,
}

const DEVICES: [Device; 3] = [
    Device { name: "one queue, 1,000 iops", kind: Kind::Throttle(1000) },
    Device { name: "8 at a time, 4 ms each", kind: Kind::Delay { ms: 4, parallel: 8 } },
    Device { name: "a file on this disk", kind: Kind::File },
];

pub(super) fn measure(options: &Options, quick: bool, report: &mut Report) -> Result<(), String> {
    let columns = ["device", "latency", "set by", "rate", "p99 [ms]", "all"];
    let mut table = Table::new(
        "One host: a VM with 1 outstanding that reserves a fifth, beside four with 32 outstanding",
        &columns,
    );
    for device in DEVICES.iter().filter(|device| device.name.contains(&options.only)) {
        let (rounds, seconds) = if quick { (1, 8) } else { (options.rounds, options.seconds.min(20)) };
        let capacity = device.capacity(seconds.min(10))?;
        let mut tuned = (0, 0.0);
        let default = device.run(capacity, "", seconds)?;
        for depth in DEPTHS {
            let [rate, _, all] = device.run(capacity, &format!("depth = {depth}"), seconds.min(10))?;
            if all >= THROUGHPUT_MIN * default[2] && rate > tuned.1 {
                tuned = (depth, rate);
            }
        }
        let latency = device.latency(capacity)?;
        let texts = [String::new(), format!("depth = {}", tuned.0), format!("latency = \"{latency}us\"")];
        let mut got = [Got::default(), Got::default(), Got::default()];
        for round in 0..rounds {
            for (text, got) in texts.iter().zip(&mut got) {
                eprintln!("pool: {}, round {} of {rounds}, {text}", device.name, round + 1);
                got.push(device.run(capacity, text, seconds)?);
            }
        }
        device.report(latency, &texts[1], &got, &mut table, report);
        if let Some(own) = device.own_us() {
            let told = device.tells_too_low(capacity, own / 2)?;
            report.target(
                format!("tells of half its own time: {}", device.name),
                Bound::AtLeast(1.0),
                f64::from(u8::from(told)),
            );
        }
    }
    report.table(table);
    Ok(())
}

impl Device {
    fn vms(capacity: u32) -> Vec<Vm> {
        [Vm::new(1, capacity / 5, 1)].into_iter().chain((1..VMS).map(|_| Vm::new(1, 0, 32))).collect()
    }

    fn report(&self, latency: u32, tuned: &str, got: &[Got; 3], table: &mut Table, report: &mut Report) {
        for (by, got) in ["depth 32".to_owned(), tuned.to_owned(), "latency".to_owned()].into_iter().zip(got) {
            let (rate, p99, all) = (&got.rate, &got.p99_ms, &got.all);
            let stated = format!("{:.2} ms", f64::from(latency) / 1000.0);
            table.row(vec![
                Cell::text(self.name),
                Cell::text(stated),
                Cell::text(by),
                Cell::spread(rate, 0),
                Cell::spread(p99, 2),
                Cell::spread(all, 0),
            ]);
        }
        let [default, best, window] = got;
        report.target(
            format!("tuned rate / rate: {}", self.name),
            Bound::AtMost(1.2),
            best.rate.median() / window.rate.median(),
        );
        report.target(
            format!("p99 / tuned p99: {}", self.name),
            Bound::AtMost(1.2),
            window.p99_ms.median() / best.p99_ms.median(),
        );
        report.target(
            format!("all / depth 32: {}", self.name),
            Bound::AtLeast(0.9),
            window.all.ratio(&default.all).median(),
        );
    }

    /// The time that a request takes alone, if it is known: a throttle serves one that comes late at once.
    fn own_us(&self) -> Option<u32> {
        match self.kind {
            Kind::Delay { ms, .. } => Some(1000 * ms),
            Kind::Throttle(_) | Kind::File => None,
        }
    }

    /// Normalised requests per second to state.
    fn capacity(&self, seconds: usize) -> Result<u32, String> {
        match self.kind {
            Kind::Throttle(iops) => Ok(iops),
            Kind::Delay { ms, parallel } => Ok(1000 * parallel / ms),
            Kind::File => {
                // Its VM reserves nothing while it is measured.
                let [_, _, all] = self.run(0, "", seconds)?;
                Ok(all as u32)
            }
        }
    }

    /// What `sluice check` proposes, so that one outstanding is enough, if it is at least 1.1 times the device's own time, in us. If it
    /// proposes none, 1.1 times what one request takes a client that is alone.
    fn latency(&self, capacity: u32) -> Result<u32, String> {
        let mut bed = Bed::new(Storage::InOrder, 1000, VMS)?;
        let text = self.host_file(&mut bed, capacity, "latency = \"100ms\"")?;
        let file = bed.file("check.toml");
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let document = check(&file).ok_or("sluice check has printed no JSON")?;
        let proposed = document["devices"][0]["outstanding_needed"]["v0"]["latency_for_one_us"].as_u64();
        let proposed = match proposed {
            Some(proposed) => proposed as u32,
            None => {
                let bed = self.serve(capacity, "")?;
                let alone = bed.load(&Device::vms(capacity)[..1], 5)?.finish()?;
                5_500_000 / (alone.count(0, 0.0, 5.0) as u32).max(1)
            }
        };
        Ok(self.own_us().map_or(proposed, |own| proposed.max(own * 11 / 10)).max(100))
    }

    fn host_file(&self, bed: &mut Bed, capacity: u32, text: &str) -> Result<String, String> {
        let file = self.source(bed)?;
        let mut device = format!("path = \"{}\"\n{text}\n", file.display());
        if capacity > 0 {
            device += &format!("capacity = \"{capacity} iops\"\n");
        }
        if let Kind::Delay { ms, parallel } = self.kind {
            device += &format!("delay = {{ time = \"{ms}ms\", parallel = {parallel} }}\n");
        }
        Ok(bed.host_file(1, &device, &Device::vms(capacity), &file))
    }

    fn source(&self, bed: &Bed) -> Result<PathBuf, String> {
        if let Kind::Throttle(_) = self.kind {
            return Ok(bed.storage());
        }
        let file = bed.file("file");
        if !file.exists() {
            written_file(&file, u64::from(VOLUME_MIB) * VMS as u64)?;
        }
        Ok(file)
    }

    /// Returns rate and p99 of the VM in ms, and the rate of all.
    fn run(&self, capacity: u32, text: &str, seconds: usize) -> Result<[f64; 3], String> {
        let bed = self.serve(capacity, text)?;
        let vms = Device::vms(capacity);
        let outcome = bed.load(&vms, seconds)?.finish()?;
        if outcome.errors.iter().any(|errors| *errors > 0) {
            return Err(format!("fio failed on {}", self.name));
        }
        let (end, time) = (seconds as f64, seconds as f64 - BEGIN);
        let rate = |vm: usize| outcome.count(vm, BEGIN, end) as f64 / time;
        Ok([rate(0), outcome.p99_ms(0, BEGIN), (0..vms.len()).map(rate).sum()])
    }

    fn serve(&self, capacity: u32, text: &str) -> Result<Bed, String> {
        let iops = if let Kind::Throttle(iops) = self.kind { iops } else { 1000 };
        let mut bed = Bed::new(Storage::InOrder, iops, VMS)?;
        let text = self.host_file(&mut bed, capacity, text)?;
        bed.start(&text, &Device::vms(capacity))?;
        Ok(bed)
    }

    /// Whether the daemon finds that `latency` is below the device's own time.
    fn tells_too_low(&self, capacity: u32, latency_us: u32) -> Result<bool, String> {
        let bed = self.serve(capacity, &format!("latency = \"{latency_us}us\""))?;
        let load = bed.load(&Device::vms(capacity), 30)?;
        let mut told = false;
        for _ in 0..60 {
            sleep(Duration::from_millis(500));
            let status = bed.ask(1, &["events"]).map(|events| events.to_string()).unwrap_or_default();
            told |= status.contains("latency_too_low");
        }
        load.finish()?;
        Ok(told)
    }
}

impl Got {
    fn push(&mut self, [rate, p99_ms, all]: [f64; 3]) {
        self.rate.push(rate);
        self.p99_ms.push(p99_ms);
        self.all.push(all);
    }
}
