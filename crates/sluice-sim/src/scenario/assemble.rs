//! From a scenario to a simulation for each of its devices.

use sluice_sched::scheduler::Scheduler;
use sluice_sched::stack::{self, Stack};
use sluice_sched::{Gate, Instant};

use super::run::RunError;
use super::trace::Trouble;
use super::{Device, DeviceEvent, Event, Placement, Scenario, Source, States, Vm, VmEvent, models, workloads};
use crate::engine::{self, Change, Front, Simulation, Thread};
use crate::random::stream;
use crate::workloads::Workload;

/// Requests that one thread of a guest may have waiting.
const GUEST_QUEUE_MAX: u32 = 65_536;

/// One device with its VMs.
pub(super) struct Part {
    pub(super) simulation: Simulation,
    /// Numbers in the scenario of its VMs.
    pub(super) vms: Vec<usize>,
    pub(super) trouble: Trouble,
}

/// The simulation of one device.
pub(super) fn part(scenario: &Scenario, number: usize, seed: u64, states: Option<&States>) -> Result<Part, RunError> {
    let device = &scenario.devices[number];
    let vms: Vec<usize> = (0..scenario.vms.len()).filter(|vm| scenario.vms[*vm].device == number).collect();
    let guests = vms.iter().any(|vm| scenario.vms[*vm].guest.is_some());
    let settings = &scenario.settings;
    let first = front(device, guests)?;
    let mut simulation = Simulation::new(first, model(device, 0, seed, states)?, settings.warm_up, settings.window);
    for node in 1..device.nodes {
        simulation.add_node(front(device, guests)?, model(device, node, seed, states)?);
    }
    let mut part = Part { simulation, vms, trouble: Trouble::default() };
    // Before the VMs, so that what is planned for the start comes before their first requests.
    plan(scenario, number, &mut part);
    for index in 0..part.vms.len() {
        add_vm(&scenario.vms[part.vms[index]], seed, &mut part)?;
        if let Some(form) = device.telling {
            part.simulation.track(index, form);
        }
    }
    Ok(part)
}

fn scheduler(device: &Device) -> Result<Box<dyn Scheduler>, RunError> {
    (device.scheduler.build)(&device.facts, &device.params).map_err(|error| RunError::of(&device.name, error))
}

fn front(device: &Device, guests: bool) -> Result<Front, RunError> {
    let gate = Gate::new(scheduler(device)?, device.gate);
    Ok(if guests { Stack::new(gate).into() } else { gate.into() })
}

fn model(
    device: &Device,
    node: u32,
    seed: u64,
    states: Option<&States>,
) -> Result<Box<dyn crate::devices::Model>, RunError> {
    let setting = models::Setting { seed, name: format!("device {} node {node}", device.name) };
    device.model.build_from(&device.model_params, &setting, states).map_err(|error| RunError::of(&device.name, error))
}

fn plan(scenario: &Scenario, number: usize, part: &mut Part) {
    let nodes = scenario.devices[number].nodes;
    for planned in &scenario.timeline {
        match &planned.event {
            Event::Vm(vm, event) => {
                let Some(vm) = part.vms.iter().position(|known| known == vm) else { continue };
                let change = match event {
                    VmEvent::Start => Change::Start(vm),
                    VmEvent::Idle => Change::Idle(vm),
                    VmEvent::Stop => Change::Stop(vm),
                    VmEvent::Policy(policy) => Change::Policy(vm, *policy),
                };
                part.simulation.plan_change(planned.at, change);
            }
            Event::Device(device, node, event) if *device == number => {
                for node in node.map_or(0..nodes, |node| node..node + 1) {
                    let node = node as usize;
                    let change = match event {
                        DeviceEvent::Pace(pace) => Change::Pace(node, *pace),
                        DeviceEvent::Fail => Change::Fail(node),
                        DeviceEvent::Return => Change::Return(node),
                    };
                    part.simulation.plan_change(planned.at, change);
                }
            }
            Event::Device(..) => {}
        }
    }
}

fn add_vm(vm: &Vm, seed: u64, part: &mut Part) -> Result<(), RunError> {
    let placement = match vm.placement {
        Placement::Node(node) => engine::Placement::Pinned(node as usize),
        Placement::Uniform => engine::Placement::Uniform(stream(seed, &format!("placement of {}", vm.name))),
        Placement::RoundRobin => engine::Placement::RoundRobin(0),
    };
    let refused = |error: &dyn std::fmt::Display| RunError::of(&vm.name, error);
    let number = match (&vm.guest, vm.placement) {
        (Some(guest), Placement::Node(node)) => {
            let built = (guest.scheduler.build)(&guest.facts, &guest.params).map_err(|error| refused(&error))?;
            let merging = guest.scheduler.merging;
            let guest = stack::Guest { scheduler: built, ring: guest.ring, merging, queue_max: GUEST_QUEUE_MAX };
            part.simulation.add_guest(node as usize, vm.policy, guest).map_err(|error| refused(&error))?
        }
        _ => part.simulation.add_vm_at(placement, vm.policy).map_err(|error| refused(&error))?,
    };
    if vm.held_back {
        part.simulation.hold_back(number);
    }
    for thread in 0..vm.threads {
        let length = vm.size / u64::from(vm.threads) / 4096 * 4096;
        let workload = workload(vm, thread, length, seed, &part.trouble)?;
        let thread = Thread::new(workload).at(vm.offset + u64::from(thread) * length);
        let thread = if vm.direct { thread.synchronous() } else { thread };
        part.simulation.add_thread(number, thread).map_err(|error| refused(&error))?;
    }
    Ok(())
}

fn workload(vm: &Vm, thread: u32, volume: u64, seed: u64, trouble: &Trouble) -> Result<Box<dyn Workload>, RunError> {
    match &vm.source {
        Source::Workload(known, params) => {
            let random = stream(seed, &format!("vm {} thread {thread}", vm.name));
            let setting = workloads::Setting { volume, start: Instant::ZERO, random };
            known.build(params, setting).map_err(|error| RunError::of(&vm.name, error))
        }
        Source::Trace(trace) => {
            let replay = trace.replay(volume, trouble.clone());
            let replay = replay.map_err(|error| RunError::of(&trace.file.display(), error))?;
            Ok(Box::new(replay))
        }
    }
}
