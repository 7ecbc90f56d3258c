//! `--watch`: the same output again every second.

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use super::rows::Form;
use sluice_daemon::failure::Failure;

/// Repeats a command.
#[derive(Args)]
pub(crate) struct Watch {
    /// Show it again every second until the command is interrupted.
    #[arg(long, short)]
    watch: bool,
}

impl Watch {
    /// Prints what `text` returns, once or every second. On a terminal each output replaces the last one.
    pub(crate) fn run(&self, form: Form, mut text: impl FnMut() -> Result<String, Failure>) -> Result<(), Failure> {
        loop {
            let text = text()?;
            let clears = self.watch && matches!(form, Form::Table | Form::Wide) && io::stdout().is_terminal();
            super::line(&if clears { format!("\u{1b}[H\u{1b}[2J{text}") } else { text });
            if !self.watch || super::is_closed() {
                return Ok(());
            }
            sleep(Duration::from_secs(1));
        }
    }
}
