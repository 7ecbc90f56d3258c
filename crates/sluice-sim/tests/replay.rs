//! Traces as VMs: several traces together, one with several devices, and one of any length.

use std::io::{BufReader, Read};
use std::path::Path;
use std::time::Duration;

use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::{Gate, GateSettings, Instant, Policy, schedulers};
use sluice_sim::checks::check;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::traces::{Format, PastEnd, Rows, Select, read};
use sluice_sim::workloads::{Replay, ReplayTiming};

fn simulation() -> Simulation {
    let descriptor = schedulers::find("mclock").unwrap();
    let info = DeviceInfo { depth: 8, rotational: false, ..DeviceInfo::default() };
    let scheduler = descriptor.build(&info, &Default::default()).unwrap();
    let gate = Gate::new(scheduler, GateSettings { depth: 8, merging: false, ..GateSettings::default() });
    let time = ServiceTime::Fixed(Duration::from_micros(100));
    let device = Box::new(Servers::new(8, time, stream(1, "service")));
    Simulation::new(gate, device, Duration::ZERO, Duration::from_secs(1))
}

fn drive(name: &str) -> Rows<'static> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/disksim").join(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    read(Format::DiskSimValidate, BufReader::new(file))
}

#[test]
fn two_traces_are_two_vms_at_half_and_double_speed() {
    let mut simulation = simulation();
    for (name, scale) in [("atlas10k.trace", 0.5), ("barracuda.trace", 2.0)] {
        let rows = Select::new(drive(name), None, 9 << 30, PastEnd::Refuse);
        let failure = rows.failure();
        let replay = Replay::new(rows, ReplayTiming::Open(scale), Instant::ZERO);
        simulation.add_vm(Policy::default(), 0, Box::new(replay)).unwrap();
        assert!(failure.take().is_none());
    }
    simulation.run_until(Instant::from_millis(10_000_000));
    assert_eq!(check(&simulation), []);
    for (vm, (name, scale)) in [("atlas10k.trace", 0.5), ("barracuda.trace", 2.0)].into_iter().enumerate() {
        assert_eq!(simulation.record(vm).completed, 10_000, "{name}");
        let last = drive(name).last().unwrap().unwrap().at as f64 * scale;
        let ended = simulation.ended(vm).unwrap().as_nanos() as f64;
        assert!((last..last + 1e9).contains(&ended), "{name}: {last} {ended}");
    }
}

#[test]
fn streams_of_one_trace_keep_their_times() {
    // The second device's first request comes three seconds after the first device's.
    let text = "0,0,4096,r,10.0\n0,8,4096,r,11.0\n1,0,4096,w,13.0\n0,16,4096,r,14.0\n";
    let mut simulation = simulation();
    for number in [0, 1] {
        let rows = Select::new(read(Format::Spc, text.as_bytes()), Some(number), 1 << 20, PastEnd::Refuse);
        let replay = Replay::since(rows, ReplayTiming::Open(1.0), Instant::ZERO, 10_000_000_000);
        simulation.add_vm(Policy::default(), 0, Box::new(replay)).unwrap();
    }
    simulation.run_until(Instant::from_millis(10_000));
    let counts = |vm| simulation.record(vm).series().iter().map(|window| window.completed).collect::<Vec<_>>();
    assert_eq!(counts(0), [1, 1, 0, 0, 1]);
    assert_eq!(counts(1), [0, 0, 0, 1]);
}

/// A trace without an end.
struct Endless(u64, Vec<u8>);

impl Read for Endless {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        if self.1.is_empty() {
            self.1 = format!("0,{},4096,r,{}.5\n", self.0 % 1000 * 8, self.0).into_bytes();
            self.0 += 1;
        }
        let len = room.len().min(self.1.len());
        room[..len].copy_from_slice(&self.1[..len]);
        self.1.drain(..len);
        Ok(len)
    }
}

#[test]
fn a_trace_may_be_longer_than_memory() {
    let rows = read(Format::Spc, BufReader::new(Endless(0, Vec::new())));
    let replay = Replay::new(Select::new(rows, None, 1 << 30, PastEnd::Refuse), ReplayTiming::Closed(4), Instant::ZERO);
    let mut simulation = simulation();
    simulation.add_vm(Policy::default(), 0, Box::new(replay)).unwrap();
    simulation.run_until(Instant::from_millis(1000));
    // Rows are read when they are submitted: four at a time, 100 us each.
    assert_eq!(simulation.record(0).completed, 40_000);
}
