//! The parts of every device thread, whatever it serves: its gate, its VMs, and the accounts of its CPU time.

use std::collections::HashMap;

use sluice_sched::{Bytes, ChangeError, Gate, Instant};

use crate::clock::Clock;
use crate::cpu::CpuMeter;
use crate::reactor::spec::{EditError, SchedulerSpec};
use crate::slab::{Slab, VmId};

/// State of the shutdown of a device thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    No,
    /// Ends when every request has been answered.
    Draining,
    Now,
}

/// The state that the reactor shares with its actor, whose VMs are of type `V`.
pub(crate) struct Base<V> {
    /// Name of the device or uplink in the host file.
    pub(crate) device: String,
    pub(crate) clock: Clock,
    pub(crate) gate: Gate,
    /// The scheduler that has replaced the first one, and whether its gate merges.
    pub(crate) scheduler: Option<(SchedulerSpec, bool)>,
    pub(crate) vms: Slab<VmId, V>,
    /// VMs that have not been removed.
    pub(crate) vms_by_name: HashMap<String, VmId>,
    pub(crate) cpu: CpuMeter,
    pub(crate) ending: Ending,
    /// Messages for sessions that had ended.
    pub(crate) stale_messages: u64,
    /// When the gate must be called again.
    pub(crate) wake: Option<Instant>,
}

impl<V> Base<V> {
    pub(crate) fn new(device: String, gate: Gate) -> Self {
        Base {
            device,
            clock: Clock::start(),
            gate,
            scheduler: None,
            vms: Slab::default(),
            vms_by_name: HashMap::new(),
            cpu: CpuMeter::of_thread(),
            ending: Ending::No,
            stale_messages: 0,
            wake: None,
        }
    }

    /// Finds a VM that has not been removed.
    pub(crate) fn find_vm(&self, name: &str) -> Result<VmId, EditError> {
        let found = self.vms_by_name.get(name).copied();
        found.ok_or_else(|| EditError::Unknown(format!("VM {name}")))
    }

    /// Adds a VM.
    pub(crate) fn add_vm(&mut self, name: String, vm: V) {
        let id = self.vms.insert(vm);
        self.vms_by_name.insert(name, id);
    }

    /// Changes what is known of the device.
    pub(crate) fn set_device(&mut self, now: Instant, depth: u32, request_bytes: Bytes) -> Result<(), EditError> {
        let set = self.gate.set_device(now, depth, request_bytes);
        set.map_err(|cause| EditError::Device { cause })
    }

    /// Replaces the scheduler, or its parameters.
    pub(crate) fn set_scheduler(&mut self, now: Instant, spec: SchedulerSpec, merging: bool) -> Result<(), EditError> {
        let wrong = |cause| EditError::Scheduler { name: spec.descriptor.name, cause };
        let scheduler = spec.build().map_err(wrong)?;
        let replaced = self.gate.replace_scheduler(now, scheduler, merging);
        replaced.map_err(|cause| EditError::Device { cause })?;
        self.scheduler = Some((spec, merging));
        Ok(())
    }
}

/// Returns the error of a change of a VM that the gate rejects.
pub(crate) fn refused(vm: &str, cause: ChangeError) -> EditError {
    EditError::Gate { vm: vm.to_owned(), cause }
}
