//! Whether the loop polls before it sleeps: it measures the time per request of both ways, and takes the faster.
//!
//! Polling saves wake-ups. A client that sends each request alone, such as libnbd or a guest with one request at a time,
//! would wake a thread that sleeps for each, and each wake-up of a halted CPU takes tens of microseconds.
//!
//! Whether that helps depends on the machine at this moment. If the client runs on a CPU that is idle otherwise, polling
//! is faster. If all CPUs are busy, the client may wait for the CPU of this thread, and then a sleep hands it over at once.
//! While the thread sleeps, requests also gather, so that one wake-up finds several. No rule tells which it is, so both
//! ways are tried from time to time. One choice holds for all that a loop polls: rings of guests, sockets and the disk.

use std::time::Duration;

use sluice_sched::Instant;

/// Number of requests in a window, and its shortest time: many requests may come together.
const WINDOW: u64 = 256;
const WINDOW_TIME: Duration = Duration::from_millis(2);
/// A look at the slower way ends after this part of a window, in requests or in time, if it is still the slower one by far.
const PART: u64 = 4;
/// The slower way is looked at again after this number of windows, and after a change of the choice after the shorter one: one
/// look says little, because a thread may lose its CPU during it. It is also looked at when the other one becomes slower.
const RETRY: u32 = 16;
const RETRY_FIRST: u32 = 4;
/// Clients that send nothing for this time have paused, which says nothing about either way. A thread that waits for a
/// CPU hears nothing either, and that does count, so this is longer than such a wait should be.
const PAUSE: Duration = Duration::from_millis(50);

/// Measures the time per request with polling and without, in windows, and chooses.
///
/// Example: a request takes 60 us with sleeps and 30 us with polling. The first window sleeps, and the second polls. After
/// four more, one sleeps again, to see whether this has changed, but only for 2.4 ms, the time of 80 requests of the faster
/// way: by then it is clear that it has not. The next look is 8 windows later, then 16. If all CPUs become busy, and
/// polling takes 84 us and sleeping 25 us, the second window that shows this is followed by one that sleeps.
#[derive(Debug)]
pub(crate) struct Trial {
    /// Whether the loop polls in this window.
    polls: bool,
    /// Whether this window is a look at the slower way.
    looks: bool,
    /// Number of requests in this window, and when it began.
    requests: u64,
    began: Instant,
    /// When requests last arrived.
    heard: Instant,
    /// Time per request without polling, and with it, in nanoseconds; zero if it is not known.
    nanos: [u64; 2],
    /// That of the last window of the way that is chosen.
    last: u64,
    /// Number of windows since the last look, and until the next.
    windows: u32,
    retry: u32,
}

impl Default for Trial {
    fn default() -> Self {
        let zero = Instant::ZERO;
        let (nanos, last, windows, retry) = ([0, 0], u64::MAX, 0, RETRY_FIRST);
        Trial { polls: false, looks: false, requests: 0, began: zero, heard: zero, nanos, last, windows, retry }
    }
}

impl Trial {
    /// Whether the loop polls now.
    pub(crate) fn polls(&self) -> bool {
        self.polls
    }

    /// Records that `arrived` requests have arrived together.
    pub(crate) fn note(&mut self, now: Instant, arrived: u64) {
        if arrived == 0 {
            return;
        }
        if now.since(self.heard) > PAUSE {
            (self.began, self.requests) = (now, 0);
        } else if self.is_window_over(now) {
            self.end_window(now);
        }
        self.heard = now;
        self.requests += arrived;
    }

    fn is_window_over(&self, now: Instant) -> bool {
        let took = now.since(self.began);
        self.requests >= WINDOW && took >= WINDOW_TIME
            || self.looks && took >= WINDOW_TIME / PART as u32 && self.has_lost(now)
    }

    /// Whether the way that is looked at takes more than a quarter longer than the other one.
    fn has_lost(&self, now: Instant) -> bool {
        let limit = self.nanos[usize::from(!self.polls)] * 5 / 4;
        let has_part = self.requests >= WINDOW / PART || now.nanos_since(self.began) >= WINDOW / PART * limit;
        limit > 0 && has_part && self.measured(now) > limit
    }

    /// Returns the time per request of this window until now, in nanoseconds.
    fn measured(&self, now: Instant) -> u64 {
        (now.nanos_since(self.began) / self.requests.max(1)).max(1)
    }

    fn end_window(&mut self, now: Instant) {
        let measured = self.measured(now);
        (self.began, self.requests) = (now, 0);
        let (polled, looked) = (self.polls, std::mem::take(&mut self.looks));
        // A window in which the thread or its client loses its CPU says little, so the better one of two counts.
        self.nanos[usize::from(polled)] = if looked { measured } else { measured.min(self.last) };
        if !looked {
            self.last = measured;
        }
        self.windows += 1;
        // Polling takes a CPU, so it must be faster by a twentieth.
        let [slept, with_polling] = self.nanos;
        let polls = with_polling + with_polling / 20 < slept;
        // A disk or a machine that becomes slower is slower in both ways.
        let is_doubtful = !looked && (self.windows > self.retry || polls != polled);
        if self.nanos.contains(&0) || is_doubtful {
            (self.polls, self.looks, self.windows) = (!polled, true, 0);
            return;
        }
        self.polls = polls;
        if looked && polls == polled {
            (self.last, self.retry) = (measured, RETRY_FIRST);
        } else if looked {
            self.retry = (self.retry * 2).min(RETRY);
        }
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
            self.send_together(requests, 1, micros)
        }

        /// As [`Client::send`], but `count` requests at a time.
        fn send_together(&mut self, requests: u64, count: u64, micros: [u64; 2]) -> u64 {
            let mut polled = 0;
            for _ in 0..requests / count {
                self.now = self.now + Duration::from_micros(micros[usize::from(self.trial.polls())]);
                polled += count * u64::from(self.trial.polls());
                self.trial.note(self.now, count);
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
    fn many_requests_at_a_time_gain_a_little_by_polling() {
        assert!(Client::default().send_together(1_000_000, 32, [25, 23]) >= 85);
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

    #[test]
    fn to_look_whether_sleeping_is_faster_now_took_three_percent_of_the_time() {
        let mut client = Client::default();
        client.send(10_000, [60, 30]);
        let before = client.now;
        client.send(100_000, [60, 30]);
        let took = client.now.since(before).as_micros();
        assert!((3_000_000..3_060_000).contains(&took), "{took} us; at 30 us each it is 3 s");
    }

    #[test]
    fn two_windows_on_busy_cpus_end_polling() {
        let mut client = Client::default();
        client.send(100_000, [35, 18]);
        client.send(100, [25, 100]);
        let polled = client.send(10_000, [25, 100]);
        assert!(polled <= 8, "two windows of 256 requests, and the looks: {polled} %");
    }

    #[test]
    fn a_client_that_sends_one_at_a_time_after_many_was_compared_with_itself_before() {
        let mut client = Client::default();
        assert!(client.send_together(1_000_000, 32, [50, 30]) >= 93);
        assert!(client.send(10_000, [35, 18]) >= 90, "1.6 us per request are no measure for sleeps of 35 us");
    }

    #[test]
    fn a_window_with_many_requests_that_come_together_lasts_for_two_milliseconds() {
        let mut client = Client::default();
        client.send_together(64_000, 128, [100, 50]);
        let (began, polls) = (client.trial.began, client.trial.polls());
        assert!(polls && client.now.since(began) <= WINDOW_TIME);
        while client.trial.began == began {
            client.send_together(128, 128, [100, 50]);
        }
        assert!(client.trial.began.since(began) >= WINDOW_TIME);
    }

    /// Builds beside make the disk slower for a while.
    #[test]
    fn a_disk_that_becomes_slower_ended_polling() {
        let mut client = Client::default();
        let mut polled = 0;
        for _ in 0..50 {
            polled += client.send(4096, [75, 55]) + client.send(2048, [250, 230]);
        }
        assert!(polled / 100 >= 85, "{} %", polled / 100);
    }

    #[test]
    fn a_thread_that_loses_its_cpu_now_and_then_goes_on_polling() {
        let mut client = Client::default();
        let mut polled = 0;
        for _ in 0..100 {
            polled += client.send(1000, [35, 18]);
            client.now = client.now + Duration::from_millis(4);
        }
        assert!(polled / 100 >= 85, "{} %", polled / 100);
    }
}
