//! A hundred VMs with a queue each, compared with one VM with as many requests in flight.
//!
//! The capacity of a `delay` device is known exactly; a file shows the cost of many queues. The VMs have weights 1, 2
//! and 3 in turn. For the total, each has one request in flight, so that all together have as many as the one VM. For
//! the shares, each has [`WAITING`]. A VM with nothing queued gives up its turn, and a file completes a few hundred
//! requests while a busy machine keeps the front end waiting for its CPU.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::contest::Store;
use super::super::load::Outcome;
use super::super::report::{Bound, Cell, Report, Table};
use super::super::server::Server;
use super::super::stats::Samples;
use super::load::{Load, Target};
use super::{Effort, failed};

const VMS: usize = 100;
const WEIGHTS: usize = 3;
/// Number of requests in flight of each VM when shares are measured.
const WAITING: u16 = 16;
/// Requests per second of the delay device, and the number that it serves concurrently.
const RATE: u64 = 5_000;
const PARALLEL: u64 = 8;
/// Reference size of the delay device, so that normalised IOPS are IOPS.
const REFERENCE: u32 = 8192;

/// Both loads on one kind of device.
struct Pair {
    store: Store,
    many: Server,
    one: Server,
    _folder: tempfile::TempDir,
    ratio: Samples,
    totals: [Samples; 2],
    /// With one request each, and with [`WAITING`].
    deviations: [Samples; 2],
}

pub(super) fn run(report: &mut Report, file: &Path, rounds: usize, effort: Effort) -> Result<(), String> {
    let mut pairs = Vec::new();
    for store in [Store::Null, Store::File] {
        pairs.push(Pair::start(store, file)?);
    }
    for round in 0..rounds {
        eprintln!("vhost: {VMS} VMs, round {} of {rounds}", round + 1);
        pairs.iter_mut().try_for_each(|pair| pair.measure(effort))?;
    }
    let mut table = Table::new(
        format!("{VMS} VMs with one request each, weights 1:2:3, beside one VM with {VMS}"),
        &[
            "device",
            "many: IOPS",
            "one: IOPS",
            "many / one",
            "off the share [% of the total]",
            "off it, 16 requests each",
        ],
    );
    for pair in &pairs {
        table.row(vec![
            Cell::text(pair.name()),
            Cell::spread(&pair.totals[0], 0),
            Cell::spread(&pair.totals[1], 0),
            Cell::spread(&pair.ratio, 3),
            Cell::spread(&pair.deviations[0], 2),
            Cell::spread(&pair.deviations[1], 2),
        ]);
        report.target(format!("{VMS} VMs / 1 VM, {}", pair.name()), Bound::AtLeast(0.9), pair.ratio.median());
        let what = format!("{VMS} VMs, off the share [% of the total], {}", pair.name());
        report.target(what, Bound::AtMost(1.0), pair.deviations[1].median());
    }
    report.table(table);
    Ok(())
}

impl Pair {
    fn start(store: Store, file: &Path) -> Result<Pair, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
        let size = fs::metadata(file).map_or(0, |metadata| metadata.len());
        let start = |name: &str, vms: usize| {
            let sockets: Vec<PathBuf> = (0..vms).map(|vm| folder.path().join(format!("{name}-{vm}.sock"))).collect();
            let host = host_file(store, file, size, &sockets);
            Server::sluice(folder.path(), name, &host, sockets)
        };
        let (many, one) = (start("many", VMS)?, start("one", 1)?);
        let (ratio, totals, deviations) = Default::default();
        Ok(Pair { store, many, one, _folder: folder, ratio, totals, deviations })
    }

    fn name(&self) -> &'static str {
        match self.store {
            Store::Null => "delay device",
            Store::File => "file",
        }
    }

    fn measure(&mut self, effort: Effort) -> Result<(), String> {
        let many = self.load(&self.many, 1, effort)?;
        let one = self.load(&self.one, VMS as u16, effort)?;
        let waiting = self.load(&self.many, WAITING, effort)?;
        let total = |outcomes: &[Outcome]| outcomes.iter().map(Outcome::iops).sum::<f64>();
        self.totals[0].push(total(&many));
        self.totals[1].push(total(&one));
        self.ratio.push(total(&many) / total(&one));
        self.deviations[0].push(deviation(&many));
        self.deviations[1].push(deviation(&waiting));
        Ok(())
    }

    /// Runs all VMs of a server at the same time. Returns the outcome of each.
    fn load(&self, server: &Server, depth: u16, effort: Effort) -> Result<Vec<Outcome>, String> {
        let block = if self.store == Store::Null { REFERENCE } else { super::BLOCK };
        let target = |socket: &PathBuf| Target { socket: socket.clone(), queues: 1, depth, block, poll: false };
        let targets: Vec<Target> = server.sockets.iter().map(target).collect();
        let failed = |error| failed("sluice", &error);
        let mut load = Load::start(&targets).map_err(failed)?;
        load.run(effort.warm).map_err(failed)?;
        let outcomes = load.run(effort.shares).map_err(failed)?;
        load.finish().map_err(failed)?;
        Ok(outcomes)
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
fn host_file(store: Store, file: &Path, size: u64, sockets: &[PathBuf]) -> String {
    let mut text = match store {
        Store::Null => format!(
            "[device.disk]\nbackend = \"null\"\ndepth = {}\ncapacity = \"{RATE} iops@8KiB\"\n\
             [device.disk.delay]\ntime = \"{}ns\"\nparallel = {PARALLEL}\n",
            2 * PARALLEL,
            PARALLEL * 1_000_000_000 / RATE
        ),
        Store::File => format!("[device.disk]\npath = \"{}\"\ndepth = 32\n", file.display()),
    };
    let part = (size / sockets.len() as u64) >> 20;
    for (vm, socket) in sockets.iter().enumerate() {
        let source = match store {
            Store::Null => "size = \"1GiB\"".to_owned(),
            Store::File => {
                let (offset, file) = (vm as u64 * part, file.display());
                format!("source = \"{file}\"\noffset = \"{offset}MiB\"\nsize = \"{part}MiB\"\nread_only = true")
            }
        };
        let _ = write!(
            text,
            "[vm.v{vm:02}]\nweight = {}\n[vm.v{vm:02}.volume.disk]\ndevice = \"disk\"\n{source}\n\
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
        for store in [Store::Null, Store::File] {
            sluice_config::parse("many", &host_file(store, Path::new("/srv/vm/disk.img"), 1 << 30, &sockets)).unwrap();
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
