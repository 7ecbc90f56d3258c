//! A network link with a transmit queue: frames are sent one at a time, and a frame that finds the queue full is
//! dropped.
//!
//! A job is a frame, with the length that it has in a ring: with its Ethernet header of 14 bytes, without the parts
//! that only exist on the wire. On the wire it takes its length, at least 60 bytes, and the overhead: preamble 8,
//! checksum 4, gap 12. With the header these are the 38 bytes that an IP packet costs on Ethernet.
//!
//! Example: UDP datagrams of 1472 bytes are IP packets of 1500 bytes, frames of 1514 and 1538 bytes of wire. At 100
//! Mb/s these are 8127 per second and 95.7 Mb/s of data. Datagrams of 1500 bytes are two fragments each, frames of 1514
//! and 62 bytes: 92.4 Mb/s.
//!
//! A frame completes when it is on the wire, or as soon as it is queued. The former applies to a back end that holds a
//! guest's pages until they are sent, the latter to one that copies, or to a bridge between the two. A dropped frame
//! completes immediately.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::Instant;
use sluice_sched::gate::Slot;

use super::{Job, Model};

/// The shortest frame, in bytes without its checksum.
const FRAME_MIN: u32 = 60;

/// When a frame completes for its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletesWhen {
    /// When its last bit is on the wire.
    Sent,
    /// When it is queued.
    Queued,
}

/// Properties of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkParams {
    /// Bits per second.
    pub bits_per_second: u64,
    /// Additional bytes on the wire per frame.
    pub overhead: u32,
    /// Maximum number of frames that are queued or being sent.
    pub queue: u32,
    /// When a frame completes.
    pub completes_when: CompletesWhen,
}

impl LinkParams {
    /// 100 Mb/s Ethernet with a queue of 1000 frames, the default of Linux.
    pub const FAST_ETHERNET: LinkParams =
        LinkParams { bits_per_second: 100_000_000, overhead: 24, queue: 1000, completes_when: CompletesWhen::Sent };

    /// Time on the wire of a frame of `length` bytes.
    #[must_use]
    pub fn time(&self, length: u32) -> Duration {
        let bits = u128::from(length.max(FRAME_MIN) + self.overhead) * 8;
        let nanos = (bits * 1_000_000_000).div_ceil(u128::from(self.bits_per_second.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[derive(Debug)]
pub struct Link {
    params: LinkParams,
    /// Queued frames with the time when each will have been sent; a frame that has completed before has no slot.
    queue: VecDeque<(Instant, Option<Slot>)>,
    queued: VecDeque<Slot>,
    dropped: VecDeque<Slot>,
    now: Instant,
    busy: u64,
    frames: u64,
    drops: u64,
}

impl Link {
    #[must_use]
    pub fn new(params: LinkParams) -> Self {
        Link {
            params,
            queue: VecDeque::new(),
            queued: VecDeque::new(),
            dropped: VecDeque::new(),
            now: Instant::ZERO,
            busy: 0,
            frames: 0,
            drops: 0,
        }
    }

    /// Number of frames that were queued.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Number of frames that were dropped.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.drops
    }

    /// Removes sent frames that have already completed.
    fn leave(&mut self, now: Instant) {
        self.now = now;
        while self.queue.front().is_some_and(|(sent, slot)| *sent <= now && slot.is_none()) {
            self.queue.pop_front();
        }
    }
}

impl Model for Link {
    // rule: netback.tail-drop
    fn submit(&mut self, now: Instant, job: Job) {
        self.leave(now);
        let there = self.queue.len() - self.queue.partition_point(|(sent, _)| *sent <= now);
        if there >= self.params.queue as usize {
            self.drops += 1;
            self.dropped.push_back(job.slot);
            return;
        }
        self.frames += 1;
        let takes = self.params.time(job.length);
        self.busy += takes.as_nanos() as u64;
        let begins = self.queue.back().map_or(now, |(sent, _)| now.max(*sent));
        let waits = self.params.completes_when == CompletesWhen::Sent;
        self.queue.push_back((begins + takes, waits.then_some(job.slot)));
        if !waits {
            self.queued.push_back(job.slot);
        }
    }

    fn next(&self) -> Option<Instant> {
        if !self.dropped.is_empty() || !self.queued.is_empty() {
            return Some(self.now);
        }
        // Either all of them complete when sent, or none.
        self.queue.front().filter(|(_, slot)| slot.is_some()).map(|(sent, _)| *sent)
    }

    fn take(&mut self, now: Instant) -> Option<Slot> {
        if let Some(slot) = self.queued.pop_front() {
            return Some(slot);
        }
        match self.queue.front() {
            Some((sent, Some(slot))) if *sent <= now => {
                let slot = *slot;
                self.queue.pop_front();
                Some(slot)
            }
            _ => None,
        }
    }

    fn take_dropped(&mut self) -> Option<Slot> {
        self.dropped.pop_front()
    }

    fn dropped(&self) -> u64 {
        self.drops
    }

    fn jobs_held(&self) -> usize {
        let waited_for = self.queue.iter().filter(|(_, slot)| slot.is_some()).count();
        waited_for + self.queued.len() + self.dropped.len()
    }

    fn busy_nanos(&self) -> u64 {
        self.busy
    }

    fn ahead_nanos(&self, now: Instant) -> u64 {
        self.queue.back().map_or(0, |(sent, _)| sent.nanos_since(now))
    }

    fn servers(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::Kind;

    use super::*;

    fn frame(slot: u32, length: u32) -> Job {
        Job { slot: Slot(slot), kind: Kind::Write, offset: 0, length }
    }

    fn taken(link: &mut Link, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| link.take(now)).map(|slot| slot.0).collect()
    }

    /// Megabits of data per second, in datagrams of `payload` bytes that are sent as these frames.
    fn goodput(payload: u32, frames: &[u32]) -> f64 {
        let time: Duration = frames.iter().map(|length| LinkParams::FAST_ETHERNET.time(*length)).sum();
        f64::from(payload) * 8.0 / 1e6 / time.as_secs_f64()
    }

    #[test]
    fn the_goodput_matches_ethernet() {
        assert!((goodput(1472, &[1514]) - 95.71).abs() < 0.01);
        assert!((goodput(1500, &[1514, 62]) - 92.36).abs() < 0.01);
        assert_eq!(LinkParams::FAST_ETHERNET.time(1), LinkParams::FAST_ETHERNET.time(60));
    }

    // rule: netback.tail-drop
    #[test]
    fn a_full_queue_drops_its_tail_and_sends_the_others_in_order() {
        let mut link = Link::new(LinkParams { queue: 3, ..LinkParams::FAST_ETHERNET });
        let start = Instant::from_millis(5);
        (0..5).for_each(|slot| link.submit(start, frame(slot, 1514)));
        assert_eq!(link.next(), Some(start), "a dropped frame completes now");
        assert_eq!(
            (link.take_dropped(), link.take_dropped(), link.take_dropped()),
            (Some(Slot(3)), Some(Slot(4)), None)
        );
        assert_eq!(link.take(start), None);
        let each = LinkParams::FAST_ETHERNET.time(1514);
        assert_eq!((each.as_nanos(), link.next()), (123_040, Some(start + each)));
        assert_eq!(taken(&mut link, start + each), [0]);
        link.submit(start + each, frame(9, 1514));
        assert_eq!(link.take_dropped(), None, "one slot is free");
        assert_eq!(taken(&mut link, start + each * 4), [1, 2, 9]);
        assert_eq!((link.frames(), link.drops(), link.busy_nanos()), (4, 2, 4 * 123_040));
        assert_eq!(link.next(), None);
    }

    #[test]
    fn a_frame_may_complete_when_it_is_queued() {
        let params = LinkParams { queue: 2, completes_when: CompletesWhen::Queued, ..LinkParams::FAST_ETHERNET };
        let (mut link, start) = (Link::new(params), Instant::from_millis(5));
        (0..3).for_each(|slot| link.submit(start, frame(slot, 1514)));
        assert_eq!((taken(&mut link, start), link.take_dropped()), (vec![0, 1], Some(Slot(2))));
        assert_eq!(link.next(), None);
        // The wire has sent one of two by then.
        let later = start + params.time(1514);
        link.submit(later, frame(3, 1514));
        link.submit(later, frame(4, 1514));
        assert_eq!((taken(&mut link, later), link.take_dropped()), (vec![3], Some(Slot(4))));
        assert_eq!(link.ahead_nanos(later), 2 * 123_040);
    }
}
