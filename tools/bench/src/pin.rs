//! Servers on one CPU and clients on another, so that the kernel does not move them.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What runs on a CPU of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Server,
    Client,
}

/// Lets this thread, and the threads and programs that it starts from now on, run on the first CPU of the process only
/// (servers), or on the second (clients).
pub(super) fn pin(side: Side) -> Result<(), String> {
    // As they were before the first call.
    static ALL: OnceLock<Option<CpuSet>> = OnceLock::new();
    let all = ALL.get_or_init(|| sched_getaffinity(None).ok()).ok_or("Cannot read the CPUs of this process")?;
    let cpu = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).nth(side as usize).ok_or("Pinning needs two CPUs")?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).map_err(|error| format!("Cannot pin to a CPU: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_a_cpu_of_their_own() {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let cpu_of = |side| pin(side).map(|()| sched_getaffinity(None).unwrap());
        let (server, client) = (cpu_of(Side::Server).unwrap(), cpu_of(Side::Client));
        assert_eq!((server.count(), client.is_ok()), (1, cpus > 1));
        assert!(client.is_ok_and(|client| client.count() == 1 && client != server) || cpus == 1);
    }
}
