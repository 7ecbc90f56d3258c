//! Detects pauses of the machine during a measurement.
//!
//! On a machine whose CPUs are all busy, threads wait for a CPU, sometimes for a tenth of a second or more. No
//! scheduler can compensate for a device that is not served during that time. Such a measurement describes the
//! machine and not the scheduler, so it does not count. Only the pauses decide this, never the measured values.
//!
//! There are two sources. The kernel counts for each thread how long it was runnable without a CPU. And the caller
//! notices how late it was woken up itself. Neither depends on requests: a thread that waits for a disk does not
//! pause.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// First letters of the names of the threads of devices, uplinks, clients, and of the other end of a link.
const WATCHED: [&str; 4] = ["dev-", "vm-", "nic-", "link"];

/// Pauses since the last [`Pauses::take`].
pub struct Pauses {
    /// Threads of the device and the clients: file of the kernel's counter, and its last value.
    threads: Vec<(PathBuf, Duration)>,
    /// Shorter pauses do no harm: the requests queued at the device and at the gate bridge them.
    shortest: Duration,
    /// Expected time of the next look.
    due: Instant,
    total: Duration,
}

impl Pauses {
    /// Watches the present threads for pauses of at least `shortest` between two looks.
    pub fn watch(shortest: Duration) -> Self {
        let mut threads = Vec::new();
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if WATCHED.iter().any(|watched| name.starts_with(watched)) {
                let count = task.path().join("schedstat");
                let waited = waited(&count).unwrap_or_default();
                threads.push((count, waited));
            }
        }
        Pauses { threads, shortest, due: Instant::now(), total: Duration::ZERO }
    }

    /// Restarts the timing after an intended break.
    pub fn resume(&mut self) {
        self.due = Instant::now();
    }

    /// Looks for pauses. The next look is due after `timeout`.
    pub fn look(&mut self, timeout: Duration) {
        let now = Instant::now();
        let mut longest = now.saturating_duration_since(self.due);
        for (count, before) in &mut self.threads {
            let Some(waited) = waited(count) else { continue };
            longest = longest.max(waited.saturating_sub(*before));
            *before = waited;
        }
        if longest >= self.shortest {
            self.total += longest;
        }
        self.due = now + timeout;
    }

    /// Returns the sum of all pauses since the last call.
    pub fn take(&mut self) -> Duration {
        std::mem::take(&mut self.total)
    }
}

/// Returns how long a thread has been runnable without a CPU, or `None` if the kernel does not count it.
fn waited(count: &PathBuf) -> Option<Duration> {
    let text = fs::read_to_string(count).ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_look_counts_as_a_pause() {
        let shortest = Duration::from_millis(20);
        let mut pauses = Pauses { threads: Vec::new(), shortest, due: Instant::now(), total: Duration::ZERO };
        pauses.look(Duration::from_secs(60));
        pauses.look(Duration::ZERO);
        assert_eq!(pauses.take(), Duration::ZERO, "an early look is none");
        pauses.due = Instant::now() - Duration::from_millis(300);
        pauses.look(Duration::ZERO);
        assert!(pauses.take() >= Duration::from_millis(300));
        assert_eq!(pauses.take(), Duration::ZERO);
    }

    #[test]
    fn the_threads_of_a_link_were_not_watched() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (started, starts) = std::sync::mpsc::channel();
        let run = move || {
            started.send(()).unwrap();
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("nic-pauses-test".to_owned()).spawn(run).unwrap();
        starts.recv().unwrap();
        let pauses = Pauses::watch(Duration::ZERO);
        let names =
            pauses.threads.iter().filter_map(|(count, _)| fs::read_to_string(count.with_file_name("comm")).ok());
        assert!(names.into_iter().any(|name| name.trim() == "nic-pauses-test"));
        drop(stop);
        thread.join().unwrap();
    }
}
