//! Random policies: ordinary ones, and the ends of each range.

use std::time::Duration;

use sluice_sched::policy::{Class, PriorityClass};
use sluice_sched::{ByteRate, Iops, LatencyTarget, Limit, Policy, Reservation, Weight};

use super::input::Input;

/// Thousandths of a normalised request per second.
const RATES_MILLI: [u64; 12] = [
    100_000,
    20_000,
    400_000,
    1_000_000,
    5_000_000,
    50_000_000,
    2_500,
    1_000,
    1,
    1_000_000_000,
    333_333,
    1_000_000_000_000_000,
];
/// Bytes per second.
const BYTE_RATES: [u64; 10] =
    [1 << 20, 1 << 19, 10 << 20, 100 << 20, 1_000_000, 1 << 30, 65_536, 1024, 1 << 50, u64::MAX];
/// Hundredths.
const WEIGHTS: [u64; 10] = [10_000, 100, 200, 1000, 100_000, 30_000, 1, 100_000_000, 12_345, 50];
const BURSTS: [u32; 8] = [1, 2, 5, 20, 64, 1000, 65_535, 3];
const CREDITS: [u32; 5] = [0, 1, 8, 64, 256];

fn iops(input: &mut Input<'_>) -> Iops {
    Iops::from_milli(input.pick(&RATES_MILLI))
}

fn byte_rate(input: &mut Input<'_>) -> ByteRate {
    ByteRate::per_second(input.pick(&BYTE_RATES))
}

/// Returns a policy. One in 64 may contradict itself, which the gate must reject.
pub fn policy(input: &mut Input<'_>) -> Policy {
    let stated = input.byte();
    let has = |bit: u8| stated & 1 << bit != 0;
    let mut policy = Policy::default();
    if has(0) {
        policy.limit.iops = Some(iops(input));
    }
    if has(1) {
        policy.limit.bytes = Some(byte_rate(input));
    }
    if has(2) {
        policy.reservation.iops = Some(iops(input));
    }
    if has(3) {
        policy.reservation.bytes = Some(byte_rate(input));
    }
    if has(4) {
        policy.weight = Some(Weight::from_hundredths(input.pick(&WEIGHTS)));
    }
    if has(5) {
        policy.burst = Some(input.pick(&BURSTS));
    }
    if has(6) {
        policy.weight = policy.weight.filter(|_| input.one_in(2));
        policy.idle_credit = input.pick(&CREDITS);
    }
    if has(7) {
        flavour(input, &mut policy);
    }
    if policy.check().is_ok() || input.one_in(64) { policy } else { repaired(policy) }
}

/// Sets latency target, class and priorities.
fn flavour(input: &mut Input<'_>, policy: &mut Policy) {
    let millis = [80, 10, 0, 1, 1000, 60, 3_600_000];
    let p99 = match input.byte() {
        255 => Duration::MAX,
        254 => Duration::from_nanos(u64::MAX),
        byte => Duration::from_millis(millis[usize::from(byte) % millis.len()]),
    };
    let flags = input.byte();
    policy.latency = (flags & 1 == 1).then_some(LatencyTarget { p99, reads_only: flags & 2 == 2 });
    policy.class = if flags & 4 == 4 { Class::Background } else { Class::Foreground };
    policy.priority_class = match flags >> 3 & 3 {
        1 => PriorityClass::RealTime,
        2 => PriorityClass::Idle,
        _ => PriorityClass::BestEffort,
    };
    policy.priority_level = flags >> 5;
}

/// Raises the limits to the reservations, and sets a weight where nothing would be served.
fn repaired(policy: Policy) -> Policy {
    let Policy { limit, reservation, .. } = policy;
    let limit = Limit {
        iops: limit.iops.map(|iops| iops.max(reservation.iops.unwrap_or(iops))),
        bytes: limit.bytes.map(|bytes| bytes.max(reservation.bytes.unwrap_or(bytes))),
    };
    let weight = policy.weight.or(Some(Weight::DEFAULT).filter(|_| !policy.is_reserved()));
    Policy { limit, weight, ..policy }
}

/// Returns the policy with other limits of reads and of writes.
pub fn directed(input: &mut Input<'_>, policy: Policy) -> Policy {
    let stated = input.byte();
    let mut limit = |bits: u8| Limit {
        iops: (stated >> bits & 1 == 1).then(|| iops(input)),
        bytes: (stated >> bits & 2 == 2).then(|| byte_rate(input)),
    };
    let (read_limit, write_limit) = (limit(0), limit(2));
    let new = Policy { read_limit, write_limit, ..policy };
    if new.check().is_ok() || stated & 128 == 128 {
        return new;
    }
    // A reservation above both limits together is rejected.
    let weight = policy.weight.or(Some(Weight::DEFAULT));
    Policy { reservation: Reservation { iops: None, bytes: None }, weight, ..new }
}

/// Returns the policy without its rates in requests.
pub fn in_bytes(mut policy: Policy) -> Policy {
    (policy.limit.iops, policy.reservation.iops) = (None, None);
    policy.weight = policy.weight.or(Some(Weight::DEFAULT).filter(|_| !policy.is_reserved()));
    policy
}

/// Returns a policy for a volume of a VM under `outer`. Most reserve at most a quarter of the VM's reservation.
pub fn inner(input: &mut Input<'_>, outer: &Policy) -> Policy {
    if !input.one_in(2) {
        return Policy::default();
    }
    let stated = policy(input);
    if input.one_in(16) {
        return stated;
    }
    let quarter = Reservation {
        iops: outer.reservation.iops.filter(|rate| rate.milli() >= 4).map(|rate| Iops::from_milli(rate.milli() / 4)),
        bytes: outer
            .reservation
            .bytes
            .filter(|rate| rate.bytes_per_second() >= 4096)
            .map(|rate| ByteRate::per_second(rate.bytes_per_second() / 4)),
    };
    let reservation = Reservation {
        iops: quarter.iops.filter(|_| stated.reservation.iops.is_some()),
        bytes: quarter.bytes.filter(|_| stated.reservation.bytes.is_some()),
    };
    repaired(Policy { reservation, ..stated })
}
