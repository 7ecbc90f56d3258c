//! The clock of an old kernel, which advances in ticks.
//!
//! The elevators were designed for timers of 1 to 10 ms, and some of their behaviour follows from that. A timer fires
//! at the first tick that is not before the due time. Elapsed time is measured between ticks. A tick of 0 means exact
//! time. Example: with ticks of 4 ms a timer due at 9 ms fires at 12 ms, and the clock shows 8 ms until then.

use core::time::Duration;

use sluice_sched::time::Instant;

/// Stands for a tick in rules that count ticks, if time is exact: 1 ms.
const EXACT: u64 = 1_000_000;

/// The length of a tick, and what turns a division by it into a multiplication.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks {
    tick: u64,
    /// (2^64 - 1) / `tick`, rounded down.
    inverse: u64,
}

impl Ticks {
    pub(crate) fn new(tick: Duration) -> Self {
        let tick = u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX);
        Ticks { tick, inverse: u64::MAX.checked_div(tick).unwrap_or_default() }
    }

    /// The time that the clock shows.
    // rule: gate.tick
    pub(crate) fn shown(self, now: Instant) -> Instant {
        if self.tick == 0 {
            return now;
        }
        let nanos = now.as_nanos();
        // `inverse` is at most 1 below 2^64 / `tick`, so the product lacks at most `nanos` / 2^64 of the quotient: less than 1.
        let quotient = ((u128::from(nanos) * u128::from(self.inverse)) >> 64) as u64;
        let start = quotient * self.tick;
        Instant::from_nanos(if nanos - start < self.tick { start } else { start + self.tick })
    }

    /// When a timer that is due at `due` fires.
    // rule: gate.tick
    pub(crate) fn fires(self, due: Instant) -> Instant {
        match self.tick {
            0 => due,
            tick => Instant::from_nanos(due.as_nanos().checked_next_multiple_of(tick).unwrap_or(u64::MAX)),
        }
    }

    /// Nanoseconds of a tick in rules that count ticks.
    pub(crate) fn unit(self) -> u64 {
        if self.tick == 0 { EXACT } else { self.tick }
    }

    /// The smallest difference that the clock shows.
    pub(crate) fn grain(self) -> u64 {
        self.tick.max(1)
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

    #[test]
    fn the_clock_shows_whole_ticks_of_any_length() {
        let lengths =
            [1, 2, 3, 7, 1_000_000, 3_333_333, 4_000_000, 10_000_000, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX];
        for tick in lengths {
            let ticks = Ticks::new(Duration::from_nanos(tick));
            let multiples = [0, 1, 2, 999, 1 << 20, 1 << 40, u64::MAX / tick].map(|count| tick.saturating_mul(count));
            let near = multiples.iter().flat_map(|from| [from.wrapping_sub(1), *from, from.wrapping_add(1)]);
            for now in near.chain([u64::MAX - 1, u64::MAX]) {
                assert_eq!(ticks.shown(Instant::from_nanos(now)).as_nanos(), now / tick * tick, "{now} of {tick}");
            }
        }
    }
}
