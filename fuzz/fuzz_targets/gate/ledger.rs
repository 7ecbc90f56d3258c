//! The state of each arrival: each part is dispatched at most once, each arrival completes exactly once, and the
//! gate's statistics of each VM are right.

use sluice_sched::gate::{Finished, GateStats, Outcome, Part, Service};
use sluice_sched::{Arrival, CostModel, Kind, OwnerId, Phase, Policy, Request, Scope, VolumeId};

/// Maximum number of pieces of an arrival.
pub const PIECES_MAX: u32 = 64;

/// One arrival. Its token is its index in the ledger.
#[derive(Debug, Clone)]
pub struct Entry {
    pub arrival: Arrival,
    pub server: usize,
    /// Index of the home to which it belongs.
    pub home: usize,
    piece_max: u32,
    pieces: u32,
    /// Dispatched pieces, one bit each, and those of them dispatched in the reservation phase.
    sent: u64,
    reserved: u64,
    completed: u32,
    failed: u32,
    cancelled: u32,
    is_finished: bool,
}

/// Expected statistics of a VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub arrived: u64,
    pub pieces: u64,
    pub dispatched: u64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub bytes: u64,
    pub cost: u64,
}

/// A VM at one server.
#[derive(Debug)]
pub struct Home {
    pub owner: OwnerId,
    pub vm: usize,
    pub is_present: bool,
    pub policy: Policy,
    pub volumes: Vec<(VolumeId, Policy)>,
    pub counts: Counts,
}

impl Counts {
    pub fn waiting(&self) -> u64 {
        self.pieces - self.dispatched - self.cancelled
    }

    pub fn in_flight(&self) -> u64 {
        self.dispatched - self.completed - self.failed
    }

    /// Checks S1 for a VM.
    pub fn check(&self, account: &GateStats) {
        let known = Counts {
            arrived: account.outstanding.arrived,
            pieces: u64::from(account.outstanding.waiting) + account.cancelled + account.dispatched.iter().sum::<u64>(),
            dispatched: account.dispatched.iter().sum(),
            completed: account.completed().iter().sum(),
            failed: account.failed,
            cancelled: account.cancelled,
            bytes: account.bytes,
            cost: account.cost,
        };
        assert_eq!(&known, self, "S1: the gate counts otherwise");
        assert_eq!(u64::from(account.outstanding.in_flight), self.in_flight(), "S1: in flight");
        assert_eq!(
            account.waits.iter().map(|waited| waited.requests).sum::<u64>(),
            self.dispatched,
            "S1: what requests waited for"
        );
        assert_eq!(account.queue_time.count(), self.dispatched, "S1: queue times");
        assert_eq!(account.service_time.count(), self.completed + self.failed, "S1: service times");
    }
}

/// All arrivals of a run.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: Vec<Entry>,
    /// Total number of pieces.
    pub pieces: u32,
}

impl Entry {
    fn piece_len(&self, index: u32) -> u32 {
        (self.arrival.length - index * self.piece_max).min(self.piece_max)
    }

    fn is_over(&self) -> bool {
        self.completed + self.failed + self.cancelled == self.pieces
    }

    fn waiting(&self) -> u32 {
        self.pieces - self.sent.count_ones() - self.cancelled
    }

    /// Returns the service of the pieces with these bits.
    fn service(&self, model: &CostModel, pieces: u64) -> Service {
        let (kind, mut sum) = (self.arrival.kind, Service::NONE);
        for index in (0..self.pieces).filter(|index| pieces >> index & 1 == 1) {
            let cost = model.cost(kind, self.piece_len(index));
            let bytes = model.bytes(kind, self.piece_len(index), cost);
            sum = Service { cost: sum.cost.plus(cost), bytes: sum.bytes + bytes };
        }
        sum
    }

    fn is_in(&self, server: usize, scope: Scope) -> bool {
        let Arrival { owner, volume, .. } = self.arrival;
        self.server == server
            && match scope {
                Scope::Owner(of) => of == owner,
                Scope::Volume(of, inner) => of == owner && inner == volume,
            }
    }
}

/// Returns the number of pieces into which the gate splits a request.
pub fn pieces(length: u32, piece_max: u32) -> u32 {
    length.div_ceil(piece_max).max(1)
}

impl Ledger {
    /// Returns the token of the next arrival.
    pub fn next_token(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn entry(&self, token: u32) -> &Entry {
        &self.entries[token as usize]
    }

    /// The gate has accepted an arrival, with the next token.
    pub fn accept(&mut self, arrival: Arrival, server: usize, home: usize, piece_max: u32) -> u32 {
        assert_eq!(arrival.token, self.next_token());
        let pieces = pieces(arrival.length, piece_max);
        let (sent, reserved, completed, failed, cancelled, is_finished) = (0, 0, 0, 0, 0, false);
        let entry = Entry {
            arrival,
            server,
            home,
            piece_max,
            pieces,
            sent,
            reserved,
            completed,
            failed,
            cancelled,
            is_finished,
        };
        self.entries.push(entry);
        self.pieces += pieces;
        pieces
    }

    /// The gate has submitted these parts as one request. Returns their homes.
    pub fn submit(&mut self, server: usize, request: &Request, parts: &[Part]) -> usize {
        let (mut offset, mut home) = (request.offset, None);
        for part in parts {
            let entry = &mut self.entries[part.token as usize];
            let Arrival { owner, volume, kind, .. } = entry.arrival;
            let index = part.skip / entry.piece_max;
            assert!(entry.server == server && !entry.is_finished, "S1: {part:?} of {entry:?} is submitted");
            assert!(
                (owner, volume, kind) == (request.owner, request.volume, request.kind),
                "S1: {request:?}, {entry:?}"
            );
            assert!(part.skip.is_multiple_of(entry.piece_max) && index < entry.pieces, "S1: {part:?} of {entry:?}");
            assert_eq!(part.length, entry.piece_len(index), "S1: {part:?} of {entry:?}");
            assert_eq!(entry.sent & 1 << index, 0, "S1: {part:?} of {entry:?} is submitted twice");
            let begins = entry.arrival.offset.saturating_add(u64::from(part.skip));
            assert_eq!(begins, offset, "{part:?} of {entry:?} lies elsewhere in {request:?}");
            offset = offset.saturating_add(u64::from(part.length));
            entry.sent |= 1 << index;
            entry.reserved |= u64::from(request.phase == Phase::Reservation) << index;
            home = Some(entry.home);
        }
        let length: u64 = parts.iter().map(|part| u64::from(part.length)).sum();
        assert_eq!(length, u64::from(request.length), "S1: {request:?} of {parts:?}");
        home.expect("a submission has a part")
    }

    /// The device has completed a part.
    pub fn complete(&mut self, model: &CostModel, part: &Part, ok: bool, counts: &mut Counts) {
        let entry = &mut self.entries[part.token as usize];
        let kind = entry.arrival.kind;
        if !ok {
            entry.failed += 1;
            counts.failed += 1;
            return;
        }
        entry.completed += 1;
        counts.completed += 1;
        counts.cost += u64::from(model.cost(kind, part.length).raw());
        if matches!(kind, Kind::Read | Kind::Write) {
            counts.bytes += u64::from(part.length);
        }
    }

    /// All queued pieces of `scope` are cancelled. Returns their number.
    pub fn cancel(&mut self, server: usize, scope: Scope) -> u64 {
        let mut cancelled = 0;
        for entry in self.entries.iter_mut().filter(|entry| !entry.is_finished && entry.is_in(server, scope)) {
            let waiting = entry.waiting();
            entry.cancelled += waiting;
            cancelled += u64::from(waiting);
        }
        cancelled
    }

    /// The gate reports the completion of an arrival.
    pub fn finish(&mut self, model: &CostModel, finished: &Finished) {
        let entry = &mut self.entries[finished.token as usize];
        assert!(!entry.is_finished, "S1: finishes twice: {entry:?}");
        assert!(entry.is_over(), "S1: finishes too early: {entry:?}");
        entry.is_finished = true;
        let outcome = match (entry.failed, entry.cancelled) {
            (0, 0) => Outcome::Done,
            (0, _) => Outcome::Cancelled,
            _ => Outcome::Failed,
        };
        assert_eq!(finished.outcome, outcome, "{entry:?}");
        assert_eq!(finished.service, entry.service(model, entry.sent), "what it got: {entry:?}");
        assert_eq!(finished.reserved, entry.service(model, entry.reserved), "of that, reserved: {entry:?}");
    }

    /// Checks that the gate has reported every arrival that completed in the last call.
    pub fn check_finished<'a>(&self, tokens: impl Iterator<Item = &'a u32>) {
        for token in tokens {
            let entry = self.entry(*token);
            assert_eq!(entry.is_over(), entry.is_finished, "S1: over, and not finished: {entry:?}");
        }
    }

    /// Checks that no arrival is left.
    pub fn check_all_finished(&self) {
        let left = self.entries.iter().find(|entry| !entry.is_finished);
        assert!(left.is_none(), "S1: never finishes: {left:?}");
    }
}
