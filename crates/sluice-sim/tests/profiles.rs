//! Every workload profile on a disk, through the daemon's gate: no request is lost, and bounded workloads end.

use std::time::Duration;

use sluice_sched::params::Value;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::{Gate, GateSettings, Instant, Policy, schedulers};
use sluice_sim::checks::check;
use sluice_sim::devices::hdd::{Hdd, HddSpec};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::workloads::Workload;
use sluice_sim::workloads::profiles::{self, BuildContext};

const VOLUME: u64 = 32 << 30;

fn simulation() -> Simulation {
    let descriptor = schedulers::find("mclock").unwrap();
    let info = DeviceInfo { depth: 8, rotational: true, ..DeviceInfo::default() };
    let scheduler = descriptor.build(&info, &Default::default()).unwrap();
    let gate = Gate::new(scheduler, GateSettings { depth: 8, merging: false, ..GateSettings::default() });
    let disk = Hdd::new(HddSpec { queue: 8, ..HddSpec::sata_7200_1tb() });
    Simulation::new(gate, Box::new(disk), Duration::from_secs(1), Duration::from_secs(1))
}

fn profile(name: &str, overrides: &[(&str, i64)]) -> Box<dyn Workload> {
    let context = BuildContext { volume: VOLUME, start: Instant::ZERO, random: stream(1, name) };
    let table = overrides.iter().map(|(name, value)| ((*name).to_owned(), Value::Integer(*value))).collect();
    profiles::build(name, context, &table).unwrap()
}

#[test]
fn every_profile_runs_on_a_disk() {
    for known in profiles::all().filter(|known| known.device_class() == DeviceClass::Disk) {
        let mut simulation = simulation();
        simulation.add_vm(Policy::default(), 0, profile(known.name, &[])).unwrap();
        simulation.run_until(Instant::from_millis(10_000));
        assert_eq!(check(&simulation), [], "{}", known.name);
        let record = simulation.record(0);
        assert!(record.measured > 200 && record.refused == 0, "{}: {}", known.name, record.measured);
    }
}

#[test]
fn bounded_profiles_leave_no_request_outstanding() {
    let limited = [("events", 500)];
    let table = [("sysbench-seqrd", 500), ("sysbench-seqwr", 500)];
    for (name, data) in table {
        let mut simulation = simulation();
        simulation.add_vm(Policy::default(), 0, profile(name, &limited)).unwrap();
        simulation.run_until(Instant::from_millis(100_000));
        let record = simulation.record(0);
        assert!((data..data + 10).contains(&record.completed) && record.outstanding() == 0, "{name}");
        let ended = simulation.ended(0).unwrap();
        assert!(ended > Instant::ZERO && ended < simulation.now(), "{name}: {ended:?}");
    }
}
