//! mClock, OSDI 2010.

pub(super) mod allocation;
pub(super) mod limits;
