//! A minute of the past of a VM or volume, or a longer interval, to be kept.
//!
//! Intervals are sums, so two of them can be added: a minute in which the daemon was restarted, or the minutes of a quarter of an hour.
//! Times of requests are counted in 16 buckets. Example: of a quarter of an hour, the 99th percentile is the upper end of the bucket in which it
//! is, and at most the largest of its minutes, whose percentiles are more exact.

use sluice_api::list;
use sluice_sched::{Phase, Wait};

use crate::flow::Flow;

/// Buckets of the times of requests, from arrival to completion.
pub const BUCKETS: usize = 16;
/// End of the first bucket, in nanoseconds; each of the next ends at twice the time, and the last has no end.
const FIRST_NANOS: u64 = 1 << 15;

/// An interval of the past.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Interval {
    /// Time that was observed, in nanoseconds.
    pub nanos: u64,
    /// Time in which a promise was broken, in seconds.
    pub broken_seconds: u64,
    /// Requests of guests that succeeded.
    pub requests: u64,
    /// Service in 1/64 of a normalised request.
    pub normalised_64ths: u64,
    /// Bytes read and written; on an uplink those of the wire.
    pub bytes: u64,
    /// Requests of guests that failed.
    pub failed: u64,
    /// Mean number of requests that were taken and not answered.
    pub outstanding: f64,
    /// Percentiles of the times of requests in nanoseconds; 0 without requests.
    pub p50_nanos: u64,
    pub p99_nanos: u64,
    /// Part of the time with requests queued, in percent.
    pub backlogged_percent: u8,
    /// Part of the dispatches that the reservation caused, in percent.
    pub by_reservation_percent: u8,
    /// The main reason for waiting, as in [`Wait::ALL`].
    pub wait: u8,
    /// Whether it is of an uplink.
    pub is_link: bool,
    /// Whether it is of a volume that is all that the VM has on the device.
    pub is_whole_vm: bool,
    /// Number of requests by their time.
    pub latency: [u64; BUCKETS],
}

/// Upper ends of the buckets but the last one, in microseconds.
pub fn bucket_ends_us() -> impl Iterator<Item = f64> {
    (0..BUCKETS as u32 - 1).map(|bucket| (FIRST_NANOS << bucket) as f64 / 1000.0)
}

/// The bucket of a time, by the upper end of its finer bucket.
fn bucket(nanos: u64) -> usize {
    let buckets = (0..BUCKETS - 1).take_while(|bucket| nanos > FIRST_NANOS << bucket);
    buckets.count()
}

impl Interval {
    pub(crate) fn of(flow: &Flow, nanos: u64) -> Interval {
        let percentile = |percent| flow.latency.percentile(percent).unwrap_or(0);
        let mut latency = [0; BUCKETS];
        flow.latency.buckets().for_each(|(upper, count)| latency[bucket(upper)] += count);
        let backlogged = if nanos == 0 { 0.0 } else { flow.backlogged_nanos as f64 / nanos as f64 };
        Interval {
            nanos,
            requests: flow.requests(),
            normalised_64ths: flow.cost >> 10,
            bytes: flow.bytes,
            failed: flow.failed,
            p50_nanos: percentile(50.0),
            p99_nanos: percentile(99.0),
            backlogged_percent: (backlogged.min(1.0) * 100.0).round() as u8,
            by_reservation_percent: (flow.by(Phase::Reservation).unwrap_or(0.0) * 100.0).round() as u8,
            wait: flow.main_wait().unwrap_or_default() as u8,
            is_link: flow.is_link,
            latency,
            ..Interval::default()
        }
    }

    /// Adds another interval.
    pub fn add(&mut self, other: &Interval) {
        let (own, more) = (self.nanos as f64, other.nanos as f64);
        let mean = |one: f64, two: f64, (own, more): (f64, f64)| {
            if own + more > 0.0 { (one * own + two * more) / (own + more) } else { 0.0 }
        };
        let percent = |one: u8, two: u8, parts| mean(one.into(), two.into(), parts).round() as u8;
        let requests = (self.requests as f64, other.requests as f64);
        if other.backlogged_percent > self.backlogged_percent {
            self.wait = other.wait;
        }
        self.outstanding = mean(self.outstanding, other.outstanding, (own, more));
        self.backlogged_percent = percent(self.backlogged_percent, other.backlogged_percent, (own, more));
        self.by_reservation_percent = percent(self.by_reservation_percent, other.by_reservation_percent, requests);
        self.nanos += other.nanos;
        self.broken_seconds += other.broken_seconds;
        self.requests += other.requests;
        self.normalised_64ths += other.normalised_64ths;
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.is_link |= other.is_link;
        self.is_whole_vm |= other.is_whole_vm;
        self.latency.iter_mut().zip(&other.latency).for_each(|(own, more)| *own += more);
        self.p50_nanos = self.percentile(50, self.p50_nanos.max(other.p50_nanos));
        self.p99_nanos = self.percentile(99, self.p99_nanos.max(other.p99_nanos));
    }

    /// The end of the bucket in which a percentile is, at most `max`.
    fn percentile(&self, percent: u64, max: u64) -> u64 {
        let wanted = (self.latency.iter().sum::<u64>() * percent).div_ceil(100);
        let mut seen = 0;
        let within = self.latency.iter().take(BUCKETS - 1).position(|count| {
            seen += count;
            seen >= wanted
        });
        within.map_or(max, |bucket| (FIRST_NANOS << bucket).min(max))
    }

    /// The interval as replies have it; it began at `time`, in seconds since 1970.
    #[must_use]
    pub fn at(&self, time: u64) -> list::Point {
        let seconds = (self.nanos as f64 / 1e9).max(1.0);
        let per_second = |amount: f64| amount / seconds;
        let bytes_per_second = per_second(self.bytes as f64);
        list::Point {
            time,
            iops: per_second(self.requests as f64),
            normalised_iops: per_second(self.normalised_64ths as f64 / 64.0),
            bytes_per_second,
            bits_per_second: self.is_link.then(|| (8.0 * bytes_per_second).round()),
            p50_us: self.p50_nanos as f64 / 1000.0,
            p99_us: self.p99_nanos as f64 / 1000.0,
            failed: per_second(self.failed as f64),
            backlogged_percent: self.backlogged_percent,
            by_reservation_percent: self.by_reservation_percent,
            wait: list::Wait::named(Wait::ALL.get(usize::from(self.wait)).copied().unwrap_or_default().name()),
            outstanding: Some(self.outstanding),
            broken_seconds: Some(self.broken_seconds),
            latency_counts: self.latency.to_vec(),
            ..list::Point::default()
        }
    }

    /// The measure by which one of several intervals is the busiest: normalised requests, or bytes on a link.
    #[must_use]
    pub fn load(&self) -> u64 {
        if self.is_link { self.bytes } else { self.normalised_64ths }
    }
}

/// A minute of a VM or volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Minute {
    pub device: String,
    pub vm: String,
    /// `None`: the VM as a whole, which has several volumes on the device.
    pub volume: Option<String>,
    /// Minutes since 1970.
    pub minute: u64,
    pub interval: Interval,
}

/// The minute that is not over yet.
#[derive(Debug, Default, Clone)]
pub(crate) struct Current {
    /// Minutes since 1970.
    minute: u64,
    nanos: u64,
    /// `None` as long as nothing has happened.
    flow: Option<Box<Flow>>,
    broken_seconds: u64,
    /// Sum over the samples, and their number.
    outstanding: (u64, u64),
}

impl Current {
    /// Adds a second of `minute`. Returns the minute before it, if it is over and something happened in it.
    pub(crate) fn push(
        &mut self,
        minute: u64,
        flow: &Flow,
        outstanding: u32,
        is_broken: bool,
    ) -> Option<(u64, Interval)> {
        let over = if self.minute == minute { None } else { self.take() };
        self.minute = minute;
        self.nanos += flow.nanos;
        self.broken_seconds += u64::from(is_broken);
        self.outstanding = (self.outstanding.0 + u64::from(outstanding), self.outstanding.1 + 1);
        if !flow.is_idle() {
            self.flow.get_or_insert_default().add_with_latency(flow);
        }
        over
    }

    /// Returns the minute, if something happened in it, and begins another.
    pub(crate) fn take(&mut self) -> Option<(u64, Interval)> {
        let Current { minute, nanos, flow, broken_seconds, outstanding } = std::mem::take(self);
        let is_idle = flow.is_none() && broken_seconds == 0 && outstanding.0 == 0;
        let interval = || {
            let outstanding = outstanding.0 as f64 / outstanding.1.max(1) as f64;
            Interval { broken_seconds, outstanding, ..Interval::of(&flow.unwrap_or_default(), nanos) }
        };
        (!is_idle).then(|| (minute, interval()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(requests: u64) -> Flow {
        Flow { nanos: 1_000_000_000, succeeded: [requests, 0, 0, 0, 0], ..Flow::default() }
    }

    #[test]
    fn idle_seconds_count_in_their_minute_also_those_before_the_first_request() {
        let mut current = Current::default();
        let mut over = Vec::new();
        for second in 0..181 {
            let requests = if (90..120).contains(&second) { 60 } else { 0 };
            over.extend(current.push(second / 60, &busy(requests), 0, false));
        }
        let rates: Vec<_> = over.iter().map(|(minute, interval)| (*minute, interval.at(0).iops)).collect();
        assert_eq!(rates, [(1, 30.0)], "minutes without requests are not kept");
    }

    #[test]
    fn sums_of_intervals_have_their_averages_and_percentiles_within_their_minutes() {
        let of = |requests: u64, nanos: u64| {
            let mut latency = [0; BUCKETS];
            latency[bucket(nanos)] = requests;
            let seconds = 60_000_000_000;
            Interval { nanos: seconds, requests, p50_nanos: nanos, p99_nanos: nanos, latency, ..Interval::default() }
        };
        let mut sum = of(600, 1_100_000);
        sum.add(&of(6000, 90_000));
        assert_eq!((sum.at(0).iops, sum.p50_nanos, sum.p99_nanos), (55.0, 131_072, 1_100_000));
        assert_eq!(bucket_ends_us().count(), BUCKETS - 1);
        assert_eq!((bucket(32_768), bucket(32_769), bucket(u64::MAX)), (0, 1, BUCKETS - 1));
    }
}
