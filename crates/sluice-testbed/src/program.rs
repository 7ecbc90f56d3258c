//! Loads that decide themselves when a request is submitted, where it goes, how long it is and whether it writes.
//!
//! A [`Program`] is a state machine without clock and I/O, as the simulator's workloads are: the client asks it for the next time,
//! takes the requests that are due, and reports completions. Its times count from the moment at which its VM starts.
//!
//! Example: 16 threads that read 1000 blocks are 16 requests that are due at once, one more after each completion, and none after the
//! thousandth. With nothing due and nothing outstanding the work is done, and the client notes the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
    pub is_read: bool,
}

/// Requests of a VM.
pub trait Program {
    /// Returns when it submits the next request, if none of its requests completes before; `None`: only after a completion, or never.
    fn next(&self) -> Option<Duration>;

    /// Returns the request at the time that [`Program::next`] returned.
    fn ask(&mut self, now: Duration) -> Ask;

    /// Notes that one of its requests has completed.
    fn completed(&mut self, now: Duration);
}

/// Makes a program, in the client's thread.
#[derive(Clone)]
pub struct ProgramMaker(pub Arc<dyn Fn() -> Box<dyn Program> + Send + Sync>);

/// A program that has started.
pub(super) struct Running {
    pub(super) program: Box<dyn Program>,
    pub(super) began: Instant,
}

impl Running {
    /// Returns when it submits the next request.
    pub(super) fn next(&self) -> Option<Instant> {
        self.program.next().map(|time| self.began + time)
    }

    /// Returns a request that is due, and since when.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Ask, Instant)> {
        let time = self.program.next()?;
        let due = self.began + time;
        (due <= now).then(|| (self.program.ask(time), due))
    }

    pub(super) fn completed(&mut self, now: Instant) {
        self.program.completed(self.time(now));
    }

    /// Returns the time since its start.
    pub(super) fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two requests each 10 ms, three times.
    struct Pairs {
        left: u32,
    }

    impl Program for Pairs {
        fn next(&self) -> Option<Duration> {
            (self.left > 0).then(|| Duration::from_millis(u64::from((6 - self.left) / 2) * 10))
        }

        fn ask(&mut self, _now: Duration) -> Ask {
            self.left -= 1;
            Ask { offset: 0, len: 4096, is_read: true }
        }

        fn completed(&mut self, _now: Duration) {}
    }

    #[test]
    fn requests_are_taken_when_they_are_due_and_keep_their_time() {
        let began = Instant::now();
        let at = |millis: u64| began + Duration::from_millis(millis);
        let mut running = Running { program: Box::new(Pairs { left: 6 }), began };
        let mut due = |now| std::iter::from_fn(|| running.take(now)).map(|(_, due)| due).collect::<Vec<_>>();
        assert_eq!(due(at(5)), [at(0); 2]);
        assert_eq!(due(at(9)), []);
        assert_eq!(due(at(25)), [at(10), at(10), at(20), at(20)]);
        assert_eq!((running.next(), running.time(at(25))), (None, Duration::from_millis(25)));
    }
}
