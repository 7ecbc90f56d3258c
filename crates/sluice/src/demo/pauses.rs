//! Whether the machine let the demo run while it was measured.
//!
//! Problem: on a machine whose processors are all taken, threads wait for one, now and then for a tenth of a second or
//! more. Nobody serves a device meanwhile, and no scheduler can make up for it. What is measured then says something of
//! the machine and nothing of the scheduler, so it does not count. Whether it counts is decided by the pauses alone,
//! whatever was measured.
//!
//! Two witnesses: the kernel counts for each thread how long it was ready and had no processor, and whoever looks sees
//! how late it was woken up itself. Neither knows anything of requests; a thread that waits for a disk has no pause.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Shorter ones do no harm: what waits at the device and at the gate bridges them.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Pauses since the last [`Pauses::take`].
pub(super) struct Pauses {
    /// Of the device's thread and the clients': where the kernel's count stands, and what it was.
    threads: Vec<(PathBuf, Duration)>,
    /// When the next look is due.
    due: Instant,
    total: Duration,
}

impl Pauses {
    /// Watches the threads that there are now.
    pub(super) fn watch() -> Self {
        let mut threads = Vec::new();
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("dev-") || name.starts_with("vm-") {
                let count = task.path().join("schedstat");
                let waited = waited(&count).unwrap_or_default();
                threads.push((count, waited));
            }
        }
        Pauses { threads, due: Instant::now(), total: Duration::ZERO }
    }

    /// Nobody has looked for a while, on purpose.
    pub(super) fn resume(&mut self) {
        self.due = Instant::now();
    }

    /// Looks, and will look again when `patience` has passed.
    pub(super) fn look(&mut self, patience: Duration) {
        let now = Instant::now();
        let mut longest = now.saturating_duration_since(self.due);
        for (count, before) in &mut self.threads {
            let Some(waited) = waited(count) else { continue };
            longest = longest.max(waited.saturating_sub(*before));
            *before = waited;
        }
        if longest >= PAUSE_MIN {
            self.total += longest;
        }
        self.due = now + patience;
    }

    /// All pauses since the last call.
    pub(super) fn take(&mut self) -> Duration {
        std::mem::take(&mut self.total)
    }
}

/// How long a thread has been ready without a processor; nothing where the kernel does not count that.
fn waited(count: &PathBuf) -> Option<Duration> {
    let text = fs::read_to_string(count).ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_too_late_has_seen_a_pause() {
        let mut pauses = Pauses { threads: Vec::new(), due: Instant::now(), total: Duration::ZERO };
        pauses.look(Duration::from_secs(60));
        pauses.look(Duration::ZERO);
        assert_eq!(pauses.take(), Duration::ZERO, "an early look is none");
        pauses.due = Instant::now() - Duration::from_millis(300);
        pauses.look(Duration::ZERO);
        assert!(pauses.take() >= Duration::from_millis(300));
        assert_eq!(pauses.take(), Duration::ZERO);
    }
}
