//! What a VM is promised and held to.
//!
//! | field | meaning |
//! |---|---|
//! | reservation | what it always gets while it asks for it |
//! | limit | what it never exceeds: requests and bytes, each a limit of its own; both must pass |
//! | weight | its part of what is left over |
//! | burst | how many requests the limiter lets through at once |
//! | idle_credit | how far an idle VM's share may lag behind, in requests |
//! | latency | a target |
//! | class | background work steps aside |
//! | priority_class, priority_level | as a kernel's I/O priorities: real time, best effort, idle; 0 to 7 |

use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{ByteRate, Iops, Weight};

/// A guaranteed minimum; where both are given, each is a minimum of its own, and one request may serve both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reservation {
    /// Normalised requests per second.
    pub iops: Option<Iops>,
    /// Bytes per second.
    pub bytes: Option<ByteRate>,
}

/// A maximum; where both are given, both must pass. `None` is unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limit {
    /// Normalised requests per second.
    pub iops: Option<Iops>,
    /// Bytes per second.
    pub bytes: Option<ByteRate>,
}

/// A latency target at percentiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// 99 of 100 requests within this time.
    pub p99: Duration,
    /// Whether it holds for reads alone.
    pub reads_only: bool,
}

/// Whether work may be put behind everybody else's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Ordinary.
    #[default]
    Foreground,
    /// Gets only what nobody else wants, beyond its reservation.
    Background,
}

/// The class of an I/O priority, as that of a process in Linux.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum PriorityClass {
    /// Before everybody else, whatever becomes of them.
    RealTime,
    /// Ordinary.
    #[default]
    BestEffort,
    /// Only while nobody else asks.
    Idle,
}

/// The level of who states none.
pub const PRIORITY_LEVEL: u8 = 4;
/// The lowest level; 0 is the highest.
pub const PRIORITY_LEVEL_MAX: u8 = 7;
/// The largest idle credit: \[mclock\] 4.1 found larger ones to distort the weights.
pub const IDLE_CREDIT_MAX: u32 = 256;
/// The largest burst, in requests.
pub const BURST_MAX: u32 = 65_535;

/// What one VM, or one volume inside it, is promised and held to on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
// rule: mclock.parameters
pub struct Policy {
    /// Guaranteed minimum.
    pub reservation: Reservation,
    /// Maximum.
    pub limit: Limit,
    /// Share of what is left; `None`: served by its reservation alone.
    pub weight: Option<Weight>,
    /// Burst of the limiter: requests of the reference size, counted in requests and in bytes. `None`: the device's depth
    /// times the largest read or write that goes to the device as one (256 KiB), by its cost and by its bytes.
    pub burst: Option<u32>,
    /// Idle credit in normalised requests, at most 256. \[mclock\] 3.1, "Burst Handling".
    pub idle_credit: u32,
    /// Latency target.
    pub latency: Option<LatencyTarget>,
    /// Foreground or background.
    pub class: Class,
    /// Class of its I/O priority.
    pub priority_class: PriorityClass,
    /// Level in that class, 0 (highest) to 7.
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
    /// Every field.
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

    /// The word in the host file.
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

/// A policy that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Nothing would ever be served.
    #[error("Policy has neither a reservation nor a weight, so its requests would never be served; add one of them")]
    NeverServed,
    /// The minimum exceeds the maximum.
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
    /// A policy of a weight alone.
    #[must_use]
    pub fn weighted(weight: u32) -> Self {
        Policy { weight: Some(Weight::new(weight)), ..Policy::default() }
    }

    /// The same with a reservation of `iops` normalised requests per second.
    #[must_use]
    pub fn reserving(mut self, iops: u64) -> Self {
        self.reservation.iops = Some(Iops::per_second(iops));
        self
    }

    /// The same with a limit of `iops` normalised requests per second.
    #[must_use]
    pub fn limited(mut self, iops: u64) -> Self {
        self.limit.iops = Some(Iops::per_second(iops));
        self
    }

    /// Whether it has any reservation.
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        self.reservation.iops.is_some() || self.reservation.bytes.is_some()
    }

    /// The weight that schedulers without a background queue use: the floor for background work.
    #[must_use]
    pub fn effective_weight(&self) -> Option<Weight> {
        match self.class {
            Class::Foreground => self.weight,
            Class::Background => self.weight.map(|_| Weight::MIN),
        }
    }

    /// Refuses a policy that contradicts itself.
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

    /// The fields that say something other than the default, so that a scheduler can be asked to enforce them.
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
