//! The guarantees and limits of a VM.
//!
//! | field | meaning |
//! |---|---|
//! | reservation | minimum throughput while the VM has requests queued |
//! | limit | maximum throughput, in requests and in bytes; if both are set, both apply |
//! | read_limit, write_limit | the same for reads and for everything else; they apply in addition to `limit` |
//! | weight | share of the spare capacity |
//! | burst | number of requests that the limiters pass back to back, or a higher rate for a time |
//! | idle_credit | how far the share of an idle VM may lag behind, in requests |
//! | latency | latency target |
//! | class | background work is served after foreground work |
//! | priority_class, priority_level | I/O priority as in Linux: real time, best effort, idle; level 0 to 7 |

use core::fmt;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{ByteRate, Iops, Weight};

/// Guaranteed minimum. If both rates are set, each is a minimum, and one request may serve both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reservation {
    /// Normalised requests per second.
    pub iops: Option<Iops>,
    /// Bytes per second.
    pub bytes: Option<ByteRate>,
}

/// Maximum. If both rates are set, both apply. `None` is unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limit {
    /// Normalised requests per second.
    pub iops: Option<Iops>,
    /// Bytes per second.
    pub bytes: Option<ByteRate>,
}

impl Limit {
    /// Whether there is one.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.iops.is_some() || self.bytes.is_some()
    }
}

/// A rate above the limits, for a time.
///
/// Unused service of a limit is saved, up to (`rate` - limit) x `length`. So after a pause the VM may go up to
/// `rate` for `length`, and then runs at its limit; unused service at the rate of the limit fills the credit again. In every
/// time T each limit passes at most limit x T plus this credit, and at most `rate` x T, each plus what passes back to back.
///
/// Example: the limit is 100 iops, the burst 500 iops for 10 s. The credit is 4,000 requests: 10 s at 500 iops, of which
/// 1,000 requests belong to the limit. An idle VM has the whole credit again after 4,000 / 100 = 40 s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimedBurst {
    /// The maximum during the burst, in each currency that it is stated in. It applies to each limit in that currency.
    pub rate: Limit,
    /// The longest time at that rate.
    pub length: Duration,
}

/// Latency target at a percentile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// Time within which 99 of 100 requests complete.
    pub p99: Duration,
    /// Whether the target applies to reads only.
    pub reads_only: bool,
}

/// Whether a VM's requests are foreground or background work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The default.
    #[default]
    Foreground,
    /// Its reservation applies unchanged. For the rest it has the smallest weight, 0.01, or is served only while no
    /// foreground VM has requests queued, depending on the scheduler.
    Background,
}

/// I/O priority class, as of a Linux process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum PriorityClass {
    /// Served before all other classes, which may starve.
    RealTime,
    /// The default.
    #[default]
    BestEffort,
    /// Served only while no other class has requests.
    Idle,
}

/// Priority level of a VM without a stated level.
pub const PRIORITY_LEVEL: u8 = 4;
/// Lowest priority level; 0 is the highest.
pub const PRIORITY_LEVEL_MAX: u8 = 7;
/// Largest idle credit: \[mclock\] 4.1 found that larger ones distort the weights.
pub const IDLE_CREDIT_MAX: u32 = 256;
/// Largest burst, in requests.
pub const BURST_MAX: u32 = 65_535;

/// Guarantees and limits of one VM, or of one volume inside it, on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
// rule: mclock.parameters
pub struct Policy {
    pub reservation: Reservation,
    pub limit: Limit,
    /// Maximum of reads; applies in addition to `limit`.
    pub read_limit: Limit,
    /// Maximum of all other requests: writes, zeroes, discards and flushes; applies in addition to `limit`.
    pub write_limit: Limit,
    /// Share of the spare capacity. `None`: the VM is served by its reservation only.
    pub weight: Option<Weight>,
    /// Burst of each limiter: requests of the reference size, counted in requests and in bytes. `None`: the device's
    /// depth times the cost and the bytes of the largest read or write that is submitted unsplit (256 KiB), or 100 ms of the limit if that is
    /// more.
    pub burst: Option<u32>,
    /// A rate above the limits for a time.
    pub timed_burst: Option<TimedBurst>,
    /// Idle credit in normalised requests, at most 256. \[mclock\] 3.1, "Burst Handling".
    pub idle_credit: u32,
    pub latency: Option<LatencyTarget>,
    pub class: Class,
    /// I/O priority class.
    pub priority_class: PriorityClass,
    /// I/O priority level within the class, 0 (highest) to 7.
    pub priority_level: u8,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            reservation: Reservation::default(),
            limit: Limit::default(),
            read_limit: Limit::default(),
            write_limit: Limit::default(),
            weight: Some(Weight::DEFAULT),
            burst: None,
            timed_burst: None,
            idle_credit: 1,
            latency: None,
            class: Class::Foreground,
            priority_class: PriorityClass::BestEffort,
            priority_level: PRIORITY_LEVEL,
        }
    }
}

/// The fields of a policy that a scheduler may enforce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// `reservation`
    Reservation,
    /// `limit`
    Limit,
    /// `read_limit`
    ReadLimit,
    /// `write_limit`
    WriteLimit,
    /// `weight`
    Weight,
    /// `burst`
    Burst,
    /// `idle_credit`
    IdleCredit,
    /// `latency`
    Latency,
    /// `class`
    Class,
    /// `priority_class`
    PriorityClass,
    /// `priority_level`
    PriorityLevel,
}

impl Field {
    pub const ALL: [Field; 11] = [
        Field::Reservation,
        Field::Limit,
        Field::ReadLimit,
        Field::WriteLimit,
        Field::Weight,
        Field::Burst,
        Field::IdleCredit,
        Field::Latency,
        Field::Class,
        Field::PriorityClass,
        Field::PriorityLevel,
    ];

    /// Name in the host file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Field::Reservation => "reservation",
            Field::Limit => "limit",
            Field::ReadLimit => "read_limit",
            Field::WriteLimit => "write_limit",
            Field::Weight => "weight",
            Field::Burst => "burst",
            Field::IdleCredit => "idle_credit",
            Field::Latency => "latency",
            Field::Class => "class",
            Field::PriorityClass => "priority_class",
            Field::PriorityLevel => "priority_level",
        }
    }

    /// Whether two policies differ in the field.
    #[must_use]
    pub fn differs(self, a: &Policy, b: &Policy) -> bool {
        let mut copy = *a;
        self.copy(b, &mut copy);
        copy != *a
    }

    /// Copies the field.
    pub const fn copy(self, from: &Policy, to: &mut Policy) {
        match self {
            Field::Reservation => to.reservation = from.reservation,
            Field::Limit => to.limit = from.limit,
            Field::ReadLimit => to.read_limit = from.read_limit,
            Field::WriteLimit => to.write_limit = from.write_limit,
            Field::Weight => to.weight = from.weight,
            Field::Burst => (to.burst, to.timed_burst) = (from.burst, from.timed_burst),
            Field::IdleCredit => to.idle_credit = from.idle_credit,
            Field::Latency => to.latency = from.latency,
            Field::Class => to.class = from.class,
            Field::PriorityClass => to.priority_class = from.priority_class,
            Field::PriorityLevel => to.priority_level = from.priority_level,
        }
    }
}

/// A policy that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("Policy has neither a reservation nor a weight, so its requests would never be served; add one of them")]
    NeverServed,
    #[error("Reservation {reservation} is above limit {limit}; lower the reservation or raise the limit")]
    ReservationAboveLimit {
        /// As shown.
        reservation: String,
        /// As shown.
        limit: String,
    },
    /// Reads and writes are both limited, and their limits together are less than what is reserved.
    #[error(
        "Reservation {reservation} is above read_limit {read} plus write_limit {write}; lower the reservation or raise one of \
         the limits"
    )]
    ReservationAboveLimits {
        /// As shown.
        reservation: String,
        /// As shown.
        read: String,
        /// As shown.
        write: String,
    },
    /// The burst would not exceed this limit.
    #[error("Burst rate {rate} is not above {} {limit}; raise the rate or lower the limit", .field.name())]
    BurstBelowLimit {
        /// As shown.
        rate: String,
        field: Field,
        /// As shown.
        limit: String,
    },
    /// There is no limit that the burst could exceed.
    #[error("Burst rate {0} needs a limit in the same unit; state such a limit, or remove the burst")]
    BurstWithoutLimit(String),
    /// Out of range.
    #[error("Idle credit {0} is above 256 requests, and would distort the weights; lower it")]
    IdleCredit(u32),
    /// Out of range.
    #[error("Burst {0} must be from 1 to 65535 requests")]
    Burst(u32),
    /// Out of range.
    #[error("Priority level {0} must be from 0, the highest, to 7")]
    PriorityLevel(u8),
}

impl Policy {
    /// A policy with a weight only.
    #[must_use]
    pub fn weighted(weight: u32) -> Self {
        Policy { weight: Some(Weight::new(weight)), ..Policy::default() }
    }

    /// Sets a reservation of `iops` normalised requests per second.
    #[must_use]
    pub fn reserving(mut self, iops: u64) -> Self {
        self.reservation.iops = Some(Iops::per_second(iops));
        self
    }

    /// Sets a limit of `iops` normalised requests per second.
    #[must_use]
    pub fn limited(mut self, iops: u64) -> Self {
        self.limit.iops = Some(Iops::per_second(iops));
        self
    }

    /// Whether the policy has a reservation.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        self.reservation.iops.is_some() || self.reservation.bytes.is_some()
    }

    /// Weight for schedulers without a background queue: the minimum for background work.
    #[must_use]
    pub fn effective_weight(&self) -> Option<Weight> {
        match self.class {
            Class::Foreground => self.weight,
            Class::Background => self.weight.map(|_| Weight::MIN),
        }
    }

    /// Rejects a policy that contradicts itself.
    // rule: mclock.reservation-below-limit
    pub fn check(&self) -> Result<(), PolicyError> {
        if self.weight.is_none() && !self.is_reserved() {
            return Err(PolicyError::NeverServed);
        }
        let Policy { reservation, limit, read_limit, write_limit, timed_burst, .. } = self;
        leaves_reserved(reservation.iops, [limit.iops, read_limit.iops, write_limit.iops], Iops::milli)?;
        let bytes = [limit.bytes, read_limit.bytes, write_limit.bytes];
        leaves_reserved(reservation.bytes, bytes, ByteRate::bytes_per_second)?;
        if let Some(TimedBurst { rate, .. }) = timed_burst {
            exceeds(rate.iops, [limit.iops, read_limit.iops, write_limit.iops])?;
            exceeds(rate.bytes, bytes)?;
        }
        if self.idle_credit > IDLE_CREDIT_MAX {
            return Err(PolicyError::IdleCredit(self.idle_credit));
        }
        if self.priority_level > PRIORITY_LEVEL_MAX {
            return Err(PolicyError::PriorityLevel(self.priority_level));
        }
        match self.burst {
            Some(burst) if burst == 0 || burst > BURST_MAX => Err(PolicyError::Burst(burst)),
            _ => Ok(()),
        }
    }

    /// Fields that differ from the default; a scheduler must enforce them.
    pub fn stated(&self) -> impl Iterator<Item = Field> + use<> {
        let policy = *self;
        Field::ALL.into_iter().filter(move |field| field.differs(&policy, &Policy::default()))
    }
}

/// Checks that the limit, and those of reads and writes together, leave what is reserved. `number` is for sums.
fn leaves_reserved<T: Copy + PartialOrd + fmt::Display>(
    reserved: Option<T>,
    [limit, read, write]: [Option<T>; 3],
    number: impl Fn(T) -> u64,
) -> Result<(), PolicyError> {
    let Some(reserved) = reserved else { return Ok(()) };
    if let Some(limit) = limit.filter(|limit| reserved > *limit) {
        let (reservation, limit) = (reserved.to_string(), limit.to_string());
        return Err(PolicyError::ReservationAboveLimit { reservation, limit });
    }
    match (read, write) {
        (Some(read), Some(write)) if number(reserved) > number(read).saturating_add(number(write)) => {
            let [reservation, read, write] = [reserved, read, write].map(|rate| rate.to_string());
            Err(PolicyError::ReservationAboveLimits { reservation, read, write })
        }
        _ => Ok(()),
    }
}

/// Checks that the rate of a burst is above each limit in its currency, of which there must be one.
fn exceeds<T: Copy + PartialOrd + fmt::Display>(rate: Option<T>, limits: [Option<T>; 3]) -> Result<(), PolicyError> {
    let Some(rate) = rate else { return Ok(()) };
    if limits.iter().all(Option::is_none) {
        return Err(PolicyError::BurstWithoutLimit(rate.to_string()));
    }
    let fields = [Field::Limit, Field::ReadLimit, Field::WriteLimit];
    let mut stated = fields.into_iter().zip(limits).filter_map(|(field, limit)| Some((field, limit?)));
    match stated.find(|(_, limit)| *limit >= rate) {
        Some((field, limit)) => {
            Err(PolicyError::BurstBelowLimit { rate: rate.to_string(), field, limit: limit.to_string() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(iops: u64) -> Limit {
        Limit { iops: Some(Iops::per_second(iops)), bytes: None }
    }

    fn bytes(rate: u64) -> Limit {
        Limit { iops: None, bytes: Some(ByteRate::per_second(rate)) }
    }

    // rule: mclock.reservation-below-limit, mclock.directions
    #[test]
    fn a_reservation_above_what_all_limits_leave_is_rejected() {
        let policy = |read_limit, write_limit| Policy { read_limit, write_limit, ..Policy::default() }.reserving(500);
        assert!(policy(requests(300), requests(200)).check().is_ok());
        let error = policy(requests(300), requests(199)).check().unwrap_err();
        let text = "Reservation 500 iops is above read_limit 300 iops plus write_limit 199 iops; lower the reservation or \
                    raise one of the limits";
        assert_eq!(error.to_string(), text);
        assert!(policy(requests(1), Limit::default()).check().is_ok(), "writes are not limited");
        assert!(policy(requests(1), bytes(1024)).check().is_ok(), "nor are they in requests");
        assert!(policy(requests(300), requests(300)).limited(499).check().is_err());
    }

    // rule: mclock.timed-burst
    #[test]
    fn the_rate_of_a_burst_is_above_every_limit_in_its_unit() {
        let burst = |rate| Policy {
            timed_burst: Some(TimedBurst { rate, length: Duration::from_secs(1) }),
            read_limit: requests(50),
            ..Policy::default().limited(100)
        };
        assert!(burst(requests(101)).check().is_ok());
        let below = burst(requests(100)).check();
        assert!(matches!(below, Err(PolicyError::BurstBelowLimit { field: Field::Limit, .. })), "{below:?}");
        let policy = Policy { limit: Limit::default(), ..burst(requests(50)) };
        let below = policy.check();
        assert!(matches!(below, Err(PolicyError::BurstBelowLimit { field: Field::ReadLimit, .. })), "{below:?}");
        assert!(matches!(burst(bytes(1 << 20)).check(), Err(PolicyError::BurstWithoutLimit(_))));
        assert_eq!(burst(requests(101)).stated().collect::<Vec<_>>(), [Field::Limit, Field::ReadLimit, Field::Burst]);
    }
}
