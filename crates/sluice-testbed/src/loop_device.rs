//! A loop device for the kernel's schedulers, and control groups of its users. It needs root.

use std::fs;
use std::path::{Path, PathBuf};

use sluice_client::programs;
use sluice_daemon::output;

/// A loop device over a file, with direct I/O. Dropping it removes its control groups, and detaches it.
pub struct LoopDevice {
    pub path: String,
    /// Folders of the control groups.
    pub groups: Vec<PathBuf>,
}

impl LoopDevice {
    pub fn attach(file: &Path) -> Result<LoopDevice, String> {
        let mut losetup = programs::command("losetup");
        let path = programs::output(losetup.args(["--find", "--show", "--direct-io=on"]).arg(file))?;
        Ok(LoopDevice { path: path.trim().to_owned(), groups: Vec::new() })
    }

    /// Path of a file of the device in sysfs.
    fn file(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(self.path.trim_start_matches("/dev/")).join(name)
    }

    /// The number by which control groups know the device.
    pub fn number(&self) -> Result<String, String> {
        let number = fs::read_to_string(self.file("dev"));
        number.map(|number| number.trim().to_owned()).map_err(|error| format!("{}: {error}", self.path))
    }

    pub fn set_scheduler(&self, name: &str) -> Result<(), String> {
        set(&self.file("queue/scheduler"), name)?;
        // BFQ's heuristics would give weights to what they take for interactive.
        if name == "bfq" { set(&self.file("queue/iosched/low_latency"), "0") } else { Ok(()) }
    }

    pub fn add_group(&mut self, folder: PathBuf) -> Result<(), String> {
        fs::create_dir(&folder).map_err(|error| format!("Cannot make {}: {error}", folder.display()))?;
        self.groups.push(folder);
        Ok(())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Before the device, whose queue has settings of each group.
        for group in &self.groups {
            if let Err(error) = fs::remove_dir(group) {
                output::message(format_args!("Cannot remove {}: {error}", group.display()));
            }
        }
        // The next user of the device finds it as it was.
        let _ = self.set_scheduler("none");
        if let Err(error) = programs::output(programs::command("losetup").arg("--detach").arg(&self.path)) {
            output::message(error);
        }
    }
}

/// Writes a setting of the kernel.
pub fn set(file: &Path, value: &str) -> Result<(), String> {
    fs::write(file, value).map_err(|error| format!("Cannot write {value} to {}: {error}", file.display()))
}
