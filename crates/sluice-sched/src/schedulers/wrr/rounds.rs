//! Turns as the paper has them: a round visits every NIC with packets, each for as long as its weight says.
//!
//! A turn is worth a quantum in proportion to the weight, the lightest NIC of those that were there when the round began
//! having one packet (or one frame's bytes). So one background NIC of weight 0.01 makes the turns of NICs of weight 100
//! ten thousand frames long, and whoever comes waits for them: that is why it is not the default.
//!
//! A deficit is what is left of a quantum, or, below 0, what was sent in the urgent class and is taken from the next
//! turns; that is one quantum at the most.
//!
//! Bounds: a packet costs constant time, however large it is; the rounds in which no packet fits are given together, in a
//! walk over all NICs in the round. A NIC that leaves the gate costs such a walk too.

use std::collections::VecDeque;

use crate::request::RequestId;
use crate::tournament::Tournament;

use super::turns::{ORDINARY, Sent, Turns, URGENT};
use super::{Params, Unit};

/// A quantum and a deficit are in 2^-40 of a packet or a byte: over the greatest weight, a packet is still thousands.
const FRACTION_BITS: u32 = 40;

/// A NIC's place in one of the two rounds.
#[derive(Debug, Clone, Copy, Default)]
struct RoundState {
    listed: bool,
    /// Number of the round in which it last had a turn, or joined.
    round: u64,
    deficit: i128,
}

#[derive(Debug, Clone, Copy, Default)]
struct Nic {
    /// In hundredths.
    weight: u64,
    states: [RoundState; 2],
}

/// Those that may send, in the order in which they became so.
#[derive(Debug, Default)]
struct Round {
    queue: VecDeque<u32>,
    /// The turn of the first has begun.
    open: bool,
    /// How many have begun.
    number: u64,
    /// What a turn is worth for each hundredth of a weight.
    per_weight: u64,
    /// All in the line, by weight.
    weights: Tournament,
}

/// Both classes.
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

    /// Sets what turns are worth from now on, by the lightest in the round.
    // Rounded up, so that the lightest may send its packet, and once for all of them: each rounded by itself, shares would
    // be off by as much in every round, without end.
    fn measure(&mut self, class: usize) {
        let lightest = self.rounds[class].weights.peek().map_or(1, |(weight, _, _)| weight.max(1));
        self.rounds[class].per_weight = self.one().div_ceil(lightest);
    }

    /// What a turn is worth, by the weight that holds now: at least 1, below 2^70.
    // rule: wrr.weights-at-turn, wrr.round
    fn quantum(&self, class: usize, owner: u32) -> i128 {
        let weight = self.nics[owner as usize].weight;
        (i128::from(self.rounds[class].per_weight) * i128::from(weight)).max(1)
    }

    fn state(&mut self, class: usize, owner: u32) -> &mut RoundState {
        &mut self.nics[owner as usize].states[class]
    }

    /// The turn of the first begins, if it has not; and a round, if all who were there have had their turns.
    // All turns of a round are measured by one weight. Would each be measured by the lightest NIC that is there when it
    // begins, a light one that comes and goes would give long turns to one and short ones to another.
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

    /// A whole round went by and everybody's packet was too large: the rounds until the first one fits are given at once.
    // rule: wrr.paper-constant
    fn skip_rounds(&mut self, class: usize, length: &dyn Fn(u32) -> Option<u32>) {
        let queue = std::mem::take(&mut self.rounds[class].queue);
        let missing = |owner: &u32| {
            let missing = self.cost(length(*owner)?) - self.nics[*owner as usize].states[class].deficit;
            let quantum = self.quantum(class, *owner);
            Some((missing.max(0) + quantum - 1) / quantum)
        };
        // The last of them comes by itself.
        let rounds = (queue.iter().filter_map(missing).min().unwrap_or(0) - 1).max(0);
        for owner in &queue {
            let more = self.quantum(class, *owner).saturating_mul(rounds);
            let state = self.state(class, *owner);
            state.deficit = state.deficit.saturating_add(more);
        }
        self.rounds[class].queue = queue;
    }

    /// What a NIC has saved is gone; what it owes stays.
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
                // By a weight that was far less and is no more, a turn would be far too long.
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

    /// At the end of the round: its first turn is in the next one.
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

    /// With its turn and its deficit.
    // rule: wrr.empty-forfeits, wrr.inactive
    fn leave(&mut self, class: usize, owner: u32) {
        debug_assert_eq!(self.first(class), Some(owner), "who leaves is first");
        self.rounds[class].queue.pop_front();
        self.rounds[class].open = false;
        self.rounds[class].weights.remove(owner);
        let state = self.state(class, owner);
        *state = RoundState { deficit: state.deficit.min(0), ..RoundState::default() };
    }

    fn idle(&mut self) {}
}
