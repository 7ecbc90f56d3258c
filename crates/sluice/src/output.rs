//! What goes to standard output and to standard error.

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs: stable names, units in the names.
    Json,
}

/// Logs go to standard error; `RUST_LOG` overrides the flags.
pub(crate) fn start_logging(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (_, 0) => "info",
        (_, 1) => "debug",
        (_, _) => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour).init();
}

/// Prints one JSON value on a line of its own.
pub(crate) fn json(value: &impl Serialize) {
    let text = serde_json::to_string(value).expect("our own types have string keys");
    line(&text);
}

/// Prints a line; a closed pipe is no error, anything else is remembered as [`lost`].
pub(crate) fn line(text: &str) {
    written(writeln!(anstream::stdout(), "{text}"));
}

/// Prints what has its own lines.
pub(crate) fn raw(bytes: &[u8]) {
    let mut stdout = std::io::stdout();
    written(stdout.write_all(bytes).and_then(|()| stdout.flush()));
}

/// Why standard output has not got all of what was printed, if it has not: who reads it later must not take it for whole.
pub(crate) fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

static LOST: OnceLock<String> = OnceLock::new();

fn written(result: std::io::Result<()>) {
    if let Err(error) = result
        && error.kind() != ErrorKind::BrokenPipe
    {
        LOST.get_or_init(|| error.to_string());
    }
}

/// A table with a header.
#[must_use]
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}
