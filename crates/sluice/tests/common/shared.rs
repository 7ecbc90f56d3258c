//! Storage that several hosts share, on this one: a file behind a throttle and a FUSE file system, and a place where hosts meet.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{MIB, Place, Running, run, start, tool, until};

/// Requests per second of the throttled file.
pub(crate) const IOPS: u32 = 2000;

/// A file of 64 MiB that completes [`IOPS`] requests per second for all clients together.
pub(crate) struct Throttled {
    mount: PathBuf,
    _server: Running,
}

impl Throttled {
    pub(crate) fn new(place: &Place) -> Self {
        let (image, mount) = (place.image("throttled.img", 64 * MIB), place.write("throttled", ""));
        let mut command = tool("qemu-storage-daemon", "qemu-system-common");
        command.args(["--object", &format!("throttle-group,id=g,x-iops-total={IOPS}")]);
        command.args(["--blockdev", &format!("driver=file,filename={},node-name=f", image.display())]);
        command.args(["--blockdev", "driver=throttle,node-name=t,throttle-group=g,file=f"]);
        let export = format!("type=fuse,id=e,node-name=t,mountpoint={},writable=on", mount.display());
        let server = start(command.args(["--export", &export]));
        until("it is mounted", || std::fs::metadata(&mount).is_ok_and(|file| file.len() == 64 * MIB));
        Throttled { mount, _server: server }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.mount
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        let _ = run(tool("umount", "mount").arg("--lazy").arg(&self.mount));
    }
}

/// The host file of one of several hosts, with a VM `vN` whose volume is its part of the file.
pub(crate) struct HostFile<'a> {
    pub(crate) place: &'a Place,
    pub(crate) disk: &'a Path,
    pub(crate) number: u8,
    /// Keys of the device besides its path.
    pub(crate) device: String,
    pub(crate) meeting: Option<String>,
    /// Keys of the VM.
    pub(crate) vm: &'a str,
}

impl HostFile<'_> {
    pub(crate) fn text(&self) -> String {
        let HostFile { place, disk, number, device, meeting, vm } = self;
        let mut text = place.control_keys();
        let _ = writeln!(text, "[device.disk]\npath = \"{}\"\n{device}", disk.display());
        if let Some(meeting) = meeting {
            let _ = writeln!(text, "[device.disk.pool]\nmeeting = \"{meeting}\"\nhost = {number}");
        }
        let _ = writeln!(text, "[vm.v{number}]\n{vm}");
        let lines = format!("offset = \"{}MiB\"\nsize = \"4MiB\"", 4 * (number - 1));
        text + &place.volume(&format!("v{number}"), "d", disk, &lines)
    }
}
