//! The clocks of the monitor: one that nobody sets, which counts while the host is suspended too, and the host's time of day.
//!
//! Lengths and order come from the first one, and the second one is for people. When the time of day is set, what is known of the past
//! keeps its distance from now: its times are corrected, as if the clock had always been right.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Difference in seconds from which on the time of day was set. Both clocks are read in whole seconds, and the rate of the
/// time of day is corrected all the time.
const SET: i64 = 2;

/// Time since the host was started.
pub(super) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// The difference of both clocks.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Time of day when the other clock was 0.
    origin: Option<i64>,
}

impl Clock {
    /// Returns by how many seconds the time of day was set since the last call; 0 if it was not. Now it is `time`, and `second` on
    /// the other clock.
    pub(super) fn set_by(&mut self, second: u64, time: u64) -> i64 {
        let now = time.cast_signed().saturating_sub(second.cast_signed());
        let before = *self.origin.get_or_insert(now);
        let by = now.saturating_sub(before);
        if by.abs() < SET {
            return 0;
        }
        self.origin = Some(now);
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_told_from_one_that_is_read_at_another_moment_or_after_a_suspend() {
        let mut clock = Clock::default();
        let seen = [(5, 1000), (6, 1002), (7, 1002), (8, 1004), (4000, 4995), (4001, 8596), (4002, 8597), (4003, 4998)];
        let set = seen.map(|(second, time)| clock.set_by(second, time));
        assert_eq!(set, [0, 0, 0, 0, 0, 3600, 0, -3600]);
    }
}
