//! Reads at once what the completions of several requests will need.
//!
//! With many VMs, a completion waits for memory several times: for the outstanding request, then for its VM, then for the VM's thread,
//! and then for the thread's workload, because each of these states where the next one is. A request that a device has just got
//! completes some dozens of requests later. So the simulation collects [`BATCH`] of them and reads the first of these for all, then the second for all,
//! and so on. The reads of one round do not depend on each other, and the CPU waits for all of them at once. It changes nothing.

use std::hint::black_box;

use super::Simulation;

/// Requests that are read together. A device has at least twice as many, so that they are read before they complete.
pub(super) const BATCH: usize = 16;
/// Number of VMs from which this is worth while: most of what fewer need stays in the second cache.
const VMS_MIN: usize = 2048;

impl Simulation {
    /// Collects requests that devices get from now on, if there are many VMs.
    pub(super) fn collect_started(&mut self) {
        if self.vms.len() >= VMS_MIN {
            self.nodes.iter_mut().for_each(|node| node.collect_started(2 * BATCH as u32));
        }
    }

    /// Reads what the completions of collected requests will need, as soon as these are enough.
    #[inline]
    pub(super) fn fetch_started(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].started().is_some_and(|started| started.len() >= BATCH) {
                self.fetch(node);
            }
        }
    }

    #[inline(never)]
    fn fetch(&mut self, node: usize) {
        let mut threads = [(0, 0); BATCH];
        let started = self.nodes[node].started().expect("requests have been collected");
        for (token, thread) in started.drain(..).zip(&mut threads) {
            *thread = self.open.thread_of(token);
        }
        for &(vm, thread) in &threads {
            let vm = &self.vms[vm as usize];
            black_box((vm.record.outstanding(), vm.state, vm.runners[thread as usize].planned));
        }
        for &(vm, thread) in &threads {
            self.vms[vm as usize].runners[thread as usize].thread.workload.fetch();
        }
    }
}
