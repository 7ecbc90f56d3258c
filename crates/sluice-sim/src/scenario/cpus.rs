//! CPUs of a host: a driver domain works for each request before its device gets it, and VMs before they submit it.
//!
//! Each of them has a virtual CPU, and Xen's credit scheduler decides which of these run. So all devices of a host with
//! CPUs are simulated together.

use std::time::Duration;

use sluice_sched::Instant;
use sluice_sched::scheduler::DeviceClass;

use super::Scenario;
use super::assemble::Part;
use crate::cpu::credit1::Params;
use crate::cpu::{Class, Host as Processors, VcpuId};
use crate::engine::Task;

/// CPUs of a host, and its driver domain.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// Number of CPUs.
    pub cpus: u32,
    /// Version of the credit scheduler.
    pub credit: Params,
    /// The driver domain, if it needs CPU time.
    pub driver: Option<Driver>,
}

/// A domain that owns the devices and works for each of their requests.
#[derive(Debug, Clone, Copy)]
pub struct Driver {
    /// Its virtual CPU.
    pub on: Vcpu,
    /// CPU time per packet of a link.
    pub packet: Duration,
    /// CPU time per disk request.
    pub request: Duration,
}

/// The single virtual CPU of a domain.
#[derive(Debug, Clone, Copy)]
pub struct Vcpu {
    /// The only CPU on which it may run; `None` for any.
    pub cpu: Option<u32>,
    /// Weight of the domain.
    pub weight: u32,
    /// Cap of the domain in percent of one CPU; 0 is none.
    pub cap: u32,
}

/// CPU use of a VM.
#[derive(Debug, Clone, Copy)]
pub struct CpuCost {
    /// Its virtual CPU.
    pub on: Vcpu,
    /// CPU time before each of its requests.
    pub each: Duration,
    /// Whether it computes when it has no other work, and never sleeps.
    pub busy: bool,
}

impl Vcpu {
    fn add(&self, host: &mut Processors<Task>) -> VcpuId {
        let domain = host.add_domain(self.weight, self.cap);
        host.add_vcpu(domain, self.cpu.map_or(u64::MAX, |cpu| 1 << cpu))
    }
}

/// Adds the CPUs to a part, before its VMs. Returns the virtual CPUs of the VMs, in their order.
pub(super) fn install(scenario: &Scenario, part: &mut Part) -> Vec<Option<VcpuId>> {
    let Some(host) = scenario.host else { return vec![None; part.vms.len()] };
    let mut processors = Processors::new(host.credit, host.cpus as usize);
    let driver = host.driver.map(|driver| (driver, driver.on.add(&mut processors)));
    part.cpus.extend(driver.map(|(_, vcpu)| ("driver domain".to_owned(), vcpu)));
    let mut vcpus = Vec::new();
    for vm in part.vms.iter().map(|vm| &scenario.vms[*vm]) {
        let vcpu = vm.work.map(|work| {
            let vcpu = work.on.add(&mut processors);
            if work.busy {
                processors.set_busy(Instant::ZERO, vcpu, true);
            }
            part.cpus.push((format!("VM {}", vm.name), vcpu));
            vcpu
        });
        vcpus.push(vcpu);
    }
    part.simulation.set_cpus(processors);
    if let Some((driver, vcpu)) = driver {
        for (device, first) in &part.devices {
            let (class, each) = match scenario.devices[*device].model.device_class() {
                DeviceClass::Network => (Class::Net, driver.packet),
                DeviceClass::Disk => (Class::Block, driver.request),
            };
            for node in (0..scenario.devices[*device].nodes as usize).filter(|_| !each.is_zero()) {
                part.simulation.backend_on(first + node, vcpu, class, each);
            }
        }
    }
    vcpus
}
