//! `cargo xtask lines`: the number of lines of Rust, by their purpose.
//!
//! A line counts as code if it has a token outside comments and tests. Deleting comments does not lower this number. A second column
//! counts comments and blank lines too.

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::tidy::rust::test_lines;
use crate::tidy::tokens::Tokens;
use crate::{Verb, workspace};

/// Count the lines of Rust: the product, and what is built around it.
#[derive(clap::Args)]
pub(crate) struct Lines {}

/// The purpose of source, by the start of its path. The first match counts.
const PARTS: &[(&str, Part)] = &[
    ("crates/sluice-lab/", Part::Laboratory),
    ("crates/sluice-report/", Part::Laboratory),
    ("crates/sluice-sim/", Part::Laboratory),
    ("crates/sluice-testbed/", Part::Laboratory),
    ("crates/sluice-papers/", Part::Papers),
    ("crates/", Part::Product),
    ("", Part::Tools),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// The daemon and the command line.
    Product,
    /// Schedulers of the papers.
    Papers,
    /// The simulator, and the reproduction of the papers.
    Laboratory,
    /// Clients, benchmarks, fuzz targets, the developer's tasks.
    Tools,
    Tests,
}

/// Numbers of lines.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    code: usize,
    /// With comments and blank lines.
    all: usize,
}

impl Verb for Lines {
    const NAME: &'static str = "lines";

    fn run(self) -> Result<ExitCode, String> {
        let counts = counts()?;
        println!("{:<12}{:>10}{:>16}", "", "code", "with comments");
        for (part, Count { code, all }) in &counts {
            println!("{:<12}{code:>10}{all:>16}", format!("{part:?}").to_lowercase());
        }
        let sum = |of: fn(&Count) -> usize| counts.values().map(of).sum::<usize>();
        println!("{:<12}{:>10}{:>16}", "all", sum(|count| count.code), sum(|count| count.all));
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the number of lines of the product's code.
pub(crate) fn product() -> Result<usize, String> {
    Ok(counts()?.get(&Part::Product).map_or(0, |count| count.code))
}

fn counts() -> Result<BTreeMap<Part, Count>, String> {
    let mut counts: BTreeMap<Part, Count> = BTreeMap::new();
    for path in workspace::files()?.iter().filter(|path| path.ends_with(".rs")) {
        let text = std::fs::read_to_string(workspace::root().join(path));
        let text = text.map_err(|error| format!("Cannot read {path}: {error}"))?;
        let [source, tests] = count(&text).ok_or_else(|| format!("{path} is not Rust"))?;
        let part = if is_test(path) { Part::Tests } else { part(path) };
        for (part, more) in [(part, source), (Part::Tests, tests)] {
            let count = counts.entry(part).or_default();
            (count.code, count.all) = (count.code + more.code, count.all + more.all);
        }
    }
    Ok(counts)
}

fn part(path: &str) -> Part {
    let part = PARTS.iter().find(|(start, _)| path.starts_with(start));
    part.expect("the last entry matches every path").1
}

/// Whether a file is one of tests. Fuzz targets are tools.
fn is_test(path: &str) -> bool {
    let mut names = path.split('/');
    names.any(|name| name == "tests" || name == "tests.rs")
}

/// Counts the lines of a file, without its tests and of these; `None` if it is not Rust.
fn count(text: &str) -> Option<[Count; 2]> {
    let tokens = Tokens::lex(text).ok()?;
    let tests = test_lines(&tokens);
    let is_test = |line: usize| tests.iter().any(|lines| lines.contains(&line));
    let mut code: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens.attribute(at).filter(|attribute| tokens.is_word(attribute.start, "doc")) {
            Some(doc) => at = doc.end + 1,
            None => {
                code.push(tokens.line(at));
                at += 1;
            }
        }
    }
    code.dedup();
    let all = text.lines().count();
    let of_tests = (1..=all).filter(|line| is_test(*line)).count();
    let code_of_tests = code.iter().filter(|line| is_test(**line)).count();
    let source = Count { code: code.len() - code_of_tests, all: all - of_tests };
    Some([source, Count { code: code_of_tests, all: of_tests }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_are_not_code() {
        let text = "//! Head.\n\n/// Doc.\nfn f() {\n    // Why.\n    g(1, 2);\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let [source, tests] = count(text).unwrap();
        assert_eq!((source, tests), (Count { code: 3, all: 8 }, Count { code: 4, all: 4 }));
    }

    #[test]
    fn every_file_has_a_part() {
        for (path, expected) in [
            ("crates/sluice-io/src/lib.rs", Part::Product),
            ("crates/sluice-testbed/src/lib.rs", Part::Laboratory),
            ("tools/bench/src/main.rs", Part::Tools),
            ("fuzz/fuzz_targets/gate.rs", Part::Tools),
        ] {
            assert_eq!(part(path), expected, "{path}");
        }
        assert!(
            is_test("crates/sluice/tests/cli.rs")
                && is_test("crates/x/src/a/tests.rs")
                && !is_test("xtask/src/test.rs")
        );
    }
}
