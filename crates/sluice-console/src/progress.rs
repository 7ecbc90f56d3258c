//! Progress and remaining time of a long command, on standard error.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

/// Format of progress messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// A bar on a terminal, otherwise a line for each tenth.
    Auto,
    /// A line of JSON for each tenth.
    Json,
    /// Nothing.
    None,
}

/// Time without output, since a shorter command needs none.
const SILENT: Duration = Duration::from_secs(1);

/// Progress of a command.
pub struct Progress {
    what: &'static str,
    began: Instant,
    event: u32,
    style: Style,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts the progress of `what`.
    pub fn new(what: &'static str, style: Style, quiet: bool) -> Self {
        let style = if quiet && style == Style::Auto { Style::None } else { style };
        let on_terminal = style == Style::Auto && std::io::stderr().is_terminal();
        let bar = on_terminal.then(|| {
            let template = ProgressStyle::with_template("{msg} [{wide_bar}] {percent} %, {eta} to go");
            let style = template.expect("this template is right").progress_chars("= ");
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
            bar.with_style(style).with_message(what)
        });
        Progress { what, began: Instant::now(), event: 0, style, bar }
    }

    /// Reports that a part of the work is done, from 0 to 1.
    pub fn show(&mut self, done: f64) {
        if let Some(bar) = &self.bar {
            return bar.set_position((done * 1000.0) as u64);
        }
        let (tenths, passed) = ((done * 10.0) as u32, self.began.elapsed());
        if tenths <= self.event || self.style == Style::None || self.style == Style::Auto && passed < SILENT {
            return;
        }
        self.event = tenths;
        let left = passed.as_secs_f64() / done * (1.0 - done);
        match self.style {
            Style::Json => {
                let event =
                    json!({ "what": self.what, "done": done, "elapsed_s": passed.as_secs_f64(), "eta_s": left });
                sluice_daemon::output::message(event);
            }
            _ => sluice_daemon::output::message(format_args!("{}: {} %, {left:.0} s to go", self.what, tenths * 10)),
        }
    }

    /// Ends the display.
    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
