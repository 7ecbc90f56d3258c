//! Errors of a verb: the message and the exit code.

use std::error::Error;
use std::process::ExitCode;

use sluice_config::Diagnostics;

use crate::output::Format;

/// Explanation of exit codes in the help; the codes are in [`Failure::report`].
pub const CODES: &str = "\
Exit codes:
  0  Success
  1  Failure, or a negative result: errors in a file, a guarantee that was not kept, or for
     `reproduce` a conformance row that fails
  2  Wrong arguments; for `sim run`: it ran, and a guarantee to a VM was not kept
  3  No such VM, volume, scheduler, workload, figure, ...
  4  Rejected in the current state; nothing has changed
  5  No daemon listens at the control socket
  6  `status`: a promise is broken, or a device or volume is out of service

With `-o json` a failed command also prints {\"ok\": false, \"error\": ...} on standard output; a file
with errors prints its \"diagnostics\". Errors in arguments are printed on standard error only.";

/// Why a verb did not succeed.
pub enum Failure {
    /// The host file has errors; all of them are reported.
    Config(Diagnostics),
    /// An error while it ran; its sources follow in a chain.
    Run(Box<dyn Error + Send + Sync>),
    /// Several errors, which are reported together.
    Several(Vec<String>),
    /// The verb ran with a negative result, which has been printed.
    No,
    /// The simulation ran, and a VM did not get what it was guaranteed; the result has been printed.
    NotKept,
    /// A promise is broken, or a device or volume is out of service; that has been printed.
    Broken,
    /// The named object does not exist.
    NotFound(String),
    /// The command cannot be carried out in the current state.
    Refused(String),
    /// No daemon is running.
    Unreachable(String),
}

impl Failure {
    /// Returns the error in one line.
    pub fn into_text(self) -> String {
        match self {
            Failure::Config(diagnostics) => diagnostics.to_string(),
            Failure::Run(error) => chain(&*error),
            Failure::Several(errors) => errors.join("; "),
            Failure::No => "it ran with a negative result".to_owned(),
            Failure::Broken => "a promise is broken".to_owned(),
            Failure::NotKept => "it ran, and a guarantee was not kept".to_owned(),
            Failure::NotFound(text) | Failure::Refused(text) | Failure::Unreachable(text) => text,
        }
    }

    /// Prints the error on standard error, and as JSON on standard output if `format` is JSON.
    pub fn report(self, format: Format) -> ExitCode {
        match self {
            Failure::Config(diagnostics) => {
                crate::output::message(&diagnostics);
                if format == Format::Json {
                    crate::output::json(&serde_json::json!({ "ok": false, "diagnostics": diagnostics }));
                }
                ExitCode::from(1)
            }
            Failure::Run(error) => print(&chain(&*error), format, 1),
            Failure::Several(errors) => {
                errors.iter().for_each(|error| crate::output::message(format_args!("error: {error}")));
                if format == Format::Json {
                    crate::output::json(
                        &serde_json::json!({ "ok": false, "error": errors.join("; "), "errors": errors }),
                    );
                }
                ExitCode::from(1)
            }
            Failure::No => ExitCode::from(1),
            Failure::NotKept => ExitCode::from(2),
            Failure::Broken => ExitCode::from(6),
            Failure::NotFound(text) => print(&text, format, 3),
            Failure::Refused(text) => print(&text, format, 4),
            Failure::Unreachable(text) => print(&text, format, 5),
        }
    }
}

fn print(text: &str, format: Format, code: u8) -> ExitCode {
    crate::output::message(format_args!("error: {text}"));
    if format == Format::Json {
        crate::output::json(&serde_json::json!({ "ok": false, "error": text }));
    }
    ExitCode::from(code)
}

/// Returns an error and its sources in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    crate::jail::explained(text)
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Run(Box::new(error))
    }
}
