//! `[host]` and `vcpu` of a VM: CPU time of requests.

use crate::cpu::credit1::Params;
use crate::scenario::cpus::{CpuCost, Driver, Host, Vcpu};

use sluice_config::reader::Reader;
use sluice_config::tree::Value;

/// The host's CPUs; `None` if requests need no CPU time.
pub(super) fn read(root: &Reader<'_>) -> Option<Host> {
    let reader = root.table("host")?;
    let cpus = reader.small("cpus").unwrap_or(4);
    let credit = match reader.word("credit") {
        Some("xen-3.3") => Params::XEN_3_3,
        Some("xen-4.0") => Params::XEN_4_0,
        _ => Params::XEN_4_1,
    };
    let driver = reader.table("driver").map(|reader| Driver {
        on: read_vcpu(&reader, cpus),
        packet: reader.time("packet").unwrap_or_default(),
        request: reader.time("request").unwrap_or_default(),
    });
    Some(Host { cpus, credit, driver })
}

/// CPU use of a VM on its virtual CPU.
pub(super) fn read_cpu_cost(vm: &Reader<'_>, host: Option<&Host>) -> Option<CpuCost> {
    let reader = vm.table("vcpu")?;
    let Some(host) = host else {
        vm.refuse("vcpu", "there are no CPUs to run it", "add [host] with cpus = 4");
        return None;
    };
    Some(CpuCost {
        on: read_vcpu(&reader, host.cpus),
        each: reader.time("work").unwrap_or_default(),
        busy: reader.bool("busy").unwrap_or(false),
    })
}

fn read_vcpu(reader: &Reader<'_>, cpus: u32) -> Vcpu {
    let cpu = match reader.node("cpu").map(|node| &node.value) {
        None => None,
        Some(Value::Text(word)) if word == "any" => None,
        Some(Value::Integer(cpu)) if (0..i128::from(cpus)).contains(cpu) => Some(*cpu as u32),
        Some(Value::Integer(cpu)) => {
            let hint = format!("[host] has {cpus}, from 0 to {}", cpus - 1);
            reader.refuse("cpu", format!("there is no CPU {cpu}"), hint);
            None
        }
        Some(_) => {
            reader.refuse("cpu", "not a CPU", "write a number from 0, or \"any\"");
            None
        }
    };
    Vcpu { cpu, weight: reader.small("weight").unwrap_or(256), cap: reader.small("cap").unwrap_or(0) }
}
