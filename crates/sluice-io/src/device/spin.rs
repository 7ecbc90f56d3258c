//! How long the loop looks for work before it sleeps.
//!
//! To sleep and to be woken costs several microseconds, in a virtual machine tens of them: more than many requests take. So
//! after work the loop looks on for a short while, if work has lately come soon after work: each sleep that ends soon after
//! the last work makes the while longer, each other one shorter, down to nothing. A device without work never wakes.

use std::time::Duration;

use sluice_sched::Instant;

/// Longest that the loop looks for work without finding any.
const LONGEST: Duration = Duration::from_micros(64);
/// Work that ended a sleep so long after the last work would have been found without sleeping, or nearly: being woken takes
/// part of that time.
const SOON: Duration = Duration::from_micros(128);
/// Where it begins.
const SHORTEST: Duration = Duration::from_micros(4);

/// The while, and since when there was no work.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    budget: Duration,
    since: Instant,
}

impl Spin {
    /// Whether to look again at once.
    pub(crate) fn goes_on(&self, now: Instant) -> bool {
        !self.budget.is_zero() && now.since(self.since) < self.budget
    }

    /// At `now` a turn had waited, if it `slept`, and found work, if something `moved`.
    pub(crate) fn note_iteration(&mut self, now: Instant, slept: bool, moved: bool) {
        if slept {
            let soon = now.since(self.since) < SOON;
            self.budget = match (soon && moved, self.budget / 2) {
                (true, _) => (self.budget * 2).clamp(SHORTEST, LONGEST),
                (false, half) if half < SHORTEST => Duration::ZERO,
                (false, half) => half,
            };
        }
        if moved {
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn it_looks_on_while_work_comes_soon() {
        let mut spin = Spin::default();
        assert!(!spin.goes_on(at(1)), "nothing is known yet");
        spin.note_iteration(at(10), true, true);
        assert!(spin.goes_on(at(13)) && !spin.goes_on(at(14)));
        (1..=5).for_each(|round| spin.note_iteration(at(10 + 100 * round), true, true));
        let most = LONGEST.as_micros() as u64;
        assert!(spin.goes_on(at(510 + most - 1)) && !spin.goes_on(at(510 + most)), "a wake-up is part of 100 us");
        spin.note_iteration(at(520), false, true);
        assert!(spin.goes_on(at(520 + most - 1)), "work begins the while anew");
    }

    #[test]
    fn it_stops_when_work_is_rare() {
        let mut spin = Spin::default();
        (1..=5).for_each(|round| spin.note_iteration(at(10 * round), true, true));
        (1..=5).for_each(|round| spin.note_iteration(at(200 * round), true, true));
        assert!(!spin.goes_on(at(1001)), "not even right after work");
    }

    #[test]
    fn a_sleep_without_work_is_none_that_ended_soon() {
        let mut spin = Spin::default();
        (1..=5).for_each(|round| spin.note_iteration(at(10 * round), true, true));
        (6..=10).for_each(|round| spin.note_iteration(at(10 * round), true, false));
        assert!(!spin.goes_on(at(101)));
    }
}
