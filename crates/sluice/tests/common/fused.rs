//! A disk behind a FUSE file system: nbdkit's memory, which logs its requests and fails on demand.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::{Place, Running, run, start, tool, until};

/// A mounted file system with one file, `disk`.
pub(crate) struct Fused {
    folder: PathBuf,
    log: PathBuf,
    failing: PathBuf,
    server: Running,
}

impl Fused {
    pub(crate) fn new(place: &Place, size_mib: u32) -> Self {
        let [folder, log, failing, pid] =
            ["fused", "fused.log", "fused.failing", "fused.pid"].map(|name| place.file(name));
        std::fs::create_dir(&folder).unwrap();
        let mut command = tool("nbdfuse", "libnbd-bin");
        command.arg("-P").arg(&pid).arg(folder.join("disk"));
        command.args(["--command", "nbdkit", "-s", "--exit-with-parent", "--filter=error", "--filter=log", "memory"]);
        command.arg(format!("{size_mib}M")).arg(format!("logfile={}", log.display()));
        command.args(["error-pwrite=EIO", "error-pwrite-rate=1"]).arg(format!("error-file={}", failing.display()));
        let server = start(&mut command);
        until("it is mounted", || pid.exists());
        Fused { folder, log, failing, server }
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// Returns the mount point.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes writes fail.
    pub(crate) fn fail_writes(&self) {
        std::fs::write(&self.failing, "").unwrap();
    }

    /// Writes work again.
    pub(crate) fn mend(&self) {
        std::fs::remove_file(&self.failing).unwrap();
    }

    /// Stops responding. Returns when every thread of the server has stopped: after `kill` returns, a thread may still
    /// serve a request.
    pub(crate) fn stop(&self) {
        self.server.signal(Signal::STOP);
        let server = Pid::from_raw(self.server.pid().cast_signed()).expect("a child has a number");
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        until("the server has stopped", || waitid(WaitId::Pid(server), look).unwrap().is_some());
    }

    /// Responds again.
    pub(crate) fn go_on(&self) {
        self.server.signal(Signal::CONT);
    }

    /// Returns the number of completed writes, and of those that a later flush made durable.
    pub(crate) fn written_and_flushed(&self) -> (usize, usize) {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let (mut written, mut flushed, mut covered) = (0, 0, 0);
        for line in log.lines() {
            if line.contains("...Write") {
                written += 1;
            } else if line.contains(" Flush ") && !line.contains("...Flush") {
                covered = written;
            } else if line.contains("...Flush") {
                flushed = covered;
            }
        }
        (written, flushed)
    }
}

impl Drop for Fused {
    fn drop(&mut self) {
        self.go_on();
        let _ = run(tool("umount", "mount").arg("--lazy").arg(&self.folder));
    }
}
