//! How a verb fails: what is said, and the exit code.

use std::error::Error;
use std::process::ExitCode;

use sluice_config::Diagnostics;

use crate::output::Format;

/// What an operator is told of exit codes; the codes themselves are in [`Failure::report`].
pub(crate) const CODES: &str = "\
Exit codes:
  0  Success
  1  Failure, or a negative result: errors in a file, a guarantee or an exact row that does not hold
  2  Wrong arguments; for `sim run`: it ran, and a guarantee to a VM was not kept
  3  No such VM, volume, scheduler, workload, figure, ...
  4  Rejected in the current state; nothing has changed
  5  No daemon listens at the control socket

With `-o json` a failed command also prints {\"ok\": false, \"error\": ...} on standard output; a file with
errors prints its \"diagnostics\". Errors in arguments are printed on standard error only.";

/// Why a verb did not succeed.
pub(crate) enum Failure {
    /// The host file is wrong; every finding is reported.
    Config(Diagnostics),
    /// Something failed while it ran; its causes follow in a chain.
    Run(Box<dyn Error + Send + Sync>),
    /// It ran and its answer is "no"; everything has been printed already.
    No,
    /// It was simulated, and a VM did not get what it was promised; everything has been printed already.
    NotKept,
    /// There is no such thing.
    NotFound(String),
    /// It cannot be done as things are.
    Refused(String),
    /// There is no daemon to do it.
    Unreachable(String),
}

impl Failure {
    /// What happened, in one line.
    pub(crate) fn into_text(self) -> String {
        match self {
            Failure::Config(diagnostics) => diagnostics.to_string(),
            Failure::Run(error) => chain(&*error),
            Failure::No => "it ran, and its answer is no".to_owned(),
            Failure::NotKept => "it ran, and a promise was not kept".to_owned(),
            Failure::NotFound(text) | Failure::Refused(text) | Failure::Unreachable(text) => text,
        }
    }

    /// Says on standard error what happened; on standard output too if that is to be JSON.
    pub(crate) fn report(self, format: Format) -> ExitCode {
        match self {
            Failure::Config(diagnostics) => {
                crate::output::say(&diagnostics);
                if format == Format::Json {
                    crate::output::json(&serde_json::json!({ "ok": false, "diagnostics": diagnostics }));
                }
                ExitCode::from(1)
            }
            Failure::Run(error) => say(&chain(&*error), format, 1),
            Failure::No => ExitCode::from(1),
            Failure::NotKept => ExitCode::from(2),
            Failure::NotFound(text) => say(&text, format, 3),
            Failure::Refused(text) => say(&text, format, 4),
            Failure::Unreachable(text) => say(&text, format, 5),
        }
    }
}

fn say(text: &str, format: Format, code: u8) -> ExitCode {
    crate::output::say(format_args!("error: {text}"));
    if format == Format::Json {
        crate::output::json(&serde_json::json!({ "ok": false, "error": text }));
    }
    ExitCode::from(code)
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Run(Box::new(error))
    }
}
