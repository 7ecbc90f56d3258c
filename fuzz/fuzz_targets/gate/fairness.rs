//! Shares by weight: while two VMs have requests queued, their services divided by their weights stay close together.
//!
//! In every interval in which both are backlogged, the difference is at most one request of each, or one batch of
//! each if the scheduler dispatches in batches, plus the idle credit. \[sfq\] Theorem 1; it holds for every device.
//!
//! Service is counted in the scheduler's own units of virtual time, so that its rounding is not taken for an error.

use std::collections::BTreeMap;

use sluice_sched::tag::Spacing;
use sluice_sched::{Cost, OwnerId, Policy, Weight};

/// A VM that is served only by its weight.
#[derive(Debug)]
struct Flow {
    spacing: Spacing,
    /// The largest request that was queued, and the VM's possible idle credit, in units of virtual time.
    largest: u64,
    credit: u64,
    /// The last dispatched request.
    last: u64,
    served: i128,
}

/// The backlogged VMs that are served only by their weights.
#[derive(Debug)]
pub struct Fairness {
    flows: BTreeMap<OwnerId, Flow>,
    /// Service of the last request of a VM that then had none queued: its clock may be ahead by this when it is
    /// backlogged again.
    ahead: BTreeMap<OwnerId, u64>,
    /// Minimum and maximum of the difference of service of two flows since both are backlogged.
    ranges: BTreeMap<(OwnerId, OwnerId), (i128, i128)>,
    /// Number of requests in a batch.
    batch: u64,
    /// Whether each request counts 1.
    by_request: bool,
}

impl Fairness {
    pub fn new(batch: u64, by_request: bool) -> Self {
        let (flows, ahead) = (BTreeMap::new(), BTreeMap::new());
        Fairness { flows, ahead, ranges: BTreeMap::new(), batch, by_request }
    }

    /// A VM becomes backlogged. With `has_credit` it may have an idle credit.
    pub fn start(&mut self, owner: OwnerId, policy: &Policy, has_credit: bool) {
        let weight = policy.effective_weight().unwrap_or(Weight::MIN);
        let spacing = Spacing::of_weight(Some(weight));
        let saved = if has_credit { u64::from(policy.idle_credit) } else { 0 };
        let credit = spacing.of(saved << Cost::SHIFT);
        // Under another policy it is still ahead by its largest request, or behind by its idle credit.
        let (largest, known) = self.flows.get(&owner).map_or((0, 0), |flow| (flow.largest, flow.credit));
        let credit = credit.max(known);
        self.stop(owner);
        let largest = largest.max(self.ahead.get(&owner).copied().unwrap_or(0));
        for (other, flow) in &self.flows {
            let difference = if *other < owner { flow.served } else { -flow.served };
            self.ranges.insert((owner.min(*other), owner.max(*other)), (difference, difference));
        }
        self.flows.insert(owner, Flow { spacing, largest, credit, last: largest, served: 0 });
    }

    /// A VM is not backlogged any more, or is not served only by its weight.
    pub fn stop(&mut self, owner: OwnerId) {
        if let Some(flow) = self.flows.remove(&owner) {
            self.ahead.insert(owner, flow.last);
            self.ranges.retain(|(one, other), _| *one != owner && *other != owner);
        }
    }

    /// The clock of a VM starts `ahead` units of cost before or behind those of the others, under a scheduler that replaces another.
    pub fn resume(&mut self, owner: OwnerId, ahead: u64) {
        if let Some(flow) = self.flows.get_mut(&owner) {
            flow.credit = flow.credit.max(flow.spacing.of(ahead));
        }
    }

    /// A request of a VM is queued.
    pub fn note(&mut self, owner: OwnerId, cost: Cost) {
        let cost = if self.by_request { Cost::ONE } else { cost };
        if let Some(flow) = self.flows.get_mut(&owner) {
            flow.largest = flow.largest.max(flow.spacing.of(u64::from(cost.raw())));
        }
    }

    /// A request of a VM is dispatched. Returns an error for a VM that is too far behind or ahead.
    pub fn serve(&mut self, owner: OwnerId, cost: Cost) -> Result<(), String> {
        let Fairness { flows, ranges, batch, by_request, .. } = self;
        let Some(flow) = flows.get_mut(&owner) else { return Ok(()) };
        let step = flow.spacing.of(u64::from(if *by_request { Cost::ONE } else { cost }.raw()));
        flow.served += i128::from(step);
        flow.last = step;
        for ((one, other), (least, most)) in ranges.iter_mut() {
            if *one != owner && *other != owner {
                continue;
            }
            let (first, second) = (&flows[one], &flows[other]);
            let difference = first.served - second.served;
            (*least, *most) = ((*least).min(difference), (*most).max(difference));
            let of = |flow: &Flow| i128::from(flow.largest) * i128::from(*batch) + i128::from(flow.credit);
            let bound = of(first) + of(second);
            if *most - *least > bound {
                return Err(format!("{one:?} and {other:?} are {} apart, at most {bound}", *most - *least));
            }
        }
        Ok(())
    }
}
