//! The other programs of Sluicegate, which this one becomes for some verbs.
//!
//! It stays the same process: the service manager knows the daemon by the number of the process that it started. The program is that in
//! the folder of this one and never one of `PATH`, because the two must be of one version. It reads the same command line.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use sluice_daemon::failure::Failure;

/// Another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// Serves VMs.
    Daemon,
    /// Simulates, and reproduces the papers.
    Laboratory,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Daemon => "sluiced",
            Program::Laboratory => "sluice-lab",
        }
    }

    /// Remedy if it is missing.
    fn remedy(self) -> &'static str {
        match self {
            Program::Daemon => "run `cargo build --release` in a clone, or install the package sluicegate",
            Program::Laboratory => "run `cargo build --release` in a clone, or install the package sluicegate-lab",
        }
    }

    /// Replaces this program by the other one. Returns only if that fails.
    pub(crate) fn start(self) -> Failure {
        if self == Program::Laboratory {
            // The daemon takes its own signals; here they end the program as they end any other.
            sluice_io::signals::release();
        }
        let program = match own() {
            Ok(own) => own.with_file_name(self.name()),
            Err(error) => return Failure::Run(format!("Cannot find the folder of this program: {error}").into()),
        };
        let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
        let (program, remedy) = (program.display(), self.remedy());
        Failure::Run(match error.kind() {
            ErrorKind::NotFound => format!("This command needs {program}, which is missing: {remedy}").into(),
            _ => format!("Cannot start {program}: {error}").into(),
        })
    }
}

/// Returns the path of this program. Without /proc it is that by which the program was started, unless `PATH` was searched for it.
fn own() -> std::io::Result<PathBuf> {
    let started = || std::env::args_os().next().map(PathBuf::from).filter(|path| path.components().count() > 1);
    std::env::current_exe().or_else(|error| started().ok_or(error))
}
