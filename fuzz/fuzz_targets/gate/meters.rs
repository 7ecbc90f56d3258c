//! The maximum that a limit allows, and the longest time for which it may delay a request, in integers.
//!
//! Both are leaky buckets, one in requests and one in bytes. The first checks that a limit holds. Its level is the
//! largest excess over rate x time of all windows that end now, and never exceeds burst + one request. The second has
//! no burst: as soon as it is empty, no limit explains a wait.
//!
//! Example: limit 100/s, burst 5, cost 1. Six requests at 0 s raise the level to 6, which is the maximum; an
//! immediate seventh is an error. Without a burst the bucket of six requests is empty at 0.06 s, and the next request
//! must be dispatched by then.

use sluice_sched::standing::Balance;
use sluice_sched::{Cost, Limit};

/// Binary digits after the nanosecond in the instants here.
const SHIFT: u32 = 16;
/// Bursts of more nanoseconds than this, 18 years, are not checked: the scheduler's clock ends after twice as long.
const BURST_MAX: u128 = 1 << 59;
/// Windows of higher rates are not checked: their spacing is a few of the scheduler's units of time.
const MILLI_MAX: u64 = 1_000_000_000_000;
const BYTES_MAX: u64 = 1 << 50;

/// Rate at which a bucket empties: `per_nano` of `unit` parts of a request (or byte) in each nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Leak {
    per_nano: u128,
    unit: u128,
    /// Whether windows are checked.
    is_checked: bool,
}

/// A bucket for one rate.
#[derive(Debug, Clone, Default)]
struct Bucket {
    leak: Option<Leak>,
    level: u128,
    largest: u128,
    at: u64,
    /// Instant at which a limiter without a burst passes the next request, in 1/65,536 ns.
    passes: u128,
}

/// The limits of a VM or a volume.
#[derive(Debug, Clone, Default)]
pub struct Meters {
    requests: Bucket,
    bytes: Bucket,
    /// Burst of a limiter, in raw cost units and in bytes.
    burst: (u64, u64),
    /// Length of the largest request for which credits of several windows may have been saved, in bytes.
    saved: u64,
}

impl Bucket {
    /// Changes the rate. Service that is not paid for keeps its amount.
    fn set(&mut self, now: u64, leak: Option<Leak>) {
        let now = u128::from(now) << SHIFT;
        let owed = self.passes.saturating_sub(now);
        self.passes = match (self.leak, leak) {
            (Some(old), Some(new)) if owed > 0 => {
                // The scheduler's distances are integers, which are too short by some binary digits.
                let served = owed.checked_mul((old.per_nano >> 10) + (old.per_nano >> 25)).filter(|_| old.is_checked);
                served.map_or(u128::MAX >> 1, |served| now + served.div_ceil(new.per_nano >> 10))
            }
            _ => self.passes.min(now),
        };
        self.leak = leak;
    }

    fn restart(&mut self, now: u64) {
        (self.level, self.largest, self.at) = (0, 0, now);
    }

    /// Returns the level after `amount`, and its maximum.
    fn charge(&mut self, now: u64, amount: u64, burst: u64) -> Option<(u128, u128)> {
        let Leak { per_nano, unit, is_checked } = self.leak?;
        let amount = u128::from(amount) * unit;
        // The scheduler's distances are integers, so a rate may be exceeded in its last binary digits.
        let leaked = (per_nano + (per_nano >> 15)).saturating_mul(u128::from(now - self.at));
        self.level = self.level.saturating_sub(leaked);
        self.largest = if self.level == 0 { amount } else { self.largest.max(amount) };
        self.level += amount;
        self.at = now;
        // A sixteenth of a nanosecond for rounding.
        let paid = (amount << SHIFT).div_ceil(per_nano) + (1 << (SHIFT - 4));
        self.passes = self.passes.max(u128::from(now) << SHIFT).saturating_add(paid);
        // The scheduler rounds the burst's distance and each step up to sixteenths of a nanosecond.
        let rounding = per_nano / 8;
        let is_checked = is_checked && u128::from(burst) * unit / per_nano < BURST_MAX;
        is_checked.then(|| (self.level / unit, u128::from(burst) + (self.largest + rounding).div_ceil(unit)))
    }

    /// Continues with what another scheduler has left of the limit; the rest of the burst is used.
    fn resume(&mut self, now: u64, left: Option<i64>, burst: u64) {
        let (Some(Leak { per_nano, unit, .. }), Some(left)) = (self.leak, left) else { return };
        let used = u128::try_from(i128::from(burst) - i128::from(left)).unwrap_or(0).saturating_mul(unit);
        (self.level, self.at) = (used, now);
        // One unit and a nanosecond for rounding.
        let paid = used.saturating_add(unit).saturating_mul(1 << SHIFT).div_ceil(per_nano) + (1 << SHIFT);
        self.passes = self.passes.max((u128::from(now) << SHIFT).saturating_add(paid));
    }

    fn passes(&self) -> u64 {
        u64::try_from(self.passes.div_ceil(1 << SHIFT)).unwrap_or(u64::MAX)
    }
}

impl Meters {
    /// Sets a limit. `burst` is in raw cost units and in bytes. Windows start again if limit or burst have changed.
    pub fn set(&mut self, now: u64, limit: &Limit, burst: (u64, u64)) {
        let of_requests = |milli: u64| Leak {
            per_nano: u128::from(milli) * u128::from(Cost::ONE.raw()),
            unit: 1_000_000_000_000,
            is_checked: milli <= MILLI_MAX,
        };
        let of_bytes = |rate: u64| Leak {
            per_nano: u128::from(rate) << 10,
            unit: 1_000_000_000 << 10,
            is_checked: rate <= BYTES_MAX,
        };
        let requests = limit.iops.map(|iops| of_requests(iops.milli()));
        let bytes = limit.bytes.map(|rate| of_bytes(rate.bytes_per_second()));
        for (bucket, leak) in [(&mut self.requests, requests), (&mut self.bytes, bytes)] {
            if bucket.leak != leak || burst != self.burst {
                bucket.restart(now);
            }
            if bucket.leak != leak {
                bucket.set(now, leak);
            }
        }
        self.burst = burst;
    }

    /// A request is dispatched. Returns an error if it exceeds the limit.
    pub fn charge(&mut self, now: u64, cost: Cost, bytes: u64) -> Result<(), String> {
        let over = |what: &str, level: Option<(u128, u128)>, unit: u128| match level {
            Some((level, most)) if level > most => {
                let show = |amount: u128| amount as f64 / unit as f64;
                Err(format!("{} {what} above rate x time, at most {}", show(level), show(most)))
            }
            _ => Ok(()),
        };
        let requests = self.requests.charge(now, u64::from(cost.raw()), self.burst.0);
        over("requests", requests, u128::from(Cost::ONE.raw()))?;
        let bytes = self.bytes.charge(now, bytes, self.burst.1.saturating_add(self.saved));
        over("bytes", bytes, 1)
    }

    /// The scheduler goes on with what another one has left.
    pub fn resume(&mut self, now: u64, left: &Balance) {
        self.requests.resume(now, left.cost, self.burst.0);
        self.bytes.resume(now, left.bytes, self.burst.1.saturating_add(self.saved));
    }

    /// A request of this length is queued; it may be removed without using the credits saved for it.
    pub fn save(&mut self, length: u64) {
        self.saved = self.saved.max(length);
    }

    /// Returns the instant at which every limiter passes the next request.
    pub fn passes(&self) -> u64 {
        self.requests.passes().max(self.bytes.passes())
    }
}
