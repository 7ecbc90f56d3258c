//! Runs the tests of the workspace: cargo builds the test programs, and this starts them, in two lanes at the same time.
//!
//! Most black-box tests wait, for a guest, a time limit or a disk that hangs, and leave a CPU idle. The tests of the core, the simulator
//! and the papers compute. So these run beside the others when a CPU is idle, and take what the black-box tests leave: what those
//! measure stays as it is. (A low priority is not enough: a program that wakes would wait for the slice of one that computes.) Among themselves the programs of a lane run one after the other, because some need the whole machine. A package links its black-box tests
//! once, and each module of them runs as a process of its own.
//! Example: 1105 s of black-box tests and 384 s of computing ones take little more than 1105 s.

use super::libtest::{self, Hung};
use super::{FEATURES, Tally, cargo, ceph, name_of};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders of the packages whose tests compute. Those of all others wait, or measure.
const COMPUTING: &[&str] = &[
    "crates/sluice-api",
    "crates/sluice-config",
    "crates/sluice-lab",
    "crates/sluice-net",
    "crates/sluice-observe",
    "crates/sluice-papers",
    "crates/sluice-report",
    "crates/sluice-sched",
    "crates/sluice-sim",
];

/// Test programs of such a package that start guests or a browser.
const MEASURING: &[&str] = &["tests/measuring.rs"];

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    /// Source file, for output.
    source: String,
    /// Folder of the package, in which cargo would run it.
    folder: PathBuf,
}

/// Builds and runs all tests, also those in documentation, but not those of the module that has a step of its own.
pub(super) fn run() -> Result<Tally, String> {
    let (computing, others): (Vec<_>, Vec<_>) = build()?.into_iter().partition(Program::computes);
    // Otherwise the first writes of a daemon wait, for seconds, until the disk has what was built.
    rustix::fs::sync();
    let (beside, main) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| run_each(&computing, Lane::Beside));
        (run_each(&others, Lane::Main), beside.join().expect("a lane returns its errors"))
    });
    let docs = cargo(&["test", "--workspace", "--no-fail-fast", "--doc", FEATURES]);
    let docs = libtest::run(docs, &mut std::io::stdout(), Hung::Child)?;
    let all = [beside?, main?, docs];
    let sum = |number: fn(&Tally) -> u64| all.iter().map(number).sum();
    Ok(Tally { passed: sum(|tally| tally.passed), failed: sum(|tally| tally.failed) })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Main,
    Beside,
}

/// Builds all tests, and runs those of a module of black-box tests with these variables.
pub(super) fn run_module(module: &str, variables: &[(&str, &str)]) -> Result<Tally, String> {
    let mut sum = Tally::default();
    for program in build()?.iter().filter(|program| !program.computes()) {
        for (name, tests) in program.modules()?.into_iter().filter(|(of, _)| of == module) {
            print(format!("     Running {}: {name} ({})\n", program.source, program.path.display()).as_bytes())?;
            let mut command = program.command(Lane::Main);
            command.args(&tests).envs(variables.iter().copied());
            let Tally { passed, failed } = libtest::run(command, &mut std::io::stdout(), Hung::Itself)?;
            sum.passed += passed;
            sum.failed += failed;
        }
    }
    match sum.passed + sum.failed {
        0 => Err(format!("there are no tests in a module {module}")),
        _ => Ok(sum),
    }
}

/// Builds all test programs.
fn build() -> Result<Vec<Program>, String> {
    let mut build = cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics", FEATURES]);
    let built = build.stderr(Stdio::inherit()).output();
    let built = built.map_err(|error| format!("Cannot start {}: {error}", name_of(&build)))?;
    match built.status.success() {
        true => Ok(String::from_utf8_lossy(&built.stdout).lines().filter_map(Program::from_message).collect()),
        false => Err("A test does not build, see above".to_owned()),
    }
}

/// Runs programs one after the other. What they print beside the others is printed when each has ended.
fn run_each(programs: &[Program], lane: Lane) -> Result<Tally, String> {
    let mut sum = Tally::default();
    let runs = programs.iter().map(|program| Ok(program.runs(lane)?.into_iter().map(move |run| (program, run))));
    for (program, (name, tests)) in runs.collect::<Result<Vec<_>, String>>()?.into_iter().flatten() {
        let mut shown = format!("     Running {name} ({})\n", program.path.display()).into_bytes();
        let mut command = program.command(lane);
        command.args(&tests);
        let Tally { passed, failed } = match lane {
            Lane::Main => {
                print(&shown)?;
                libtest::run(command, &mut std::io::stdout(), Hung::Itself)?
            }
            Lane::Beside => {
                let tally = libtest::run(command, &mut shown, Hung::Itself)?;
                print(&shown)?;
                tally
            }
        };
        sum.passed += passed;
        sum.failed += failed;
    }
    Ok(sum)
}

fn print(text: &[u8]) -> Result<(), String> {
    std::io::stdout().write_all(text).map_err(|error| format!("Cannot print: {error}"))
}

impl Program {
    /// The test program of one of cargo's messages.
    fn from_message(line: &str) -> Option<Program> {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_test = message["profile"]["test"] == Value::Bool(true);
        Some(Program {
            path: message["executable"].as_str().filter(|_| is_test)?.into(),
            source: message["target"]["src_path"].as_str()?.to_owned(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }

    fn computes(&self) -> bool {
        let measures = MEASURING.iter().any(|source| self.source.ends_with(source));
        !measures && COMPUTING.iter().any(|folder| self.folder.ends_with(folder))
    }

    /// Returns the processes to start: a name for people, and arguments. Each module of black-box tests is one of its own, so that its tests
    /// run beside each other and beside no others.
    fn runs(&self, lane: Lane) -> Result<Vec<(String, Vec<String>)>, String> {
        if lane == Lane::Beside || !self.source.contains("/tests/") {
            return Ok(vec![(self.source.clone(), Vec::new())]);
        }
        let runs = self.modules()?.into_iter().filter(|(module, _)| module != ceph::MODULE);
        Ok(runs.map(|(module, tests)| (format!("{}: {module}", self.source), tests)).collect())
    }

    /// Returns the modules of black-box tests, each with the arguments that run it.
    fn modules(&self) -> Result<Vec<(String, Vec<String>)>, String> {
        if !self.source.contains("/tests/") {
            return Ok(Vec::new());
        }
        let list = self.command(Lane::Main).args(["--list", "--format", "terse"]).output();
        let list = list.map_err(|error| format!("Cannot start {}: {error}", self.path.display()))?;
        if !list.status.success() {
            return Err(format!("{} does not list its tests: {}", self.path.display(), list.status));
        }
        let list = String::from_utf8_lossy(&list.stdout);
        Ok(by_module(&list).into_iter().map(|(module, tests)| (module.to_owned(), tests)).collect())
    }

    fn command(&self, lane: Lane) -> Command {
        let mut command = match lane {
            Lane::Main => Command::new(&self.path),
            Lane::Beside => Command::new("chrt"),
        };
        if lane == Lane::Beside {
            command.args(["--idle", "0"]).arg(&self.path);
        }
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

/// Returns the arguments that run the tests of each module, for libtest's list of all.
fn by_module(list: &str) -> BTreeMap<&str, Vec<String>> {
    let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or("", |(module, _)| module);
        modules.entry(module).or_insert_with(|| vec!["--exact".to_owned()]).push(test.to_owned());
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_cargos_messages() {
        let of = |test: bool, folder: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/{folder}/Cargo.toml","target":{{"src_path":"/w/{folder}/tests/a.rs"}},"profile":{{"test":{test}}},"executable":"/t/a-1"}}"#
            )
        };
        assert_eq!(Program::from_message(&of(false, "crates/sluice")), None, "the daemon itself");
        assert_eq!(Program::from_message(r#"{"reason":"build-finished","success":true}"#), None);
        let program = |folder: &str| Program::from_message(&of(true, folder)).unwrap();
        assert_eq!(program("crates/sluice").path, Path::new("/t/a-1"));
        assert_eq!(program("crates/sluice").folder, Path::new("/w/crates/sluice"));
        assert!(!program("crates/sluice").computes() && program("crates/sluice-sim").computes());
    }

    #[test]
    fn tests_run_module_by_module() {
        let modules = by_module("top::a: test\nstop::b: test\ntop::inner::c: test\nlisted: test\nx: benchmark\n");
        let of = |tests: &[&str]| tests.iter().map(|test| (*test).to_owned()).collect::<Vec<_>>();
        let expected = [
            ("", of(&["--exact", "listed"])),
            ("stop", of(&["--exact", "stop::b"])),
            ("top", of(&["--exact", "top::a", "top::inner::c"])),
        ];
        assert_eq!(modules, BTreeMap::from(expected));
    }

    #[test]
    fn every_package_that_computes_exists() {
        let missing = COMPUTING.iter().filter(|folder| !crate::workspace::root().join(folder).is_dir());
        assert_eq!(missing.collect::<Vec<_>>(), Vec::<&&str>::new());
    }
}
