//! Two tiers: threads in a guest, the guest's scheduler, a ring, the host's scheduler, a device.
//!
//! The paper has a single VM only; `advise` builds several.

use std::time::Duration;

use sluice_sched::params::ParamTable;
use sluice_sched::{Instant, Policy};
use sluice_sim::devices::Model;
use sluice_sim::devices::write_cache::Filled;
use sluice_sim::engine::{Placement, Simulation, Thread};
use sluice_sim::random::Stream;
use sluice_sim::stack::{Ring, Stack};
use sluice_sim::workloads::{Workload, profiles};

use crate::figure::LabError;
use crate::setup::{Host, mean_rate, refused, run};

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

/// Maximum length of a warm-up in windows; after half of it, a cache that has not been full will not be.
const WINDOWS_MAX: u64 = 24;

/// Runs until a machine with a write cache is in a steady state: a window's rate differs by less than 5 % from the one before, and the
/// cache has been full, or the load writes less than the disk and has not filled it in twelve windows. `filled` is `None` for a
/// load that does not write, and `window` the seconds of a window. Returns the second of its end.
///
/// Example: random writes have windows of 5 s. They fill 256 MiB in the first second, the windows from 5 to 10 s and from 10 to 15 s are
/// alike, and the warm-up ends after 15 s.
///
/// # Errors
/// A violated invariant.
pub(super) fn warm_up(
    simulation: &mut Simulation,
    filled: Option<&Filled>,
    window: u64,
    what: &str,
) -> Result<u64, LabError> {
    let mut windows = 2;
    run(simulation, windows * window, what)?;
    while windows < WINDOWS_MAX {
        let [before, last] = [2, 1].map(|back| {
            let from = ((windows - back) * window) as usize;
            mean_rate(simulation, 0, from, from + window as usize)
        });
        let full = filled.is_none_or(Filled::get) || windows >= WINDOWS_MAX / 2;
        if full && (last - before).abs() < 0.05 * before {
            break;
        }
        windows += 1;
        run(simulation, windows * window, what)?;
    }
    Ok(windows * window)
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
