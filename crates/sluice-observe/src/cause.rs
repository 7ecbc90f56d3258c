//! Why a VM gets less, or waits longer, than it should.

use sluice_api::cause::Cause;
use sluice_sched::gate::histogram::SparseHistogram;
use sluice_sched::policy::Limit;
use sluice_sched::{Kind, Phase, Policy, Wait};

use crate::flow::Flow;

/// Part of the time above which a device thread has no time left.
pub(crate) const THREAD_BUSY: f64 = 0.95;
/// Part of the time without a free slot above which a device is full.
const DEVICE_FULL: f64 = 0.5;
/// Part of the time without a free slot above which a device has not idled.
const ALWAYS_FULL: f64 = 0.95;
/// Part of the stated capacity from which on a device gives what is stated.
const AS_STATED: f64 = 0.9;
/// Part of what is reserved or stated from which on nothing of it is missing.
pub(crate) const NEARLY_ALL: f64 = 0.97;
/// Part of the service of a device below which all other VMs together do not explain a queue.
const NEIGHBOURS_MATTER: f64 = 0.2;
/// Part of a limit from which on a VM has got what the limit lets through.
const AT_LIMIT: f64 = 0.9;
/// Parts of a limit between which a VM gets what the limit lets through, and nothing of a burst.
const OF_LIMIT: core::ops::RangeInclusive<f64> = NEARLY_ALL..=1.05;
/// Part of the time from which on it matters that the device thread is late.
const LATE_MATTERS: f64 = 0.03;
/// Part of a shortfall that lateness of the device thread must be able to cause. Parts are those of the time.
const LATE_EXPLAINS: f64 = 0.5;
/// Part of the time from which on a VM is held back by its limit of CPU time.
const HELD_BACK: f64 = 0.1;
/// Part of what is missing of a reservation that others must have got by weight meanwhile.
const GIVEN_AWAY: f64 = 0.5;
/// Multiple of a VM's service for each unit of weight that a neighbour gets although the VM has a queue most of the time: its
/// queue was empty when it was its turn.
const UNEQUAL: f64 = 1.5;
/// Part of the service of others from which on it matters that they got it by weight: more than the floor of the weight phase.
const OTHERS_BY_WEIGHT: f64 = 0.05;
/// Part of the time with a queue below which a VM asks for too little.
pub(crate) const SELDOM_QUEUED: f64 = 0.5;

/// How late a device thread was to look at its requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lateness {
    /// Part of the interval in which it was late, 0 to 1.
    pub part: f64,
    /// The same of the last ten seconds.
    pub part_of_ten_seconds: f64,
    /// Nanoseconds by which it was late once, at the most.
    pub longest: u64,
}

impl Lateness {
    /// Whether it can be the main reason for missing a part of the interval's service, 0 to 1.
    fn explains(&self, missing: f64) -> bool {
        let part = self.part.max(self.part_of_ten_seconds);
        part >= LATE_MATTERS && part >= LATE_EXPLAINS * missing
    }
}

/// State of the device in the same interval.
#[derive(Debug, Clone, Copy)]
pub struct DeviceState {
    /// Whether its thread responds and requests complete.
    pub serving: bool,
    /// Whether the daemon itself stood still: the interval is much longer than the time between two samples.
    pub is_late: bool,
    /// Part of the interval in which no slot was free, 0 to 1.
    pub full: f64,
    /// Part of the interval in which its thread worked, 0 to 1.
    pub worked: f64,
    /// How late its thread was.
    pub late: Lateness,
    /// Completed service as a part of the stated capacity, in a pool that of all hosts; `None` if none is stated, or it is not known.
    pub given: Option<f64>,
    /// What other hosts do with the storage, if it is a part of a pool.
    pub other_hosts: Option<OtherHosts>,
    /// Seconds until a request that is due is taken: for the one that it works on, and for one of each VM that is due too.
    pub turn: f64,
    /// Whether it completed less than what VMs with requests queued had reserved for that time.
    pub misses_reservations: bool,
}

/// What other hosts do with storage that they share.
#[derive(Debug, Clone, Copy)]
pub struct OtherHosts {
    /// Part of what all hosts complete that they complete, 0 to 1; `None` without fresh views of them.
    pub part: Option<f64>,
}

impl OtherHosts {
    /// Whether they can be a reason for getting little: they use much, or this host has to assume that they do.
    fn matter(self) -> bool {
        self.part.is_none_or(|part| part >= NEIGHBOURS_MATTER)
    }
}

impl DeviceState {
    /// Whether its thread had no time left, and the device could have done more.
    fn lacks_cpu(&self) -> bool {
        self.is_late || self.worked >= THREAD_BUSY && !self.does_its_part()
    }

    fn does_its_part(&self) -> bool {
        self.full >= DEVICE_FULL && self.given.is_some_and(|given| given >= AS_STATED)
    }

    /// The facts behind [`Cause::DaemonCpu`], in words.
    #[must_use]
    pub fn cpu_in_words(&self) -> String {
        if self.is_late {
            return "the daemon took no sample for seconds".to_owned();
        }
        let Lateness { part, part_of_ten_seconds, longest } = self.late;
        if self.worked >= THREAD_BUSY {
            return format!("the device thread worked for {:.0} % of the time", 100.0 * self.worked);
        }
        let millis = longest as f64 / 1e6;
        let percent = 100.0 * part.max(part_of_ten_seconds);
        format!("the device thread looked at its requests up to {millis:.0} ms late, in {percent:.0} % of the time")
    }

    /// Whether it was full and gave less than its stated capacity in that time.
    fn is_slow(&self) -> bool {
        self.full >= DEVICE_FULL && self.given.is_some_and(|given| given < AS_STATED * self.full)
    }
}

/// Whether a VM or volume got about what the limits of its policy let through. Of limits for one direction that is not known, so
/// with them it is assumed.
#[must_use]
pub fn reaches(policy: &Policy, flow: &Flow) -> bool {
    let of = |got: f64, rate: f64| flow.nanos > 0 && flow.per_second(got) >= AT_LIMIT * rate;
    let by_requests = policy.limit.iops.is_some_and(|limit| of(flow.dispatched_requests(), limit.as_f64()));
    let by_bytes =
        policy.limit.bytes.is_some_and(|limit| of(flow.dispatched_bytes as f64, limit.bytes_per_second() as f64));
    by_requests || by_bytes || policy.read_limit != Limit::default() || policy.write_limit != Limit::default()
}

/// Whether a VM or volume gets all that the limits of its policy let through, so that nothing else holds it back. A request that
/// waits for the limit and for the device is counted as waiting for the device: so it is with a reservation as large as the limit.
/// Limits for one direction count if all requests have it.
#[must_use]
pub fn fills_limit(policy: &Policy, flow: &Flow) -> bool {
    let of_direction = match flow.succeeded[Kind::Read as usize] {
        0 => Some(policy.write_limit),
        reads => (reads == flow.requests()).then_some(policy.read_limit),
    };
    let fills = |got: f64, rate: f64| flow.nanos > 0 && OF_LIMIT.contains(&(flow.per_second(got) / rate));
    [Some(policy.limit), of_direction].into_iter().flatten().any(|limit| {
        limit.iops.is_some_and(|limit| fills(flow.dispatched_requests(), limit.as_f64()))
            || limit.bytes.is_some_and(|limit| fills(flow.dispatched_bytes as f64, limit.bytes_per_second() as f64))
    })
}

/// Dispatched service of all other VMs together, in raw cost units.
#[derive(Debug, Clone, Copy, Default)]
pub struct Others {
    pub cost: u64,
    /// Because of their reservations.
    pub by_reservation: f64,
    /// As their share of what was left.
    pub by_weight: f64,
    /// The most that one of them got as its share for each unit of its weight.
    pub by_weight_each: f64,
}

/// Dispatched service by weight for each unit of weight, in raw cost units.
#[must_use]
pub fn by_weight_each(policy: &Policy, flow: &Flow) -> f64 {
    policy.effective_weight().map_or(0.0, |weight| flow.cost_by(Phase::Weight) / weight.as_f64())
}

/// A VM and its neighbours on one device.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    pub device: DeviceState,
    /// Policy of the VM or volume in question.
    pub policy: &'a Policy,
    /// What it got.
    pub own: &'a Flow,
    /// What all others got.
    pub others: &'a Others,
    /// Whether it or one of its volumes got what a limit lets through, see [`reaches`].
    pub at_limit: bool,
    /// Whether the VM, or each of its volumes with a queue, gets all that its limit lets through, see [`fills_limit`].
    pub fills_limit: bool,
}

impl Scene<'_> {
    /// Why a reservation that was asked for was not met. `missing`: the part of it that was missing, 0 to 1.
    #[must_use]
    pub fn why_too_little(&self, missing: f64) -> Cause {
        let cause = self.device_down().or_else(|| self.lacks_own_cpu());
        let cause = cause.or_else(|| self.thread_late(missing)).or_else(|| self.scheduler_waits());
        cause.or_else(|| self.queue_ran_empty()).unwrap_or_else(|| self.device_or_others())
    }

    /// Why requests took longer than the latency target of `target` nanoseconds.
    ///
    /// A VM whose requests would be late even if it had the whole device to itself has too many of them. Example: 64
    /// outstanding requests take 128 ms at half of a device, and 64 ms alone. For a target of 20 ms that is its own queue,
    /// for one of 100 ms the neighbour's half.
    #[must_use]
    pub fn why_too_late(&self, target: u64) -> Cause {
        if let Some(cause) = self.device_down().or_else(|| self.lacks_own_cpu()) {
            return cause;
        }
        // If most requests are late, single delays are not the reason.
        let is_single = self.own.latency.percentile(50.0).unwrap_or(0) <= target;
        if self.device.late.longest >= target && (is_single || self.device.late.part >= LATE_EXPLAINS) {
            return Cause::DaemonCpu;
        }
        let p99 = |times: &SparseHistogram| times.percentile(99.0).unwrap_or(0);
        let is_late_at_device = p99(&self.own.service_time) > p99(&self.own.queue_time);
        // A device that gives all that is stated is not slow: requests queue there as they would at the gate.
        if is_late_at_device && self.device.given.is_none_or(|given| given < AS_STATED) {
            return Cause::Device;
        }
        if let Some(cause) = self.scheduler_waits().filter(|_| !is_late_at_device) {
            return cause;
        }
        let median = self.own.latency.percentile(50.0).unwrap_or(0) as f64;
        let alone = median * (1.0 - self.part_of_others());
        // Requests that are late at storage that gives all that is stated are late because of what all hosts have there.
        let is_held_back = is_late_at_device || self.pool_holds_back();
        let alone_in_pool = alone * (1.0 - self.part_of_other_hosts());
        if self.device.is_slow() {
            Cause::Device
        } else if is_held_back && self.other_hosts_get_most() && alone_in_pool <= target as f64 {
            Cause::Pool
        } else if self.has_neighbours() && alone <= target as f64 {
            self.others()
        } else {
            Cause::OwnQueue
        }
    }

    /// Why it does not get more, although nothing was promised.
    #[must_use]
    pub fn why_not_more(&self) -> Cause {
        // Without a queue at the gate, each request is submitted when it arrives.
        if self.own.backlogged() < SELDOM_QUEUED && self.device.serving && self.lacks_own_cpu().is_none() {
            return Cause::OwnQueue;
        }
        match self.why_too_little(1.0) {
            Cause::OthersReservation | Cause::OthersWeight | Cause::Device
                if self.pool_holds_back() && self.other_hosts_get_most() =>
            {
                Cause::Pool
            }
            Cause::OthersReservation | Cause::OthersWeight if !self.has_neighbours() => Cause::Device,
            cause => cause,
        }
    }

    /// The device is stalled, or its thread has no time.
    fn device_down(&self) -> Option<Cause> {
        let down = (!self.device.serving).then_some(if self.device.is_late { Cause::DaemonCpu } else { Cause::Device });
        down.or_else(|| self.device.lacks_cpu().then_some(Cause::DaemonCpu))
    }

    /// Its device thread was late for so long that the device idled. If the device gives what is stated, or the VM gets what its
    /// limits let through, this did no harm: what is late is made up for.
    fn thread_late(&self, missing: f64) -> Option<Cause> {
        let harms = !self.at_limit && !self.device.does_its_part();
        (harms && self.device.late.explains(missing * self.own.backlogged())).then_some(Cause::DaemonCpu)
    }

    /// Its limit of CPU time kept its requests where they were.
    fn lacks_own_cpu(&self) -> Option<Cause> {
        (self.own.held() >= HELD_BACK).then_some(Cause::OwnCpuLimit)
    }

    /// The reason for which the scheduler held back a request of the VM that it could have dispatched, if that was the main one.
    /// A batch lasts as long as the device takes for it: behind one on a device that gives too little, requests wait for the device.
    fn scheduler_waits(&self) -> Option<Cause> {
        if self.fills_limit {
            return Some(Cause::OwnLimit);
        }
        match self.own.main_wait()? {
            Wait::OwnLimit => Some(Cause::OwnLimit),
            Wait::Batch if self.device.is_slow() || self.misses_reservations() => Some(Cause::Device),
            Wait::Batch => Some(Cause::Batch),
            // Requests that waited through a moment of idling are of no account at a device that was busy all the time.
            Wait::Anticipation => (self.device.full < ALWAYS_FULL).then_some(Cause::Anticipation),
            Wait::None | Wait::Share | Wait::Device => None,
        }
    }

    /// Its queue was empty, again and again, when a slot became free, although it was not empty for long: its requests complete
    /// together and return together, after the slots have gone to others (they run in lock step with the device).
    ///
    /// The shares tell. A request that is due by its reservation goes before all that are served by weight, and of those served
    /// by weight the VM with the least service for its weight goes first. So if others get by weight what is missing of its
    /// reservation, or more for their weight than it does, none of its requests was there at that time. Example: 32 requests
    /// take 16 ms together, and a VM with 16 outstanding reserves 700 iops, 11.2 of each 16 ms. When 11 of them complete, 5 are
    /// queued and go with the next 32, and the other 11 wait for the 32 after them: it gets 16 in 32 ms, 500 iops.
    fn queue_ran_empty(&self) -> Option<Cause> {
        if self.own.spells < 2 || self.device.is_slow() || self.misses_reservations() {
            return None;
        }
        let is_enforced = self.own.by(Phase::Reservation).unwrap_or(0.0) > 0.0;
        let gave_way = match self.missing_of_reservation() {
            Some(missing) if is_enforced => {
                let missing = self.own.dispatched_cost as f64 * missing / (1.0 - missing);
                self.others.by_weight * self.own.backlogged() >= GIVEN_AWAY * missing
            }
            // In the weight phase a reservation that is larger than the share counts as the share.
            _ if is_enforced => false,
            _ => self.others.by_weight_each > UNEQUAL * by_weight_each(self.policy, self.own),
        };
        gave_way.then_some(Cause::OwnQueue)
    }

    /// Part of its reservation that is missing for the time in which it had a queue, 0 to 1; `None` if that is next to nothing.
    fn missing_of_reservation(&self) -> Option<f64> {
        let Policy { reservation, .. } = self.policy;
        let part = |got: f64, rate: f64| got / (rate * self.own.backlogged()).max(f64::MIN_POSITIVE);
        let requests =
            reservation.iops.map(|rate| part(self.own.per_second(self.own.dispatched_requests()), rate.as_f64()));
        let bytes = reservation
            .bytes
            .map(|rate| part(self.own.per_second(self.own.dispatched_bytes as f64), rate.bytes_per_second() as f64));
        let least = requests.into_iter().chain(bytes).min_by(f64::total_cmp)?;
        (least < NEARLY_ALL).then_some(1.0 - least)
    }

    /// Part of the service of the device that others got, 0 to 1.
    fn part_of_others(&self) -> f64 {
        let all = self.own.dispatched_cost + self.others.cost;
        if all == 0 { 0.0 } else { self.others.cost as f64 / all as f64 }
    }

    fn has_neighbours(&self) -> bool {
        self.part_of_others() >= NEIGHBOURS_MATTER
    }

    /// Part of what all hosts of a pool complete that the other hosts complete, 0 to 1; all of it if that is not known.
    fn part_of_other_hosts(&self) -> f64 {
        self.device.other_hosts.map_or(0.0, |others| others.part.unwrap_or(1.0))
    }

    /// Whether the VMs of other hosts get more of the storage than all neighbours on this host.
    fn other_hosts_get_most(&self) -> bool {
        let part = self.part_of_other_hosts();
        self.device.other_hosts.is_some_and(OtherHosts::matter) && part >= (1.0 - part) * self.part_of_others()
    }

    /// Whether what this host may have in flight at shared storage holds it back, because other hosts use that or may do so. A pool
    /// that gives less than it should is slow.
    fn pool_holds_back(&self) -> bool {
        let DeviceState { serving, full, other_hosts, .. } = self.device;
        serving && full >= DEVICE_FULL && !self.device.is_slow() && other_hosts.is_some_and(OtherHosts::matter)
    }

    fn device_or_others(&self) -> Cause {
        if self.pool_holds_back() && (self.device.misses_reservations || !self.has_neighbours()) {
            return Cause::Pool;
        }
        if self.misses_reservations() || !self.has_neighbours() { Cause::Device } else { self.others() }
    }

    /// Whether the device gave less than VMs with a queue had reserved. Reservations beyond the stated capacity are no fault of a
    /// device that gives all of it.
    fn misses_reservations(&self) -> bool {
        self.device.misses_reservations && self.device.given.is_none_or(|given| given < NEARLY_ALL)
    }

    /// Reservations of others, or their weights: whichever they got more by. A VM that gets all that it has reserved competes for
    /// the rest by weight alone, unless no VM is served by weight.
    fn others(&self) -> Cause {
        let Others { cost, by_reservation, by_weight, .. } = *self.others;
        let has_its_reservation = self.policy.is_reserved() && self.missing_of_reservation().is_none();
        let is_by_weight = by_weight > OTHERS_BY_WEIGHT * cost as f64;
        match () {
            () if has_its_reservation && is_by_weight => Cause::OthersWeight,
            () if by_reservation > by_weight => Cause::OthersReservation,
            () => Cause::OthersWeight,
        }
    }
}

/// The facts behind [`Cause::OwnQueue`], in words: what is outstanding, and what its reservation needs. `None` without requests.
///
/// By Little's law a VM with n requests outstanding that take t seconds each gets n / t requests per second, and no more.
#[must_use]
pub fn own_queue_in_words(policy: &Policy, flow: &Flow) -> Option<String> {
    let (latency, outstanding) = (flow.mean_latency()?, flow.mean_outstanding());
    let (millis, spells) = (1e3 * latency, flow.per_second(flow.spells as f64));
    let mut words = format!("{outstanding:.1} requests outstanding on average, each for {millis:.1} ms");
    let got = flow.per_second(flow.dispatched_requests());
    let reserved = policy.reservation.iops.map(|rate| rate.as_f64()).filter(|rate| got < NEARLY_ALL * rate);
    if let (Some(rate), true) = (reserved, got > 0.0) {
        words += &format!("; {rate:.0} iops need {:.1}", outstanding * rate / got);
    }
    let queued = 100.0 * flow.backlogged();
    match () {
        () if flow.backlogged() < SELDOM_QUEUED => {
            words += &format!("; none was queued for {:.0} % of the time", 100.0 - queued)
        }
        () if spells >= 1.0 => {
            words +=
                &format!("; its queue was empty {spells:.0} times per second, when slots of the device became free");
        }
        () => {}
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load that begins or ends within a second fills the device for a part of it.
    #[test]
    fn a_device_that_was_full_for_a_part_of_a_second_was_called_slow() {
        let device = |full: f64, given: f64| DeviceState {
            serving: true,
            is_late: false,
            full,
            worked: 0.3,
            late: Lateness::default(),
            given: Some(given),
            other_hosts: None,
            turn: 0.0,
            misses_reservations: false,
        };
        assert!(!device(0.84, 0.83).is_slow() && !device(0.6, 0.6).is_slow());
        assert!(device(1.0, 0.83).is_slow() && device(0.84, 0.5).is_slow());
    }
}
