//! A simulated device whose gate is sampled each virtual second.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sluice_api::cause::Cause;
use sluice_api::event::{Event, EventKind, Phase};
use sluice_api::status::Vm;
use sluice_observe::observer::Observer;
use sluice_observe::sample::{CpuSample, DeviceSample, PoolSample, Sample, VmSample, VolumeSample};
use sluice_pool::{State, exchange};
use sluice_sched::admission::Capacity;
use sluice_sched::gate::Slot;
use sluice_sched::gate::histogram::Histogram;
use sluice_sched::params::{ParamTable, Value};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{ByteRate, CostModel, Gate, GateSettings, Instant, Iops, Policy};
use sluice_sim::devices::{Job, Model};
use sluice_sim::engine::{Change, Simulation};
use sluice_sim::random::stream;
use sluice_sim::workloads::{Address, Closed, Mix, Workload};

pub(crate) const KIB: u32 = 1024;

/// A device of exactly its capacity: one request at a time, each of which takes its part of the requests or of the bytes,
/// whichever is longer.
pub(crate) struct Exact {
    capacity: Capacity,
    cost: CostModel,
    line: VecDeque<(Slot, u64)>,
    ends: Instant,
    busy: u64,
}

impl Exact {
    pub(crate) fn model(capacity: Capacity, cost: CostModel) -> Box<dyn Model> {
        Box::new(Exact { capacity, cost, line: VecDeque::new(), ends: Instant::ZERO, busy: 0 })
    }

    fn takes(&self, job: &Job) -> u64 {
        let by_requests =
            self.capacity.iops.map_or(0.0, |rate| self.cost.cost(job.kind, job.length).as_f64() / rate.as_f64());
        let by_bytes = self.capacity.bytes.map_or(0.0, |rate| f64::from(job.length) / rate.bytes_per_second() as f64);
        ((by_requests.max(by_bytes) * 1e9) as u64).max(1)
    }
}

impl Model for Exact {
    fn submit(&mut self, now: Instant, job: Job) {
        let takes = self.takes(&job);
        if self.line.is_empty() {
            self.ends = now + Duration::from_nanos(takes);
        }
        self.busy += takes;
        self.line.push_back((job.slot, takes));
    }

    fn next(&self) -> Option<Instant> {
        self.line.front().map(|_| self.ends)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        if self.line.is_empty() || self.ends > now {
            return None;
        }
        let (slot, _) = self.line.pop_front()?;
        if let Some((_, takes)) = self.line.front() {
            self.ends = self.ends + Duration::from_nanos(*takes);
        }
        Some(slot)
    }

    fn jobs_held(&self) -> usize {
        self.line.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn servers(&self) -> u32 {
        1
    }
}

/// The gate and the device of a test.
pub(crate) struct Setup {
    pub(crate) scheduler: &'static str,
    pub(crate) params: &'static [(&'static str, &'static str)],
    pub(crate) depth: u32,
    pub(crate) rotational: bool,
    /// Stated capacity of the device.
    pub(crate) stated: Capacity,
}

impl Setup {
    pub(crate) fn new(scheduler: &'static str, depth: u32, stated: Capacity) -> Setup {
        Setup { scheduler, params: &[], depth, rotational: false, stated }
    }
}

pub(crate) fn iops(rate: u64) -> Capacity {
    Capacity { iops: Some(Iops::per_second(rate)), bytes: None }
}

pub(crate) fn both(rate: u64, bytes: u64) -> Capacity {
    Capacity { iops: Some(Iops::per_second(rate)), bytes: Some(ByteRate::per_second(bytes)) }
}

pub(crate) fn at(seconds: u64) -> Instant {
    Instant::from_millis(1000 * seconds)
}

/// A simulation, and the observer of its gate.
pub(crate) struct Observed {
    pub(crate) simulation: Simulation,
    pub(crate) observer: Observer,
    names: Vec<String>,
    capacity: Capacity,
    pub(crate) second: u64,
    /// Part of the time in which the device thread works.
    pub(crate) worked: f64,
    worked_nanos: u64,
    /// Times by which the device thread was late.
    late: (u64, Histogram),
    /// CPU time of the VMs, by number.
    pub(crate) cpu: Vec<CpuSample>,
    pub(crate) serving: bool,
    /// Policy of every volume.
    pub(crate) volume_policy: Policy,
    /// What the host file states of its pool, and what the exchange with other hosts says of it.
    pub(crate) pool: Option<(PoolSample, exchange::State)>,
    pub(crate) events: Vec<Event>,
}

impl Observed {
    pub(crate) fn new(setup: &Setup, model: Box<dyn Model>) -> Observed {
        let defaults = GateSettings::default();
        let request_bytes = setup.stated.request_bytes().unwrap_or_else(|| defaults.cost.reference_size());
        let info =
            DeviceInfo { depth: setup.depth, rotational: setup.rotational, request_bytes, ..DeviceInfo::default() };
        let value = |text: &str| text.parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Integer);
        let params: ParamTable = setup.params.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
        let scheduler = sluice_papers::find(setup.scheduler).unwrap().build(&info, &params).unwrap();
        let gate = Gate::new(scheduler, GateSettings { depth: setup.depth, request_bytes, ..defaults });
        Observed {
            simulation: Simulation::new(gate, model, Duration::ZERO, Duration::from_secs(3600)),
            observer: Observer::default(),
            names: Vec::new(),
            capacity: setup.stated,
            second: 0,
            worked: 0.1,
            worked_nanos: 0,
            late: (0, Histogram::default()),
            cpu: Vec::new(),
            serving: true,
            volume_policy: Policy::default(),
            pool: None,
            events: Vec::new(),
        }
    }

    /// A device that gives exactly `gives`.
    pub(crate) fn exact(setup: &Setup, gives: Capacity) -> Observed {
        Observed::new(setup, Exact::model(gives, CostModel::default()))
    }

    pub(crate) fn add(&mut self, name: &str, policy: Policy, workload: Box<dyn Workload>) -> usize {
        self.names.push(name.to_owned());
        let base = (self.names.len() as u64) << 36;
        self.simulation.add_vm(policy, base, workload).unwrap()
    }

    pub(crate) fn rename(&mut self, vm: usize, name: &str) {
        self.names[vm] = name.to_owned();
    }

    /// The window of the simulated device; one in a pool is told by its exchange.
    fn window(&self) -> Option<State> {
        let window = self.simulation.window_of(0)?;
        Some(State { pool: self.pool.as_ref().map(|(_, state)| Arc::new(state.clone())), ..window })
    }

    /// Counters of the gate now.
    pub(crate) fn device_sample(&self) -> DeviceSample {
        let gate = self.simulation.gate(0);
        let vm = |(index, name): (usize, &String)| {
            let (owner, volume) = self.simulation.owner(index, 0).unwrap();
            let volume = VolumeSample {
                volume: "root".to_owned(),
                policy: self.volume_policy,
                stats: gate.apart_stats(owner, volume).map(Arc::new),
                outstanding: 0,
                clients: 1,
                left: 0,
                client_faults: Default::default(),
                faults: Default::default(),
                nic: None,
            };
            VmSample {
                vm: name.clone(),
                policy: *gate.policy(owner).unwrap(),
                stats: Arc::new(gate.stats(owner).unwrap()),
                cpu: self.cpu.get(index).copied().unwrap_or_default(),
                outstanding: self.simulation.record(index).outstanding() as u32,
                volumes: vec![volume],
            }
        };
        DeviceSample {
            restarts: 0,
            failure: None,
            device: "disk".to_owned(),
            at: self.simulation.now(),
            serving: self.serving,
            health: if self.serving { "serving" } else { "down" },
            depth: gate.settings().depth,
            window: self.window(),
            pool: self.pool.as_ref().map(|(stated, _)| Box::new(stated.clone())),
            capacity: self.capacity,
            queued: gate.queued(),
            in_flight: gate.in_flight(),
            worked_nanos: self.worked_nanos,
            late_nanos: self.late.0,
            late: self.late.1.clone(),
            stats: gate.device_stats().clone(),
            uplink: None,
            vms: self.names.iter().enumerate().map(vm).collect(),
        }
    }

    /// The device thread is late by `millis` milliseconds, before the next sample.
    pub(crate) fn late_by(&mut self, millis: u64) {
        self.late.0 += millis * 1_000_000;
        self.late.1.add(millis * 1_000_000);
    }

    /// Runs for some seconds, with a sample after each.
    pub(crate) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.second += 1;
            self.simulation.run_until(at(self.second));
            self.worked_nanos += (self.worked * 1e9) as u64;
            self.sample();
        }
    }

    pub(crate) fn sample(&mut self) {
        let sample =
            Sample { second: self.second, time: 1_700_000_000 + self.second, devices: vec![self.device_sample()] };
        self.events.extend(self.observer.push(sample));
    }

    pub(crate) fn vm(&self, name: &str) -> Vm {
        self.observer.status().vms.into_iter().find(|vm| vm.vm == name).unwrap()
    }

    /// From now on a VM submits nothing.
    pub(crate) fn stop(&mut self, vm: usize) {
        self.simulation.plan_change(self.simulation.now(), Change::Stop(vm));
    }

    /// Events about a VM, as kind, phase and cause.
    pub(crate) fn of(&self, name: &str) -> Vec<(EventKind, Phase, Cause)> {
        let own = self.events.iter().filter(|event| event.vm.as_deref() == Some(name));
        own.map(|event| (event.kind, event.phase, event.cause)).collect()
    }

    /// Asserts that one promise to `vm` was broken within three samples, has this cause, and ends after `repair` of it.
    pub(crate) fn expect(
        &mut self,
        vm: &str,
        kind: EventKind,
        cause: Cause,
        repair: impl FnOnce(&mut Observed),
    ) -> Event {
        self.run(12);
        assert_eq!(self.of(vm), [(kind, Phase::Began, cause)], "{:#?}", self.events);
        let began = self.events.iter().find(|event| event.vm.as_deref() == Some(vm)).unwrap().clone();
        assert!(began.time <= 1_700_000_003, "{began:?}");
        let promise = self.vm(vm).promises.into_iter().find(|promise| promise.kind == kind).unwrap();
        assert_eq!(promise.cause, Some(cause), "{promise:?}");
        repair(self);
        self.run(20);
        assert_eq!(self.of(vm), [(kind, Phase::Began, cause), (kind, Phase::Ended, cause)], "{:#?}", self.events);
        began
    }
}

/// Random reads of 8 KiB, `outstanding` at a time.
pub(crate) fn closed(outstanding: u32, name: &str) -> Box<dyn Workload> {
    thinking(outstanding, Duration::ZERO, name)
}

pub(crate) fn thinking(outstanding: u32, think: Duration, name: &str) -> Box<dyn Workload> {
    let mix = Mix { reads: 1.0, length: 8 * KIB, address: Address::random(0, 1 << 34) };
    Box::new(Closed::new(outstanding, think, mix, Instant::ZERO, stream(1, name)))
}

/// Sequential reads of 8 KiB.
pub(crate) fn sequential(outstanding: u32, think: Duration, name: &str) -> Box<dyn Workload> {
    let mix = Mix { reads: 1.0, length: 8 * KIB, address: Address::sequential(0, 1 << 34) };
    Box::new(Closed::new(outstanding, think, mix, Instant::ZERO, stream(1, name)))
}

pub(crate) fn within(millis: u64) -> Policy {
    let latency = sluice_sched::policy::LatencyTarget { p99: Duration::from_millis(millis), reads_only: false };
    Policy { latency: Some(latency), ..Policy::default() }
}
