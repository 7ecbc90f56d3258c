//! What the system lets the daemon have.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that clients cannot have, so that the control socket can be reached and volumes can be attached; at most a
/// quarter of those that there may be.
const RESERVED: u64 = 256;

/// Whether a client may keep this descriptor. The kernel gives the lowest number that is free, so a high one says that few are
/// left.
pub fn is_for_clients(descriptor: impl AsFd) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return true };
    u64::try_from(descriptor.as_fd().as_raw_fd()).is_ok_and(|number| number < limit - RESERVED.min(limit / 4))
}

/// Raises the soft limit of open descriptors to the hard one: each client and each volume takes one. Returns how many
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
