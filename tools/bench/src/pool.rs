//! `cargo xtask bench pool`: a minimum that holds although other hosts use the same storage.
//!
//! Four daemons stand for four hosts. Their storage is one file behind a throttle of 2,000 requests per second and a FUSE file system, of
//! which each VM has a part; fio loads it over NBD and logs each second. Host 1 has a VM that reserves 800. Its seconds below 95 % of that are
//! short, from second 3 on. Each row runs with the exchange and beside it without (`depth` alone), and states the total, so that no
//! promise is kept by wasting the storage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::report::{Bound, Cell, Report, Table};
use super::server::{Server, build_sluice, has, scratch, sluice_binary};

/// Requests per second of the storage.
const IOPS: u32 = 2000;
/// What the VM of host 1 reserves.
const RESERVED: f64 = 800.0;
const HOSTS: u32 = 4;
/// Seconds at the beginning that do not count, and seconds after an event that are counted apart.
const BEGIN: usize = 2;
const APART: usize = 5;
const VOLUME_MIB: u32 = 16;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Length of a run in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: usize,
    /// Number of runs of each row.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Only the rows whose names contain this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// What happens in the middle of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Happens {
    Nothing,
    /// The daemon of the last host is killed.
    HostDies,
    /// The meeting place does not respond for a third of the run.
    PlaceAway,
}

/// A row.
struct Row {
    name: &'static str,
    /// Size of the requests of the other VMs.
    size: &'static str,
    /// Stated capacity.
    capacity: u32,
    happens: Happens,
}

const ROWS: [Row; 6] = [
    Row { name: "3 busy hosts", size: "8k", capacity: IOPS, happens: Happens::Nothing },
    Row { name: "requests of 64 KiB", size: "64k", capacity: IOPS, happens: Happens::Nothing },
    Row { name: "requests of 256 KiB", size: "256k", capacity: IOPS, happens: Happens::Nothing },
    Row { name: "capacity 30 % too high", size: "8k", capacity: IOPS * 13 / 10, happens: Happens::Nothing },
    Row { name: "a host is killed", size: "8k", capacity: IOPS, happens: Happens::HostDies },
    Row { name: "the meeting place is away", size: "8k", capacity: IOPS, happens: Happens::PlaceAway },
];

/// What a run gave.
struct Outcome {
    /// Requests of each host, second by second.
    seconds: Vec<Vec<f64>>,
    errors: usize,
    /// Mean time at the storage in ms, as the daemon of host 1 measured it.
    device_ms: Option<f64>,
}

/// Short seconds of the VM that reserves.
#[derive(Default)]
struct Short {
    short: usize,
    of: usize,
    apart: usize,
    /// Sums of its rates and of all rates.
    own: f64,
    all: f64,
    errors: usize,
    device_ms: Vec<f64>,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    for (program, package) in [("fio", "fio"), ("qemu-storage-daemon", "qemu-system-common"), ("nbdfuse", "libnbd-bin")]
    {
        if !has(program) {
            return Err(format!("{program} is missing: install the package {package}"));
        }
    }
    build_sluice()?;
    let (rounds, seconds) = if quick { (1, 12) } else { (options.rounds, options.seconds) };
    let mut report = Report::new("pool");
    let columns = [
        "row",
        "exchange",
        "short [%]",
        "of seconds",
        "short after events",
        "its rate",
        "all",
        "device [ms]",
        "errors",
    ];
    let title = format!("A VM that reserves {RESERVED} of {IOPS} iops with 16 outstanding, beside three hosts with 32");
    let mut table = Table::new(title, &columns);
    for row in ROWS.iter().filter(|row| row.name.contains(&options.only)) {
        let mut measured = [Short::default(), Short::default()];
        for round in 0..rounds {
            for (is_pool, short) in [true, false].into_iter().zip(&mut measured) {
                eprintln!(
                    "pool: {}, round {} of {rounds}, {}",
                    row.name,
                    round + 1,
                    if is_pool { "with" } else { "without" }
                );
                short.add(&Bed::new(row, is_pool)?.load(row, seconds)?, row, seconds);
            }
        }
        for (name, short) in ["yes", "no"].into_iter().zip(&measured) {
            table.row(short.cells(row.name, name));
        }
        let [with, without] = &measured;
        report.target(format!("short [%]: {}", row.name), Bound::AtMost(1.0), with.percent());
        report.target(format!("all / without: {}", row.name), Bound::AtLeast(0.97), with.all / without.all.max(1.0));
    }
    report.table(table);
    Ok(report)
}

impl Short {
    fn add(&mut self, outcome: &Outcome, row: &Row, seconds: usize) {
        let (begin, end) = match row.happens {
            Happens::Nothing => (usize::MAX, usize::MAX),
            Happens::HostDies => (seconds / 3, usize::MAX),
            Happens::PlaceAway => (seconds / 3, 2 * seconds / 3),
        };
        let is_apart =
            |second: usize| [begin, end].iter().any(|event| second >= *event && second < event.saturating_add(APART));
        for second in BEGIN..outcome.seconds[0].len() {
            let own = outcome.seconds[0][second];
            let is_short = own < 0.95 * RESERVED;
            if is_apart(second) {
                self.apart += usize::from(is_short);
                continue;
            }
            self.short += usize::from(is_short);
            self.of += 1;
            self.own += own;
            self.all += outcome.seconds.iter().filter_map(|host| host.get(second)).sum::<f64>();
        }
        self.errors += outcome.errors;
        self.device_ms.extend(outcome.device_ms);
    }

    fn percent(&self) -> f64 {
        100.0 * self.short as f64 / self.of.max(1) as f64
    }

    fn cells(&self, row: &str, exchange: &str) -> Vec<Cell> {
        let mean = |sum: f64| format!("{:.0}", sum / self.of.max(1) as f64);
        let device = self.device_ms.iter().sum::<f64>() / self.device_ms.len() as f64;
        vec![
            Cell::text(row),
            Cell::text(exchange),
            Cell::text(format!("{:.1}", self.percent())),
            Cell::text(self.of.to_string()),
            Cell::text(self.apart.to_string()),
            Cell::text(mean(self.own)),
            Cell::text(mean(self.all)),
            Cell::text(if device.is_nan() { "-".to_owned() } else { format!("{device:.1}") }),
            Cell::text(self.errors.to_string()),
        ]
    }
}

/// The storage, the place where hosts meet, and their daemons.
struct Bed {
    /// In the order in which they end: daemons before their storage.
    daemons: Vec<Option<Server>>,
    place: Mount,
    _storage: Mount,
    folder: tempfile::TempDir,
}

/// A file system of one file, unmounted when dropped.
struct Mount {
    server: Child,
    at: PathBuf,
}

impl Mount {
    fn start(command: &mut Command, at: PathBuf, unmount: PathBuf) -> Result<Mount, String> {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = spawned.map_err(|error| format!("Cannot start a file system: {error}"))?;
        let mount = Mount { server, at: unmount };
        let begin = Instant::now();
        while !fs::metadata(&at).is_ok_and(|file| file.len() > 0) {
            if begin.elapsed() > Duration::from_secs(10) {
                return Err(format!("{} is not mounted: is /dev/fuse there?", at.display()));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(mount)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.server.id().cast_signed());
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Bed {
    fn new(row: &Row, is_pool: bool) -> Result<Bed, String> {
        let folder = scratch(None)?;
        let io = |error: std::io::Error| format!("Cannot make the files of the benchmark: {error}");
        let (image, storage, meet) =
            (folder.path().join("image"), folder.path().join("storage"), folder.path().join("meet"));
        fs::File::create(&image).and_then(|file| file.set_len(512 << 20)).map_err(io)?;
        fs::write(&storage, "").and_then(|()| fs::create_dir(&meet)).map_err(io)?;
        let mut qemu = Command::new("qemu-storage-daemon");
        qemu.args(["--object", &format!("throttle-group,id=g,x-iops-total={IOPS}")]);
        qemu.args(["--blockdev", &format!("driver=file,filename={},node-name=f", image.display())]);
        qemu.args(["--blockdev", "driver=throttle,node-name=t,throttle-group=g,file=f"]);
        qemu.args(["--export", &format!("type=fuse,id=e,node-name=t,mountpoint={},writable=on", storage.display())]);
        let mounted = Mount::start(&mut qemu, storage.clone(), storage.clone())?;
        let meeting = meet.join("place");
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&meeting).args(["--command", "nbdkit", "-s", "--exit-with-parent", "memory", "1M"]);
        let place = Mount::start(&mut fuse, meeting.clone(), meet)?;
        let mut create = Command::new(sluice_binary());
        create.args(["pool", "create"]).arg(&meeting).args(["--hosts", &HOSTS.to_string()]);
        let made = create.args(["--capacity", &format!("{} iops", row.capacity)]).output().map_err(io)?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into_owned());
        }
        let mut bed = Bed { daemons: Vec::new(), place, _storage: mounted, folder };
        for number in 1..=HOSTS {
            let host = bed.host_file(row, number, is_pool.then_some(meeting.as_path()), &storage);
            let name = format!("host{number}");
            let daemon =
                Server::build_of_sluice(&sluice_binary(), bed.folder.path(), &name, &host, vec![bed.socket(number)])?;
            bed.daemons.push(Some(daemon));
        }
        Ok(bed)
    }

    fn socket(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("v{number}"))
    }

    fn control(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("c{number}"))
    }

    fn host_file(&self, row: &Row, number: u32, meeting: Option<&Path>, storage: &Path) -> String {
        let (control, state) = (self.control(number), self.folder.path().join(format!("state{number}")));
        let mut host = format!("[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n", control.display(), state.display());
        host += &format!("[device.vms]\npath = \"{}\"\ncapacity = \"{} iops\"\n", storage.display(), row.capacity);
        if let Some(meeting) = meeting {
            let meeting = meeting.display();
            host += &format!("latency = \"8ms\"\n[device.vms.pool]\nmeeting = \"{meeting}\"\nhost = {number}\n");
        }
        let policy = if number == 1 { format!("reservation = \"{RESERVED} iops\"") } else { String::new() };
        let (socket, offset) = (self.socket(number), (number - 1) * VOLUME_MIB);
        host += &format!(
            "[vm.v{number}]\n{policy}\n[vm.v{number}.volume.d]\ndevice = \"vms\"\nsource = \"{}\"\n",
            storage.display()
        );
        host + &format!(
            "offset = \"{offset}MiB\"\nsize = \"{VOLUME_MIB}MiB\"\nexport = {{ socket = \"{}\" }}\n",
            socket.display()
        )
    }

    /// Loads all volumes.
    fn load(mut self, row: &Row, seconds: usize) -> Result<Outcome, String> {
        // Hosts see each other before they are busy.
        sleep(Duration::from_secs(2));
        let jobs: Vec<Child> = (1..=HOSTS).map(|number| self.job(row, number, seconds)).collect::<Result<_, _>>()?;
        let begin = Instant::now();
        let mut device = Vec::new();
        while begin.elapsed() < Duration::from_secs(seconds as u64) {
            let second = begin.elapsed().as_secs() as usize;
            let third = seconds / 3;
            match row.happens {
                Happens::HostDies if second >= third => drop(self.daemons.last_mut().and_then(Option::take)),
                Happens::PlaceAway if second >= 2 * third => self.place.signal(Signal::CONT),
                Happens::PlaceAway if second >= third => self.place.signal(Signal::STOP),
                _ => {}
            }
            sleep(Duration::from_millis(500));
            device.extend((second >= BEGIN + 2).then(|| self.device_ms()).flatten());
        }
        let mut errors = 0;
        for (number, mut job) in (1..).zip(jobs) {
            let status = job.wait().map_err(|error| error.to_string())?;
            let dies = row.happens == Happens::HostDies && number == HOSTS;
            errors += usize::from(!status.success() && !dies);
        }
        let seconds = (1..=HOSTS).map(|number| self.log(number)).collect();
        let device_ms = (!device.is_empty()).then(|| device.iter().sum::<f64>() / device.len() as f64);
        Ok(Outcome { seconds, errors, device_ms })
    }

    fn job(&self, row: &Row, number: u32, seconds: usize) -> Result<Child, String> {
        let (depth, size) = if number == 1 { (16, "8k") } else { (32, row.size) };
        let mut fio = Command::new("fio");
        fio.current_dir(self.folder.path());
        fio.args(["--name=load", "--ioengine=nbd", "--rw=randread", "--time_based", "--randrepeat=0", "--thread"]);
        fio.arg(format!("--uri=nbd+unix:///v{number}/d?socket={}", self.socket(number).display()));
        fio.args([format!("--bs={size}"), format!("--iodepth={depth}"), format!("--size={VOLUME_MIB}m")]);
        fio.args([
            format!("--runtime={seconds}"),
            format!("--write_iops_log=log{number}"),
            "--log_avg_msec=1000".to_owned(),
        ]);
        let spawned = fio.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        spawned.map_err(|error| format!("Cannot start fio: {error}"))
    }

    /// Requests of a host, second by second.
    fn log(&self, number: u32) -> Vec<f64> {
        let log = fs::read_to_string(self.folder.path().join(format!("log{number}_iops.1.log"))).unwrap_or_default();
        log.lines().filter_map(|line| line.split(',').nth(1)?.trim().parse().ok()).collect()
    }

    /// Mean time at the storage in the last period.
    fn device_ms(&self) -> Option<f64> {
        let mut get = Command::new(sluice_binary());
        get.args(["-o", "json", "get", "devices", "--socket"]).arg(self.control(1));
        let output = get.output().ok()?;
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        Some(document["devices"][0]["pool"]["latency_us"].as_f64()? / 1000.0)
    }
}
