//! Runs a plan and writes down what each VM asked for and got, slot by slot.

use super::plan::{Phase, Plan, Use};
use super::station::SECOND;
use super::world::{Totals, World};

/// Normalised requests of capacity in one slot of the fluid model.
const SLOT: f64 = 16.0;

/// What happened in one phase.
pub struct PhaseRun {
    pub slots: Vec<SlotRun>,
    /// What the cloud can do, in normalised requests per second, by what its servers did. Random service times make it
    /// differ from the nominal capacity.
    pub capacity: f64,
    /// By VM; `None`: it is not there.
    pub vms: Vec<Option<VmRun>>,
}

/// What the devices did in one slot of the fluid model.
#[derive(Debug, Clone, Copy)]
pub struct SlotRun {
    pub seconds: f64,
    /// Normalised requests that servers have begun to serve.
    pub work: f64,
    /// Parts of all servers' time: without work; that of it while nothing was queued; that of it while nothing was queued but
    /// of VMs with a limit.
    pub idle: f64,
    pub unasked: f64,
    pub limited: f64,
}

/// What happened to one VM in one phase, in normalised requests.
pub struct VmRun {
    /// What waits at the start.
    pub backlog: f64,
    /// By slot what the VM wanted to send, and what was dispatched.
    pub arrivals: Vec<f64>,
    pub got: Vec<f64>,
    /// What the VM wanted to send while its window was full, and did not.
    pub dropped: f64,
    /// Part of all nodes' time for which it had nothing queued there.
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
    let mut there: Vec<Option<usize>> = vec![None; plan.vms.len()];
    let mut runs = Vec::new();
    let mut end = 0.0;
    for (number, phase) in plan.phases.iter().enumerate() {
        let before = number.checked_sub(1).map(|before| &plan.phases[before]);
        change(plan, &mut world, &mut there, before, phase);
        let start = end;
        end += plan.seconds(number);
        runs.push(run_phase(&mut world, start, end, &there, phase));
    }
    runs
}

/// VMs come, go, change their policies and what they ask for.
fn change(plan: &Plan, world: &mut World, there: &mut [Option<usize>], before: Option<&Phase>, phase: &Phase) {
    for (vm, source) in there.iter().enumerate() {
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
        let source = match (there[vm], last) {
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
                there[vm] = Some(source);
                source
            }
        };
        if last.is_none_or(|last| last.load != load) {
            world.set_load(source, load);
        }
    }
}

fn run_phase(world: &mut World, start: f64, end: f64, there: &[Option<usize>], phase: &Phase) -> PhaseRun {
    let count = ((phase.requests / SLOT).ceil() as usize).clamp(20, 4000);
    let source = |vm: usize| there[vm].filter(|_| phase.vms[vm].is_some());
    let totals = |world: &World, vm: usize| source(vm).map(|source| world.sources[source].totals);
    let first: Vec<Option<Totals>> = (0..there.len()).map(|vm| totals(world, vm)).collect();
    let absent = |world: &World, vm: usize| source(vm).map_or(0.0, |source| world.absent_ns(source));
    let (began, absent_before): (u64, Vec<f64>) = (world.now, (0..there.len()).map(|vm| absent(world, vm)).collect());
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
            unasked: part(1),
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

/// What the cloud could do since `before`, in normalised requests per second.
fn capacity(world: &World, before: (f64, f64)) -> f64 {
    let (work, nanos) = world.work();
    let (work, nanos) = (work - before.0, nanos - before.1);
    let servers = f64::from(world.cloud.servers) * world.cloud.nodes as f64;
    if nanos > 0.0 { servers * work / nanos * SECOND as f64 } else { world.cloud.capacity }
}

impl VmRun {
    /// What the VM wanted to get: what waited at the start, and what arrived.
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
