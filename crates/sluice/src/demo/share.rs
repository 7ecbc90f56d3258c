//! The expected share of each VM, with which the demo compares its measurements.
//!
//! The method is water-filling. Raise one level, the service per unit of weight, until the capacity is used up. A VM
//! gets its weight times the level, but at least its reservation and at most its limit.
//!
//! Example: a capacity of 2,000; a VM with a reservation of 800 (weight 100), one with weight 200, and one with a
//! limit of 600 (weight 100). The level is 4, and they get 800, 800 and 400.

use sluice_sched::{Iops, Policy, Weight};

/// Claims of a VM, in normalised requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Claim {
    /// 0 without a reservation.
    pub(super) reservation: f64,
    /// Infinite without a limit.
    pub(super) limit: f64,
    pub(super) weight: f64,
}

impl Claim {
    /// Returns the claims of a policy.
    pub(super) fn of(policy: &Policy) -> Self {
        Claim {
            reservation: policy.reservation.iops.map_or(0.0, Iops::as_f64),
            limit: policy.limit.iops.map_or(f64::INFINITY, Iops::as_f64),
            weight: policy.effective_weight().map_or(0.0, Weight::as_f64),
        }
    }

    fn at_level(&self, level: f64) -> f64 {
        (self.weight * level).min(self.limit).max(self.reservation)
    }
}

/// Number of bisections of the level's interval: more than a float has bits.
const HALVINGS: u32 = 100;

/// Divides `capacity`. Capacity above the sum of the limits is not given to any VM.
pub(super) fn fill(capacity: f64, claims: &[Claim]) -> Vec<f64> {
    let lightest = claims.iter().map(|claim| claim.weight).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, capacity / lightest);
    for _ in 0..HALVINGS {
        let level = (low + high) / 2.0;
        let handed_out: f64 = claims.iter().map(|claim| claim.at_level(level)).sum();
        if handed_out > capacity {
            high = level;
        } else {
            low = level;
        }
    }
    claims.iter().map(|claim| claim.at_level(low)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(capacity: f64, policies: &[Policy]) -> Vec<u64> {
        let claims: Vec<Claim> = policies.iter().map(Claim::of).collect();
        fill(capacity, &claims).into_iter().map(|share| share.round() as u64).collect()
    }

    #[test]
    fn shares_lie_between_reservations_and_limits() {
        let demo = [Policy::default().reserving(800), Policy::weighted(200), Policy::default().limited(600)];
        assert_eq!(shares(2000.0, &demo), [800, 800, 400]);
        assert_eq!(shares(2000.0, &demo[1..]), [1400, 600]);
        // [mclock] 3: the example at two capacities.
        let paper = [
            Policy::weighted(100).reserving(250),
            Policy::weighted(200).reserving(250),
            Policy::weighted(300).limited(1000),
        ];
        assert_eq!(shares(1200.0, &paper), [250, 380, 570]);
        assert_eq!(shares(2400.0, &paper), [467, 933, 1000]);
    }

    #[test]
    fn capacity_above_all_limits_is_not_given() {
        let held = [Policy::default().limited(100), Policy::default().limited(200)];
        assert_eq!(shares(2000.0, &held), [100, 200]);
    }
}
