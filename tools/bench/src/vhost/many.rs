//! A hundred VMs with a queue each, compared with one VM.
//!
//! The capacity of a `delay` device is known exactly; a file shows the cost of many queues. The VMs have weights 1, 2
//! and 3 in turn. For the total, each has one request in flight, so that all together have as many as the one VM. For
//! the shares, each has [`WAITING`]. A VM with nothing queued gives up its turn, and a file completes a few hundred
//! requests while a busy machine keeps the front end waiting for its CPU.
//!
//! A null device shows what it costs to look at a hundred queues that have little each: there each of the many VMs has
//! four requests in flight, and the one has 32. The bare echo answers the same rings from one thread, without gate, statistics and
//! disk (`tools/plain-device`). So its ratio is that of the rings, the caches and the front end alone. Other builds of the daemon
//! (`--beside`) serve null devices too.
//!
//! On the null device and the bare echo, one of the hundred VMs is measured, too, while the others have paused after some requests.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::super::contest::{BESIDE, Choice};
use super::super::load::Outcome;
use super::super::report::{Bound, Cell, Report, Table};
use super::super::server::{self, Server};
use super::super::stats::Samples;
use super::load::{Load, Target};
use super::{Effort, failed, peers};

const VMS: usize = 100;
const WEIGHTS: usize = 3;
/// Number of requests in flight of each VM when shares are measured.
const WAITING: u16 = 16;
/// Requests per second of the delay device, and the number that it serves concurrently.
const RATE: u64 = 5_000;
const PARALLEL: u64 = 8;
/// Measurements in a round where no shares have to settle.
const SHORT: usize = 4;
/// Reference size of the delay device, so that normalised IOPS are IOPS.
const REFERENCE: u32 = 8192;

/// Resources that the VMs share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Delay,
    File,
    Null,
    /// Nothing: a thread completes the requests of all VMs.
    Echo,
}

impl Shared {
    const ALL: [Shared; 4] = [Shared::Delay, Shared::File, Shared::Null, Shared::Echo];

    fn name(self) -> &'static str {
        match self {
            Shared::Delay => "delay device",
            Shared::File => "file",
            Shared::Null => "null device",
            Shared::Echo => "bare echo",
        }
    }

    /// Whether VMs wait for the device, so that it is divided among them.
    fn is_divided(self) -> bool {
        matches!(self, Shared::Delay | Shared::File)
    }

    /// Requests in flight of each of many VMs, and of the one.
    fn depths(self) -> (u16, u16) {
        match self {
            Shared::Delay | Shared::File => (1, VMS as u16),
            Shared::Null | Shared::Echo => (4, 32),
        }
    }

    fn block(self) -> u32 {
        if self == Shared::Delay { REFERENCE } else { super::BLOCK }
    }
}

/// Both loads on one kind of device.
struct Pair {
    shared: Shared,
    /// The other build of the daemon that serves it.
    build: Option<usize>,
    many: Server,
    one: Server,
    _folder: tempfile::TempDir,
    ratio: Samples,
    totals: [Samples; 2],
    /// CPU time per request of the server, in us: of many VMs, and of one.
    cpu_us: [Samples; 2],
    /// With one request each, and with [`WAITING`].
    deviations: [Samples; 2],
    /// IOPS and CPU time per request of one VM while the others pause.
    pausing: [Samples; 2],
}

pub(super) fn run(
    report: &mut Report,
    file: &Path,
    rounds: usize,
    effort: Effort,
    choice: &Choice,
) -> Result<(), String> {
    let mut pairs = Vec::new();
    for shared in Shared::ALL.into_iter().filter(|shared| choice.has_shape(shared.name())) {
        pairs.push(Pair::start(shared, file, choice, None)?);
    }
    if choice.has_shape(Shared::Null.name()) {
        for build in (0..choice.beside.len().min(BESIDE.len())).filter(|build| choice.has(BESIDE[*build])) {
            pairs.push(Pair::start(Shared::Null, file, choice, Some(build))?);
        }
    }
    for round in 0..rounds {
        eprintln!("vhost: {VMS} VMs, round {} of {rounds}", round + 1);
        report.measure_baseline();
        pairs.iter_mut().try_for_each(|pair| pair.measure(effort))?;
    }
    if !pairs.is_empty() {
        add(report, &pairs);
    }
    add_pausing(report, &pairs);
    add_builds(report, &pairs);
    Ok(())
}

fn add(report: &mut Report, pairs: &[Pair]) {
    let mut table = Table::new(
        format!("{VMS} VMs, weights 1:2:3, beside one VM"),
        &[
            "device",
            "in flight: each of many, one",
            "many: IOPS",
            "one: IOPS",
            "many / one",
            "CPU per request [us]: many, one",
            "off the share [% of the total]",
            "off it, 16 requests each",
        ],
    );
    for pair in pairs {
        let (many, one) = pair.shared.depths();
        let [cpu_many, cpu_one] = pair.cpu_us.each_ref().map(Samples::median);
        let mut row = vec![
            Cell::text(pair.name()),
            Cell::text(format!("{many}, {one}")),
            Cell::spread(&pair.totals[0], 0),
            Cell::spread(&pair.totals[1], 0),
            Cell::spread(&pair.ratio, 3),
            Cell::text(format!("{cpu_many:.2}, {cpu_one:.2}")),
        ];
        let name = pair.shared.name();
        if pair.shared != Shared::Echo && pair.build.is_none() {
            report.target(format!("{VMS} VMs / 1 VM, {name}"), Bound::AtLeast(0.9), pair.ratio.median());
        }
        if pair.shared.is_divided() {
            row.extend(pair.deviations.iter().map(|deviation| Cell::spread(deviation, 2)));
            let what = format!("{VMS} VMs, off the share [% of the total], {name}");
            report.target(what, Bound::AtMost(1.0), pair.deviations[1].median());
        } else {
            row.extend(["-", "-"].map(Cell::text));
        }
        table.row(row);
    }
    report.table(table);
}

/// Adds a table of one VM beside others that pause.
fn add_pausing(report: &mut Report, pairs: &[Pair]) {
    let columns = ["device", "IOPS", "to one VM alone", "CPU per request [us]: beside them, alone"];
    let mut table = Table::new(format!("One VM x 32 beside {} that pause", VMS - 1), &columns);
    let mut measured = pairs.iter().filter(|pair| !pair.shared.is_divided()).peekable();
    if measured.peek().is_none() {
        return;
    }
    for pair in measured {
        let [beside, alone] = [&pair.pausing[1], &pair.cpu_us[1]].map(Samples::median);
        table.row(vec![
            Cell::text(pair.name()),
            Cell::spread(&pair.pausing[0], 0),
            Cell::text(format!("{:.2}", pair.pausing[0].median() / pair.totals[1].median())),
            Cell::text(format!("{beside:.2}, {alone:.2}")),
        ]);
    }
    report.table(table);
}

/// Adds a table that compares this build with the others, on null devices.
fn add_builds(report: &mut Report, pairs: &[Pair]) {
    let of_null = || pairs.iter().filter(|pair| pair.shared == Shared::Null);
    let Some(own) = of_null().find(|pair| pair.build.is_none()) else { return };
    let columns =
        ["build", "IOPS: ours to it, many", "IOPS: ours to it, one", "CPU: ours to it, many", "CPU: ours to it, one"];
    let mut table = Table::new(format!("{VMS} VMs and one, null device, this build beside others"), &columns);
    for other in of_null().filter(|pair| pair.build.is_some()) {
        let ratios = [
            own.totals[0].ratio(&other.totals[0]),
            own.totals[1].ratio(&other.totals[1]),
            own.cpu_us[0].ratio(&other.cpu_us[0]),
            own.cpu_us[1].ratio(&other.cpu_us[1]),
        ];
        let cells = ratios.iter().map(|ratio| Cell::spread(ratio, 2));
        table.row(std::iter::once(Cell::text(other.name())).chain(cells).collect());
    }
    if of_null().count() > 1 {
        report.table(table);
    }
}

impl Pair {
    fn start(shared: Shared, file: &Path, choice: &Choice, build: Option<usize>) -> Result<Pair, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
        let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
        let start = |name: &str, vms: usize| {
            let sockets: Vec<PathBuf> = (0..vms).map(|vm| folder.path().join(format!("{name}-{vm}.sock"))).collect();
            if shared == Shared::Echo {
                let mut command = Command::new(peers::plain_device());
                command.arg("--one-thread").args(&sockets);
                return Server::start(&mut command, sockets);
            }
            let host = host_file(shared, file, size, name, &sockets);
            let program = build.map_or_else(server::sluice_binary, |build| choice.beside[build].clone());
            Server::build_of_sluice(&program, folder.path(), name, &host, sockets)
        };
        let start = |name, vms| choice.start_server(|| start(name, vms));
        let (many, one) = (start("many", VMS)?, start("one", 1)?);
        let (ratio, totals, cpu_us, deviations, pausing) = Default::default();
        Ok(Pair { shared, build, many, one, _folder: folder, ratio, totals, cpu_us, deviations, pausing })
    }

    fn name(&self) -> String {
        let build = self.build.map(|build| format!(", {}", BESIDE[build]));
        self.shared.name().to_owned() + &build.unwrap_or_default()
    }

    fn measure(&mut self, effort: Effort) -> Result<(), String> {
        let (of_many, of_one) = self.shared.depths();
        if self.shared.is_divided() {
            let many = self.compare((of_many, of_one), effort.shares, effort)?;
            let (waiting, _) = self.load(&self.many, &self.many.sockets, WAITING, effort.shares, effort)?;
            self.deviations[0].push(deviation(&many));
            self.deviations[1].push(deviation(&waiting));
        } else {
            for _ in 0..SHORT {
                self.compare((of_many, of_one), effort.time, effort)?;
            }
            self.measure_one_of_many(of_one, effort)?;
        }
        Ok(())
    }

    /// Measures one VM while the others, which had requests before, pause.
    fn measure_one_of_many(&mut self, depth: u16, effort: Effort) -> Result<(), String> {
        let failed = |error| failed("sluice", &error);
        let target = |socket: &PathBuf| Target {
            socket: socket.clone(),
            queues: 1,
            depth: 1,
            block: self.shared.block(),
            poll: effort.poll,
        };
        let others: Vec<Target> = self.many.sockets[1..].iter().map(target).collect();
        let mut pausing = Load::start(&others).map_err(failed)?;
        pausing.run(effort.warm).map_err(failed)?;
        let (outcomes, cpu) = self.load(&self.many, &self.many.sockets[..1], depth, effort.time, effort)?;
        pausing.finish().map_err(failed)?;
        self.pausing[0].push(outcomes.iter().map(Outcome::iops).sum());
        self.pausing[1].push(cpu);
        Ok(())
    }

    /// Measures the total of many VMs and of one, with these numbers of requests in flight. Returns the outcomes of the many.
    fn compare(
        &mut self,
        (of_many, of_one): (u16, u16),
        time: Duration,
        effort: Effort,
    ) -> Result<Vec<Outcome>, String> {
        let total = |outcomes: &[Outcome]| outcomes.iter().map(Outcome::iops).sum::<f64>();
        let (many, cpu_many) = self.load(&self.many, &self.many.sockets, of_many, time, effort)?;
        let (one, cpu_one) = self.load(&self.one, &self.one.sockets, of_one, time, effort)?;
        self.totals[0].push(total(&many));
        self.totals[1].push(total(&one));
        self.ratio.push(total(&many) / total(&one));
        self.cpu_us[0].push(cpu_many);
        self.cpu_us[1].push(cpu_one);
        Ok(many)
    }

    /// Runs the VMs of a server at these sockets at the same time. Returns the outcome of each, and the CPU time of the server per request in us.
    fn load(
        &self,
        server: &Server,
        sockets: &[PathBuf],
        depth: u16,
        time: Duration,
        effort: Effort,
    ) -> Result<(Vec<Outcome>, f64), String> {
        let (block, poll) = (self.shared.block(), effort.poll);
        let target = |socket: &PathBuf| Target { socket: socket.clone(), queues: 1, depth, block, poll };
        let targets: Vec<Target> = sockets.iter().map(target).collect();
        let failed = |error| failed("sluice", &error);
        let mut load = Load::start(&targets).map_err(failed)?;
        load.run(effort.warm).map_err(failed)?;
        let before = server.cpu_seconds();
        let outcomes = load.run(time).map_err(failed)?;
        let seconds = server.cpu_seconds() - before;
        load.finish().map_err(failed)?;
        let requests: u64 = outcomes.iter().map(|outcome| outcome.requests).sum();
        Ok((outcomes, seconds * 1e6 / requests as f64))
    }
}

fn weight(vm: usize) -> usize {
    1 + vm % WEIGHTS
}

/// Returns the largest deviation of the VMs of one weight together from their share, in percent of the total.
fn deviation(outcomes: &[Outcome]) -> f64 {
    let total: f64 = outcomes.iter().map(Outcome::iops).sum();
    let weights: usize = (0..outcomes.len()).map(weight).sum();
    let off = (1..=WEIGHTS).map(|class| {
        let of_class = || outcomes.iter().enumerate().filter(|(vm, _)| weight(*vm) == class);
        let got: f64 = of_class().map(|(_, outcome)| outcome.iops()).sum();
        (got / total - (of_class().count() * class) as f64 / weights as f64).abs() * 100.0
    });
    off.fold(0.0, f64::max)
}

/// Returns a host file with a VM for each socket. A file is divided into equal ranges.
///
/// Only one daemon at a time may read a range for a VM of a certain name, so these begin with `name`.
fn host_file(shared: Shared, file: &Path, size: u64, name: &str, sockets: &[PathBuf]) -> String {
    let mut text = match shared {
        Shared::Null | Shared::Echo => "[device.disk]\nbackend = \"null\"\ndepth = 64\n".to_owned(),
        Shared::Delay => format!(
            "[device.disk]\nbackend = \"null\"\ndepth = {}\ncapacity = \"{RATE} iops@8KiB\"\n\
             [device.disk.delay]\ntime = \"{}ns\"\nparallel = {PARALLEL}\n",
            2 * PARALLEL,
            PARALLEL * 1_000_000_000 / RATE
        ),
        Shared::File => format!("[device.disk]\npath = \"{}\"\ndepth = 32\n", file.display()),
    };
    let part = (size / sockets.len() as u64) >> 20;
    for (vm, socket) in sockets.iter().enumerate() {
        let source = match shared {
            Shared::Delay | Shared::Null | Shared::Echo => "size = \"1GiB\"".to_owned(),
            Shared::File => {
                let (offset, file) = (vm as u64 * part, file.display());
                format!("source = \"{file}\"\noffset = \"{offset}MiB\"\nsize = \"{part}MiB\"\nread_only = true")
            }
        };
        let _ = write!(
            text,
            "[vm.{name}{vm:02}]\nweight = {}\n[vm.{name}{vm:02}.volume.disk]\ndevice = \"disk\"\n{source}\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\", queues = 1 }}\n",
            weight(vm) * 100,
            socket.display()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_files_are_valid() {
        let sockets: Vec<PathBuf> = (0..VMS).map(|vm| PathBuf::from(format!("/run/sluice/{vm}"))).collect();
        for shared in Shared::ALL {
            sluice_config::parse("many", &host_file(shared, Path::new("/srv/vm/disk.img"), 1 << 30, "v", &sockets))
                .unwrap();
        }
    }

    #[test]
    fn the_deviation_is_that_of_all_vms_of_one_weight() {
        let outcome = |requests| Outcome { requests, seconds: 1.0, ..Outcome::default() };
        assert!(deviation(&[outcome(100), outcome(200), outcome(300)]) < 1e-9);
        let off = deviation(&[outcome(200), outcome(200), outcome(200)]);
        assert!((off - 100.0 / 6.0).abs() < 1e-6, "{off}");
    }
}
