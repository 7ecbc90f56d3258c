//! A stated time below that of a single request takes throughput in silence: half of it leaves a sixteenth.
//!
//! Where requests queue at a device, each takes less time in a smaller window. So if for 10 s requests waited and less than half of the
//! capacity completed, and they took the same time before and after the window became less than half of what it was, then nothing queues
//! there, and that is the device's own time.

use sluice_sched::Cost;

use crate::law::{Aim, Completed};

/// Nanoseconds after which it is known.
const SPAN_MIN: u64 = 10_000_000_000;
/// Nanoseconds with a small window that are needed for it: a few requests of random duration say little.
const SMALL_MIN: u64 = SPAN_MIN / 2;
/// The part (1 / 10) by which times may differ that are the same, if many requests completed.
const SAME: u64 = 10;
/// Requests that are needed to know a time.
const REQUESTS_MIN: u64 = 64;

/// Looks for an aim below the device's own time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finder {
    span: Option<Span>,
    found: Option<u64>,
}

/// Periods in a row in which requests waited and less than half of the capacity completed.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// The largest window, in raw cost.
    window: u64,
    /// What completed in windows of at least half of that, and in smaller ones.
    large: Part,
    small: Part,
}

/// A part of a span.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    nanos: u64,
    completed: Completed,
}

/// A period.
#[derive(Debug, Clone, Copy)]
pub struct Period {
    /// Whether requests waited for room.
    pub held_back: bool,
    pub completed: Completed,
    /// The window in it, in raw cost.
    pub window: u64,
    /// Its length.
    pub nanos: u64,
}

impl Finder {
    /// Notes a period that has ended.
    pub fn note(&mut self, aim: &Aim, period: &Period) {
        if period.completed.latency().is_some_and(|latency| latency <= aim.latency_nanos()) {
            self.found = None;
        }
        let half = aim.in_time(period.nanos) / 2;
        if !period.held_back || period.completed.cost >= half {
            self.span = None;
            return;
        }
        let span = self.span.get_or_insert(Span { window: 0, large: Part::default(), small: Part::default() });
        span.add(period);
        if let Some(own) = span.own_time() {
            self.found = Some(own);
        }
    }

    /// The time in nanoseconds that the device takes for one request, if the aim is below it.
    #[must_use]
    pub fn own_time(&self) -> Option<u64> {
        self.found
    }
}

impl Span {
    fn add(&mut self, period: &Period) {
        if period.window > self.window {
            *self = Span { window: period.window, large: Part::default(), small: Part::default() };
        }
        let part = if period.window >= self.window / 2 { &mut self.large } else { &mut self.small };
        part.nanos += period.nanos;
        part.completed.cost += period.completed.cost;
        part.completed.cost_nanos += period.completed.cost_nanos;
    }

    fn own_time(&self) -> Option<u64> {
        let (large, small) = (self.large.completed.latency()?, self.small.completed.latency()?);
        let is_long = self.small.nanos >= SMALL_MIN && self.large.nanos + self.small.nanos >= SPAN_MIN;
        // The window was large for a short time only. The mean of n random durations is off by a part of 1 / sqrt(n), if that is usual.
        let requests = self.large.completed.cost / u64::from(Cost::ONE.raw());
        let off = large / SAME + 2 * large / requests.isqrt().max(1);
        (is_long && requests >= REQUESTS_MIN && large.abs_diff(small) <= off).then_some(small)
    }
}
