//! What the system lets the daemon have, and how much of it clients may take.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that clients cannot have, so that the control socket can be reached and volumes can be attached; at most a
/// quarter of those that there may be.
pub const RESERVED: u64 = 256;

/// Bytes that clients cannot have. The standard library ends the process where it finds no memory, so what is small and not
/// asked about (a message between threads, an entry of a table) must find some: the stacks of a few helper threads, and
/// what the allocator takes at a time.
const MEMORY_RESERVED: usize = 16 << 20;

/// Whether a client may have `len_bytes` more of memory: whether they can be had and 16 MiB are left then. It takes two
/// system calls, so it is asked for what is large or rare.
#[must_use]
pub fn is_memory_for_clients(len_bytes: usize) -> bool {
    let Some(len) = len_bytes.checked_add(MEMORY_RESERVED) else { return false };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice, which nobody knows and which is given back untouched.
    unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE).and_then(|start| munmap(start, len)) }
        .is_ok()
}

/// Room in `list` for `more` entries; `false` if there is no memory for a client's.
#[must_use]
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> bool {
    list.try_reserve(more).is_ok()
}

/// Whether a client may keep this descriptor. The kernel gives the lowest number that is free, so a high one says that few are
/// left.
pub fn is_for_clients(descriptor: impl AsFd) -> bool {
    let Some(all) = descriptors_for_clients() else { return true };
    u64::try_from(descriptor.as_fd().as_raw_fd()).is_ok_and(|number| number < all)
}

/// Descriptors that the process may have without those that clients cannot have. `None` is no limit.
#[must_use]
pub fn descriptors_for_clients() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile).current?;
    Some(limit - RESERVED.min(limit / 4))
}

/// Raises the soft limit of open descriptors to the hard one: each client and each volume takes some. Returns how many
/// there may be; `None` is no limit.
pub fn raise_descriptors() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.maximum,
        Err(_) => getrlimit(Resource::Nofile).current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        let raised = raise_descriptors();
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.current), (raised, now.maximum));
    }
}
