//! A VM on a device thread, and its window: the limit of its outstanding requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sluice_sched::gate::GateStats;
use sluice_sched::tracker::Heard;
use sluice_sched::{OwnerId, Policy};

use crate::backend::occupancy::Outstanding;
use crate::cpu::{HasCpu, VmCpu};
use crate::memory_budget::MemoryShare;
use crate::nbd::gateway::Known;
use crate::reactor::spec::Window;
use crate::slab::{ClientRef, VolumeKey};

/// A VM of a disk.
pub(crate) struct Vm {
    pub(crate) name: String,
    pub(crate) owner: OwnerId,
    pub(crate) policy: Policy,
    pub(crate) window: Window,
    /// It was removed, and its last requests are still in flight.
    pub(crate) removed: bool,
    /// Number of its volumes, including removed ones with requests in flight.
    pub(crate) volumes: u32,
    /// Its volumes that have not been removed.
    pub(crate) volumes_by_name: HashMap<String, VolumeKey>,
    pub(crate) outstanding: Outstanding,
    /// Whether each of its requests is subject to the same limit, so that none overtakes those that the limit holds.
    pub(crate) is_limited_as_one: bool,
    /// Memory of the daemon for data of its requests.
    pub(crate) memory: MemoryShare,
    /// Clients with requests that do not fit into the window, in order.
    pub(crate) waiting: VecDeque<ClientRef>,
    pub(crate) wrong: Wrong,
    pub(crate) cpu: VmCpu,
    pub(crate) gateway: Gateway,
    /// Its statistics in the last snapshot.
    pub(crate) copied_stats: Option<Arc<GateStats>>,
}

/// Counts of protocol violations and refused requests of a VM's clients.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    pub(crate) protocol_errors: u64,
    /// Requests that were refused.
    pub(crate) refused: u64,
}

/// The gateway of a VM, and what has been heard from it.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    /// Since when it serves the VM: its epoch.
    since: u64,
    /// Its sums of service at other nodes, as far as the gate has counted them.
    pub(crate) heard: Heard,
}

impl Gateway {
    /// Whether a gateway is the one of the VM, or a newer one.
    pub(crate) fn takes(&self, known: &Known) -> bool {
        known.epoch >= self.since
    }

    /// Notes that a gateway of this epoch serves the VM. What another one has told has no meaning for it.
    pub(crate) fn begin(&mut self, epoch: u64) {
        if epoch != self.since {
            *self = Gateway { since: epoch, heard: Heard::default() };
        }
    }
}

impl HasCpu for Vm {
    fn cpu(&mut self) -> &mut VmCpu {
        &mut self.cpu
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Vm {
    pub(crate) fn new(name: String, owner: OwnerId, policy: Policy, window: Window, memory: MemoryShare) -> Self {
        Vm {
            name,
            owner,
            policy,
            window,
            removed: false,
            volumes: 0,
            volumes_by_name: HashMap::new(),
            outstanding: Outstanding::default(),
            is_limited_as_one: is_limited_as_one(&policy, &[]),
            memory,
            waiting: VecDeque::new(),
            wrong: Wrong::default(),
            cpu: VmCpu::default(),
            gateway: Gateway::default(),
            copied_stats: None,
        }
    }

    /// Whether its window has room for one more request of a volume that occupies `held` of it.
    ///
    /// With several volumes, a volume may take another request only while it holds less than the VM has free (Choudhury
    /// and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998). A single volume may take
    /// the whole window. One volume of several whose own limit slows it down takes half of the window, two of them a
    /// third each, and the rest stays free for the others.
    pub(crate) fn has_room(&self, held: Outstanding) -> bool {
        let total = self.outstanding;
        let requests = self.window.requests.saturating_sub(total.requests);
        let bytes = self.window.bytes.saturating_sub(total.bytes);
        let leaves_some = self.volumes <= 1 || held.requests < requests && held.bytes < bytes;
        requests > 0 && bytes > 0 && leaves_some
    }
}

/// Whether every request of a VM waits if one of them waits for a limit: the VM or its only volume has a limit, and
/// there are none for reads, for writes, or for one volume of several.
pub(crate) fn is_limited_as_one(vm: &Policy, volumes: &[Policy]) -> bool {
    let apart = |policy: &Policy| policy.read_limit.is_set() || policy.write_limit.is_set();
    let has_limit = |policy: &Policy| policy.limit.is_set();
    let by_volume = volumes.iter().any(has_limit);
    let several = volumes.len() > 1;
    !apart(vm) && !volumes.iter().any(apart) && (has_limit(vm) || by_volume) && !(several && by_volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_budget::DAEMON;
    use sluice_sched::{Iops, Limit};

    fn vm(volumes: u32, window: u32) -> Vm {
        let window = Window { requests: window, bytes: 1000 };
        Vm { volumes, ..Vm::new("vm".to_owned(), OwnerId(0), Policy::default(), window, DAEMON.share()) }
    }

    /// Lets each volume take requests until none may take more. Returns the number of requests of each.
    fn filled(volumes: usize, window: u32, bytes: u64) -> Vec<u32> {
        let mut vm = vm(volumes as u32, window);
        let mut held = vec![Outstanding::default(); volumes];
        while let Some(held) = held.iter_mut().filter(|held| vm.has_room(**held)).min_by_key(|held| held.requests) {
            held.add(bytes);
            vm.outstanding.add(bytes);
        }
        held.iter().map(|held| held.requests).collect()
    }

    #[test]
    fn volumes_leave_as_much_window_space_as_each_of_them_holds() {
        for (volumes, window, each) in [(1, 64, 64), (2, 64, 22), (3, 64, 16), (7, 64, 8), (2, 1, 1)] {
            assert_eq!(filled(volumes, window, 0)[0], each, "{volumes} volumes in {window}");
        }
        assert_eq!((filled(1, 64, 300), filled(2, 64, 250)), (vec![4], vec![2, 1]), "bytes");
    }

    #[test]
    fn a_request_may_overtake_those_that_a_limit_holds_if_it_is_subject_to_another_one() {
        let limit = Limit { iops: Some(Iops::per_second(100)), bytes: None };
        let none = Policy::default();
        let whole = Policy { limit, ..Policy::default() };
        let reads = Policy { read_limit: limit, ..whole };
        let writes = Policy { write_limit: limit, ..whole };
        for (vm, volumes, expected) in [
            (none, vec![none], false),
            (whole, vec![], true),
            (whole, vec![none, none], true),
            (whole, vec![whole], true),
            (none, vec![whole], true),
            (none, vec![whole, none], false),
            (whole, vec![whole, none], false),
            (reads, vec![none], false),
            (writes, vec![none], false),
            (whole, vec![reads], false),
        ] {
            assert_eq!(is_limited_as_one(&vm, &volumes), expected, "{vm:?} {volumes:?}");
        }
    }

    #[test]
    fn the_only_busy_volume_of_several_takes_half_of_the_window() {
        let mut vm = vm(5, 128);
        while vm.has_room(vm.outstanding) {
            vm.outstanding.add(0);
        }
        assert_eq!(vm.outstanding.requests, 64);
        assert!(vm.has_room(Outstanding::default()));
    }
}
