//! The window of one device.

use sluice_sched::{Cost, Instant, Kind};

use crate::debt::{Debt, Rate};
use crate::law::{Aim, Completed, PERIOD};
use crate::too_low::{Finder, Period};

/// Requests of the largest cost that are owed at most, each for the stated time.
const OWED_MAX: u128 = 4;

/// How much may be in flight at a device, and what is.
#[derive(Debug, Clone)]
pub struct Window {
    aim: Aim,
    /// Raw cost.
    window: u64,
    /// Raw cost.
    in_flight: u64,
    debt: Debt,
    is_wanted: bool,
    /// When the period ends.
    ends: Instant,
    now: Tally,
    before: Tally,
    too_low: Finder,
}

/// What happened in a period.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    completed: Completed,
    /// Largest cost that was sent.
    largest: u32,
    /// Whether requests waited for room.
    held_back: bool,
}

/// The state of a window, for people.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// The stated time, in nanoseconds.
    pub stated: u64,
    /// Normalised requests that may be in flight.
    pub window: f64,
    /// Normalised requests in flight.
    pub in_flight: f64,
    /// Mean time at the device in nanoseconds in the last period, weighted by cost; `None` if nothing completed.
    pub latency: Option<u64>,
    /// The time in nanoseconds that the device takes for one request, if the stated one is below it.
    pub own_time: Option<u64>,
}

impl Window {
    /// A window for an idle device.
    #[must_use]
    pub fn new(now: Instant, aim: Aim) -> Self {
        let mut window = Window {
            aim,
            window: aim.outstanding(),
            in_flight: 0,
            debt: Debt::default(),
            is_wanted: false,
            ends: now + PERIOD,
            now: Tally::default(),
            before: Tally::default(),
            too_low: Finder::default(),
        };
        window.rate(now);
        window
    }

    /// Changes the aim. What is in flight stays.
    pub fn set_aim(&mut self, now: Instant, aim: Aim) {
        if aim != self.aim {
            let Window { in_flight, debt, is_wanted, .. } = *self;
            *self = Window { in_flight, debt, is_wanted, ..Window::new(now, aim) };
            self.rate(now);
        }
    }

    /// Returns the aim.
    #[must_use]
    pub fn aim(&self) -> Aim {
        self.aim
    }

    /// Ends the periods that are over. To be called before [`Window::has_room`].
    pub fn advance(&mut self, now: Instant) {
        if now < self.ends {
            return;
        }
        let Tally { completed, held_back, .. } = self.now;
        let window = self.window;
        self.too_low.note(&self.aim, &Period { held_back, completed, window });
        self.before = std::mem::take(&mut self.now);
        self.now.held_back = self.is_wanted;
        let next = self.aim.next(window, &completed);
        let next = if held_back { next } else { next.min(window) };
        let own = if self.too_low.own_time().is_some() { self.aim.outstanding() / 2 } else { 0 };
        let least = own.max(self.before.largest.into()).max(1);
        self.window = next.min(self.aim.window_max()).max(least);
        // Periods in which nothing happened change nothing.
        self.ends = now + PERIOD;
        self.rate(now);
    }

    /// Whether another request may be sent.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.debt.has_room(now)
    }

    /// Notes whether requests wait for room.
    pub fn want(&mut self, now: Instant, is_wanted: bool) {
        self.now.held_back |= is_wanted;
        if self.is_wanted != is_wanted {
            self.is_wanted = is_wanted;
            self.rate(now);
        }
    }

    /// Notes that a request is sent.
    pub fn start(&mut self, now: Instant, cost: Cost) {
        self.in_flight += u64::from(cost.raw());
        self.now.largest = self.now.largest.max(cost.raw());
        // One request may always be in flight: an idle device beside a waiting request helps nobody.
        self.window = self.window.max(cost.raw().into());
        self.rate(now);
    }

    /// Notes that a request of this kind has ended which was sent at `started`. Only the times of transfers count: a flush or a discard takes
    /// long without any queue, and those of one VM would take the throughput of all others.
    pub fn end(&mut self, now: Instant, kind: Kind, cost: Cost, started: Instant) {
        self.in_flight -= u64::from(cost.raw());
        if matches!(kind, Kind::Read | Kind::Write) {
            self.now.completed.add(cost, now.nanos_since(started));
        }
        self.rate(now);
    }

    /// Returns when there may be room, if nothing completes before; `None` if nothing waits for it.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        self.is_wanted.then(|| self.debt.room_at().map_or(self.ends, |at| at.min(self.ends)))
    }

    /// Returns its state.
    #[must_use]
    pub fn state(&self) -> State {
        let requests = |raw: u64| raw as f64 / f64::from(Cost::ONE.raw());
        State {
            stated: self.aim.latency().as_nanos() as u64,
            window: requests(self.window),
            in_flight: requests(self.in_flight),
            latency: self.before.completed.latency(),
            own_time: self.too_low.own_time(),
        }
    }

    fn rate(&mut self, now: Instant) {
        let largest = u128::from(self.now.largest.max(self.before.largest));
        let most = OWED_MAX * largest * self.aim.latency().as_nanos();
        self.debt.set(now, Rate { in_flight: self.in_flight, window: self.window, is_wanted: self.is_wanted, most });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluice_sched::Iops;

    use super::*;

    #[test]
    fn flushes_of_one_vm_took_the_window_of_all() {
        let mut window = Window::new(Instant::ZERO, Aim::new(Iops::per_second(2000), Duration::from_millis(8)));
        let before = window.state().window;
        for period in 0..20 {
            let at = |millis: u64| Instant::from_millis(500 * period + millis);
            window.advance(at(0));
            for (kind, millis) in [(Kind::Read, 8), (Kind::Flush, 400), (Kind::Discard, 300)] {
                window.start(at(1), Cost::ONE);
                window.end(at(1 + millis), kind, Cost::ONE, at(1));
            }
        }
        assert_eq!(window.state().latency, Some(8_000_000));
        assert!(window.state().window >= 0.9 * before, "{:?}", window.state());
    }

    #[test]
    fn a_window_that_shrinks_keeps_room_for_one_request() {
        let mut window = Window::new(Instant::ZERO, Aim::new(Iops::per_second(100), Duration::from_millis(1)));
        let eight = Cost::requests(8);
        for period in 0..20 {
            let at = |millis: u64| Instant::from_millis(500 * period + millis);
            window.advance(at(0));
            assert!(window.has_room(at(0)) || window.next_wakeup().is_some());
            window.start(at(1), eight);
            window.want(at(1), true);
            window.end(at(400), Kind::Read, eight, at(1));
        }
        assert_eq!(window.state().window, 8.0);
    }
}
