//! The clock of the data plane: monotonic, in nanoseconds since the start of a device thread.

use std::time::Instant as StdInstant;

use sluice_sched::Instant;

/// CLOCK_MONOTONIC relative to an origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: StdInstant,
}

impl Clock {
    /// Creates a clock that starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Clock { origin: StdInstant::now() }
    }

    /// Advances the clock by `time`.
    #[cfg(test)]
    pub(crate) fn advance(&mut self, time: std::time::Duration) {
        self.origin -= time;
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
