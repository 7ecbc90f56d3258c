//! A daemon with many VMs, and what its parts use.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::super::server::{scratch, sluice_binary};

/// Size of each volume, in bytes.
const VOLUME_BYTES: u64 = 1 << 20;

/// A scrape.
pub(crate) struct Scrape {
    pub(crate) cpu_ms: f64,
    pub(crate) series: usize,
    pub(crate) bytes: usize,
    /// When its counters were read.
    sampled: String,
}

/// A daemon with many VMs. Dropping it kills the daemon.
pub(crate) struct Host {
    files: tempfile::TempDir,
    sockets: tempfile::TempDir,
    vms: usize,
    daemon: Daemon,
    address: SocketAddr,
}

/// The process. Dropping it kills it.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    /// Starts a daemon with `vms` VMs, of which each fifth has two volumes.
    pub(crate) fn start(vms: usize) -> Result<Host, String> {
        let failed = |error: std::io::Error| format!("Cannot prepare {vms} VMs: {error}");
        let (files, sockets) = (scratch(None)?, tempfile::tempdir_in("/dev/shm").map_err(failed)?);
        let address = SocketAddr::from(([127, 0, 0, 1], free_port().map_err(failed)?));
        let text = host_file(vms, files.path(), sockets.path(), address).map_err(failed)?;
        fs::write(files.path().join("host.toml"), text).map_err(failed)?;
        let daemon = serve(files.path(), sockets.path())?;
        Ok(Host { files, sockets, vms, daemon, address })
    }

    /// Kills the daemon and starts it again. Returns the time until it is ready, in ms.
    pub(crate) fn restart(&mut self) -> Result<f64, String> {
        let _ = self.daemon.0.kill();
        let _ = self.daemon.0.wait();
        let begin = Instant::now();
        self.daemon = serve(self.files.path(), self.sockets.path())?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    }

    /// Sets the weight of VM `index`, modulo their number. Returns the time to the reply, in ms: the change is in force then.
    pub(crate) fn set_weight(&self, index: usize, weight: usize) -> Result<f64, String> {
        let vm = format!("customer{}", index % self.vms);
        let request = serde_json::json!({ "verb": "set", "target": vm, "keys": { "weight": weight } });
        let begin = Instant::now();
        let exchange = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(control(self.sockets.path()))?;
            writeln!(stream, "{request}")?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            Ok(line)
        };
        let line = exchange().map_err(|error| format!("Control socket: {error}"))?;
        let took = begin.elapsed().as_secs_f64() * 1e3;
        let reply: Value = serde_json::from_str(&line).map_err(|error| format!("Control socket: {error}: {line}"))?;
        if reply["ok"] == true { Ok(took) } else { Err(format!("{request} was rejected: {reply}")) }
    }

    /// Runs `sluice get WHAT -o json`. Returns its output.
    pub(crate) fn get(&self, what: &str) -> Result<String, String> {
        let mut command = Command::new(sluice_binary());
        let command = command.args(["get", what, "-o", "json", "--socket"]).arg(control(self.sockets.path()));
        let ended = command.output().map_err(|error| format!("Cannot start sluice: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if ended.status.success() { Ok(text(&ended.stdout)) } else { Err(text(&ended.stderr)) }
    }

    /// Scrapes until there is a sample that was not scraped before.
    pub(crate) fn next_scrape(&self) -> Result<Scrape, String> {
        let first = self.scrape()?;
        loop {
            let next = self.scrape()?;
            if next.sampled != first.sampled {
                return Ok(next);
            }
            // polls: the next sample, which the daemon does not announce.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn scrape(&self) -> Result<Scrape, String> {
        let before = self.cpu_ms_of("metrics")?;
        let mut text = String::new();
        let exchange = |text: &mut String| -> std::io::Result<()> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n")?;
            stream.read_to_string(text).map(drop)
        };
        exchange(&mut text).map_err(|error| format!("Cannot scrape {}: {error}", self.address))?;
        let cpu_ms = self.cpu_ms_of("metrics")? - before;
        let series = text.lines().filter(|line| line.starts_with("sluice_") || line.starts_with("process_")).count();
        let sampled = text.lines().find(|line| line.starts_with("sluice_last_sample")).unwrap_or_default().to_owned();
        Ok(Scrape { cpu_ms, series, bytes: text.len(), sampled })
    }

    /// Shows the VMs for some seconds. Returns the CPU time of the command and of the daemon, in percent of a core.
    pub(crate) fn top(&self, seconds: u64) -> Result<(f64, f64), String> {
        let failed = |error: std::io::Error| format!("Cannot show `sluice top` on a terminal: {error}");
        // waits: the same time without the command is what it is compared with.
        let before = self.cpu_ms_of("")?;
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        let idle = self.cpu_ms_of("")? - before;
        let top = format!(
            "stty cols 160 rows 50; exec {} top -n {} --socket {}",
            sluice_binary().display(),
            seconds + 1,
            control(self.sockets.path()).display()
        );
        let (before, children) = (self.cpu_ms_of("")?, children_ms()?);
        let mut command = Command::new("script");
        command.args(["--quiet", "--command", &top, "/dev/null"]).env("TERM", "xterm").env("LANG", "C.UTF-8");
        // An end of its input would be a key.
        let mut shown = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
        let keys = shown.stdin.take();
        let status = shown.wait().map_err(failed)?;
        drop(keys);
        if !status.success() {
            return Err("`sluice top` failed".to_owned());
        }
        let percent = |ms: f64| ms / 10.0 / seconds as f64;
        Ok((percent(children_ms()? - children), percent(self.cpu_ms_of("")? - before - idle)))
    }

    /// CPU time of all its threads, and of the commands that have ended.
    pub(crate) fn cpu_ms(&self) -> Result<f64, String> {
        Ok(self.cpu_ms_of("")? + children_ms()?)
    }

    fn cpu_ms_of(&self, name: &str) -> Result<f64, String> {
        cpu_ms_of(self.daemon.0.id(), name)
    }

    /// CPU time of all its threads.
    pub(crate) fn daemon_cpu_ms(&self) -> Result<f64, String> {
        self.cpu_ms_of("")
    }

    pub(crate) fn resident_kb(&self) -> Result<f64, String> {
        resident_kb(self.daemon.0.id())
    }

    /// The control socket.
    pub(crate) fn control(&self) -> PathBuf {
        control(self.sockets.path())
    }

    /// The socket of the first volume of a VM.
    pub(crate) fn socket(&self, vm: usize) -> PathBuf {
        self.sockets.path().join(format!("{vm}-0.sock"))
    }
}

/// Anonymous resident memory of a process, in KB of 1,000 bytes.
pub(crate) fn resident_kb(pid: u32) -> Result<f64, String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.map_err(|error| format!("Cannot read the memory of {pid}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map(|kib| kib * 1.024).ok_or_else(|| "The kernel does not state RssAnon".to_owned())
}

/// CPU time of the threads of a process with this name, in ms; of all of them if it is empty.
pub(crate) fn cpu_ms_of(pid: u32, name: &str) -> Result<f64, String> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    let tasks = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut nanos = 0.0;
    for task in tasks.map_while(Result::ok) {
        if name.is_empty() || read(&task.path().join("comm"))?.trim() == name {
            let stat = read(&task.path().join("schedstat"))?;
            let ran = stat.split_whitespace().next().and_then(|ran| ran.parse::<f64>().ok());
            nanos += ran.ok_or("The kernel has no schedstat")?;
        }
    }
    Ok(nanos / 1e6)
}

/// Makes the volumes. Returns the host file.
fn host_file(vms: usize, files: &Path, sockets: &Path, address: SocketAddr) -> std::io::Result<String> {
    let (folder, control) = (files.display(), control(sockets));
    let mut text = format!(
        "[daemon]\ncontrol = \"{}\"\nmetrics = \"{address}\"\n[device.disk]\npath = \"{folder}\"\nscheduler = \"mclock\"\n\
         capacity = \"200000 iops@8KiB\"\n[policy.each]\nreservation = \"10 iops@8KiB\"\nlimit = \"5000 iops@8KiB\"\nlatency \
         = {{ p99 = \"100ms\" }}\nallow_unenforced = true\n",
        control.display()
    );
    for vm in 0..vms {
        let _ = writeln!(text, "[vm.customer{vm}]\npolicy = \"each\"");
        for volume in 0..if vm < vms / 5 { 2 } else { 1 } {
            let image = files.join(format!("{vm}-{volume}.img"));
            fs::File::create_new(&image)?.set_len(VOLUME_BYTES)?;
            let socket = sockets.join(format!("{vm}-{volume}.sock"));
            let _ = writeln!(
                text,
                "[vm.customer{vm}.volume.v{volume}]\ndevice = \"disk\"\nsource = \"{}\"\nexport = {{ socket = \"{}\" }}",
                image.display(),
                socket.display()
            );
        }
    }
    Ok(text)
}

/// Starts the daemon and waits until it is ready. Its state is in memory, where a sync takes no time.
fn serve(files: &Path, sockets: &Path) -> Result<Daemon, String> {
    let mut command = Command::new(sluice_binary());
    command.env("STATE_DIRECTORY", sockets.join("state")).arg("serve").arg(files.join("host.toml"));
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut daemon = Daemon(spawned.map_err(|error| format!("Cannot start sluice: {error}"))?);
    let mut log = BufReader::new(daemon.0.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    let mut seen = String::new();
    let is_ready = log.by_ref().any(|line| {
        let is_ready = line.contains("Ready");
        seen = line;
        is_ready
    });
    std::thread::spawn(move || log.for_each(drop));
    if is_ready { Ok(daemon) } else { Err(format!("The daemon exited before it was ready: {seen}")) }
}

fn control(sockets: &Path) -> PathBuf {
    sockets.join("control")
}

fn free_port() -> std::io::Result<u16> {
    std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr().map(|address| address.port())
}

/// CPU time of children that have ended: fields 16 and 17 of the process's own line.
fn children_ms() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().skip(13)).ok_or("/proc/self/stat")?;
    let ticks: f64 = fields.take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks * 1000.0 / rustix::param::clock_ticks_per_second() as f64)
}
