//! Diagnostics of a host file: each with its position, the line, a caret and what to change.
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
//! Plain text; a terminal may add colours. As JSON a diagnostic is an object with `severity`, `file`, `line`, `column`,
//! `length`, `message` and `hint`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::nearest::nearest;
use crate::secret::without_urls;
use crate::source::{Position, Sources, Span};

/// Maximum number of diagnostics; further ones are only counted.
pub const DIAGNOSTICS_MAX: usize = 1000;
/// Maximum length of a message that quotes text of the file.
const MESSAGE_CHARS_MAX: usize = 500;

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The whole file is rejected.
    Error,
    /// The file is accepted.
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    /// The file, as it was named.
    pub file: String,
    /// From 1; 0 where the file as a whole is meant.
    pub line: u32,
    /// From 1, in characters; 0 where the file as a whole is meant.
    pub column: u32,
    /// Length of the marked text on this line, in characters.
    pub length: u32,
    /// The problem, with the device, policy, VM or volume.
    pub message: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Text of the line, shortened for the screen.
    #[serde(skip)]
    pub excerpt: String,
    /// Position of the caret under the excerpt, in characters from 0.
    #[serde(skip)]
    pub caret: u32,
    /// Of a change made at run time, the path of the key in the host file.
    #[serde(skip)]
    pub key: Vec<String>,
}

/// All errors and warnings of a rejected host file, in the order of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Number of errors.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.0.iter().filter(|found| found.severity == Severity::Error).count()
    }

    /// Returns the errors alone, for a reader who did not ask about the whole file.
    #[must_use]
    pub fn without_warnings(&self) -> Diagnostics {
        Diagnostics(self.0.iter().filter(|found| found.severity == Severity::Error).cloned().collect())
    }

    /// Number of warnings.
    #[must_use]
    pub fn warnings(&self) -> usize {
        self.0.len() - self.errors()
    }
}

impl std::error::Error for Diagnostics {}

impl fmt::Display for Diagnostics {
    /// All diagnostics, and their number.
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

/// Collects diagnostics while files are parsed; duplicates are dropped.
#[derive(Debug, Default)]
pub struct Report {
    found: RefCell<BTreeMap<Finding, Verdict>>,
    errors: Cell<usize>,
    warnings: Cell<usize>,
    incomplete: Cell<bool>,
}

/// Identity and order of diagnostics.
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
        self.found.borrow_mut().entry((span, printable(&without_urls(&message)))).or_insert(verdict);
    }

    /// The known name that `name` probably means; `None` once there are more errors than are shown, since each
    /// comparison takes time.
    pub fn suggest<'a>(&self, name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        if self.errors() > DIAGNOSTICS_MAX { None } else { nearest(name, known) }
    }

    /// Number of errors so far; a caller compares it before and after to learn whether a part has errors.
    pub fn errors(&self) -> usize {
        self.errors.get()
    }

    /// Number of warnings so far.
    pub(crate) fn warnings(&self) -> usize {
        self.warnings.get()
    }

    /// Notes that missing entries may be in a file that could not be read.
    pub fn set_incomplete(&self) {
        self.incomplete.set(true);
    }

    pub fn is_incomplete(&self) -> bool {
        self.incomplete.get()
    }

    /// All diagnostics, by file and position.
    pub fn finish(self, sources: &Sources) -> Diagnostics {
        let found = self.found.into_inner();
        let more = found.len().saturating_sub(DIAGNOSTICS_MAX);
        // Errors first, so that warnings do not displace the cause of a rejection.
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
    let key = sources.key_of_change(span);
    Diagnostic { severity, file, line, column, length, message, hint, excerpt, caret, key }
}

/// Text of a file as it may be shown on a terminal: without control characters, and of limited length.
fn printable(text: &str) -> String {
    let shown = text.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c });
    let cut = if text.chars().nth(MESSAGE_CHARS_MAX).is_some() { "..." } else { "" };
    shown.chain(cut.chars()).collect()
}
