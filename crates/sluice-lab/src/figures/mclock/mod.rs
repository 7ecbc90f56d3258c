//! mClock, OSDI 2010.

pub(super) mod allocation;
pub(super) mod batching;
pub(super) mod dilution;
pub(super) mod distributed;
pub(super) mod idle_credit;
pub(super) mod interference;
pub(super) mod latency;
pub(super) mod limits;
pub(super) mod mixed;
pub(super) mod oltp;
pub(super) mod reservations;
