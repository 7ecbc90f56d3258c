//! Flubber, CCGRID 2012.

pub(crate) mod backup;
pub(crate) mod credits;
mod guests;
pub(super) mod latency;
pub(super) mod objectives;
pub(crate) mod schedulers;
