//! Addition, change and removal of NICs.

use sluice_sched::policy::Policy;
use sluice_sched::request::OwnerId;
use sluice_sched::request_arena::Fifo;
use sluice_sched::time::Instant;

use super::super::netback::credits::Credits;
use super::minimum::Minimum;
use super::queue::{Vif, Wrr};

impl Wrr {
    pub(super) fn add(&mut self, now: Instant, owner: OwnerId, policy: &Policy) {
        if owner.index() >= self.vifs.len() {
            self.vifs.resize_with(owner.index() + 1, || None);
        }
        let weight = self.weight(policy);
        let vif = Vif {
            fifo: Fifo::default(),
            credits: Credits::new(now, policy.limit.bytes, &self.window),
            minimum: Minimum::new(now, policy.reservation.bytes, self.params.interval),
            weight,
            last_activity: now,
            held: false,
        };
        self.vifs[owner.index()] = Some(vif);
        self.turns.add(owner.0, weight);
    }

    pub(super) fn set(&mut self, now: Instant, owner: u32, policy: &Policy) {
        let (window, weight, head) = (self.window, self.weight(policy), self.head(owner));
        let vif = self.vif_mut(owner);
        vif.credits.set(now, policy.limit.bytes, &window);
        let minimum = vif.minimum.set(now, policy.reservation.bytes);
        if std::mem::replace(&mut vif.weight, weight) != weight {
            self.turns.set_weight(owner, weight, head);
        }
        if minimum {
            self.turns.forgive(owner, head);
        }
        self.timers.remove(owner);
        self.ready(now, owner);
        self.watch(now, owner);
    }

    pub(super) fn remove(&mut self, owner: OwnerId) {
        self.timers.remove(owner.0);
        self.below.remove(owner.0);
        self.turns.remove(owner.0);
        self.vifs[owner.index()] = None;
    }
}
