//! The counter of a VM over all nodes that its volumes are on. Device threads share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use sluice_sched::gate::{Finished, Outcome, Service};
use sluice_sched::tracker::{Form, Told, Tracker};
use sluice_sched::{Cost, Instant};

use super::StartId;
use super::record::ReplyRecord;
use crate::clock::Clock;

/// The most that a request of any kind and length costs, in normalised requests, and for each [`COST_LEN`] bytes of its length another one.
const COST_MAX: u32 = 64;
const COST_LEN: u32 = 512;
/// The most bytes that it counts for beyond its length.
const BYTES_MAX: u64 = 1 << 20;

/// The counter of a VM.
pub struct VmCount {
    /// Since when this gateway serves the VM, in microseconds of the Unix epoch; not yet before its first request.
    epoch: OnceLock<u64>,
    next_epoch: NextEpoch,
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

    /// Since when this gateway serves the VM: from the first call on.
    ///
    /// # Errors
    /// There is no epoch; in words.
    pub fn epoch(&self) -> Result<u64, String> {
        if let Some(epoch) = self.epoch.get() {
            return Ok(*epoch);
        }
        let epoch = (self.next_epoch)()?;
        // Volumes on several devices may come at the same time.
        Ok(*self.epoch.get_or_init(|| epoch))
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
    /// `length` is that of the request: what a node states beyond what it can cost does not count.
    pub(crate) fn answered(&mut self, record: &ReplyRecord, length: u32) -> bool {
        let ReplyRecord { phase, service, reserved, start } = *record;
        let most = Service { cost: Cost::requests(COST_MAX + length / COST_LEN), bytes: BYTES_MAX + u64::from(length) };
        let [service, reserved] = [service, reserved]
            .map(|stated| Service { cost: stated.cost.min(most.cost), bytes: stated.bytes.min(most.bytes) });
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

type NextEpoch = Arc<dyn Fn() -> Result<u64, String> + Send + Sync>;

/// The counters of all VMs of a gateway.
pub struct Counts {
    by_vm: Mutex<BTreeMap<String, Weak<VmCount>>>,
    /// Returns an epoch that is later than each before, also before a restart.
    next_epoch: NextEpoch,
}

impl Counts {
    /// No counters. `next_epoch` returns an epoch that is later than each before, also before a restart.
    #[must_use]
    pub fn new(next_epoch: impl Fn() -> Result<u64, String> + Send + Sync + 'static) -> Counts {
        Counts { by_vm: Mutex::default(), next_epoch: Arc::new(next_epoch) }
    }

    /// Returns the counter of a VM. It stays while one of the VM's volumes has it; the next one counts from zero.
    #[must_use]
    pub fn of(&self, vm: &str) -> Arc<VmCount> {
        let mut by_vm = self.by_vm.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_vm.get(vm).and_then(Weak::upgrade) {
            return count;
        }
        let count = Count { tracker: Tracker::new(Form::Product), servers: BTreeMap::new() };
        let (next_epoch, clock) = (Arc::clone(&self.next_epoch), Clock::start());
        let count = Arc::new(VmCount { epoch: OnceLock::new(), next_epoch, clock, count: Mutex::new(count) });
        by_vm.retain(|_, count| count.strong_count() > 0);
        by_vm.insert(vm.to_owned(), Arc::downgrade(&count));
        count
    }
}
