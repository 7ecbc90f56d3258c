//! `cargo xtask tidy`: the rules of style that a machine can check, so that nobody argues about them.
//!
//! Formatting is rustfmt's and correctness is clippy's; tidy holds what neither knows: how long a
//! function and a file may be, which words and paths must not appear, and what the scheduling core
//! and the tests must not call. Rules on text are in `text`, rules on Rust in `rust`, which work on
//! tokens: so a word inside a string or a comment is not taken for code, and code inside a macro is
//! not overlooked. Each rule is a function from a file to its violations, and its tests are beside it.
//!
//! The checks' own needles are put together with `concat!`: spelled out, tidy would find them here.

mod rust;
mod text;
mod tokens;

use crate::{Verb, workspace};
use std::fmt;
use std::process::ExitCode;

/// Check every file for the rules of style that a machine can check.
#[derive(clap::Args)]
pub(crate) struct Tidy {}

impl Verb for Tidy {
    const NAME: &'static str = "tidy";

    fn run(self) -> Result<ExitCode, String> {
        Ok(match check_workspace()? {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

/// One breach of one rule, shown as `file:line: what, and what to do`.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A file with its path relative to the repository root, `/` between folders.
struct Source<'a> {
    path: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn violation(&self, line: usize, what: impl Into<String>) -> Violation {
        Violation { path: self.path.to_string(), line, what: what.into() }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn has_folder(&self, name: &str) -> bool {
        let folders = self.path.rsplit_once('/').map_or("", |(folders, _)| folders);
        folders.split('/').any(|folder| folder == name)
    }
}

/// Prints every violation of every file, and how many there are; returns their number.
pub(crate) fn check_workspace() -> Result<usize, String> {
    let files = workspace::files()?;
    let mut count = 0;
    for path in &files {
        for violation in check_file(path)? {
            println!("{violation}");
            count += 1;
        }
    }
    match count {
        0 => println!("tidy: {} files, no violations", files.len()),
        1 => println!("tidy: {} files, 1 violation", files.len()),
        _ => println!("tidy: {} files, {count} violations", files.len()),
    }
    Ok(count)
}

fn check_file(path: &str) -> Result<Vec<Violation>, String> {
    let bytes = std::fs::read(workspace::root().join(path)).map_err(|error| format!("Cannot read {path}: {error}"))?;
    // What is not text has no lines to check.
    Ok(match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => check(&Source { path, text }),
        _ => Vec::new(),
    })
}

fn check(source: &Source<'_>) -> Vec<Violation> {
    // Seeds of a fuzzer and data of others are input, and as ugly as they need to be.
    if source.has_folder("corpus") || source.has_folder("seeds") || source.has_folder("data") {
        return Vec::new();
    }
    let mut violations = text::check(source);
    if source.is_rust() {
        violations.extend(rust::check(source));
    }
    violations.sort_by_key(|violation| violation.line);
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_reads_as_compilers_write_it() {
        let source = Source { path: "a/b.rs", text: "fn f() {} \n" };
        let shown: Vec<String> = check(&source).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a/b.rs:1: trailing whitespace, remove it"]);
    }

    #[test]
    fn seeds_of_a_fuzzer_are_not_checked() {
        let source = Source { path: "fuzz/corpus/config/one", text: "x = 1 " };
        assert_eq!(check(&source), []);
    }

    #[test]
    fn violations_of_a_file_come_in_the_order_of_its_lines() {
        let source = Source { path: "a.rs", text: "fn f() { dbg!(1); }\nfn g() {} \n" };
        let lines: Vec<usize> = check(&source).iter().map(|v| v.line).collect();
        assert_eq!(lines, [1, 2]);
    }
}
