//! The clock of an old kernel, which advances in ticks.
//!
//! The elevators were designed for timers of 1 to 10 ms, and some of their behaviour follows from that. A timer fires
//! at the first tick that is not before the due time. Elapsed time is measured between ticks. A tick of 0 means exact
//! time. Example: with ticks of 4 ms a timer due at 9 ms fires at 12 ms, and the clock shows 8 ms until then.

use core::time::Duration;

use crate::time::Instant;

/// Stands for a tick in rules that count ticks, if time is exact: 1 ms.
const EXACT: u64 = 1_000_000;

/// The length of a tick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks(u64);

impl Ticks {
    pub(crate) fn new(tick: Duration) -> Self {
        Ticks(u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time that the clock shows.
    // rule: gate.tick
    pub(crate) fn shown(self, now: Instant) -> Instant {
        match self.0 {
            0 => now,
            tick => Instant::from_nanos(now.as_nanos() / tick * tick),
        }
    }

    /// When a timer that is due at `due` fires.
    // rule: gate.tick
    pub(crate) fn fires(self, due: Instant) -> Instant {
        match self.0 {
            0 => due,
            tick => Instant::from_nanos(due.as_nanos().checked_next_multiple_of(tick).unwrap_or(u64::MAX)),
        }
    }

    /// Nanoseconds of a tick in rules that count ticks.
    pub(crate) fn unit(self) -> u64 {
        if self.0 == 0 { EXACT } else { self.0 }
    }

    /// The smallest difference that the clock shows.
    pub(crate) fn grain(self) -> u64 {
        self.0.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: gate.tick
    #[test]
    fn timers_fire_late_and_elapsed_time_is_rounded_down() {
        let at = Instant::from_nanos;
        let ticks = Ticks::new(Duration::from_millis(4));
        assert_eq!((ticks.shown(at(4_000_001)), ticks.fires(at(4_000_001))), (at(4_000_000), at(8_000_000)));
        assert_eq!((ticks.shown(at(8_000_000)), ticks.fires(at(8_000_000))), (at(8_000_000), at(8_000_000)));
        assert_eq!(ticks.fires(Instant::MAX), Instant::MAX);
        let exact = Ticks::new(Duration::ZERO);
        assert_eq!((exact.shown(at(7)), exact.fires(at(7))), (at(7), at(7)));
    }
}
