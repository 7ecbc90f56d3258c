//! What goes to standard output and to standard error.

use std::io::{IsTerminal, Write};

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

/// Prints a line; a closed pipe is no error.
pub(crate) fn line(text: &str) {
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// A table with a header.
#[must_use]
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    table
}
