//! The one clock of the data plane: monotonic, in nanoseconds since a thread began.

use std::time::Instant as StdInstant;

use sluice_sched::Instant;

/// CLOCK_MONOTONIC with an origin.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: StdInstant,
}

impl Clock {
    /// Zero is now.
    #[must_use]
    pub fn start() -> Self {
        Clock { origin: StdInstant::now() }
    }

    /// Makes it so much later.
    #[cfg(test)]
    pub(crate) fn advance(&mut self, time: std::time::Duration) {
        self.origin -= time;
    }

    /// How late it is.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
