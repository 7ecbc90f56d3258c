//! Stream: one internal queue of CFQ, with the sync requests of one owner, or the async requests of all owners of a
//! class and level.

use crate::elevator::{Average, Queue, SECTOR, SeekAverage, SortKey};
use sluice_sched::policy::{Class, Policy, PriorityClass};
use sluice_sched::request::{OwnerId, VolumeId};
use sluice_sched::time::Instant;

/// A request at a larger distance counts as far: 800 sectors.
const FAR: u64 = 800 * SECTOR;
/// On a device without seeks a smaller request counts as far: 64 sectors.
const SMALL: u64 = 64 * SECTOR;

/// Number of a stream.
pub(super) type StreamId = u32;

/// Class and level of an I/O priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Priority {
    pub(super) class: PriorityClass,
    pub(super) level: u8,
}

impl Priority {
    /// Background work has class idle, which has no levels and counts as level 7.
    // rule: cfq.default-level
    pub(super) fn of(policy: &Policy) -> Priority {
        match (policy.class, policy.priority_class) {
            (Class::Background, _) | (_, PriorityClass::Idle) => Priority { class: PriorityClass::Idle, level: 7 },
            (Class::Foreground, class) => Priority { class, level: policy.priority_level },
        }
    }

    /// Index among all classes and levels.
    pub(super) fn index(self) -> usize {
        self.class as usize * 8 + usize::from(self.level)
    }
}

/// Rule by which a stream counts as seeking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seeky {
    /// By the mean of its distances, above this number of sectors.
    Mean(u64),
    /// By the number of far requests among its last 32.
    History,
}

// rule: cfq.queue-state
#[derive(Debug, Clone)]
pub(super) struct Stream {
    /// Owner and volume of sync requests; `None` for async.
    pub(super) owner: Option<(OwnerId, VolumeId)>,
    pub(super) priority: Priority,
    pub(super) requests: Queue,
    /// The request that is nearest to the head.
    pub(super) next: Option<SortKey>,
    pub(super) in_flight: u32,
    /// Whether the disk may idle for its next request.
    pub(super) window: bool,
    pub(super) slice: Slice,
    /// Nanoseconds left of its last slice; negative after an overrun.
    pub(super) resid: i64,
    /// The service tree that it is in, if any.
    pub(super) tree: Option<u32>,
    pub(super) group: u32,
    pub(super) think: Average,
    pub(super) seek: SeekAverage,
    /// Its last 32 requests, one bit each: far or not.
    history: u32,
    /// Whether it has had several requests at a time.
    pub(super) deep: bool,
    pub(super) last_end_time: Option<Instant>,
    last_end: Option<u64>,
    /// Its owner was removed; the stream ends with its last completion.
    pub(super) owner_left: bool,
}

/// A stream's turn.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slice {
    /// `None` before it begins.
    pub(super) end: Option<Instant>,
    pub(super) start: Instant,
    /// In nanoseconds.
    pub(super) length: u64,
    /// When the stream became active.
    pub(super) turn: Instant,
    /// Requests dispatched in it.
    pub(super) sent: u32,
    /// Whether expiry has been checked.
    pub(super) checked: bool,
    pub(super) must_dispatch: bool,
    /// Whether the disk idles for the next request.
    pub(super) awaits: bool,
    /// Whether its end was postponed until the group has requests again.
    pub(super) drawn_out: bool,
}

impl Stream {
    pub(super) fn new(owner: Option<(OwnerId, VolumeId)>, priority: Priority, group: u32) -> Stream {
        Stream {
            owner,
            priority,
            requests: Queue::default(),
            next: None,
            in_flight: 0,
            window: false,
            slice: Slice::default(),
            resid: 0,
            tree: None,
            group,
            think: Average::default(),
            seek: SeekAverage::default(),
            history: 0,
            deep: false,
            last_end_time: None,
            last_end: None,
            owner_left: false,
        }
    }

    pub(super) fn is_sync(&self) -> bool {
        self.owner.is_some()
    }

    pub(super) fn is_idle_class(&self) -> bool {
        self.priority.class == PriorityClass::Idle
    }

    // rule: cfq.select-expired
    pub(super) fn slice_used(&self, now: Instant) -> bool {
        self.slice.end.is_some_and(|end| now >= end)
    }

    /// Adds the think time of an arrival, at most `most`, and its distance.
    // rule: cfq.arrive-statistics
    pub(super) fn observe(&mut self, now: Instant, place: (u64, u64), most: u64, rotational: bool) {
        let (offset, end) = place;
        if self.is_sync() {
            let thought = self.last_end_time.map_or(0, |last| now.nanos_since(last));
            self.think.add(thought.min(most));
        }
        let distance = self.last_end.map_or(0, |last| last.abs_diff(offset));
        self.seek.add(distance);
        let far = if rotational { distance > FAR } else { end - offset < SMALL };
        self.history = self.history << 1 | u32::from(far);
        self.last_end = Some(end);
    }

    // rule: cfq.seeky
    pub(super) fn is_seeky(&self, judged: Seeky) -> bool {
        match judged {
            Seeky::Mean(sectors) => self.seek.0.is_valid() && self.seek.mean() > sectors,
            Seeky::History => self.history.count_ones() > 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream::new(Some((OwnerId(0), VolumeId(0))), Priority::of(&Policy::default()), 0)
    }

    /// rule: cfq.seeky, cfq.arrive-statistics
    #[test]
    fn a_stream_is_seeky_by_mean_or_by_history() {
        let mut near = stream();
        let mut far = stream();
        for step in 0..40u64 {
            near.observe(Instant::ZERO, (step * 4096, (step + 1) * 4096), 0, true);
            far.observe(Instant::ZERO, (step << 30, (step << 30) + 4096), 0, true);
            assert_eq!(far.is_seeky(Seeky::History), step >= 5, "more than four far ones: {step}");
            assert_eq!(far.is_seeky(Seeky::Mean(8192)), step >= 2, "three samples: {step}");
        }
        assert!(!near.is_seeky(Seeky::History) && !near.is_seeky(Seeky::Mean(8192)));
        let mut small = stream();
        (0..6).for_each(|step| small.observe(Instant::ZERO, (step * 4096, (step + 1) * 4096), 0, false));
        assert!(small.is_seeky(Seeky::History), "on an SSD small requests count");
    }

    /// rule: cfq.default-level
    #[test]
    fn background_work_is_idle() {
        let background = Policy { class: Class::Background, priority_level: 0, ..Policy::default() };
        assert_eq!(Priority::of(&background), Priority { class: PriorityClass::Idle, level: 7 });
        assert_eq!(Priority::of(&Policy::default()), Priority { class: PriorityClass::BestEffort, level: 4 });
    }
}
