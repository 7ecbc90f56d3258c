//! `cargo xtask test`: runs everything that must pass before a change is merged.
//!
//! The steps run in order, and a failed step does not stop the next one: a missing blank line must not hide a failing
//! test. Tests are counted with libtest's own numbers, summed over all test binaries. Each check (fmt, clippy, tidy,
//! papers, docs) and each fuzz target counts as one. Preparations (tools) count only when they fail. The last
//! line on standard output is exactly `N passed, N failed`, for scripts.

mod ceph;
mod libtest;
mod programs;
mod tools;

use crate::{Verb, fuzz, package, papers, tidy, workspace};
use clap::ValueEnum;
use std::fmt::Write as _;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Features that are checked in addition to the defaults.
const FEATURES: &str = "--features=sluice-lab/parquet";
/// Seconds to run each fuzz target.
const FUZZ_SECONDS: u32 = 5;

/// Run all checks and tests, and print `N passed, N failed` as the last line.
#[derive(clap::Args)]
pub(crate) struct Test {
    /// Run only this step (may be given several times).
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,

    /// Do not install missing tools; only list them.
    #[arg(long)]
    no_install: bool,
}

/// The steps, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Install the programs that the black-box tests start, from Debian's packages.
    Tools,
    /// Check the formatting with rustfmt.
    Fmt,
    /// Run clippy without warnings.
    Clippy,
    /// Check the rules of `cargo xtask tidy`.
    Tidy,
    /// Check that every cited rule of the papers exists.
    Papers,
    /// Run unit, contract, black-box and documentation tests.
    Tests,
    /// Start a Ceph cluster, and run the black-box tests of RBD images.
    Ceph,
    /// Package the programs that were tested, and test the packages in a booted Debian.
    Package,
    /// Run each fuzz target for a few seconds.
    Fuzz,
    /// Build the code's documentation and check its links.
    Docs,
}

/// Numbers of passed and failed checks of a step.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
}

impl Verb for Test {
    const NAME: &'static str = "test";

    fn run(self) -> Result<ExitCode, String> {
        let chosen = |step: &Step| self.only.is_empty() || self.only.contains(step);
        let steps = Step::value_variants().iter().copied().filter(chosen);
        Ok(sum_up(&steps.map(|step| self.run_step(step)).collect::<Vec<Row>>()))
    }
}

/// Prints a table and the sum.
pub(crate) fn sum_up(rows: &[Row]) -> ExitCode {
    print!("{}", summary(rows));
    match rows.iter().all(|row| row.tally.failed == 0) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Builds all tests, and runs those of a module of black-box tests with these variables, and with a cluster if they need one.
pub(crate) fn run_long(module: &str, variables: &[(&str, &str)]) -> Result<Tally, String> {
    tools::provide(true, tools::TOOLS)?;
    tools::provide_of_python(true)?;
    match module {
        ceph::MODULE => ceph::run(true, variables),
        _ => programs::run_module(module, variables),
    }
}

impl Test {
    fn run_step(&self, step: Step) -> Row {
        println!("\n==== {} ====", step.name());
        let start = Instant::now();
        let tally = self.tally(step).unwrap_or_else(|error| {
            println!("error: {error}");
            Tally::of_preparation(false)
        });
        Row { name: step.name(), tally, took: start.elapsed() }
    }

    fn tally(&self, step: Step) -> Result<Tally, String> {
        Ok(match step {
            Step::Tools => {
                tools::provide(!self.no_install, tools::TOOLS)?;
                tools::provide_of_python(!self.no_install)?;
                Tally::of_preparation(true)
            }
            Step::Fmt => check(cargo(&["fmt", "--all", "--check"]))?,
            Step::Clippy => {
                check(cargo(&["clippy", "--workspace", "--all-targets", FEATURES, "--", "-D", "warnings"]))?
            }
            Step::Tidy => Tally::of_check(tidy::check_workspace()? == 0),
            Step::Papers => Tally::of_check(papers::check_citations()? == 0),
            Step::Tests => programs::run()?,
            Step::Ceph => ceph::run(!self.no_install, &[])?,
            Step::Package => {
                // The tests have built the programs. With other features they would be built again.
                succeeds(cargo(&["test", "--workspace", "--no-run", "--quiet", FEATURES]))?;
                let (passed, failed) = package::test(&package::target().join("debug"))?;
                Tally { passed, failed }
            }
            Step::Fuzz => {
                let (targets, failed) = fuzz::run_all(FUZZ_SECONDS)?;
                Tally { passed: (targets - failed.len()) as u64, failed: failed.len() as u64 }
            }
            Step::Docs => {
                let mut doc = cargo(&["doc", "--workspace", "--no-deps", FEATURES]);
                doc.env("RUSTDOCFLAGS", "-D warnings");
                check(doc)?
            }
        })
    }
}

impl Step {
    fn name(self) -> String {
        let value = self.to_possible_value().expect("no step is hidden");
        value.get_name().to_string()
    }
}

impl Tally {
    fn of_check(holds: bool) -> Self {
        Self { passed: u64::from(holds), failed: u64::from(!holds) }
    }

    pub(crate) fn of_preparation(succeeded: bool) -> Self {
        Self { passed: 0, failed: u64::from(!succeeded) }
    }
}

fn cargo(arguments: &[&str]) -> Command {
    println!("cargo {}", arguments.join(" "));
    let mut command = workspace::cargo();
    command.args(arguments);
    command
}

fn check(command: Command) -> Result<Tally, String> {
    succeeds(command).map(Tally::of_check)
}

fn succeeds(mut command: Command) -> Result<bool, String> {
    let status = command.status().map_err(|error| format!("Cannot start {}: {error}", name_of(&command)))?;
    Ok(status.success())
}

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn summary(rows: &[Row]) -> String {
    let mut text = "\n==== summary ====\n".to_string();
    let mut sum = Tally::default();
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default().max(7);
    for Row { name, tally, took } in rows {
        let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
        let Tally { passed, failed } = tally;
        let seconds = took.as_secs_f64();
        let _ = writeln!(text, "{name:<width$} {verdict:<7} {passed:>5} passed {failed:>4} failed {seconds:>7.1} s");
        sum.passed += passed;
        sum.failed += failed;
    }
    let _ = writeln!(text, "\n{} passed, {} failed", sum.passed, sum.failed);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_the_summary_is_the_sum() {
        let took = Duration::from_millis(1500);
        let rows = [
            Row { name: Step::Tools.name(), tally: Tally::of_preparation(true), took },
            Row { name: Step::Tests.name(), tally: Tally { passed: 211, failed: 2 }, took },
            Row { name: Step::Fmt.name(), tally: Tally::of_check(true), took },
        ];
        assert_eq!(
            summary(&rows),
            "
==== summary ====
tools   ok          0 passed    0 failed     1.5 s
tests   FAILED    211 passed    2 failed     1.5 s
fmt     ok          1 passed    0 failed     1.5 s

212 passed, 2 failed
"
        );
    }

    #[test]
    fn preparations_count_only_when_they_fail() {
        let tally = |passed, failed| Tally { passed, failed };
        assert_eq!(Tally::of_check(true), tally(1, 0));
        assert_eq!(Tally::of_check(false), tally(0, 1));
        assert_eq!(Tally::of_preparation(true), tally(0, 0));
        assert_eq!(Tally::of_preparation(false), tally(0, 1));
    }
}
