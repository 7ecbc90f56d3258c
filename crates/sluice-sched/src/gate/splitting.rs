//! Requests that are larger than the device takes: pieces go their own ways, the arrival is over with the last of them.

use crate::cost::CostModel;
use crate::gate::{Finished, Outcome, Service};
use crate::request::{Flags, Request};
use crate::time::Instant;
use crate::units::Bytes;

#[derive(Debug, Clone, Copy)]
struct Parent {
    token: u32,
    offset: u64,
    left: u32,
    outcome: Outcome,
    /// The last of its parts that have ended.
    dispatched: Instant,
    /// What its parts that have ended got, and of that for a reservation.
    service: Service,
    reserved: Service,
}

/// The arrivals that have been split.
#[derive(Debug, Default)]
pub(super) struct Splitting {
    parents: Vec<Parent>,
    free: Vec<u32>,
}

/// The piece `index` of `whole`; its token names the parent.
// rule: gate.split
pub(super) fn piece(whole: &Request, index: u32, piece_max: u32, parent: u32) -> Request {
    let skip = index * piece_max;
    // Service at other servers is counted once for the arrival.
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

/// A bound on pieces as a length; no piece is smaller than a sector.
pub(super) fn at_least_a_sector(max: Bytes) -> u32 {
    u32::try_from(max.0).unwrap_or(u32::MAX).max(512)
}

impl Splitting {
    /// Remembers an arrival that becomes `pieces` pieces.
    pub(super) fn open(&mut self, token: u32, offset: u64, pieces: u32) -> u32 {
        let parent = Parent {
            token,
            offset,
            left: pieces,
            outcome: Outcome::Done,
            dispatched: Instant::ZERO,
            service: Service::NONE,
            reserved: Service::NONE,
        };
        match self.free.pop() {
            Some(index) => {
                self.parents[index as usize] = parent;
                index
            }
            None => {
                self.parents.push(parent);
                (self.parents.len() - 1) as u32
            }
        }
    }

    /// The arrival's token, and how many of its bytes lie before this part.
    pub(super) fn resolve(&self, request: &Request) -> (u32, u32) {
        if !request.flags.contains(Flags::PIECE) {
            return (request.token, 0);
        }
        let parent = &self.parents[request.token as usize];
        (parent.token, (request.offset - parent.offset) as u32)
    }

    /// A part is over; the arrival too if it was the last. The worst outcome of its parts is the arrival's.
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
        let parent = &mut self.parents[piece.token as usize];
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
        let Parent { token, outcome, dispatched, service, reserved, .. } = *parent;
        self.free.push(piece.token);
        Some(Finished { token, outcome, phase: piece.phase, dispatched, service, reserved })
    }
}
