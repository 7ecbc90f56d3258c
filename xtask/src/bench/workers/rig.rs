//! Workers with a closed loop of requests, and what they exchange with a shared gate.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant as Moment;

use rustix::time::{ClockId, clock_gettime};
use sluice_sched::gate::{Slot, Submission};
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{Arrival, Device, Flags, Gate, GateSettings, Instant, Kind, OwnerId, Policy, VolumeId, schedulers};

use super::{combining, decision};

/// Requests that each VM has outstanding.
pub(super) const DEPTH: u32 = 32;
/// Fruitless looks after which a worker yields its CPU.
const LOOKS_MAX: u32 = 64;

/// A way of sharing a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    Alone,
    Combining,
    DecisionThread,
}

/// The load of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) workers: usize,
    /// VMs of each worker.
    pub(super) vms: u32,
    /// Time outside the gate for each request.
    pub(super) work_ns: u64,
    /// Requests of all workers together.
    pub(super) requests: usize,
}

/// Results of a run.
pub(super) struct Run {
    pub(super) per_second: f64,
    /// CPU time of all threads for each request, in nanoseconds.
    pub(super) cpu_ns: f64,
}

/// What a worker tells the gate. It holds no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record {
    Arrived { token: u32 },
    Completed { slot: Slot },
}

/// A request that may go to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) slot: Slot,
    pub(super) token: u32,
}

/// How a worker reaches the gate.
pub(super) trait Exchange: Send {
    /// Posts `records`, which are empty afterwards, and adds what the worker may send to `grants`.
    fn exchange(&mut self, records: &mut Vec<Record>, grants: &mut Vec<Grant>);
}

/// The gate and what it has granted, in order.
pub(super) struct Decider {
    gate: Gate,
    owners: Vec<(OwnerId, VolumeId)>,
    vms: u32,
    start: Moment,
    granted: Granted,
}

/// Requests that the gate let through.
#[derive(Default)]
struct Granted(Vec<Grant>);

impl Device for Granted {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        self.0.push(Grant { slot: submission.slot, token: submission.token });
    }
}

impl Decider {
    pub(super) fn new(load: Load) -> Result<Decider, String> {
        let depth = DEPTH * load.vms * load.workers as u32;
        let info = DeviceInfo { depth, ..DeviceInfo::default() };
        let descriptor = schedulers::find("mclock").ok_or("mclock is in the list")?;
        let scheduler = descriptor.build(&info, &ParamTable::new()).map_err(|error| error.to_string())?;
        let mut gate = Gate::new(scheduler, GateSettings { depth, ..GateSettings::default() });
        let mut owners = Vec::new();
        for index in 0..load.vms * load.workers as u32 {
            let mut policy = Policy { weight: Some(Weight::new(100 * (1 + index % 5))), ..Policy::default() };
            policy.reservation.iops = Some(Iops::from_milli(100_000));
            let now = Instant::ZERO;
            let owner = gate.add_owner(now, policy).map_err(|error| error.to_string())?;
            let volume = gate.add_volume(now, owner, Policy::default()).map_err(|error| error.to_string())?;
            owners.push((owner, volume));
        }
        Ok(Decider { gate, owners, vms: load.vms, start: Moment::now(), granted: Granted::default() })
    }

    /// The instant of the next calls.
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// Handles a record.
    pub(super) fn take(&mut self, now: Instant, record: Record) {
        match record {
            Record::Completed { slot } => {
                let _ = self.gate.complete(now, slot, true);
            }
            Record::Arrived { token } => {
                let (owner, volume) = self.owners[(token / DEPTH) as usize];
                let arrival = Arrival {
                    owner,
                    volume,
                    kind: Kind::Read,
                    flags: Flags::SYNC,
                    offset: u64::from(token) << 12,
                    length: 4096,
                    token,
                    remote: None,
                };
                self.gate.insert(now, &arrival).expect("a VM has at most as many requests as the queue holds");
            }
        }
    }

    /// Decides. Returns what may go to the device, in order.
    pub(super) fn decide(&mut self, now: Instant) -> std::vec::Drain<'_, Grant> {
        let _ = self.gate.pump(now, &mut self.granted);
        self.granted.0.drain(..)
    }

    /// The worker of a request.
    pub(super) fn worker_of(&self, token: u32) -> usize {
        (token / DEPTH / self.vms) as usize
    }
}

/// A gate of one worker.
struct Alone(Decider);

impl Exchange for Alone {
    fn exchange(&mut self, records: &mut Vec<Record>, grants: &mut Vec<Grant>) {
        let now = self.0.now();
        records.drain(..).for_each(|record| self.0.take(now, record));
        grants.extend(self.0.decide(now));
    }
}

/// Measures a way of sharing.
pub(super) fn measure(sharing: Sharing, load: Load) -> Result<Run, String> {
    let decider = Decider::new(load)?;
    match sharing {
        Sharing::Alone => Ok(run(load, vec![Box::new(Alone(decider))], || ())),
        Sharing::Combining => Ok(run(load, combining::share(decider, load.workers), || ())),
        Sharing::DecisionThread => {
            let (ends, thread) = decision::share(decider, load.workers);
            Ok(run(load, ends, move || thread.end()))
        }
    }
}

/// Runs the workers until all requests have completed, and then `end`.
pub(super) fn run(load: Load, exchanges: Vec<Box<dyn Exchange>>, end: impl FnOnce()) -> Run {
    let left = Arc::new(AtomicUsize::new(load.requests));
    let barrier = Arc::new(Barrier::new(load.workers + 1));
    let loops = calibrate(load.work_ns);
    let start = |(number, exchange)| {
        let (left, barrier) = (Arc::clone(&left), Arc::clone(&barrier));
        thread::spawn(move || {
            barrier.wait();
            work(exchange, first_tokens(load, number), loops, &left);
        })
    };
    let workers: Vec<_> = (0..).zip(exchanges).map(start).collect();
    barrier.wait();
    let (began, cpu) = (Moment::now(), process_cpu_ns());
    workers.into_iter().for_each(|worker| worker.join().expect("a worker does not panic"));
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), process_cpu_ns() - cpu);
    end();
    Run { per_second: load.requests as f64 / seconds, cpu_ns: cpu as f64 / load.requests as f64 }
}

fn first_tokens(load: Load, worker: u32) -> Vec<Record> {
    let own = load.vms * DEPTH;
    (worker * own..(worker + 1) * own).map(|token| Record::Arrived { token }).collect()
}

/// One worker: sends what it may, completes it, and takes the next request of the same VM.
fn work(mut exchange: Box<dyn Exchange>, mut records: Vec<Record>, loops: u64, left: &AtomicUsize) {
    let mut grants = Vec::new();
    let mut looks = 0;
    while left.load(Ordering::Relaxed) > 0 {
        exchange.exchange(&mut records, &mut grants);
        looks = if grants.is_empty() { looks + 1 } else { 0 };
        if looks == LOOKS_MAX {
            looks = 0;
            thread::yield_now();
        }
        let done = grants.len();
        for Grant { slot, token } in grants.drain(..) {
            spend(loops);
            records.push(Record::Completed { slot });
            records.push(Record::Arrived { token });
        }
        let _ = left.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(done)));
    }
}

/// Spends time without memory accesses.
fn spend(loops: u64) {
    (0..loops).for_each(|index| {
        black_box(index);
    });
}

/// Returns how many loops of [`spend`] take `nanos`.
fn calibrate(nanos: u64) -> u64 {
    let loops = 2_000_000;
    let began = process_cpu_ns();
    spend(loops);
    (nanos * loops).checked_div(process_cpu_ns() - began).unwrap_or(0)
}

fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
