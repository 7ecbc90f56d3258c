//! Rate limit for starting the rings of one socket.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Number of starts without a delay: those of all rings of a VM that boots, and some more.
const BURST: u32 = 256;
/// Time per start after that. For each start the device thread examines every request that waits in the ring, so a VMM
/// that only starts rings must not keep it busy.
///
/// Example: a ring with 128 waiting requests takes 0.1 ms to start. 32 starts per second are 0.3 % of a CPU.
const INTERVAL: Duration = Duration::from_micros(31_250);

/// The starts of one socket. They count across connections.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the starts so far would have been made at a regular pace; `None` before the first.
    due: Option<Instant>,
}

impl Pace {
    /// Counts a start. Returns when it may be made.
    fn count(&mut self, now: Instant) -> Instant {
        let due = self.due.map_or(now, |due| due.max(now));
        self.due = Some(due + INTERVAL);
        now.max(due.checked_sub(INTERVAL * (BURST - 1)).unwrap_or(now))
    }

    /// Waits until another start may be made.
    pub(super) async fn wait(&mut self) {
        let now = Instant::now();
        let at = self.count(now);
        if at > now {
            sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_vmm_that_started_a_ring_repeatedly_kept_its_device_thread_busy() {
        let mut pace = Pace::default();
        let began = Instant::now();
        for _ in 0..BURST {
            pace.wait().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "a VM with many rings boots without a delay");
        for _ in 0..64 {
            pace.wait().await;
        }
        assert_eq!(began.elapsed().as_secs_f64().round(), 2.0);
        tokio::time::advance(INTERVAL * 2 * BURST).await;
        let again = Instant::now();
        for _ in 0..BURST {
            pace.wait().await;
        }
        assert_eq!(again.elapsed(), Duration::ZERO, "the burst is available again after a pause");
    }
}
