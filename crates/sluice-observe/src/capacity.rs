//! An estimate of what a device gives while it is full, beside what is stated of it.

use std::collections::VecDeque;

use sluice_api::status::Verdict;
use sluice_sched::admission::Capacity;

use crate::pool_track::Shared;

/// Part of a second without a free slot from which on it says what the device can give.
const FULL: f64 = 0.9;
/// Seconds of a full device that are kept.
const KEPT: usize = 60;
/// Seconds of a full device that a verdict needs.
const NEEDED: usize = 10;
/// Part of the stated capacity below which the device is too slow.
const TOO_LITTLE: f64 = 0.9;
/// Multiple of the stated capacity above which too little is stated.
const TOO_MUCH: f64 = 1.25;
/// Distance from a threshold at which an earlier verdict ends, as a part of the stated capacity.
const AGAIN: f64 = 0.04;

/// The seconds in which a device was full.
#[derive(Debug, Clone, Default)]
pub struct Capacities {
    /// Normalised requests per second, and bytes per second; the newest last.
    full: VecDeque<(f64, f64)>,
    verdict: Option<Verdict>,
}

impl Capacities {
    /// Adds a second in which no slot was free for `full` of the time, and the device completed `iops` normalised requests
    /// and `bytes` per second.
    pub fn push(&mut self, full: f64, iops: f64, bytes: f64) {
        if full < FULL {
            return;
        }
        if self.full.len() == KEPT {
            self.full.pop_front();
        }
        self.full.push_back((iops, bytes));
    }

    /// Adds a second of storage that several hosts use. It counts if this host knows what all of them complete, and no slot of this host
    /// was free, or the hosts have found together that the storage gives less than it should.
    pub(crate) fn push_shared(&mut self, full: f64, shared: &Shared<'_>) {
        if let Some(iops) = shared.iops() {
            self.push(if shared.gives_less() { 1.0 } else { full }, iops, 0.0);
        }
    }

    /// Forgets what was seen, because the device, its depth or its stated capacity has changed.
    pub fn clear(&mut self) {
        *self = Capacities::default();
    }

    /// Median of what it gave in normalised requests per second while it was full; `None` if that was for less than 10 s.
    #[must_use]
    pub fn iops(&self) -> Option<f64> {
        self.median(|(iops, _)| *iops)
    }

    /// Median of what it gave in bytes per second while it was full.
    #[must_use]
    pub fn bytes(&self) -> Option<f64> {
        self.median(|(_, bytes)| *bytes)
    }

    fn median(&self, of: impl Fn(&(f64, f64)) -> f64) -> Option<f64> {
        if self.full.len() < NEEDED {
            return None;
        }
        let mut values: Vec<f64> = self.full.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        Some(values[values.len() / 2])
    }

    /// Median of what it gave while it was full, as a part of what is stated.
    #[must_use]
    pub fn given(&self, stated: &Capacity) -> Option<f64> {
        given(stated, self.iops()?, self.bytes()?)
    }

    /// Compares it with what is stated. A verdict changes at one threshold and changes back at another, so that a device
    /// near one of them does not have another verdict every second. `may_be_less`: whether it may begin to be too slow. In a pool a full
    /// host says nothing alone: what all may have in flight has to settle.
    pub fn compare(&mut self, stated: &Capacity, may_be_less: bool) {
        let is = |verdict| self.verdict == Some(verdict);
        let too_little = if is(Verdict::TooHigh) { TOO_LITTLE + AGAIN } else { TOO_LITTLE };
        let too_much = if is(Verdict::TooLow) { TOO_MUCH - AGAIN } else { TOO_MUCH };
        let verdict = match (self.iops(), self.bytes()) {
            _ if stated.iops.is_none() && stated.bytes.is_none() => Verdict::NotStated,
            (Some(iops), Some(bytes)) => {
                let (by_requests, by_bytes) = parts(stated, iops, bytes);
                let may_be_less = may_be_less || is(Verdict::TooHigh);
                if may_be_less && by_requests + by_bytes < too_little {
                    Verdict::TooHigh
                } else if by_requests.max(by_bytes) > too_much {
                    Verdict::TooLow
                } else {
                    Verdict::Right
                }
            }
            _ => Verdict::Unknown,
        };
        self.verdict = Some(verdict);
    }

    /// The result of the last comparison.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict.unwrap_or(Verdict::Unknown)
    }
}

/// Parts of what is stated, by requests and by bytes.
fn parts(stated: &Capacity, iops: f64, bytes: f64) -> (f64, f64) {
    let by_requests = stated.iops.map_or(0.0, |stated| iops / stated.as_f64());
    let by_bytes = stated.bytes.map_or(0.0, |stated| bytes / stated.bytes_per_second() as f64);
    (by_requests, by_bytes)
}

/// The part of the stated capacity that `iops` normalised requests and `bytes` per second use up, or more; `None` if none is stated.
///
/// Small requests use up the requests, large ones the bytes, and a mixture some of each: what is used is at least the
/// larger part and at most the sum of both. Example: 500 of 1,000 requests and 50 of 100 MiB/s may be all that it can
/// give.
#[must_use]
pub fn given(stated: &Capacity, iops: f64, bytes: f64) -> Option<f64> {
    let (by_requests, by_bytes) = parts(stated, iops, bytes);
    (stated.iops.is_some() || stated.bytes.is_some()).then_some(by_requests + by_bytes)
}

#[cfg(test)]
mod tests {
    use sluice_sched::{ByteRate, Iops};

    use super::*;

    impl Capacities {
        fn against(mut self, stated: &Capacity) -> Verdict {
            self.compare(stated, true);
            self.verdict()
        }
    }

    fn seen(full: f64, iops: f64, bytes: f64) -> Capacities {
        let mut seen = Capacities::default();
        (0..NEEDED).for_each(|_| seen.push(full, iops, bytes));
        seen
    }

    #[test]
    fn only_a_full_device_says_what_it_can_give() {
        let stated = Capacity { iops: Some(Iops::per_second(1000)), bytes: None };
        assert_eq!(seen(1.0, 1000.0, 0.0).against(&stated), Verdict::Right);
        assert_eq!(seen(1.0, 800.0, 0.0).against(&stated), Verdict::TooHigh);
        assert_eq!(seen(1.0, 1300.0, 0.0).against(&stated), Verdict::TooLow);
        assert_eq!(seen(0.8, 100.0, 0.0).against(&stated), Verdict::Unknown, "VMs asked for no more");
        assert_eq!(seen(1.0, 100.0, 0.0).against(&Capacity::default()), Verdict::NotStated);
    }

    #[test]
    fn a_device_that_is_full_with_large_requests_is_not_below_its_capacity_in_requests() {
        let stated = Capacity { iops: Some(Iops::per_second(1000)), bytes: Some(ByteRate::per_second(100 << 20)) };
        assert_eq!(seen(1.0, 400.0, f64::from(100 << 20)).against(&stated), Verdict::Right);
        assert_eq!(seen(1.0, 500.0, f64::from(50 << 20)).against(&stated), Verdict::Right, "a mixture");
        assert_eq!(seen(1.0, 300.0, f64::from(50 << 20)).against(&stated), Verdict::TooHigh);
    }
}
