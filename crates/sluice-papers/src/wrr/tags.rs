//! Turns by start-time tags: one frame of the NIC with the smallest tag.
//!
//! Idea: every NIC has a clock that its frames advance, more slowly the larger its weight. The NIC with the smallest
//! clock is served next, as in start-time fair queueing (see `sfqd`). A turn is one frame for any weights, so a NIC
//! that becomes active waits for one frame of each NIC whose tag equals virtual time, and a background NIC lengthens no
//! turn.
//!
//! Rules: a NIC that becomes active starts at virtual time, or where its last frame ended if that is later. The
//! smallest tag is served, ties by arrival. Virtual time becomes that tag, and the tag advances by length/weight. When
//! nothing is queued or in flight all clocks restart at 0. The urgent class has separate clocks and virtual time. What
//! a NIC sends in it also advances its ordinary tag, up to what its minimum rate grants in one window.
//!
//! Example: weights 300 and 100, frames of one size. Tags of the first: 0, 1, 2, 3, 4, of the second: 0, 3, 6. The
//! order is 1, 2, 1, 1, 1, 2, and so on. A NIC of weight 0.01 next to them changes nothing: its second frame has tag
//! 30,000.
//!
//! Bounds: each call costs O(log NICs). For two NICs with packets, bytes/weight differ in any interval by at most the
//! largest frame/weight of the one plus that of the other.

use sluice_sched::request::RequestId;
use sluice_sched::tag::{ShareTag, Spacing};
use sluice_sched::tournament::Tournament;

use super::turns::{ORDINARY, Sent, Turns, URGENT};
use super::{Params, Unit};

/// Virtual time at which it is rebased. The largest step, 2^32 bytes at weight 0.01, is 1.1 * 10^18, half of it.
const VIRTUAL_MAX: ShareTag = 1 << 61;
/// Length that counts for a packet with unit `packets`.
const PACKET: u32 = 2048;
/// Ordered after every packet with the same tag.
const NO_PACKET: RequestId = RequestId(u64::MAX);

/// One NIC.
#[derive(Debug, Clone, Copy)]
struct Nic {
    spacing: Spacing,
    /// Start tag of its next frame, by class.
    start: [ShareTag; 2],
    /// Fraction that its tags are too small, in 2^-32.
    fraction: [u32; 2],
    listed: [bool; 2],
    /// It is queued without a packet: its turn is held for it.
    empty: bool,
    /// The run that its tags belong to. A run ends when nothing is queued or in flight.
    generation: u32,
}

#[derive(Debug)]
pub(super) struct Tags {
    unit: Unit,
    hold: bool,
    nics: Vec<Option<Nic>>,
    queues: [Tournament; 2],
    virtual_time: [ShareTag; 2],
    generation: u32,
}

impl Tags {
    pub(super) fn new(params: &Params) -> Self {
        let Params { unit, hold, .. } = *params;
        Tags { unit, hold, nics: Vec::new(), queues: Default::default(), virtual_time: [0; 2], generation: 0 }
    }

    fn nic(&self, owner: u32) -> &Nic {
        self.nics[owner as usize].as_ref().expect("the gate adds an owner before it uses it")
    }

    /// A NIC, with its tags of this run.
    fn current(&mut self, owner: u32) -> &mut Nic {
        let generation = self.generation;
        let nic = self.nics[owner as usize].as_mut().expect("the gate adds an owner before it uses it");
        if nic.generation != generation {
            (nic.generation, nic.start) = (generation, [0; 2]);
        }
        nic
    }

    /// Amount that a frame of this length counts: at least 1, so every frame advances a clock.
    fn amount(&self, length: u32) -> u64 {
        match self.unit {
            Unit::Bytes => u64::from(length.max(1)),
            Unit::Packets => u64::from(PACKET),
        }
    }

    /// Updates a NIC in the queues of its classes.
    fn requeue(&mut self, owner: u32, head: Option<RequestId>) {
        let Nic { start, listed, .. } = *self.nic(owner);
        for class in [URGENT, ORDINARY] {
            if listed[class] {
                self.queues[class].set(owner, start[class], head.unwrap_or(NO_PACKET));
            }
        }
        self.current(owner).empty = head.is_none();
    }

    fn rebase(&mut self, class: usize) {
        let by = std::mem::take(&mut self.virtual_time[class]);
        self.nics.iter_mut().flatten().for_each(|nic| nic.start[class] = nic.start[class].saturating_sub(by));
        self.queues[class].lower(by);
    }
}

impl Turns for Tags {
    fn add(&mut self, owner: u32, weight: u64) {
        if owner as usize >= self.nics.len() {
            self.nics.resize(owner as usize + 1, None);
        }
        let (spacing, start, generation) = (Spacing::per_byte_of_weight(weight), self.virtual_time, self.generation);
        self.nics[owner as usize] =
            Some(Nic { spacing, start, fraction: [0; 2], listed: [false; 2], empty: true, generation });
    }

    // rule: wrr.weights-at-turn
    fn set_weight(&mut self, owner: u32, weight: u64, head: Option<RequestId>) {
        let (virtual_time, new) = (self.virtual_time, Spacing::per_byte_of_weight(weight));
        let nic = self.current(owner);
        let old = std::mem::replace(&mut nic.spacing, new);
        for class in [URGENT, ORDINARY] {
            // The distance ahead stays the same number of bytes.
            let ahead = old.convert(nic.start[class].saturating_sub(virtual_time[class]), new);
            nic.start[class] = virtual_time[class] + ahead.min(new.of(u64::from(u32::MAX)));
        }
        self.requeue(owner, head);
    }

    fn forgive(&mut self, owner: u32, head: Option<RequestId>) {
        let (virtual_time, most) = (self.virtual_time[ORDINARY], self.amount(super::FRAME_MAX));
        let nic = self.current(owner);
        nic.start[ORDINARY] = nic.start[ORDINARY].min(virtual_time + nic.spacing.of(most));
        self.requeue(owner, head);
    }

    fn remove(&mut self, owner: u32) {
        self.queues.iter_mut().for_each(|queue| queue.remove(owner));
        self.nics[owner as usize] = None;
    }

    fn join(&mut self, class: usize, owner: u32, head: RequestId) {
        let virtual_time = self.virtual_time[class];
        let nic = self.current(owner);
        if nic.listed[class] && !nic.empty {
            return;
        }
        nic.listed[class] = true;
        // [sfq] eq. (4): S = max(v, F of the flow's previous request).
        nic.start[class] = nic.start[class].max(virtual_time);
        self.requeue(owner, Some(head));
    }

    fn is_in(&self, class: usize, owner: u32) -> bool {
        self.nic(owner).listed[class]
    }

    // rule: wrr.tags
    fn first(&self, class: usize) -> Option<u32> {
        self.queues[class].peek().map(|(_, _, owner)| owner)
    }

    fn grants(&mut self, _: usize, _: u32, _: &mut usize, _: &dyn Fn(u32) -> Option<u32>) -> bool {
        true
    }

    fn may_hold(&mut self, _owner: u32) -> bool {
        true
    }

    // rule: wrr.min-counts
    fn sent(&mut self, class: usize, owner: u32, packet: &Sent) {
        let amount = self.amount(packet.length);
        let shared = self.virtual_time[ORDINARY];
        let nic = self.current(owner);
        let tag = nic.start[class];
        let (step, fraction) = nic.spacing.carry(amount, nic.fraction[class]);
        nic.fraction[class] = fraction;
        // [sfq] eq. (5): F = S + length/weight, from which the next frame starts.
        nic.start[class] = tag.saturating_add(step);
        if class == URGENT {
            // Without a bound the debt of a NIC whose minimum is above its share would grow without end.
            let bound = shared.saturating_add(nic.spacing.of(amount.max(u64::from(packet.allowance))));
            let from = nic.start[ORDINARY].max(shared);
            nic.start[ORDINARY] = from.max(bound.min(from.saturating_add(step)));
        }
        self.virtual_time[class] = tag;
        self.requeue(owner, packet.next);
        if tag > VIRTUAL_MAX {
            self.rebase(class);
        }
    }

    fn head_changed(&mut self, owner: u32, head: Option<RequestId>) {
        self.current(owner);
        self.requeue(owner, head);
    }

    // rule: wrr.hold
    fn emptied(&mut self, _class: usize, owner: u32) {
        self.leave(URGENT, owner);
        if !self.hold {
            self.leave(ORDINARY, owner);
        }
    }

    // rule: wrr.skipped
    fn held_back(&mut self, _class: usize, owner: u32) {
        self.leave(URGENT, owner);
        self.leave(ORDINARY, owner);
    }

    fn leave(&mut self, class: usize, owner: u32) {
        self.queues[class].remove(owner);
        self.current(owner).listed[class] = false;
    }

    fn idle(&mut self) {
        // A turn that is held belongs to this run.
        if self.queues.iter().all(|queue| queue.peek().is_none()) {
            self.virtual_time = [0; 2];
            self.generation = self.generation.wrapping_add(1);
        }
    }
}
