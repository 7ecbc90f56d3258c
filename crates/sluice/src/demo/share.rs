//! What each VM should get: the arithmetic that the demo's promises are compared with.
//!
//! Idea: water-filling. Raise one level, the service per unit of weight, until all that the device gives is handed out;
//! a VM gets its weight times the level, but never less than its reservation nor more than its limit.
//!
//! Example: 2,000 among a reservation of 800 (weight 100), a weight of 200, and a limit of 600 (weight 100): the level
//! is 4, and they get 800, 800 and 400.

use sluice_sched::{Iops, Policy, Weight};

/// What a VM may claim, in normalised requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Claim {
    /// 0 if it has none.
    pub(super) reservation: f64,
    /// Infinite if it has none.
    pub(super) limit: f64,
    /// Its part of what is left.
    pub(super) weight: f64,
}

impl Claim {
    /// What a policy says of requests.
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

/// Halvings of the interval in which the level lies: more than a number has digits.
const HALVINGS: u32 = 100;

/// Hands out `capacity`. Where limits leave some of it over, nobody gets that.
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
    fn fills_up_between_reservations_and_limits() {
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
    fn leaves_over_what_limits_forbid() {
        let held = [Policy::default().limited(100), Policy::default().limited(200)];
        assert_eq!(shares(2000.0, &held), [100, 200]);
    }
}
