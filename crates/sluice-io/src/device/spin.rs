//! How long the loop looks for work before it sleeps.
//!
//! To sleep and to be woken costs several microseconds, more than many requests take. So after work the loop looks on for
//! a short while, if sleeping has lately been short: each sleep that ends soon makes the while longer, each long one
//! shorter, down to nothing. A device without work never wakes.

use std::time::Duration;

use sluice_sched::Instant;

/// Longest that the loop looks for work without finding any.
const LONGEST: Duration = Duration::from_micros(64);
/// Where it begins.
const SHORTEST: Duration = Duration::from_micros(4);

/// The while, and since when there was no work.
#[derive(Debug, Default)]
pub(super) struct Spin {
    budget: Duration,
    since: Instant,
}

impl Spin {
    /// Whether to look again at once.
    pub(super) fn goes_on(&self, now: Instant) -> bool {
        !self.budget.is_zero() && now.since(self.since) < self.budget
    }

    /// A turn began at `before`; at `now` it had waited, if it could sleep, and found work, if something `moved`.
    pub(super) fn turned(&mut self, before: Instant, now: Instant, slept: bool, moved: bool) {
        if slept {
            let short = now.since(before) < LONGEST;
            self.budget = match (short && moved, self.budget / 2) {
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
    fn it_looks_on_while_sleep_is_short() {
        let mut spin = Spin::default();
        assert!(!spin.goes_on(at(1)), "nothing is known yet");
        spin.turned(at(0), at(10), true, true);
        assert!(spin.goes_on(at(13)) && !spin.goes_on(at(14)));
        (0..5).for_each(|_| spin.turned(at(20), at(30), true, true));
        let most = LONGEST.as_micros() as u64;
        assert!(spin.goes_on(at(30 + most - 1)) && !spin.goes_on(at(30 + most)));
        spin.turned(at(40), at(41), false, true);
        assert!(spin.goes_on(at(41 + most - 1)), "work begins the while anew");
    }

    #[test]
    fn it_stops_when_sleep_is_long() {
        let mut spin = Spin::default();
        (0..5).for_each(|_| spin.turned(at(0), at(10), true, true));
        for round in 1..=5 {
            let begin = 1_000_000 * round;
            spin.turned(at(begin), at(begin + 1_000), true, true);
        }
        assert!(!spin.goes_on(at(5_001_000)), "not even right after work");
    }
}
