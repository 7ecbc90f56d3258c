//! The guarantees and limits of a VM.
//!
//! | field | meaning |
//! |---|---|
//! | reservation | minimum throughput while the VM has requests queued |
//! | limit | maximum throughput, in requests and in bytes; if both are set, both apply |
//! | weight | share of the spare capacity |
//! | burst | number of requests that the limiter passes back to back |
//! | idle_credit | how far the share of an idle VM may lag behind, in requests |
//! | latency | latency target |
//! | class | background work is served after foreground work |
//! | priority_class, priority_level | I/O priority as in Linux: real time, best effort, idle; level 0 to 7 |

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
    /// Share of the spare capacity. `None`: the VM is served by its reservation only.
    pub weight: Option<Weight>,
    /// Burst of the limiter: requests of the reference size, counted in requests and in bytes. `None`: the device's
    /// depth times the cost and the bytes of the largest read or write that is submitted unsplit (256 KiB).
    pub burst: Option<u32>,
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
            weight: Some(Weight::DEFAULT),
            burst: None,
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
    pub const ALL: [Field; 9] = [
        Field::Reservation,
        Field::Limit,
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
            Field::Weight => "weight",
            Field::Burst => "burst",
            Field::IdleCredit => "idle_credit",
            Field::Latency => "latency",
            Field::Class => "class",
            Field::PriorityClass => "priority_class",
            Field::PriorityLevel => "priority_level",
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
    /// Out of range.
    #[error("Idle credit {0} is above 256 requests, at which it would distort the weights; lower it")]
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
        if let (Some(reservation), Some(limit)) = (self.reservation.iops, self.limit.iops)
            && reservation > limit
        {
            let (reservation, limit) = (reservation.to_string(), limit.to_string());
            return Err(PolicyError::ReservationAboveLimit { reservation, limit });
        }
        if let (Some(reservation), Some(limit)) = (self.reservation.bytes, self.limit.bytes)
            && reservation > limit
        {
            let (reservation, limit) = (reservation.to_string(), limit.to_string());
            return Err(PolicyError::ReservationAboveLimit { reservation, limit });
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
        let default = Policy::default();
        let stated = [
            self.is_reserved(),
            self.limit != default.limit,
            self.weight != default.weight,
            self.burst != default.burst,
            self.idle_credit != default.idle_credit,
            self.latency.is_some(),
            self.class != default.class,
            self.priority_class != default.priority_class,
            self.priority_level != default.priority_level,
        ];
        Field::ALL.into_iter().zip(stated).filter_map(|(field, stated)| stated.then_some(field))
    }
}
