//! How late the thread of a device looks at its requests.
//!
//! A thread that gets no CPU dispatches late, and its device idles meanwhile. No counter of the kernel tells this from a
//! thread that may wait: at idle priority a thread spends most of its time waiting for a CPU, and nothing is late. The
//! loop itself knows when it has to look again: when its sleep was to end, and immediately if it does not sleep. While the
//! device has requests it sleeps at most [`LOOK`], because their completion is due at an unknown time.
//!
//! Example: the loop sleeps for a completion at 0 ms, and gets no CPU from 2 ms to 300 ms. It was to look again at 10 ms, so
//! it is 290 ms late, whatever the device has done.

use std::time::Duration;

use sluice_sched::Instant;
use sluice_sched::gate::histogram::Histogram;

use crate::reactor::spec::Late;

/// Longest sleep while requests are in flight, and longest iteration that is not late.
const LOOK: Duration = Duration::from_millis(10);
/// A thread that is this late is on time: it takes about as long to wake up on a busy machine.
const ON_TIME: Duration = Duration::from_millis(1);

/// Requests at the gate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) queued: u64,
    pub(crate) in_flight: u64,
}

/// When the loop has to look again, and how late it was so far.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    /// `None`: nothing depends on it.
    due: Option<Instant>,
    nanos: u64,
    times: Histogram,
}

impl Lateness {
    /// Returns how long the loop may sleep at `now`, which wants to sleep for at most `timeout`.
    pub(crate) fn limit_wait(&mut self, now: Instant, timeout: Option<Duration>, load: Load) -> Option<Duration> {
        if load.queued + load.in_flight == 0 {
            self.due = None;
            return timeout;
        }
        self.look(now);
        let longest = if load.in_flight > 0 { Some(LOOK) } else { None };
        let timeout = timeout.into_iter().chain(longest).min();
        self.due = timeout.map(|timeout| now + timeout);
        timeout
    }

    /// Records that the loop looks at its requests at `now`.
    pub(crate) fn look(&mut self, now: Instant) {
        let Some(due) = self.due.replace(now + LOOK) else { return };
        if now.since(due) > ON_TIME {
            self.nanos += now.nanos_since(due);
            self.times.add(now.nanos_since(due));
        }
    }

    /// The sum of all times by which it was late, in nanoseconds, and how often it was how late.
    pub(crate) fn stats(&self) -> Late {
        Late { nanos: self.nanos, times: self.times.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Load = Load { queued: 1, in_flight: 1 };

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn late_millis(lateness: &Lateness) -> u64 {
        lateness.stats().nanos / 1_000_000
    }

    #[test]
    fn a_thread_without_a_cpu_is_late_by_what_exceeds_its_sleep() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.limit_wait(at(0), Some(Duration::from_millis(4)), BUSY), Some(Duration::from_millis(4)));
        lateness.look(at(4));
        assert_eq!(late_millis(&lateness), 0);
        lateness.limit_wait(at(4), Some(Duration::from_millis(4)), BUSY);
        lateness.look(at(300));
        assert_eq!(late_millis(&lateness), 292);
        assert!(lateness.stats().times.percentile(100.0).is_some_and(|longest| longest >= 292_000_000));
    }

    #[test]
    fn a_sleep_for_a_completion_ends_in_time_to_see_that_it_was_late() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.limit_wait(at(0), None, BUSY), Some(LOOK));
        lateness.look(at(10));
        assert_eq!(late_millis(&lateness), 0, "a slow device does not make its thread late");
        lateness.limit_wait(at(10), None, BUSY);
        lateness.look(at(120));
        assert_eq!(late_millis(&lateness), 100);
    }

    #[test]
    fn a_thread_without_requests_sleeps_as_long_as_it_likes() {
        let mut lateness = Lateness::default();
        let idle = Load { queued: 0, in_flight: 0 };
        assert_eq!(lateness.limit_wait(at(0), None, idle), None);
        lateness.look(at(5000));
        assert_eq!(late_millis(&lateness), 0);
        let queued = Load { queued: 1, in_flight: 0 };
        assert_eq!(lateness.limit_wait(at(5000), Some(Duration::from_secs(5)), queued), Some(Duration::from_secs(5)));
        lateness.look(at(10_500));
        assert_eq!(late_millis(&lateness), 500);
    }

    #[test]
    fn an_iteration_that_was_interrupted_is_late() {
        let mut lateness = Lateness::default();
        lateness.limit_wait(at(0), None, BUSY);
        lateness.look(at(5));
        lateness.limit_wait(at(12), Some(Duration::ZERO), BUSY);
        lateness.look(at(12));
        assert_eq!(late_millis(&lateness), 0);
        lateness.limit_wait(at(62), None, BUSY);
        assert_eq!(late_millis(&lateness), 40);
    }
}
