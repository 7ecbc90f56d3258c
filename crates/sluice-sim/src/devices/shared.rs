//! One device before several hosts: a wrapper that gives each host a model of its own.
//!
//! All hosts submit to the same model, under slots that it numbers, and each completes its own jobs. The path of a host may be slower:
//! then it sees its jobs complete later than they do.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;
use sluice_sched::slab::Slab;

use super::speed::{Speed, VariableSpeed};
use super::{Changeable, Job, Model};

/// The device as one host sees it.
pub struct SharedModel {
    number: usize,
    device: Rc<RefCell<Device>>,
}

/// The model, and what it serves.
struct Device {
    model: VariableSpeed,
    /// By slot of the model.
    jobs: Slab<Pending>,
    /// When the last job was submitted.
    submitted: Instant,
    hosts: Vec<Host>,
}

/// A job in the model.
#[derive(Clone, Copy)]
struct Pending {
    host: usize,
    /// At the host's gate; `None` if that host has failed since, or the job has completed.
    slot: Option<Slot>,
    at: Instant,
}

struct Host {
    /// Its jobs take this many times as long.
    path: f64,
    /// Jobs in the model.
    served: usize,
    /// Jobs that have completed, by the time at which the host sees that.
    completed: VecDeque<(Instant, Slot)>,
    /// Jobs that the model dropped, with the time.
    dropped: VecDeque<(Instant, Slot)>,
    /// Number of jobs dropped so far.
    drops: u64,
}

/// The models of `hosts` that share `model`.
#[must_use]
pub fn share(model: Box<dyn Model>, hosts: usize) -> Vec<SharedModel> {
    let new = || Host { path: 1.0, served: 0, completed: VecDeque::new(), dropped: VecDeque::new(), drops: 0 };
    let device = Device {
        model: VariableSpeed::new(model),
        jobs: Slab::default(),
        submitted: Instant::ZERO,
        hosts: (0..hosts).map(|_| new()).collect(),
    };
    let device = Rc::new(RefCell::new(device));
    (0..hosts).map(|number| SharedModel { number, device: Rc::clone(&device) }).collect()
}

impl Device {
    /// Gives each host the jobs that have completed by `now`.
    fn advance(&mut self, now: Instant) {
        self.sort_dropped();
        while self.model.next().is_some_and(|at| at <= now)
            && let Some(Slot(number)) = self.model.take(now)
        {
            let Pending { host, slot, at } = self.jobs.remove(number);
            let Some(slot) = slot.take() else { continue };
            let host = &mut self.hosts[*host];
            host.served -= 1;
            let longer = (now.nanos_since(*at) as f64 * (host.path - 1.0)) as u64;
            let seen = Instant::from_nanos(now.as_nanos() + longer);
            let place = host.completed.partition_point(|(other, _)| *other <= seen);
            host.completed.insert(place, (seen, slot));
            self.sort_dropped();
        }
    }

    /// Gives each host the jobs that were dropped.
    fn sort_dropped(&mut self) {
        while let Some(Slot(number)) = self.model.take_dropped() {
            let Pending { host, slot, .. } = self.jobs.remove(number);
            let Some(slot) = slot.take() else { continue };
            let host = &mut self.hosts[*host];
            (host.served, host.drops) = (host.served - 1, host.drops + 1);
            host.dropped.push_back((self.submitted, slot));
        }
    }
}

impl Model for SharedModel {
    fn submit(&mut self, now: Instant, job: Job) {
        let device = &mut *self.device.borrow_mut();
        device.advance(now);
        device.submitted = now;
        device.hosts[self.number].served += 1;
        let number = device.jobs.insert(Pending { host: self.number, slot: Some(job.slot), at: now });
        device.model.submit(now, Job { slot: Slot(number), ..job });
    }

    fn settle(&mut self, now: Instant) {
        self.device.borrow_mut().model.settle(now);
    }

    fn next(&self) -> Option<Instant> {
        let device = self.device.borrow();
        let Host { completed, dropped, .. } = &device.hosts[self.number];
        let own = [completed.front(), dropped.front()].into_iter().flatten().map(|(at, _)| *at);
        // Every host looks at the model, as only one of them may have a job there.
        own.chain(device.model.next()).min()
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let device = &mut *self.device.borrow_mut();
        device.advance(now);
        let completed = &mut device.hosts[self.number].completed;
        completed.pop_front_if(|(at, _)| *at <= now).map(|(_, slot)| slot)
    }

    fn take_dropped(&mut self) -> Option<Slot> {
        let device = &mut *self.device.borrow_mut();
        device.sort_dropped();
        device.hosts[self.number].dropped.pop_front().map(|(_, slot)| slot)
    }

    fn jobs_held(&self) -> usize {
        let Host { served, completed, .. } = &self.device.borrow().hosts[self.number];
        served + completed.len()
    }

    fn is_stalled(&self) -> bool {
        self.device.borrow().model.is_stalled()
    }

    fn dropped(&self) -> u64 {
        self.device.borrow().hosts[self.number].drops
    }

    /// That of the device, for all hosts.
    fn busy_nanos(&self) -> u64 {
        self.device.borrow().model.busy_nanos()
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.device.borrow().model.ahead_nanos(now)
    }

    fn servers(&self) -> u32 {
        self.device.borrow().model.servers()
    }

    fn makes_zeroes(&self) -> bool {
        self.device.borrow().model.makes_zeroes()
    }

    fn check_invariants(&self) -> Result<(), String> {
        self.device.borrow().model.check_invariants()
    }

    fn changeable(&mut self) -> Option<&mut dyn Changeable> {
        Some(self)
    }
}

impl Changeable for SharedModel {
    fn set_speed(&mut self, now: Instant, speed: Speed) {
        let device = &mut *self.device.borrow_mut();
        device.advance(now);
        device.model.set(now, speed);
    }

    /// Loses the jobs of this host. The device goes on serving them.
    fn lose(&mut self) -> Vec<Slot> {
        let device = &mut *self.device.borrow_mut();
        let host = &mut device.hosts[self.number];
        host.served = 0;
        let mut lost: Vec<Slot> =
            host.completed.drain(..).chain(host.dropped.drain(..)).map(|(_, slot)| slot).collect();
        let jobs = device.jobs.entries_mut().iter_mut().filter(|job| job.host == self.number);
        lost.extend(jobs.filter_map(|job| job.slot.take()));
        lost
    }

    fn set_path(&mut self, times: f64) {
        self.device.borrow_mut().hosts[self.number].path = times.max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluice_sched::Kind;

    use super::*;
    use crate::devices::servers::{Servers, ServiceTime};
    use crate::random::stream;

    const MS: u64 = 1_000_000;

    fn hosts() -> [SharedModel; 2] {
        let serial = Servers::new(1, ServiceTime::Fixed(Duration::from_millis(1)), stream(1, "service"));
        share(Box::new(serial), 2).try_into().ok().expect("two hosts have two models")
    }

    fn job(slot: u32) -> Job {
        Job { slot: Slot(slot), kind: Kind::Read, offset: 0, length: 4096 }
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn each_host_completes_its_own_jobs() {
        let [mut one, mut two] = hosts();
        one.submit(at(0), job(0));
        two.submit(at(0), job(0));
        one.submit(at(0), job(1));
        assert_eq!((one.next(), two.next()), (Some(at(MS)), Some(at(MS))));
        assert_eq!((two.take(at(MS)), one.take(at(MS)), one.take(at(MS))), (None, Some(Slot(0)), None));
        assert_eq!((one.take(at(2 * MS)), two.take(at(2 * MS))), (None, Some(Slot(0))));
        assert_eq!((one.jobs_held(), two.jobs_held(), one.busy_nanos()), (1, 0, 3 * MS));
        assert_eq!(one.take(at(3 * MS)), Some(Slot(1)));
    }

    #[test]
    fn a_slower_path_delays_what_its_host_sees_and_nobody_else() {
        let [mut one, mut two] = hosts();
        one.set_path(2.0);
        one.submit(at(0), job(0));
        two.submit(at(0), job(0));
        assert_eq!(one.take(at(MS)), None);
        assert_eq!(
            (one.next(), two.take(at(2 * MS)), one.take(at(2 * MS))),
            (Some(at(2 * MS)), Some(Slot(0)), Some(Slot(0)))
        );
    }

    #[test]
    fn jobs_of_a_failed_host_are_served_and_nobody_sees_that() {
        let [mut one, mut two] = hosts();
        one.submit(at(0), job(3));
        two.submit(at(0), job(0));
        assert_eq!((one.lose(), one.jobs_held()), (vec![Slot(3)], 0));
        one.submit(at(0), job(3));
        assert_eq!((one.take(at(MS)), two.take(at(MS))), (None, None));
        assert_eq!((one.take(at(2 * MS)), two.take(at(2 * MS))), (None, Some(Slot(0))));
        assert_eq!((one.take(at(3 * MS)), one.next()), (Some(Slot(3)), None));
        assert_eq!(one.lose(), []);
    }
}
