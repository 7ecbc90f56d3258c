//! What each worker states of itself for the statistics of the device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sluice_sched::gate::histogram::Histogram;

use crate::device::workers::hub::Seat;

/// Figures of one worker. It alone writes them, in each iteration of its loop.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Figures {
    iterations: AtomicU64,
    worked_nanos: AtomicU64,
    stale_messages: AtomicU64,
    late_nanos: AtomicU64,
    late: Mutex<Histogram>,
}

/// Figures of a device, of one thread or of all.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    pub(crate) iterations: u64,
    pub(crate) worked_nanos: u64,
    pub(crate) stale_messages: u64,
    /// See [`crate::device::lateness::Lateness::stats`].
    pub(crate) late: (u64, Histogram),
}

/// What was read of all workers so far.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Of each worker, when they were read last.
    worked_before: Vec<u64>,
    /// Sum, over the times between readings, of the work of the worker that worked most.
    worked_nanos: u64,
}

impl Figures {
    pub(crate) fn state(&self, iterations: u64, worked_nanos: u64, stale_messages: u64) {
        self.iterations.store(iterations, Ordering::Relaxed);
        self.worked_nanos.store(worked_nanos, Ordering::Relaxed);
        self.stale_messages.store(stale_messages, Ordering::Relaxed);
    }

    /// States lateness, which seldom changes.
    pub(crate) fn state_late(&self, late: (u64, Histogram)) {
        self.late_nanos.store(late.0, Ordering::Relaxed);
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = late.1;
    }

    pub(crate) fn late_nanos(&self) -> u64 {
        self.late_nanos.load(Ordering::Relaxed)
    }
}

impl Totals {
    /// Sums up the figures of all workers.
    pub(crate) fn read(&mut self, seats: &[Seat]) -> Sum {
        let mut sum = Sum { worked_nanos: self.worked_nanos(seats.iter().map(|seat| &seat.figures)), ..Sum::default() };
        for Seat { figures, .. } in seats {
            sum.iterations += figures.iterations.load(Ordering::Relaxed);
            sum.stale_messages += figures.stale_messages.load(Ordering::Relaxed);
            sum.late.0 += figures.late_nanos();
            sum.late.1.merge(&figures.late.lock().unwrap_or_else(PoisonError::into_inner));
        }
        sum
    }

    /// Returns the time that the busiest worker has worked. It never exceeds the time that has passed, so that it shows
    /// whether a thread is the bottleneck.
    fn worked_nanos<'a>(&mut self, workers: impl Iterator<Item = &'a Figures>) -> u64 {
        let now: Vec<u64> = workers.map(|figures| figures.worked_nanos.load(Ordering::Relaxed)).collect();
        self.worked_before.resize(now.len(), 0);
        let added = now.iter().zip(&self.worked_before).map(|(now, before)| now.saturating_sub(*before));
        self.worked_nanos += added.max().unwrap_or(0);
        self.worked_before = now;
        self.worked_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_worker_of_each_time_counts() {
        let (figures, mut totals) = ([Figures::default(), Figures::default()], Totals::default());
        let mut read = |worked: [u64; 2]| {
            figures.iter().zip(worked).for_each(|(figures, worked)| figures.state(0, worked, 0));
            totals.worked_nanos(figures.iter())
        };
        assert_eq!([read([5, 3]), read([6, 9]), read([6, 9])], [5, 11, 11]);
    }
}
