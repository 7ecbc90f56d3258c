//! Rate credits: so many bytes per window, and what is not used by its end is lost.
//!
//! A packet that fits into what remains goes, whenever that is. Only one that does not fit makes anybody look at the
//! clock: if the window is over a new one begins, else the queue waits for its end. So a queue that was idle may send what
//! was left of an old window and all of a new one back to back.
//!
//! Example: 25 Mb/s in windows of 50 ms are 156,250 bytes. Of frames of 1514 bytes 103 fit, which leaves 308 bytes that
//! are lost: 24.95 Mb/s.

use core::time::Duration;

use crate::elevator::Ticks;
use crate::time::Instant;
use crate::units::ByteRate;

/// How long a window is, and the clock by which it is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    ticks: Ticks,
    nominal: u64,
    nanos: u64,
}

impl Window {
    /// Windows of `interval`, on a clock that ticks.
    // rule: netback.ticks
    pub(crate) fn new(interval: Duration, tick: Duration) -> Self {
        let ticks = Ticks::new(tick);
        let nominal = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        Window { ticks, nominal, nanos: ticks.fires(Instant::from_nanos(nominal)).as_nanos() }
    }

    /// Bytes that a rate grants for one window: as long as it was stated, not as long as the clock makes it.
    // rule: netback.credit
    fn credit(&self, rate: ByteRate) -> u64 {
        let bytes = u128::from(rate.bytes_per_second()) * u128::from(self.nominal) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

/// A timer for the end of a window; of several, if the packet that waits needs the credits of several.
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
    /// When the running window began.
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

    /// Another rate. What remains of the window is at most a window of the new rate; a rate where there was none begins with
    /// a full one. The timer is off: whoever waited has to be polled again.
    pub(crate) fn set(&mut self, now: Instant, rate: Option<ByteRate>, window: &Window) {
        self.timer = None;
        if self.credit.is_none() {
            *self = Credits::new(now, rate, window);
        } else {
            self.credit = rate.map(|rate| window.credit(rate));
            self.remaining = self.remaining.min(self.credit.unwrap_or(0));
        }
    }

    /// Whether it waits for its timer.
    // rule: netback.armed
    pub(crate) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// When its timer is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.timer.map(|timer| timer.due)
    }

    /// What it waited for is gone: it has to be polled again.
    pub(crate) fn disarm(&mut self) {
        self.timer = None;
    }

    /// The packet at the head, of `length` bytes, would go now. Takes its credits, or arms the timer and says until when.
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
        // DEVIATION [netback] IV.B: after a refill that was not enough the original's timer is due in the past, so it refills
        // once more at the next tick. Here a window passes between two refills, always; and where one refill is not enough
        // the timer waits for as many as are, which is the same as waking at each.
        let windows = (length - self.remaining).div_ceil(credit).max(1);
        let nanos = window.nanos.saturating_mul(windows);
        let due = Instant::from_nanos(self.start.as_nanos().saturating_add(nanos));
        self.timer = Some(Timer { due, windows });
        Err(due)
    }

    /// The timer is due; `head` is the length of the packet that waits.
    // rule: netback.timer
    pub(crate) fn fire(&mut self, head: u64) {
        let Some(timer) = self.timer.take() else { return };
        self.start = timer.due;
        self.refill(timer.windows, head);
    }

    // rule: netback.refill
    // DEVIATION [netback] IV.B: the original saves for packets of up to 128 KiB, which no NIC exceeds; a larger request
    // would wait for ever.
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
