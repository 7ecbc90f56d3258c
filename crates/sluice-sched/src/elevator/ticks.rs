//! The clock of an old kernel: time that passes in jumps.
//!
//! The elevators were made for timers of 1 to 10 ms, and some of what they did comes from that. A timer fires at the next
//! tick at or after the time that is due; elapsed time is what the tick before shows. A tick of 0 is exact time.

use core::time::Duration;

use crate::time::Instant;

/// What the elevators took for a millisecond where they counted ticks, if time is exact.
const EXACT: u64 = 1_000_000;

/// The length of a tick.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks(u64);

impl Ticks {
    pub(crate) fn new(tick: Duration) -> Self {
        Ticks(u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX))
    }

    /// What the clock shows.
    // rule: gate.tick
    pub(crate) fn shown(self, now: Instant) -> Instant {
        match self.0 {
            0 => now,
            tick => Instant::from_nanos(now.as_nanos() / tick * tick),
        }
    }

    /// When a timer that is due then fires.
    // rule: gate.tick
    pub(crate) fn fires(self, due: Instant) -> Instant {
        match self.0 {
            0 => due,
            tick => Instant::from_nanos(due.as_nanos().checked_next_multiple_of(tick).unwrap_or(u64::MAX)),
        }
    }

    /// Nanoseconds of what counts as a tick in rules that count them.
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
    fn timers_are_late_and_elapsed_time_is_short() {
        let at = Instant::from_nanos;
        let ticks = Ticks::new(Duration::from_millis(4));
        assert_eq!((ticks.shown(at(4_000_001)), ticks.fires(at(4_000_001))), (at(4_000_000), at(8_000_000)));
        assert_eq!((ticks.shown(at(8_000_000)), ticks.fires(at(8_000_000))), (at(8_000_000), at(8_000_000)));
        assert_eq!(ticks.fires(Instant::MAX), Instant::MAX);
        let exact = Ticks::new(Duration::ZERO);
        assert_eq!((exact.shown(at(7)), exact.fires(at(7))), (at(7), at(7)));
    }
}
