//! What the VMs of a host are due at each price, and how a capacity is divided by that.
//!
//! A price is the rate that a unit of weight gets. At each price a VM is due weight x price, but at least its reservation and at most its
//! limit, and never more than it asks for. Each host adds this up for its VMs at 64 prices that all hosts know, and tells the sums to the
//! others. So all of them find the price at which the sums make the capacity, without knowing each other's VMs.
//!
//! Example: of 2,000 requests per second, host 1 has a VM that reserves 800 and three others have one without a reservation, all of the
//! same weight 100. At a price of 4 per unit of weight they are due 800 and three times 400, which makes 2,000.

use serde::{Deserialize, Serialize};
use sluice_sched::Policy;
use sluice_sched::admission::Capacity;
use sluice_sched::policy::{Limit, Reservation};
use sluice_sched::{Cost, units::Iops};

/// Number of prices.
pub const STEPS: usize = 64;

/// Fractional bits of a price.
const SHIFT: u32 = 24;
/// The ratio of two prices in 1 / 2^32: 10^(8 / 63).
const RATIO: u128 = 5_753_657_266;

/// What a host is due at each price, in raw cost per second. Never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u64>", into = "Vec<u64>")]
pub struct Curve([u64; STEPS]);

/// The prices of a pool: from 10^-7 to 10 times its capacity for a unit of weight, each 1.34 times the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// Raw cost per second.
    capacity: u64,
    /// Bytes per second, if they are stated.
    bytes: Option<u64>,
    /// For a hundredth of a unit of weight, in 1 / 2^24 of a raw cost per second.
    steps: [u64; STEPS],
}

/// What a VM may get and must get, as parts of the pool in raw cost per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In hundredths; 0 for a VM that is served by its reservation only.
    pub weight: u64,
    pub reservation: u64,
    pub limit: u64,
}

/// A capacity that is divided among hosts.
#[derive(Debug, Clone, PartialEq)]
pub struct Division {
    /// Raw cost per second for a unit of weight.
    pub price: f64,
    /// In the order of the curves, in raw cost per second. Together they are at most the capacity, unless reservations exceed it.
    pub parts: Vec<u64>,
}

impl Prices {
    /// The prices of a pool of this capacity.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        let whole = raw(capacity.iops.unwrap_or(Iops::per_second(1))).max(1);
        // The lowest price is one of 10^7 parts of the capacity, for 100 hundredths. 32 more fractional bits keep it exact, and 16 of
        // them are enough for the products, which would exceed 128 bits with the largest rate.
        let mut price = (u128::from(whole) << (SHIFT + 32)) / 1_000_000_000;
        let steps = core::array::from_fn(|_| {
            let step = u64::try_from(price >> 32).unwrap_or(u64::MAX);
            price = ((price >> 16) * RATIO) >> 16;
            step
        });
        Prices { capacity: whole, bytes: capacity.bytes.map(|rate| rate.bytes_per_second().max(1)), steps }
    }

    /// Raw cost per second of the whole pool.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The part of the pool that a number of bytes is, in raw cost; nothing if the bytes that it can transfer are not stated.
    #[must_use]
    pub fn of_bytes(&self, bytes: u64) -> u64 {
        let Some(whole) = self.bytes else { return 0 };
        let part = u128::from(bytes) * u128::from(self.capacity) / u128::from(whole);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The bounds of a VM with this policy. A reservation takes the larger of its parts, in requests and in bytes, as admission counts
    /// it; a limit leaves the smaller one.
    #[must_use]
    pub fn bounds(&self, policy: &Policy) -> Bounds {
        let Reservation { iops, bytes } = policy.reservation;
        let reservation = iops.map_or(0, raw).max(bytes.map_or(0, |rate| self.of_bytes(rate.bytes_per_second())));
        let Limit { iops, bytes } = policy.limit;
        let by_bytes = bytes.filter(|_| self.bytes.is_some()).map(|rate| self.of_bytes(rate.bytes_per_second()));
        let limit = iops.map_or(u64::MAX, raw).min(by_bytes.unwrap_or(u64::MAX)).max(reservation);
        Bounds { weight: policy.effective_weight().map_or(0, |weight| weight.hundredths()), reservation, limit }
    }
}

/// A rate in raw cost per second.
#[must_use]
pub fn raw(rate: Iops) -> u64 {
    let raw = u128::from(rate.milli()) * u128::from(Cost::ONE.raw()) / 1000;
    u64::try_from(raw).unwrap_or(u64::MAX)
}

impl Curve {
    /// Of a host without VMs.
    pub const NONE: Curve = Curve([0; STEPS]);

    /// For tests.
    #[cfg(test)]
    pub(crate) fn from_steps(steps: [u64; STEPS]) -> Self {
        Curve(steps)
    }

    /// Adds a VM that asks for so much raw cost per second.
    pub fn add(&mut self, prices: &Prices, vm: &Bounds, asked: u64) {
        for (due, price) in self.0.iter_mut().zip(prices.steps) {
            let share = (u128::from(vm.weight) * u128::from(price)) >> SHIFT;
            let share = u64::try_from(share).unwrap_or(u64::MAX).clamp(vm.reservation, vm.limit);
            // A VM is never due more than the pool has.
            *due = due.saturating_add(share.min(asked).min(prices.capacity));
        }
    }

    /// What a host may say: nobody is due more than the pool has, nor less at a higher price.
    #[must_use]
    pub fn clamped(mut self, capacity: u64) -> Self {
        let mut least = 0;
        for due in &mut self.0 {
            least = least.max((*due).min(capacity));
            *due = least;
        }
        self
    }
}

impl TryFrom<Vec<u64>> for Curve {
    type Error = &'static str;

    fn try_from(steps: Vec<u64>) -> Result<Self, Self::Error> {
        steps.try_into().map(Curve).map_err(|_| "64 prices are expected")
    }
}

impl From<Curve> for Vec<u64> {
    fn from(curve: Curve) -> Self {
        curve.0.to_vec()
    }
}

/// Divides the capacity at the price at which the curves make it. If they never do, each gets what it asks for; if they always exceed it, its
/// part of that.
#[must_use]
pub fn divide(prices: &Prices, curves: &[Curve]) -> Division {
    let sum = |step: usize| curves.iter().map(|curve| u128::from(curve.0[step])).sum::<u128>();
    let price = |step: u64| step as f64 * 100.0 / f64::from(1_u32 << SHIFT);
    let capacity = u128::from(prices.capacity);
    let above = (0..STEPS).find(|step| sum(*step) >= capacity);
    let (low, high, left, whole) = match above {
        None => (STEPS - 1, STEPS - 1, 0, 1),
        Some(0) => {
            let part = |curve: &Curve| (u128::from(curve.0[0]) * capacity / sum(0)) as u64;
            return Division { price: price(prices.steps[0]), parts: curves.iter().map(part).collect() };
        }
        Some(high) => (high - 1, high, capacity - sum(high - 1), sum(high) - sum(high - 1)),
    };
    let between = |from: u64, to: u64| from + (u128::from(to - from) * left / whole) as u64;
    let price = price(between(prices.steps[low], prices.steps[high]));
    Division { price, parts: curves.iter().map(|curve| between(curve.0[low], curve.0[high])).collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_sched::units::ByteRate;

    use super::*;

    fn prices() -> Prices {
        Prices::new(Capacity { iops: Some(Iops::per_second(2000)), bytes: Some(ByteRate::per_second(200 << 20)) })
    }

    fn requests(number: u64) -> u64 {
        number * u64::from(Cost::ONE.raw())
    }

    fn curve(vms: &[(Policy, u64)]) -> Curve {
        let mut curve = Curve::NONE;
        for (policy, asked) in vms {
            curve.add(&prices(), &prices().bounds(policy), *asked);
        }
        curve
    }

    #[track_caller]
    fn assert_parts(curves: &[Curve], expected: &[u64]) {
        let parts = divide(&prices(), curves).parts;
        for (part, expected) in parts.iter().zip(expected) {
            let off = part.abs_diff(requests(*expected));
            assert!(
                off <= requests(2000) / 500,
                "{:?}",
                parts.iter().map(|part| part / requests(1)).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn the_price_makes_the_capacity() {
        let db = curve(&[(Policy::weighted(100).reserving(800), u64::MAX)]);
        let other = curve(&[(Policy::weighted(100), u64::MAX)]);
        assert_parts(&[db, other, other, other], &[800, 400, 400, 400]);
        let price = divide(&prices(), &[db, other, other, other]).price;
        assert!((price / requests(4) as f64 - 1.0).abs() < 0.02, "{price}");
        // One that asks for little leaves the rest, also of what it reserves.
        let little = curve(&[(Policy::weighted(100).reserving(800), requests(200))]);
        assert_parts(&[little, other, other, other], &[200, 600, 600, 600]);
        // All ask for less than there is.
        assert_parts(&[little, little], &[200, 200]);
        // More is reserved than there is.
        let most = curve(&[(Policy::weighted(100).reserving(1600), u64::MAX)]);
        let parts = divide(&prices(), &[most, most]).parts;
        assert_eq!(parts, [requests(1000), requests(1000)]);
    }

    #[test]
    fn bytes_count_as_their_part_of_the_pool() {
        let mut policy = Policy::weighted(100);
        policy.reservation.bytes = Some(ByteRate::per_second(100 << 20));
        assert_eq!(prices().bounds(&policy).reservation, requests(1000));
        policy.reservation.iops = Some(Iops::per_second(1200));
        assert_eq!(prices().bounds(&policy).reservation, requests(1200));
        policy.limit.bytes = Some(ByteRate::per_second(150 << 20));
        assert_eq!(prices().bounds(&policy).limit, requests(1500));
    }

    proptest! {
        #[test]
        fn no_more_is_divided_than_there_is(weights in prop::collection::vec((1_u32..1_000_000, 0_u64..4000, 0_u64..400), 1..64)) {
            let curves: Vec<Curve> = weights.iter().map(|(weight, asked, reserved)| {
                let policy = Policy::weighted(*weight);
                let policy = if *reserved > 0 { policy.reserving((*reserved).min(1900 / weights.len() as u64).max(1)) } else { policy };
                curve(&[(policy, requests(*asked))])
            }).collect();
            let parts = divide(&prices(), &curves).parts;
            let (sum, asked) = (parts.iter().sum::<u64>(), weights.iter().map(|(_, asked, _)| (*asked).min(2000)).sum::<u64>());
            prop_assert!(sum <= requests(2000));
            // Nothing is left as long as a host asks for it.
            prop_assert!(sum + requests(1) >= requests(asked.min(2000)), "{sum} of {asked}");
        }
    }
}
