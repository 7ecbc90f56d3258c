//! mClock, OSDI 2010.

pub(crate) mod allocation;
pub(crate) mod batching;
pub(super) mod dilution;
pub(crate) mod distributed;
pub(crate) mod idle_credit;
pub(crate) mod interference;
pub(crate) mod latency;
pub(crate) mod limits;
pub(crate) mod mixed;
pub(crate) mod oltp;
pub(crate) mod reservations;
