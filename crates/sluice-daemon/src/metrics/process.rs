//! The kernel's figures of the daemon's process.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// CPU time in seconds, user and system.
pub(super) fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    Some(cpu_ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Resident memory in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Number of open descriptors.
pub(super) fn descriptors() -> Option<u64> {
    // One of them is that of the folder.
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64 - 1)
}

/// Maximum number of open descriptors; `None` without one.
pub(super) fn descriptors_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Fields 14 and 15 of `/proc/PID/stat`, of which the second, a name in brackets, may contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        assert_eq!(cpu_ticks("7 (a) b (c)) S 1 7 7 0 -1 4194304 100 0 0 0 250 30 0 0 20 0"), Some(280));
        assert_eq!(cpu_ticks("7 (a"), None);
        assert!(cpu_seconds().is_some() && resident_bytes() > Some(0) && descriptors() > Some(0));
    }
}
