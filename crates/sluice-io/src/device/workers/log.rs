//! A record of what a shared gate was told and what it granted, with which tests compare a gate of one thread.

use sluice_sched::gate::{Slot, Submission};
use sluice_sched::{Arrival, Device, Gate, Instant};

type Call = Box<dyn FnMut(&mut Gate, Instant) + Send>;

/// What went into a shared gate, in order, and what it granted.
#[derive(Default)]
pub(crate) struct Log {
    inputs: Vec<(Instant, Input)>,
    granted: Vec<Submission>,
}

enum Input {
    Arrived(Arrival),
    Completed(Slot, bool),
    Called(Call),
    Pumped,
}

impl Log {
    pub(crate) fn arrived(&mut self, now: Instant, arrival: Arrival) {
        self.inputs.push((now, Input::Arrived(arrival)));
    }

    pub(crate) fn completed(&mut self, now: Instant, slot: Slot, ok: bool) {
        self.inputs.push((now, Input::Completed(slot, ok)));
    }

    pub(crate) fn called(&mut self, now: Instant, call: impl FnMut(&mut Gate, Instant) + Send + 'static) {
        self.inputs.push((now, Input::Called(Box::new(call))));
    }

    pub(crate) fn pumped(&mut self, now: Instant) {
        self.inputs.push((now, Input::Pumped));
    }

    pub(crate) fn granted(&mut self, submission: &Submission) {
        self.granted.push(*submission);
    }

    /// Tells a gate the same. Returns what the shared one has granted, and what this one grants.
    pub(crate) fn replay(self, mut gate: Gate) -> (Vec<Submission>, Vec<Submission>) {
        let mut granted = Granted::default();
        for (now, input) in self.inputs {
            match input {
                Input::Arrived(arrival) => drop(gate.insert(now, &arrival)),
                Input::Completed(slot, ok) => gate.complete_all(now, slot, ok, &mut Vec::new()),
                Input::Called(mut call) => call(&mut gate, now),
                Input::Pumped => drop(gate.pump(now, &mut granted)),
            }
        }
        (self.granted, granted.0)
    }
}

#[derive(Default)]
struct Granted(Vec<Submission>);

impl Device for Granted {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(*submission);
    }
}
