//! The law of windows: half of what there was, and half of what would have given the stated time.

use std::time::Duration;

use sluice_sched::{Cost, Iops};

use crate::dues::raw;

/// Time between two changes of a window.
pub const PERIOD: Duration = Duration::from_millis(500);

/// A window settles where requests take longer than stated by this part (1 / 16): so a device that could do more gets more, and one with
/// a queue of its own keeps a short one.
pub(crate) const ABOVE: u64 = 16;

/// A capacity, and the time from which on the device counts as full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// Raw cost per second.
    capacity: u64,
    /// Mean time of a request at the device, in nanoseconds.
    latency: u64,
}

/// What a device completed in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completed {
    /// Raw cost.
    pub cost: u64,
    /// Sum of raw cost times nanoseconds at the device.
    pub cost_nanos: u128,
}

impl Aim {
    /// An aim for a device that completes `rate` normalised requests.
    #[must_use]
    pub fn new(rate: Iops, latency: Duration) -> Self {
        let latency = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        Aim { capacity: raw(rate).max(1), latency: latency.max(1) }
    }

    /// The stated time.
    #[must_use]
    pub const fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency)
    }

    /// The same in nanoseconds.
    pub(crate) const fn latency_nanos(&self) -> u64 {
        self.latency
    }

    /// What is in flight at the stated capacity and time, by Little's law, in raw cost; at least 1.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.in_time(self.latency).max(1)
    }

    /// What the stated capacity completes in this many nanoseconds, in raw cost.
    #[must_use]
    pub fn in_time(&self, nanos: u64) -> u64 {
        let cost = u128::from(self.capacity) * u128::from(nanos) / 1_000_000_000;
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// The largest window: a quarter more than [`Aim::outstanding`], so that a flood after light load is short.
    #[must_use]
    pub fn window_max(&self) -> u64 {
        self.outstanding().saturating_add(self.outstanding() / 4)
    }

    /// The next window, without its bounds: W / 2 + (W x latency / L + b) / 2, where b is 1 / 16 of [`Aim::outstanding`]. Without
    /// completions it stays.
    #[must_use]
    pub fn next(&self, window: u64, completed: &Completed) -> u64 {
        self.next_after(window, window, completed)
    }

    /// The same if the window was another one while those requests completed.
    #[must_use]
    pub fn next_after(&self, window: u64, in_force: u64, completed: &Completed) -> u64 {
        let Some(latency) = completed.latency() else { return window };
        let scaled = u128::from(in_force) * u128::from(self.latency) / u128::from(latency);
        let next = u128::from(window) + scaled + u128::from(self.outstanding() / ABOVE);
        u64::try_from(next / 2).unwrap_or(u64::MAX)
    }

    /// The number of requests of cost 1 that a VM keeps outstanding on average when it gets `iops` through a window of this aim: they
    /// take the stated time and 1 / 16 at the device, and wait for one request before it.
    #[must_use]
    pub fn needed(&self, iops: f64) -> f64 {
        let device = self.latency as f64 * (1.0 + 1.0 / ABOVE as f64) / 1e9;
        iops * (device + f64::from(Cost::ONE.raw()) / self.capacity as f64)
    }

    /// The shortest time to state for a device that takes `own` for one request: 1.1 times that, rounded up to a number that is easily
    /// written.
    #[must_use]
    pub fn latency_for(own: Duration) -> Duration {
        let micros = (own.as_micros() as u64).saturating_mul(11).div_ceil(10);
        Duration::from_micros(micros.next_multiple_of(step(micros)))
    }

    /// The longest time to state with which one request outstanding gives `iops`, rounded down to a number that is easily written; `None` if
    /// it would be below 100 us.
    #[must_use]
    pub fn latency_for_one(&self, iops: f64) -> Option<Duration> {
        let seconds = 1.0 / iops - f64::from(Cost::ONE.raw()) / self.capacity as f64;
        let micros = (1e6 * seconds / (1.0 + 1.0 / ABOVE as f64)) as u64;
        (micros >= 100).then(|| Duration::from_micros(micros - micros % step(micros)))
    }
}

/// A time as a host file has it: `440us`, `3.7ms`.
#[must_use]
pub fn written(latency: Duration) -> String {
    match latency.as_micros() {
        micros @ 0..1000 => format!("{micros}us"),
        micros => format!("{}ms", micros as f64 / 1000.0),
    }
}

/// Microseconds between times that are easily written.
const fn step(micros: u64) -> u64 {
    match micros {
        0..1000 => 10,
        1000..10_000 => 100,
        10_000.. => 1000,
    }
}

impl Completed {
    /// Adds a request that took `nanos` at the device.
    pub fn add(&mut self, cost: Cost, nanos: u64) {
        self.cost = self.cost.saturating_add(cost.raw().into());
        self.cost_nanos += u128::from(cost.raw()) * u128::from(nanos);
    }

    /// Mean time at the device in nanoseconds, weighted by cost and at least 1; `None` if nothing completed. Otherwise, requests of
    /// cost 8 would settle at eight times the stated time.
    #[must_use]
    pub fn latency(&self) -> Option<u64> {
        let mean = self.cost_nanos.checked_div(self.cost.into())?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn aim() -> Aim {
        Aim::new(Iops::per_second(2000), Duration::from_millis(8))
    }

    fn requests(number: u64) -> u64 {
        number * u64::from(Cost::ONE.raw())
    }

    fn after(nanos: u64) -> Completed {
        let mut completed = Completed::default();
        completed.add(Cost::ONE, nanos);
        completed
    }

    #[test]
    fn a_window_settles_a_sixteenth_above_the_stated_time() {
        assert_eq!((aim().outstanding(), aim().window_max()), (requests(16), requests(20)));
        // A device that serves one request after the other at its stated rate: time is what is in flight.
        let mut window = requests(20);
        for _ in 0..60 {
            window = aim().next(window, &after(window * 8 * MS / requests(16)));
        }
        assert!(window.abs_diff(requests(17)) < 100, "{window}");
    }

    #[test]
    fn a_period_without_completions_keeps_the_window() {
        assert_eq!(aim().next(requests(7), &Completed::default()), requests(7));
    }

    #[test]
    fn large_requests_count_by_their_cost() {
        let mut completed = after(2 * MS);
        completed.add(Cost::requests(7), 10 * MS);
        assert_eq!(completed.latency(), Some(9 * MS));
    }

    #[test]
    fn a_vm_with_one_request_outstanding_gets_what_littles_law_allows() {
        let aim = |latency| Aim::new(Iops::per_second(1000), Duration::from_micros(latency));
        assert!((aim(30_000).needed(200.0) - 6.575).abs() < 1e-9);
        let most = aim(1000).latency_for_one(200.0).unwrap();
        assert_eq!((most, written(most)), (Duration::from_micros(3700), "3.7ms".to_owned()));
        assert!((0.95..=1.0).contains(&Aim::new(Iops::per_second(1000), most).needed(200.0)));
        assert_eq!(Aim::latency_for(Duration::from_micros(16_000)), Duration::from_millis(18));
        assert_eq!(aim(1000).latency_for_one(1000.0), None);
    }
}
