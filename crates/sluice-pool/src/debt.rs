//! What is in flight is the window on average, although requests are whole.
//!
//! Rounded down, a window of 6.4 requests would be 6, and 16 hosts with equal windows of 1.99 would all send one and then all two. So
//! while requests wait, what is in flight above the window is added up over time as a debt, and the next request is sent when less in
//! flight has paid it. Example: of a window of 6.4 requests, 7 are in flight for 40 % of the time and 6 for the rest.

use std::time::Duration;

use sluice_sched::Instant;

/// The debt of a window.
#[derive(Debug, Clone, Copy, Default)]
pub struct Debt {
    /// Raw cost times nanoseconds, as of `at`.
    owed: u128,
    at: Instant,
    rate: Rate,
}

/// What changes a debt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rate {
    /// Raw cost.
    pub in_flight: u64,
    /// Raw cost.
    pub window: u64,
    /// Whether requests wait. Without any the debt is paid and does not grow: nobody is held back for what nobody wanted.
    pub is_wanted: bool,
    /// What is owed at most, in raw cost times nanoseconds: a stall of the device is not paid for.
    pub most: u128,
}

impl Debt {
    /// From `now` on the debt changes at this rate.
    pub fn set(&mut self, now: Instant, rate: Rate) {
        *self = Debt { owed: self.owed(now).min(rate.most), at: self.at.max(now), rate };
    }

    /// What is owed at `now`.
    fn owed(&self, now: Instant) -> u128 {
        let nanos = u128::from(now.nanos_since(self.at));
        let Rate { in_flight, window, is_wanted, most } = self.rate;
        if in_flight <= window {
            self.owed.saturating_sub(u128::from(window - in_flight) * nanos)
        } else if is_wanted {
            self.owed.saturating_add(u128::from(in_flight - window) * nanos).min(most)
        } else {
            self.owed
        }
    }

    /// Whether another request may be sent.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.rate.in_flight < self.rate.window && self.owed(now) == 0
    }

    /// Returns when there is room, if nothing completes before; `None` if only a completion makes some.
    #[must_use]
    pub fn room_at(&self) -> Option<Instant> {
        let free = self.rate.window.checked_sub(self.rate.in_flight).filter(|free| *free > 0)?;
        let nanos = u64::try_from(self.owed.div_ceil(free.into())).unwrap_or(u64::MAX);
        Some(self.at + Duration::from_nanos(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MOST: u128 = 1_000_000_000;

    fn rate(in_flight: u64, window: u64, is_wanted: bool) -> Rate {
        Rate { in_flight, window, is_wanted, most: MOST }
    }

    #[test]
    fn what_is_above_the_window_is_paid_before_the_next_request() {
        let mut debt = Debt::default();
        let at = Instant::from_millis;
        debt.set(at(0), rate(7, 6, true));
        assert!(!debt.has_room(at(10)) && debt.room_at().is_none());
        debt.set(at(10), rate(4, 6, true));
        assert_eq!(debt.room_at(), Some(at(15)));
        assert!(!debt.has_room(Instant::from_nanos(15 * MS - 1)) && debt.has_room(at(15)));
        // With a larger window it is paid earlier.
        debt.set(at(12), rate(4, 10, true));
        assert_eq!(debt.room_at(), Some(at(13)));
    }

    #[test]
    fn a_stall_is_paid_for_in_part() {
        let mut debt = Debt::default();
        debt.set(Instant::ZERO, rate(7, 6, true));
        let end = Instant::from_millis(3_600_000);
        debt.set(end, rate(0, 1000, true));
        assert_eq!(debt.room_at(), Some(end + Duration::from_millis(1)));
    }

    #[test]
    fn nothing_is_owed_for_what_nobody_waited_for() {
        let mut debt = Debt::default();
        debt.set(Instant::ZERO, rate(7, 6, false));
        debt.set(Instant::from_millis(100), rate(5, 6, true));
        assert!(debt.has_room(Instant::from_millis(100)));
    }
}
