//! The load of all VMs of a run: one fio process, which logs every request.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// MiB of a volume.
pub(super) const VOLUME_MIB: u32 = 16;

/// A VM of a run.
#[derive(Debug, Clone)]
pub(super) struct Vm {
    /// From 1.
    pub(super) host: u32,
    /// Requests per second that it reserves.
    pub(super) reserved: u32,
    pub(super) outstanding: u32,
    /// Size of its requests, as fio has it.
    pub(super) size: &'static str,
    /// Time between a request and the next one, in microseconds.
    pub(super) think_us: u32,
    /// Seconds from the begin, and its outstanding requests from then on, in percent.
    pub(super) levels: Vec<(usize, u32)>,
}

/// A running fio.
pub(super) struct Load {
    fio: Child,
    folder: PathBuf,
    begin_ms: f64,
    vms: Vec<Vec<Job>>,
}

/// A job of fio: a level of a VM.
struct Job {
    name: String,
    log: String,
}

/// What the VMs got.
pub(super) struct Outcome {
    /// Of each VM: when requests completed in seconds from the begin, ascending, and how long they took in milliseconds.
    pub(super) completed: Vec<Vec<(f64, f64)>>,
    /// Jobs that failed, of each VM.
    pub(super) errors: Vec<usize>,
}

impl Vm {
    pub(super) fn new(host: u32, reserved: u32, outstanding: u32) -> Vm {
        Vm { host, reserved, outstanding, size: "8k", think_us: 0, levels: vec![(0, 100)] }
    }

    /// Its part of its outstanding requests at a time, in percent, and since when.
    pub(super) fn level(&self, at: f64) -> (usize, u32) {
        self.levels.iter().rev().find(|(from, _)| *from as f64 <= at).copied().unwrap_or((0, 0))
    }
}

impl Load {
    /// Starts the load on export `d` of each VM's socket.
    pub(super) fn start(
        folder: &Path,
        vms: &[Vm],
        socket: impl Fn(usize) -> PathBuf,
        seconds: usize,
    ) -> Result<Load, String> {
        let mut text =
            "[global]\nioengine=nbd\nrw=randread\ntime_based\nrandrepeat=0\nthread\nlog_unix_epoch=1\n".to_owned();
        let _ = writeln!(text, "disable_clat=1\ndisable_slat=1\nsize={VOLUME_MIB}m");
        let (mut all, mut count) = (Vec::new(), 0);
        for (number, vm) in vms.iter().enumerate() {
            let ends = vm.levels.iter().skip(1).map(|(at, _)| *at).chain([seconds]);
            let mut jobs = Vec::new();
            for (level, ((from, percent), to)) in vm.levels.iter().zip(ends).enumerate() {
                let (depth, to) = (vm.outstanding * percent / 100, to.min(seconds));
                if depth == 0 || *from >= to {
                    continue;
                }
                let (name, runtime) = (format!("vm{number}-{level}"), to - from);
                let _ = writeln!(text, "[{name}]\nuri=nbd+unix:///v{number}/d?socket={}", socket(number).display());
                let _ = writeln!(text, "bs={}\niodepth={depth}\nthinktime={}", vm.size, vm.think_us);
                let _ = writeln!(text, "startdelay={from}\nruntime={runtime}\nwrite_lat_log={name}");
                // fio numbers logs by the job.
                count += 1;
                let log = format!("{name}_lat.{count}.log");
                jobs.push(Job { name, log });
            }
            all.push(jobs);
        }
        let io = |error: std::io::Error| format!("Cannot start fio: {error}");
        fs::write(folder.join("load.fio"), text).map_err(io)?;
        let begin_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0;
        let mut fio = Command::new("fio");
        fio.args(["--output-format=json", "--output=load.json", "load.fio"]).current_dir(folder).stdin(Stdio::null());
        let fio = fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(io)?;
        Ok(Load { fio, folder: folder.to_owned(), begin_ms, vms: all })
    }

    /// Waits for its end.
    pub(super) fn finish(mut self) -> Result<Outcome, String> {
        self.fio.wait().map_err(|error| format!("Cannot wait for fio: {error}"))?;
        let text = fs::read_to_string(self.folder.join("load.json")).unwrap_or_default();
        let begin = text.find('{').ok_or("fio has printed no result")?;
        let result: serde_json::Value =
            serde_json::from_str(&text[begin..]).map_err(|error| format!("Cannot parse fio's result: {error}"))?;
        let failed = |job: &Job| {
            let jobs = result["jobs"].as_array();
            let own = jobs.and_then(|jobs| jobs.iter().find(|found| found["jobname"] == *job.name));
            own.is_none_or(|own| own["error"] != 0 || own["read"]["total_ios"] == 0)
        };
        let errors = self.vms.iter().map(|jobs| jobs.iter().filter(|job| failed(job)).count()).collect();
        let completed = self.vms.iter().map(|jobs| self.completed(jobs)).collect();
        Ok(Outcome { completed, errors })
    }

    fn completed(&self, jobs: &[Job]) -> Vec<(f64, f64)> {
        let mut all = Vec::new();
        for job in jobs {
            let text = fs::read_to_string(self.folder.join(&job.log)).unwrap_or_default();
            all.extend(text.lines().filter_map(|line| {
                let mut fields = line.split(',').map(str::trim);
                let (at, nanos): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
                Some(((at - self.begin_ms) / 1000.0, nanos / 1e6))
            }));
        }
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        all
    }
}

impl Outcome {
    /// Requests of a VM that completed in a span of time, in seconds.
    pub(super) fn count(&self, vm: usize, from: f64, to: f64) -> usize {
        let series = &self.completed[vm];
        series.partition_point(|(at, _)| *at < to) - series.partition_point(|(at, _)| *at < from)
    }

    /// p99 of the time of a VM's requests in milliseconds, from a second on.
    pub(super) fn p99_ms(&self, vm: usize, from: f64) -> f64 {
        let mut times: Vec<f64> =
            self.completed[vm].iter().filter(|(at, _)| *at >= from).map(|(_, took)| *took).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    }
}
