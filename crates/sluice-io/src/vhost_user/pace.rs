//! Rate limits for what the VMMs of one socket make the daemon do besides requests.
//!
//! `cpu_limit` bounds the work of a device thread for a VM. The work here is for sessions, on the main thread, where the other
//! VMs' sessions and all commands wait for it.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// A rate limit. It counts across connections.
#[derive(Debug)]
pub(super) struct Pace {
    /// Number of events without a delay.
    burst: u32,
    /// Time per event after that.
    interval: Duration,
    /// When the events so far would have occurred at a regular pace; `None` before the first.
    due: Mutex<Option<Instant>>,
}

impl Pace {
    const fn new(burst: u32, interval: Duration) -> Self {
        Pace { burst, interval, due: Mutex::const_new(None) }
    }

    /// Starts of rings: those of all rings of a VM that boots, and some more. For each start the device thread examines every
    /// request that waits in the ring, so a VMM that only starts rings must not keep it busy.
    ///
    /// Example: a ring with 128 waiting requests takes 0.1 ms to start. 32 starts per second are 0.3 % of a CPU.
    pub(super) const fn of_ring_starts() -> Self {
        Pace::new(256, Duration::from_micros(31_250))
    }

    /// Messages: those of a VM that boots with many rings, several times over. QEMU sends two whenever a guest moves an interrupt.
    ///
    /// Example: a message takes 5 to 100 us, so 500 per second are at most 5 % of a CPU.
    pub(super) const fn of_messages() -> Self {
        Pace::new(4096, Duration::from_millis(2))
    }

    /// Connections. VMMs connect again once or twice a second.
    ///
    /// Example: a session takes 0.2 ms to start and end, so 20 per second are 0.4 % of a CPU.
    pub(super) const fn of_connections() -> Self {
        Pace::new(64, Duration::from_millis(50))
    }

    /// Waits until another event may occur.
    pub(super) async fn wait(&self) {
        let at = {
            let (mut due, now) = (self.due.lock().await, Instant::now());
            let at = due.map_or(now, |due| due.max(now));
            *due = Some(at + self.interval);
            at.checked_sub(self.interval * (self.burst - 1)).unwrap_or(now)
        };
        if at > Instant::now() {
            sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for `events` in virtual time. Returns how long that took.
    async fn wait_for(pace: &Pace, events: u32) -> Duration {
        let began = Instant::now();
        for _ in 0..events {
            pace.wait().await;
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_vmm_that_repeats_anything_costs_a_bounded_part_of_a_cpu() {
        for pace in [Pace::of_ring_starts(), Pace::of_messages(), Pace::of_connections()] {
            let (burst, interval) = (pace.burst, pace.interval);
            assert_eq!(wait_for(&pace, burst).await, Duration::ZERO, "a VM with many rings boots without a delay");
            let (took, expected) = (wait_for(&pace, 64).await, interval * 64);
            assert!(took >= expected && took <= expected + Duration::from_millis(2), "{took:?}, not {expected:?}");
            tokio::time::advance(interval * 2 * burst).await;
            assert_eq!(wait_for(&pace, burst).await, Duration::ZERO, "the burst is available again after a pause");
        }
    }
}
