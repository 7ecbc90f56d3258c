//! Builds a simulation for each device of a scenario, or for the devices that share CPUs.

use crate::stack::{self, Stack};
use sluice_sched::scheduler::Scheduler;
use sluice_sched::{Gate, Instant};

use super::run::RunError;
use super::{Device, DeviceEvent, Event, Placement, Scenario, Source, States, Vm, VmEvent, cpus, models};
use crate::cpu::VcpuId;
use crate::devices::Model;
use crate::devices::shared::share;
use crate::engine::{self, Change, Front, Simulation, Thread};
use crate::random::stream;
use crate::traces::Failure;
use crate::workloads::Workload;
use crate::workloads::profiles;

/// Maximum number of queued requests of one thread of a guest.
const GUEST_QUEUE_MAX: u32 = 65_536;

/// Devices that share CPUs, with their VMs.
pub(super) struct Part {
    pub(super) simulation: Simulation,
    /// Numbers of its devices in the scenario, and the first node of each.
    pub(super) devices: Vec<(usize, usize)>,
    /// Numbers of its VMs in the scenario.
    pub(super) vms: Vec<usize>,
    /// Virtual CPUs by the name of their user.
    pub(super) cpus: Vec<(String, VcpuId)>,
    /// Failures of its traces.
    pub(super) failures: Vec<Failure>,
}

/// Devices that are simulated together: all that share CPUs, otherwise each alone.
pub(super) fn parts(scenario: &Scenario) -> Vec<Vec<usize>> {
    let all = 0..scenario.devices.len();
    if scenario.host.is_some() { vec![all.collect()] } else { all.map(|device| vec![device]).collect() }
}

/// Builds the simulation of one part.
pub(super) fn part(
    scenario: &Scenario,
    devices: &[usize],
    seed: u64,
    states: Option<&States>,
) -> Result<Part, RunError> {
    let vms: Vec<usize> = (0..scenario.vms.len()).filter(|vm| devices.contains(&scenario.vms[*vm].device)).collect();
    let (mut simulation, mut places) = (None, Vec::new());
    for number in devices {
        let device = &scenario.devices[*number];
        let guests = scenario.vms.iter().any(|vm| vm.device == *number && vm.guest.is_some());
        for (node, model) in models(device, seed, states)?.into_iter().enumerate() {
            let at = add_node(&mut simulation, scenario, front(device, guests)?, model);
            if let (Some(simulation), Some(aim)) = (&mut simulation, device.aim) {
                simulation.set_aim(at, aim);
            }
            if node == 0 {
                places.push((*number, at));
            }
        }
    }
    let simulation = simulation.expect("a part has a device, and that has a node");
    let mut part = Part { simulation, devices: places, vms, cpus: Vec::new(), failures: Vec::new() };
    share_pools(scenario, seed, &mut part);
    let vcpus = cpus::install(scenario, &mut part);
    // Before the VMs, so that changes at the start come before their first requests.
    plan(scenario, &mut part);
    for (index, vcpu) in vcpus.into_iter().enumerate() {
        let vm = &scenario.vms[part.vms[index]];
        add_vm(vm, vcpu, seed, &mut part)?;
        if let Some(form) = scenario.devices[vm.device].reporting {
            part.simulation.track(index, form);
        }
    }
    Ok(part)
}

/// Adds a node; the first one creates the simulation. Returns its number.
fn add_node(simulation: &mut Option<Simulation>, scenario: &Scenario, front: Front, model: Box<dyn Model>) -> usize {
    let settings = &scenario.settings;
    match simulation {
        Some(simulation) => simulation.add_node(front, model),
        None => {
            *simulation = Some(Simulation::new(front, model, settings.warm_up, settings.window));
            0
        }
    }
}

fn scheduler(device: &Device) -> Result<Box<dyn Scheduler>, RunError> {
    device.scheduler.build(&device.info, &device.params).map_err(|error| RunError::of(&device.name, error))
}

fn front(device: &Device, guests: bool) -> Result<Front, RunError> {
    let gate = Gate::new(scheduler(device)?, device.gate);
    Ok(if guests { Stack::new(gate).into() } else { gate.into() })
}

/// One model for each node, or for each host.
fn models(device: &Device, seed: u64, states: Option<&States>) -> Result<Vec<Box<dyn Model>>, RunError> {
    if device.hosts == 1 {
        return (0..device.nodes).map(|node| model(device, node, seed, states)).collect();
    }
    let shared = share(model(device, 0, seed, states)?, device.hosts as usize);
    Ok(shared.into_iter().map(|model| Box::new(model) as Box<dyn Model>).collect())
}

fn share_pools(scenario: &Scenario, seed: u64, part: &mut Part) {
    for (number, first) in part.devices.clone() {
        let device = &scenario.devices[number];
        if let Some(meeting) = device.meeting {
            let random = stream(seed, &format!("pool of device {}", device.name));
            part.simulation.share_pool(first..first + device.hosts as usize, meeting, random);
        }
    }
}

fn model(device: &Device, node: u32, seed: u64, states: Option<&States>) -> Result<Box<dyn Model>, RunError> {
    let context = models::BuildContext { seed, name: format!("device {} node {node}", device.name) };
    device.model.build_from(&device.model_params, &context, states).map_err(|error| RunError::of(&device.name, error))
}

fn plan(scenario: &Scenario, part: &mut Part) {
    for planned in &scenario.timeline {
        match &planned.event {
            Event::Vm(vm, event) => {
                let Ok(vm) = part.vms.binary_search(vm) else { continue };
                let change = match event {
                    VmEvent::Start => Change::Start(vm),
                    VmEvent::Idle => Change::Idle(vm),
                    VmEvent::Stop => Change::Stop(vm),
                    VmEvent::Policy(policy) => Change::Policy(vm, *policy),
                };
                part.simulation.plan_change(planned.at, change);
            }
            Event::Device(device, node, event) => {
                let Some((_, first)) = part.devices.iter().copied().find(|(known, _)| known == device) else {
                    continue;
                };
                let known = &scenario.devices[*device];
                // Hosts share the speed of the device.
                let all = if matches!(event, DeviceEvent::Speed(_)) { known.nodes } else { known.gates() };
                for node in node.map_or(0..all, |node| node..node + 1) {
                    let node = first + node as usize;
                    let change = match event {
                        DeviceEvent::Speed(speed) => Change::Speed(node, *speed),
                        DeviceEvent::Path(times) => Change::Path(node, *times),
                        DeviceEvent::Away => Change::Away(node),
                        DeviceEvent::Back => Change::Back(node),
                        DeviceEvent::Fail => Change::Fail(node),
                        DeviceEvent::Return => Change::Return(node),
                    };
                    part.simulation.plan_change(planned.at, change);
                }
            }
        }
    }
}

fn add_vm(vm: &Vm, vcpu: Option<VcpuId>, seed: u64, part: &mut Part) -> Result<(), RunError> {
    let first = part.devices.iter().find(|(device, _)| *device == vm.device).map_or(0, |(_, first)| *first);
    let placement = match vm.placement {
        Placement::Node(node) => engine::Placement::Pinned(first + node as usize),
        Placement::Uniform => engine::Placement::Uniform(stream(seed, &format!("placement of {}", vm.name))),
        Placement::RoundRobin => engine::Placement::RoundRobin(0),
    };
    let refused = |error: &dyn std::fmt::Display| RunError::of(&vm.name, error);
    let number = match (&vm.guest, vm.placement) {
        (Some(guest), Placement::Node(node)) => {
            let built = guest.scheduler.build(&guest.info, &guest.params).map_err(|error| refused(&error))?;
            let merging = guest.scheduler.merging;
            let guest = stack::Guest { scheduler: built, ring: guest.ring, merging, queue_max: GUEST_QUEUE_MAX };
            part.simulation.add_guest(first + node as usize, vm.policy, guest).map_err(|error| refused(&error))?
        }
        _ => part.simulation.add_vm_at(placement, vm.policy).map_err(|error| refused(&error))?,
    };
    if vm.starts_paused {
        part.simulation.start_paused(number);
    }
    if let (Some(vcpu), Some(work)) = (vcpu, vm.work) {
        part.simulation.guest_on(number, vcpu, work.each);
    }
    for thread in 0..vm.threads {
        let length = vm.size / u64::from(vm.threads) / 4096 * 4096;
        let workload = workload(vm, thread, length, seed, &mut part.failures)?;
        let thread = Thread::new(workload).at(vm.offset + u64::from(thread) * length);
        let thread = if vm.direct { thread.synchronous() } else { thread };
        part.simulation.add_thread(number, thread).map_err(|error| refused(&error))?;
    }
    Ok(())
}

fn workload(
    vm: &Vm,
    thread: u32,
    volume: u64,
    seed: u64,
    failures: &mut Vec<Failure>,
) -> Result<Box<dyn Workload>, RunError> {
    match &vm.source {
        Source::Workload(known, params) => {
            let random = stream(seed, &format!("vm {} thread {thread}", vm.name));
            let context = profiles::BuildContext { volume, start: Instant::ZERO, random };
            known.build(params, context).map_err(|error| RunError::of(&vm.name, error))
        }
        Source::Trace(trace) => {
            let replay = trace.replay(volume);
            let (replay, failure) = replay.map_err(|error| RunError::of(&trace.file.display(), error))?;
            failures.push(failure);
            Ok(Box::new(replay))
        }
    }
}
