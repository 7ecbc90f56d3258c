//! What is in flight is the window on average, although requests are whole.
//!
//! Rounded down, a window of 6.4 requests would be 6, and 16 hosts with equal windows of 1.99 would all send one and then all two. So
//! what is in flight above the window is added up over time as a debt, and the next request is sent when less in flight has paid it. Example:
//! of a window of 6.4 requests, 7 are in flight for 40 % of the time and 6 for the rest.
//!
//! A debt grows also while no request waits. Otherwise a VM that keeps one request outstanding would never owe anything, and 64 hosts with
//! such VMs would have 64 in flight, however small their windows become.

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
        let Rate { in_flight, window, most } = self.rate;
        if in_flight <= window {
            self.owed.saturating_sub(u128::from(window - in_flight) * nanos)
        } else {
            self.owed.saturating_add(u128::from(in_flight - window) * nanos).min(most)
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

    fn rate(in_flight: u64, window: u64) -> Rate {
        Rate { in_flight, window, most: MOST }
    }

    #[test]
    fn what_is_above_the_window_is_paid_before_the_next_request() {
        let mut debt = Debt::default();
        let at = Instant::from_millis;
        debt.set(at(0), rate(7, 6));
        assert!(!debt.has_room(at(10)) && debt.room_at().is_none());
        debt.set(at(10), rate(4, 6));
        assert_eq!(debt.room_at(), Some(at(15)));
        assert!(!debt.has_room(Instant::from_nanos(15 * MS - 1)) && debt.has_room(at(15)));
        // With a larger window it is paid earlier.
        debt.set(at(12), rate(4, 10));
        assert_eq!(debt.room_at(), Some(at(13)));
    }

    #[test]
    fn a_stall_is_paid_for_in_part() {
        let mut debt = Debt::default();
        debt.set(Instant::ZERO, rate(7, 6));
        let end = Instant::from_millis(3_600_000);
        debt.set(end, rate(0, 1000));
        assert_eq!(debt.room_at(), Some(end + Duration::from_millis(1)));
    }

    #[test]
    fn one_request_at_a_time_is_paid_for() {
        let mut debt = Debt::default();
        let at = Instant::from_millis;
        debt.set(at(0), Rate { in_flight: 65_536, window: 16_384, most: MOST * 65_536 });
        debt.set(at(8), Rate { in_flight: 0, window: 16_384, most: MOST * 65_536 });
        assert_eq!(debt.room_at(), Some(at(32)), "a quarter of a request is in flight on average");
    }
}
