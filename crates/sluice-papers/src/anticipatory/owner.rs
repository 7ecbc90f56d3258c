//! Histories of owners: think time, seek distance, and whether they return.
//!
//! Example: each new owner that exits after its first request moves the probability of an exit by an eighth towards 256:
//! from 0 to 32, 60 and 84.

use crate::elevator::{Average, SeekAverage};
use sluice_sched::request::Request;
use sluice_sched::time::Instant;

/// Probability 1.
const ONE: u32 = 256;

/// History of an owner, in one cache line.
#[derive(Debug, Clone, Default)]
#[repr(align(64))]
pub(super) struct Owner {
    pub(super) exited: bool,
    /// It has requests in flight or has had completions.
    pub(super) started: bool,
    pub(super) completed: bool,
    pub(super) queued: u32,
    pub(super) last_end_time: Instant,
    pub(super) last_end: u64,
    pub(super) think: Average,
    pub(super) seek: SeekAverage,
}

const _: () = assert!(size_of::<Option<Owner>>() == 64);

/// Statistics of owners in general.
#[derive(Debug, Default)]
pub(super) struct Predictor {
    /// Probability that an owner exits after its first request; 256 is 1.
    pub(super) exit: u32,
    /// Probability that no request continues where an owner that exited has stopped; 256 is 1.
    pub(super) exit_alone: u32,
    pub(super) think: Average,
    pub(super) seek: SeekAverage,
}

fn up(probability: &mut u32) {
    *probability = (7 * *probability + ONE) / 8;
}

fn down(probability: &mut u32) {
    *probability = 7 * *probability / 8;
}

impl Predictor {
    pub(super) fn exits(&mut self) {
        up(&mut self.exit);
    }

    pub(super) fn stays(&mut self) {
        down(&mut self.exit);
    }

    pub(super) fn alone(&mut self) {
        up(&mut self.exit_alone);
    }

    pub(super) fn joined(&mut self) {
        down(&mut self.exit_alone);
    }

    /// Whether idling for a new owner is not worth it.
    // rule: anticipatory.no-history
    pub(super) fn doubts_new_ones(&self, antic_expire: u64) -> bool {
        self.think.mean() > antic_expire || self.exit * self.exit_alone > 128 * 256
    }

    pub(super) fn doubts_the_dead(&self) -> bool {
        self.exit_alone > 128
    }
}

impl Owner {
    /// Adds a request to the history; a sample of think time is at most `think_max`.
    // rule: anticipatory.think-sample, anticipatory.first-sample, anticipatory.seek-sample
    pub(super) fn observe(&mut self, now: Instant, request: &Request, think_max: u64, predictor: &mut Predictor) {
        if self.started || self.completed {
            let alone = self.completed && self.queued == 0;
            let thought = if alone { now.nanos_since(self.last_end_time).min(think_max) } else { 0 };
            let distance = self.last_end.abs_diff(request.offset);
            if self.think.is_empty() {
                predictor.think.add(thought);
                predictor.seek.add(distance);
                predictor.stays();
            }
            self.think.add(thought);
            self.seek.add(distance);
        }
        self.last_end = request.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::drive::at;
    use sluice_sched::request::Kind;

    /// rule: anticipatory.think-sample, anticipatory.first-sample, anticipatory.seek-sample
    #[test]
    fn statistics_start_with_the_second_request_of_an_owner() {
        let (mut owner, mut predictor) = (Owner::default(), Predictor { exit: 80, ..Predictor::default() });
        let millis = Instant::from_millis;
        owner.observe(millis(100), &at(Kind::Read, 10), 20, &mut predictor);
        assert!(owner.think.is_empty() && predictor.exit == 80);
        (owner.started, owner.completed, owner.last_end_time) = (true, true, millis(101));
        owner.observe(millis(105), &at(Kind::Read, 13), u64::MAX, &mut predictor);
        let near = |mean: u64, expected: u64| mean.abs_diff(expected) <= 5;
        assert!(near(owner.think.mean(), 4_000_000) && near(predictor.think.mean(), 4_000_000));
        assert!(near(owner.seek.mean(), 16) && near(predictor.seek.mean(), 16), "two pages are 16 sectors");
        assert_eq!(predictor.exit, 70, "by an eighth");
        owner.observe(millis(200), &at(Kind::Read, 14), 5_000_000, &mut predictor);
        assert!(owner.think.mean() < 5_000_000, "clipped");
        assert!(near(predictor.think.mean(), 4_000_000), "only first samples are those of new owners");
        let before = owner.think.mean();
        owner.queued = 1;
        owner.observe(millis(300), &at(Kind::Read, 15), u64::MAX, &mut predictor);
        assert!(owner.think.mean() < before, "0 while others are queued");
    }

    /// rule: anticipatory.no-history, anticipatory.owner-exited
    #[test]
    fn probabilities_move_by_eighths() {
        let mut predictor = Predictor::default();
        let mut seen = Vec::new();
        for _ in 0..12 {
            predictor.exits();
            predictor.alone();
            seen.push((predictor.exit, predictor.doubts_the_dead(), predictor.doubts_new_ones(u64::MAX)));
        }
        assert_eq!(seen[0].0, 32);
        assert_eq!(seen.iter().position(|(_, dead, _)| *dead), Some(5), "above a half: {seen:?}");
        assert_eq!(seen.iter().position(|(_, _, new)| *new), Some(9), "the product above a half: {seen:?}");
        predictor.joined();
        assert!(predictor.exit_alone < predictor.exit);
    }
}
