//! Checks that a stated burst leaves a VM what it reserves.
//!
//! A limit with a burst of n passes n requests at the same instant and then one every 1/limit. A device frees its slots
//! one by one or, at worst, all at the same instant, every T = depth x service time. Requests that the limit would pass
//! between two such instants are lost for lack of a free slot, unless the burst makes up for them.
//!
//! Model: the limit passes x = limit x T requests per period, and b = burst - 1 may be made up for. The VM gets x if x
//! is at most b, and burst requests, rounded down, if x is at least burst. In between it accumulates a debt of a part
//! of a request per period, skips a request when the debt exceeds the burst, and loses the remainder when it owes
//! nothing.
//!
//! Example: depth 1, capacity 677 iops, so T = 1.477 ms. With a limit of 593 iops, x is 0.876. A burst of 1 passes one
//! request every second period: 338.5 iops, below a reservation of 565 iops. A burst of 2 gives all 593 iops.
//!
//! The burst counts requests of the reference size, so it counts fewer large ones. The default burst, at least the depth
//! times the largest piece, is never too small.

use core::fmt;
use core::time::Duration;

use crate::cost::Cost;
use crate::policy::{BURST_MAX, Policy, Reservation};
use crate::scheduler::DeviceInfo;
use crate::units::{ByteRate, Bytes, Iops};

use super::{Capacity, Currency, show};

/// Number of periods that are simulated. The loss after more of them is below a thousandth of a request per period, and
/// is counted as lost.
const PERIODS_MAX: u128 = 1024;

/// A stated burst with which a VM cannot get its reservation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct BurstTooSmall {
    /// The stated burst.
    pub burst: u32,
    /// The limit with that burst, by its name: `write_limit of 500 iops`.
    pub limit: String,
    /// Maximum throughput of the VM.
    pub achieved: Reservation,
    /// The reservation, in the same currency.
    pub reserved: Reservation,
    /// Size of its requests.
    pub size: Bytes,
    /// Queue depth of the device.
    pub depth: u32,
    /// Time in which the device completes that many requests.
    pub period: Duration,
    /// The smallest sufficient burst; `None` if there is none.
    pub enough: Option<u32>,
}

impl fmt::Display for BurstTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BurstTooSmall { burst, limit, size, depth, .. } = self;
        let (achieved, reserved) = (show(&self.achieved), show(&self.reserved));
        let micros = self.period.as_nanos().div_ceil(1000);
        write!(
            f,
            "With burst = {burst} the {limit} lets at most {achieved} of {size} requests through, less than \
             the reservation of {reserved}, if the device frees all its slots at the same instant: {depth} every \
             {micros}us"
        )
    }
}

/// Requests of one size.
#[derive(Debug, Clone, Copy)]
struct Piece {
    size: u64,
    /// In 1/65,536.
    cost: u128,
}

impl Piece {
    fn of(info: &DeviceInfo, size: Bytes) -> Self {
        let length = u32::try_from(size.0).unwrap_or(u32::MAX);
        Piece { size: u64::from(length).max(1), cost: u128::from(info.cost.cost_max(length).raw()) }
    }
}

/// One limit, one reservation and requests of one size; amounts per period are in fractions of which `one` make a
/// request.
#[derive(Debug)]
struct Case {
    one: u128,
    /// Amount that the limit passes per period.
    passing: u128,
    /// Amount that each request of the burst after the first adds.
    burst_step: u128,
    /// Amount that the VM needs per period: its reservation, or the limit if that is less.
    needed: u128,
    /// The limit with its name, formatted.
    limit: String,
}

impl Case {
    /// Whether a VM with this burst gets what it needs.
    fn is_enough(&self, burst: u32) -> bool {
        let (served, periods) = self.served(burst);
        served >= self.needed.saturating_mul(periods)
    }

    /// The minimum number of requests in a number of periods.
    fn served(&self, burst: u32) -> (u128, u128) {
        let (one, passing) = (self.one, self.passing);
        let spare = u128::from(burst.saturating_sub(1)) * self.burst_step;
        let (whole, part) = (spare / one * one, spare % one);
        if passing <= spare {
            return (passing, 1);
        }
        if passing >= whole + one {
            return (whole + one, 1);
        }
        // Each period passes `whole` requests or one more, and the remainder is owed or paid back.
        let rest = passing - whole;
        let mut owed = 0;
        for period in 1..=PERIODS_MAX {
            owed = match owed {
                owed if owed <= part => owed + one - rest,
                owed if owed > rest => owed - rest,
                owed => return (passing * period - (rest - owed), period),
            };
        }
        (passing * PERIODS_MAX - (rest - part), PERIODS_MAX)
    }
}

/// Input that all cases of one check share.
struct Context<'a> {
    policy: &'a Policy,
    depth: u128,
    reference: u128,
    capacity: &'a Capacity,
    piece: Piece,
    /// The currency of the reservation.
    currency: Currency,
}

/// `a x b / c`, rounded down.
fn scale(a: u128, b: u64, c: u64) -> u128 {
    let (b, c) = (u128::from(b), u128::from(c).max(1));
    (a / c).saturating_mul(b).saturating_add(a % c * b / c)
}

impl Context<'_> {
    /// The reservation, and the capacity or bandwidth that it is a part of; `None` if one of them is not stated.
    fn reserved(&self) -> Option<(u64, u64)> {
        let (reservation, capacity) = (&self.policy.reservation, self.capacity);
        match self.currency {
            Currency::Requests => Some((reservation.iops?.milli(), capacity.iops?.milli())),
            Currency::Bytes => Some((reservation.bytes?.bytes_per_second(), capacity.bytes?.bytes_per_second())),
        }
    }

    /// The bandwidth, if requests of this size reach it before the capacity: then a request takes size / bandwidth,
    /// otherwise cost / capacity. A reservation in requests counts by cost only.
    fn bandwidth(&self) -> Option<u128> {
        let bandwidth = self.capacity.bytes.filter(|_| self.currency == Currency::Bytes)?;
        let bandwidth = u128::from(bandwidth.bytes_per_second());
        let Some(capacity) = self.capacity.iops else { return Some(bandwidth) };
        let by_size = u128::from(self.piece.size) * (u128::from(capacity.milli()) << Cost::SHIFT);
        (by_size >= self.piece.cost * 1000 * bandwidth).then_some(bandwidth)
    }

    /// Time in which the device completes as many requests as its queue depth.
    fn period(&self) -> Duration {
        let (size, cost) = (u128::from(self.piece.size), self.piece.cost);
        let nanos = match (self.bandwidth(), self.capacity.iops) {
            (Some(bandwidth), _) => self.depth * size * 1_000_000_000 / bandwidth,
            (None, Some(capacity)) => {
                self.depth * cost * 1_000_000_000_000 / (u128::from(capacity.milli()) << Cost::SHIFT)
            }
            (None, None) => 0,
        };
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn cases(&self) -> Option<Vec<Case>> {
        let (amount, figure) = self.reserved()?;
        let (size, cost, depth) = (u128::from(self.piece.size), self.piece.cost, self.depth);
        let bandwidth = self.bandwidth();
        let capacity = self.capacity.iops.map_or(1, |iops| u128::from(iops.milli()));
        let case = |one: u128, passing: u128, burst_step: u128, limit: String| {
            let needed = scale(one * depth, amount, figure).min(passing);
            Case { one, passing, burst_step, needed, limit }
        };
        let requests = |(name, limit): (&str, Iops)| {
            let (milli, shown) = (u128::from(limit.milli()), format!("{name} of {limit}"));
            match bandwidth {
                Some(bandwidth) => {
                    let (one, step) = (1000 * bandwidth * cost, (1000 * bandwidth) << Cost::SHIFT);
                    case(one, (milli * depth * size) << Cost::SHIFT, step, shown)
                }
                None => case(capacity * cost, milli * depth * cost, capacity << Cost::SHIFT, shown),
            }
        };
        let bytes = |(name, limit): (&str, ByteRate)| {
            let (rate, shown) = (u128::from(limit.bytes_per_second()), format!("{name} of {limit}"));
            match bandwidth {
                Some(bandwidth) => case(bandwidth * size, rate * depth * size, self.reference * bandwidth, shown),
                None => {
                    let (one, step) = ((capacity * size) << Cost::SHIFT, (self.reference * capacity) << Cost::SHIFT);
                    case(one, rate * depth * cost * 1000, step, shown)
                }
            }
        };
        // A VM may use its reservation for reads alone, or for writes alone, up to their limit.
        let Policy { limit, read_limit, write_limit, .. } = self.policy;
        let all = [("limit", limit), ("read_limit", read_limit), ("write_limit", write_limit)];
        let by_requests = all.iter().filter_map(|(name, limit)| Some((*name, limit.iops?))).map(requests);
        let by_bytes = all.iter().filter_map(|(name, limit)| Some((*name, limit.bytes?))).map(bytes);
        Some(by_requests.chain(by_bytes).collect())
    }

    fn check(&self) -> Result<(), Box<BurstTooSmall>> {
        let (Some(burst), Some(cases)) = (self.policy.burst, self.cases()) else { return Ok(()) };
        let Some(case) = cases.iter().find(|case| !case.is_enough(burst)) else { return Ok(()) };
        let (served, periods) = case.served(burst);
        let (amount, figure) = self.reserved().expect("there are cases");
        // For the message only: requests per period as a part of the depth, which corresponds to the device's capacity.
        let part = served as f64 / periods as f64 / case.one as f64 / self.depth as f64;
        let achieved = (part * figure as f64).round() as u64;
        let of = |amount| match self.currency {
            Currency::Requests => Reservation { iops: Some(Iops::from_milli(amount)), bytes: None },
            Currency::Bytes => Reservation { iops: None, bytes: Some(ByteRate::per_second(amount)) },
        };
        Err(Box::new(BurstTooSmall {
            burst,
            limit: case.limit.clone(),
            achieved: of(achieved),
            reserved: of(amount),
            size: Bytes(self.piece.size),
            depth: u32::try_from(self.depth).unwrap_or(u32::MAX),
            period: self.period(),
            enough: smallest(|burst| cases.iter().all(|case| case.is_enough(burst))),
        }))
    }
}

/// The smallest sufficient burst. A larger burst never passes less.
fn smallest(is_enough: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (1, BURST_MAX);
    if !is_enough(high) {
        return None;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if is_enough(middle) { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

fn setting<'a>(
    policy: &'a Policy,
    info: &DeviceInfo,
    capacity: &'a Capacity,
    size: Bytes,
    currency: Currency,
) -> Context<'a> {
    let reference = u128::from(info.cost.reference_size().0.max(512));
    let depth = u128::from(info.depth.max(1));
    Context { policy, depth, reference, capacity, piece: Piece::of(info, size), currency }
}

/// Checks that a stated burst passes what is reserved: in requests of the reference size, and in bytes with the largest
/// pieces. Figures that the device does not state are not checked.
// rule: mclock.burst-reservation
pub fn check_burst(policy: &Policy, info: &DeviceInfo, capacity: &Capacity) -> Result<(), Box<BurstTooSmall>> {
    setting(policy, info, capacity, info.cost.reference_size(), Currency::Requests).check()?;
    setting(policy, info, capacity, info.piece_max, Currency::Bytes).check()
}

/// Checks the same for a reservation in requests that is used with the largest requests.
// rule: mclock.burst-reservation
pub fn check_burst_of_large(policy: &Policy, info: &DeviceInfo, capacity: &Capacity) -> Result<(), Box<BurstTooSmall>> {
    setting(policy, info, capacity, info.piece_max, Currency::Requests).check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;
    use crate::policy::Limit;

    fn info(depth: u32) -> DeviceInfo {
        DeviceInfo { depth, ..DeviceInfo::default() }
    }

    fn iops(iops: u64) -> Capacity {
        Capacity { iops: Some(Iops::per_second(iops)), bytes: None }
    }

    fn policy(reservation: u64, limit: u64, burst: u32) -> Policy {
        Policy { burst: Some(burst), ..Policy::default().reserving(reservation).limited(limit) }
    }

    /// Throughput of a VM in thousandths of a request per second, and the sufficient burst.
    fn got(policy: &Policy, depth: u32, capacity: u64) -> Option<(u64, Option<u32>)> {
        let error = check_burst(policy, &info(depth), &iops(capacity)).err()?;
        Some((error.achieved.iops.unwrap().milli(), error.enough))
    }

    // rule: mclock.burst-reservation
    #[test]
    fn a_reservation_that_a_burst_of_one_makes_impossible_is_found() {
        assert_eq!(got(&policy(565, 593, 1), 1, 677), Some((338_500, Some(2))));
        assert_eq!(
            check_burst(&policy(565, 593, 1), &info(1), &iops(677)).unwrap_err().to_string(),
            "With burst = 1 the limit of 593 iops lets at most 338.5 iops of 8KiB requests through, less than the \
             reservation of 565 iops, if the device frees all its slots at the same instant: 1 every 1478us"
        );
        assert_eq!(got(&policy(565, 593, 2), 1, 677), None);
        assert_eq!(got(&policy(565, 1017, 1), 1, 677), None, "a request passes before the slot is free");
        assert_eq!(got(&policy(338, 593, 1), 1, 677), None);
        assert_eq!(got(&Policy::default().reserving(565).limited(593), 1, 677), None, "the default is enough");
    }

    // rule: mclock.burst-reservation
    #[test]
    fn a_burst_that_is_too_small_for_the_limit_of_writes_was_accepted() {
        let limited = |milli: u64| Limit { iops: Some(Iops::from_milli(milli)), bytes: None };
        for is_write in [false, true] {
            let one_way = |limit: Limit| match is_write {
                true => Policy { write_limit: limit, ..policy(565, 1017, 1) },
                false => Policy { read_limit: limit, ..policy(565, 1017, 1) },
            };
            let error = check_burst(&one_way(limited(593_000)), &info(1), &iops(677)).unwrap_err();
            assert_eq!((error.achieved.iops, error.enough), (Some(Iops::from_milli(338_500)), Some(2)));
            let name = if is_write { "write_limit" } else { "read_limit" };
            assert!(error.to_string().starts_with(&format!("With burst = 1 the {name} of 593 iops lets")), "{error}");
            assert_eq!(got(&one_way(limited(677_000)), 1, 677), None);
            let enough = Policy { burst: Some(2), ..one_way(limited(593_000)) };
            assert_eq!(got(&enough, 1, 677), None);
        }
        let mut bytes = Policy { burst: Some(1), ..Policy::default().reserving(500) };
        bytes.write_limit.bytes = Some(ByteRate::per_second(Bytes::mib(100).0));
        assert_eq!(got(&bytes, 32, 1000), Some((31_250, Some(16))));
    }

    #[test]
    fn the_published_formula_gives_the_same() {
        // limit x T at most n - 1: the limit; at least n: n/T; in between ((n - 1) + 1/ceil(1/g))/T, where g is the
        // remainder.
        for (depth, limit, burst, expected) in [
            (4, 700, 4, 700_000),
            (4, 900, 4, 1000 * 3500 / 4),
            (4, 800, 4, 1000 * 3200 / 4),
            (4, 990, 3, 750_000),
            (8, 900, 7, 875_000),
            (8, 900, 8, 1000 * 7200 / 8),
            (8, 930, 8, 1000 * 7333 / 8 + 42),
            (32, 400, 1, 31_250),
        ] {
            let got = got(&policy(limit, limit, burst), depth, 1000).map_or(1000 * limit, |(achieved, _)| achieved);
            assert_eq!(got, expected, "depth {depth}, limit {limit}, burst {burst}");
        }
    }

    /// A limiter that runs for 100,000 periods: what it passes.
    fn run(passing: u128, spare: u128, one: u128) -> f64 {
        let (mut owed, mut served) = (0, 0u64);
        for _ in 0..100_000 {
            while owed <= spare {
                owed += one;
                served += 1;
            }
            owed = owed.saturating_sub(passing);
        }
        served as f64 / 100_000.0
    }

    #[test]
    fn the_computed_throughput_matches_a_limiter() {
        for one in [100u128, 97, 64] {
            for passing in (1..4 * one).step_by(7) {
                for (burst, burst_step) in [(1, one), (2, one), (3, one), (2, one / 2), (4, one / 2), (2, one / 3)] {
                    let case = Case { one, passing, burst_step, needed: 0, limit: String::new() };
                    let (served, periods) = case.served(burst);
                    let computed = served as f64 / periods as f64 / one as f64;
                    let simulated = run(passing, u128::from(burst - 1) * burst_step, one);
                    assert!(
                        (computed - simulated).abs() < 1e-3,
                        "{case:?}, burst {burst}: {computed}, not {simulated}"
                    );
                }
            }
        }
    }

    // rule: mclock.burst-reservation
    #[test]
    fn a_burst_counts_fewer_large_requests() {
        let capacity = iops(677);
        let large = |burst| check_burst_of_large(&policy(565, 593, burst), &info(1), &capacity).err();
        let error = large(2).unwrap();
        assert_eq!((error.size, error.enough), (Bytes::kib(256), Some(3)));
        assert!(error.achieved.iops.unwrap() < Iops::per_second(565), "{error}");
        assert_eq!((large(3), large(1).map(|error| error.enough)), (None, Some(Some(3))));
        let same = DeviceInfo { cost: CostModel::per_request(), ..info(1) };
        assert_eq!(check_burst_of_large(&policy(565, 593, 2), &same, &capacity), Ok(()));
    }

    #[test]
    fn a_burst_in_requests_of_8_kib_starved_a_reservation_of_large_reads() {
        let (mib, mut policy) = (|mib: u64| Some(ByteRate::per_second(Bytes::mib(mib).0)), Policy::default());
        (policy.reservation.bytes, policy.limit.bytes) = (mib(250), mib(300));
        let capacity = Capacity { iops: Some(Iops::per_second(40_000)), bytes: mib(320) };
        assert_eq!(check_burst(&policy, &info(8), &capacity), Ok(()));
        policy.burst = Some(8);
        let error = check_burst(&policy, &info(8), &capacity).unwrap_err();
        assert_eq!((error.achieved.bytes, error.reserved.bytes), (mib(40), mib(250)), "one of eight slots: {error}");
        let enough = error.enough.unwrap();
        assert_eq!(check_burst(&Policy { burst: Some(enough), ..policy }, &info(8), &capacity), Ok(()));
        assert!((6 * 32..=8 * 32).contains(&enough), "{enough}");
        // A disk that is slow to seek: 256 KiB take as long as 1.8 requests, 9 ms each at 200 iops.
        let seeking = Capacity { iops: Some(Iops::per_second(200)), bytes: mib(320) };
        let error = check_burst(&policy, &info(8), &seeking).unwrap_err();
        assert_eq!((error.achieved.bytes, error.period.as_millis()), (mib(40), 72));
    }

    #[test]
    fn a_limit_in_bytes_can_throttle_a_reservation_in_requests() {
        let mut policy = Policy { burst: Some(1), ..Policy::default().reserving(500) };
        policy.limit.bytes = Some(ByteRate::per_second(Bytes::mib(100).0));
        assert_eq!(got(&policy, 32, 1000), Some((31_250, Some(16))));
        // A limit that is below the reservation is not a matter of the burst.
        policy.limit.bytes = Some(ByteRate::per_second(8192 * 31));
        assert_eq!(got(&Policy { burst: Some(2), ..policy }, 32, 1000), None);
    }

    #[test]
    fn the_largest_figures_do_not_overflow() {
        let most = (Iops::from_milli(u64::MAX), ByteRate::per_second(u64::MAX));
        let least = (Iops::from_milli(1), ByteRate::per_second(1));
        let cost = CostModel { reference: Some(Bytes(512)), knee: Bytes(1), ..CostModel::default() };
        for (limit, reserved, device) in [most, least]
            .into_iter()
            .flat_map(|a| [most, least].map(|b| (a, b)))
            .flat_map(|(a, b)| [most, least].map(|c| (a, b, c)))
        {
            for (burst, depth) in [(1, 1), (1, 65_536), (BURST_MAX, 1), (BURST_MAX, 65_536)] {
                let mut policy = Policy { burst: Some(burst), ..Policy::default() };
                (policy.limit.iops, policy.limit.bytes) = (Some(limit.0), Some(limit.1));
                (policy.reservation.iops, policy.reservation.bytes) = (Some(reserved.0), Some(reserved.1));
                let capacity = Capacity { iops: Some(device.0), bytes: Some(device.1) };
                let info = DeviceInfo { depth, cost, ..DeviceInfo::default() };
                let _ = (check_burst(&policy, &info, &capacity), check_burst_of_large(&policy, &info, &capacity));
            }
        }
    }
}
