//! Who comes, changes and leaves.

use crate::policy::Policy;
use crate::request::{OwnerId, RequestId};
use crate::slots::Fifo;
use crate::time::Instant;

use super::super::netback::credits::Credits;
use super::minimum::Minimum;
use super::{ORDINARY, URGENT, Vif, Wrr};

impl Wrr {
    pub(super) fn add(&mut self, now: Instant, owner: OwnerId, policy: &Policy) {
        if owner.index() >= self.vifs.len() {
            self.vifs.resize_with(owner.index() + 1, || None);
        }
        let vif = Vif {
            fifo: Fifo::default(),
            credits: Credits::new(now, policy.limit.bytes, &self.window),
            minimum: Minimum::new(now, policy.reservation.bytes, self.params.interval),
            weight: self.weight(policy),
            places: Default::default(),
            last_activity: now,
            held: false,
        };
        self.vifs[owner.index()] = Some(vif);
    }

    pub(super) fn set(&mut self, now: Instant, owner: u32, policy: &Policy) {
        let (window, weight) = (self.window, self.weight(policy));
        let vif = self.vif_mut(owner);
        vif.credits.set(now, policy.limit.bytes, &window);
        vif.minimum.set(now, policy.reservation.bytes);
        let changed = std::mem::replace(&mut vif.weight, weight) != weight;
        let listed = vif.places.map(|place| place.listed);
        for round in [URGENT, ORDINARY] {
            if listed[round] && changed {
                self.rounds[round].weights.set(owner, weight, RequestId(0));
                // By a weight that was far less and is no more, a turn would be far too long.
                self.measure(round);
            }
        }
        self.timers.remove(owner);
        self.ready(now, owner);
        self.watch(now, owner);
    }

    pub(super) fn remove(&mut self, owner: OwnerId) {
        self.timers.remove(owner.0);
        self.below.remove(owner.0);
        for round in &mut self.rounds {
            if round.line.front() == Some(&owner.0) {
                round.open = false;
            }
            round.line.retain(|listed| *listed != owner.0);
            round.weights.remove(owner.0);
        }
        self.vifs[owner.index()] = None;
    }
}
