//! How far it is and how long it will take, on standard error. Nothing waits for it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

/// How it is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Style {
    /// A bar on a terminal, elsewhere a line for each tenth.
    Auto,
    /// A line of JSON for each tenth.
    Json,
    /// Nothing.
    None,
}

/// What takes less is over before anybody asks.
const SILENT: Duration = Duration::from_secs(1);

/// Something that takes a while.
pub(crate) struct Progress {
    what: &'static str,
    began: Instant,
    said: u32,
    style: Style,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `what` is going on, in runs or in virtual time.
    pub(crate) fn new(what: &'static str, style: Style, quiet: bool) -> Self {
        let style = if quiet && style == Style::Auto { Style::None } else { style };
        let on_terminal = style == Style::Auto && std::io::stderr().is_terminal();
        let bar = on_terminal.then(|| {
            let template = ProgressStyle::with_template("{msg} [{wide_bar}] {percent} %, {eta} to go");
            let style = template.expect("this template is right").progress_chars("= ");
            let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
            bar.with_style(style).with_message(what)
        });
        Progress { what, began: Instant::now(), said: 0, style, bar }
    }

    /// So much of it is done: from 0 to 1.
    pub(crate) fn show(&mut self, done: f64) {
        if let Some(bar) = &self.bar {
            return bar.set_position((done * 1000.0) as u64);
        }
        let (tenths, passed) = ((done * 10.0) as u32, self.began.elapsed());
        if tenths <= self.said || self.style == Style::None || self.style == Style::Auto && passed < SILENT {
            return;
        }
        self.said = tenths;
        let left = passed.as_secs_f64() / done * (1.0 - done);
        match self.style {
            Style::Json => {
                let said = json!({ "what": self.what, "done": done, "elapsed_s": passed.as_secs_f64(), "eta_s": left });
                crate::output::say(said);
            }
            _ => crate::output::say(format_args!("{}: {} %, {left:.0} s to go", self.what, tenths * 10)),
        }
    }

    /// It is over.
    pub(crate) fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
