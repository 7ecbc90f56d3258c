//! Device models: service times of requests, and their completion.
//!
//! A model is the reality of a simulation. The properties that a scheduler assumes of the device (its cost model,
//! whether it is rotational) are never taken from it.

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

pub mod array;
pub mod bucket;
pub mod controller;
pub mod derived;
pub mod hdd;
pub mod linear;
pub mod link;
pub mod overhead;
pub mod pauses;
pub mod presets;
pub mod read_ahead;
pub mod servers;
pub mod shared;
pub mod speed;
pub mod ssd;
pub mod write_cache;

/// One request at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Slot at the gate.
    pub slot: Slot,
    pub kind: Kind,
    /// Offset on the device in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// A device model. It accepts every job immediately.
pub trait Model {
    /// Submits a job.
    fn submit(&mut self, now: Instant, job: Job);

    /// Marks the end of an instant: a model that sorts its queue chooses now, among all jobs of this instant. Called at
    /// the end of every instant with an event.
    fn settle(&mut self, _now: Instant) {}

    /// Time of the next completion, if no job arrives before; `None` if there is none.
    fn next(&self) -> Option<Instant>;

    /// Removes a job that has completed by `now`. Called at the time that [`Model::next`] returned, until it returns
    /// `None`.
    fn take(&mut self, now: Instant) -> Option<Slot>;

    /// Removes a dropped job, if there is one. It completed when it arrived, as [`Model::next`] says.
    fn take_dropped(&mut self) -> Option<Slot> {
        None
    }

    /// Number of jobs at the device: submitted, neither completed nor dropped.
    fn jobs_held(&self) -> usize;

    /// Whether the device is stalled: it has jobs and will complete none.
    fn is_stalled(&self) -> bool {
        false
    }

    /// Number of jobs dropped so far.
    fn dropped(&self) -> u64 {
        0
    }

    /// Busy time so far in nanoseconds, of all servers together.
    fn busy_nanos(&self) -> u64;

    /// Part of the busy time that lies after `now`: counted but not yet done, or slightly more.
    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.next().map_or(0, |next| next.nanos_since(now)) * u64::from(self.servers())
    }

    /// Number of jobs that it can serve concurrently.
    fn servers(&self) -> u32;

    /// Whether the device makes zeroes without writing them. Otherwise a request for zeroes is a write, as at a real
    /// device: at the gate and at the model.
    fn makes_zeroes(&self) -> bool {
        true
    }

    /// Checks the invariants of internal writes.
    ///
    /// # Errors
    /// The invariant that is violated.
    fn check_invariants(&self) -> Result<(), String> {
        Ok(())
    }

    /// What a timeline changes of it, if it can be changed.
    fn changeable(&mut self) -> Option<&mut dyn Changeable> {
        None
    }
}

/// What a timeline changes of a device.
pub trait Changeable {
    /// Sets its speed from `now` on.
    fn set_speed(&mut self, now: Instant, speed: speed::Speed);

    /// Loses all jobs; returns their slots.
    fn lose(&mut self) -> Vec<Slot>;

    /// From now on jobs take this many times as long on the way between host and device; at least 1.
    ///
    /// # Panics
    /// If the device is not shared by hosts: then it has no such way.
    fn set_path(&mut self, times: f64);
}

/// Seconds as nanoseconds, rounded up, so that nothing completes early.
#[inline]
pub(crate) fn nanos(seconds: f64) -> u64 {
    // Without rounding instructions, which not every CPU of this kind has, `ceil` is a function call.
    let nanos = seconds * 1e9;
    let whole = nanos as u64;
    whole + u64::from((whole as f64) < nanos)
}
