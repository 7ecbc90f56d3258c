//! A gate under full load in virtual time.
//!
//! The device takes 32 requests, and completes one every microsecond in the order of submission. Reservations add up
//! to half of its capacity, and a third of the owners have a limit of four fifths of an equal share. So all three
//! cases of mClock (due by reservation, next by share, held back by a limit) occur continuously.

use std::collections::VecDeque;

use rustix::time::{ClockId, clock_gettime};
use sluice_sched::gate::{Slot, Submission};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{
    Arrival, Device, Flags, Gate, GateSettings, Instant, Kind, OwnerId, Phase, Policy, Scheduler, VolumeId, Wait,
};

use super::textbook::Textbook;

/// Name of the baseline that is not one of the product's schedulers.
pub(super) const TEXTBOOK: &str = "textbook";
/// Number of queued requests of each owner.
pub(super) const QUEUED: u32 = 32;

const DEPTH: u32 = 32;
const STEP_NS: u64 = 1_000;
const LENGTHS_KIB: [u32; 8] = [4, 8, 16, 32, 64, 128, 256, 4];
/// Normalised requests that the device completes per second, from the mean cost of [`LENGTHS_KIB`].
const CAPACITY_MILLI: u64 = 1_180_000_000;

/// A gate, its device and its owners.
pub(super) struct Harness {
    gate: Gate,
    device: Fifo,
    owners: Vec<(OwnerId, VolumeId)>,
    counts_requests: bool,
    now: u64,
    random: u64,
}

/// Numbers of dispatches by phase, and of those that waited for their owner's limit.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Phases {
    pub(super) reservation: u64,
    pub(super) weight: u64,
    pub(super) limited: u64,
    pub(super) all: u64,
}

/// A device that completes in order.
#[derive(Default)]
struct Fifo {
    flight: VecDeque<Slot>,
    /// Owners of dispatched requests that must be replaced.
    dispatched: Vec<u32>,
}

impl Device for Fifo {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.flight.push_back(submission.slot);
        self.dispatched.push(submission.token);
    }
}

/// Returns the CPU time of this thread, in nanoseconds.
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

/// Builds a scheduler. Also returns whether it accepts rates in requests.
fn build(name: &str) -> Result<(Box<dyn Scheduler>, bool), String> {
    if name == TEXTBOOK {
        return Ok((Box::new(Textbook::default()), true));
    }
    let descriptor = sluice_papers::find(name).ok_or_else(|| format!("No scheduler {name}"))?;
    let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
    let scheduler = descriptor.build(&info, &ParamTable::new()).map_err(|error| error.to_string())?;
    Ok((scheduler, descriptor.is_for(DeviceClass::Disk)))
}

impl Harness {
    pub(super) fn new(scheduler: &str, owners: u32) -> Result<Harness, String> {
        let (scheduler, counts_requests) = build(scheduler)?;
        let gate = Gate::new(scheduler, GateSettings { depth: DEPTH, ..GateSettings::default() });
        let device = Fifo { flight: VecDeque::with_capacity(64), dispatched: Vec::with_capacity(64) };
        let owners_known = Vec::with_capacity(owners as usize);
        let mut harness = Harness { gate, device, owners: owners_known, counts_requests, now: 0, random: 1 };
        for index in 0..owners {
            let owner = harness.add_owner(policy(index, owners));
            harness.owners.push(owner);
        }
        Ok(harness)
    }

    /// Creates a gate with one owner of `volumes` volumes. Each has the policy and queue of an owner of
    /// [`Harness::new`], and the owner reserves their sum.
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

    /// Fills the queues of all owners in turn, so that neighbours in a queue are not neighbours in memory.
    pub(super) fn fill(&mut self) {
        for _ in 0..QUEUED {
            (0..self.owners.len() as u32).for_each(|index| self.insert(index));
        }
    }

    /// Runs until every owner has been served several times, and then until memory stops growing, for at most fifty
    /// times as long. `grows` reports whether it grew since the last call.
    pub(super) fn warm_up(&mut self, mut grows: impl FnMut() -> bool) {
        for _ in 0..50 {
            let _ = self.run(100_000.max(self.owners.len() as u64 * 5));
            if !grows() {
                return;
            }
        }
    }

    /// Serves `requests` requests. Returns the CPU time in nanoseconds.
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

    /// Returns the cost of adding an owner and inserting its first request, in nanoseconds. At least a thousand
    /// owners are added, a tenth of the present number at a time, and removed again.
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

    /// Returns the dispatches so far.
    pub(super) fn phases(&self) -> Phases {
        let mut phases = Phases::default();
        for (owner, _) in &self.owners {
            let stats = self.gate.stats(*owner).expect("it was added before");
            phases.reservation += stats.dispatched_in(Phase::Reservation);
            phases.weight += stats.dispatched_in(Phase::Weight);
            phases.limited += stats.waited_for(Wait::OwnLimit);
            phases.all += stats.dispatched.iter().sum::<u64>();
        }
        phases
    }

    /// Adds an owner, without rates in requests if the scheduler rejects them because it counts bytes.
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
    fn every_kind_of_decision_of_mclock_occurs() {
        for name in ["mclock", TEXTBOOK] {
            let mut harness = Harness::new(name, 10).unwrap();
            harness.fill();
            harness.run(20_000);
            assert_eq!(harness.gate.queued(), u64::from(10 * QUEUED));
            let Phases { reservation, weight, limited, all } = harness.phases();
            assert_eq!(reservation + weight, all);
            let parts = [reservation, weight, limited];
            assert!(parts.iter().all(|part| *part > all / 50), "{name}: {:?}", harness.phases());
            assert!(harness.add_owners(20) > 0.0);
            assert_eq!(harness.gate.queued(), u64::from(10 * QUEUED));
        }
    }

    /// The baseline decides as the product does where both have the same rules.
    #[test]
    fn the_baseline_gives_owners_what_mclock_gives_them() {
        let served = |name: &str| {
            let mut harness = Harness::new(name, 10).unwrap();
            harness.fill();
            harness.run(200_000);
            let stats = harness.owners.iter().map(|(owner, _)| harness.gate.stats(*owner).unwrap().cost as f64);
            stats.collect::<Vec<_>>()
        };
        for (own, textbook) in served("mclock").into_iter().zip(served(TEXTBOOK)) {
            assert!((textbook / own - 1.0).abs() < 0.1, "{own} and {textbook}");
        }
    }
}
