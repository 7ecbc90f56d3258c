//! `cargo xtask papers`: lists the rules of the papers with the code and the tests that cite them.
//!
//! `docs/rules.toml` gives each rule an id. Code and tests cite it in a comment that begins with the word. A rule
//! without a citation is missing or not marked. An id that does not exist is an error, and `cargo xtask test` fails.
//!
//! A citation belongs to a test if it is in a folder `tests`, in a file `tests.rs`, or below `#[cfg(test)]`.

use crate::{Verb, workspace};
use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use toml::Spanned;

const RULES: &str = "docs/rules.toml";
/// First word of a citation, after the slashes of its comment. It is concatenated because this file would cite
/// otherwise.
const MARK: &str = concat!("rule", ": ");

/// Print each rule of the papers with its code and its test.
#[derive(clap::Args)]
pub(crate) struct Papers {
    /// Print only the rules of this scheduler.
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// Print only rules without code or without a test.
    #[arg(long)]
    uncovered: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

impl Verb for Papers {
    const NAME: &'static str = "papers";

    fn run(self) -> Result<ExitCode, String> {
        let (mut rules, mistakes) = collect()?;
        if let Some(scheduler) = &self.scheduler {
            rules.retain(|rule| rule.scheduler == *scheduler);
            if rules.is_empty() {
                return Err(format!("{RULES} has no scheduler '{scheduler}'"));
            }
        }
        let summary = summary(&rules);
        if self.uncovered {
            rules.retain(|rule| rule.code.is_empty() || rule.test.is_empty());
        }
        let text = match self.output {
            Output::Text => format!("{}\n{summary}\n", rules.iter().map(Rule::show).collect::<String>()),
            Output::Json => serde_json::to_string_pretty(&rules).expect("rules are plain data") + "\n",
        };
        // A reader such as `head` may close the pipe early.
        match std::io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(format!("Cannot print: {error}")),
            _ => {}
        }
        mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
        Ok(if mistakes.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// A rule and its citations.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Rule {
    id: String,
    scheduler: String,
    section: String,
    text: String,
    /// `file:line`
    code: Vec<String>,
    /// `file:line`
    test: Vec<String>,
}

impl Rule {
    fn show(&self) -> String {
        let locations = |locations: &[String]| if locations.is_empty() { "-".to_owned() } else { locations.join(" ") };
        let Rule { id, section, text, .. } = self;
        format!("{id} ({section}): {text}\n    code  {}\n    test  {}\n", locations(&self.code), locations(&self.test))
    }
}

/// Prints citations of rules that do not exist. Returns their number.
pub(crate) fn check_citations() -> Result<usize, String> {
    let (rules, mistakes) = collect()?;
    mistakes.iter().for_each(|mistake| println!("{mistake}"));
    println!("papers: {}", summary(&rules));
    Ok(mistakes.len())
}

/// Returns the rules with their citations, and the errors found.
fn collect() -> Result<(Vec<Rule>, Vec<String>), String> {
    let read = |path: &str| {
        std::fs::read_to_string(workspace::root().join(path)).map_err(|error| format!("Cannot read {path}: {error}"))
    };
    let mut rules = parse(&read(RULES)?)?;
    let mut mistakes = Vec::new();
    for path in workspace::files()?.iter().filter(|path| path.ends_with(".rs")) {
        cite(&mut rules, path, &read(path)?, &mut mistakes);
    }
    Ok((rules, mistakes))
}

/// Returns the rules, in the order of the file.
fn parse(text: &str) -> Result<Vec<Rule>, String> {
    type Section = BTreeMap<String, Spanned<String>>;
    let tables: BTreeMap<String, BTreeMap<String, Section>> =
        toml::from_str(text).map_err(|error| format!("Cannot read {RULES}: {error}"))?;
    let mut rules: Vec<(usize, Rule)> = Vec::new();
    for (scheduler, sections) in &tables {
        for (section, texts) in sections {
            for (name, text) in texts {
                let id = format!("{scheduler}.{name}");
                let (scheduler, section, at) = (scheduler.clone(), section.clone(), text.span().start);
                let text = text.get_ref().clone();
                rules.push((at, Rule { id, scheduler, section, text, code: Vec::new(), test: Vec::new() }));
            }
        }
    }
    rules.sort_by_key(|(at, _)| *at);
    let rules: Vec<Rule> = rules.into_iter().map(|(_, rule)| rule).collect();
    let mut ids: Vec<&str> = rules.iter().map(|rule| rule.id.as_str()).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{RULES} has two rules '{}'; rename one", pair[0])),
        None => Ok(rules),
    }
}

/// Adds the citations of one file.
fn cite(rules: &mut [Rule], path: &str, text: &str, mistakes: &mut Vec<String>) {
    let mut tests = path.split('/').any(|part| part == "tests" || part == "tests.rs");
    for (index, line) in text.lines().enumerate() {
        tests |= line.trim() == "#[cfg(test)]";
        for id in cited(line) {
            let location = format!("{path}:{}", index + 1);
            match rules.iter_mut().find(|rule| rule.id == id) {
                Some(rule) if tests => rule.test.push(location),
                Some(rule) => rule.code.push(location),
                None => mistakes.push(format!("{location}: no rule '{id}' in {RULES}, correct it or add the rule")),
            }
        }
    }
}

/// Returns the ids that a line cites: those after the mark, if it is the first word of a comment.
fn cited(line: &str) -> impl Iterator<Item = &str> {
    let comment = line.find("//").map_or("", |at| line[at..].trim_start_matches(['/', '!']).trim_start());
    let ids = comment.strip_prefix(MARK).unwrap_or("");
    ids.split(',').map(str::trim).filter(|id| !id.is_empty())
}

fn summary(rules: &[Rule]) -> String {
    let count = |holds: fn(&Rule) -> bool| rules.iter().filter(|rule| holds(rule)).count();
    let both = count(|rule| !rule.code.is_empty() && !rule.test.is_empty());
    let code = count(|rule| !rule.code.is_empty() && rule.test.is_empty());
    let test = count(|rule| rule.code.is_empty() && !rule.test.is_empty());
    let none = count(|rule| rule.code.is_empty() && rule.test.is_empty());
    format!(
        "{} rules: {both} with code and test, {code} with code alone, {test} with a test alone, {none} uncovered",
        rules.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[b.\"3.1\"]\nlast = \"z\"\nfirst = \"a\"\n[a.\"2\"]\nfirst = \"other\"\n";

    #[test]
    fn rules_keep_the_order_of_the_file() {
        let rules = parse(TEXT).expect("it is well formed");
        let ids: Vec<_> = rules.iter().map(|rule| (rule.id.as_str(), rule.section.as_str())).collect();
        assert_eq!(ids, [("b.last", "3.1"), ("b.first", "3.1"), ("a.first", "2")]);
    }

    #[test]
    fn a_duplicate_name_in_a_scheduler_is_an_error() {
        let error = parse("[a.\"2\"]\nx = \"1\"\n[a.\"3\"]\nx = \"2\"\n").expect_err("x is there twice");
        assert!(error.contains("'a.x'"), "{error}");
    }

    #[test]
    fn the_place_of_a_citation_decides_between_code_and_test() {
        let mut rules = parse(TEXT).expect("it is well formed");
        let mut mistakes = Vec::new();
        let cites = |ids: &str| format!("    step(); // {MARK}{ids}\n");
        let text = format!("{}#[cfg(test)]\n{}", cites("b.last, a.first"), cites("b.last"));
        cite(&mut rules, "src/a.rs", &text, &mut mistakes);
        cite(&mut rules, "tests/a.rs", &format!("//! {MARK}b.first\n/// {MARK}b.typo\n"), &mut mistakes);
        assert_eq!(mistakes, ["tests/a.rs:2: no rule 'b.typo' in docs/rules.toml, correct it or add the rule"]);
        assert_eq!((&rules[0].code[..], &rules[0].test[..]), (&["src/a.rs:1".into()][..], &["src/a.rs:3".into()][..]));
        assert_eq!((&rules[1].code[..], &rules[1].test[..]), (&[][..], &["tests/a.rs:1".into()][..]));
        assert_eq!(
            summary(&rules),
            "3 rules: 1 with code and test, 1 with code alone, 1 with a test alone, 0 uncovered"
        );
    }

    #[test]
    fn prose_with_the_word_is_not_a_citation() {
        assert_eq!(cited(&format!("//! The driver's {MARK}after every call")).count(), 0);
        assert_eq!(cited(&format!("let {MARK}u8 = 1;")).count(), 0);
    }

    #[test]
    fn the_rules_of_the_project_are_valid() {
        let (rules, mistakes) = collect().expect("the rules are readable");
        assert_eq!(mistakes, [""; 0]);
        assert!(rules.iter().all(|rule| !rule.text.is_empty() && !rule.text.ends_with('.')));
    }
}
