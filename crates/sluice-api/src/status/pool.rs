//! The storage that a device shares with other hosts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::amount;

/// A pool, as this host knows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DevicePool {
    /// The file or block device where the hosts meet.
    pub meeting: String,
    /// Number of this host.
    pub host: u8,
    /// Normalised requests per second that a unit of weight gets; null without fresh views of the other hosts.
    pub price_iops: Option<f64>,
    /// Normalised requests that may be in flight in the whole pool.
    pub window_requests: f64,
    /// The mean time at the device of all hosts, weighted by cost; null if nothing completed.
    pub latency_us: Option<u64>,
    /// Normalised requests per second that all hosts complete; null without fresh views of the other hosts.
    pub iops: Option<f64>,
    /// Normalised requests per second that this host is due; null without fresh views of the other hosts.
    pub part_iops: Option<f64>,
    /// Normalised requests per second that this host has claimed of the pool.
    pub reserved_iops: f64,
    /// Hosts that have been seen, this one included.
    pub hosts: Vec<PoolHost>,
    /// What keeps the hosts from sharing the pool as it is stated, in words.
    pub troubles: Vec<String>,
}

/// A host of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PoolHost {
    pub host: u8,
    /// Time since it last said something new.
    pub age_ms: u64,
    /// Whether it takes part now. Of this host, whether it knows the others.
    pub is_fresh: bool,
    /// Normalised requests per second that it is due; 0 if it is not fresh.
    pub part_iops: f64,
    /// Normalised requests per second that it completes, or completed when it was seen last.
    pub iops: f64,
    /// The mean time of its requests at the device; null if nothing completed.
    pub latency_us: Option<u64>,
}

impl DevicePool {
    /// Whether this host knows what the others do.
    #[must_use]
    pub fn knows_others(&self) -> bool {
        self.hosts.iter().any(|host| host.host == self.host && host.is_fresh)
    }

    /// The other host that uses most of the storage, in words; `None` if no other uses any.
    #[must_use]
    pub fn busiest_in_words(&self) -> Option<String> {
        let (busiest, part) = self.busiest_other()?;
        let latency = amount::time(busiest.latency_us.unwrap_or(0) as f64);
        let (host, iops, part) = (busiest.host, amount::rate(busiest.iops), amount::percent(100.0 * part));
        let own = amount::percent(100.0 * self.part_of_device_time(self.host));
        Some(format!(
            "host {host} uses most among the other hosts: {iops} iops, {latency} each, {part} of the device time of all hosts; this host has {own}"
        ))
    }

    /// The other host with the most device time, and its part of that of all hosts, 0 to 1. Device time is rate times time per request.
    fn busiest_other(&self) -> Option<(&PoolHost, f64)> {
        let others = self.fresh().filter(|host| host.host != self.host && host.device_time() > 0.0);
        let busiest = others.max_by(|one, other| one.device_time().total_cmp(&other.device_time()))?;
        Some((busiest, self.part_of_device_time(busiest.host)))
    }

    fn fresh(&self) -> impl Iterator<Item = &PoolHost> {
        self.hosts.iter().filter(|host| host.is_fresh)
    }

    /// Part of a host of the device time of all, 0 to 1.
    fn part_of_device_time(&self, host: u8) -> f64 {
        let all: f64 = self.fresh().map(PoolHost::device_time).sum();
        let own: f64 = self.fresh().filter(|known| known.host == host).map(PoolHost::device_time).sum();
        if all > 0.0 { own / all } else { 0.0 }
    }
}

impl PoolHost {
    /// Requests that it has at the device on average.
    fn device_time(&self) -> f64 {
        self.iops * self.latency_us.unwrap_or(0) as f64 / 1e6
    }
}
