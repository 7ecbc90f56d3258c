//! The state that a new scheduler takes over from the one before it.
//!
//! When the scheduler of a gate is replaced, or built again with other parameters, VMs have used a part of their bursts, and
//! their reservations may owe them something. A scheduler that started every VM with full limits would let each use its whole burst again at
//! every change. So the gate asks the old scheduler for a [`Standing`] of each VM and volume, and gives it to the new one.
//!
//! The unit is service, not time or a scheduler's own tags: raw cost units ([`Cost`]) and bytes. So any scheduler can read
//! what any other has written, and a rate or a burst may differ between the two.
//!
//! Limits: whatever its form, a limit is a bucket that fills at its rate. The standing has what is left in it. A scheduler takes
//! at most its own burst of that. Example: 300 IOPS and a burst of 65, so 64 requests may be left. 50 requests were sent
//! at once, and the scheduler is replaced 20 ms later: 64 - 50 + 6 = 20 are left, and the new one passes 21 back to back.
//! Had the old one a burst of 10 and the new one of 65, at most 9 would be left, and the other 55 fill at 300 IOPS.
//!
//! A scheduler that does not enforce a limit says nothing of it. The gate then keeps what the last one has said and lets it
//! fill at the rate of the policy (`Left::fill`): a change to a scheduler without limits and back is no way to a new burst. What a VM
//! gets meanwhile does not count, since the operator has chosen that no limit holds then.

use core::time::Duration;

use crate::cost::Cost;
use crate::policy::{Limit, Policy};

/// An amount of service in each currency. A negative amount has the opposite meaning. `None` means that nothing is known, or that
/// there is no rate in this currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Balance {
    /// In raw cost units.
    pub cost: Option<i64>,
    pub bytes: Option<i64>,
}

/// Content of the buckets of a limit.
///
/// The limit passes requests while the content is not negative, so it passes this amount and one more request of any size. A
/// negative content is the amount that passed too early. A scheduler may state more than its burst, for a VM that was idle for
/// longer than the burst takes to fill. The new scheduler takes at most its own burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Bucket of the limit.
    pub limit: Balance,
    /// Bucket of the rate of a burst above the limit ([`TimedBurst`](crate::policy::TimedBurst)).
    pub peak: Balance,
}

/// State of a VM, or of a volume inside it, in relation to its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Buckets of `limit`, `read_limit` and `write_limit`.
    pub limits: [Left; 3],
    /// Service that the reservation owes while requests are queued. It is negative if the VM got service in advance.
    pub owed: Balance,
    /// Distance of its share tag from that of the VM (or the volume of the same VM) that is served next by weight, in raw cost units.
    /// It is negative if this one is behind.
    pub ahead: Option<i64>,
    /// For reads and for writes, of a volume: as `ahead`, among the volumes of the VM, for a limit of the VM that they share.
    pub turns: [Option<i64>; 2],
    /// Balances of the weight floor, of a VM: among the VMs, the same for each of them, and among its volumes. In raw cost units times 10,000,
    /// positive if service by weight is owed.
    pub floors: [Option<i64>; 2],
}

/// The limits of a policy, in the order of [`Standing::limits`].
const LIMITS: [fn(&Policy) -> Limit; 3] =
    [|policy| policy.limit, |policy| policy.read_limit, |policy| policy.write_limit];

/// The rate of a burst above a limit, in the currencies of the limit.
#[must_use]
pub fn peak_of(policy: &Policy, limit: &Limit) -> Limit {
    let rate = policy.timed_burst.map_or(Limit::default(), |burst| burst.rate);
    Limit { iops: rate.iops.filter(|_| limit.iops.is_some()), bytes: rate.bytes.filter(|_| limit.bytes.is_some()) }
}

impl Balance {
    /// A balance of which nothing is known.
    pub const UNKNOWN: Balance = Balance { cost: None, bytes: None };

    /// Returns this balance, completed from `older` where nothing is known.
    fn or(self, older: Balance) -> Balance {
        Balance { cost: self.cost.or(older.cost), bytes: self.bytes.or(older.bytes) }
    }

    /// Adds the service that `rate` grants in `time`, rounded down. Drops currencies without a rate.
    fn fill(self, rate: &Limit, time: Duration) -> Balance {
        let fill = |amount: Option<i64>, per_second: Option<u128>| {
            let granted = per_second?.saturating_mul(time.as_nanos()) / 1_000_000_000;
            amount.map(|amount| amount.saturating_add(i64::try_from(granted).unwrap_or(i64::MAX)))
        };
        let cost = rate.iops.map(|iops| (u128::from(iops.milli()) << Cost::SHIFT) / 1000);
        Balance {
            cost: fill(self.cost, cost),
            bytes: fill(self.bytes, rate.bytes.map(|rate| u128::from(rate.bytes_per_second()))),
        }
    }

    /// Returns the balance with positive amounts set to 0.
    #[must_use]
    pub fn at_most_0(self) -> Balance {
        let cut = |amount: Option<i64>| amount.map(|amount| amount.min(0));
        Balance { cost: cut(self.cost), bytes: cut(self.bytes) }
    }
}

impl Left {
    /// Fills the buckets for `time` at the rates of the policy. Drops those that the policy does not limit. `limits` are in the order
    /// of [`Standing::limits`].
    pub(crate) fn fill(limits: [Left; 3], policy: &Policy, time: Duration) -> [Left; 3] {
        let mut filled = limits;
        for (left, limit) in filled.iter_mut().zip(LIMITS) {
            let limit = limit(policy);
            left.limit = left.limit.fill(&limit, time);
            left.peak = left.peak.fill(&peak_of(policy, &limit), time);
        }
        filled
    }

    /// Returns these buckets, completed from `older` where nothing is known.
    pub(crate) fn or(self, older: Left) -> Left {
        Left { limit: self.limit.or(older.limit), peak: self.peak.or(older.peak) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::TimedBurst;
    use crate::units::{ByteRate, Iops};

    fn both(cost: i64, bytes: i64) -> Balance {
        Balance { cost: Some(cost), bytes: Some(bytes) }
    }

    #[test]
    fn what_is_left_fills_at_the_rates_of_the_policy_and_is_forgotten_without_one() {
        let mut policy = Policy::default().limited(10);
        policy.read_limit.bytes = Some(ByteRate::per_second(4000));
        let rate = Limit { iops: Some(Iops::per_second(20)), bytes: None };
        policy.timed_burst = Some(TimedBurst { rate, length: Duration::from_secs(1) });
        let known = Left { limit: both(-(1 << 16), 7), peak: both(0, 0) };
        let [limit, read, write] = Left::fill([known; 3], &policy, Duration::from_millis(250));
        let only_cost = |cost| Balance { cost: Some(cost), bytes: None };
        assert_eq!((limit.limit, limit.peak), (only_cost((1 << 16) * 3 / 2), only_cost(5 << 16)));
        assert_eq!((read.limit, read.peak), (Balance { cost: None, bytes: Some(1007) }, Balance::UNKNOWN));
        assert_eq!(write, Left::default());
        let [limit, ..] = Left::fill([known; 3], &policy, Duration::MAX);
        assert_eq!(limit.limit.cost, Some(i64::MAX - (1 << 16)), "saturates");
    }
}
