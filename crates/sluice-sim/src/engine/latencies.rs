//! Latencies that are not in the histograms of their VMs yet.
//!
//! With many VMs, the histogram of a VM is not in the CPU caches when one of its requests completes, and the simulation would wait for
//! memory at each completion. A batch waits for the histograms of several VMs at once, because they do not depend on each other.

use super::Vm;

/// Latencies of a full batch. They take 4 KiB, a part of the first cache.
const BATCH: usize = 256;

/// VMs and the latencies of their completed requests, in nanoseconds, in the order of completion.
#[derive(Debug, Default)]
pub(super) struct Latencies(Vec<(u32, u64)>);

impl Latencies {
    /// Appends a latency of the VM with this number.
    #[inline]
    pub(super) fn add(&mut self, vm: u32, nanos: u64, vms: &mut [Vm]) {
        self.0.push((vm, nanos));
        if self.0.len() >= BATCH {
            self.flush(vms);
        }
    }

    /// Adds all to the histograms of their VMs.
    pub(super) fn flush(&mut self, vms: &mut [Vm]) {
        for (vm, nanos) in self.0.drain(..) {
            vms[vm as usize].record.add_latency(nanos);
        }
    }
}
