//! What is seen while it runs, on standard error: bars on a terminal, a line per second elsewhere.
//!
//! A bar spans the device's capacity; `[` stands at the VM's reservation and `]` at its limit.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::scene::CAST;
use super::share::Claim;

/// Cells of a bar.
const BAR_CELLS: usize = 40;

/// The live display.
pub(super) struct Progress {
    capacity: f64,
    claims: Vec<Claim>,
    style: Style,
    title: String,
    /// When it was last shown, and what had been served then.
    last: Option<(Instant, Vec<f64>)>,
}

enum Style {
    Silent,
    Lines,
    Bars { all: MultiProgress, lines: Vec<ProgressBar> },
}

impl Progress {
    /// A display as this standard error can show it; none if `quiet`.
    pub(super) fn new(quiet: bool, capacity: f64, claims: Vec<Claim>) -> Self {
        let style = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Style::Silent,
            (false, false) => Style::Lines,
            (false, true) => {
                Style::Bars { all: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), lines: Vec::new() }
            }
        };
        Progress { capacity, claims, style, title: String::new(), last: None }
    }

    /// How often it changes.
    fn period(&self) -> Duration {
        Duration::from_millis(if matches!(self.style, Style::Bars { .. }) { 250 } else { 1000 })
    }

    /// Something to know before it starts.
    pub(super) fn say(&self, text: &str) {
        match &self.style {
            Style::Silent => {}
            Style::Lines => crate::output::say(text),
            Style::Bars { all, .. } => drop(all.println(text)),
        }
    }

    /// A new part begins.
    pub(super) fn begin(&mut self, title: &str, about: &str) {
        title.clone_into(&mut self.title);
        self.last = None;
        if let Style::Bars { all, lines } = &mut self.style {
            lines.drain(..).for_each(|line| line.abandon());
            let _ = all.println(format!("{title}: {about}"));
            let plain = ProgressStyle::with_template("{msg}").expect("this template is right");
            lines.extend(CAST.iter().map(|_| all.add(ProgressBar::new_spinner().with_style(plain.clone()))));
        } else {
            self.say(&format!("{title}: {about}"));
        }
    }

    /// Shows what each VM gets now, if it is time for that; `service` is all that it got so far.
    pub(super) fn show(&mut self, service: Vec<f64>) {
        let now = Instant::now();
        if self.last.as_ref().is_some_and(|(then, _)| now - *then < self.period()) {
            return;
        }
        let Some((then, before)) = self.last.replace((now, service.clone())) else { return };
        let seconds = (now - then).as_secs_f64();
        let rates: Vec<f64> = service.iter().zip(before).map(|(now, before)| (now - before) / seconds).collect();
        match &self.style {
            Style::Silent => {}
            Style::Lines => {
                let rates: Vec<_> =
                    CAST.iter().zip(&rates).map(|(vm, iops)| format!("{} {iops:.0}", vm.name)).collect();
                crate::output::say(format_args!("  {}: {} iops@8KiB", self.title, rates.join(", ")));
            }
            Style::Bars { lines, .. } => {
                for (vm, line) in lines.iter().enumerate() {
                    line.set_message(self.line(vm, rates[vm]));
                }
            }
        }
    }

    /// Nothing more is to be shown.
    pub(super) fn end(&mut self) {
        if let Style::Bars { all, lines } = &mut self.style {
            lines.drain(..).for_each(|line| line.abandon());
            let _ = all.println("");
        }
    }

    fn line(&self, vm: usize, iops: f64) -> String {
        let bar = bar(iops, self.capacity, &self.claims[vm]);
        format!("  {:<7} {bar} {iops:>5.0} iops", CAST[vm].name)
    }
}

/// One bar, with the VM's reservation and limit on it.
fn bar(iops: f64, capacity: f64, claim: &Claim) -> String {
    let cell = |iops: f64| (iops / capacity * BAR_CELLS as f64).round() as usize;
    let mut cells: Vec<char> = (0..BAR_CELLS).map(|at| if at < cell(iops) { '=' } else { '.' }).collect();
    if claim.reservation > 0.0 {
        cells[cell(claim.reservation).min(BAR_CELLS - 1)] = '[';
    }
    if claim.limit.is_finite() {
        cells[cell(claim.limit).min(BAR_CELLS - 1)] = ']';
    }
    cells.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_marks_for_reservation_and_limit() {
        let claim = Claim { reservation: 500.0, limit: 1500.0, weight: 100.0 };
        assert_eq!(bar(1000.0, 2000.0, &claim), "==========[=========..........].........");
        assert_eq!(bar(0.0, 2000.0, &Claim { reservation: 0.0, limit: f64::INFINITY, weight: 1.0 }), ".".repeat(40));
        let over = bar(9999.0, 2000.0, &Claim { limit: 2000.0, ..claim });
        assert_eq!(over.chars().count(), BAR_CELLS);
        assert!(over.ends_with(']'));
    }
}
