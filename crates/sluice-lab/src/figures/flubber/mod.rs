//! Flubber, CCGRID 2012.

pub(super) mod backup;
pub(crate) mod credits;
mod guests;
pub(super) mod latency;
pub(super) mod objectives;
pub(super) mod schedulers;
