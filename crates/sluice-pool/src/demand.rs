//! What the VMs of a host ask for.
//!
//! A VM that waited at the gate for most of the time asks for all that it may get; another for a quarter more than what it sent. What had
//! arrived and waits is no measure: a VM with 16 requests outstanding that gets 300 of 800 per second would ask for 332.

use std::collections::BTreeMap;

use sluice_sched::gate::{Gate, Used};
use sluice_sched::{Instant, OwnerId};

use crate::dues::{Bounds, Curve, Prices};

/// What VMs ask for, as of the end of a period.
#[derive(Debug, Clone)]
pub struct Demand {
    prices: Prices,
    /// When the period began.
    began: Instant,
    vms: BTreeMap<OwnerId, Seen>,
    /// Raw cost per second: what VMs must get of what they ask for.
    floor: u64,
}

/// A VM at the end of a period.
#[derive(Debug, Clone, Copy)]
struct Seen {
    added: Instant,
    is_busy: bool,
    backlogged: u64,
    /// Raw cost, and bytes.
    sent: (u64, u64),
    /// Raw cost per second.
    asked: u64,
}

impl Demand {
    /// The demand at a gate where nobody has asked for anything.
    #[must_use]
    pub fn new(now: Instant, prices: Prices) -> Self {
        Demand { prices, began: now, vms: BTreeMap::new(), floor: 0 }
    }

    /// From now on parts are of another pool.
    pub fn set_prices(&mut self, prices: Prices) {
        self.prices = prices;
    }

    /// Ends a period. Returns what VMs are due.
    pub fn close(&mut self, now: Instant, gate: &mut Gate) -> Curve {
        let (mut curve, mut floor) = (Curve::NONE, 0_u64);
        let before = std::mem::take(&mut self.vms);
        for used in gate.used() {
            let last = before.get(&used.owner).filter(|last| last.added == used.began);
            let seen = self.see(now, &used, last);
            let bounds = self.prices.bounds(used.policy);
            curve.add(&self.prices, &bounds, seen.asked);
            floor = floor.saturating_add(bounds.reservation.min(seen.asked));
            self.vms.insert(used.owner, seen);
        }
        (self.began, self.floor) = (now, floor);
        curve
    }

    fn see(&self, now: Instant, used: &Used<'_>, last: Option<&Seen>) -> Seen {
        let sent = (used.dispatched_cost, used.dispatched_bytes);
        let backlogged = used.outstanding.backlogged_nanos(now);
        let (sent_before, backlogged_before) = last.map_or(((0, 0), 0), |last| (last.sent, last.backlogged));
        let waited = backlogged.saturating_sub(backlogged_before);
        // One that was idle asks since its first request.
        let was_busy = last.is_some_and(|last| last.is_busy);
        let busy_since = used.outstanding.busy_since().filter(|_| !was_busy).unwrap_or(self.began);
        let asked = if waited > now.nanos_since(busy_since.max(self.began)) / 2 {
            u64::MAX
        } else {
            let nanos = now.nanos_since(self.began.max(used.began)).max(1);
            let bytes = self.prices.of_bytes(sent.1.saturating_sub(sent_before.1));
            let sent = bytes.max(sent.0.saturating_sub(sent_before.0));
            let rate = u128::from(sent) * 1_250_000_000 / u128::from(nanos);
            u64::try_from(rate).unwrap_or(u64::MAX)
        };
        let is_busy = used.outstanding.busy_since().is_some();
        Seen { added: used.began, is_busy, backlogged, sent, asked }
    }

    /// What VMs must get now of what they ask for, in raw cost per second. One that has waited since the end of the last period asks for its
    /// whole reservation.
    pub fn floor(&mut self, gate: &mut Gate) -> u64 {
        let mut floor = 0_u64;
        for used in gate.used().filter(|used| used.policy.is_reserved()) {
            let Bounds { reservation, .. } = self.prices.bounds(used.policy);
            let asked = match self.vms.get(&used.owner) {
                _ if used.outstanding.waiting > 0 => u64::MAX,
                Some(seen) => seen.asked,
                None => 0,
            };
            floor = floor.saturating_add(reservation.min(asked));
        }
        self.floor = self.floor.max(floor);
        self.floor
    }
}
