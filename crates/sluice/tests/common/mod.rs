//! The harness of the black-box tests: a folder per test, the real daemon, clients of other projects.
//!
//! A test writes a host file, starts the daemon with [`Daemon::serve`] and waits for its ready line. It ends the
//! daemon with [`Daemon::terminate`], or drops it. Every wait is bounded by [`LONG`], which is generous because it
//! only determines how long a failure takes.
//!
//! ```text
//! let place = Place::new();
//! let image = place.image("a.img", 16 << 20);
//! let daemon = Daemon::serve(&place, &format!("{}{}", place.device(""), place.volume("a", "v", &image, "")));
//! run(nbdinfo().arg(place.uri("a", "v")));
//! ```

#![allow(dead_code, reason = "each test binary uses its part of the harness")]
#![allow(clippy::disallowed_macros, reason = "tests print for the developer")]

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) mod browser;
pub(crate) mod disk;
pub(crate) mod fio;
pub(crate) mod fused;
pub(crate) mod guest;
pub(crate) mod journal;
pub(crate) mod libvirt;
pub(crate) mod raw;
pub(crate) mod reads;
pub(crate) mod shared;
pub(crate) mod slots;
pub(crate) mod slow;
pub(crate) mod stations;
pub(crate) mod vhost;

/// Maximum time of every wait.
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Folders of a test. Files are on the disk of the build, which supports direct I/O; sockets are where paths are
/// short.
pub(crate) struct Place {
    files: TempDir,
    sockets: TempDir,
}

/// With this variable in the environment daemons are not sealed: what differs then is a fault of the seal.
const UNSEALED: &str = "SLUICE_TEST_UNSEALED";

fn leave_out_the_seal(host: &Path) {
    let Ok(text) = std::fs::read_to_string(host) else { return };
    let without = "[daemon]\njail = { without = [\"privileges\", \"landlock\", \"rings\", \"seccomp\"] }\n";
    let is_drop_in = host.parent().is_some_and(|folder| folder.extension().is_some());
    let is_left_out = is_drop_in || text.contains("\njail = ");
    let changed = match format!("\n{text}").split_once("\n[daemon]\n") {
        _ if is_left_out => text,
        Some((before, after)) => format!("{before}\n{without}{after}"),
        None => format!("{text}\n{without}"),
    };
    std::fs::write(host, changed).unwrap();
}

impl Place {
    pub(crate) fn new() -> Self {
        let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build's folder can be written");
        let sockets = tempfile::tempdir().expect("the folder for temporary files can be written");
        Place { files, sockets }
    }

    /// Returns the folder of files.
    pub(crate) fn folder(&self) -> &Path {
        self.files.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Makes a sparse file of this size.
    pub(crate) fn image(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.file(name);
        std::fs::File::create_new(&path).unwrap().set_len(size_bytes).unwrap();
        path
    }

    /// Makes a file with this content.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, content).unwrap();
        if std::env::var_os(UNSEALED).is_some() && name.ends_with(".toml") {
            leave_out_the_seal(&path);
        }
        path
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Returns the table of a daemon with the socket `control` and the state directory `state`.
    pub(crate) fn control_keys(&self) -> String {
        let (control, state) = (self.socket("control"), self.file("state"));
        format!("[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n", control.display(), state.display())
    }

    /// Returns the table of the device `disk`, which contains this place, with more lines.
    pub(crate) fn device(&self, lines: &str) -> String {
        format!("[device.disk]\npath = \"{}\"\n{lines}\n", self.folder().display())
    }

    /// Returns the table of a volume on `disk` with the socket `VM-VOLUME.sock`, with more lines.
    pub(crate) fn volume(&self, vm: &str, volume: &str, source: &Path, lines: &str) -> String {
        let (source, socket) = (source.display(), self.volume_socket(vm, volume));
        format!(
            "[vm.{vm}.volume.{volume}]\ndevice = \"disk\"\nsource = \"{source}\"\nexport = {{ socket = \"{}\" }}\n{lines}\n",
            socket.display()
        )
    }

    pub(crate) fn volume_socket(&self, vm: &str, volume: &str) -> PathBuf {
        self.socket(&format!("{vm}-{volume}.sock"))
    }

    /// Returns the NBD URI of a volume.
    pub(crate) fn uri(&self, vm: &str, volume: &str) -> String {
        format!("nbd+unix:///{vm}/{volume}?socket={}", self.volume_socket(vm, volume).display())
    }
}

/// The lines of a stream.
pub(crate) struct Lines {
    receiver: Receiver<String>,
    seen: RefCell<Vec<String>>,
}

impl Lines {
    pub(crate) fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Lines { receiver, seen: RefCell::default() }
    }

    /// Returns everything up to the next line with one of `needles`, including it.
    pub(crate) fn up_to(&self, needles: &[&str]) -> String {
        let deadline = Instant::now() + LONG;
        let mut lines = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = match self.receiver.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => panic!("ended without any of {needles:?}:\n{}", self.seen()),
                Err(RecvTimeoutError::Timeout) => panic!("none of {needles:?} in time:\n{}", self.seen()),
            };
            self.seen.borrow_mut().push(line.clone());
            lines = lines + &line + "\n";
            if needles.iter().any(|needle| line.contains(needle)) {
                return lines;
            }
        }
    }

    /// As [`Lines::up_to`], for a line that may have been read already, while another one was waited for.
    pub(crate) fn with(&self, needle: &str) -> String {
        let known = self.seen.borrow().iter().find(|line| line.contains(needle)).cloned();
        known.unwrap_or_else(|| self.up_to(&[needle]))
    }

    /// Returns everything until the stream ends.
    pub(crate) fn all(&self) -> String {
        let deadline = Instant::now() + LONG;
        while let Ok(line) = self.receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.borrow_mut().push(line);
        }
        self.seen()
    }

    /// Returns the output so far.
    pub(crate) fn so_far(&self) -> String {
        while let Ok(line) = self.receiver.try_recv() {
            self.seen.borrow_mut().push(line);
        }
        self.seen()
    }

    fn seen(&self) -> String {
        self.seen.borrow().iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A program that has exited.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns its output, if it succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.status.success(), "{}\n{}{}", self.status, self.stdout, self.stderr);
        self.stdout
    }

    /// Returns its error output, if it failed.
    #[track_caller]
    pub(crate) fn failed(self) -> String {
        assert!(!self.status.success(), "{}\n{}{}", self.status, self.stdout, self.stderr);
        self.stdout + &self.stderr
    }
}

/// Returns a program of another project, from the Debian package `package`. Folders of administration programs are
/// searched too, and the folder of the build into which the test command installs programs that Debian does not have.
pub(crate) fn tool(program: &str, package: &str) -> Command {
    let build = Path::new(PROGRAM).ancestors().nth(2).expect("it is in a folder of the build");
    let mut path = sluice_client::programs::path();
    path.push(format!(":{}", build.join("python/bin").display()));
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    let found = found.unwrap_or_else(|| panic!("{program} is missing: apt-get install {package}"));
    let mut command = Command::new(found);
    command.env("PATH", path).env("LC_ALL", "C");
    command
}

/// The program under test: the command, or in the laboratory's tests the laboratory.
const PROGRAM: &str = match (option_env!("CARGO_BIN_EXE_sluice"), option_env!("CARGO_BIN_EXE_sluice-lab")) {
    (Some(program), _) | (None, Some(program)) => program,
    (None, None) => panic!("a package with a program has these tests"),
};

/// Returns the program under test.
pub(crate) fn sluice() -> Command {
    let mut command = Command::new(PROGRAM);
    // Daemons of concurrent tests must not share the default control socket.
    command.env("SLUICE_SOCKET", "none");
    command
        .env_remove("RUST_LOG")
        .env_remove("STATE_DIRECTORY")
        .env_remove("JOURNAL_STREAM")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR_FORCE");
    command
}

/// The events of something that holds or held, in a reply with events: those of what people and the daemon do are left out.
pub(crate) fn held(reply: &Value) -> Vec<Value> {
    let events = reply["events"].as_array().unwrap_or_else(|| panic!("no events: {reply}"));
    events.iter().filter(|event| event["phase"] != "happened").cloned().collect()
}

/// Puts a program at `to`. Another process writes it: a program that another test starts meanwhile would inherit this one's descriptor,
/// and until it ends nobody could start the file ("Text file busy").
pub(crate) fn install(from: &Path, to: &Path) {
    run(tool("install", "coreutils").args(["-m", "755"]).arg(from).arg(to)).ok();
}

/// Puts a shell script at `path`.
pub(crate) fn script(path: &Path, text: &str) {
    let source = path.with_extension("text");
    std::fs::write(&source, text).unwrap();
    install(&source, path);
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    run_within(command, LONG)
}

pub(crate) fn run_within(command: &mut Command, bound: Duration) -> Ended {
    start(command).end_within(bound)
}

/// Starts a program in the background.
pub(crate) fn start(command: &mut Command) -> Running {
    start_into(command, Stdio::piped(), Stdio::piped())
}

/// As [`start`], with other destinations of output. Output that is not piped is not read here.
pub(crate) fn start_into(command: &mut Command, stdout: Stdio, stderr: Stdio) -> Running {
    let placed = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut child = placed.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = child.stdout.take().map_or_else(|| Lines::of(std::io::empty()), Lines::of);
    let stderr = child.stderr.take().map_or_else(|| Lines::of(std::io::empty()), Lines::of);
    Running { child, stdout, stderr, name: format!("{command:?}") }
}

/// A running program; dropping it kills it.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdout: Lines,
    pub(crate) stderr: Lines,
    name: String,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a number");
        kill_process(pid, signal).expect("it runs, or is not waited for yet");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn end(self) -> Ended {
        self.end_within(LONG)
    }

    pub(crate) fn end_within(mut self, bound: Duration) -> Ended {
        let deadline = Instant::now() + bound;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let (stdout, stderr) = (self.stdout.all(), self.stderr.all());
                panic!("still running after {bound:?}: {}\n{stdout}{stderr}", self.name);
            }
            // polls: a child's exit, for which the standard library has no wait with a bound.
            std::thread::sleep(Duration::from_millis(2));
        };
        let ended = Ended { status, stdout: self.stdout.all(), stderr: self.stderr.all() };
        assert_only_its_calls(&ended.stderr);
        ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            assert_only_its_calls(&self.stderr.so_far());
        }
    }
}

/// A daemon that makes a system call which its list does not have says so, and goes on.
#[track_caller]
fn assert_only_its_calls(log: &str) {
    let refused = log.lines().find(|line| line.contains("System calls refused"));
    assert!(refused.is_none(), "{refused:?}");
}

/// Polls until the condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        // polls: a condition outside this process, which the caller names.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon that serves.
pub(crate) struct Daemon {
    running: Running,
    file: PathBuf,
}

impl Daemon {
    /// Serves this host file. Returns when the daemon is ready.
    #[track_caller]
    pub(crate) fn serve(place: &Place, host: &str) -> Daemon {
        Daemon::serve_as(place, "host.toml", host)
    }

    /// As [`Daemon::serve`] with a name for the file, for tests with two daemons.
    #[track_caller]
    pub(crate) fn serve_as(place: &Place, name: &str, host: &str) -> Daemon {
        Daemon::serve_into(place, name, host, Stdio::piped())
    }

    /// As [`Daemon::serve_as`] with another destination of standard error.
    #[track_caller]
    pub(crate) fn serve_into(place: &Place, name: &str, host: &str, stderr: Stdio) -> Daemon {
        let file = place.write(name, host);
        Daemon::started(start_into(&mut Daemon::command(&file), Stdio::piped(), stderr), file)
    }

    /// The same by a command that is made from the daemon's own, for example with other limits.
    #[track_caller]
    pub(crate) fn serve_by(place: &Place, host: &str, by: impl FnOnce(&mut Command) -> Command) -> Daemon {
        let file = place.write("host.toml", host);
        Daemon::started(start(&mut by(&mut Daemon::command(&file))), file)
    }

    fn command(file: &Path) -> Command {
        let mut command = sluice();
        command.args(["-o", "json", "--log-format", "text", "serve"]).arg(file);
        command
    }

    #[track_caller]
    fn started(running: Running, file: PathBuf) -> Daemon {
        let ready = running.stdout.receiver.recv_timeout(LONG);
        let Ok(ready) = ready else { panic!("not ready:\n{}", running.end().stderr) };
        let ready: Value = serde_json::from_str(&ready).expect("its output is JSON");
        assert_eq!(ready["event"], "ready", "{ready}");
        Daemon { running, file }
    }

    /// Tries to serve a host file strictly. Returns the daemon's error output.
    #[track_caller]
    pub(crate) fn refused(place: &Place, host: &str) -> String {
        let file = place.write("refused.toml", host);
        let ended = run(sluice().args(["serve", "--strict"]).arg(&file));
        assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stdout, "");
        ended.stderr
    }

    /// Changes the file and reloads it. Returns the log up to the result.
    #[track_caller]
    pub(crate) fn reload(&self, host: &str) -> String {
        std::fs::write(&self.file, host).unwrap();
        self.running.signal(Signal::HUP);
        self.running.stderr.up_to(&["Reload applied", "the running configuration is unchanged"])
    }

    /// As [`Daemon::reload`]; the file must be accepted.
    #[track_caller]
    pub(crate) fn accept(&self, host: &str) {
        let log = self.reload(host);
        assert!(log.contains("Reload applied"), "{log}");
    }

    /// Changes the file and puts it into force, although volumes in use are closed. The file must be accepted, and the daemon
    /// must have a control socket.
    #[track_caller]
    pub(crate) fn force(&self, place: &Place, host: &str) {
        self.apply(place, host).ok();
        self.running.stderr.up_to(&["Reload applied"]);
    }

    /// As [`Daemon::force`], whatever the result is.
    pub(crate) fn apply(&self, place: &Place, host: &str) -> Ended {
        std::fs::write(&self.file, host).unwrap();
        run(sluice().args(["apply", "--force", "*", "--socket"]).arg(place.socket("control")).arg(&self.file))
    }

    /// Returns the statistics of each VM.
    #[track_caller]
    pub(crate) fn accounts(&self) -> Accounts {
        self.running.signal(Signal::USR1);
        let lines = self.running.stdout.up_to(&["\"event\":\"accounts\""]);
        Accounts(serde_json::from_str(lines.lines().last().unwrap()).expect("its output is JSON"))
    }

    /// Returns the resident memory.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// Returns the most resident memory since the start, or since [`Daemon::forget_peak`].
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// Takes the present resident memory for the peak.
    pub(crate) fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").unwrap();
    }

    /// Limits a resource of the daemon: `as`, in bytes, or `nofile`.
    pub(crate) fn limit(&self, resource: &str, value: u64) {
        let pid = self.pid().to_string();
        run(tool("prlimit", "util-linux").args(["--pid", &pid, &format!("--{resource}={value}")])).ok();
    }

    /// Returns the number of open descriptors.
    pub(crate) fn descriptors(&self) -> u64 {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count() as u64
    }

    /// Returns the size that `RLIMIT_AS` limits.
    pub(crate) fn address_space_bytes(&self) -> u64 {
        self.status_bytes("VmSize:")
    }

    /// Returns a line of the process's status in /proc that is in KiB.
    fn status_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel knows it");
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
    }

    pub(crate) fn stderr(&self) -> &Lines {
        &self.running.stderr
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Terminates it, and waits until it has drained and exited.
    pub(crate) fn terminate(self) -> Ended {
        self.running.signal(Signal::TERM);
        self.running.end()
    }

    /// Waits for its exit.
    pub(crate) fn end(self) -> Ended {
        self.running.end()
    }

    /// Kills it.
    pub(crate) fn kill(self) {
        self.running.kill();
    }
}

/// The output of SIGUSR1.
pub(crate) struct Accounts(pub(crate) Value);

impl Accounts {
    /// Returns the only device.
    pub(crate) fn device(&self) -> &Value {
        let devices = self.0["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 1);
        &devices[0]
    }

    /// Returns a VM of that device.
    #[track_caller]
    pub(crate) fn vm(&self, name: &str) -> &Value {
        self.vm_of(self.device(), name)
    }

    /// Returns a VM of one of several devices and uplinks.
    #[track_caller]
    pub(crate) fn vm_on(&self, device: &str, name: &str) -> &Value {
        let devices = self.0["devices"].as_array().unwrap();
        let found = devices.iter().find(|known| known["device"] == device);
        self.vm_of(found.unwrap_or_else(|| panic!("no device {device} in {}", self.0)), name)
    }

    #[track_caller]
    fn vm_of<'a>(&self, device: &'a Value, name: &str) -> &'a Value {
        let vms = device["vms"].as_array().unwrap();
        vms.iter().find(|vm| vm["vm"] == name).unwrap_or_else(|| panic!("no VM {name} in {}", self.0))
    }

    pub(crate) fn number(&self, vm: &str, key: &str) -> u64 {
        self.vm(vm)[key].as_u64().unwrap_or_else(|| panic!("{key} of {vm} is no number"))
    }

    pub(crate) fn connections(&self) -> u64 {
        self.device()["connections"].as_u64().unwrap()
    }
}

/// Returns a free TCP address, on a loopback address of this process. A port found free on a shared address may be
/// taken by another test or by a client's connection.
pub(crate) fn free_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let [_, _, high, low] = process.to_be_bytes();
    format!("127.{}.{}.{}:10809", 1 + high % 250, low, 1 + number % 250)
}

/// Returns the names of the daemon's schedulers with a description for which `wanted` returns true.
pub(crate) fn schedulers(wanted: impl Fn(&Value) -> bool) -> Vec<String> {
    let listed = run(sluice().args(["schedulers", "-o", "json"])).ok();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let all = listed["schedulers"].as_array().unwrap();
    let names = all.iter().filter(|scheduler| wanted(scheduler));
    let names: Vec<_> = names.map(|scheduler| scheduler["name"].as_str().unwrap().to_owned()).collect();
    assert!(!names.is_empty());
    names
}

/// Returns bytes without a pattern that would hide a wrong offset.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Runs a Python script in nbdsh, which must succeed; `h` and `nbd` are defined.
#[track_caller]
pub(crate) fn nbdsh(script: &str) -> String {
    let mut nbdsh = tool("nbdsh", "python3-libnbd");
    // nbdsh starts the first Python on the path, and only the system's has libnbd's module.
    let path = std::env::var("PATH").unwrap_or_default();
    run(nbdsh.env("PATH", format!("/usr/bin:/bin:{path}")).args(["-c", script])).ok()
}
