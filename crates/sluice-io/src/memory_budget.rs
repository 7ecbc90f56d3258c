//! Memory for the data of requests that pass through buffers of the daemon, which are those of NBD. All VMs share it,
//! and each has a part that no other VM can take.
//!
//! Half of the budget is divided among the VMs; one with volumes on several devices counts for each of them. The other half is shared, first come,
//! first served. A VM that has used up its part while the shared half is used up is not read until its clients have read replies. One request of any size is always taken, so a VM with large requests may
//! exceed its part by one.
//!
//! Example: a budget of 1 GiB and 64 VMs on one device. Each VM has 8 MiB of its own. 16 VMs whose clients read no replies fill the
//! shared 512 MiB with 32 MiB each. The others continue with their 8 MiB.
//!
//! Device threads whose VMs wait for shared memory leave a waker, which is called when another VM frees some.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// The budget of this process.
pub(crate) static DAEMON: MemoryBudget = MemoryBudget::new(1 << 30);

/// Sets the budget of this process, in bytes. A smaller one takes effect as replies leave.
pub fn set_total(bytes: u64) {
    DAEMON.total.store(bytes, Ordering::SeqCst);
    DAEMON.wake_waiting();
}

/// Memory that VMs share.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// Size in bytes.
    total: AtomicU64,
    vms: AtomicU32,
    /// Bytes in use of the shared half.
    shared: AtomicU64,
    /// Whether `waiting` has an entry. A thread that frees memory and one that waits each write their word before they
    /// read the other's, so one of them sees the other.
    is_awaited: AtomicBool,
    /// Threads whose VMs wait for memory.
    waiting: Mutex<Vec<Waker>>,
}

/// One VM's share of a budget.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    budget: &'static MemoryBudget,
    used: u64,
    /// Bytes of `used` that count in the shared half.
    shared: u64,
}

impl MemoryBudget {
    pub(crate) const fn new(total: u64) -> Self {
        MemoryBudget {
            total: AtomicU64::new(total),
            vms: AtomicU32::new(0),
            shared: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Wakes the threads whose VMs wait for memory.
    fn wake_waiting(&self) {
        if self.is_awaited.load(Ordering::SeqCst) {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            self.is_awaited.store(false, Ordering::SeqCst);
            waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Creates the share of one more VM, which ends when it is dropped.
    pub(crate) fn share(&'static self) -> MemoryShare {
        self.vms.fetch_add(1, Ordering::Relaxed);
        MemoryShare { budget: self, used: 0, shared: 0 }
    }

    /// Returns the number of bytes that each VM has of its own.
    fn part(&self) -> u64 {
        self.total.load(Ordering::SeqCst) / 2 / u64::from(self.vms.load(Ordering::SeqCst).max(1))
    }
}

impl MemoryShare {
    /// Whether the VM may take one more request into memory, of any size. Otherwise a request larger than its part
    /// could never be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.used == 0
            || self.used < self.budget.part()
            || self.budget.shared.load(Ordering::SeqCst) < self.budget.total.load(Ordering::SeqCst) / 2
    }

    /// Has `waker` called once, when there may be room again. Room that was made before this call is not reported, so
    /// the caller looks again afterwards.
    pub(crate) fn wake_when_freed(&self, waker: &Waker) {
        let mut waiting = self.budget.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        self.budget.is_awaited.store(true, Ordering::SeqCst);
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        if bytes > 0 {
            self.used += bytes;
            self.update_shared();
        }
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        if bytes > 0 {
            self.used -= bytes;
            self.update_shared();
        }
    }

    /// Updates what the VM uses of the shared half.
    fn update_shared(&mut self) {
        let above = self.used.saturating_sub(self.budget.part());
        if above > self.shared {
            self.budget.shared.fetch_add(above - self.shared, Ordering::Relaxed);
        } else if above < self.shared {
            self.budget.shared.fetch_sub(self.shared - above, Ordering::SeqCst);
            self.budget.wake_waiting();
        }
        self.shared = above;
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.budget.shared.fetch_sub(self.shared, Ordering::SeqCst);
        self.budget.vms.fetch_sub(1, Ordering::SeqCst);
        self.budget.wake_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn shares(vms: usize) -> (&'static MemoryBudget, Vec<MemoryShare>) {
        let budget: &'static MemoryBudget = Box::leak(Box::new(MemoryBudget::new(1 << 30)));
        (budget, (0..vms).map(|_| budget.share()).collect())
    }

    /// Takes requests of 1 MiB while there is room. Returns their number.
    fn fill(share: &mut MemoryShare) -> u64 {
        let before = share.used;
        while share.has_room() {
            share.add(MIB);
        }
        (share.used - before) / MIB
    }

    #[test]
    fn clients_that_read_no_replies_took_the_memory_of_all() {
        let (budget, mut vms) = shares(64);
        assert_eq!(fill(&mut vms[0]), 8 + 512, "the first has its part and the shared half");
        assert!(vms[1..].iter_mut().all(|vm| fill(vm) == 8), "each of the others has its part");
        assert!(vms.iter().map(|vm| vm.used).sum::<u64>() <= budget.total.load(Ordering::Relaxed));
        // Memory that the first VM frees is available to all.
        vms[0].remove(500 * MIB);
        assert_eq!((fill(&mut vms[1]), fill(&mut vms[0])), (500, 0));
        vms.clear();
        assert_eq!((budget.shared.load(Ordering::Relaxed), budget.vms.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_smaller_budget_holds_when_memory_is_free_again() {
        let (budget, mut vms) = shares(2);
        assert_eq!(fill(&mut vms[0]), 256 + 512);
        budget.total.store(256 * MIB, Ordering::Relaxed);
        assert_eq!((fill(&mut vms[0]), fill(&mut vms[1])), (0, 64), "the part of the second is smaller too");
        vms[0].remove(700 * MIB);
        assert_eq!(fill(&mut vms[0]), 64 + 128 - 68);
        vms[0].remove(64 * MIB + 128 * MIB);
        assert_eq!(budget.shared.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_request_that_was_larger_than_the_part_of_its_vm_was_never_taken() {
        let (_, mut vms) = shares(64);
        fill(&mut vms[0]);
        assert!(vms[1].has_room());
        vms[1].add(32 * MIB);
        assert!(!vms[1].has_room());
        vms[1].remove(32 * MIB);
        assert!(vms[1].has_room());
    }

    #[test]
    fn memory_freed_by_another_vm_woke_no_waiting_vm() {
        struct Flag(AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (_, mut vms) = shares(2);
        fill(&mut vms[0]);
        fill(&mut vms[1]);
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        vms[1].wake_when_freed(&std::sync::Arc::clone(&flag).into());
        assert!(!vms[1].has_room() && !flag.0.load(Ordering::SeqCst));
        vms[0].remove(MIB);
        assert!(vms[1].has_room() && flag.0.load(Ordering::SeqCst));
    }
}
