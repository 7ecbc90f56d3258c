//! The virtual machine of a guest: QEMU's command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::{Image, More};
use crate::common::tool;

/// Settings that differ between guests.
pub(crate) struct Machine {
    disks: Vec<Disk>,
    more: Vec<String>,
    /// An archive that follows that of the image.
    files: Vec<u8>,
}

/// A disk over vhost-user-blk; QEMU reconnects when the server has restarted.
pub(crate) struct Disk {
    pub(crate) socket: PathBuf,
    pub(crate) queues: u32,
    pub(crate) queue_size: u32,
}

impl Disk {
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Disk {
        Disk { socket: socket.into(), queues: 1, queue_size: 128 }
    }
}

/// Sockets of QEMU's lines, and the file of the guest's console.
pub(crate) struct Lines<'a> {
    pub(crate) control: &'a Path,
    pub(crate) qmp: &'a Path,
    pub(crate) console: &'a Path,
}

/// Memory of a guest: for its first file system, which contains fio with its libraries, and for its work.
const MEMORY: &str = "512M";
/// Do not wait for missing hardware, and print only errors on the console.
const KERNEL: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on audit=0 selinux=0 \
                      apparmor=0 tsc=reliable rcupdate.rcu_expedited=1 8250.nr_uarts=1 no_timer_check \
                      cryptomgr.notests";

impl Machine {
    /// The disks are `/dev/vda`, `/dev/vdb` and so on.
    pub(crate) fn new(disks: impl IntoIterator<Item = Disk>) -> Machine {
        Machine { disks: disks.into_iter().collect(), more: Vec::new(), files: Vec::new() }
    }

    /// Adds programs and modules to the first file system.
    pub(crate) fn with_files(mut self, more: &More<'_>) -> Machine {
        Image::provide();
        self.files = more.archive();
        self
    }

    /// Returns the first file system, which is made in `folder` if it differs from that of the image.
    fn first_file_system(&self, image: &Image, folder: &Path) -> PathBuf {
        if self.files.is_empty() {
            return image.first_file_system.clone();
        }
        let file = folder.join("first-file-system");
        // The kernel reads archives one after the other.
        std::fs::write(&file, [std::fs::read(&image.first_file_system).unwrap(), self.files.clone()].concat()).unwrap();
        file
    }

    /// Adds arguments to QEMU's command line.
    pub(crate) fn with(mut self, arguments: impl IntoIterator<Item = String>) -> Machine {
        self.more.extend(arguments);
        self
    }

    /// One vCPU for each queue of a disk, because Linux uses no more queues than it has CPUs.
    fn processors(&self) -> u32 {
        self.disks.iter().map(|disk| disk.queues).max().unwrap_or(1)
    }

    /// Returns QEMU's command. It always emulates, so that it runs without KVM.
    pub(crate) fn command(&self, image: &Image, lines: &Lines<'_>) -> Command {
        let mut qemu = tool("qemu-system-x86_64", "qemu-system-x86");
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-cpu", "Nehalem", "-m", MEMORY]);
        qemu.args(["-smp", &self.processors().to_string()]);
        qemu.args(["-machine", "q35,accel=tcg,hpet=off,memory-backend=guest-memory"]);
        qemu.args(["-object", &format!("memory-backend-memfd,id=guest-memory,size={MEMORY},share=on")]);
        let folder = lines.console.parent().expect("the console is in the guest's folder");
        let first = self.first_file_system(image, folder);
        qemu.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(first).args(["-append", KERNEL]);
        qemu.args(["-serial", &format!("file:{}", lines.console.display())]);
        qemu.args(["-chardev", &format!("socket,id=control,path={}", lines.control.display())]);
        qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control"]);
        qemu.args(["-chardev", &format!("socket,id=qmp,path={}", lines.qmp.display())]);
        qemu.args(["-mon", "chardev=qmp,mode=control"]);
        // A free slot, for devices that are plugged in while the guest runs.
        qemu.args(["-device", "pcie-root-port,id=free-slot,chassis=1"]);
        for (number, disk) in self.disks.iter().enumerate() {
            let Disk { socket, queues, queue_size } = disk;
            let socket = socket.display();
            qemu.args(["-chardev", &format!("socket,id=line{number},path={socket},reconnect=1")]);
            let device = format!("vhost-user-blk-pci,id=disk{number},chardev=line{number}");
            qemu.args(["-device", &format!("{device},num-queues={queues},queue-size={queue_size}")]);
        }
        qemu.args(&self.more);
        qemu
    }
}
