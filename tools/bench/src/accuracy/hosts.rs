//! The daemon with delay devices, and VMs that submit requests over NBD.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use super::super::load::{Load, Outcome, Target};
use super::super::server::Server;
use super::Slots;

/// Depth of the device: more than it serves concurrently, so that a late wake-up wastes no capacity.
pub(super) const DEVICE_DEPTH: u32 = 2 * PARALLEL;
const PARALLEL: u32 = 8;
/// The reference size, so that normalised IOPS are IOPS.
const BLOCK: u32 = 8192;

/// A VM with one volume.
#[derive(Debug, Clone)]
pub(super) struct Vm {
    pub(super) device: usize,
    pub(super) weight: f64,
    pub(super) limit: Option<u64>,
    pub(super) reservation: Option<u64>,
    /// Number of requests that it keeps in flight.
    pub(super) depth: u32,
}

impl Vm {
    /// Returns a VM with default settings.
    pub(super) fn on(device: usize) -> Vm {
        Vm { device, weight: 100.0, limit: None, reservation: None, depth: 32 }
    }
}

/// A running daemon.
pub(super) struct Host {
    server: Server,
    targets: Vec<Target>,
    log: PathBuf,
    _folder: tempfile::TempDir,
}

impl Host {
    /// Starts a daemon with devices of these rates (IOPS). If `logs` is set, the first device logs its slots.
    pub(super) fn start(rates: &[u64], vms: Vec<Vm>, logs: bool) -> Result<Host, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder: {error}"))?;
        let log = folder.path().join("slots.csv");
        let mut text = String::new();
        for (index, rate) in rates.iter().enumerate() {
            let time_ns = u64::from(PARALLEL) * 1_000_000_000 / rate;
            let _ = write!(
                text,
                "[device.d{index}]\nbackend = \"null\"\ndepth = {DEVICE_DEPTH}\ncapacity = \"{rate} iops@8KiB\"\n\
                 [device.d{index}.delay]\ntime = \"{time_ns}ns\"\nparallel = {PARALLEL}\n"
            );
            if logs && index == 0 {
                let _ = writeln!(text, "log = \"{}\"", log.display());
            }
        }
        let mut targets = Vec::new();
        for (index, vm) in vms.iter().enumerate() {
            let socket = folder.path().join(format!("{index:02}.sock"));
            let rate = |name: &str, rate: Option<u64>| {
                rate.map(|rate| format!("{name} = \"{rate} iops@8KiB\"\n")).unwrap_or_default()
            };
            let _ = write!(
                text,
                "[vm.v{index:02}]\nweight = {}\n{}{}[vm.v{index:02}.volume.disk]\ndevice = \"d{}\"\nsize = \"1GiB\"\n\
                 export = {{ socket = \"{}\" }}\n",
                vm.weight,
                rate("limit", vm.limit),
                rate("reservation", vm.reservation),
                vm.device,
                socket.display()
            );
            targets.push(Target { socket, export: format!("v{index:02}/disk"), depth: vm.depth, block: BLOCK });
        }
        let sockets = targets.iter().map(|target| target.socket.clone()).collect();
        let server = Server::sluice(folder.path(), "host", &text, sockets)?;
        Ok(Host { server, targets, log, _folder: folder })
    }

    /// Runs all VMs at the same time. Returns the outcome of each after the warm-up.
    pub(super) fn load(&self, warm: Duration, time: Duration) -> Result<Vec<Outcome>, String> {
        let failed = |error| format!("sluice: {error}");
        let mut load = Load::start(&self.targets).map_err(failed)?;
        load.run(warm).map_err(failed)?;
        let outcomes = load.run(time).map_err(failed)?;
        load.finish().map_err(failed)?;
        Ok(outcomes)
    }

    /// Terminates the daemon and returns the log of its first device.
    pub(super) fn end(self) -> Result<Slots, String> {
        self.server.terminate();
        Slots::read(&self.log)
    }
}
