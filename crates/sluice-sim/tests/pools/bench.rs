//! Hosts before one device, their VMs, and what is measured.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use sluice_pool::exchange::{State, Trouble};
use sluice_sched::admission::Capacity;
use sluice_sched::policy::Reservation;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::Iops;
use sluice_sched::{Gate, GateSettings, Instant, Kind, Policy};
use sluice_sim::checks::check;
use sluice_sim::devices::Model;
use sluice_sim::devices::linear::{Coefficients, Linear};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::shared::share;
use sluice_sim::engine::{Change, Completed, Meeting, Placement, Simulation, Thread};
use sluice_sim::random::{Stream, stream};
use sluice_sim::workloads::{Workload, WorkloadRequest};

pub(super) const DEVICES: [Device; 2] = [Device::Fifo, Device::Servers(8)];
/// What the device of all rows delivers.
pub(super) const RATE: u32 = 2000;
pub(super) const LATENCY: Duration = Duration::from_millis(8);
/// From here on windows count.
pub(super) const WARM: u64 = 3;
/// Device times are summed over this.
const BUCKET_MS: u64 = 100;

/// How the device serves requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Device {
    /// One after the other, each in the same time.
    Fifo,
    /// A number of servers of exponential time.
    Servers(u32),
    /// One after the other, by their cost.
    ByCost,
}

/// A VM of a row.
#[derive(Debug, Clone)]
pub(super) struct Vm {
    /// From 0.
    pub host: usize,
    /// Requests per second.
    pub reserved: u32,
    pub outstanding: u32,
    pub length: u32,
    pub think: Duration,
    /// Times in milliseconds, and the part of its outstanding requests from then on, in percent.
    pub levels: Vec<(u64, u32)>,
}

/// A row: hosts, VMs, and how they meet.
#[derive(Debug, Clone)]
pub(super) struct Bench {
    pub hosts: usize,
    pub vms: Vec<Vm>,
    pub device: Device,
    /// `None`: they do not, and only the depth bounds what is in flight.
    pub meeting: Option<Meeting>,
    pub seed: u64,
    pub changes: Vec<(u64, Change)>,
}

/// What a row gave.
pub(super) struct Measured {
    simulation: Simulation,
    times: Rc<RefCell<Vec<Sum>>>,
    /// State of the first host at the end of each half second.
    pub states: Vec<State>,
    vms: Vec<Vm>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    cost: u64,
    cost_nanos: u128,
}

/// A thread with one request outstanding, while it has a turn.
struct Turns {
    /// Ascending.
    spans: Vec<(Instant, Instant)>,
    next: Option<Instant>,
    think: Duration,
    length: u32,
    random: Stream,
}

impl Turns {
    fn turn_from(&self, at: Instant) -> Option<Instant> {
        self.spans.iter().find(|(_, end)| *end > at).map(|(begin, _)| (*begin).max(at))
    }
}

impl Workload for Turns {
    fn next(&self) -> Option<Instant> {
        self.next
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        self.next = None;
        let offset = self.random.below(1 << 18) << 12;
        WorkloadRequest { kind: Kind::Read, offset, length: self.length }
    }

    fn completed(&mut self, now: Instant) {
        self.next = self.turn_from(now + self.think);
    }
}

pub(super) fn vm(host: usize, reserved: u32, outstanding: u32) -> Vm {
    Vm { host, reserved, outstanding, length: 8192, think: Duration::ZERO, levels: vec![(0, 100)] }
}

pub(super) fn meeting() -> Meeting {
    Meeting {
        capacity: Capacity { iops: Some(Iops::per_second(RATE.into())), bytes: None },
        request_bytes: 8192,
        latency: LATENCY,
        delay: Duration::from_millis(5),
        lost: 0.0,
        torn: 0.0,
    }
}

fn gate() -> Gate {
    let info = DeviceInfo { depth: 256, ..DeviceInfo::default() };
    let scheduler = sluice_papers::find("mclock").unwrap().build(&info, &Default::default()).unwrap();
    Gate::new(scheduler, GateSettings { depth: 256, ..GateSettings::default() })
}

fn model(device: Device, seed: u64) -> Box<dyn Model> {
    let servers = |count: u32, time: fn(Duration) -> ServiceTime| {
        let mean = Duration::from_secs_f64(f64::from(count) / f64::from(RATE));
        Box::new(Servers::new(count, time(mean), stream(seed, "service"))) as Box<dyn Model>
    };
    match device {
        Device::Fifo => servers(1, ServiceTime::Fixed),
        Device::Servers(count) => servers(count, ServiceTime::Exponential),
        Device::ByCost => {
            // 2,000 of 8 KiB per second; 300,000 bytes take as long as the positioning does.
            let nanos = |bytes: u64| (bytes + 300_000) * 500_000 / 308_192;
            let (iops, bps) = (1_000_000_000 / nanos(4096), 308_192 * u64::from(RATE));
            let of_all =
                Coefficients { rbps: bps, rseqiops: iops, rrandiops: iops, wbps: bps, wseqiops: iops, wrandiops: iops };
            Box::new(Linear::new(&of_all))
        }
    }
}

impl Bench {
    pub(super) fn new(device: Device, hosts: usize, vms: Vec<Vm>) -> Self {
        Bench { hosts, vms, device, meeting: Some(meeting()), seed: 1, changes: Vec::new() }
    }

    /// The first host has db, which reserves 800, and each other an aggressor.
    pub(super) fn db(device: Device, hosts: usize, length: u32) -> Self {
        let aggressor = |host| Vm { length, ..vm(host, 0, 32) };
        Bench::new(device, hosts, [vm(0, 800, 16)].into_iter().chain((1..hosts).map(aggressor)).collect())
    }

    pub(super) fn alone(self) -> Self {
        Bench { meeting: None, ..self }
    }

    pub(super) fn seed(self, seed: u64) -> Self {
        Bench { seed, ..self }
    }

    pub(super) fn meeting(mut self, change: impl FnOnce(&mut Meeting)) -> Self {
        change(self.meeting.as_mut().expect("they meet"));
        self
    }

    pub(super) fn change(mut self, second: u64, change: Change) -> Self {
        self.changes.push((second, change));
        self
    }

    fn build(&self) -> Simulation {
        let mut models = share(model(self.device, self.seed), self.hosts).into_iter();
        let first = Box::new(models.next().expect("there is a host"));
        let mut simulation = Simulation::new(gate(), first, Duration::from_secs(WARM), Duration::from_secs(1));
        models.for_each(|model| _ = simulation.add_node(gate(), Box::new(model)));
        if let Some(meeting) = self.meeting {
            simulation.share_pool(0..self.hosts, meeting, stream(self.seed, "pool"));
        }
        for (second, change) in &self.changes {
            simulation.plan_change(Instant::from_millis(1000 * second), change.clone());
        }
        for (number, vm) in self.vms.iter().enumerate() {
            let iops = (vm.reserved > 0).then(|| Iops::per_second(vm.reserved.into()));
            let policy = Policy { reservation: Reservation { iops, bytes: None }, ..Policy::default() };
            let added = simulation.add_vm_at(Placement::Pinned(vm.host), policy).unwrap();
            for thread in 0..vm.outstanding {
                let random = stream(self.seed, &format!("vm {number} thread {thread}"));
                let mut turns =
                    Turns { spans: spans(vm, thread), next: None, think: vm.think, length: vm.length, random };
                turns.next = turns.turn_from(Instant::ZERO);
                simulation.add_thread(added, Thread::new(Box::new(turns))).unwrap();
            }
        }
        simulation
    }

    /// Runs it for this number of seconds after [`WARM`].
    pub(super) fn run(&self, seconds: u64) -> Measured {
        let mut simulation = self.build();
        let times = Rc::new(RefCell::new(vec![Sum::default(); ((WARM + seconds) * 1000 / BUCKET_MS + 1) as usize]));
        let (sums, costs) = (Rc::clone(&times), GateSettings::default().cost);
        simulation.observe(Box::new(move |over: &Completed| {
            let cost = u64::from(costs.cost(over.kind, over.length).raw());
            let sum = &mut sums.borrow_mut()[(over.completed.as_nanos() / 1_000_000 / BUCKET_MS) as usize];
            sum.cost += cost;
            sum.cost_nanos += u128::from(cost) * u128::from(over.completed.nanos_since(over.dispatched));
        }));
        let mut states = Vec::new();
        for half in 1..=2 * (WARM + seconds) {
            simulation.run_until(Instant::from_millis(500 * half));
            states.extend(simulation.pool_of(0));
        }
        assert_eq!(check(&simulation), []);
        Measured { simulation, times, states, vms: self.vms.clone() }
    }
}

/// When a thread of a VM submits.
fn spans(vm: &Vm, thread: u32) -> Vec<(Instant, Instant)> {
    let ends = vm.levels.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX / 1_000_000]);
    let turns = vm.levels.iter().zip(ends).filter(|((_, percent), _)| thread * 100 < vm.outstanding * percent);
    turns.map(|((begin, _), end)| (Instant::from_millis(*begin), Instant::from_millis(end))).collect()
}

impl Measured {
    /// Completed requests of a VM in each second after [`WARM`].
    pub(super) fn series(&self, vm: usize) -> Vec<u64> {
        let end = (self.simulation.now().as_nanos() / 1_000_000_000 - WARM) as usize;
        let mut series: Vec<u64> = self.simulation.record(vm).series().iter().map(|window| window.completed).collect();
        series.resize(end, 0);
        series
    }

    /// The part of the seconds in which a VM got less than 95 % of what it reserves.
    pub(super) fn short(&self, vm: usize) -> f64 {
        let (series, least) = (self.series(vm), f64::from(self.vms[vm].reserved) * 0.95);
        series.iter().filter(|got| (**got as f64) < least).count() as f64 / series.len() as f64
    }

    /// The first seconds in which it was short, and what it got.
    pub(super) fn short_seconds(&self, vm: usize) -> String {
        let (series, least) = (self.series(vm), f64::from(self.vms[vm].reserved) * 0.95);
        let short = (WARM..).zip(series).filter(|(_, got)| (*got as f64) < least).take(12);
        let short: Vec<String> = short.map(|(second, got)| format!("{second}: {got}")).collect();
        if short.is_empty() { String::new() } else { format!(" ({})", short.join(", ")) }
    }

    /// Completed raw cost per second, in normalised requests.
    pub(super) fn total_cost(&self) -> f64 {
        let sum: u64 = self.times.borrow()[(WARM * 1000 / BUCKET_MS) as usize..].iter().map(|sum| sum.cost).sum();
        sum as f64 / 65_536.0 / (self.simulation.now().as_nanos() as f64 / 1e9 - WARM as f64)
    }

    /// Mean time at the device between two times in milliseconds, by cost, in milliseconds.
    pub(super) fn time(&self, from: u64, to: u64) -> f64 {
        let times = self.times.borrow();
        let to = to.min(BUCKET_MS * times.len() as u64);
        let sums = &times[(from / BUCKET_MS) as usize..(to / BUCKET_MS) as usize];
        let nanos: u128 = sums.iter().map(|sum| sum.cost_nanos).sum();
        nanos as f64 / sums.iter().map(|sum| sum.cost).sum::<u64>().max(1) as f64 / 1e6
    }

    /// The same from [`WARM`] to the end.
    pub(super) fn mean_time(&self) -> f64 {
        self.time(WARM * 1000, u64::MAX)
    }

    /// The largest mean of any half second between two times.
    pub(super) fn peak(&self, from: u64, to: u64) -> f64 {
        (from..to - 400).step_by(BUCKET_MS as usize).map(|at| self.time(at, at + 500)).fold(0.0, f64::max)
    }

    /// Mean and standard deviation of the window of the pool from [`WARM`] + 7 s on.
    pub(super) fn window(&self) -> (f64, f64) {
        let late = &self.states[2 * (WARM as usize + 7)..];
        let windows: Vec<f64> = late.iter().map(|state| state.window as f64 / 65_536.0).collect();
        let mean = windows.iter().sum::<f64>() / windows.len() as f64;
        let square = windows.iter().map(|window| (window - mean).powi(2)).sum::<f64>() / windows.len() as f64;
        (mean, square.sqrt())
    }

    /// Whether the first host ever found such a trouble.
    pub(super) fn found(&self, is_it: impl Fn(&Trouble) -> bool) -> bool {
        self.states.iter().any(|state| state.troubles.iter().any(&is_it))
    }

    /// Windows of VMs that reserve: short ones and all, first those later than `periods` after a jump of the VM and then the others.
    /// Seconds in which a VM has nothing to do do not count.
    pub(super) fn after_jumps(&self, periods_ms: u64) -> [(u64, u64); 2] {
        let mut counts = [(0, 0); 2];
        for (number, vm) in self.vms.iter().enumerate().filter(|(_, vm)| vm.reserved > 0) {
            for (second, got) in self.series(number).into_iter().enumerate() {
                let begin = 1000 * (WARM + second as u64);
                let level =
                    |at: u64| vm.levels.iter().rev().find(|(from, _)| *from <= at).map_or((0, 0), |level| *level);
                let ((since, percent), (_, before)) = (level(begin + 999), level(begin));
                if percent == 0 || before == 0 {
                    continue;
                }
                let count = &mut counts[usize::from(since > 0 && begin < since + periods_ms)];
                count.0 += u64::from((got as f64) < 0.95 * f64::from(vm.reserved));
                count.1 += 1;
            }
        }
        counts
    }
}
