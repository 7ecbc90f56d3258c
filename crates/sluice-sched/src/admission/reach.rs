//! What the limits of a VM's volumes let pass together, at most.

use crate::policy::{Limit, Policy};
use crate::units::{ByteRate, Iops};

/// The most that volumes with these policies pass together: the sum of their limits. `None` in a currency in which one of them has no
/// limit, neither for all requests nor for reads and for writes both.
///
/// Example: limits of 100 and 200 IOPS let 300 IOPS pass. A VM with these volumes that reserves 500 IOPS never gets more than 300.
#[must_use]
pub fn limits_together<'a>(volumes: impl IntoIterator<Item = &'a Policy>) -> Limit {
    let policies: Vec<&Policy> = volumes.into_iter().collect();
    let sum = |of: fn(&Limit) -> Option<u64>| {
        let each: Option<Vec<u64>> = policies.iter().map(|policy| smaller(policy, of)).collect();
        each.filter(|each| !each.is_empty()).map(|each| each.into_iter().fold(0, u64::saturating_add))
    };
    Limit {
        iops: sum(|limit| limit.iops.map(Iops::milli)).map(Iops::from_milli),
        bytes: sum(|limit| limit.bytes.map(ByteRate::bytes_per_second)).map(ByteRate::per_second),
    }
}

/// The limit of all requests, or the sum of those of reads and of writes, whichever is less.
fn smaller(policy: &Policy, of: impl Fn(&Limit) -> Option<u64>) -> Option<u64> {
    let by_direction =
        of(&policy.read_limit).zip(of(&policy.write_limit)).map(|(read, write)| read.saturating_add(write));
    of(&policy.limit).into_iter().chain(by_direction).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_volumes_add_up_where_each_has_one() {
        let iops = |rate| Limit { iops: Some(Iops::per_second(rate)), bytes: None };
        let halves = Policy { read_limit: iops(30), write_limit: iops(40), ..Policy::default() };
        let reads = Policy { read_limit: iops(30), ..Policy::default() };
        let limited = Policy::default().limited(100);
        assert_eq!(limits_together([&limited, &halves]), iops(170));
        assert_eq!(limits_together([&limited, &Policy { limit: iops(50), ..halves }]), iops(150));
        assert_eq!(limits_together([&limited, &reads]), Limit::default());
    }
}
