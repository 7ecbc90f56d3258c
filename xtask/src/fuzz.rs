//! `cargo xtask fuzz`: what a client or an operator can send, sent at random.
//!
//! The targets are the files of `fuzz/fuzz_targets`; each starts from its folder in `fuzz/seeds`, which holds what a
//! well-behaved peer sends and what once failed. What a run finds on its way stays in `fuzz/corpus`, outside of git. A
//! panic, a hang of ten seconds, or 2 GiB of memory ends a run with a file to repeat it.

use crate::{Verb, workspace};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Fuzz the NBD server and the host file. Needs a nightly toolchain and cargo-fuzz.
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// Which targets; all without it.
    targets: Vec<String>,
    /// How long to run each, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

impl Verb for Fuzz {
    const NAME: &'static str = "fuzz";

    fn run(self) -> Result<ExitCode, String> {
        let root = workspace::root();
        let known = targets(&root)?;
        let chosen = if self.targets.is_empty() { known.clone() } else { self.targets };
        if let Some(unknown) = chosen.iter().find(|target| !known.contains(target)) {
            return Err(format!("No fuzz target is called '{unknown}'; there are: {}", known.join(", ")));
        }
        let mut failed = Vec::new();
        for target in &chosen {
            println!("== {target}: {} s", self.seconds);
            if !run(&root, target, self.seconds)? {
                failed.push(target.as_str());
            }
        }
        if failed.is_empty() {
            println!("No target failed: {}", chosen.join(", "));
            return Ok(ExitCode::SUCCESS);
        }
        println!("Failed: {}; the inputs are in fuzz/artifacts", failed.join(", "));
        Ok(ExitCode::FAILURE)
    }
}

/// The targets that Cargo.toml of the fuzz folder names.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let manifest = root.join("fuzz/Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(|error| format!("Cannot read {manifest:?}: {error}"))?;
    let paths = text.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    Ok(paths.map(str::to_owned).collect())
}

fn run(root: &Path, target: &str, seconds: u32) -> Result<bool, String> {
    let corpus = root.join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&corpus).map_err(|error| format!("Cannot make {corpus:?}: {error}"))?;
    let status = Command::new("cargo")
        .current_dir(root)
        .args(["+nightly", "fuzz", "run", target])
        .arg(&corpus)
        .arg(root.join("fuzz/seeds").join(target))
        .args(["--", "-timeout=10", "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1"])
        .arg(format!("-max_total_time={seconds}"))
        .status();
    match status {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!(
            "Cannot run cargo fuzz ({error}): install it with `rustup toolchain install nightly` and `cargo install cargo-fuzz`"
        )),
    }
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
