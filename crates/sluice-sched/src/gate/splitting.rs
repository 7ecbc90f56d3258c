//! Splitting of requests that are too large for the device. The arrival completes with its last piece.

use crate::cost::CostModel;
use crate::gate::{Finished, Outcome, Service};
use crate::request::{Flags, Request};
use crate::slab::Slab;
use crate::time::Instant;
use crate::units::Bytes;

#[derive(Debug, Clone, Copy)]
struct Parent {
    token: u32,
    offset: u64,
    left: u32,
    outcome: Outcome,
    /// Latest dispatch of the parts that have completed.
    dispatched: Instant,
    /// Service of the parts that have completed, and its part in the reservation phase.
    service: Service,
    reserved: Service,
}

/// Arrivals that have been split.
#[derive(Debug, Default)]
pub(super) struct Splitting {
    parents: Slab<Parent>,
}

/// Piece `index` of `whole`; its token is the index of the parent.
// rule: gate.split
pub(super) fn piece(whole: &Request, index: u32, piece_max: u32, parent: u32) -> Request {
    let skip = index * piece_max;
    // Service at other servers is counted once per arrival.
    let (rho, delta) = if index == 0 { (whole.rho, whole.delta) } else { (0, 0) };
    Request {
        offset: whole.offset.saturating_add(u64::from(skip)),
        length: (whole.length - skip).min(piece_max),
        token: parent,
        flags: whole.flags.with(Flags::PIECE),
        rho,
        delta,
        ..*whole
    }
}

/// Maximum length of a piece; a piece is at least one sector.
pub(super) fn at_least_a_sector(max: Bytes) -> u32 {
    u32::try_from(max.0).unwrap_or(u32::MAX).max(512)
}

impl Splitting {
    /// Registers an arrival that is split into `pieces`.
    pub(super) fn open(&mut self, token: u32, offset: u64, pieces: u32) -> u32 {
        self.parents.insert(Parent {
            token,
            offset,
            left: pieces,
            outcome: Outcome::Done,
            dispatched: Instant::ZERO,
            service: Service::NONE,
            reserved: Service::NONE,
        })
    }

    /// Token of the arrival, and the bytes of the arrival before this part.
    pub(super) fn resolve(&self, request: &Request) -> (u32, u32) {
        if !request.flags.contains(Flags::PIECE) {
            return (request.token, 0);
        }
        let parent = &self.parents[request.token];
        (parent.token, (request.offset - parent.offset) as u32)
    }

    /// Completes a part, and the arrival if it was the last. The worst outcome of the parts is that of the arrival.
    #[inline]
    pub(super) fn close(
        &mut self,
        model: &CostModel,
        request: &Request,
        outcome: Outcome,
        dispatched: Instant,
    ) -> Option<Finished> {
        let (token, phase) = (request.token, request.phase);
        let service = if outcome == Outcome::Cancelled { Service::NONE } else { Service::of(request, model) };
        if request.flags.contains(Flags::PIECE) {
            return self.close_piece(request, outcome, dispatched, service);
        }
        Some(Finished { token, outcome, phase, dispatched, service, reserved: service.if_reserved(phase) })
    }

    fn close_piece(
        &mut self,
        piece: &Request,
        outcome: Outcome,
        dispatched: Instant,
        service: Service,
    ) -> Option<Finished> {
        let parent = &mut self.parents[piece.token];
        parent.service.add(service);
        parent.reserved.add(service.if_reserved(piece.phase));
        if outcome != Outcome::Done && parent.outcome != Outcome::Failed {
            parent.outcome = outcome;
        }
        parent.dispatched = parent.dispatched.max(dispatched);
        parent.left -= 1;
        if parent.left > 0 {
            return None;
        }
        let Parent { token, outcome, dispatched, service, reserved, .. } = *self.parents.remove(piece.token);
        Some(Finished { token, outcome, phase: piece.phase, dispatched, service, reserved })
    }
}
