//! Storage of a known rate behind FUSE, the place where hosts meet, and their daemons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::ceph::Cluster;
use super::load::{Load, VOLUME_MIB, Vm};
use crate::server::{Server, scratch, sluice_binary, written_file};

/// What the daemons serve.
pub(super) struct Bed {
    /// In the order in which they end: daemons before their storage.
    daemons: Vec<Option<Server>>,
    place: Option<Mount>,
    behind: Behind,
    folder: tempfile::TempDir,
}

/// The storage of a bed.
enum Behind {
    File { _mount: Mount },
    Ceph(Cluster),
}

/// How the storage serves requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// In their order: qemu's NBD server with a throttle, behind nbdfuse.
    InOrder,
    /// In batches: qemu's FUSE export with a throttle takes new requests while it waits for older ones, and answers the newest first.
    InBatches,
}

/// A process, killed when dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Result<Process, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        spawned.map(Process).map_err(|error| format!("Cannot start {name}: {error}"))
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id().cast_signed());
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file system of one file, unmounted when dropped.
struct Mount {
    server: Process,
    at: PathBuf,
    /// The server behind it.
    _behind: Option<Process>,
}

impl Mount {
    fn start(command: &mut Command, file: &Path, at: PathBuf, behind: Option<Process>) -> Result<Mount, String> {
        let mount = Mount { server: Process::start(command)?, at, _behind: behind };
        wait_for(file, |file| file.len() > 0)?;
        Ok(mount)
    }

    /// The file `storage` behind a throttle of this number of requests per second.
    fn throttled(folder: &Path, storage: &Path, kind: Storage, iops: u32) -> Result<Mount, String> {
        let mut qemu = Command::new("qemu-storage-daemon");
        qemu.args(["--object", &format!("throttle-group,id=g,x-iops-total={iops}")]);
        qemu.args(["--blockdev", &format!("driver=file,filename={},node-name=f", folder.join("image").display())]);
        qemu.args(["--blockdev", "driver=throttle,node-name=t,throttle-group=g,file=f"]);
        let at = storage.parent().expect("it has a folder").to_owned();
        fs::create_dir(&at).map_err(cannot_make)?;
        match kind {
            Storage::InOrder => {
                let socket = folder.join("nbd");
                qemu.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
                let behind = Process::start(qemu.args(["--export", "type=nbd,id=e,node-name=t,name=e,writable=on"]))?;
                wait_for(&socket, |_| true)?;
                let uri = format!("nbd+unix:///e?socket={}", socket.display());
                Mount::start(Command::new("nbdfuse").arg(storage).arg(uri), storage, at, Some(behind))
            }
            Storage::InBatches => {
                fs::write(storage, "").map_err(cannot_make)?;
                let at = storage.to_owned();
                qemu.args(["--export", &format!("type=fuse,id=e,node-name=t,mountpoint={},writable=on", at.display())]);
                Mount::start(&mut qemu, storage, at, None)
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.server.signal(Signal::CONT);
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Waits until a file is there.
fn wait_for(file: &Path, is_ready: impl Fn(&fs::Metadata) -> bool) -> Result<(), String> {
    let begin = Instant::now();
    while !fs::metadata(file).is_ok_and(|file| is_ready(&file)) {
        if begin.elapsed() > Duration::from_secs(10) {
            return Err(format!("{} is not there: is /dev/fuse?", file.display()));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl Bed {
    /// Makes storage of this number of requests per second for a number of volumes, without daemons.
    pub(super) fn new(kind: Storage, iops: u32, volumes: usize) -> Result<Bed, String> {
        let folder = scratch(None)?;
        // Of a hole nothing would be read.
        written_file(&folder.path().join("image"), u64::from(VOLUME_MIB) * volumes as u64)?;
        let mount = Mount::throttled(folder.path(), &folder.path().join("storage/disk"), kind, iops)?;
        Ok(Bed { daemons: Vec::new(), place: None, behind: Behind::File { _mount: mount }, folder })
    }

    /// The same with the pool of a Ceph cluster.
    pub(super) fn on_ceph(cluster: &Path, volumes: usize) -> Result<Bed, String> {
        let behind = Behind::Ceph(Cluster::new(cluster, volumes)?);
        Ok(Bed { daemons: Vec::new(), place: None, behind, folder: scratch(None)? })
    }

    /// Keys of a device that is the storage.
    pub(super) fn device(&self) -> String {
        match &self.behind {
            Behind::File { .. } => format!("path = \"{}\"\n", self.storage().display()),
            Behind::Ceph(cluster) => cluster.device(),
        }
    }

    /// Makes the place where hosts meet, in memory or on the cluster.
    pub(super) fn make_place(&mut self, hosts: u32, capacity: u32) -> Result<PathBuf, String> {
        if let Behind::Ceph(cluster) = &self.behind {
            return cluster.make_place(hosts, capacity);
        }
        let folder = self.folder.path().join("meet");
        fs::create_dir(&folder).map_err(cannot_make)?;
        let place = folder.join("place");
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&place).args(["--command", "nbdkit", "-s", "--exit-with-parent", "memory", "1M"]);
        self.place = Some(Mount::start(&mut fuse, &place, folder, None)?);
        let mut create = Command::new(sluice_binary());
        create.args(["pool", "create"]).arg(&place).args(["--hosts", &hosts.to_string()]);
        let made = create.args(["--capacity", &format!("{capacity} iops")]).output().map_err(cannot_make)?;
        if made.status.success() { Ok(place) } else { Err(String::from_utf8_lossy(&made.stderr).into_owned()) }
    }

    pub(super) fn storage(&self) -> PathBuf {
        self.file("storage/disk")
    }

    /// A file of its own beside the storage, on the disk of this machine.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file of a host: the text of its device `vms`, and those VMs that are its own, each with a part of `source`, or with an image of the
    /// cluster.
    pub(super) fn host_file(&self, host: u32, device: &str, vms: &[Vm], source: &Path) -> String {
        let (control, state) = (self.control(host), self.file(&format!("state{host}")));
        let mut text = format!("[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n", control.display(), state.display());
        text += &format!("[device.vms]\n{device}\n");
        for (number, vm) in vms.iter().enumerate().filter(|(_, vm)| vm.host == host) {
            let (socket, offset) = (self.socket(number), number as u32 * VOLUME_MIB);
            text += &format!("[vm.v{number}]\n");
            if vm.reserved > 0 {
                text += &format!("reservation = \"{} iops\"\n", vm.reserved);
            }
            text += &format!("[vm.v{number}.volume.d]\ndevice = \"vms\"\n");
            text += &match &self.behind {
                Behind::File { .. } => {
                    let source = source.display();
                    format!("source = \"{source}\"\noffset = \"{offset}MiB\"\nsize = \"{VOLUME_MIB}MiB\"\n")
                }
                Behind::Ceph(cluster) => cluster.volume(number),
            };
            text += &format!("export = {{ socket = \"{}\" }}\n", socket.display());
        }
        text
    }

    /// Starts the daemon of the next host.
    pub(super) fn start(&mut self, text: &str, vms: &[Vm]) -> Result<(), String> {
        let host = self.daemons.len() as u32 + 1;
        let own = (0..vms.len()).filter(|vm| vms[*vm].host == host).map(|vm| self.socket(vm)).collect();
        let daemon = Server::sluice(self.folder.path(), &format!("host{host}"), text, own)?;
        self.daemons.push(Some(daemon));
        Ok(())
    }

    /// Starts the load of all VMs.
    pub(super) fn load(&self, vms: &[Vm], seconds: usize) -> Result<Load, String> {
        Load::start(self.folder.path(), vms, |number| self.socket(number), seconds)
    }

    fn socket(&self, vm: usize) -> PathBuf {
        self.file(&format!("v{vm}"))
    }

    fn control(&self, host: u32) -> PathBuf {
        self.file(&format!("c{host}"))
    }

    pub(super) fn kill_last(&mut self) {
        drop(self.daemons.last_mut().and_then(Option::take));
    }

    /// Stops the server of the place, or lets it go on.
    pub(super) fn set_place_away(&self, away: bool) {
        if let Some(place) = &self.place {
            place.server.signal(if away { Signal::STOP } else { Signal::CONT });
        }
    }

    /// What a command prints as JSON, to the daemon of a host.
    pub(super) fn ask(&self, host: u32, command: &[&str]) -> Option<Value> {
        let mut sluice = Command::new(sluice_binary());
        sluice.args(["-o", "json"]).args(command).arg("--socket").arg(self.control(host));
        serde_json::from_slice(&sluice.output().ok()?.stdout).ok()
    }
}

/// What `sluice check` says of a host file, as JSON.
pub(super) fn check(file: &Path) -> Option<Value> {
    let output = Command::new(sluice_binary()).args(["-o", "json", "check"]).arg(file).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn cannot_make(error: std::io::Error) -> String {
    format!("Cannot make the files of the benchmark: {error}")
}
