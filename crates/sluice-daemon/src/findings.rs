//! Findings about this host, of `sluice check --host` and `sluice doctor`.

use serde::Serialize;

use crate::output::{self, Format};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Something works worse than it could, or a guarantee may not hold.
    Warning,
    /// Something does not work.
    Error,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    /// The check that found it.
    pub check: &'static str,
    /// For example `disk nvme0n1`; empty if it is about the whole host.
    pub about: String,
    pub text: String,
    /// The remedy, unless the text contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    pub fn new(level: Level, check: &'static str, about: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding { level, check, about: about.into(), text: text.into(), fix: None }
    }

    /// Adds what to do about it.
    pub fn fix(self, fix: impl Into<String>) -> Finding {
        Finding { fix: Some(fix.into()), ..self }
    }
}

/// Returns the highest level among findings.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
}

/// Prints findings, the most serious first.
pub fn print(findings: &[Finding], format: Format) {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    if format == Format::Json {
        let ok = worst(findings) < Level::Error;
        return output::json(&serde_json::json!({ "ok": ok, "findings": sorted }));
    }
    for Finding { level, check, about, text, fix } in sorted {
        let level = match level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
        output::line(&format!("{level:<8} {check}{about}: {text}"));
        if let Some(fix) = fix {
            output::line(&format!("         {fix}"));
        }
    }
}
