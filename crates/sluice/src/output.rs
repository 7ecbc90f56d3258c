//! Output of commands: that of the daemon, the forms of rows, and the terminal.

use std::io::{self, IsTerminal};

pub(crate) use sluice_console::rows;
pub(crate) use sluice_console::table::table;
pub(crate) use sluice_daemon::output::*;

pub(crate) mod watch;

/// Width of the terminal in characters; `None` if standard output is none, or its width is not known.
pub(crate) fn width() -> Option<u16> {
    let is_terminal = io::stdout().is_terminal();
    is_terminal.then(ratatui::crossterm::terminal::size).and_then(Result::ok).map(|(width, _)| width)
}
