//! `cargo xtask tidy`: checks the style rules that a machine can check.
//!
//! rustfmt checks formatting and clippy checks correctness. Tidy checks the length of functions and files, words and
//! paths that must not appear, and calls that are not allowed in the scheduling core and in tests. Rules for text are
//! in `text`, rules for Rust in `rust`. The latter work on tokens, so a word in a string or a comment is not taken
//! for code, and code inside a macro is checked. Each of these rules is a function from a file to its violations, with
//! its tests in the same file. Rules for links need all pages, and are in `pages`.
//!
//! The patterns are written with `concat!`, so that tidy does not find them here.

mod listed;
mod pages;
mod ratchets;
pub(crate) mod rust;
mod text;
pub(crate) mod tokens;

use crate::{Verb, workspace};
use std::fmt;
use std::process::ExitCode;

/// Check every file for style rules.
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

/// A violation of a rule, printed as `file:line: what is wrong, and what to do`.
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

/// A file. Its path is relative to the repository root, with `/` between folders.
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

/// Prints every violation in every file, and their number. Returns the number.
pub(crate) fn check_workspace() -> Result<usize, String> {
    let files = workspace::files()?;
    let mut violations = Vec::new();
    for path in &files {
        violations.extend(check_file(path)?);
    }
    violations.extend(check_pages(&files)?);
    violations.extend(check_ratchets(&files)?);
    violations.extend(ratchets::check_size()?);
    let is_built_from = |path: &str| path.ends_with(".rs") || path.ends_with("/Cargo.toml");
    violations.extend(with_texts(&files, is_built_from, listed::check)?);
    violations.iter().for_each(|violation| println!("{violation}"));
    let count = violations.len();
    match count {
        0 => println!("tidy: {} files, no violations", files.len()),
        1 => println!("tidy: {} files, 1 violation", files.len()),
        _ => println!("tidy: {} files, {count} violations", files.len()),
    }
    Ok(count)
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(workspace::root().join(path)).map_err(|error| format!("Cannot read {path}: {error}"))
}

fn check_pages(files: &[String]) -> Result<Vec<Violation>, String> {
    with_texts(files, pages::is_page, |pages| pages::check(pages, files))
}

fn check_ratchets(files: &[String]) -> Result<Vec<Violation>, String> {
    with_texts(files, |path| path.ends_with(".rs"), ratchets::check)
}

/// Checks the files that `are_meant` together.
fn with_texts(
    files: &[String],
    are_meant: fn(&str) -> bool,
    check: impl FnOnce(&[Source<'_>]) -> Vec<Violation>,
) -> Result<Vec<Violation>, String> {
    let paths: Vec<&String> = files.iter().filter(|path| are_meant(path)).collect();
    let text = |path: &&String| Ok(String::from_utf8_lossy(&read(path)?).into_owned());
    let texts: Vec<String> = paths.iter().map(text).collect::<Result<_, String>>()?;
    let sources: Vec<Source<'_>> = paths.iter().zip(&texts).map(|(path, text)| Source { path, text }).collect();
    Ok(check(&sources))
}

fn check_file(path: &str) -> Result<Vec<Violation>, String> {
    let bytes = read(path)?;
    // Binary files are not checked.
    Ok(match std::str::from_utf8(&bytes) {
        Ok(text) if !text.contains('\0') => check(&Source { path, text }),
        _ => Vec::new(),
    })
}

fn check(source: &Source<'_>) -> Vec<Violation> {
    // Fuzzer seeds and third-party data are input and have no style.
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
    fn a_violation_is_printed_like_a_compiler_error() {
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
    fn violations_are_sorted_by_line() {
        let source = Source { path: "a.rs", text: "fn f() { dbg!(1); }\nfn g() {} \n" };
        let lines: Vec<usize> = check(&source).iter().map(|v| v.line).collect();
        assert_eq!(lines, [1, 2]);
    }
}
