//! Runs test programs, or cargo with those that it starts, forwards their output, and sums their results.
//!
//! A test that waits for ever must not take the results of all others with it: a test program that prints nothing for [`SILENT_MAX`] is
//! killed, which is a failure, and the next one runs.

use super::{Tally, name_of};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Time without a line, once tests have begun, after which a test program is killed. The longest test takes about two minutes, several
/// times that beside the others, and the documentation tests are built without a line.
const SILENT_MAX: Duration = Duration::from_secs(15 * 60);

/// The part that hangs if a command prints nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hung {
    /// The command, which is a test program.
    Itself,
    /// The test program that it has started.
    Child,
}

/// The sum of lines such as `test result: ok. 12 passed; 0 failed; 0 ignored; ...`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Test binaries that were killed.
    hung: u64,
}

/// Copies the tests' output to `shown`. It is standard output except in the tests of this file, whose example numbers
/// would otherwise be counted.
pub(super) fn run(command: Command, shown: &mut impl Write, hung: Hung) -> Result<Tally, String> {
    run_for(command, shown, hung, SILENT_MAX)
}

/// As [`run`], with the maximum time without a line.
fn run_for(mut command: Command, shown: &mut impl Write, hung: Hung, silent_max: Duration) -> Result<Tally, String> {
    let name = name_of(&command);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("Cannot start {name}: {error}"))?;
    let lines = lines_of(child.stdout.take().expect("stdout is piped"));
    let mut results = Results::default();
    let mut has_begun = false;
    loop {
        // Cargo prints nothing here while it builds.
        let line = match has_begun {
            true => lines.recv_timeout(silent_max),
            false => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let mut line = match line {
            Ok(line) => line.map_err(|error| format!("Cannot read from {name}: {error}"))?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                eprintln!(
                    "error: no line for {} minutes: the test that runs hangs and is killed",
                    silent_max.as_secs() / 60
                );
                results.hung += kill(child.id(), hung);
                continue;
            }
        };
        let text = String::from_utf8_lossy(&line);
        has_begun |= text.starts_with("running ");
        results.add_line(&text);
        line.push(b'\n');
        shown.write_all(&line).map_err(|error| format!("Cannot print: {error}"))?;
    }
    let status = child.wait().map_err(|error| format!("Cannot wait for {name}: {error}"))?;
    let (tally, remark) = results.judge(status.success());
    if let Some(remark) = remark {
        eprintln!("error: {remark}");
    }
    Ok(tally)
}

/// Lines of a program's output, in bytes, because the output of a failing test need not be UTF-8.
fn lines_of(output: impl Read + Send + 'static) -> Receiver<std::io::Result<Vec<u8>>> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Kills what hangs, of which cargo starts one at a time. Returns the number of killed processes.
fn kill(started: u32, hung: Hung) -> u64 {
    let pids = match hung {
        Hung::Itself => started.to_string(),
        Hung::Child => std::fs::read_to_string(format!("/proc/{started}/task/{started}/children")).unwrap_or_default(),
    };
    let pids = pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    pids.filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count() as u64
}

impl Results {
    fn add_line(&mut self, line: &str) {
        let Some(line) = line.strip_prefix("test result: ") else {
            return;
        };
        self.passed += number_before(line, " passed");
        self.failed += number_before(line, " failed");
        self.ignored += number_before(line, " ignored");
    }

    /// Counts an ignored test as a failure, because it proves nothing. A test binary that does not build or crashes
    /// reports no result and is a failure as well. libtest counts neither.
    fn judge(&self, succeeded: bool) -> (Tally, Option<String>) {
        let passed = self.passed;
        let failed = self.failed + self.ignored + self.hung;
        if !succeeded && self.failed + self.hung == 0 {
            let remark = "a test did not build or ended without a result, see above".to_string();
            let failed = failed + 1;
            return (Tally { passed, failed }, Some(remark));
        }
        let remark = (self.ignored > 0).then(|| {
            let ignored = self.ignored;
            format!("{ignored} ignored tests, make them run everywhere or remove them")
        });
        (Tally { passed, failed }, remark)
    }
}

fn number_before(line: &str, word: &str) -> u64 {
    let Some(at) = line.find(word) else {
        return 0;
    };
    let start = line[..at].rfind(|c: char| !c.is_ascii_digit());
    line[start.map_or(0, |start| start + 1)..at].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_BINARIES: &str = "
running 2 tests
test result: this line is a test's own, and counts nothing
test a ... ok
test b ... FAILED

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: ok. 41 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    fn results(text: &str) -> Results {
        let mut results = Results::default();
        for line in text.lines() {
            results.add_line(line);
        }
        results
    }

    fn tally(passed: u64, failed: u64) -> Tally {
        Tally { passed, failed }
    }

    #[test]
    fn numbers_of_all_binaries_are_summed() {
        let expected = Results { passed: 42, failed: 1, ignored: 2, hung: 0 };
        assert_eq!(results(TWO_BINARIES), expected);
    }

    #[test]
    fn a_success_has_no_remark() {
        let all = results("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured;");
        assert_eq!(all.judge(true), (tally(7, 0), None));
    }

    #[test]
    fn an_ignored_test_is_a_failure() {
        let (tally_found, remark) = results(TWO_BINARIES).judge(false);
        assert_eq!(tally_found, tally(42, 3));
        assert!(remark.is_some_and(|remark| remark.starts_with("2 ignored tests")));
    }

    #[test]
    fn a_binary_that_reports_nothing_is_a_failure() {
        let (tally_found, remark) = results("").judge(false);
        assert_eq!(tally_found, tally(0, 1));
        assert!(remark.is_some());
    }

    #[test]
    fn output_is_forwarded_and_counted() {
        let mut shown = Vec::new();
        let mut command = Command::new("printf");
        command.arg("test result: ok. 3 passed; 0 failed; 0 ignored;\\n\\377 no newline");
        assert_eq!(run(command, &mut shown, Hung::Itself), Ok(tally(3, 0)));
        let expected = b"test result: ok. 3 passed; 0 failed; 0 ignored;\n\xff no newline\n";
        assert_eq!(shown, expected);
        assert_eq!(run(Command::new("false"), &mut shown, Hung::Itself), Ok(tally(0, 1)));
    }

    #[test]
    fn a_test_that_hangs_took_the_results_of_the_others_with_it() {
        let mut command = Command::new("sh");
        let hangs = "echo running 1 test; sleep 1000; echo 'test result: ok. 5 passed; 0 failed; 0 ignored;'; exit 1";
        command.args(["-c", hangs]);
        let mut shown = Vec::new();
        assert_eq!(run_for(command, &mut shown, Hung::Child, Duration::from_millis(100)), Ok(tally(5, 1)));
        let mut command = Command::new("sh");
        command.args(["-c", "echo running 1 test; exec sleep 1000"]);
        assert_eq!(run_for(command, &mut shown, Hung::Itself, Duration::from_millis(100)), Ok(tally(0, 1)));
    }
}
