//! What a gate says of an arrival that is over, and what a dmClock client learns from it.

use crate::cost::{Cost, CostModel};
use crate::request::{Phase, Request};
use crate::time::Instant;

/// An arrival that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// rule: mclock.reply-phase
pub struct Finished {
    /// The handle of the arrival.
    pub token: u32,
    /// Whether every part of it succeeded.
    pub outcome: Outcome,
    /// By which right its last part was dispatched.
    pub phase: Phase,
    /// When its last part was dispatched; of one that was cancelled, when it was cancelled.
    pub dispatched: Instant,
    /// What all its parts got; one that was cancelled got nothing.
    pub service: Service,
    /// Of that, what they got for a reservation.
    pub reserved: Service,
}

/// An amount of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// In normalised requests.
    pub cost: Cost,
    /// The bytes that it counts against a limit, see [`CostModel::bytes`].
    pub bytes: u64,
}

impl Service {
    /// None at all.
    pub const NONE: Service = Service { cost: Cost::NONE, bytes: 0 };

    /// What one request gets.
    #[must_use]
    pub fn of(request: &Request, model: &CostModel) -> Service {
        Service { cost: request.cost, bytes: model.bytes(request.kind, request.length, request.cost) }
    }

    /// The service, if it was given in the reservation phase, else none.
    #[must_use]
    pub fn if_reserved(self, phase: Phase) -> Service {
        if phase == Phase::Reservation { self } else { Service::NONE }
    }

    pub(super) fn add(&mut self, other: Service) {
        self.cost = self.cost.plus(other.cost);
        self.bytes += other.bytes;
    }
}

/// How an arrival ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Every part succeeded.
    Done,
    /// A part failed at the device.
    Failed,
    /// It was cancelled before all of it went to the device.
    Cancelled,
}
