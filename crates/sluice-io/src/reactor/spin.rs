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
//! The loop polls only if the client of the last request may send one that the gate could dispatch. While limits hold everything that is
//! queued, the loop sleeps until the first instant at which something may be dispatched. A sleep that ends at such an instant proves
//! nothing about polling.
//!
//! If all CPUs are busy, the client may wait for the CPU of this thread, and only a sleep hands it over: polling finds nothing however long
//! it takes, and the sleep after it ends at once. So after some such sleeps in a row at the longest polling time the loop gives up for
//! a number of sleeps, which doubles each time and starts again when polling finds work.

use std::time::Duration;

use sluice_sched::Instant;

use crate::reactor::priority::{self, Priority};

/// Maximum polling time without work.
const LONGEST: Duration = Duration::from_micros(64);
/// Work that ended a sleep within this time of the last work would almost have been found by polling: the wake-up
/// itself takes part of this time.
const SOON: Duration = Duration::from_micros(128);
/// Polling time at first.
const SHORTEST: Duration = Duration::from_micros(4);
/// Times that the longest polling finds nothing in a row, after which the loop does not poll.
const VAIN_MAX: u32 = 4;
/// Number of sleeps until it polls again: at first, and at most.
const REST: u32 = 32;
const REST_MAX: u32 = 2048;

/// The polling time, and when there was work last.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// It never polls.
    never: bool,
    budget: Duration,
    /// When the last iteration with work ended.
    since: Instant,
    /// Times in a row that the longest polling has found nothing although work came soon.
    vain: u32,
    /// Number of sleeps until it polls again, and the last such number.
    rest: u32,
    last_rest: u32,
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

    /// Records that there were requests when the loop was about to sleep, so that it did not.
    pub(crate) fn note_no_sleep(&mut self) {
        self.lengthen();
    }

    /// Records an iteration: how the wait before it ended, and whether it `found_work`.
    pub(crate) fn note_iteration(&mut self, iteration: Iteration, wait: Wait, found_work: bool) {
        if wait == Wait::Event {
            match found_work && iteration.woke.since(self.since) < SOON {
                true => self.slept_in_vain(),
                false => self.shorten(),
            }
        } else if found_work && wait == Wait::None && !self.budget.is_zero() {
            (self.vain, self.last_rest) = (0, 0);
        }
        if found_work {
            self.since = iteration.ended;
        }
    }

    /// Records a sleep that work ended soon.
    fn slept_in_vain(&mut self) {
        if self.rest > 0 {
            self.rest -= 1;
        } else if self.budget < LONGEST {
            self.lengthen();
        } else {
            self.vain += 1;
            if self.vain >= VAIN_MAX {
                self.last_rest = (self.last_rest * 2).clamp(REST, REST_MAX);
                (self.budget, self.vain, self.rest) = (Duration::ZERO, 0, self.last_rest);
            }
        }
    }

    fn lengthen(&mut self) {
        self.budget = (self.budget * 2).clamp(SHORTEST, LONGEST);
    }

    fn shorten(&mut self) {
        let half = self.budget / 2;
        self.budget = if half < SHORTEST { Duration::ZERO } else { half };
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
        assert!(!spin.is_spinning(at(51)));
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
        assert!(!spin.is_spinning(at(2501)));
    }

    #[test]
    fn a_loop_with_long_iterations_prepared_for_sleep_after_each() {
        let mut spin = Spin::default();
        (0..6).for_each(|round| spin.note_iteration(short(100 * round), Wait::Event, true));
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

    /// The client gets the CPU only while the loop sleeps.
    #[test]
    fn polling_that_never_finds_what_ends_the_next_sleep_was_not_given_up() {
        let mut spin = Spin::default();
        let mut polled = 0;
        let mut now = 0;
        for _ in 0..10_000 {
            let poll = if spin.is_spinning(at(now)) { spin.budget.as_micros() as u64 } else { 0 };
            polled += poll;
            now += poll + 5;
            spin.note_iteration(short(now), Wait::Event, true);
        }
        assert!(polled <= 10_000 / 2, "{polled} us of polling for 10,000 requests");
    }
}
