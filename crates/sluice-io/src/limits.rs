//! Resource limits of the process, and the part that clients may use.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit, setrlimit};

/// File descriptors reserved for the daemon, so that the control socket can be reached and volumes can be attached; at
/// most a quarter of all.
pub const RESERVED: u64 = 256;

/// Bytes of memory reserved for the daemon. The standard library ends the process if a small allocation fails (a
/// message between threads, an entry of a table). The reserve must also cover the stacks of a few helper threads, and
/// the blocks that the allocator requests from the kernel.
const MEMORY_RESERVED: usize = 16 << 20;

/// Whether a client may have `len_bytes` more of memory: whether they can be mapped with 16 MiB in addition. The check
/// takes two system calls, so it is made only for large or rare allocations.
#[must_use]
pub fn is_memory_for_clients(len_bytes: usize) -> bool {
    let Some(len) = len_bytes.checked_add(MEMORY_RESERVED) else { return false };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, which is unmapped without being used.
    unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE).and_then(|start| munmap(start, len)) }
        .is_ok()
}

/// Reserves room in `list` for `more` entries of a client. Returns `false` if there is no memory.
#[must_use]
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> bool {
    list.try_reserve(more).is_ok()
}

/// Whether a client may keep this descriptor. The kernel gives out the lowest free number, so a high number means that
/// few are left.
pub fn is_for_clients(descriptor: impl AsFd) -> bool {
    let Some(all) = descriptors_for_clients() else { return true };
    u64::try_from(descriptor.as_fd().as_raw_fd()).is_ok_and(|number| number < all)
}

/// Returns the number of descriptors without the reserved ones; `None` if there is no limit.
#[must_use]
pub fn descriptors_for_clients() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(limit - RESERVED.min(limit / 4))
}

/// Raises the soft limit of open descriptors to the hard limit, because each client and each volume needs some. Returns
/// the limit; `None` if there is none.
pub fn raise_descriptors() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.maximum,
        Err(_) => getrlimit(Resource::Nofile).current,
    }
}

/// Whether the calling thread has a real-time priority, which threads that it starts inherit.
#[must_use]
pub fn has_real_time_priority() -> bool {
    // SAFETY: the call takes a number, and reports on this thread.
    let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
    matches!(policy, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        let raised = raise_descriptors();
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.current), (raised, now.maximum));
    }
}
