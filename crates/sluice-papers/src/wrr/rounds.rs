//! Turns as in the paper: a round visits every NIC with packets, each for a time in proportion to its weight.
//!
//! A turn is worth a quantum in proportion to the weight. The NIC of smallest weight, of those present when the round
//! began, has one packet (or the bytes of one frame). Example: with weights 30 and 1 the turns are 30 frames and 1
//! frame long. So one background NIC of weight 0.01 makes the turns of NICs of weight 100 ten thousand frames long, and
//! other NICs wait for them. That is why it is not the default.
//!
//! A deficit is the rest of a quantum. Below 0 it is what was sent in the urgent class and is subtracted from the next
//! turns, at most one quantum.
//!
//! Bounds: a packet of any size costs constant time. Rounds in which no packet fits are skipped together, in a walk
//! over all NICs of the round. The removal of a NIC also costs such a walk.

use std::collections::VecDeque;

use sluice_sched::request::RequestId;
use sluice_sched::tournament::Tournament;

use super::turns::{ORDINARY, Sent, Turns, URGENT};
use super::{Params, Unit};

/// Unit of quanta and deficits: 2^-40 of a packet or a byte. Divided by the largest weight, a packet is still
/// thousands.
const FRACTION_BITS: u32 = 40;

/// State of a NIC in one of the two rounds.
#[derive(Debug, Clone, Copy, Default)]
struct RoundState {
    listed: bool,
    /// Number of the round in which it last had a turn or was inserted.
    round: u64,
    deficit: i128,
}

#[derive(Debug, Clone, Copy, Default)]
struct Nic {
    /// In hundredths.
    weight: u64,
    states: [RoundState; 2],
}

/// NICs that may send, in the order in which they became able to.
#[derive(Debug, Default)]
struct Round {
    queue: VecDeque<u32>,
    /// Whether the turn of the first NIC has begun.
    open: bool,
    /// Number of rounds so far.
    number: u64,
    /// Quantum per hundredth of a weight.
    per_weight: u64,
    /// All NICs in the queue, by weight.
    weights: Tournament,
}

#[derive(Debug)]
pub(super) struct Rounds {
    unit: Unit,
    frame: u32,
    hold: bool,
    nics: Vec<Nic>,
    rounds: [Round; 2],
}

impl Rounds {
    pub(super) fn new(params: &Params) -> Self {
        let Params { unit, frame, hold, .. } = *params;
        Rounds { unit, frame, hold, nics: Vec::new(), rounds: Default::default() }
    }

    /// A packet, or the bytes of a frame.
    fn one(&self) -> u64 {
        match self.unit {
            Unit::Bytes => u64::from(self.frame) << FRACTION_BITS,
            Unit::Packets => 1 << FRACTION_BITS,
        }
    }

    fn cost(&self, length: u32) -> i128 {
        match self.unit {
            Unit::Bytes => i128::from(length) << FRACTION_BITS,
            Unit::Packets => 1 << FRACTION_BITS,
        }
    }

    /// Sets the quanta from now on, by the smallest weight in the round.
    ///
    /// Rounded up, so that the NIC of smallest weight may send its packet, and once for all: if each were rounded
    /// separately, shares would be wrong by as much in every round.
    fn measure(&mut self, class: usize) {
        let lightest = self.rounds[class].weights.peek().map_or(1, |(weight, _, _)| weight.max(1));
        self.rounds[class].per_weight = self.one().div_ceil(lightest);
    }

    /// Quantum by the current weight: at least 1, below 2^70.
    // rule: wrr.weights-at-turn, wrr.round
    fn quantum(&self, class: usize, owner: u32) -> i128 {
        let weight = self.nics[owner as usize].weight;
        (i128::from(self.rounds[class].per_weight) * i128::from(weight)).max(1)
    }

    fn state(&mut self, class: usize, owner: u32) -> &mut RoundState {
        &mut self.nics[owner as usize].states[class]
    }

    /// Begins the turn of the first NIC, if it has not begun, and a round, if all NICs present have had their turns.
    ///
    /// All turns of a round are measured by one weight. If each were measured by the smallest weight present when it
    /// begins, a NIC of small weight that comes and goes would give long turns to one NIC and short ones to another.
    // rule: wrr.round, wrr.bound
    fn open(&mut self, class: usize, owner: u32) {
        if std::mem::replace(&mut self.rounds[class].open, true) {
            return;
        }
        if self.state(class, owner).round == self.rounds[class].number {
            self.rounds[class].number += 1;
            self.measure(class);
        }
        let (number, quantum) = (self.rounds[class].number, self.quantum(class, owner));
        let state = self.state(class, owner);
        state.round = number;
        state.deficit = state.deficit.saturating_add(quantum);
    }

    fn pass_on(&mut self, class: usize) {
        self.rounds[class].open = false;
        self.rounds[class].queue.rotate_left(1);
    }

    /// Skips rounds after one in which every packet was too large: grants all quanta until the first packet fits.
    // rule: wrr.paper-constant
    fn skip_rounds(&mut self, class: usize, length: &dyn Fn(u32) -> Option<u32>) {
        let queue = std::mem::take(&mut self.rounds[class].queue);
        let missing = |owner: &u32| {
            let missing = self.cost(length(*owner)?) - self.nics[*owner as usize].states[class].deficit;
            let quantum = self.quantum(class, *owner);
            Some((missing.max(0) + quantum - 1) / quantum)
        };
        // The last round follows as usual.
        let rounds = (queue.iter().filter_map(missing).min().unwrap_or(0) - 1).max(0);
        for owner in &queue {
            let more = self.quantum(class, *owner).saturating_mul(rounds);
            let state = self.state(class, *owner);
            state.deficit = state.deficit.saturating_add(more);
        }
        self.rounds[class].queue = queue;
    }

    /// Takes away what a NIC has saved; its debt stays.
    fn forfeit(&mut self, class: usize, owner: u32) {
        let state = self.state(class, owner);
        state.deficit = state.deficit.min(0);
    }
}

impl Turns for Rounds {
    fn add(&mut self, owner: u32, weight: u64) {
        if owner as usize >= self.nics.len() {
            self.nics.resize(owner as usize + 1, Nic::default());
        }
        self.nics[owner as usize] = Nic { weight, ..Nic::default() };
    }

    fn set_weight(&mut self, owner: u32, weight: u64, _head: Option<RequestId>) {
        let changed = std::mem::replace(&mut self.nics[owner as usize].weight, weight) != weight;
        for class in [URGENT, ORDINARY] {
            if changed && self.is_in(class, owner) {
                self.rounds[class].weights.set(owner, weight, RequestId(0));
                // Measured by a former, much smaller weight, a turn would be far too long.
                self.measure(class);
            }
        }
    }

    fn forgive(&mut self, owner: u32, _head: Option<RequestId>) {
        let state = self.state(ORDINARY, owner);
        state.deficit = state.deficit.max(0);
    }

    fn remove(&mut self, owner: u32) {
        for round in &mut self.rounds {
            if round.queue.front() == Some(&owner) {
                round.open = false;
            }
            round.queue.retain(|listed| *listed != owner);
            round.weights.remove(owner);
        }
        self.nics[owner as usize] = Nic::default();
    }

    /// Appends a NIC to the queue: its first turn is in the next round.
    fn join(&mut self, class: usize, owner: u32, _head: RequestId) {
        let round = self.rounds[class].number;
        let Nic { weight, states } = &mut self.nics[owner as usize];
        if !states[class].listed {
            states[class] = RoundState { listed: true, round, deficit: states[class].deficit.min(0) };
            self.rounds[class].queue.push_back(owner);
            self.rounds[class].weights.set(owner, *weight, RequestId(0));
        }
    }

    fn is_in(&self, class: usize, owner: u32) -> bool {
        self.nics[owner as usize].states[class].listed
    }

    fn first(&self, class: usize) -> Option<u32> {
        self.rounds[class].queue.front().copied()
    }

    // rule: wrr.round, wrr.bound
    fn grants(&mut self, class: usize, owner: u32, passed: &mut usize, length: &dyn Fn(u32) -> Option<u32>) -> bool {
        self.open(class, owner);
        let cost = self.cost(length(owner).unwrap_or(0));
        if cost <= self.state(class, owner).deficit {
            return true;
        }
        self.pass_on(class);
        *passed += 1;
        if *passed >= self.rounds[class].queue.len() {
            self.skip_rounds(class, length);
            *passed = 0;
        }
        false
    }

    // rule: wrr.hold
    fn may_hold(&mut self, owner: u32) -> bool {
        self.open(ORDINARY, owner);
        if self.state(ORDINARY, owner).deficit < i128::from(self.one()) {
            self.pass_on(ORDINARY);
            return false;
        }
        true
    }

    // rule: wrr.min-counts
    fn sent(&mut self, class: usize, owner: u32, packet: &Sent) {
        let cost = self.cost(packet.length);
        self.state(class, owner).deficit -= cost;
        if class == URGENT {
            let most = self.quantum(ORDINARY, owner).max(cost);
            let state = self.state(ORDINARY, owner);
            state.deficit = state.deficit.min((state.deficit - cost).max(-most));
        }
    }

    fn head_changed(&mut self, _owner: u32, _head: Option<RequestId>) {}

    // rule: wrr.empty-forfeits
    fn emptied(&mut self, class: usize, owner: u32) {
        if !self.hold {
            self.forfeit(ORDINARY, owner);
            self.leave(class, owner);
        }
    }

    // rule: wrr.skipped
    fn held_back(&mut self, class: usize, owner: u32) {
        self.forfeit(URGENT, owner);
        self.forfeit(ORDINARY, owner);
        self.leave(class, owner);
    }

    /// Removes the first NIC with its turn and its deficit.
    // rule: wrr.empty-forfeits, wrr.inactive
    fn leave(&mut self, class: usize, owner: u32) {
        debug_assert_eq!(self.first(class), Some(owner), "the NIC that leaves is first");
        self.rounds[class].queue.pop_front();
        self.rounds[class].open = false;
        self.rounds[class].weights.remove(owner);
        let state = self.state(class, owner);
        *state = RoundState { deficit: state.deficit.min(0), ..RoundState::default() };
    }

    fn idle(&mut self) {}
}
