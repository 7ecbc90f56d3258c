//! Linux guests under QEMU, with disks over vhost-user-blk: what the daemon is really for.
//!
//! A guest boots Debian's kernel for virtual machines and an archive of busybox, fio and the tools of ext4 ([`image`]),
//! in some seconds, without KVM. A test gives it scripts and gets their statuses and outputs:
//!
//! ```text
//! let guest = Guest::boot(Machine::new([Disk::new(place.volume_socket("a", "v"))]));
//! guest.sh("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt");
//! let load = guest.start("fio …");            // runs beside the next
//! guest.sh("cat /sys/block/vda/stat");
//! guest.finish(load).ok();
//! ```
//!
//! Scripts run beside each other. Emulation costs the guest some tenths of a millisecond for a request, so it says what is
//! right, never how fast.

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
mod cpio;
mod image;
mod kernel;
pub(crate) mod machine;
mod modules;
mod packages;
mod programs;
pub(crate) mod qmp;

use control::{Answer, Control, Job, Lost};
use machine::Machine;
use qmp::Qmp;

/// How long a boot may take at worst: emulated, on a machine that does other things as well.
const BOOT: Duration = Duration::from_secs(180);
/// The same for a script.
const SCRIPT: Duration = Duration::from_secs(120);

/// A guest that runs; ended when dropped.
pub(crate) struct Guest {
    control: Control,
    pub(crate) qmp: Qmp,
    console: PathBuf,
    qemu: Running,
    _folder: TempDir,
}

impl Guest {
    /// A guest that is ready for scripts.
    #[track_caller]
    pub(crate) fn boot(machine: Machine) -> Guest {
        let guest = Guest::power_on(machine);
        guest.ready();
        guest
    }

    /// A guest that begins to boot.
    #[track_caller]
    pub(crate) fn power_on(machine: Machine) -> Guest {
        let image = image::Image::provide();
        let folder = tempfile::tempdir().unwrap();
        let [control, qmp, console] = ["control", "qmp", "console"].map(|name| folder.path().join(name));
        let lines = machine::Lines { control: &control, qmp: &qmp, console: &console };
        // QEMU connects to them before it does anything else, so that there is nothing to ask for again and again.
        let [control, qmp] = [lines.control, lines.qmp].map(|path| UnixListener::bind(path).unwrap());
        let qemu = start(&mut machine.command(&image, &lines));
        let accept = |listener: UnixListener| match connection(listener).recv_timeout(LONG) {
            Ok(stream) => stream,
            Err(error) => panic!("QEMU does not start: {error}\n{}", qemu.stderr.said()),
        };
        let (control, qmp) = (Control::new(accept(control)), Qmp::new(accept(qmp)));
        Guest { control, qmp, console, qemu, _folder: folder }
    }

    /// Waits until it is ready for scripts: after power-on, a reset or a reboot.
    #[track_caller]
    pub(crate) fn ready(&self) {
        self.or_tell(self.control.ready(BOOT), "to boot");
    }

    /// Runs a script that must succeed; what it printed.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        let answer = self.run(script);
        assert_eq!(answer.status, 0, "{script}\n{}\n{}", answer.text, self.told());
        answer.text
    }

    /// Runs a script to its end.
    #[track_caller]
    pub(crate) fn run(&self, script: &str) -> Answer {
        self.or_tell(self.control.finish(self.control.start(script), SCRIPT), script)
    }

    /// Starts a script.
    pub(crate) fn start(&self, script: &str) -> Job {
        self.control.start(script)
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(&self, job: Job) -> Answer {
        self.or_tell(self.control.finish(job, SCRIPT), "a script to end")
    }

    /// Presses its reset button, and waits until it has booted.
    #[track_caller]
    pub(crate) fn reset(&self) {
        self.qmp.execute("system_reset", &json!({}));
        self.ready();
    }

    /// Lets it reboot itself at once, and waits until it has booted.
    #[track_caller]
    pub(crate) fn reboot(&self) {
        self.control.start("reboot -f");
        self.ready();
    }

    /// Size of a disk in bytes, as the guest sees it.
    #[track_caller]
    pub(crate) fn size_bytes(&self, disk: &str) -> u64 {
        self.sh(&format!("blockdev --getsize64 /dev/{disk}")).trim().parse().expect("it is a number")
    }

    /// Requests of a disk that have ended, reads and writes together.
    #[track_caller]
    pub(crate) fn requests(&self, disk: &str) -> u64 {
        let count = self.sh(&format!("{}; echo $((reads + writes))", read_counts(disk)));
        count.trim().parse().expect("it is a number")
    }

    /// Waits until so many more have ended.
    #[track_caller]
    pub(crate) fn progress(&self, disk: &str, requests: u64) {
        let read = read_counts(disk);
        // The guest asks itself, which costs it less than being asked.
        self.sh(&format!(
            "{read}; goal=$((reads + writes + {requests}))\n\
             while [ $((reads + writes)) -lt $goal ]; do usleep 50000; {read}; done"
        ));
    }

    #[track_caller]
    fn or_tell<T>(&self, result: Result<T, Lost>, what: &str) -> T {
        result.unwrap_or_else(|lost| panic!("{lost:?} while it was waited for: {what}\n{}", self.told()))
    }

    /// What QEMU and the guest's kernel said.
    fn told(&self) -> String {
        let console = std::fs::read(&self.console).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let last: Vec<&str> = console.lines().rev().take(30).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("console:\n{}\nQEMU:\n{}", last.join("\n"), self.qemu.stderr.said())
    }

    /// What QEMU says on standard error, as it comes.
    pub(crate) fn qemu_says(&self) -> &super::Lines {
        &self.qemu.stderr
    }
}

/// Shell that reads what the kernel counts of a disk.
fn read_counts(disk: &str) -> String {
    format!("read -r reads _ _ _ writes _ </sys/block/{disk}/stat")
}

/// The first connection, when it comes.
pub(crate) fn connection(listener: UnixListener) -> Receiver<UnixStream> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            let _ = sender.send(stream);
        }
    });
    receiver
}

/// Hands on every line of a stream until it ends.
fn forward_lines(stream: impl Read, sender: &Sender<String>) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}
