//! A device that slows down, stalls or fails: a wrapper around any model.
//!
//! The model has its own clock. At normal speed both clocks advance alike. For a device that is twice as slow, half of
//! the time passes, and for a stalled one none. So every model can slow down, stall and recover without code for it.

use sluice_sched::Instant;
use sluice_sched::gate::Slot;
use sluice_sched::slab::Slab;

use super::{Changeable, Job, Model};

/// Speed of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Speed {
    /// Everything takes this many times as long as modelled: 1 or more.
    Slower(f64),
    /// No progress.
    Stalled,
}

impl Speed {
    /// As modelled.
    pub const NORMAL: Speed = Speed::Slower(1.0);
}

/// A model with its own clock.
pub struct VariableSpeed {
    inner: Box<dyn Model>,
    speed: Speed,
    /// Start of the current speed, on the outer and the inner clock.
    since: (Instant, Instant),
    /// The gate's slots of the jobs, by inner slot. A lost job completes in the model later, when its outer slot may
    /// belong to another job.
    jobs: Slab<Option<Slot>>,
}

impl VariableSpeed {
    /// At normal speed.
    #[must_use]
    pub fn new(inner: Box<dyn Model>) -> Self {
        VariableSpeed { inner, speed: Speed::NORMAL, since: (Instant::ZERO, Instant::ZERO), jobs: Slab::default() }
    }

    /// Sets the speed from `now` on. Factors below 1 count as 1: a model is the maximum of the device.
    pub fn set(&mut self, now: Instant, speed: Speed) {
        self.since = (now, self.inside(now));
        self.speed = match speed {
            Speed::Slower(times) => Speed::Slower(times.max(1.0)),
            Speed::Stalled => Speed::Stalled,
        };
    }

    /// The inner clock at `now`. Example: from 1 s on four times as slow, at 3 s it shows 1.5 s.
    fn inside(&self, now: Instant) -> Instant {
        let passed = now.nanos_since(self.since.0);
        match self.speed {
            Speed::Slower(1.0) => Instant::from_nanos(self.since.1.as_nanos() + passed),
            Speed::Slower(times) => Instant::from_nanos(self.since.1.as_nanos() + (passed as f64 / times) as u64),
            Speed::Stalled => self.since.1,
        }
    }

    /// The first outer time at which the inner clock shows `at`; `None` if it stalls before.
    fn outside(&self, at: Instant) -> Option<Instant> {
        let ahead = at.nanos_since(self.since.1);
        let mut time = match self.speed {
            _ if ahead == 0 => self.since.0.as_nanos(),
            Speed::Slower(1.0) => self.since.0.as_nanos() + ahead,
            Speed::Slower(times) => self.since.0.as_nanos() + (ahead as f64 * times).ceil() as u64,
            Speed::Stalled => return None,
        };
        // Corrects the two roundings.
        while self.inside(Instant::from_nanos(time)) < at {
            time += 1;
        }
        Some(Instant::from_nanos(time))
    }
}

impl Model for VariableSpeed {
    fn submit(&mut self, now: Instant, job: Job) {
        let number = self.jobs.insert(Some(job.slot));
        self.inner.submit(self.inside(now), Job { slot: Slot(number), ..job });
    }

    fn settle(&mut self, now: Instant) {
        self.inner.settle(self.inside(now));
    }

    fn next(&self) -> Option<Instant> {
        self.outside(self.inner.next()?)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        loop {
            let Slot(number) = self.inner.take(self.inside(now))?;
            if let Some(slot) = self.jobs.remove(number).take() {
                return Some(slot);
            }
        }
    }

    fn take_dropped(&mut self) -> Option<Slot> {
        loop {
            let Slot(number) = self.inner.take_dropped()?;
            if let Some(slot) = self.jobs.remove(number).take() {
                return Some(slot);
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.inner.dropped()
    }

    fn jobs_held(&self) -> usize {
        self.jobs.entries().iter().flatten().count()
    }

    fn is_stalled(&self) -> bool {
        self.speed == Speed::Stalled || self.inner.is_stalled()
    }

    fn busy_nanos(&self) -> u64 {
        self.inner.busy_nanos()
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.inner.ahead_nanos(self.inside(now))
    }

    fn makes_zeroes(&self) -> bool {
        self.inner.makes_zeroes()
    }

    fn servers(&self) -> u32 {
        self.inner.servers()
    }

    fn check_invariants(&self) -> Result<(), String> {
        self.inner.check_invariants()
    }

    fn changeable(&mut self) -> Option<&mut dyn Changeable> {
        Some(self)
    }
}

impl Changeable for VariableSpeed {
    fn set_speed(&mut self, now: Instant, speed: Speed) {
        self.set(now, speed);
    }

    fn lose(&mut self) -> Vec<Slot> {
        self.jobs.entries_mut().iter_mut().filter_map(Option::take).collect()
    }

    fn set_path(&mut self, _times: f64) {
        panic!("a device of one host has no path to it");
    }
}
