//! Result of a completed arrival, and what a dmClock client learns from it.

use crate::cost::{Cost, CostModel};
use crate::request::{Phase, Request};
use crate::time::Instant;

/// A completed arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// rule: mclock.reply-phase
pub struct Finished {
    /// Token of the arrival.
    pub token: u32,
    pub outcome: Outcome,
    /// Phase in which its last part was dispatched.
    pub phase: Phase,
    /// When its last part was dispatched, or when it was cancelled.
    pub dispatched: Instant,
    /// Service of all its parts; none for a cancelled arrival.
    pub service: Service,
    /// The part of `service` that was given in the reservation phase.
    pub reserved: Service,
}

/// An amount of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// Cost in normalised requests.
    pub cost: Cost,
    /// Bytes that count against a limit, see [`CostModel::bytes`].
    pub bytes: u64,
}

impl Service {
    /// No service.
    pub const NONE: Service = Service { cost: Cost::NONE, bytes: 0 };

    /// Service of one request.
    #[must_use]
    pub fn of(request: &Request, model: &CostModel) -> Service {
        Service { cost: request.cost, bytes: model.bytes(request.kind, request.length, request.cost) }
    }

    /// The service if `phase` is the reservation phase, otherwise none.
    #[must_use]
    pub fn if_reserved(self, phase: Phase) -> Service {
        if phase == Phase::Reservation { self } else { Service::NONE }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Service) {
        self.cost = self.cost.plus(other.cost);
        self.bytes += other.bytes;
    }
}

/// Result of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Every part succeeded.
    Done,
    /// A part failed at the device.
    Failed,
    /// Cancelled before all of its parts were submitted.
    Cancelled,
}

impl Outcome {
    /// Every outcome, in the order of [`GateStats::ended`](crate::gate::GateStats::ended).
    pub const ALL: [Outcome; 3] = [Outcome::Done, Outcome::Failed, Outcome::Cancelled];
}
