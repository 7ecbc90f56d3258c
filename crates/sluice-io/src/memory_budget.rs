//! Memory for the data of requests that pass through buffers of the daemon: NBD's. All VMs share it, and each of them has a
//! part that nobody else can take.
//!
//! Half of the budget is divided among the VMs, the other half goes to whoever comes first. A VM that has used up its part and
//! finds nothing left in the common half is not read until its own replies have been taken.
//!
//! Example: a budget of 1 GiB and 64 VMs. Each VM has 8 MiB for itself. 16 VMs whose clients read no replies fill the common
//! 512 MiB with 32 MiB each. The others go on with their 8 MiB.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The budget of this process.
pub(crate) static DAEMON: MemoryBudget = MemoryBudget::new(1 << 30);

/// Memory that VMs share.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    /// In bytes.
    total: u64,
    vms: AtomicU32,
    /// Bytes of the common half that are taken.
    common: AtomicU64,
}

/// What one VM has of a budget.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    budget: &'static MemoryBudget,
    used: u64,
    /// Bytes of `used` that are counted in the common half.
    common: u64,
}

impl MemoryBudget {
    const fn new(total: u64) -> Self {
        MemoryBudget { total, vms: AtomicU32::new(0), common: AtomicU64::new(0) }
    }

    /// The share of one more VM, which ends when it is dropped.
    pub(crate) fn share(&'static self) -> MemoryShare {
        self.vms.fetch_add(1, Ordering::Relaxed);
        MemoryShare { budget: self, used: 0, common: 0 }
    }

    /// Bytes that each VM has for itself.
    fn part(&self) -> u64 {
        self.total / 2 / u64::from(self.vms.load(Ordering::Relaxed).max(1))
    }
}

impl MemoryShare {
    /// Whether the VM may take one more request into memory, however large: else one that is larger than its part could never
    /// be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.used == 0
            || self.used < self.budget.part()
            || self.budget.common.load(Ordering::Relaxed) < self.budget.total / 2
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        if bytes > 0 {
            self.used += bytes;
            self.settle();
        }
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        if bytes > 0 {
            self.used -= bytes;
            self.settle();
        }
    }

    /// Counts in the common half what the VM has above its part.
    fn settle(&mut self) {
        let above = self.used.saturating_sub(self.budget.part());
        if above > self.common {
            self.budget.common.fetch_add(above - self.common, Ordering::Relaxed);
        } else if above < self.common {
            self.budget.common.fetch_sub(self.common - above, Ordering::Relaxed);
        }
        self.common = above;
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.budget.common.fetch_sub(self.common, Ordering::Relaxed);
        self.budget.vms.fetch_sub(1, Ordering::Relaxed);
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

    /// Takes requests of a MiB as long as there is room; how many that were.
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
        assert_eq!(fill(&mut vms[0]), 8 + 512, "the first has its part and the common half");
        assert!(vms[1..].iter_mut().all(|vm| fill(vm) == 8), "each of the others has its part");
        assert!(vms.iter().map(|vm| vm.used).sum::<u64>() <= budget.total);
        // The first gives back; what it gives back goes to whoever comes first.
        vms[0].remove(500 * MIB);
        assert_eq!((fill(&mut vms[1]), fill(&mut vms[0])), (500, 0));
        vms.clear();
        assert_eq!((budget.common.load(Ordering::Relaxed), budget.vms.load(Ordering::Relaxed)), (0, 0));
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
}
