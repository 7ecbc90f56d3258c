//! Results of each VM from the end of the warm-up: counters, latencies and a time series.

use std::time::Duration;

use hdrhistogram::Histogram;
use sluice_sched::cost::reserved_bytes;
use sluice_sched::request::Direction;
use sluice_sched::{Bytes, Cost, Instant, Kind};

/// Nanoseconds per unit of the histograms.
const UNIT: u64 = 100;
/// The longest latency that is distinguished, in units: a day.
const LONGEST: u64 = 24 * 3600 * 10_000_000;

/// Record of one VM. What a request changes at once is in the first cache line: with many VMs each line is fetched for every request.
/// The rest is changed by `Record::measure`.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub struct Record {
    /// Requests that arrived, from the start.
    pub arrived: u64,
    outstanding: u64,
    since: Instant,
    warm: Instant,
    /// Integral of outstanding requests over time after the warm-up, in request-nanoseconds.
    area: u128,
    /// Requests that completed, from the start.
    pub completed: u64,
    /// Requests rejected by a full queue and offered again.
    pub refused: u64,
    /// Requests completed after the warm-up.
    pub measured: u64,
    latency_sum: u128,
    /// Latencies, counting the parts after the warm-up, also of dropped and cancelled requests.
    latency_inside: u128,
    /// Bytes of requests completed after the warm-up.
    pub bytes: u64,
    /// Time up to which `served` counts waiting.
    waited_until: Instant,
    /// End of the last window of the series.
    window_ends: Instant,
    served: Served,
    /// Bytes that the device of the VM transfers in the time of a request of cost 1.
    request_bytes: Bytes,
    series: Vec<Window>,
    latencies: Histogram<u32>,
    window: u64,
    /// Requests moved to another node after theirs had failed.
    pub retried: u64,
    /// Requests cancelled when their VM stopped.
    pub cancelled: u64,
    /// Requests dropped by their device, such as packets at a full queue.
    pub dropped: u64,
}

/// A completed request that is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    /// Number of its VM.
    pub(crate) vm: u32,
    pub(crate) arrived: Instant,
    /// When its last part was dispatched.
    pub(crate) dispatched: Instant,
    pub(crate) completed: Instant,
    /// Length in bytes.
    pub(crate) length: u32,
    pub(crate) kind: Kind,
    /// Service of the gates for it: its cost, and its bytes as counted against a limit.
    pub(crate) cost: Cost,
    pub(crate) bytes: u64,
}

const _: () = assert!(size_of::<Measured>() <= 48, "with many VMs each of these goes through the caches");

/// Service of the gates for a VM after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Served {
    /// Normalised requests completed.
    pub normalised: f64,
    /// Their bytes as counted against a limit.
    pub bytes: u64,
    /// The same as counted against a reservation, see [`reserved_bytes`].
    pub reserved_bytes: u64,
    /// The part of both that a limit of writes counts.
    pub written: (f64, u64),
    /// Time during which at least one request had arrived but was not dispatched.
    pub waiting: Duration,
}

/// Completions in one window of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// Requests.
    pub completed: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Sum of their latencies in nanoseconds.
    pub latency: u64,
}

impl Record {
    /// An empty record. Measurement starts at `warm`; the series counts completions in windows from then on. `request_bytes`: of the gate
    /// that serves the VM.
    #[must_use]
    pub fn new(warm: Instant, window: Duration, request_bytes: Bytes) -> Self {
        Record {
            arrived: 0,
            completed: 0,
            refused: 0,
            retried: 0,
            cancelled: 0,
            dropped: 0,
            measured: 0,
            bytes: 0,
            // It grows up to the longest latency that occurs: for a day it would take 17 kB, for 10 ms it takes 6 kB.
            latencies: Histogram::new(2).expect("two digits are possible"),
            latency_sum: 0,
            latency_inside: 0,
            area: 0,
            outstanding: 0,
            since: Instant::ZERO,
            warm,
            served: Served::default(),
            request_bytes,
            waited_until: warm,
            window: (window.as_nanos() as u64).max(1),
            window_ends: warm,
            series: Vec::new(),
        }
    }

    #[inline]
    fn advance(&mut self, now: Instant) {
        let from = self.since.max(self.warm);
        if now > from {
            self.area += u128::from(self.outstanding) * u128::from(now.nanos_since(from));
        }
        self.since = now;
    }

    #[inline]
    pub(crate) fn arrive(&mut self, now: Instant) {
        self.advance(now);
        self.arrived += 1;
        self.outstanding += 1;
    }

    /// Counts a completion. Returns whether it is measured, by [`Record::measure`].
    #[inline]
    pub(crate) fn complete(&mut self, now: Instant) -> bool {
        self.advance(now);
        self.outstanding -= 1;
        self.completed += 1;
        now >= self.warm
    }

    /// Adds a measured request to the results. Requests come in the order of their completions.
    #[inline]
    pub(crate) fn measure(&mut self, request: &Measured) {
        let Measured { arrived, completed, length, .. } = *request;
        let latency = completed.nanos_since(arrived);
        self.measured += 1;
        self.bytes += u64::from(length);
        self.latency_sum += u128::from(latency);
        self.latency_inside += u128::from(completed.nanos_since(arrived.max(self.warm)));
        if completed >= self.window_ends {
            self.open_window(completed);
        }
        if let Some(window) = self.series.last_mut() {
            window.completed += 1;
            window.bytes += u64::from(length);
            window.latency += latency;
        }
        self.serve(request);
        self.latencies.record(latency.div_ceil(UNIT).min(LONGEST)).expect("a histogram grows up to the longest");
    }

    /// Begins the window that contains `now`.
    #[cold]
    fn open_window(&mut self, now: Instant) {
        let window = now.nanos_since(self.warm) / self.window;
        self.series.resize(window as usize + 1, Window::default());
        let ends = window.saturating_add(1).saturating_mul(self.window);
        self.window_ends = Instant::from_nanos(self.warm.as_nanos().saturating_add(ends));
    }

    /// Counts the service of a measured request. Requests that overtake each other may count as waiting too short,
    /// never too long.
    #[inline]
    fn serve(&mut self, request: &Measured) {
        let Measured { arrived, dispatched, kind, cost, bytes, .. } = *request;
        let normalised = f64::from(cost.raw()) / 65_536.0;
        self.served.normalised += normalised;
        self.served.bytes += bytes;
        self.served.reserved_bytes += reserved_bytes(cost.raw().into(), bytes, self.request_bytes);
        if kind.direction() == Direction::Write {
            self.served.written.0 += normalised;
            self.served.written.1 += bytes;
        }
        self.served.waiting += waiting(arrived.max(self.waited_until), dispatched);
        self.waited_until = self.waited_until.max(dispatched);
    }

    /// Service including the requests that still wait since `oldest`, if any.
    pub(crate) fn served(&self, now: Instant, oldest: Option<Instant>) -> Served {
        let still = oldest.map_or(Duration::ZERO, |arrived| waiting(arrived.max(self.waited_until), now));
        Served { waiting: self.served.waiting + still, ..self.served }
    }

    pub(crate) fn cancel(&mut self, now: Instant, arrived: Instant) {
        self.cancelled += 1;
        self.leave(now, arrived);
    }

    pub(crate) fn lose(&mut self, now: Instant, arrived: Instant) {
        self.dropped += 1;
        self.leave(now, arrived);
    }

    /// Removes a request that was not served.
    fn leave(&mut self, now: Instant, arrived: Instant) {
        self.advance(now);
        self.outstanding -= 1;
        if now >= self.warm {
            self.latency_inside += u128::from(now.nanos_since(arrived.max(self.warm)));
        }
    }

    pub(crate) fn end(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Requests that have arrived and not completed.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Mean latency of measured requests; zero if there are none.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.latency_sum.checked_div(u128::from(self.measured)).unwrap_or(0);
        Duration::from_nanos(nanos as u64)
    }

    /// Latency that `percent` of the measured requests do not exceed, within 1 %.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.latencies.value_at_percentile(percent) * UNIT)
    }

    /// Latencies of measured requests: upper bound of each bucket in nanoseconds, and count.
    pub fn latencies(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.latencies.iter_recorded().map(|step| (step.value_iterated_to() * UNIT, step.count_since_last_iteration()))
    }

    /// Completions in each window after the warm-up, up to the last window with any.
    #[must_use]
    pub fn series(&self) -> &[Window] {
        &self.series
    }

    /// Request-nanoseconds after the warm-up, from the latencies of ended requests. Together with those of outstanding
    /// requests it equals [`Record::area`], by Little's law.
    pub(crate) fn latency_inside(&self) -> u128 {
        self.latency_inside
    }

    /// Request-nanoseconds after the warm-up, from the number of outstanding requests over time.
    pub(crate) fn area(&self) -> u128 {
        self.area
    }

    /// Mean number of outstanding requests in the measured time of a run that ended at `end`. Example: four requests that
    /// take 1 s each within 10 s, 0.4.
    #[must_use]
    pub fn mean_outstanding(&self, end: Instant) -> f64 {
        let time = end.nanos_since(self.warm);
        if time == 0 { 0.0 } else { self.area as f64 / time as f64 }
    }
}

fn waiting(from: Instant, to: Instant) -> Duration {
    Duration::from_nanos(if to > from { to.nanos_since(from) } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_latencies_are_not_truncated() {
        let mut record = Record::new(Instant::ZERO, Duration::from_secs(1), Bytes::kib(8));
        for millis in 1..=1000 {
            record.arrive(Instant::ZERO);
            let completed = Instant::from_millis(millis);
            assert!(record.complete(completed));
            let (arrived, dispatched) = (Instant::ZERO, completed);
            let (length, kind, cost, bytes) = (4096, Kind::Read, Cost::ONE, 4096);
            record.measure(&Measured { vm: 0, arrived, dispatched, completed, length, kind, cost, bytes });
        }
        for (percent, millis) in [(50.0, 500.0), (99.0, 990.0), (100.0, 1000.0)] {
            let off = record.percentile(percent).as_secs_f64() * 1e3 / millis - 1.0;
            assert!((-0.001..0.01).contains(&off), "{percent} %: {:?}", record.percentile(percent));
        }
        assert_eq!(record.latencies().map(|(_, count)| count).sum::<u64>(), 1000);
    }

    #[test]
    fn cancelled_requests_count_until_they_leave() {
        let mut record = Record::new(Instant::from_millis(10), Duration::from_secs(1), Bytes::kib(8));
        let leave: [fn(&mut Record, Instant, Instant); 2] = [Record::cancel, Record::lose];
        for (leave, arrived, left) in [(leave[0], 0, 5), (leave[0], 0, 30), (leave[1], 8, 40), (leave[0], 20, 50)] {
            let arrived = Instant::from_millis(arrived);
            record.arrive(arrived);
            let mut alone = record.clone();
            leave(&mut record, Instant::from_millis(left), arrived);
            alone.end(Instant::from_millis(left));
            assert_eq!(record.area(), alone.area());
            assert_eq!(record.latency_inside(), record.area(), "from {arrived:?} to {left} ms");
        }
        assert_eq!((record.cancelled, record.dropped, record.outstanding()), (3, 1, 0));
    }
}
