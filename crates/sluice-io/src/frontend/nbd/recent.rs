//! Clients that sent something lately: the loop may poll their sockets before it sleeps.
//!
//! A client that batches sends its next requests by one system call. One that does not, such as libnbd, sends each by
//! its own, and each would wake a thread that sleeps: the client pays for the wake-up, and the thread finds one request.
//! While the loop polls, the kernel only sets a flag in the ring.
//!
//! Whether that helps depends on the machine at this moment. If the client runs on a CPU that is idle otherwise, it saves
//! two wake-ups of a halted CPU. If all CPUs are busy, the client may wait for the CPU of this thread, and then a sleep
//! hands it over at once. No rule tells which it is, so both ways are tried: [`Trial`] measures the time per request of each.

use std::time::Duration;

use sluice_sched::Instant;

use crate::device::core::Core;
use crate::frontend::nbd::connection::Receive;
use crate::frontend::nbd::{ConnectionId, Nbd};

/// Number of requests in a window.
const WINDOW: u32 = 256;
/// The way that was slower is tried again after this number of windows.
const RETRY: u32 = 16;
/// Clients that send nothing for this time have paused, which says nothing about either way.
const PAUSE: Duration = Duration::from_millis(10);

/// Measures the time per request with polling and without, in windows, and chooses.
///
/// Example: a request takes 60 us with sleeps and 30 us with polling. The first window sleeps, and the second polls. So do
/// the next 15, then one sleeps again to see whether this has changed. If all CPUs become busy and polling takes 25 us, and
/// sleeping 20 us, one window in 17 polls.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Whether the loop polls in this window.
    polls: bool,
    /// Number of requests in this window, and when it began.
    requests: u32,
    began: Instant,
    /// When a client was last heard.
    heard: Instant,
    /// Time per request without polling, and with it, in nanoseconds; zero if it is not known.
    nanos: [u64; 2],
    /// Number of windows since the slower way was tried.
    windows: u32,
}

impl Trial {
    /// Counts a request.
    pub(crate) fn count(&mut self) {
        self.requests = self.requests.saturating_add(1);
    }

    /// Records that a client has sent something.
    fn heard(&mut self, now: Instant) {
        if now.since(self.heard) > PAUSE {
            (self.began, self.requests) = (now, 0);
        } else if self.requests >= WINDOW {
            self.end_window(now);
        }
        self.heard = now;
    }

    fn end_window(&mut self, now: Instant) {
        let measured = (now.nanos_since(self.began) / u64::from(self.requests)).max(1);
        // What is known of the way that was tried again is old.
        let is_retry = self.windows == 0;
        let known = &mut self.nanos[usize::from(self.polls)];
        *known = if is_retry { measured } else { u64::midpoint(*known, measured) };
        (self.began, self.requests) = (now, 0);
        self.windows += 1;
        let [slept, polled] = self.nanos;
        if slept == 0 || polled == 0 || self.windows > RETRY {
            (self.polls, self.windows) = (!self.polls, 0);
        } else {
            // Polling takes a CPU, so it must be faster by a tenth.
            self.polls = polled + polled / 10 < slept;
        }
    }
}

impl Nbd {
    /// Records that a client has sent something.
    pub(crate) fn heard(&mut self, now: Instant, id: ConnectionId) {
        self.trial.heard(now);
        let connection = &mut self.connections[id];
        connection.heard = now;
        if !connection.is_recent {
            connection.is_recent = true;
            self.recent.push(id);
        }
    }

    /// Whether a client that sent something after `since` is listened to, what it sends next could be dispatched, and
    /// polling is the faster way. Forgets clients that sent nothing since then.
    ///
    /// The client that is found is put first, so that the next call looks at it alone, and not at all those before it
    /// that limits hold.
    pub(crate) fn may_hear(&mut self, core: &Core, since: Instant) -> bool {
        let mut position = 0;
        while self.trial.polls
            && let Some(id) = self.recent.get(position)
        {
            let connection = &mut self.connections[*id];
            if connection.heard <= since {
                connection.is_recent = false;
                self.recent.swap_remove(position);
            } else if connection.receive != Receive::Idle && !core.is_held(connection.volume) {
                self.recent.swap(0, position);
                return true;
            } else {
                position += 1;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends one request after the other, and the trial of the thread that serves it.
    #[derive(Default)]
    struct Client {
        trial: Trial,
        now: Instant,
    }

    impl Client {
        /// Sends requests, each after this time without polling or with it. Returns the percentage that was polled for.
        fn send(&mut self, requests: u64, micros: [u64; 2]) -> u64 {
            let mut polled = 0;
            for _ in 0..requests {
                self.now = self.now + Duration::from_micros(micros[usize::from(self.trial.polls)]);
                polled += u64::from(self.trial.polls);
                self.trial.heard(self.now);
                self.trial.count();
            }
            polled * 100 / requests
        }
    }

    #[test]
    fn the_loop_polls_if_that_is_faster_and_notices_when_it_no_longer_is() {
        let mut client = Client::default();
        assert!(client.send(100_000, [60, 30]) >= 93);
        assert!(client.send(100_000, [20, 25]) <= 12);
        assert!(client.send(100_000, [60, 30]) >= 85);
    }

    #[test]
    fn a_client_that_waits_for_the_cpu_of_the_thread_was_polled_in_vain_for_each_request() {
        assert!(Client::default().send(100_000, [20, 84]) <= 7);
    }

    #[test]
    fn polling_that_gains_nothing_is_not_worth_its_cpu() {
        assert!(Client::default().send(100_000, [50, 48]) <= 7, "a limit sets the pace");
    }

    #[test]
    fn pauses_are_not_measured() {
        let mut client = Client::default();
        client.send(10_000, [60, 30]);
        for _ in 0..100 {
            client.now = client.now + Duration::from_secs(1);
            client.send(1000, [60, 30]);
        }
        assert_eq!(client.trial.nanos.map(|nanos| nanos / 1000), [60, 30]);
    }
}
