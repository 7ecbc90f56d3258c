//! The invariants of runs: a broken device violates them, and a correct device does not.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use sluice_sched::gate::Slot;
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::Iops;
use sluice_sched::{Gate, GateSettings, Instant, Policy, schedulers};
use sluice_sim::checks::{Violation, check};
use sluice_sim::devices::array::{Array, Layout};
use sluice_sim::devices::bucket::TokenBucket;
use sluice_sim::devices::hdd::HddSpec;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::devices::{Job, Model};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::workloads::{Address, Closed, Mix, Open, Pattern};

/// One VM with this number of requests outstanding, on a device that holds all of them.
fn simulation(model: Box<dyn Model>, outstanding: u32) -> Simulation {
    let info = DeviceInfo { depth: outstanding, ..DeviceInfo::default() };
    let noop = schedulers::find("noop").unwrap().build(&info, &Default::default()).unwrap();
    let gate = Gate::new(noop, GateSettings { depth: outstanding, ..GateSettings::default() });
    let mut simulation = Simulation::new(gate, model, Duration::from_millis(500), Duration::from_secs(1));
    let mix = Mix { reads: 1.0, length: 4096, address: Address::random(0, 100 << 30) };
    let reads = Closed::new(outstanding, Duration::ZERO, mix, Instant::ZERO, stream(1, "reads"));
    simulation.add_vm(Policy::default(), 0, Box::new(reads)).unwrap();
    simulation
}

fn broken(mut simulation: Simulation) -> Vec<Violation> {
    simulation.run_until(Instant::from_millis(2000));
    check(&simulation)
}

/// Two servers with 1,000 requests per second together.
fn servers() -> Box<dyn Model> {
    Box::new(Servers::new(2, ServiceTime::Fixed(Duration::from_millis(2)), stream(1, "service")))
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Loses a request.
    Loses,
    /// Never completes a request.
    NeverEnds,
    /// Reports more work than possible.
    Boasts,
}

/// A device with a fault at the hundredth request.
struct Faulty {
    device: Box<dyn Model>,
    fault: Fault,
    over: u64,
}

impl Model for Faulty {
    fn submit(&mut self, now: Instant, job: Job) {
        self.device.submit(now, job);
    }

    fn next(&self) -> Option<Instant> {
        let is_hung = self.fault == Fault::NeverEnds && self.over >= 100;
        self.device.next().filter(|_| !is_hung)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        let slot = self.device.take(now)?;
        self.over += 1;
        if self.over == 100 && self.fault == Fault::Loses { self.take(now) } else { Some(slot) }
    }

    fn jobs_held(&self) -> usize {
        self.device.jobs_held()
    }

    fn busy_nanos(&self) -> u64 {
        self.device.busy_nanos() * if self.fault == Fault::Boasts { 2 } else { 1 }
    }

    fn servers(&self) -> u32 {
        self.device.servers()
    }
}

#[test]
fn lost_and_stuck_requests_are_noticed() {
    let with = |fault| broken(simulation(Box::new(Faulty { device: servers(), fault, over: 0 }), 8));
    assert_eq!(with(Fault::Loses), [Violation::Lost { node: 0, waited_for: 8, there: 7 }]);
    assert_eq!(with(Fault::NeverEnds), [Violation::Stuck { node: 0, there: 8 }]);
    let boasts = with(Fault::Boasts);
    assert!(matches!(boasts[..], [Violation::Busy { time: 2_000_000_000, servers: 2, .. }]), "{boasts:?}");
}

#[test]
fn a_full_array_and_bucket_are_never_busier_than_the_elapsed_time() {
    let drive = HddSpec { queue: 32, ..HddSpec::sata_7200_1tb() };
    let array = Array::new(Layout::Raid0, 256, 64 << 10, &drive);
    assert_eq!(broken(simulation(Box::new(array), 4096)), [], "256 busy disks");
    let bucket = TokenBucket::new(Iops::per_second(100), 1);
    assert_eq!(broken(simulation(Box::new(bucket), 60_000)), [], "ten minutes of tokens are in use");
}

#[test]
fn too_many_outstanding_requests_abort_the_run() {
    let mut simulation = simulation(servers(), 8);
    let mix = Mix { reads: 1.0, length: 4096, address: Address::random(0, 100 << 30) };
    let pattern = Pattern::Periodic(Duration::from_micros(100));
    let open = Open::new(pattern, mix, Instant::ZERO, stream(1, "open"));
    let vm = simulation.add_vm(Policy::default(), 0, Box::new(open)).unwrap();
    simulation.set_outstanding_max(1000);
    // It asks for ten times what the device does.
    simulation.run_until(Instant::from_millis(10_000));
    assert_eq!(simulation.overrun(), Some(vm));
    assert!((105..120).contains(&(simulation.now().as_nanos() / 1_000_000)), "{:?}", simulation.now());
    let broken = check(&simulation);
    assert!(matches!(broken[..], [Violation::Overrun { vm: 1, outstanding: 1000, .. }]), "{broken:?}");
}

#[test]
fn the_last_latencies_of_a_run_were_not_in_its_distribution() {
    // 500 requests are measured, which is no multiple of a batch of latencies.
    let mut simulation = simulation(servers(), 2);
    for millis in [600, 603, 1000] {
        simulation.run_until(Instant::from_millis(millis));
        let record = simulation.record(0);
        assert!(record.measured > 0);
        assert_eq!(record.latencies().map(|(_, count)| count).sum::<u64>(), record.measured, "at {millis} ms");
    }
}

/// A simulation of more VMs collects their requests by pages, and reads ahead what these will need.
#[test]
fn records_agree_with_the_completed_requests_with_any_number_of_vms() {
    for vms in [10, 100, 2_100] {
        let info = DeviceInfo { depth: 32, ..DeviceInfo::default() };
        let scheduler = schedulers::find("mclock").unwrap().build(&info, &Default::default()).unwrap();
        let gate = Gate::new(scheduler, GateSettings { depth: 32, ..GateSettings::default() });
        let service = ServiceTime::Exponential(Duration::from_micros(10));
        let model = Box::new(Servers::new(1, service, stream(1, "service")));
        let mut simulation = Simulation::new(gate, model, Duration::from_millis(5), Duration::from_millis(10));
        for vm in 0..vms {
            let mix = Mix { reads: 0.5, length: 4096, address: Address::random(0, 1 << 38) };
            let think = Duration::from_micros(vm % 3 * 50);
            let workload = Closed::new(3, think, mix, Instant::ZERO, stream(1, &format!("vm{vm}")));
            simulation.add_vm(Policy::default(), 0, Box::new(workload)).unwrap();
        }
        let seen = Rc::new(RefCell::new(vec![(0, 0, 0, 0); vms as usize]));
        let sums = Rc::clone(&seen);
        simulation.observe(Box::new(move |over| {
            let (all, measured, nanos, in_first_window) = &mut sums.borrow_mut()[over.vm];
            *all += 1;
            if over.completed >= Instant::from_millis(5) {
                *measured += 1;
                *nanos += over.completed.nanos_since(over.arrived);
                *in_first_window += u64::from(over.completed < Instant::from_millis(15));
            }
        }));
        for end in [7, 40, 90] {
            simulation.run_until(Instant::from_millis(end));
            assert_eq!(check(&simulation), [], "{vms} VMs");
            for (vm, &(all, measured, nanos, in_first_window)) in seen.borrow().iter().enumerate() {
                let record = simulation.record(vm);
                let distribution: u64 = record.latencies().map(|(_, count)| count).sum();
                let first = record.series().first().map_or(0, |window| window.completed);
                assert_eq!(
                    (record.completed, record.measured, distribution),
                    (all, measured, measured),
                    "VM {vm} of {vms}"
                );
                assert_eq!((first, record.bytes), (in_first_window, measured * 4096), "VM {vm} of {vms}");
                assert_eq!(
                    record.mean().as_nanos() as u64,
                    nanos.checked_div(measured).unwrap_or(0),
                    "VM {vm} of {vms}"
                );
                assert_eq!(simulation.stats(vm).latency.count(), all, "VM {vm} of {vms}");
            }
        }
    }
}
