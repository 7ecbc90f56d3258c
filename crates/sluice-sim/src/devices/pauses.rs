//! A device whose host does not run now and then: a machine that is paused, or a thread that waits for a CPU.
//!
//! The device goes on meanwhile with what it has. The host learns of completions when it runs again.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;

use super::{Job, Model};

/// A device with such a host: it pauses at each multiple of `period`, for `pause`.
pub struct Pauses {
    device: Box<dyn Model>,
    pause: u64,
    period: u64,
    /// Completed jobs of which the host has not learned yet, each with the instant at which it learns of it.
    completed: VecDeque<(Instant, Slot)>,
}

impl Pauses {
    /// # Panics
    /// If the pause is not shorter than the period.
    #[must_use]
    pub fn new(device: Box<dyn Model>, pause: Duration, period: Duration) -> Self {
        assert!(pause < period, "a host runs at some time");
        let nanos = |time: Duration| time.as_nanos() as u64;
        Pauses { device, pause: nanos(pause), period: nanos(period), completed: VecDeque::new() }
    }

    /// Returns when the host learns of what happens at `at`.
    fn noticed(&self, at: Instant) -> Instant {
        let since = at.as_nanos() % self.period;
        let is_paused = at.as_nanos() >= self.period && since < self.pause;
        Instant::from_nanos(at.as_nanos() + if is_paused { self.pause - since } else { 0 })
    }
}

impl Model for Pauses {
    fn submit(&mut self, now: Instant, job: Job) {
        self.device.submit(now, job);
    }

    fn settle(&mut self, now: Instant) {
        self.device.settle(now);
    }

    fn next(&self) -> Option<Instant> {
        self.device.next().into_iter().chain(self.completed.front().map(|(at, _)| *at)).min()
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        while let Some(slot) = self.device.take(now) {
            self.completed.push_back((self.noticed(now), slot));
        }
        self.completed.pop_front_if(|(at, _)| *at <= now).map(|(_, slot)| slot)
    }

    fn take_dropped(&mut self) -> Option<Slot> {
        self.device.take_dropped()
    }

    fn jobs_held(&self) -> usize {
        self.device.jobs_held() + self.completed.len()
    }

    fn is_stalled(&self) -> bool {
        self.completed.is_empty() && self.device.is_stalled()
    }

    fn dropped(&self) -> u64 {
        self.device.dropped()
    }

    fn busy_nanos(&self) -> u64 {
        self.device.busy_nanos()
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.device.ahead_nanos(now)
    }

    fn servers(&self) -> u32 {
        self.device.servers()
    }

    fn makes_zeroes(&self) -> bool {
        self.device.makes_zeroes()
    }

    fn check_invariants(&self) -> Result<(), String> {
        self.device.check_invariants()
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::Kind;

    use super::*;
    use crate::devices::servers::{Servers, ServiceTime};
    use crate::random::stream;

    /// Completion times in ms of this many jobs that are submitted together.
    fn completions(device: &mut Pauses, at: u64, jobs: u32) -> Vec<u64> {
        let now = Instant::from_millis(at);
        (0..jobs).for_each(|slot| {
            device.submit(now, Job { slot: Slot(slot), kind: Kind::Read, offset: 0, length: 4096 });
        });
        device.settle(now);
        let mut times = Vec::new();
        while let Some(now) = device.next() {
            while device.take(now).is_some() {
                times.push(now.as_nanos() / 1_000_000);
            }
            device.settle(now);
        }
        times
    }

    #[test]
    fn the_device_goes_on_in_a_pause_and_the_host_learns_of_it_afterwards() {
        let time = ServiceTime::Fixed(Duration::from_millis(2));
        let device = Box::new(Servers::new(1, time, stream(0, "device")));
        let mut device = Pauses::new(device, Duration::from_millis(5), Duration::from_millis(100));
        // Nothing has run before the first period, so there is no pause in it.
        assert_eq!(completions(&mut device, 0, 3), [2, 4, 6]);
        assert_eq!(completions(&mut device, 97, 5), [99, 105, 105, 105, 107]);
        assert_eq!(device.jobs_held(), 0);
    }
}
