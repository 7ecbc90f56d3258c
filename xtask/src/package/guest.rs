//! A booted Debian: systemd runs as process 1 in a container, and the service with it as on a host.
//!
//! The root file system is made once by mmdebstrap and kept as an archive in the build's folder.

use super::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time of every wait.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A running container. Dropping it ends it.
pub(super) struct Guest {
    folder: tempfile::TempDir,
    nspawn: Child,
    /// Its process 1, as the host numbers it.
    leader: u32,
}

impl Guest {
    /// Boots a Debian of its own, with files in the folder `target`.
    pub(super) fn boot(target: &Path) -> Result<Guest, String> {
        let archive = archive(target)?;
        let folder = tempfile::tempdir_in(target).map_err(|error| format!("{}: {error}", target.display()))?;
        let root = folder.path().join("root");
        fs::create_dir(&root).map_err(|error| error.to_string())?;
        run(Command::new("tar").args(["--numeric-owner", "-xf"]).arg(&archive).arg("-C").arg(&root))?;
        let log = fs::File::create(folder.path().join("console")).map_err(|error| error.to_string())?;
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(["--quiet", "--boot", "--register=no", "--keep-unit", "--private-network", "--console=pipe"]);
        nspawn.arg(format!("--machine=sluice-{}", std::process::id())).arg("--directory").arg(&root);
        // The container's own filter does not know io_uring.
        nspawn.arg("--system-call-filter=io_uring_setup io_uring_enter io_uring_register landlock_create_ruleset landlock_add_rule landlock_restrict_self");
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        let nspawn = nspawn.stdin(Stdio::null()).stdout(log).stderr(copy).spawn();
        let nspawn = nspawn.map_err(|error| format!("Cannot start systemd-nspawn: {error}"))?;
        let mut guest = Guest { folder, nspawn, leader: 0 };
        guest.leader = guest.wait_for_leader()?;
        let state = wait("the guest's boot", || {
            let state = guest.output(&["systemctl", "is-system-running"]).0;
            ["running", "degraded"].contains(&state.trim()).then_some(state)
        });
        state.map_err(|error| guest.with_console(&error))?;
        Ok(guest)
    }

    fn wait_for_leader(&mut self) -> Result<u32, String> {
        let pid = self.nspawn.id();
        let children = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let is_init =
            |child: &u32| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "systemd");
        let leader = wait("systemd in the guest", || {
            let children = fs::read_to_string(&children).ok()?;
            children.split_whitespace().filter_map(|child| child.parse().ok()).find(is_init)
        });
        leader.map_err(|error| self.with_console(&error))
    }

    fn with_console(&self, error: &str) -> String {
        let console = fs::read_to_string(self.folder.path().join("console")).unwrap_or_default();
        format!("{error}; the guest's console:\n{console}")
    }

    /// Returns the host's path of a path in the guest.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path.trim_start_matches('/'))
    }

    /// Runs a command in the guest. Returns its output, and whether it succeeded.
    pub(super) fn output(&self, command: &[&str]) -> (String, bool) {
        let leader = self.leader.to_string();
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &leader, "--all", "--"]).args(command).stdin(Stdio::null());
        nsenter.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
        nsenter.env("DEBIAN_FRONTEND", "noninteractive").env("SYSTEMD_PAGER", "");
        match nsenter.output() {
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                (String::from_utf8_lossy(&text).into_owned(), output.status.success())
            }
            Err(error) => (format!("Cannot start nsenter: {error}"), false),
        }
    }

    /// Runs a command in the guest, which must succeed. Returns its output.
    pub(super) fn run(&self, command: &[&str]) -> Result<String, String> {
        match self.output(command) {
            (text, true) => Ok(text),
            (text, false) => Err(format!("{command:?} failed: {text}")),
        }
    }

    /// Runs a command in the guest, which must fail. Returns its output.
    pub(super) fn fails(&self, command: &[&str]) -> Result<String, String> {
        match self.output(command) {
            (text, false) => Ok(text),
            (text, true) => Err(format!("{command:?} succeeded: {text}")),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Its process 1 takes all others of the guest with it, and then systemd-nspawn ends.
        let leader = rustix::process::Pid::from_raw(i32::try_from(self.leader).unwrap_or_default());
        match leader {
            Some(leader) => drop(rustix::process::kill_process(leader, rustix::process::Signal::KILL)),
            None => drop(self.nspawn.kill()),
        }
        let _ = self.nspawn.wait();
    }
}

/// Waits until `look` finds something.
pub(super) fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("Not in {} s: {what}", LONG.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the archive of the root file system, and makes it if it is missing.
fn archive(target: &Path) -> Result<PathBuf, String> {
    let archive = target.join("debian-12.tar");
    if archive.is_file() {
        return Ok(archive);
    }
    println!("making a Debian root file system in {}", archive.display());
    let new = target.join(format!("debian-12.{}.tar", std::process::id()));
    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap.args(["--quiet", "--variant=minbase", "--include=systemd-sysv,dbus", "bookworm"]).arg(&new);
    run(&mut mmdebstrap)?;
    // Another test of the same folder may have made one.
    fs::rename(&new, &archive).map_err(|error| format!("{}: {error}", archive.display()))?;
    Ok(archive)
}
