//! `sluice doctor [FILE]`

use std::path::PathBuf;

use clap::Args;

use crate::doctor::Subject;
use crate::failure::Failure;
use crate::findings::{self, Level};
use crate::output::Format;

/// Look for what on this host keeps the daemon from working, or its guarantees from holding.
///
/// Each finding has its fix. Looks at the kernel, io_uring, limits, the clock source, the disks (the kernel's scheduler, the write
/// cache, the queue depth), limits of control groups and of QEMU below the daemon's, the memory of running VMs (shared, huge
/// pages), and whether libvirt's user can connect to the sockets. Needs no daemon; of a running one it reports the limits and the
/// control group. With a host file only its disks are looked at, and its sockets too. Changes nothing.
///
/// Exits with 1 if there is an error. Warnings and notes are no failure. Whether the images and sockets of a host file can be used is the question of
/// `sluice check --host`.
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
