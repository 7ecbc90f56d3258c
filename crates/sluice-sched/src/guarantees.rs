//! Guarantees of a scheduler, so that tests can check it without knowing its name.
//!
//! A scheduler states its guarantees in its own file. The contract tests, the tests that replace schedulers, and the
//! fuzz target `gate` check each scheduler against its statement. [`Guarantees::BASE`] promises nothing in addition to
//! the contract of [`Scheduler`](crate::Scheduler).

use core::time::Duration;

/// Guarantees of a scheduler with given parameters on a given device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    pub order: Order,
    pub waits: Waits,
    pub limits: Limits,
    /// Division of spare capacity; `None`: not by weight.
    pub shares: Option<Shares>,
    /// Whether it learns from completed requests, so that an earlier load changes later decisions.
    pub learns: bool,
}

impl Guarantees {
    /// No guarantees.
    pub const BASE: Guarantees =
        Guarantees { order: Order::Any, waits: Waits::Other, limits: Limits::None, shares: None, learns: false };
}

/// Requests that are dispatched in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// None; a scheduler that uses addresses guarantees none.
    Any,
    /// Those of a volume while its VM's class does not change: background requests and others are in separate queues.
    VolumeByClass,
    /// Those of each volume.
    Volume,
    /// All.
    All,
}

impl Order {
    /// Whether the requests of each volume are dispatched in order of arrival, whatever changes.
    #[must_use]
    pub const fn keeps_volumes(self) -> bool {
        matches!(self, Order::Volume | Order::All)
    }
}

/// Conditions in which a slot may stay free although requests are queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Never.
    Never,
    /// While at least this many requests are in flight; 0 means the device's depth.
    InFlight(u32),
    /// Until a limit, or the reservation of a VM without weight, allows the next request.
    Tags {
        /// Whether limits and reservations of volumes count too.
        inside: bool,
    },
    /// Until the next window of a byte limit.
    Windows {
        /// Or while at least this many requests are in flight.
        in_flight: Option<u32>,
    },
    /// For a better request, at most this time.
    Idling {
        most: Duration,
        /// The same once a VM has background work or class idle.
        most_with_background: Duration,
    },
    /// For a contiguous request, until `seek` before the earliest deadline.
    Deadlines {
        /// Time to the deadline of a request whose VM has no longer latency target.
        target: Duration,
        seek: Duration,
        /// Maximum wait while the device is idle; `None`: as long as the deadline allows.
        idle: Option<Duration>,
    },
    /// By its own rules, which have separate tests.
    Other,
}

impl Waits {
    /// Idling for at most this time, whatever the class.
    #[must_use]
    pub const fn idling(most: Duration) -> Self {
        Waits::Idling { most, most_with_background: most }
    }
}

/// Limits that hold in every interval of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// None are guaranteed.
    None,
    /// Of VMs and volumes, in requests and in bytes: rate x time + burst + the largest request.
    Buckets,
    /// Of VMs, in bytes: the credits of two windows may be used back to back, or of three with a tick, and one more
    /// for a request that is larger than the credits.
    Windows {
        interval: Duration,
        /// Resolution of the clock; with a tick the end of a window is seen up to a tick early.
        tick: Duration,
    },
}

/// Sharing of spare capacity by weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Number of requests of one VM that may be dispatched in a row.
    pub batch: u32,
    /// Whether each request counts 1, instead of its cost.
    pub by_request: bool,
    /// Whether VMs have an idle credit.
    pub with_credit: bool,
}
