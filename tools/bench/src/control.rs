//! `cargo xtask bench control`: the cost of the start and of changes on a host with many VMs.
//!
//! Each VM has a volume of 1 MiB in its own file, and its own NBD socket. All times are measured from outside: from
//! the start of the process to its ready line, from a request on the control socket to its reply, from SIGHUP to the
//! log line of the applied file. With `--beside`, another build alternates with this one.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::report::{Bound, Cell, Report, Table};
use super::server::{build_sluice, scratch, sluice_binary};
use super::stats::Samples;

/// Size of each volume, in bytes.
const VOLUME_BYTES: u64 = 1 << 20;
/// Number of changes of each kind in a round.
const CHANGES: usize = 20;

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Another build of the daemon, which alternates with this one.
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

/// Measurements of one build, in ms.
#[derive(Default)]
struct Measured {
    start_half: Samples,
    start: Samples,
    reload: Samples,
    set: Samples,
    attach: Samples,
    detach: Samples,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    build_sluice()?;
    let (vms, rounds) = if quick { (100, 1) } else { (2000, options.rounds) };
    let fixture = Fixture::new(vms)?;
    let mut builds = vec![("this build", sluice_binary(), Measured::default())];
    builds.extend(options.beside.clone().map(|program| ("beside", program, Measured::default())));
    for round in 0..rounds {
        for (name, program, measured) in &mut builds {
            eprintln!("control: {name}, round {} of {rounds}", round + 1);
            measured.measure(&fixture, program)?;
        }
    }
    let mut report = Report::new("control");
    let mut table = Table::new(
        format!("What changes cost, {vms} VMs with a volume each, in ms"),
        &["build", "start, half of the VMs", "start", "reload of one VM of half", "set", "attach", "detach"],
    );
    for (name, _, measured) in &builds {
        let Measured { start_half, start, reload, set, attach, detach } = measured;
        table.row(vec![
            Cell::text(*name),
            Cell::spread(start_half, 0),
            Cell::spread(start, 0),
            Cell::spread(reload, 1),
            Cell::spread(set, 1),
            Cell::spread(attach, 1),
            Cell::spread(detach, 1),
        ]);
    }
    report.table(table);
    let own = &builds[0].2;
    report.target(format!("start of {vms} volumes [ms]"), Bound::AtMost(2000.0), own.start.median());
    let growth = own.start.ratio(&own.start_half).median();
    report.target("start / start of half of them", Bound::AtMost(2.4), growth);
    report.target(format!("reload of one VM of {} [ms]", vms / 2), Bound::AtMost(20.0), own.reload.median());
    report.target(format!("set at {vms} VMs [ms]"), Bound::AtMost(10.0), own.set.median());
    Ok(report)
}

/// Files and sockets of all VMs.
struct Fixture {
    files: tempfile::TempDir,
    sockets: tempfile::TempDir,
    vms: usize,
}

impl Fixture {
    fn new(vms: usize) -> Result<Fixture, String> {
        let files = scratch(None)?;
        let sockets = socket_folder().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
        for vm in 0..=vms {
            let path = files.path().join(format!("{vm}.img"));
            let made = fs::File::create_new(&path).and_then(|file| file.set_len(VOLUME_BYTES));
            made.map_err(|error| format!("Cannot make {}: {error}", path.display()))?;
        }
        Ok(Fixture { files, sockets, vms })
    }

    fn control(&self) -> PathBuf {
        self.sockets.path().join("control")
    }

    /// Removes the sockets of a killed daemon.
    fn clean(&self) -> std::io::Result<()> {
        for socket in fs::read_dir(self.sockets.path())? {
            fs::remove_file(socket?.path())?;
        }
        Ok(())
    }

    /// Returns a host file with the first `vms` VMs. `weight` is the weight of the first.
    fn host(&self, vms: usize, weight: usize) -> String {
        let (folder, control) = (self.files.path().display(), self.control().display().to_string());
        let mut text = format!("[daemon]\ncontrol = \"{control}\"\n[device.disk]\npath = \"{folder}\"\n");
        for vm in 0..vms {
            let socket = self.sockets.path().join(format!("{vm}.sock"));
            let weight = if vm == 0 { weight } else { 100 };
            let _ = write!(
                text,
                "[vm.vm{vm}]\nweight = {weight}\n[vm.vm{vm}.volume.v]\ndevice = \"disk\"\nsource = \"{folder}/{vm}.img\"\n\
                 export = {{ socket = \"{}\" }}\n",
                socket.display()
            );
        }
        text
    }
}

impl Measured {
    fn measure(&mut self, fixture: &Fixture, program: &Path) -> Result<(), String> {
        let half = fixture.vms / 2;
        let (daemon, start) = Daemon::start(fixture, program, half)?;
        self.start_half.push(start);
        let mut daemon = daemon;
        for change in 0..CHANGES {
            self.reload.push(daemon.reload(&fixture.host(half, 200 + change))?);
        }
        drop(daemon);
        let (daemon, start) = Daemon::start(fixture, program, fixture.vms)?;
        self.start.push(start);
        for change in 0..CHANGES {
            let vm = format!("vm{}", change * fixture.vms / CHANGES);
            self.set.push(ask(fixture, &json!({ "verb": "set", "target": vm, "keys": { "weight": 200 + change } }))?);
            self.attach.push(ask(fixture, &fixture.attach())?);
            self.detach.push(ask(fixture, &json!({ "verb": "detach", "target": "more" }))?);
        }
        drop(daemon);
        Ok(())
    }
}

impl Fixture {
    fn attach(&self) -> Value {
        let source = self.files.path().join(format!("{}.img", self.vms));
        let socket = self.sockets.path().join("more.sock");
        let keys = json!({ "device": "disk", "source": source, "export": { "socket": socket } });
        json!({ "verb": "attach", "target": "more/v", "keys": keys, "vm": {} })
    }
}

/// Makes a folder for sockets in memory, as /run is. On ext4 each new file searches past all inodes that were deleted in the
/// last seconds, and 2,000 sockets of the daemon before take 1 ms of each `bind`.
fn socket_folder() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// Sends a request to the control socket. Returns the time to the reply, in ms.
fn ask(fixture: &Fixture, request: &Value) -> Result<f64, String> {
    let begin = Instant::now();
    let exchange = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(fixture.control())?;
        writeln!(stream, "{request}")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = exchange().map_err(|error| format!("Control socket: {error}"))?;
    let took = milliseconds(begin);
    let reply: Value = serde_json::from_str(&line).map_err(|error| format!("Control socket: {error}: {line}"))?;
    if reply["ok"] == true { Ok(took) } else { Err(format!("{request} was rejected: {reply}")) }
}

/// A daemon and its log. Dropping it kills the daemon.
struct Daemon {
    child: Child,
    file: PathBuf,
    log: Lines<BufReader<ChildStderr>>,
}

impl Daemon {
    /// Starts the daemon. Returns also the time until it was ready, in ms.
    fn start(fixture: &Fixture, program: &Path, vms: usize) -> Result<(Daemon, f64), String> {
        let file = fixture.files.path().join("host.toml");
        let failed = |error: std::io::Error| format!("Cannot start {}: {error}", program.display());
        fs::write(&file, fixture.host(vms, 100)).map_err(failed)?;
        fixture.clean().map_err(failed)?;
        let begin = Instant::now();
        let mut command = Command::new(program);
        let state = fixture.files.path().join(format!("{vms}.state"));
        let _ = fs::remove_dir_all(&state);
        command.env("STATE_DIRECTORY", state);
        let command = command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let log = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut daemon = Daemon { child, file, log };
        daemon.wait_for_line("Ready")?;
        Ok((daemon, milliseconds(begin)))
    }

    fn wait_for_line(&mut self, wanted: &str) -> Result<(), String> {
        let mut last = String::new();
        for line in self.log.by_ref().map_while(Result::ok) {
            if line.contains(wanted) {
                return Ok(());
            }
            last = line;
        }
        Err(format!("The daemon exited before it logged {wanted}: {last}"))
    }

    /// Returns the time to apply another file, in ms.
    fn reload(&mut self, host: &str) -> Result<f64, String> {
        fs::write(&self.file, host).map_err(|error| format!("Cannot write {}: {error}", self.file.display()))?;
        let begin = Instant::now();
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a number");
        kill_process(pid, Signal::HUP).map_err(|error| format!("Cannot signal the daemon: {error}"))?;
        self.wait_for_line("Reload applied")?;
        Ok(milliseconds(begin))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
