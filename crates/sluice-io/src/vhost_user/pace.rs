//! How often VMMs may start the rings of one socket.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Starts that may be made at once: those of all rings of a VM that boots, and some more.
const BURST: u32 = 256;
/// Time per start after that. A start has the device thread look at every request that waits in the ring, so a VMM that does
/// nothing else must not keep it busy.
///
/// Example: a ring with 128 requests that wait takes 0.1 ms to start. 32 starts a second are 0.3 % of a processor.
const INTERVAL: Duration = Duration::from_micros(31_250);

/// The starts of one socket: a VMM that connects again goes on where it was.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the starts so far would have been made at a regular pace; none before the first.
    due: Option<Instant>,
}

impl Pace {
    /// Counts a start; returns when it may be made.
    fn count(&mut self, now: Instant) -> Instant {
        let due = self.due.map_or(now, |due| due.max(now));
        self.due = Some(due + INTERVAL);
        now.max(due.checked_sub(INTERVAL * (BURST - 1)).unwrap_or(now))
    }

    /// Waits until one more start may be made.
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
    async fn a_vmm_that_started_a_ring_again_and_again_kept_its_device_thread_busy() {
        let mut pace = Pace::default();
        let began = Instant::now();
        for _ in 0..BURST {
            pace.wait().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "a VM with many rings boots at once");
        for _ in 0..64 {
            pace.wait().await;
        }
        assert_eq!(began.elapsed().as_secs_f64().round(), 2.0);
        tokio::time::advance(INTERVAL * 2 * BURST).await;
        let again = Instant::now();
        for _ in 0..BURST {
            pace.wait().await;
        }
        assert_eq!(again.elapsed(), Duration::ZERO, "a pause gives the burst back");
    }
}
