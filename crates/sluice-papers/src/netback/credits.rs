//! Rate credits: a number of bytes per window. Credits that are unused at its end are lost.
//!
//! A packet that fits into the remaining credits is sent at any time. Only a packet that does not fit makes the
//! scheduler check the clock: if the window has ended, a new one begins, otherwise the queue waits for its end. So an
//! idle queue may send the rest of an old window and all of a new one back to back.
//!
//! Example: 25 Mb/s in windows of 50 ms are 156,250 bytes. 103 frames of 1514 bytes fit, and the remaining 308 bytes
//! are lost: 24.95 Mb/s.

use core::time::Duration;

use crate::elevator::Ticks;
use sluice_sched::time::Instant;
use sluice_sched::units::ByteRate;

/// Length of a window, and the clock by which it is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    ticks: Ticks,
    nominal: u64,
    nanos: u64,
}

impl Window {
    /// Windows of `interval`, on a clock that advances in ticks.
    // rule: netback.ticks
    pub(crate) fn new(interval: Duration, tick: Duration) -> Self {
        let ticks = Ticks::new(tick);
        let nominal = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        Window { ticks, nominal, nanos: ticks.fires(Instant::from_nanos(nominal)).as_nanos() }
    }

    /// Nanoseconds that the clock shows from `start` until `now`; negative if `start` is later.
    fn passed(&self, start: Instant, now: Instant) -> i64 {
        let passed = i128::from(self.ticks.shown(now).as_nanos()) - i128::from(start.as_nanos());
        passed.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }

    /// Bytes that a rate grants per window: for the stated length, not for the length in whole ticks.
    // rule: netback.credit
    fn credit(&self, rate: ByteRate) -> u64 {
        let bytes = u128::from(rate.bytes_per_second()) * u128::from(self.nominal) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

/// A timer for the end of a window, or of several if the waiting packet needs the credits of several.
#[derive(Debug, Clone, Copy)]
struct Timer {
    due: Instant,
    windows: u64,
}

/// The credits of one queue.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Bytes per window; `None`: unlimited.
    credit: Option<u64>,
    remaining: u64,
    /// Start of the current window.
    start: Instant,
    timer: Option<Timer>,
}

impl Credits {
    /// Full credits for `rate`, in a window that begins now.
    pub(crate) fn new(now: Instant, rate: Option<ByteRate>, window: &Window) -> Self {
        let credit = rate.map(|rate| window.credit(rate));
        let start = window.ticks.shown(now);
        Credits { credit, remaining: credit.unwrap_or(0), start, timer: None }
    }

    /// Sets the rate. The rest of the window is at most a window of the new rate; a new rate starts with a full window.
    /// Cancels the timer: the caller polls the queue again.
    pub(crate) fn set(&mut self, now: Instant, rate: Option<ByteRate>, window: &Window) {
        self.timer = None;
        if self.credit.is_none() {
            *self = Credits::new(now, rate, window);
        } else {
            self.credit = rate.map(|rate| window.credit(rate));
            self.remaining = self.remaining.min(self.credit.unwrap_or(0));
        }
    }

    /// Bytes left at `now`, see [`Left`](sluice_sched::standing::Left): the rest of the window, and what has been granted for the next
    /// one so far. That is at most two windows, or what a waiting timer grants and one more.
    pub(crate) fn left(&self, now: Instant, window: &Window) -> Option<i64> {
        let credit = self.credit?;
        let granted = i128::from(window.passed(self.start, now)) * i128::from(credit) / i128::from(window.nanos);
        let most = u128::from(credit) * u128::from(self.timer.map_or(1, |timer| timer.windows));
        let granted = granted.min(i128::try_from(most).unwrap_or(i128::MAX));
        Some(i64::try_from(i128::from(self.remaining).saturating_add(granted)).unwrap_or(i64::MAX))
    }

    /// Continues with what the credits of another scheduler have left, at most this window and the next one, or this one and a
    /// head of `head` bytes. The timer is cancelled: the caller polls the queue again.
    pub(crate) fn resume(&mut self, now: Instant, left: Option<i64>, head: u64, window: &Window) {
        let (Some(credit), Some(left)) = (self.credit, left) else { return };
        self.timer = None;
        self.remaining = u64::try_from(left).unwrap_or(0).min(credit.max(head));
        let beyond = i128::from(left) - i128::from(self.remaining);
        // In the other direction a debt is paid before the next window begins.
        let nanos = (beyond.min(i128::from(credit)) * i128::from(window.nanos)).div_euclid(i128::from(credit));
        let start = i128::from(window.ticks.shown(now).as_nanos()) - nanos;
        self.start = Instant::from_nanos(u64::try_from(start.max(0)).unwrap_or(u64::MAX));
    }

    /// Whether the queue waits for its timer.
    // rule: netback.armed
    pub(crate) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// When the timer is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timer.map(|timer| timer.due)
    }

    /// Cancels the timer, because the waiting packet is gone: the caller polls the queue again.
    pub(crate) fn disarm(&mut self) {
        self.timer = None;
    }

    /// Takes the credits for the packet at the head, of `length` bytes, or starts the timer and returns when it is due.
    pub(crate) fn poll(&mut self, now: Instant, length: u64, window: &Window) -> Result<(), Instant> {
        let Some(credit) = self.credit else { return Ok(()) };
        // rule: netback.send, netback.weak-double-burst
        if self.take(length) {
            return Ok(());
        }
        // rule: netback.refill-on-poll
        let shown = window.ticks.shown(now);
        if shown.nanos_since(self.start) >= window.nanos {
            self.start = shown;
            self.refill(1, length);
            if self.take(length) {
                return Ok(());
            }
        }
        // rule: netback.arm-timer, netback.oversized-quirk
        // DEVIATION [netback] IV.B: after a refill that was too small the original's timer is due in the past, so it
        // refills again at the next tick. Here a window always passes between two refills. If a packet needs several
        // refills, the timer waits for all of them, which equals waking up at each.
        let windows = (length - self.remaining).div_ceil(credit).max(1);
        let nanos = window.nanos.saturating_mul(windows);
        let due = Instant::from_nanos(self.start.as_nanos().saturating_add(nanos));
        self.timer = Some(Timer { due, windows });
        Err(due)
    }

    /// Refills the credits when the timer is due; `head` is the length of the waiting packet.
    // rule: netback.timer
    pub(crate) fn fire(&mut self, head: u64) {
        let Some(timer) = self.timer.take() else { return };
        self.start = timer.due;
        self.refill(timer.windows, head);
    }

    // rule: netback.refill
    // DEVIATION [netback] IV.B: the original saves credits for packets of up to 128 KiB, which no NIC exceeds; a larger
    // request would wait for ever.
    fn refill(&mut self, windows: u64, head: u64) {
        let credit = self.credit.unwrap_or(0);
        let most = credit.max(head);
        self.remaining = self.remaining.saturating_add(credit.saturating_mul(windows)).min(most);
    }

    fn take(&mut self, length: u64) -> bool {
        let fits = length <= self.remaining;
        if fits {
            self.remaining -= length;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * MILLI)
    }

    /// 1000 bytes in 50 ms, of which 700 are used.
    fn used(window: &Window) -> Credits {
        let mut credits = Credits::new(at(1000), Some(ByteRate::per_second(20_000)), window);
        assert_eq!(credits.poll(at(1000), 700, window), Ok(()));
        credits
    }

    fn again(now: Instant, left: i64, head: u64, window: &Window) -> Credits {
        let mut credits = Credits::new(now, Some(ByteRate::per_second(20_000)), window);
        credits.resume(now, Some(left), head, window);
        credits
    }

    #[test]
    fn what_is_left_is_the_rest_of_a_window_and_what_is_granted_of_the_next() {
        let window = Window::new(Duration::from_millis(50), Duration::ZERO);
        let credits = used(&window);
        let left = [1000, 1010, 1050, 9000].map(|now| credits.left(at(now), &window));
        assert_eq!(left, [300, 500, 1300, 1300].map(Some));
        let mut same = again(at(1010), 500, 0, &window);
        assert_eq!(same.left(at(1010), &window), Some(500));
        assert_eq!(same.poll(at(1010), 501, &window), Err(at(1060)), "what is left, and a window from now on");
        let mut full = again(at(1010), i64::MAX, 0, &window);
        assert_eq!([1000, 1000].map(|length| full.poll(at(1010), length, &window)), [Ok(()), Ok(())]);
        assert_eq!(full.poll(at(1010), 1, &window), Err(at(1060)));
        assert_eq!(Credits::new(at(5), None, &window).left(at(5), &window), None);
    }

    #[test]
    fn a_debt_is_paid_before_the_next_window() {
        let window = Window::new(Duration::from_millis(50), Duration::ZERO);
        let mut credits = again(at(3), -500, 0, &window);
        assert_eq!((credits.left(at(3), &window), credits.left(at(28), &window)), (Some(-500), Some(0)));
        assert_eq!(credits.poll(at(3), 1, &window), Err(at(78)));
        assert_eq!(again(at(3), i64::MIN, 0, &window).left(at(3), &window).map(|left| left < -1_000_000), Some(true));
    }

    /// Replaced more often than a window ends, it must still save for a packet of several windows.
    #[test]
    fn a_packet_of_several_windows_is_sent_whatever_comes_between() {
        let window = Window::new(Duration::from_millis(50), Duration::ZERO);
        let mut credits = used(&window);
        let sent = (1001..2000).find(|now| {
            let left = credits.left(at(*now), &window).expect("it has a rate");
            credits = again(at(*now), left, 4500, &window);
            credits.poll(at(*now), 4500, &window).is_ok()
        });
        assert_eq!(sent, Some(1210), "4200 more bytes at 20 a millisecond");
    }
}
