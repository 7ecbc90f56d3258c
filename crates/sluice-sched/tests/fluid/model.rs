//! The fluid model: the service that each VM is due if service is infinitely divisible.
//!
//! Rates are in normalised requests per second. At any time the backlogged VMs share the capacity C by water-filling:
//! VM i gets `clamp(weight_i * level, minimum_i, maximum_i)`. `level` is such that the sum is C, or each VM gets its maximum
//! or its demand. While a VM without a reservation is backlogged, minimums get at most C minus the floor; if their sum is
//! larger, they are reduced in proportion.
//!
//! Example: C = 1000 and VMs with weights 1, 1 and 2, the first with a minimum of 400, the third with a maximum of 350. The
//! level is 250: the VMs get 400, 250 and 350.
//!
//! Over time ([`run`]) the model advances in short slots. A VM with a demand below its allocation has a backlog: arrivals
//! add to it, and service reduces it. Of the unused limit, up to the burst is kept for later slots.

/// Bounds of a VM's service in an interval, in normalised requests.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// 0: served only by its reservation.
    pub weight: f64,
    /// Minimum while it is backlogged.
    pub min: f64,
    /// Maximum: the smaller of its limit and its demand.
    pub max: f64,
    /// Whether its policy has a reservation; those without share the floor.
    pub reserved: bool,
    /// Earlier service above the share of its weight, which is deducted from that share.
    pub debt: f64,
}

/// The rule that determines the service of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// Its weight.
    Share,
    /// Its minimum.
    Minimum,
    /// Its limit or its demand.
    Maximum,
    /// The floor of VMs without a reservation.
    Floor,
    /// A minimum that is reduced, because the minimums and the floor exceed the capacity.
    Squeezed,
}

/// Division of an interval's capacity: the service of each VM, and the rule that determines it.
pub struct Division {
    pub shares: Vec<f64>,
    pub bounds: Vec<Bound>,
    /// Service per weight of the VMs that are served by weight.
    pub level: f64,
    /// Factor by which minimums are reduced; 1 if they fit.
    pub fits: f64,
}

/// Divides the `capacity` of an interval; `floor` is a fraction of it.
///
/// While a VM without a reservation is backlogged, the scheduler serves `floor` by weight for each `1 - floor` that it serves
/// for reservations, exact to one request. A VM that gets more by its reservation than by its weight has the largest share
/// tag, so it gets nothing of the floor. With a floor of 2 % and 98 % reserved, it gets 49 requests between two requests of
/// the weight phase, three times the debt cap. Example: of 1000, 980 are reserved by a VM of weight 1, next to weights 1 and
/// 3 without a reservation: they get 980, 5 and 15.
pub fn fill(capacity: f64, floor: f64, claims: &[Claim]) -> Division {
    let unreserved = || claims.iter().filter(|claim| !claim.reserved && claim.weight > 0.0);
    // What is known to be served without a reservation is served from the floor.
    let known: f64 = unreserved().map(|claim| claim.min.min(claim.max)).sum();
    let free = (floor * capacity).min(unreserved().map(|claim| claim.max).sum()).max(known);
    let minimums: f64 = claims.iter().filter(|claim| claim.reserved).map(|claim| claim.min.min(claim.max)).sum();
    let fits = if minimums > capacity - free { (capacity - free) / minimums } else { 1.0 };
    let least =
        |claim: &Claim| Claim { min: claim.min.min(claim.max) * if claim.reserved { fits } else { 1.0 }, ..*claim };
    let claims: Vec<Claim> = claims.iter().map(least).collect();
    let all: Vec<usize> = (0..claims.len()).collect();
    let mut division = Division { fits, ..fill_some(capacity, &claims, &all, Bound::Share) };
    if fits < 1.0 {
        for (bound, claim) in division.bounds.iter_mut().zip(&claims) {
            *bound = match *bound {
                Bound::Minimum => Bound::Squeezed,
                Bound::Share if !claim.reserved => Bound::Floor,
                bound => bound,
            };
        }
    }
    division
}

/// Divides `capacity` among the claims with the indices `members`; the others get 0.
fn fill_some(capacity: f64, claims: &[Claim], members: &[usize], by_weight: Bound) -> Division {
    let mut shares = vec![0.0; claims.len()];
    let mut bounds = vec![by_weight; claims.len()];
    let min = |index: usize| claims[index].min.min(claims[index].max);
    let reserved: f64 = members.iter().map(|index| min(*index)).sum();
    if reserved >= capacity {
        for index in members {
            shares[*index] = if reserved > 0.0 { min(*index) * capacity / reserved } else { 0.0 };
            bounds[*index] = Bound::Squeezed;
        }
        return Division { shares, bounds, level: 0.0, fits: 1.0 };
    }
    let level = level(capacity, claims, members);
    for &index in members {
        let Claim { weight, max, debt, .. } = claims[index];
        let by_share = if weight > 0.0 { weight * level - debt } else { 0.0 };
        (shares[index], bounds[index]) = match by_share {
            share if share >= max || min(index) >= max => (max, Bound::Maximum),
            share if share <= min(index) => (min(index), Bound::Minimum),
            share => (share, by_weight),
        };
    }
    Division { shares, bounds, level, fits: 1.0 }
}

/// Returns the level at which the members' claims add up to `capacity`; infinite if their sum is smaller.
fn level(capacity: f64, claims: &[Claim], members: &[usize]) -> f64 {
    // Between two neighbouring steps the sum is `fixed + slope * level`.
    let (mut fixed, mut slope) = (0.0, 0.0);
    let mut steps: Vec<(f64, f64, f64)> = Vec::with_capacity(2 * members.len());
    for &index in members {
        let Claim { weight, min, max, debt, .. } = claims[index];
        let min = min.min(max);
        fixed += min;
        if weight > 0.0 && max > min {
            steps.push(((min + debt) / weight, -min - debt, weight));
            steps.push(((max + debt) / weight, max + debt, -weight));
        }
    }
    steps.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    for (at, more, steeper) in steps {
        if slope > 0.0 && fixed + slope * at >= capacity {
            return ((capacity - fixed) / slope).max(0.0);
        }
        if at.is_infinite() {
            break;
        }
        fixed += more;
        slope += steeper;
    }
    // Rounding may leave a slope slightly above 0 where no claim grows any more.
    if slope > 1e-9 { (capacity - fixed) / slope } else { f64::INFINITY }
}

/// Demand of a VM in the fluid model.
#[derive(Debug, Clone, PartialEq)]
pub enum Demand {
    /// Always more than it can get.
    Always,
    /// This amount in each slot, in addition to the backlog of earlier slots.
    Arrivals(Vec<f64>),
}

/// One VM of a phase; rates in normalised requests per second, amounts in normalised requests.
#[derive(Debug, Clone)]
pub struct FluidVm {
    pub weight: f64,
    pub min_rate: f64,
    pub max_rate: f64,
    pub reserved: bool,
    /// Amount that its limit passes back to back after a pause.
    pub burst: f64,
    /// Part of the burst that is available at the start.
    pub tokens: f64,
    /// Backlog at the start, and its maximum: further arrivals are dropped.
    pub backlog: f64,
    pub backlog_max: f64,
    /// Missed part of its minimum at the start.
    pub missed: f64,
    /// Maximum debt for service by its minimum above the share of its weight; more is dropped. `None`: neither debts nor missed
    /// service are counted.
    pub debt_max: Option<f64>,
    pub demand: Demand,
}

/// One short interval: its length, and the device's capacity in it.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub seconds: f64,
    pub capacity: f64,
}

/// Result of the model for one VM.
#[derive(Debug, Clone)]
pub struct Due {
    pub service: f64,
    /// The same by slot.
    pub by_slot: Vec<f64>,
    /// The same by [`Bound`], in the order of the enum.
    pub by_bound: [f64; 5],
    /// Unused part of the burst at the end.
    pub tokens: f64,
}

impl Due {
    /// The rule that determines most of the service.
    pub fn main_bound(&self) -> Bound {
        let bounds = [Bound::Share, Bound::Minimum, Bound::Maximum, Bound::Floor, Bound::Squeezed];
        let most = (0..5).max_by(|a, b| self.by_bound[*a].total_cmp(&self.by_bound[*b]));
        bounds[most.expect("five")]
    }
}

/// Maximum catch-up after the device was slow, in seconds of the minimum.
pub const CATCH_UP_MAX: f64 = 1.0;

/// Runs the model over the slots of a phase. With `debt_max` of `None` each slot is divided separately. Otherwise a VM gets
/// later what it missed of its minimum while the device was slow, and service by its minimum above the share of its weight is
/// a debt of at most `debt_max` requests.
pub fn run(slots: &[Slot], floor: f64, vms: &[FluidVm]) -> Vec<Due> {
    let start = |vm: &FluidVm| Due {
        service: 0.0,
        by_slot: Vec::with_capacity(slots.len()),
        by_bound: [0.0; 5],
        tokens: vm.tokens.min(vm.burst),
    };
    let mut due: Vec<Due> = vms.iter().map(start).collect();
    let mut backlog: Vec<f64> = vms.iter().map(|vm| vm.backlog).collect();
    let mut debts = vec![0.0f64; vms.len()];
    let mut missed: Vec<f64> = vms.iter().map(|vm| vm.debt_max.map_or(0.0, |_| vm.missed)).collect();
    for (number, slot) in slots.iter().enumerate() {
        let mut claims = Vec::with_capacity(vms.len());
        for (index, vm) in vms.iter().enumerate() {
            let asked = match &vm.demand {
                Demand::Always => f64::INFINITY,
                Demand::Arrivals(arrivals) => {
                    backlog[index] += arrivals[number];
                    backlog[index]
                }
            };
            due[index].tokens += vm.max_rate * slot.seconds;
            let max = asked.min(due[index].tokens);
            let (weight, min, debt) = (vm.weight, vm.min_rate * slot.seconds + missed[index], debts[index]);
            claims.push(Claim { weight, min, max, reserved: vm.reserved, debt });
        }
        let Division { shares, bounds, level, fits } = fill(slot.capacity, floor, &claims);
        for (index, share) in shares.iter().enumerate() {
            if let Some(debt_max) = vms[index].debt_max {
                let min = claims[index].min.min(claims[index].max);
                let rest = min - share.min(min * fits);
                missed[index] = rest.clamp(0.0, vms[index].min_rate * CATCH_UP_MAX);
                if level.is_finite() {
                    debts[index] = (debts[index] + share - vms[index].weight * level).clamp(0.0, debt_max);
                }
            }
            due[index].service += share;
            due[index].by_slot.push(*share);
            due[index].by_bound[bounds[index] as usize] += share;
            backlog[index] = (backlog[index] - share).clamp(0.0, vms[index].backlog_max);
            due[index].tokens = (due[index].tokens - share).min(vms[index].burst);
        }
    }
    due
}
