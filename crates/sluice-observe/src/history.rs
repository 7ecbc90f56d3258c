//! The past of a VM or volume: each second for 15 minutes. Minutes are kept elsewhere, see [`interval`](crate::interval).
//!
//! A second without requests is not kept. A point has 32 bytes, so the full history of one VM takes at most 29 KB.

use std::collections::VecDeque;

use sluice_api::list;
use sluice_sched::{Phase, Wait};

use crate::flow::Flow;

/// Seconds that are kept one by one.
pub const SECONDS: u64 = 15 * 60;

/// One interval of the past. Times are upper bounds of percentiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The second in which it began, on the observer's clock.
    pub second: u32,
    /// Requests of guests per second that succeeded.
    pub iops: f32,
    /// Normalised requests per second.
    pub normalised_iops: f32,
    pub bytes_per_second: f32,
    /// From arrival to completion, in microseconds; 0 without requests.
    pub p50_us: f32,
    /// From arrival to completion, in microseconds; 0 without requests.
    pub p99_us: f32,
    /// Requests of guests per second that failed.
    pub failed: f32,
    /// Part of the time with requests queued, in percent.
    pub backlogged_percent: u8,
    /// Part of the dispatches that the reservation caused, in percent.
    pub by_reservation_percent: u8,
    /// The main reason for waiting, as in [`Wait::ALL`].
    pub wait: u8,
}

impl Point {
    fn of(second: u64, flow: &Flow) -> Point {
        let micros = |percent| flow.latency.percentile(percent).map_or(0.0, |nanos| nanos as f32 / 1000.0);
        Point {
            second: u32::try_from(second).unwrap_or(u32::MAX),
            iops: flow.iops() as f32,
            normalised_iops: flow.normalised_iops() as f32,
            bytes_per_second: flow.bytes_per_second() as f32,
            p50_us: micros(50.0),
            p99_us: micros(99.0),
            failed: flow.per_second(flow.failed as f64) as f32,
            backlogged_percent: (flow.backlogged() * 100.0).round() as u8,
            by_reservation_percent: (flow.by(Phase::Reservation).unwrap_or(0.0) * 100.0).round() as u8,
            wait: flow.main_wait().unwrap_or_default() as u8,
        }
    }

    /// The point as replies have it; it began at `time`, in seconds since 1970.
    #[must_use]
    pub fn at(&self, time: u64, is_link: bool) -> list::Point {
        list::Point {
            time,
            iops: self.iops.into(),
            normalised_iops: self.normalised_iops.into(),
            bytes_per_second: self.bytes_per_second.into(),
            bits_per_second: is_link.then(|| (8.0 * f64::from(self.bytes_per_second)).round()),
            p50_us: self.p50_us.into(),
            p99_us: self.p99_us.into(),
            failed: self.failed.into(),
            backlogged_percent: self.backlogged_percent,
            by_reservation_percent: self.by_reservation_percent,
            wait: list::Wait::named(Wait::ALL[usize::from(self.wait)].name()),
            ..list::Point::default()
        }
    }
}

/// The past of one VM or volume.
#[derive(Debug, Clone, Default)]
pub struct History {
    seconds: VecDeque<Point>,
}

impl History {
    /// Adds what happened in `second`, which is later than that of the last call.
    pub fn push(&mut self, second: u64, flow: &Flow) {
        drop_before(&mut self.seconds, (second + 1).saturating_sub(SECONDS));
        if !flow.is_idle() {
            push_back(&mut self.seconds, SECONDS as usize, Point::of(second, flow));
        }
    }

    /// Seconds of the last 15 minutes in which something happened, oldest first.
    pub fn seconds(&self) -> impl Iterator<Item = &Point> {
        self.seconds.iter()
    }
}

/// Adds a point to at most `most`. Room doubles up to exactly that; `VecDeque` alone would double 512 seconds to 1,024.
fn push_back(points: &mut VecDeque<Point>, most: usize, point: Point) {
    if points.len() == points.capacity() {
        let room = (2 * points.len()).clamp(4, most.max(points.len() + 1));
        points.reserve_exact(room - points.len());
    }
    points.push_back(point);
}

fn drop_before(points: &mut VecDeque<Point>, second: u64) {
    while points.front().is_some_and(|point| u64::from(point.second) < second) {
        points.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(requests: u64) -> Flow {
        Flow { nanos: 1_000_000_000, succeeded: [requests, 0, 0, 0, 0], ..Flow::default() }
    }

    #[test]
    fn seconds_last_a_quarter_of_an_hour() {
        let mut history = History::default();
        (0..3600).for_each(|second| history.push(second, &busy(1 + second % 60)));
        assert_eq!(history.seconds().count(), SECONDS as usize);
        assert_eq!(history.seconds().last().map(|point| (point.second, point.iops)), Some((3599, 60.0)));
    }

    #[test]
    fn an_idle_vm_takes_no_memory() {
        let mut history = History::default();
        let idle = Flow { nanos: 1_000_000_000, ..Flow::default() };
        (0..600).for_each(|second| history.push(second, &idle));
        assert_eq!(history.seconds().count(), 0);
    }

    #[test]
    fn a_point_has_thirty_two_bytes() {
        assert!(size_of::<Point>() <= 32, "the bound of memory is computed with it");
    }

    #[test]
    fn a_full_history_had_room_for_half_as_many_points_again() {
        let mut history = History::default();
        (0..3600).for_each(|second| history.push(second, &busy(1)));
        let seconds = history.seconds.capacity();
        assert!(seconds <= SECONDS as usize, "{seconds}");
    }
}
