//! What is wrong with a host file: every finding, each with its place, the line, a caret and what to change.
//!
//! ```text
//! error: Policy gold: reservation: '2000' has no unit
//!  --> /etc/sluice/sluice.toml:7:15
//!   |
//! 7 | reservation = "2000"
//!   |               ^^^^^^
//!   = hint: write for example "2000 iops"
//! ```
//!
//! Plain text; who has a terminal may colour it. As JSON a finding is an object with `severity`, `file`, `line`,
//! `column`, `length`, `message` and `hint`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::nearest::nearest;
use crate::source::{Position, Sources, Span};

/// Findings that are kept; what is beyond is counted.
pub const DIAGNOSTICS_MAX: usize = 1000;
/// What is shown of a message that quotes something long.
const MESSAGE_CHARS_MAX: usize = 500;

/// Whether a finding refuses the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The whole file is refused.
    Error,
    /// The file holds, but somebody should know.
    Warning,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad.
    pub severity: Severity,
    /// The file, as it was named.
    pub file: String,
    /// From 1; 0 where the file as a whole is meant.
    pub line: u32,
    /// From 1, in characters; 0 where the file as a whole is meant.
    pub column: u32,
    /// How many characters are meant, on this line.
    pub length: u32,
    /// What is wrong, and of which device, policy, VM or volume.
    pub message: String,
    /// What to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The line's text, cut to what fits a screen.
    #[serde(skip)]
    pub excerpt: String,
    /// Where the caret stands under the excerpt, in characters from 0.
    #[serde(skip)]
    pub caret: u32,
}

/// Why a host file is refused: every error in it, and its warnings, in the order of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// How many of them are errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.0.iter().filter(|found| found.severity == Severity::Error).count()
    }

    /// How many of them are warnings.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.0.len() - self.errors()
    }
}

impl std::error::Error for Diagnostics {}

impl fmt::Display for Diagnostics {
    /// Every finding, and how many there are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for found in &self.0 {
            writeln!(f, "{found}\n")?;
        }
        let count = |n: usize, what| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        match self.warnings() {
            0 => write!(f, "{}", count(self.errors(), "error")),
            warnings => write!(f, "{}, {}", count(self.errors(), "error"), count(warnings, "warning")),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{severity}: {}", self.message)?;
        let number = self.line.to_string();
        let margin = if self.line == 0 { 1 } else { number.len() };
        if self.line == 0 {
            write!(f, " --> {}", self.file)?;
        } else {
            let (column, caret, length) = (self.column, self.caret as usize, self.length as usize);
            writeln!(f, "{:margin$}--> {}:{number}:{column}", "", self.file)?;
            writeln!(f, "{:margin$} |", "")?;
            writeln!(f, "{number} | {}", self.excerpt.trim_end())?;
            write!(f, "{:margin$} | {:caret$}{:^<length$}", "", "", "")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n{:margin$} = hint: {hint}", ""),
            None => Ok(()),
        }
    }
}

/// Collects findings while files are read; the same one twice is kept once.
#[derive(Debug, Default)]
pub struct Report {
    found: RefCell<BTreeMap<Finding, Verdict>>,
    errors: Cell<usize>,
    warnings: Cell<usize>,
    incomplete: Cell<bool>,
}

/// What tells two findings apart, and in which order they are shown.
type Finding = (Span, String);

#[derive(Debug)]
struct Verdict {
    severity: Severity,
    hint: Option<String>,
}

impl Report {
    pub fn error(&self, span: Span, message: impl Into<String>, hint: impl Into<Option<String>>) {
        self.errors.set(self.errors.get() + 1);
        self.add(Severity::Error, span, message.into(), hint.into());
    }

    pub fn warn(&self, span: Span, message: impl Into<String>, hint: impl Into<Option<String>>) {
        self.warnings.set(self.warnings.get() + 1);
        self.add(Severity::Warning, span, message.into(), hint.into());
    }

    fn add(&self, severity: Severity, span: Span, message: String, hint: Option<String>) {
        let verdict = Verdict { severity, hint: hint.map(|hint| printable(&hint)) };
        self.found.borrow_mut().entry((span, printable(&message))).or_insert(verdict);
    }

    /// The known name that `name` probably means; none once there are more errors than are shown, since each costs
    /// a look at every name.
    pub fn suggest<'a>(&self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        if self.errors() > DIAGNOSTICS_MAX { None } else { nearest(name, known) }
    }

    /// How many errors so far; who compares it before and after knows whether a part is broken.
    pub fn errors(&self) -> usize {
        self.errors.get()
    }

    /// How many warnings so far.
    pub(crate) fn warnings(&self) -> usize {
        self.warnings.get()
    }

    /// From now on what is missing may stand in a file that could not be read.
    pub fn set_incomplete(&self) {
        self.incomplete.set(true);
    }

    pub fn is_incomplete(&self) -> bool {
        self.incomplete.get()
    }

    /// Everything found, by file and place.
    pub fn finish(self, sources: &Sources) -> Diagnostics {
        let found = self.found.into_inner();
        let more = found.len().saturating_sub(DIAGNOSTICS_MAX);
        // Errors first, so that warnings never crowd out the reason why a file is refused.
        let (errors, warnings): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(_, verdict)| verdict.severity == Severity::Error);
        let mut kept: Vec<(Finding, Verdict)> = errors.into_iter().chain(warnings).take(DIAGNOSTICS_MAX).collect();
        let rest = kept.first().filter(|_| more > 0).map(|((span, _), verdict)| {
            let message = format!("{more} more findings are not shown");
            let hint = Some("correct the findings above first".to_owned());
            diagnostic(sources, span.of_file(), message, Verdict { severity: verdict.severity, hint })
        });
        kept.sort_by(|a, b| a.0.cmp(&b.0));
        let kept = kept.into_iter().map(|((span, message), verdict)| diagnostic(sources, span, message, verdict));
        Diagnostics(kept.chain(rest).collect())
    }
}

fn diagnostic(sources: &Sources, span: Span, message: String, verdict: Verdict) -> Diagnostic {
    let Verdict { severity, hint } = verdict;
    let file = printable(sources.name(span));
    let Position { line, column, length, excerpt, caret } = sources.position(span).unwrap_or_default();
    Diagnostic { severity, file, line, column, length, message, hint, excerpt, caret }
}

/// What a terminal may be shown of text that came from a file: nothing that steers it, and not too much.
fn printable(text: &str) -> String {
    let shown = text.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c });
    let cut = if text.chars().nth(MESSAGE_CHARS_MAX).is_some() { "..." } else { "" };
    shown.chain(cut.chars()).collect()
}
