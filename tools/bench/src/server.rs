//! Servers as separate processes: the daemon and the servers of the comparison.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::workspace;

/// Maximum time until a server is reachable.
const START_MAX: Duration = Duration::from_secs(20);

/// A running server. Dropping it kills the server.
pub(super) struct Server {
    child: Child,
    pub(super) sockets: Vec<PathBuf>,
}

impl Server {
    /// Starts `command` and waits until all `sockets` are reachable.
    pub(super) fn start(command: &mut Command, sockets: Vec<PathBuf>) -> Result<Server, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("Cannot start {name}: {error}"))?;
        let stderr = child.stderr.take().expect("it is piped");
        let output = thread::spawn(move || BufReader::new(stderr).lines().map_while(Result::ok).collect::<Vec<_>>());
        let mut server = Server { child, sockets };
        let begin = Instant::now();
        while !server.sockets.iter().all(|socket| UnixStream::connect(socket).is_ok()) {
            let ended = server.child.try_wait().is_ok_and(|status| status.is_some());
            if ended || begin.elapsed() > START_MAX {
                drop(server);
                let output = output.join().unwrap_or_default().join("; ");
                return Err(format!("{name} is not reachable: {output}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Starts the daemon with a host file.
    pub(super) fn sluice(folder: &Path, name: &str, host: &str, sockets: Vec<PathBuf>) -> Result<Server, String> {
        Server::build_of_sluice(&sluice_binary(), folder, name, host, sockets)
    }

    /// Starts another build of the daemon.
    pub(super) fn build_of_sluice(
        program: &Path,
        folder: &Path,
        name: &str,
        host: &str,
        sockets: Vec<PathBuf>,
    ) -> Result<Server, String> {
        let file = folder.join(format!("{name}.toml"));
        fs::write(&file, host).map_err(|error| format!("Cannot write {}: {error}", file.display()))?;
        Server::start(Command::new(program).arg("serve").arg(&file).env("SLUICE_SOCKET", "none"), sockets)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU time used, in seconds: utime and stime of the process.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name, in parentheses, may contain spaces; the fields after it start at number 3.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks: f64 =
            fields.split_whitespace().skip(14 - 3).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / rustix::param::clock_ticks_per_second() as f64
    }

    /// Sends SIGTERM and waits, so that the server's output files are complete.
    pub(super) fn terminate(mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let begin = Instant::now();
        while begin.elapsed() < START_MAX && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the daemon.
pub(super) fn sluice_binary() -> PathBuf {
    // The daemon is built into the folder of this program.
    let own = std::env::current_exe().ok();
    let program = own.as_deref().and_then(Path::parent).map(|folder| folder.join("sluice"));
    program.unwrap_or_else(|| workspace::root().join("target/release/sluice"))
}

/// Builds the daemon from the workspace.
pub(super) fn build_sluice() -> Result<(), String> {
    eprintln!("building the daemon");
    let mut cargo = workspace::cargo();
    let status = cargo.args(["build", "--quiet", "--release", "--package", "sluice"]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err("Cannot build the daemon; see cargo's messages".to_owned()),
    }
}

/// Whether a program can be started.
pub(super) fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Makes a folder on a real disk, which is removed when dropped.
pub(super) fn scratch(folder: Option<&Path>) -> Result<tempfile::TempDir, String> {
    let folder = folder.map_or_else(|| workspace::root().join("target"), Path::to_path_buf);
    tempfile::Builder::new()
        .prefix("bench-")
        .tempdir_in(&folder)
        .map_err(|error| format!("Cannot make a folder in {}: {error}", folder.display()))
}

/// Makes a file and writes every byte of it, so that reads come from the disk.
pub(super) fn written_file(path: &Path, mib: u64) -> Result<(), String> {
    use std::io::Write as _;
    let write = || {
        let mut file = fs::File::create_new(path)?;
        let mut random = 1u64;
        let mut chunk = vec![0u8; 1 << 20];
        for _ in 0..mib {
            for word in chunk.chunks_exact_mut(8) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                word.copy_from_slice(&random.to_ne_bytes());
            }
            file.write_all(&chunk)?;
        }
        file.sync_all()
    };
    eprintln!("writing {mib} MiB");
    write().map_err(|error: std::io::Error| format!("Cannot write {}: {error}", path.display()))
}
