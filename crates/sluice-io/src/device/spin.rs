//! The time that the loop polls before it sleeps.
//!
//! Sleeping and waking up takes several microseconds, and tens of them in a virtual machine, which is more than many
//! requests take. So after work the loop polls for a short time, if work has lately followed soon after work. Each
//! sleep that ends soon after the last work makes this time longer, and each other sleep makes it shorter, down to
//! zero. A device without work never wakes up.
//!
//! The polling time starts when the work of an iteration is done. Otherwise an iteration with the requests of a hundred
//! queues, which takes longer than the loop may poll, would always be followed by preparations for a sleep: all guests
//! are told to kick, and told not to as soon as their next requests are found.
//!
//! A client is polled only if it sent a request or got one back lately, and only if the gate could dispatch its next one. While limits
//! hold everything that is queued, the loop sleeps until the first instant at which something may be dispatched. A
//! sleep that ends at such an instant proves nothing about polling.

use std::time::Duration;

use sluice_sched::Instant;

use crate::device::priority::{self, Priority};

/// Maximum polling time without work.
const LONGEST: Duration = Duration::from_micros(64);
/// Work that ended a sleep within this time of the last work would almost have been found by polling: the wake-up
/// itself takes part of this time.
const SOON: Duration = Duration::from_micros(128);
/// Polling time at first.
const SHORTEST: Duration = Duration::from_micros(4);

/// The polling time, and when there was work last.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// It never polls.
    never: bool,
    budget: Duration,
    /// When the last iteration with work ended, and how long it took.
    since: Instant,
    took: Duration,
}

/// The end of the wait before an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The loop polled.
    None,
    /// It slept until an event.
    Event,
    /// It slept until the time that it had chosen.
    Time,
}

impl Wait {
    /// Returns how a wait of at most `timeout` ended.
    pub(crate) fn of(timeout: Option<Duration>, without_event: bool) -> Self {
        match (timeout, without_event) {
            (Some(Duration::ZERO), _) => Wait::None,
            (Some(_), true) => Wait::Time,
            _ => Wait::Event,
        }
    }
}

/// Instants of an iteration of the loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Iteration {
    /// When its wait for events ended.
    pub(crate) woke: Instant,
    /// When its work was done.
    pub(crate) ended: Instant,
}

impl Spin {
    /// For this process: a thread with real-time priority does not poll.
    pub(crate) fn of_process() -> Self {
        Spin { never: priority::of_threads() == Priority::RealTime, ..Spin::default() }
    }

    /// Whether the loop polls again instead of sleeping.
    pub(crate) fn is_spinning(&self, now: Instant) -> bool {
        !self.never && !self.budget.is_zero() && now.since(self.since) < self.budget
    }

    /// Returns the instant since which a client must have sent or got a request for the loop to poll it.
    pub(crate) fn horizon(&self, now: Instant) -> Option<Instant> {
        (!self.never && !self.budget.is_zero()).then(|| now - self.budget - self.took)
    }

    /// Records that there were requests when the loop was about to sleep, so that it did not.
    pub(crate) fn note_no_sleep(&mut self) {
        self.lengthen();
    }

    /// Records an iteration: how the wait before it ended, and whether it `found_work`.
    pub(crate) fn note_iteration(&mut self, iteration: Iteration, wait: Wait, found_work: bool) {
        if wait == Wait::Event {
            let soon = iteration.woke.since(self.since) < SOON;
            match (soon && found_work, self.budget / 2) {
                (true, _) => self.lengthen(),
                (false, half) if half < SHORTEST => self.budget = Duration::ZERO,
                (false, half) => self.budget = half,
            }
        }
        if found_work {
            self.since = iteration.ended;
            self.took = iteration.ended.since(iteration.woke);
        }
    }

    fn lengthen(&mut self) {
        self.budget = (self.budget * 2).clamp(SHORTEST, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// An iteration that takes no time.
    fn short(micros: u64) -> Iteration {
        Iteration { woke: at(micros), ended: at(micros) }
    }

    #[test]
    fn the_loop_polls_while_work_arrives_soon() {
        let mut spin = Spin::default();
        assert!(!spin.is_spinning(at(1)), "there was no work yet");
        spin.note_iteration(short(10), Wait::Event, true);
        assert!(spin.is_spinning(at(13)) && !spin.is_spinning(at(14)));
        (1..=5).for_each(|round| spin.note_iteration(short(10 + 100 * round), Wait::Event, true));
        let most = LONGEST.as_micros() as u64;
        assert!(
            spin.is_spinning(at(510 + most - 1)) && !spin.is_spinning(at(510 + most)),
            "a wake-up takes part of the 100 us"
        );
        spin.note_iteration(short(520), Wait::None, true);
        assert!(spin.is_spinning(at(520 + most - 1)), "work restarts the polling time");
    }

    #[test]
    fn a_thread_with_real_time_priority_never_polls() {
        let mut spin = Spin { never: true, ..Spin::default() };
        (1..=5).for_each(|round| spin.note_iteration(short(10 * round), Wait::Event, true));
        assert!(!spin.is_spinning(at(51)) && spin.horizon(at(51)).is_none());
    }

    #[test]
    fn the_loop_does_not_poll_when_work_is_rare() {
        let mut spin = Spin::default();
        (1..=5).for_each(|round| spin.note_iteration(short(10 * round), Wait::Event, true));
        (1..=5).for_each(|round| spin.note_iteration(short(200 * round), Wait::Event, true));
        assert!(!spin.is_spinning(at(1001)), "not even immediately after work");
    }

    #[test]
    fn a_sleep_that_ended_without_work_does_not_lengthen_polling() {
        let mut spin = Spin::default();
        (1..=5).for_each(|round| spin.note_iteration(short(10 * round), Wait::Event, true));
        (6..=10).for_each(|round| spin.note_iteration(short(10 * round), Wait::Event, false));
        assert!(!spin.is_spinning(at(101)));
    }

    #[test]
    fn a_sleep_until_a_chosen_time_does_not_change_the_polling_time() {
        let mut spin = Spin::default();
        (1..=5).for_each(|round| spin.note_iteration(short(10 * round), Wait::Event, true));
        (6..=50).for_each(|round| spin.note_iteration(short(500 * round), Wait::Time, round % 2 == 0));
        assert_eq!(spin.budget, LONGEST);
        let mut spin = Spin::default();
        (1..=50).for_each(|round| spin.note_iteration(short(50 * round), Wait::Time, true));
        assert_eq!(spin.horizon(at(2501)), None);
    }

    #[test]
    fn clients_of_the_last_iteration_are_polled_however_long_it_took() {
        let mut spin = Spin::default();
        (0..10).for_each(|round| spin.note_iteration(short(10 * round), Wait::Event, true));
        assert_eq!(spin.horizon(at(100)), Some(at(36)));
        spin.note_iteration(Iteration { woke: at(1000), ended: at(2000) }, Wait::None, true);
        assert_eq!(spin.horizon(at(2063)), Some(at(999)));
    }

    #[test]
    fn a_loop_with_long_iterations_prepared_for_sleep_after_each() {
        let mut spin = Spin::default();
        (0..10).for_each(|round| spin.note_iteration(short(100 * round), Wait::Event, true));
        spin.note_iteration(Iteration { woke: at(1000), ended: at(2000) }, Wait::None, true);
        assert!(spin.is_spinning(at(2000)), "the loop has not polled since its last work");
    }

    #[test]
    fn a_loop_that_never_slept_never_learned_to_poll() {
        let mut spin = Spin::default();
        spin.note_iteration(short(1000), Wait::None, true);
        assert!(!spin.is_spinning(at(1000)));
        spin.note_no_sleep();
        assert!(spin.is_spinning(at(1000)));
    }
}
