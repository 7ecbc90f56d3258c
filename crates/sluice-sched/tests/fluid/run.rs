//! Runs a plan and records the demand and the service of each VM by slot.

use super::plan::{Phase, Plan, Use};
use super::station::SECOND;
use super::world::{Totals, World};

/// Normalised requests of capacity in one slot of the fluid model.
const SLOT: f64 = 16.0;

/// Record of one phase.
pub struct PhaseRun {
    pub slots: Vec<SlotRun>,
    /// Capacity of the cloud in this phase, from the measured service of its servers, in normalised requests per second.
    /// Random service times make it differ from the nominal capacity.
    pub capacity: f64,
    /// By VM; `None`: it is not present.
    pub vms: Vec<Option<VmRun>>,
}

/// Work of the devices in one slot of the fluid model.
#[derive(Debug, Clone, Copy)]
pub struct SlotRun {
    pub seconds: f64,
    /// Normalised requests whose service has started.
    pub work: f64,
    /// Fraction of the servers' time in which they were idle.
    pub idle: f64,
    /// The same while nothing was queued.
    pub unqueued: f64,
    /// The same while nothing was queued except requests of VMs with a limit.
    pub limited: f64,
}

/// Record of one VM in one phase, in normalised requests.
pub struct VmRun {
    /// Backlog at the start.
    pub backlog: f64,
    /// By slot, requests that the VM generated.
    pub arrivals: Vec<f64>,
    /// By slot, requests that were dispatched.
    pub got: Vec<f64>,
    /// Requests that were dropped because the VM's window was full.
    pub dropped: f64,
    /// Fraction of the time of all nodes in which it had nothing queued there.
    pub absent: f64,
    pub sums: Sums,
}

/// Sums of a phase.
#[derive(Debug, Clone, Copy)]
pub struct Sums {
    pub got: f64,
    pub pieces: f64,
    pub bytes: f64,
    pub reserved_bytes: f64,
}

impl Sums {
    fn between(from: &Totals, to: &Totals) -> Sums {
        Sums {
            got: to.got() - from.got(),
            pieces: (to.pieces - from.pieces) as f64,
            bytes: (to.bytes - from.bytes) as f64,
            reserved_bytes: (to.reserved_bytes - from.reserved_bytes) as f64,
        }
    }
}

/// Runs a plan with the scheduler of this name.
pub fn run(plan: &Plan, scheduler: &str) -> Vec<PhaseRun> {
    let mut world = World::new(&plan.cloud, scheduler, plan.seed);
    let mut sources: Vec<Option<usize>> = vec![None; plan.vms.len()];
    let mut runs = Vec::new();
    let mut end = 0.0;
    for (number, phase) in plan.phases.iter().enumerate() {
        let before = number.checked_sub(1).map(|before| &plan.phases[before]);
        change(plan, &mut world, &mut sources, before, phase);
        let start = end;
        end += plan.seconds(number);
        runs.push(run_phase(&mut world, start, end, &sources, phase));
    }
    runs
}

/// Adds and removes VMs, and changes their policies and loads.
fn change(plan: &Plan, world: &mut World, sources: &mut [Option<usize>], before: Option<&Phase>, phase: &Phase) {
    for (vm, source) in sources.iter().enumerate() {
        if phase.vms[vm].is_none()
            && let Some(source) = *source
            && before.is_some_and(|before| before.vms[vm].is_some())
        {
            world.remove_vm(world.vm_of(source));
        }
    }
    for (vm, used) in phase.vms.iter().enumerate() {
        let Some(Use { policy, load }) = *used else { continue };
        let last = before.and_then(|before| before.vms[vm]);
        let source = match (sources[vm], last) {
            (Some(source), Some(last)) => {
                if last.policy != policy {
                    world.set_policy(world.vm_of(source), policy);
                }
                source
            }
            (Some(source), None) => {
                let again = world.add_vm(policy, &[Default::default()]);
                world.attach(source, again);
                source
            }
            (None, _) => {
                let source = world.vm(policy, &plan.vms[vm]);
                sources[vm] = Some(source);
                source
            }
        };
        if last.is_none_or(|last| last.load != load) {
            world.set_load(source, load);
        }
    }
}

fn run_phase(world: &mut World, start: f64, end: f64, sources: &[Option<usize>], phase: &Phase) -> PhaseRun {
    let count = ((phase.requests / SLOT).ceil() as usize).clamp(20, 4000);
    let source = |vm: usize| sources[vm].filter(|_| phase.vms[vm].is_some());
    let totals = |world: &World, vm: usize| source(vm).map(|source| world.sources[source].totals);
    let first: Vec<Option<Totals>> = (0..sources.len()).map(|vm| totals(world, vm)).collect();
    let absent = |world: &World, vm: usize| source(vm).map_or(0.0, |source| world.absent_ns(source));
    let (began, absent_before): (u64, Vec<f64>) = (world.now, (0..sources.len()).map(|vm| absent(world, vm)).collect());
    let work = world.work();
    let mut run = PhaseRun { slots: Vec::new(), capacity: 0.0, vms: Vec::new() };
    run.vms = first.iter().map(|first| first.map(|first| VmRun::new(&first, count))).collect();
    let mut last = first.clone();
    for slot in 0..count {
        let (from, idle, begun) = (world.now, world.idle_ns(), world.work());
        let until = start + (end - start) * (slot + 1) as f64 / count as f64;
        world.run_until((until * SECOND as f64).round() as u64);
        let nanos = (world.now - from) as f64;
        let servers = f64::from(world.cloud.servers) * world.cloud.nodes as f64;
        let after = world.idle_ns();
        let part = |kind: usize| (after[kind] - idle[kind]) / (servers * nanos);
        run.slots.push(SlotRun {
            seconds: nanos / SECOND as f64,
            work: world.work().0 - begun.0,
            idle: part(0),
            unqueued: part(1),
            limited: part(2),
        });
        for (vm, known) in run.vms.iter_mut().enumerate() {
            let (Some(known), Some(now), Some(then)) = (known, totals(world, vm), last[vm]) else { continue };
            known.arrivals.push(now.offered() - then.offered());
            known.got.push(now.got() - then.got());
            last[vm] = Some(now);
        }
    }
    for (vm, known) in run.vms.iter_mut().enumerate() {
        if let (Some(known), Some(from), Some(to)) = (known, first[vm], last[vm]) {
            known.sums = Sums::between(&from, &to);
            let node_ns = (world.now - began) as f64 * world.cloud.nodes as f64;
            known.absent = (absent(world, vm) - absent_before[vm]) / node_ns;
            known.dropped = (to.offered() - to.arrived()) - (from.offered() - from.arrived());
        }
    }
    run.capacity = capacity(world, work);
    run
}

/// Capacity of the cloud since `before`, in normalised requests per second.
fn capacity(world: &World, before: (f64, f64)) -> f64 {
    let (work, nanos) = world.work();
    let (work, nanos) = (work - before.0, nanos - before.1);
    let servers = f64::from(world.cloud.servers) * world.cloud.nodes as f64;
    if nanos > 0.0 { servers * work / nanos * SECOND as f64 } else { world.cloud.capacity }
}

impl VmRun {
    /// Demand of the VM: the backlog at the start, and the arrivals.
    pub fn offered(&self) -> f64 {
        self.backlog + self.arrivals.iter().sum::<f64>()
    }

    fn new(first: &Totals, slots: usize) -> VmRun {
        VmRun {
            backlog: first.backlog(),
            arrivals: Vec::with_capacity(slots),
            got: Vec::with_capacity(slots),
            dropped: 0.0,
            absent: 0.0,
            sums: Sums { got: 0.0, pieces: 0.0, bytes: 0.0, reserved_bytes: 0.0 },
        }
    }
}
