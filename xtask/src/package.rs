//! `cargo xtask package`: the Debian packages, and their test in a booted Debian.
//!
//! `sluicegate` has what serves VMs, `sluicegate-lab` the laboratory. They are made with dpkg-deb from the files in `contrib`, the
//! programs of profile `dist`, and manual pages and completions that `sluice` itself writes. Maintainer scripts are in `contrib/debian`.

mod deb;
mod guest;
mod previous;
mod trial;

use crate::{Verb, workspace};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Build the Debian packages, or test them in a booted Debian. The test needs root, and downloads Debian once.
#[derive(clap::Args)]
pub(crate) struct Package {
    /// Folder for the packages. Default: the build's folder.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Package the programs in this folder instead of building them with profile `dist`.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Install the package in a booted Debian, and test the service there.
    #[arg(long)]
    test: bool,
    /// Commit of the version from which the test upgrades, and to which it returns.
    #[arg(long, value_name = "COMMIT", requires = "test", default_value = previous::COMMIT)]
    previous: String,
}

impl Verb for Package {
    const NAME: &'static str = "package";

    fn run(self) -> Result<ExitCode, String> {
        let programs = self.programs.map_or_else(build, Ok)?;
        if self.test {
            return Ok(if trial::run_checks(&programs, &self.previous, &target())?.1 == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        let out = self.out.unwrap_or_else(target);
        for package in [&deb::SLUICEGATE, &deb::LABORATORY] {
            println!("{}", deb::build(package, &programs, 1, deb::Compression::Best, &out)?.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Packages the programs in a folder and tests the packages. Returns the numbers of passed and failed checks.
pub(crate) fn test(programs: &Path) -> Result<(u64, u64), String> {
    trial::run_checks(programs, previous::COMMIT, &target())
}

/// Returns the folder of builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace::root().join("target"), PathBuf::from)
}

fn build() -> Result<PathBuf, String> {
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--profile", "dist", "-p", "sluice", "-p", "sluice-lab"]).env("SLUICE_VERSION", version());
    run(&mut cargo)?;
    Ok(target().join("dist"))
}

/// Returns the version of the workspace, with the commit if this is a git checkout.
fn version() -> String {
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(workspace::root()).output();
    let commit = git.ok().filter(|git| git.status.success());
    let commit = commit.and_then(|git| String::from_utf8(git.stdout).ok()).map(|commit| commit.trim().to_owned());
    let version = env!("CARGO_PKG_VERSION");
    commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}

/// Runs a program to its end, and returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let name = format!("{command:?}");
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|error| format!("Cannot start {name}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{name}: {}\n{text}", output.status)),
    }
}
