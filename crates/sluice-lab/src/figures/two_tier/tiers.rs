//! Two tiers: threads in a guest, the guest's scheduler, a ring, the host's scheduler, a device.
//!
//! The paper has a single VM only; `advise` builds several.

use std::time::Duration;

use sluice_sched::params::ParamTable;
use sluice_sched::stack::{Ring, Stack};
use sluice_sched::{Instant, Policy};
use sluice_sim::devices::Model;
use sluice_sim::engine::{Placement, Simulation, Thread};
use sluice_sim::random::Stream;
use sluice_sim::workloads::{Workload, profiles};

use crate::figure::LabError;
use crate::setup::{Host, refused};

/// The first second is not measured: schedulers learn think times.
pub(super) const WARM: Duration = Duration::from_secs(1);

/// A VM with direct I/O, alone on a device, with a scheduler in the guest and one on the host.
///
/// # Errors
/// Parameters that a scheduler or the gates of the ring reject.
pub(super) fn virtual_machine(
    guest: &Host,
    host: &Host,
    ring: Ring,
    model: Box<dyn Model>,
    threads: Vec<Box<dyn Workload>>,
) -> Result<Simulation, LabError> {
    let mut simulation = Simulation::new(Stack::new(host.gate()?), model, WARM, Duration::from_secs(1));
    let vm = simulation.add_guest(0, Policy::default(), guest.guest(ring)?).map_err(refused)?;
    add(&mut simulation, vm, threads)?;
    Ok(simulation)
}

/// The same threads without a VM: one scheduler, which distinguishes them.
///
/// # Errors
/// Parameters that the scheduler rejects.
pub(super) fn real_machine(
    host: &Host,
    model: Box<dyn Model>,
    threads: Vec<Box<dyn Workload>>,
) -> Result<Simulation, LabError> {
    let mut simulation = Simulation::new(host.gate()?, model, WARM, Duration::from_secs(1));
    for thread in threads {
        let process = simulation.add_vm_at(Placement::Pinned(0), Policy::default()).map_err(refused)?;
        add(&mut simulation, process, vec![thread])?;
    }
    Ok(simulation)
}

fn add(simulation: &mut Simulation, vm: usize, threads: Vec<Box<dyn Workload>>) -> Result<(), LabError> {
    for workload in threads {
        simulation.add_thread(vm, Thread::new(workload).synchronous()).map_err(refused)?;
    }
    Ok(())
}

/// `count` threads with the profile, each with a separate stream of random numbers.
///
/// # Errors
/// Parameters that the profile rejects.
pub(super) fn threads(
    profile: &str,
    overrides: &ParamTable,
    count: u32,
    volume: u64,
    stream: impl Fn(&str) -> Stream,
) -> Result<Vec<Box<dyn Workload>>, LabError> {
    let one = |number| {
        let random = stream(&format!("{profile}/{number}"));
        let context = profiles::BuildContext { volume, start: Instant::ZERO, random };
        profiles::build(profile, context, overrides).map_err(refused)
    };
    (0..count).map(one).collect()
}
