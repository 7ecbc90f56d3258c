//! Progress on standard error: bars on a terminal, otherwise a line per second.
//!
//! A bar spans the device's capacity. `[` marks the VM's reservation and `]` its limit.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::setup::VMS;
use super::share::Claim;

/// Width of a bar, in characters.
const BAR_CELLS: usize = 40;

/// The live display.
pub(super) struct Progress {
    capacity: f64,
    claims: Vec<Claim>,
    style: Style,
    title: String,
    /// Time of the last update, and the service of each VM at that time.
    last: Option<(Instant, Vec<f64>)>,
}

enum Style {
    Silent,
    Lines,
    Bars { all: MultiProgress, lines: Vec<ProgressBar> },
}

impl Progress {
    /// Creates the display that standard error supports, or none if `quiet`.
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

    /// Returns the interval between two updates.
    fn period(&self) -> Duration {
        Duration::from_millis(if matches!(self.style, Style::Bars { .. }) { 250 } else { 1000 })
    }

    /// Prints a line before the display.
    pub(super) fn print(&self, text: &str) {
        match &self.style {
            Style::Silent => {}
            Style::Lines => crate::output::message(text),
            Style::Bars { all, .. } => drop(all.println(text)),
        }
    }

    /// Begins a new part.
    pub(super) fn begin(&mut self, title: &str, about: &str) {
        title.clone_into(&mut self.title);
        self.last = None;
        if let Style::Bars { all, lines } = &mut self.style {
            lines.drain(..).for_each(|line| line.abandon());
            let _ = all.println(format!("{title}: {about}"));
            let plain = ProgressStyle::with_template("{msg}").expect("this template is right");
            lines.extend(VMS.iter().map(|_| all.add(ProgressBar::new_spinner().with_style(plain.clone()))));
        } else {
            self.print(&format!("{title}: {about}"));
        }
    }

    /// Updates the display if it is due. `service` is each VM's service since the start.
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
                let rates: Vec<_> = VMS.iter().zip(&rates).map(|(vm, iops)| format!("{} {iops:.0}", vm.name)).collect();
                crate::output::message(format_args!("  {}: {} iops@8KiB", self.title, rates.join(", ")));
            }
            Style::Bars { lines, .. } => {
                for (vm, line) in lines.iter().enumerate() {
                    line.set_message(self.line(vm, rates[vm]));
                }
            }
        }
    }

    /// Ends the display.
    pub(super) fn end(&mut self) {
        if let Style::Bars { all, lines } = &mut self.style {
            lines.drain(..).for_each(|line| line.abandon());
            let _ = all.println("");
        }
    }

    fn line(&self, vm: usize, iops: f64) -> String {
        let bar = bar(iops, self.capacity, &self.claims[vm]);
        format!("  {:<7} {bar} {iops:>5.0} iops", VMS[vm].name)
    }
}

/// Returns a bar with marks for the VM's reservation and limit.
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
