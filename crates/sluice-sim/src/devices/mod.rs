//! Device models: what a device does with a request, and when it is over.
//!
//! A model is the truth of a simulation. What a scheduler believes of the device (its cost model, whether it is rotational)
//! is never taken from here.

use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Kind};

pub mod array;
pub mod bucket;
pub mod derived;
pub mod hdd;
pub mod linear;
pub mod link;
pub mod overhead;
pub mod presets;
pub mod read_ahead;
pub mod servers;
pub mod speed;
pub mod ssd;

/// One request at a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Its slot at the gate.
    pub slot: Slot,
    /// What is to be done.
    pub kind: Kind,
    /// In bytes from the start of the device.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

/// A model. It takes every job at once, whatever it does with it then.
pub trait Model {
    /// A job comes.
    fn submit(&mut self, now: Instant, job: Job);

    /// Everything of this instant has come: what decides for itself decides now, among all that it has. Called at the end of
    /// every instant in which something happened.
    fn settle(&mut self, _now: Instant) {}

    /// When the next job will be over, if none comes before; nothing if there is none.
    fn next(&self) -> Option<Instant>;

    /// A job that is over by `now`. Called at the time that [`Model::next`] gave, until there is none.
    fn take(&mut self, now: Instant) -> Option<Slot>;

    /// A job that was given up, if there is one: it is over when it came, and [`Model::next`] says so.
    fn take_dropped(&mut self) -> Option<Slot> {
        None
    }

    /// Jobs that it has: they came, and were neither taken nor given up.
    fn jobs_held(&self) -> usize;

    /// It stands still: it has jobs, and nothing will be over.
    fn is_stalled(&self) -> bool {
        false
    }

    /// Jobs that were given up so far.
    fn dropped(&self) -> u64 {
        0
    }

    /// Nanoseconds of work so far, all its servers together.
    fn busy_nanos(&self) -> u64;

    /// How much of that lies behind `now`: work that has been booked and not been done, or a little more.
    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.next().map_or(0, |next| next.nanos_since(now)) * u64::from(self.servers())
    }

    /// How many things it can do at once.
    fn servers(&self) -> u32;

    /// Whether it makes zeroes without writing them. If not, a request for zeroes is a write, as it is at a real device: at
    /// the gate, and in what the model gets.
    fn makes_zeroes(&self) -> bool {
        true
    }

    /// Whether what it wrote behind itself adds up.
    ///
    /// # Errors
    /// What does not.
    fn check_invariants(&self) -> Result<(), String> {
        Ok(())
    }

    /// Its wrapper, if its pace can be changed.
    fn variable_speed(&mut self) -> Option<&mut speed::VariableSpeed> {
        None
    }
}

/// Seconds as nanoseconds, rounded up: nothing is over before it is.
#[inline]
pub(crate) fn nanos(seconds: f64) -> u64 {
    // Without the processor's rounding instructions, which not every one of its kind has, `ceil` is a call.
    let nanos = seconds * 1e9;
    let whole = nanos as u64;
    whole + u64::from((whole as f64) < nanos)
}
