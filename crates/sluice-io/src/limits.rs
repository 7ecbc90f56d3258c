//! What the system lets the daemon have.

use rustix::process::{Resource, getrlimit, setrlimit};

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
