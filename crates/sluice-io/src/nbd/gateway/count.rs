//! The counter of a VM over all nodes that its volumes are on. Device threads share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sluice_sched::Instant;
use sluice_sched::gate::{Finished, Outcome};
use sluice_sched::tracker::{Form, Told, Tracker};

use super::StartId;
use super::record::ReplyRecord;
use crate::clock::Clock;

/// The counter of a VM.
pub struct VmCount {
    /// Since when this gateway serves the VM, in microseconds of the Unix epoch.
    pub epoch: u64,
    /// Device threads have clocks of their own.
    clock: Clock,
    count: Mutex<Count>,
}

struct Count {
    tracker: Tracker,
    /// Numbers of the servers by node and device.
    servers: BTreeMap<(String, String), u32>,
}

impl VmCount {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a server.
    pub(crate) fn number(&self, server: &(String, String)) -> u32 {
        let mut count = self.count();
        let next = count.servers.len() as u32;
        *count.servers.entry(server.clone()).or_insert(next)
    }
}

/// The requests of one connection, as the counter of their VM has them. Those without a reply are lost with it.
pub(crate) struct Counted {
    count: Arc<VmCount>,
    server: u32,
    start: Option<StartId>,
    outstanding: u32,
}

impl Counted {
    pub(crate) fn new(count: Arc<VmCount>, server: u32, start: Option<StartId>) -> Counted {
        Counted { count, server, start, outstanding: 0 }
    }

    /// Returns what the next request tells.
    pub(crate) fn ask(&mut self) -> Told {
        self.outstanding += 1;
        let now = self.count.clock.now();
        self.count.count().tracker.ask(now, self.server)
    }

    /// Notes a reply. Returns whether it is of the server as it was connected to.
    pub(crate) fn answered(&mut self, record: &ReplyRecord) -> bool {
        let ReplyRecord { phase, service, reserved, start } = *record;
        let (token, outcome, dispatched) = (0, Outcome::Done, Instant::ZERO);
        let finished = Finished { token, outcome, phase, dispatched, service, reserved };
        self.outstanding -= 1;
        self.count.count().tracker.completed(self.server, &finished);
        Some(start) == self.start
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.count.count();
        (0..self.outstanding).for_each(|_| count.tracker.ended(self.server));
    }
}

/// The counters of all VMs of a gateway.
pub struct Counts {
    by_vm: Mutex<BTreeMap<String, Weak<VmCount>>>,
    /// Returns an epoch that is later than each before, also before a restart.
    next_epoch: Box<dyn Fn() -> Result<u64, String> + Send + Sync>,
}

impl Counts {
    /// No counters. `next_epoch` returns an epoch that is later than each before, also before a restart.
    #[must_use]
    pub fn new(next_epoch: impl Fn() -> Result<u64, String> + Send + Sync + 'static) -> Counts {
        Counts { by_vm: Mutex::default(), next_epoch: Box::new(next_epoch) }
    }

    /// Returns the counter of a VM. It stays while one of the VM's volumes has it; after that the VM begins anew.
    ///
    /// # Errors
    /// There is no epoch; in words.
    pub fn of(&self, vm: &str) -> Result<Arc<VmCount>, String> {
        let mut by_vm = self.by_vm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_vm.get(vm).and_then(Weak::upgrade) {
            return Ok(count);
        }
        let count = Count { tracker: Tracker::new(Form::Product), servers: BTreeMap::new() };
        let (epoch, clock) = ((self.next_epoch)()?, Clock::start());
        let count = Arc::new(VmCount { epoch, clock, count: Mutex::new(count) });
        by_vm.retain(|_, count| count.strong_count() > 0);
        by_vm.insert(vm.to_owned(), Arc::downgrade(&count));
        Ok(count)
    }
}
