//! Linux guests under QEMU, with disks over vhost-user-blk.
//!
//! A guest boots Debian's kernel for virtual machines and an archive of busybox, fio and the tools of ext4
//! ([`image`]), in some seconds, without KVM. A test runs scripts in it and gets their statuses and output:
//!
//! ```text
//! let guest = Guest::boot(Machine::new([Disk::new(place.volume_socket("a", "v"))]));
//! guest.sh("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt");
//! let load = guest.start("fio …");            // runs concurrently with the next script
//! guest.sh("cat /sys/block/vda/stat");
//! guest.finish(load).ok();
//! ```
//!
//! Scripts run concurrently. Emulation adds some tenths of a millisecond to each request, so the guests test
//! correctness and not speed.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::{LONG, Running, start};

mod base64;
pub(crate) mod control;
pub(crate) mod image;
mod kernel;
pub(crate) mod machine;
mod modules;
mod packages;
mod programs;
pub(crate) mod qmp;

use control::{Answer, Control, Job, Lost};
use machine::Machine;
use qmp::Qmp;

/// Maximum time of a boot: emulated, on a busy machine.
const BOOT: Duration = Duration::from_secs(180);
/// Maximum time of a script.
const SCRIPT: Duration = Duration::from_secs(120);

/// A running guest; dropping it ends it.
pub(crate) struct Guest {
    control: Control,
    pub(crate) qmp: Qmp,
    console: PathBuf,
    qemu: Running,
    _folder: TempDir,
}

impl Guest {
    /// Starts a guest and waits until it is ready for scripts.
    #[track_caller]
    pub(crate) fn boot(machine: Machine) -> Guest {
        let guest = Guest::power_on(machine);
        guest.ready();
        guest
    }

    /// Starts a guest without waiting for its boot.
    #[track_caller]
    pub(crate) fn power_on(machine: Machine) -> Guest {
        let image = image::Image::provide();
        let folder = tempfile::tempdir().unwrap();
        let [control, qmp, console] = ["control", "qmp", "console"].map(|name| folder.path().join(name));
        let lines = machine::Lines { control: &control, qmp: &qmp, console: &console };
        // QEMU connects to these sockets before anything else, so no polling is necessary.
        let [control, qmp] = [lines.control, lines.qmp].map(|path| UnixListener::bind(path).unwrap());
        let qemu = start(&mut machine.command(&image, &lines));
        let accept = |listener: UnixListener| match connection(listener).recv_timeout(LONG) {
            Ok(stream) => stream,
            Err(error) => panic!("QEMU does not start: {error}\n{}", qemu.stderr.so_far()),
        };
        let (control, qmp) = (Control::new(accept(control)), Qmp::new(accept(qmp)));
        Guest { control, qmp, console, qemu, _folder: folder }
    }

    /// Waits until the guest is ready for scripts: after power-on, a reset or a reboot.
    #[track_caller]
    pub(crate) fn ready(&self) {
        self.or_panic(self.control.ready(BOOT), "to boot");
    }

    /// Runs a script that must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        let answer = self.run(script);
        assert_eq!(answer.status, 0, "{script}\n{}\n{}", answer.text, self.output());
        answer.text
    }

    /// Runs a script to its end.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Answer {
        self.or_panic(self.control.finish(self.control.start(script), SCRIPT), script)
    }

    /// Starts a script.
    pub(crate) fn start(&self, script: &str) -> Job {
        self.control.start(script)
    }

    /// Waits for the end of a script.
    #[track_caller]
    pub(crate) fn finish(&self, job: Job) -> Answer {
        self.or_panic(self.control.finish(job, SCRIPT), "a script to end")
    }

    /// Resets the guest and waits until it has booted.
    #[track_caller]
    pub(crate) fn reset(&self) {
        self.qmp.execute("system_reset", &json!({}));
        self.ready();
    }

    /// Reboots the guest immediately and waits until it has booted.
    #[track_caller]
    pub(crate) fn reboot(&self) {
        self.control.start("reboot -f");
        self.ready();
    }

    /// Returns the size of a disk in bytes, as the guest sees it.
    #[track_caller]
    pub(crate) fn size_bytes(&self, disk: &str) -> u64 {
        self.sh(&format!("blockdev --getsize64 /dev/{disk}")).trim().parse().expect("it is a number")
    }

    /// Returns the number of completed requests of a disk, reads and writes together.
    #[track_caller]
    pub(crate) fn requests(&self, disk: &str) -> u64 {
        let count = self.sh(&format!("{}; echo $((reads + writes))", read_counts(disk)));
        count.trim().parse().expect("it is a number")
    }

    /// Waits until `requests` more have completed.
    #[track_caller]
    pub(crate) fn progress(&self, disk: &str, requests: u64) {
        let read = read_counts(disk);
        // The guest polls its own counters, which is cheaper than polling from the host.
        self.sh(&format!(
            "{read}; goal=$((reads + writes + {requests}))\n\
             while [ $((reads + writes)) -lt $goal ]; do usleep 50000; {read}; done"
        ));
    }

    #[track_caller]
    fn or_panic<T>(&self, result: Result<T, Lost>, what: &str) -> T {
        result.unwrap_or_else(|lost| panic!("{lost:?} while it was waited for: {what}\n{}", self.output()))
    }

    /// Returns the output of QEMU and of the guest's kernel.
    fn output(&self) -> String {
        let console = std::fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let last: Vec<&str> = console.lines().rev().take(30).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("console:\n{}\nQEMU:\n{}", last.join("\n"), self.qemu.stderr.so_far())
    }

    /// Returns QEMU's standard error, line by line.
    pub(crate) fn qemu_stderr(&self) -> &super::Lines {
        &self.qemu.stderr
    }
}

/// Returns a shell command that prints the kernel's counters of a disk.
fn read_counts(disk: &str) -> String {
    format!("read -r reads _ _ _ writes _ </sys/block/{disk}/stat")
}

/// Returns a channel that receives the first connection.
pub(crate) fn connection(listener: UnixListener) -> Receiver<UnixStream> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            let _ = sender.send(stream);
        }
    });
    receiver
}

/// Forwards every line of a stream until its end.
fn forward_lines(stream: impl Read, sender: &Sender<String>) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}
