//! Layout of the volumes of a device's VMs: as stated, otherwise one after the other in order of names.

use crate::scenario::Source;
use sluice_sched::Bytes;

use super::vm::{Vm, context};
use sluice_config::diagnostics::Report;

/// Alignment of volumes and of the parts of threads.
const PAGE: u64 = 4096;
/// Minimum size of a volume.
const SIZE_MIN: u64 = 1 << 20;

/// Offset and size of each VM's volume, in the order given; `None`, with a report, for one that does not fit.
pub(super) fn lay(device: &str, span: u64, vms: &[&Vm], report: &Report) -> Vec<Option<(u64, u64)>> {
    let stated: u64 = vms.iter().filter_map(|vm| vm.size).fold(0, u64::saturating_add);
    let open = vms.iter().filter(|vm| vm.size.is_none()).count() as u64;
    let share = span.saturating_sub(stated).checked_div(open).unwrap_or(0) / SIZE_MIN * SIZE_MIN;
    let mut behind = 0;
    let mut places = Vec::new();
    for vm in vms {
        let size = vm.size.unwrap_or(share);
        let offset = vm.offset.unwrap_or(behind);
        let end = offset.saturating_add(size);
        if size < SIZE_MIN || end > span {
            let (name, size, at) = (&vm.name, Bytes(size), Bytes(offset));
            let message = format!(
                "VM {name}: its volume of {size} at {at} does not fit on device {device}, which has {}",
                Bytes(span)
            );
            if !vm.is_copy || places.last() != Some(&None) {
                report.error(vm.size_at, message, "reduce size or offset of its VMs, or enlarge the model".to_owned());
            }
            places.push(None);
            continue;
        }
        behind = end;
        places.push(Some((offset, size)));
    }
    places
}

/// Checks that a VM's workload fits its volume.
pub(super) fn check_fit(vm: &Vm, size: u64, report: &Report) {
    // The volumes of equal VMs have the same size.
    if vm.is_copy {
        return;
    }
    let Some((source, span)) = &vm.source else { return };
    let room = size / u64::from(vm.threads) / PAGE * PAGE;
    let threads = if vm.threads == 1 { String::new() } else { format!(" of each of its {} threads", vm.threads) };
    match source {
        Source::Workload(known, params) => {
            if let Err(error) = known.build(params, context(room)) {
                let message = format!("VM {}: workload {}: {error}", vm.name, known.name);
                report.error(*span, message, format!("the volume{threads} has {}", Bytes(room)));
            }
        }
        Source::Trace(trace) if trace.scan.end > room && !trace.wrap => {
            let message = format!(
                "VM {}: the trace reaches byte {}, but the volume{threads} has {}",
                vm.name,
                trace.scan.end,
                Bytes(room)
            );
            report.error(*span, message, "enlarge the volume, or write wrap = true in the trace".to_owned());
        }
        Source::Trace(trace) if trace.scan.longest > room => {
            let (name, longest) = (&vm.name, trace.scan.longest);
            let message = format!(
                "VM {name}: the trace has a request of {longest} bytes, but the volume{threads} has {}",
                Bytes(room)
            );
            report.error(*span, message, "enlarge the volume".to_owned());
        }
        Source::Trace(_) => {}
    }
}
