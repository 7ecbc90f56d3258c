//! `cargo xtask fuzz`: random input from clients, guests and operators, and random calls to the core.
//!
//! The targets are the files of `fuzz/fuzz_targets`. Each starts with the inputs in its folder of `fuzz/seeds`: those
//! of a valid peer, and those that once failed. Inputs found during a run are kept in `fuzz/corpus`, outside git. A
//! panic, a hang of ten seconds, or 2 GiB of memory ends a run, and leaves a file in `fuzz/artifacts` that repeats
//! it.
//!
//! libFuzzer finds new code paths with counters that the compiler inserts. The stable compiler supports that; only
//! the check of every memory access needs a nightly compiler.

use crate::{Verb, workspace};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

/// Counters for libFuzzer, and the assertions of a debug build.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks --cfg fuzzing";

/// Fuzz the input of clients, guests and operators, and the core. Needs a C++ compiler.
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// Targets to run. Default: all.
    targets: Vec<String>,
    /// Seconds to run each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Check every memory access. Needs a nightly toolchain.
    #[arg(long)]
    address: bool,
}

impl Verb for Fuzz {
    const NAME: &'static str = "fuzz";

    fn run(self) -> Result<ExitCode, String> {
        let known = targets(&workspace::root())?;
        if let Some(unknown) = self.targets.iter().find(|target| !known.contains(target)) {
            return Err(format!("Unknown fuzz target '{unknown}'; the targets are: {}", known.join(", ")));
        }
        let chosen = if self.targets.is_empty() { known } else { self.targets };
        let failed = fuzz(&chosen, self.seconds, self.address, 1)?;
        if failed.is_empty() {
            println!("No target failed: {}", chosen.join(", "));
            return Ok(ExitCode::SUCCESS);
        }
        println!("Failed: {}; the inputs are in fuzz/artifacts", failed.join(", "));
        Ok(ExitCode::FAILURE)
    }
}

/// Runs all targets for `seconds` each, one on each CPU. Returns their number, and the names of those that failed.
pub(crate) fn run_all(seconds: u32) -> Result<(usize, Vec<String>), String> {
    let known = targets(&workspace::root())?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok((known.len(), fuzz(&known, seconds, false, cpus)?))
}

/// Builds the targets and runs them, at most `at_a_time` together. Returns the names of those that failed.
fn fuzz(targets: &[String], seconds: u32, address: bool, at_a_time: usize) -> Result<Vec<String>, String> {
    let root = workspace::root();
    let programs = build(&root, address)?;
    let mut failed = Vec::new();
    for some in targets.chunks(at_a_time) {
        println!("== {}: {seconds} s", some.join(", "));
        let started = some.iter().map(|target| start(&root, &programs, target, seconds)).collect::<Vec<_>>();
        for (target, started) in some.iter().zip(started) {
            let ended = started.and_then(|mut run| run.wait());
            if !ended.map_err(|error| format!("Cannot run fuzz target {target}: {error}"))?.success() {
                failed.push(target.clone());
            }
        }
    }
    Ok(failed)
}

/// Returns the targets in the Cargo.toml of the fuzz folder.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let manifest = root.join("fuzz/Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|error| format!("Cannot read {manifest:?}: {error}"))?;
    let paths = text.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    Ok(paths.map(str::to_owned).collect())
}

/// Builds all targets and returns the folder of their programs. The target triple is stated, so that only the targets
/// are instrumented and not the build scripts.
fn build(root: &Path, address: bool) -> Result<PathBuf, String> {
    let host = host()?;
    let base = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    let folder = base.join(if address { "fuzz-address" } else { "fuzz" });
    let flags = if address { format!("{COVERAGE} -Zsanitizer=address") } else { COVERAGE.to_owned() };
    let mut cargo = if address { Command::new("cargo") } else { workspace::cargo() };
    if address {
        cargo.current_dir(root).arg("+nightly");
    }
    cargo.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", &host]);
    cargo.env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", &folder);
    let status = cargo.status().map_err(|error| format!("Cannot start cargo: {error}"))?;
    match status.success() {
        true => Ok(folder.join(host).join("release")),
        false => {
            Err("Cannot build the fuzz targets (they need a C++ compiler, such as Debian's package g++)".to_owned())
        }
    }
}

/// Returns the target triple of the compiler's machine.
fn host() -> Result<String, String> {
    let asked = Command::new("rustc").args(["--print", "host-tuple"]).output();
    let asked = asked.map_err(|error| format!("Cannot start rustc: {error}"))?;
    match String::from_utf8(asked.stdout) {
        Ok(host) if asked.status.success() => Ok(host.trim().to_owned()),
        _ => Err("`rustc --print host-tuple` printed nothing".to_owned()),
    }
}

fn start(root: &Path, programs: &Path, target: &str, seconds: u32) -> std::io::Result<Child> {
    let corpus = root.join("fuzz/corpus").join(target);
    let artifacts = root.join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    Command::new(programs.join(target))
        .arg(&corpus)
        .arg(root.join("fuzz/seeds").join(target))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-timeout=10", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-max_total_time={seconds}"))
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds() {
        let root = workspace::root();
        let targets = targets(&root).unwrap();
        assert!(targets.len() >= 3, "{targets:?}");
        for target in targets {
            let seeds = std::fs::read_dir(root.join("fuzz/seeds").join(&target)).unwrap();
            assert!(seeds.count() > 0, "{target}");
        }
    }
}
