//! Runs `cargo test`, forwards its output, and sums the results of the test binaries.

use super::{Tally, name_of};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The sum of lines such as `test result: ok. 12 passed; 0 failed; 0 ignored; ...`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Results {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Copies the tests' output to `shown`. It is standard output except in the tests of this file, whose example numbers
/// would otherwise be counted.
pub(super) fn run(mut command: Command, shown: &mut impl Write) -> Result<Tally, String> {
    let name = name_of(&command);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("Cannot start {name}: {error}"))?;
    let output = child.stdout.take().expect("stdout is piped");
    let mut results = Results::default();
    // Bytes, because the output of a failing test need not be UTF-8.
    for line in BufReader::new(output).split(b'\n') {
        let mut line = line.map_err(|error| format!("Cannot read from {name}: {error}"))?;
        results.add_line(&String::from_utf8_lossy(&line));
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
        let failed = self.failed + self.ignored;
        if !succeeded && self.failed == 0 {
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
        let expected = Results { passed: 42, failed: 1, ignored: 2 };
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
        assert_eq!(run(command, &mut shown), Ok(tally(3, 0)));
        let expected = b"test result: ok. 3 passed; 0 failed; 0 ignored;\n\xff no newline\n";
        assert_eq!(shown, expected);
        assert_eq!(run(Command::new("false"), &mut shown), Ok(tally(0, 1)));
    }
}
