//! mClock, OSDI 2010.

pub(crate) mod allocation;
pub(crate) mod batching;
pub(super) mod dilution;
pub(crate) mod distributed;
pub(crate) mod idle_credit;
pub(super) mod interference;
pub(crate) mod latency;
pub(crate) mod limits;
pub(super) mod mixed;
pub(crate) mod oltp;
pub(crate) mod reservations;
