//! A gate under full load in virtual time.
//!
//! The device takes 32 requests, and completes one every microsecond in the order in which it got them. Reservations add
//! up to half of that, a third of the owners may have four fifths of an equal share, so that each of the three things
//! that mClock decides (due by reservation, next by share, held by limit) happens all the time.

use std::collections::VecDeque;

use rustix::time::{ClockId, clock_gettime};
use sluice_sched::gate::{Slot, Submission};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::Facts;
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{
    Arrival, Device, Flags, Gate, GateSettings, Instant, Kind, OwnerId, Phase, Policy, VolumeId, Wait, schedulers,
};

/// Requests that each owner has waiting.
pub(super) const QUEUED: u32 = 32;

const DEPTH: u32 = 32;
const STEP_NS: u64 = 1_000;
const LENGTHS_KIB: [u32; 8] = [4, 8, 16, 32, 64, 128, 256, 4];
/// Normalised requests per second that the device completes, by the mean cost of [`LENGTHS_KIB`].
const CAPACITY_MILLI: u64 = 1_180_000_000;

/// A gate, its device, and those who ask.
pub(super) struct Harness {
    gate: Gate,
    device: Fifo,
    owners: Vec<(OwnerId, VolumeId)>,
    counts_requests: bool,
    now: u64,
    random: u64,
}

/// Of all dispatches, how many by which right, and how many waited for their owner's limit.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Phases {
    pub(super) reservation: u64,
    pub(super) weight: u64,
    pub(super) limited: u64,
    pub(super) all: u64,
}

/// Completes in order.
#[derive(Default)]
struct Fifo {
    flight: VecDeque<Slot>,
    /// Whose requests were dispatched and are to be replaced.
    dispatched: Vec<u32>,
}

impl Device for Fifo {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.flight.push_back(submission.slot);
        self.dispatched.push(submission.token);
    }
}

/// CPU time of this thread, in nanoseconds.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn policy(index: u32, owners: u32) -> Policy {
    let equal = CAPACITY_MILLI / u64::from(owners);
    let (limit, burst) = if index.is_multiple_of(3) { (equal * 4 / 5, Some(2)) } else { (equal * 4, None) };
    let mut policy = Policy { weight: Some(Weight::new(100 * (1 + index % 5))), ..Policy::default() };
    policy.reservation.iops = Some(Iops::from_milli(equal / 2));
    policy.limit.iops = Some(Iops::from_milli(limit));
    policy.burst = burst;
    policy
}

impl Harness {
    pub(super) fn new(scheduler: &str, owners: u32) -> Result<Harness, String> {
        let descriptor = schedulers::find(scheduler).ok_or_else(|| format!("No scheduler {scheduler}"))?;
        let facts = Facts { depth: DEPTH, ..Facts::default() };
        let scheduler = descriptor.build(&facts, &ParamTable::new()).map_err(|error| error.to_string())?;
        let gate = Gate::new(scheduler, GateSettings { depth: DEPTH, ..GateSettings::default() });
        let device = Fifo { flight: VecDeque::with_capacity(64), dispatched: Vec::with_capacity(64) };
        let (owners_known, counts_requests) =
            (Vec::with_capacity(owners as usize), descriptor.medium.counts_requests());
        let mut harness = Harness { gate, device, owners: owners_known, counts_requests, now: 0, random: 1 };
        for index in 0..owners {
            let owner = harness.add_owner(policy(index, owners));
            harness.owners.push(owner);
        }
        Ok(harness)
    }

    /// One owner with so many volumes, each of which has a policy and a queue as an owner of [`Harness::new`] has. The owner
    /// reserves what they reserve together.
    pub(super) fn of_volumes(scheduler: &str, volumes: u32) -> Result<Harness, String> {
        let mut harness = Harness::new(scheduler, 0)?;
        let now = Instant::from_nanos(0);
        let mut whole = Policy::default();
        whole.reservation.iops = Some(Iops::from_milli(CAPACITY_MILLI / 2));
        let owner = harness.gate.add_owner(now, whole).map_err(|error| error.to_string())?;
        for index in 0..volumes {
            let volume =
                harness.gate.add_volume(now, owner, policy(index + 1, volumes)).map_err(|error| error.to_string())?;
            harness.owners.push((owner, volume));
        }
        Ok(harness)
    }

    /// Lets every owner's queue fill, in turns, so that neighbours in a queue are no neighbours in memory.
    pub(super) fn fill(&mut self) {
        for _ in 0..QUEUED {
            (0..self.owners.len() as u32).for_each(|index| self.insert(index));
        }
    }

    /// Goes on until every owner has been served several times, and from there on until nothing grows any more (`grows`
    /// says whether something did since it was asked last), for at most fifty times as long.
    pub(super) fn warm_up(&mut self, mut grows: impl FnMut() -> bool) {
        for _ in 0..50 {
            let _ = self.run(100_000.max(self.owners.len() as u64 * 5));
            if !grows() {
                return;
            }
        }
    }

    /// Serves so many requests; returns the CPU time in nanoseconds.
    pub(super) fn run(&mut self, requests: u64) -> f64 {
        let mut left = requests;
        let begin = cpu_ns();
        while left > 0 {
            self.now += STEP_NS;
            let now = Instant::from_nanos(self.now);
            if let Some(slot) = self.device.flight.pop_front() {
                let _ = self.gate.complete(now, slot, true);
                left -= 1;
            }
            let wake = self.gate.pump(now, &mut self.device);
            if self.device.flight.is_empty()
                && let Some(wake) = wake
            {
                self.now = wake.as_nanos();
            }
            let mut dispatched = std::mem::take(&mut self.device.dispatched);
            dispatched.drain(..).for_each(|index| self.insert(index));
            self.device.dispatched = dispatched;
        }
        (cpu_ns() - begin) as f64
    }

    /// What it costs to make an owner known and to take its first request, in nanoseconds: at the least a thousand
    /// owners come, a tenth of the present ones at a time, and leave again.
    pub(super) fn add_owners(&mut self, count: u32) -> f64 {
        let present = self.owners.len();
        let at_once = (present as u32 / 10).clamp(10, 1_000).min(count);
        let (mut spent, mut added) = (0, 0);
        while added < count {
            let begin = cpu_ns();
            for index in 0..at_once {
                let owner = self.add_owner(policy(index, present as u32));
                self.owners.push(owner);
                self.insert((self.owners.len() - 1) as u32);
            }
            spent += cpu_ns() - begin;
            added += at_once;
            let now = Instant::from_nanos(self.now);
            for (owner, _) in self.owners.drain(present..).rev() {
                self.gate.remove_owner(now, owner, &mut Vec::new()).expect("it was added before");
            }
        }
        spent as f64 / f64::from(added)
    }

    /// What has been decided so far.
    pub(super) fn phases(&self) -> Phases {
        let mut phases = Phases::default();
        for (owner, _) in &self.owners {
            let account = self.gate.account(*owner).expect("it was added before");
            phases.reservation += account.dispatched_in(Phase::Reservation);
            phases.weight += account.dispatched_in(Phase::Weight);
            phases.limited += account.waited_for(Wait::OwnLimit);
            phases.all += account.dispatched.iter().sum::<u64>();
        }
        phases
    }

    /// Without rates of requests, if the scheduler counts bytes and refuses them.
    fn add_owner(&mut self, mut policy: Policy) -> (OwnerId, VolumeId) {
        if !self.counts_requests {
            (policy.reservation.iops, policy.limit.iops) = (None, None);
        }
        let now = Instant::from_nanos(self.now);
        let owner = self.gate.add_owner(now, policy).expect("the policy is sound");
        let volume = self.gate.add_volume(now, owner, Policy::default()).expect("it is the first");
        (owner, volume)
    }

    #[inline]
    fn insert(&mut self, index: u32) {
        let (owner, volume) = self.owners[index as usize];
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let arrival = Arrival {
            owner,
            volume,
            kind: Kind::Read,
            flags: Flags::SYNC,
            offset: self.random >> 24 << 12,
            length: LENGTHS_KIB[self.random as usize % LENGTHS_KIB.len()] << 10,
            token: index,
            remote: None,
        };
        let now = Instant::from_nanos(self.now);
        self.gate.insert(now, &arrival).expect("the queue has room");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_mclock_decides_happens() {
        let mut harness = Harness::new("mclock", 10).unwrap();
        harness.fill();
        harness.run(20_000);
        assert_eq!(harness.gate.queued(), u64::from(10 * QUEUED));
        let Phases { reservation, weight, limited, all } = harness.phases();
        assert_eq!(reservation + weight, all);
        assert!([reservation, weight, limited].iter().all(|part| *part > all / 50), "{:?}", harness.phases());
        assert!(harness.add_owners(20) > 0.0);
        assert_eq!(harness.gate.queued(), u64::from(10 * QUEUED));
    }
}
