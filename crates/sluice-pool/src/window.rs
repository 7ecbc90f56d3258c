//! The window of one device.

use std::sync::Arc;
use std::time::Duration;

use sluice_sched::{Cost, Gate, Instant, Kind};

use crate::debt::{Debt, Rate};
use crate::demand::Demand;
use crate::dues::{Curve, Prices};
use crate::exchange;
use crate::law::{Aim, Completed, PERIOD};
use crate::too_low::{Finder, Period};

/// Requests of the largest cost that are owed at most, each for the stated time.
const OWED_MAX: u128 = 4;
/// Time between two looks at which VMs wait, while some do.
const LOOK: Duration = Duration::from_millis(25);

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
    rule: Rule,
}

/// What decides about a window.
#[derive(Debug, Clone)]
enum Rule {
    /// The times that this host measures.
    Alone(Finder),
    /// What all hosts of a pool have told each other.
    Pool(Box<Led>),
}

/// The device as a part of a pool.
#[derive(Debug, Clone)]
struct Led {
    order: Order,
    demand: Demand,
    /// When to look next which VMs wait.
    look: Instant,
}

/// What the exchange tells the window of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Raw cost.
    pub window: u64,
    /// A VM that must get r has at least r times this in flight, in nanoseconds.
    pub floor_nanos: u64,
    pub prices: Prices,
}

/// What a device tells the exchange at the end of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    pub completed: Completed,
    /// Whether requests waited for room.
    pub held_back: bool,
    pub dues: Curve,
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
#[derive(Debug, Clone, PartialEq)]
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
    /// The pool that the device is a part of.
    pub pool: Option<Arc<exchange::State>>,
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
            rule: Rule::Alone(Finder::default()),
        };
        window.rate(now);
        window
    }

    /// Changes the aim. What is in flight stays.
    pub fn set_aim(&mut self, now: Instant, aim: Aim) {
        if aim != self.aim {
            let new = Window::new(now, aim);
            self.aim = aim;
            if let Rule::Alone(too_low) = &mut self.rule {
                *too_low = Finder::default();
                (self.window, self.ends, self.now, self.before) = (new.window, new.ends, new.now, new.before);
            }
            self.rate(now);
        }
    }

    /// Returns the aim.
    #[must_use]
    pub fn aim(&self) -> Aim {
        self.aim
    }

    /// Ends what is over. To be called before [`Window::has_room`].
    pub fn advance(&mut self, now: Instant, gate: &mut Gate) {
        match &mut self.rule {
            Rule::Alone(_) if now >= self.ends => self.end_period(now),
            Rule::Pool(led) if self.is_wanted && now >= led.look => {
                led.look = now + LOOK;
                let floor = led.demand.floor(gate);
                self.window = led.order.window_for(floor);
                self.rate(now);
            }
            Rule::Alone(_) | Rule::Pool(_) => {}
        }
    }

    /// Ends a period of a device alone. Periods in which nothing happened change nothing.
    fn end_period(&mut self, now: Instant) {
        let Tally { completed, held_back, .. } = self.tally(now);
        let window = self.window;
        let Rule::Alone(too_low) = &mut self.rule else { return };
        let nanos = PERIOD.as_nanos() as u64;
        too_low.note(&self.aim, &Period { held_back, completed, window, nanos });
        let own = if too_low.own_time().is_some() { self.aim.outstanding() / 2 } else { 0 };
        let next = self.aim.next(window, &completed);
        let next = if held_back { next } else { next.min(window) };
        let least = own.max(self.before.largest.into()).max(1);
        self.window = next.min(self.aim.window_max()).max(least);
        self.rate(now);
    }

    /// Ends what is counted, and begins again.
    fn tally(&mut self, now: Instant) -> Tally {
        self.before = std::mem::take(&mut self.now);
        self.now.held_back = self.is_wanted;
        self.ends = now + PERIOD;
        self.before
    }

    /// Ends a period of a device in a pool. The first time it only begins one.
    pub fn close(&mut self, now: Instant, gate: &mut Gate) -> Option<Report> {
        let Tally { completed, held_back, .. } = self.tally(now);
        let Rule::Pool(led) = &mut self.rule else { return None };
        let dues = led.demand.close(now, gate);
        Some(Report { completed, held_back, dues })
    }

    /// Does what the exchange says, from now on; `None`: the device is alone again.
    pub fn obey(&mut self, now: Instant, order: Option<Order>, gate: &mut Gate) {
        match (order, &mut self.rule) {
            (Some(order), Rule::Pool(led)) => {
                led.order = order;
                led.demand.set_prices(order.prices);
            }
            (Some(order), rule) => {
                let demand = Demand::new(now, order.prices);
                *rule = Rule::Pool(Box::new(Led { order, demand, look: now }));
            }
            (None, Rule::Pool(_)) => self.rule = Rule::Alone(Finder::default()),
            (None, Rule::Alone(_)) => {}
        }
        if let Rule::Pool(led) = &mut self.rule {
            self.window = led.order.window_for(led.demand.floor(gate));
        }
        self.rate(now);
    }

    /// Whether another request may be sent.
    #[must_use]
    pub fn has_room(&self, now: Instant) -> bool {
        self.debt.has_room(now)
    }

    /// Notes whether requests wait for room.
    pub fn want(&mut self, is_wanted: bool) {
        self.now.held_back |= is_wanted;
        self.is_wanted = is_wanted;
    }

    /// Notes that a request is sent.
    pub fn start(&mut self, now: Instant, cost: Cost) {
        self.in_flight += u64::from(cost.raw());
        self.now.largest = self.now.largest.max(cost.raw());
        if let Rule::Alone(_) = self.rule {
            // One request may always be in flight: an idle device beside a waiting request helps nobody.
            self.window = self.window.max(cost.raw().into());
        }
        self.rate(now);
    }

    /// Notes that a request has ended, of this kind and sent at this time; `None` if the storage was not asked. Only the times of transfers count: a flush or a discard takes
    /// long without any queue, and those of one VM would take the throughput of all others.
    pub fn end(&mut self, now: Instant, cost: Cost, took: Option<(Kind, Instant)>) {
        self.in_flight -= u64::from(cost.raw());
        if let Some((Kind::Read | Kind::Write, started)) = took {
            self.now.completed.add(cost, now.nanos_since(started));
        }
        self.rate(now);
    }

    /// Returns when there may be room, if nothing completes before; `None` if nothing waits for it.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        let next = match &self.rule {
            Rule::Alone(_) => self.ends,
            Rule::Pool(led) => led.look,
        };
        self.is_wanted.then(|| self.debt.room_at().map_or(next, |at| at.min(next)))
    }

    /// Returns its state.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            stated: self.aim.latency().as_nanos() as u64,
            window: exchange::requests(self.window),
            in_flight: exchange::requests(self.in_flight),
            latency: self.before.completed.latency(),
            own_time: match &self.rule {
                Rule::Alone(too_low) => too_low.own_time(),
                Rule::Pool(_) => None,
            },
            pool: None,
        }
    }

    fn rate(&mut self, now: Instant) {
        let largest = u128::from(self.now.largest.max(self.before.largest));
        let most = OWED_MAX * largest * self.aim.latency().as_nanos();
        self.debt.set(now, Rate { in_flight: self.in_flight, window: self.window, most });
    }
}

impl Order {
    /// The window of a host whose VMs must get so much raw cost per second.
    fn window_for(&self, floor: u64) -> u64 {
        let least = u128::from(floor) * u128::from(self.floor_nanos) / 1_000_000_000;
        self.window.max(u64::try_from(least).unwrap_or(u64::MAX)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::schedulers::noop;
    use sluice_sched::{GateSettings, Iops};

    use super::*;

    fn gate() -> Gate {
        Gate::new(Box::new(noop::Noop::default()), GateSettings::default())
    }

    #[test]
    fn flushes_of_one_vm_took_the_window_of_all() {
        let mut gate = gate();
        let mut window = Window::new(Instant::ZERO, Aim::new(Iops::per_second(2000), Duration::from_millis(8)));
        let before = window.state().window;
        for period in 0..20 {
            let at = |millis: u64| Instant::from_millis(500 * period + millis);
            window.advance(at(0), &mut gate);
            for (kind, millis) in [(Kind::Read, 8), (Kind::Flush, 400), (Kind::Discard, 300)] {
                window.start(at(1), Cost::ONE);
                window.end(at(1 + millis), Cost::ONE, Some((kind, at(1))));
            }
        }
        assert_eq!(window.state().latency, Some(8_000_000));
        assert!(window.state().window >= 0.9 * before, "{:?}", window.state());
    }

    #[test]
    fn what_the_storage_was_not_asked_for_does_not_make_it_look_fast() {
        let mut gate = gate();
        let mut window = Window::new(Instant::ZERO, Aim::new(Iops::per_second(2000), Duration::from_millis(8)));
        for period in 0..20 {
            let at = |millis: u64| Instant::from_millis(500 * period + millis);
            window.advance(at(0), &mut gate);
            for (took, millis) in [(Some((Kind::Read, at(1))), 12), (None, 0), (None, 0)] {
                window.start(at(1), Cost::ONE);
                window.end(at(1 + millis), Cost::ONE, took);
            }
        }
        assert_eq!(window.state().latency, Some(12_000_000));
        assert_eq!(window.state().in_flight, 0.0);
    }

    #[test]
    fn a_window_that_shrinks_keeps_room_for_one_request() {
        let mut gate = gate();
        let mut window = Window::new(Instant::ZERO, Aim::new(Iops::per_second(100), Duration::from_millis(1)));
        let eight = Cost::requests(8);
        for period in 0..20 {
            let at = |millis: u64| Instant::from_millis(500 * period + millis);
            window.advance(at(0), &mut gate);
            assert!(window.has_room(at(0)) || window.next_wakeup().is_some());
            window.start(at(1), eight);
            window.want(true);
            window.end(at(400), eight, Some((Kind::Read, at(1))));
        }
        assert_eq!(window.state().window, 8.0);
    }
}
