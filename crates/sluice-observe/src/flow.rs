//! Counts of an interval: the difference of two samples.

use sluice_sched::gate::histogram::{Histogram, SparseHistogram};
use sluice_sched::gate::{GateStats, Outcome};
use sluice_sched::{CostModel, Instant, Kind, Phase, Wait};

/// Cost units of one normalised request.
const COST_UNITS: f64 = 65_536.0;

/// Counts of a VM or volume in an interval: its requests, their waiting times, and the service that it got.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flow {
    /// Length of the interval in nanoseconds.
    pub nanos: u64,
    /// Requests of guests that succeeded, by [`Kind`].
    pub succeeded: [u64; 5],
    /// Requests of guests that failed.
    pub failed: u64,
    /// Bytes read and written; on an uplink those of the wire, with what surrounds each frame.
    pub bytes: u64,
    /// Whether it is of an uplink, whose rates are shown in bits.
    pub is_link: bool,
    /// Completed service in raw cost units: 1/65,536 of a normalised request.
    pub cost: u64,
    /// Dispatched service in raw cost units.
    pub dispatched_cost: u64,
    /// Dispatched bytes, as they count against a reservation: small requests count as more.
    pub dispatched_bytes: u64,
    /// Sum of the squares of the dispatched costs, each in 1/64 of a normalised request.
    pub squared_cost: u64,
    /// Sum of the squares of the dispatched bytes, each in units of 512.
    pub squared_bytes: u64,
    /// Dispatched requests, by [`Phase`].
    pub dispatched: [u64; 3],
    /// Time that dispatched requests had waited, in nanoseconds, by [`Wait`].
    pub wait_nanos: [u64; 6],
    /// Time with at least one request queued, in nanoseconds.
    pub backlogged_nanos: u64,
    /// Number of times that a request arrived at an empty queue.
    pub spells: u64,
    /// Requests to which the latency target applied, and those of them that took longer.
    pub judged: u64,
    pub late: u64,
    /// Sum of the times from arrival to completion, in nanoseconds.
    pub latency_nanos: u64,
    /// CPU time of the device thread that was used for it, in nanoseconds; 0 for a volume.
    pub cpu_nanos: u64,
    /// Time for which a limit of CPU time held it back, in nanoseconds; 0 for a volume.
    pub held_nanos: u64,
    /// Time from arrival to completion.
    pub latency: SparseHistogram,
    /// Time from arrival to dispatch.
    pub queue_time: SparseHistogram,
    /// Time from dispatch to completion.
    pub service_time: SparseHistogram,
}

impl Flow {
    /// What happened from `since` to `at`; `before` are the counters at `since` of a VM or volume of that name. Those that began
    /// later count from zero. If nothing is known of older ones at `since`, nothing is known of the interval.
    #[must_use]
    pub fn between(before: Option<&GateStats>, since: Instant, stats: &GateStats, at: Instant) -> Flow {
        // The counters of an idle VM are shared by the samples.
        if before.is_some_and(|before| std::ptr::eq(before, stats)) && stats.outstanding.waiting == 0 {
            return Flow { nanos: at.nanos_since(since), ..Flow::default() };
        }
        let zero = GateStats::default();
        let earlier = match before {
            Some(before) if before.began == stats.began => before,
            _ if stats.began >= since => &zero,
            _ => return Flow { nanos: at.nanos_since(since), ..Flow::default() },
        };
        let nanos = at.nanos_since(since);
        let ended = |outcome: Outcome| difference(&stats.ended[outcome as usize], &earlier.ended[outcome as usize]);
        let wait_nanos = |of: &GateStats| of.waits.map(|waited| waited.nanos);
        let histogram = |of: fn(&GateStats) -> &Histogram| of(stats).since(of(earlier));
        let backlogged = stats.outstanding.backlogged_nanos(at);
        let backlogged = backlogged.saturating_sub(earlier.outstanding.backlogged_nanos(since));
        Flow {
            nanos,
            is_link: false,
            succeeded: ended(Outcome::Done),
            failed: ended(Outcome::Failed).iter().sum(),
            bytes: stats.bytes.saturating_sub(earlier.bytes),
            cost: stats.cost.saturating_sub(earlier.cost),
            dispatched_cost: stats.dispatched_cost.saturating_sub(earlier.dispatched_cost),
            dispatched_bytes: stats.dispatched_bytes.saturating_sub(earlier.dispatched_bytes),
            squared_cost: stats.squared_cost.saturating_sub(earlier.squared_cost),
            squared_bytes: stats.squared_bytes.saturating_sub(earlier.squared_bytes),
            dispatched: difference(&stats.dispatched, &earlier.dispatched),
            wait_nanos: difference(&wait_nanos(stats), &wait_nanos(earlier)),
            backlogged_nanos: backlogged.min(nanos),
            spells: stats.outstanding.spells.saturating_sub(earlier.outstanding.spells),
            judged: stats.judged.saturating_sub(earlier.judged),
            late: stats.late.saturating_sub(earlier.late),
            latency_nanos: stats.latency_nanos.saturating_sub(earlier.latency_nanos),
            cpu_nanos: 0,
            held_nanos: 0,
            latency: histogram(|of| &of.latency),
            queue_time: histogram(|of| &of.queue_time),
            service_time: histogram(|of| &of.service_time),
        }
    }

    /// The counts of frames: their bytes are those of the wire, which their cost counts.
    pub(crate) fn of_link(mut self, is_link: bool) -> Flow {
        if is_link {
            let full = CostModel::frames().reference_size().0 as f64;
            (self.bytes, self.is_link) = ((self.cost as f64 / COST_UNITS * full).round() as u64, true);
        }
        self
    }

    /// Whether nothing was asked for and nothing happened.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests() == 0
            && self.failed == 0
            && self.backlogged_nanos == 0
            && self.dispatched_cost == 0
            && self.cpu_nanos == 0
    }

    /// Adds the next interval.
    pub fn add(&mut self, next: &Flow) {
        self.add_with_latency(next);
        self.queue_time.add(&next.queue_time);
        self.service_time.add(&next.service_time);
    }

    /// Adds the next interval with one of its histograms. Histograms take most of the time.
    pub(crate) fn add_with_latency(&mut self, next: &Flow) {
        self.add_counts(next);
        self.latency.add(&next.latency);
    }

    /// Adds the next interval without its histograms.
    pub(crate) fn add_counts(&mut self, next: &Flow) {
        self.nanos += next.nanos;
        add(&mut self.succeeded, &next.succeeded);
        add(&mut self.dispatched, &next.dispatched);
        add(&mut self.wait_nanos, &next.wait_nanos);
        self.failed += next.failed;
        self.bytes += next.bytes;
        self.is_link |= next.is_link;
        self.cost += next.cost;
        self.dispatched_cost += next.dispatched_cost;
        self.dispatched_bytes = self.dispatched_bytes.saturating_add(next.dispatched_bytes);
        self.squared_cost = self.squared_cost.saturating_add(next.squared_cost);
        self.squared_bytes = self.squared_bytes.saturating_add(next.squared_bytes);
        self.backlogged_nanos += next.backlogged_nanos;
        self.spells += next.spells;
        self.judged += next.judged;
        self.late += next.late;
        self.latency_nanos += next.latency_nanos;
        self.cpu_nanos += next.cpu_nanos;
        self.held_nanos += next.held_nanos;
    }

    /// Length of the interval in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.nanos as f64 / 1e9
    }

    /// Requests that succeeded.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.succeeded.iter().sum()
    }

    /// Returns `amount` per second; 0 for an empty interval.
    #[must_use]
    pub fn per_second(&self, amount: f64) -> f64 {
        if self.nanos == 0 { 0.0 } else { amount / self.seconds() }
    }

    /// Requests of guests per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.per_second(self.requests() as f64)
    }

    /// Requests of one kind per second.
    #[must_use]
    pub fn iops_of(&self, kind: Kind) -> f64 {
        self.per_second(self.succeeded[kind as usize] as f64)
    }

    /// Completed service in normalised requests per second.
    #[must_use]
    pub fn normalised_iops(&self) -> f64 {
        self.per_second(self.cost as f64 / COST_UNITS)
    }

    /// Dispatched service in normalised requests.
    #[must_use]
    pub fn dispatched_requests(&self) -> f64 {
        self.dispatched_cost as f64 / COST_UNITS
    }

    /// The request to which a unit of service belongs on average, in normalised requests and in bytes; `None` if none was
    /// dispatched. Example: of nine requests of 4 KiB and one of 256 KiB, a byte belongs to one of 225 KiB.
    #[must_use]
    pub fn step(&self) -> Option<(f64, f64)> {
        let (cost, bytes) = (self.dispatched_requests() * 64.0, self.dispatched_bytes as f64 / 512.0);
        let of = |squared: u64, sum: f64| if sum > 0.0 { squared as f64 / sum } else { 0.0 };
        (cost > 0.0).then(|| (of(self.squared_cost, cost) / 64.0, of(self.squared_bytes, bytes) * 512.0))
    }

    /// Bytes per second.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.per_second(self.bytes as f64)
    }

    /// The part of the interval in which at least one request was queued, 0 to 1.
    #[must_use]
    pub fn backlogged(&self) -> f64 {
        if self.nanos == 0 { 0.0 } else { (self.backlogged_nanos as f64 / self.nanos as f64).min(1.0) }
    }

    /// Part of a CPU that was used for it.
    #[must_use]
    pub fn cpu(&self) -> f64 {
        self.per_second(self.cpu_nanos as f64 / 1e9)
    }

    /// Part of the interval for which a limit of CPU time held it back.
    #[must_use]
    pub fn held(&self) -> f64 {
        self.per_second(self.held_nanos as f64 / 1e9).min(1.0)
    }

    /// Part of the dispatched requests that `phase` dispatched, 0 to 1; `None` without any.
    #[must_use]
    pub fn by(&self, phase: Phase) -> Option<f64> {
        let all: u64 = self.dispatched.iter().sum();
        (all > 0).then(|| self.dispatched[phase as usize] as f64 / all as f64)
    }

    /// Dispatched service of `phase`, in raw cost units: its part of the requests.
    #[must_use]
    pub fn cost_by(&self, phase: Phase) -> f64 {
        self.dispatched_cost as f64 * self.by(phase).unwrap_or(0.0)
    }

    /// Mean time from arrival to completion in seconds; `None` without requests.
    #[must_use]
    pub fn mean_latency(&self) -> Option<f64> {
        let requests = self.requests();
        (requests > 0).then(|| self.latency_nanos as f64 / 1e9 / requests as f64)
    }

    /// Mean number of outstanding requests, by Little's law: the requests of a second times the seconds that each takes.
    #[must_use]
    pub fn mean_outstanding(&self) -> f64 {
        self.per_second(self.latency_nanos as f64 / 1e9)
    }

    /// Part of the time that requests waited because of `wait`, 0 to 1; `None` if none waited.
    #[must_use]
    pub fn waited_for(&self, wait: Wait) -> Option<f64> {
        let all: u64 = self.wait_nanos.iter().sum();
        (all > 0).then(|| self.wait_nanos[wait as usize] as f64 / all as f64)
    }

    /// The reason for which requests waited longest; `None` if none waited.
    #[must_use]
    pub fn main_wait(&self) -> Option<Wait> {
        let waits = Wait::ALL.into_iter().filter(|wait| *wait != Wait::None);
        let longest = waits.max_by_key(|wait| self.wait_nanos[*wait as usize])?;
        (self.wait_nanos[longest as usize] > 0).then_some(longest)
    }
}

fn difference<const N: usize>(now: &[u64; N], then: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|index| now[index].saturating_sub(then[index]))
}

fn add<const N: usize>(sum: &mut [u64; N], next: &[u64; N]) {
    sum.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
}
