//! `sluice doctor [FILE]`

use std::path::PathBuf;

use clap::Args;

use crate::doctor::Subject;
use crate::output::Format;
use sluice_daemon::failure::Failure;
use sluice_daemon::findings::{self, Level};

/// Find what on this host prevents the daemon from working or breaks its guarantees.
///
/// Each finding has its fix. Looks at the kernel, io_uring, limits, the clock source, the disks (the kernel's scheduler, the write
/// cache, the queue depth), free space for sparse images, limits of control groups and of QEMU that apply in addition to the daemon's, the memory of running VMs
/// (shared, huge pages), and whether libvirt's user can connect to the sockets. Needs no daemon; if one is running, its limits and
/// its control group are reported too. With a host file, only the disks of that file are looked at, and also its sockets. Changes
/// nothing.
///
/// Exits with 1 if there is an error; warnings and notes do not change the exit code. To check whether the images and sockets of a
/// host file can be used, run `sluice check --host`.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let host = self.file.map(|file| sluice_config::load(&file)).transpose().map_err(Failure::Config)?;
        let found = Subject::new(host).examine();
        findings::print(&found, format);
        (findings::worst(&found) < Level::Error).then_some(()).ok_or(Failure::No)
    }
}
