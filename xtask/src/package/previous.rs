//! The package of the previous version, for the test of an upgrade and of the way back.
//!
//! It is built from the commit of that version with that commit's own files and tasks, so that it is what operators have
//! installed. This takes minutes, so the package is kept in the build's folder.

use super::run;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The commit of the previous version.
pub(super) const COMMIT: &str = "8eccf97d";

/// Makes a release build as quick as one for tests: what matters is what the program does, and not its speed.
const QUICK_BUILD: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

/// Returns the package of `commit`, and builds it if the build's folder `target` does not have it.
pub(super) fn package(commit: &str, target: &Path) -> Result<PathBuf, String> {
    let kept = target.join("previous");
    let package = kept.join(format!("{}.deb", full(commit)?));
    if package.is_file() {
        return Ok(package);
    }
    println!("building the package of commit {commit}, which is kept in {}", kept.display());
    fs::create_dir_all(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let folder = tempfile::tempdir_in(&kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    let sources = folder.path().join("sources");
    extract(commit, &sources)?;
    let (built, out) = (folder.path().join("target"), folder.path().join("out"));
    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace::cargo();
        cargo.args(arguments).current_dir(&sources).env("CARGO_TARGET_DIR", &built).envs(QUICK_BUILD);
        cargo
    };
    run(&mut cargo(&["build", "--quiet", "--release", "-p", "sluice", "-p", "sluice-lab"]))?;
    let mut pack = cargo(&["xtask", "package", "--programs"]);
    run(pack.arg(built.join("release")).arg("--out").arg(&out))?;
    let mut files = fs::read_dir(&out).map_err(|error| format!("{}: {error}", out.display()))?.flatten();
    let made = files.find(|file| file.file_name().to_string_lossy().starts_with("sluicegate_"));
    let made = made.ok_or_else(|| format!("The tasks of {commit} made no package in {}", out.display()))?;
    fs::rename(made.path(), &package).map_err(|error| format!("{}: {error}", package.display()))?;
    Ok(package)
}

/// Returns the commit's whole name. A shallow clone may lack the commit.
fn full(commit: &str) -> Result<String, String> {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--verify", &format!("{commit}^{{commit}}")]).current_dir(workspace::root());
    let name = run(&mut git).map_err(|error| {
        format!("The previous version is commit {commit}, which this clone lacks; fetch the whole history: {error}")
    })?;
    Ok(name.trim().to_owned())
}

fn extract(commit: &str, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    let mut git = Command::new("git");
    git.args(["archive", "--format=tar", commit]).current_dir(workspace::root()).stdout(Stdio::piped());
    let mut git = git.spawn().map_err(|error| format!("Cannot start git: {error}"))?;
    let archive = git.stdout.take().expect("it is piped");
    run(Command::new("tar").args(["-x", "-C"]).arg(to).stdin(archive))?;
    match git.wait() {
        Ok(status) if status.success() => Ok(()),
        ended => Err(format!("git archive {commit}: {ended:?}")),
    }
}
