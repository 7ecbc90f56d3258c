//! A minimum rate, measured in windows: whether a NIC has sent less than it should have by now.
//!
//! Example: the minimum is 10 Mb/s. 20 ms after the start of its window a NIC is below it if it has sent less than
//! 25,000 bytes.

use core::time::Duration;

use sluice_sched::time::Instant;
use sluice_sched::units::ByteRate;

const SECOND: u128 = 1_000_000_000;

/// Bytes that a NIC has sent in its window, compared with its minimum.
#[derive(Debug)]
pub(super) struct Minimum {
    /// Bytes per second.
    rate: Option<u64>,
    window: u64,
    start: Instant,
    sent: u64,
}

impl Minimum {
    pub(super) fn new(now: Instant, rate: Option<ByteRate>, window: Duration) -> Self {
        let window = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
        Minimum { rate: rate.map(ByteRate::bytes_per_second), window, start: now, sent: 0 }
    }

    /// Sets the rate. Returns whether it differs.
    pub(super) fn set(&mut self, now: Instant, rate: Option<ByteRate>) -> bool {
        if self.rate.is_none() {
            (self.start, self.sent) = (now, 0);
        }
        let rate = rate.map(ByteRate::bytes_per_second);
        core::mem::replace(&mut self.rate, rate) != rate
    }

    /// Bytes per window, at most 2^32 - 1.
    pub(super) fn allowance(&self) -> u32 {
        let bytes = u128::from(self.rate.unwrap_or(0)) * u128::from(self.window) / SECOND;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Called when a NIC has packets after it had none. If its window has ended, a new one starts now.
    pub(super) fn begin(&mut self, now: Instant) {
        if now.nanos_since(self.start) >= self.window {
            (self.start, self.sent) = (now, 0);
        }
    }

    fn roll(&mut self, now: Instant) {
        let passed = now.nanos_since(self.start);
        if passed >= self.window {
            self.start = Instant::from_nanos(now.as_nanos() - passed % self.window);
            self.sent = 0;
        }
    }

    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        self.roll(now);
        self.sent = self.sent.saturating_add(bytes);
    }

    /// Whether it has sent less than the minimum times the time since the window started.
    pub(super) fn is_below(&mut self, now: Instant) -> bool {
        self.roll(now);
        let elapsed = u128::from(now.nanos_since(self.start));
        self.rate.is_some_and(|rate| u128::from(self.sent) * SECOND < u128::from(rate) * elapsed)
    }

    /// Returns the bytes that are missing to the minimum in the current window. The number is negative if the NIC has sent more.
    pub(super) fn owed(&self, now: Instant) -> Option<i64> {
        let rate = i128::from(self.rate?);
        let passed = now.nanos_since(self.start);
        // In the next window it has sent nothing yet.
        let sent = if passed >= self.window { 0 } else { i128::from(self.sent) };
        let owed = rate * i128::from(passed % self.window) / SECOND.cast_signed() - sent;
        Some(i64::try_from(owed).unwrap_or(if owed < 0 { i64::MIN } else { i64::MAX }))
    }

    /// Starts a window in which `owed` bytes are missing, at most those that the minimum grants in a window.
    pub(super) fn resume(&mut self, now: Instant, owed: Option<i64>) {
        let (Some(rate), Some(owed)) = (self.rate, owed) else { return };
        let passed = u128::from(owed.max(0).unsigned_abs()) * SECOND / u128::from(rate);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX).min(self.window - 1);
        self.start = Instant::from_nanos(now.as_nanos().saturating_sub(passed));
        self.sent = owed.min(0).unsigned_abs();
    }

    /// When it falls below the minimum if it sends nothing until then; `now` if it is below.
    pub(super) fn below_from(&mut self, now: Instant) -> Option<Instant> {
        let rate = u128::from(self.rate?);
        if self.is_below(now) {
            return Some(now);
        }
        let elapsed = u64::try_from(u128::from(self.sent) * SECOND / rate).unwrap_or(u64::MAX).min(self.window);
        Some(Instant::from_nanos(self.start.as_nanos().saturating_add(elapsed).saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_goes_on_where_another_one_stood() {
        let window = Duration::from_millis(50);
        let at = Instant::from_millis;
        let new = |now| Minimum::new(now, Some(ByteRate::per_second(20_000)), window);
        let mut minimum = new(at(100));
        minimum.sent(at(110), 700);
        assert_eq!([110, 140, 149, 155].map(|now| minimum.owed(at(now))), [-500, 100, 280, 100].map(Some));
        for owed in [-500, 0, 100, 980] {
            let mut other = new(at(110));
            other.resume(at(110), Some(owed));
            assert_eq!((other.owed(at(110)), other.is_below(at(110))), (Some(owed), owed > 0));
        }
        let mut late = new(at(3));
        late.resume(at(3), Some(i64::MAX));
        assert_eq!(late.owed(at(3)), Some(60), "the clock began 3 ms ago");
        late.resume(at(3), Some(i64::MIN));
        assert!(!late.is_below(at(40)));
        let mut unset = Minimum::new(at(3), None, window);
        unset.resume(at(3), Some(5));
        assert_eq!(unset.owed(at(3)), None);
    }
}
