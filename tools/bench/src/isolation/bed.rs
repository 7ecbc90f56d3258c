//! The device under test: a loop device over a file with direct I/O, and what divides it among apps.
//!
//! Each app is a fio process with a part of the device. With a knob of the kernel it reads the device itself, from a
//! control group of its own. With the daemon it reads the same device over NBD, as a VM of its own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use sluice_daemon::failure::Failure;
use sluice_testbed::loop_device::{LoopDevice, set};

use crate::accuracy::kernel;
use crate::server::{self, Server};
use crate::workspace;

use super::fio::{self, Outcome};

/// Most apps of a run; each has a part of this size.
pub(super) const APPS_MAX: usize = 8;
const PART_MIB: usize = 128;
/// Limit of a group that shall not be limited, in MB/s: the kernel's throttle is then in force, but never waits.
const NO_LIMIT: f64 = 1e5;
/// The default depth of a device of the daemon.
pub(super) const DEPTH: u32 = 32;

/// Time in which each of the two rates of the cost model is measured.
const KNEE_MS: u64 = 1000;

/// What divides the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knob {
    None,
    Deadline,
    Bfq,
    Throttle,
    Noop,
    Mclock,
}

impl Knob {
    pub(super) const ALL: [Knob; 6] = [Knob::None, Knob::Deadline, Knob::Bfq, Knob::Throttle, Knob::Noop, Knob::Mclock];

    pub(super) fn name(self) -> &'static str {
        match self {
            Knob::None => "none",
            Knob::Deadline => "mq-deadline",
            Knob::Bfq => "BFQ",
            Knob::Throttle => "blk-throttle (io.max)",
            Knob::Noop => "sluice noop",
            Knob::Mclock => "sluice mclock",
        }
    }

    fn is_daemon(self) -> bool {
        matches!(self, Knob::Noop | Knob::Mclock)
    }
}

/// A fio process.
#[derive(Debug, Clone, Copy)]
pub(super) struct App {
    pub(super) pattern: &'static str,
    pub(super) block_kib: u32,
    pub(super) depth: u32,
    /// Weight, with BFQ and the daemon.
    pub(super) weight: u32,
    /// Limit in MB/s, with blk-throttle.
    pub(super) limit: Option<f64>,
    /// I/O class, with mq-deadline: 1 is real-time, 2 is best-effort.
    pub(super) class: u8,
    /// Time that it sleeps first. If it does, every completion is recorded.
    pub(super) sleeps_ms: u64,
}

impl App {
    /// A latency-critical app: one random read of 4 KiB after the other.
    pub(super) const LATENCY: App = App { block_kib: 4, depth: 1, ..App::BATCH };
    /// A batch app, which keeps the device busy.
    pub(super) const BATCH: App =
        App { pattern: "randread", block_kib: 64, depth: 32, weight: 100, limit: None, class: 2, sleeps_ms: 0 };
}

/// Apps, the knob in front of the device, and the daemon's depth.
pub(super) struct Run<'a> {
    pub(super) knob: Knob,
    pub(super) depth: u32,
    pub(super) apps: &'a [App],
    pub(super) time_ms: u64,
}

pub(super) struct Bed {
    device: LoopDevice,
    daemon: PathBuf,
    /// Knee of the daemon's cost model, in bytes.
    pub(super) knee: u64,
    folder: tempfile::TempDir,
    _scratch: tempfile::TempDir,
    /// Ends when a signal asks this process to end.
    signals: JoinHandle<Result<(), Failure>>,
}

impl Bed {
    pub(super) fn new(folder: Option<&Path>, daemon: PathBuf) -> Result<Bed, String> {
        let signals = thread::spawn(|| sluice_testbed::run(std::future::pending()));
        let scratch = server::scratch(folder)?;
        let device = kernel::device(scratch.path(), (APPS_MAX * PART_MIB) as u64, APPS_MAX)?;
        let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder: {error}"))?;
        let mut bed = Bed { device, daemon, knee: 0, folder, _scratch: scratch, signals };
        let iops = |app: App| {
            let got = bed.run(&Run { knob: Knob::None, depth: DEPTH, apps: &[app; 4], time_ms: KNEE_MS })?;
            Ok::<f64, String>(got.iter().map(|outcome| outcome.iops).sum())
        };
        bed.knee = knee(iops(App { block_kib: 4, ..App::BATCH })?, iops(App::BATCH)?);
        Ok(bed)
    }

    /// Runs the apps at the same time, unless a signal has come. Returns the outcome of each.
    pub(super) fn run(&self, run: &Run<'_>) -> Result<Vec<Outcome>, String> {
        if self.signals.is_finished() {
            return Err("Interrupted; the loop device is removed".to_owned());
        }
        let daemon = self.prepare(run)?;
        let children: Vec<Child> = (0..run.apps.len()).map(|index| self.start(run, index)).collect::<Result<_, _>>()?;
        let outputs: Vec<_> = children.into_iter().map(Child::wait_with_output).collect();
        drop(daemon);
        let mut outcomes = Vec::new();
        for (index, output) in outputs.into_iter().enumerate() {
            let output = output.map_err(|error| format!("fio: {error}"))?;
            let parsed = fio::parse(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
                format!("{}: Cannot parse fio's output: {}", run.knob.name(), String::from_utf8_lossy(&output.stderr))
            })?;
            let slept = run.apps[index].sleeps_ms > 0;
            let log = slept.then(|| fs::read_to_string(format!("{}_bw.1.log", self.log(index))).unwrap_or_default());
            outcomes.push(Outcome { completions: log.map(|log| fio::parse_log(&log)).unwrap_or_default(), ..parsed });
        }
        Ok(outcomes)
    }

    /// Sets the knob: the groups of the kernel, or the daemon.
    fn prepare(&self, run: &Run<'_>) -> Result<Option<Server>, String> {
        self.device.set_scheduler(match run.knob {
            Knob::Deadline => "mq-deadline",
            Knob::Bfq => "bfq",
            _ => "none",
        })?;
        let number = self.device.number()?;
        for (group, app) in self.device.groups.iter().zip(run.apps) {
            if run.knob == Knob::Bfq {
                set(&group.join("blkio.bfq.weight"), &app.weight.to_string())?;
            }
            // 0 removes a limit.
            let limit = if run.knob == Knob::Throttle { app.limit.unwrap_or(NO_LIMIT) * 1e6 } else { 0.0 };
            for file in ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"] {
                set(&group.join(file), &format!("{number} {limit:.0}"))?;
            }
        }
        if !run.knob.is_daemon() {
            return Ok(None);
        }
        let sockets = (0..run.apps.len()).map(|index| self.socket(index)).collect();
        Server::build_of_sluice(&self.daemon, self.folder.path(), "host", &self.host_file(run), sockets).map(Some)
    }

    fn host_file(&self, run: &Run<'_>) -> String {
        let device = &self.device.path;
        let scheduler = if run.knob == Knob::Noop { "noop" } else { "mclock" };
        let mut text = format!(
            "[device.disk]\npath = \"{device}\"\nscheduler = \"{scheduler}\"\ndepth = {}\n[device.disk.cost]\nknee = \"{}B\"\n",
            run.depth, self.knee
        );
        for (index, app) in run.apps.iter().enumerate() {
            let _ = writeln!(text, "[vm.v{index}]");
            if run.knob == Knob::Mclock {
                let _ = writeln!(text, "weight = {}", app.weight);
            }
            let _ = writeln!(
                text,
                "[vm.v{index}.volume.disk]\ndevice = \"disk\"\nsource = \"{device}\"\noffset = \"{}MiB\"\n\
                 size = \"{PART_MIB}MiB\"\nexport = {{ socket = \"{}\" }}",
                index * PART_MIB,
                self.socket(index).display()
            );
        }
        text
    }

    /// Starts an app. A shell puts itself into the group before it becomes fio.
    fn start(&self, run: &Run<'_>, index: usize) -> Result<Child, String> {
        let app = run.apps[index];
        // An app that does not sleep runs until the others have slept.
        let slept_ms: u64 = run.apps.iter().map(|other| other.sleeps_ms).sum();
        let time_ms = run.time_ms + slept_ms - app.sleeps_ms;
        let mut fio = format!(
            "exec timeout {} fio --name=app --rw={} --bs={}k --iodepth={} --size={PART_MIB}m --time_based \
             --runtime={}ms --randrepeat=0 --norandommap --thread --clat_percentiles=0 --lat_percentiles=1 \
             --output-format=json",
            time_ms / 1000 + 60,
            app.pattern,
            app.block_kib,
            app.depth,
            time_ms
        );
        let _ = match app.sleeps_ms {
            // Until all apps have started.
            0 => write!(fio, " --ramp_time={}ms", super::RAMP_MS),
            sleeps_ms => write!(fio, " --startdelay={sleeps_ms}ms --write_bw_log={}", self.log(index)),
        };
        if run.knob.is_daemon() {
            let _ = write!(
                fio,
                " --ioengine=nbd '--uri=nbd+unix:///v{index}/disk?socket={}'",
                self.socket(index).display()
            );
        } else {
            let (device, offset) = (&self.device.path, index * PART_MIB);
            let _ = write!(fio, " --ioengine=io_uring --direct=1 --filename={device} --offset={offset}m");
            if run.knob == Knob::Deadline {
                let _ = write!(fio, " --prioclass={}", app.class);
            }
            fio = format!("echo $$ > {}/cgroup.procs && {fio}", self.device.groups[index].display());
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", &fio]).current_dir(workspace::root()).stdin(Stdio::null());
        let spawned = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        spawned.map_err(|error| format!("Cannot start fio: {error}"))
    }

    fn socket(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{index}.sock"))
    }

    /// Returns the name of the log of an app, to which fio adds a suffix.
    fn log(&self, index: usize) -> String {
        self.folder.path().join(index.to_string()).display().to_string()
    }
}

/// Returns the size in bytes at which the transfer takes as long as the rest of a request, from the rates of requests of
/// 4 and 64 KiB: with a knee of k, requests of s bytes cost k + s. What the configuration rejects is cut off.
fn knee(small_iops: f64, large_iops: f64) -> u64 {
    let ratio = small_iops / large_iops;
    if ratio <= 1.0 { 10_000_000 } else { ((65_536.0 - 4096.0 * ratio) / (ratio - 1.0)).clamp(1000.0, 1e7) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_explains_the_rates_of_two_sizes() {
        // (8,192 + 65,536) / (8,192 + 4,096) = 6.
        assert_eq!(knee(60_000.0, 10_000.0), 8192);
        assert_eq!((knee(1000.0, 1000.0), knee(16_000.0, 1000.0)), (10_000_000, 1000));
    }
}
