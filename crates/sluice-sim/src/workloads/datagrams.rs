//! Datagrams at a constant rate, as one flow of a UDP generator sends them.
//!
//! The intervals of a real generator vary, and so do these, by a stated part of their mean. Without that, flows of one
//! rate at a full queue become synchronised: the flow that sends just after a slot was freed gets it every time. The
//! outcome then depends on nanoseconds at the start, or changes as slowly as two clocks drift apart.
//!
//! A datagram larger than a frame is sent in fragments. The socket buffer of a flow limits its frames in the buffer and
//! in the rings after it. While it is full, the flow waits, and does not make up for that time. Frames that are dropped
//! after the back end are lost and not sent again. A VM with several flows has several threads.

use std::time::Duration;

use sluice_sched::{Instant, Kind};

use super::{Workload, WorkloadRequest, after};
use crate::random::Stream;

/// Bytes of an IP header, of a UDP header, and of an Ethernet header.
const IP: u32 = 20;
const UDP: u32 = 8;
const ETHERNET: u32 = 14;
/// Payload of an IP packet on Ethernet.
const CARRIED: u32 = 1480;

/// Lengths of the frames of a datagram with `payload` bytes.
#[must_use]
pub fn frames_of(payload: u32) -> Vec<u32> {
    let (mut left, mut frames) = (payload.saturating_add(UDP), Vec::new());
    while left > 0 {
        let carried = left.min(CARRIED);
        frames.push(carried + IP + ETHERNET);
        left -= carried;
    }
    frames
}

/// Parameters of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatagramParams {
    /// Payload of a datagram in bytes.
    pub payload: u32,
    /// Data rate in bits per second.
    pub bits_per_second: u64,
    /// Maximum deviation of an interval from the mean, as a part of it, 0 to 1; uniformly distributed.
    pub jitter: f64,
    /// Maximum number of frames in flight.
    pub buffer: u32,
}

impl DatagramParams {
    /// 100 Mb/s in datagrams of one full frame, with the default socket buffer of Linux: 108 KiB of memory, which 50
    /// such frames fill.
    pub const FULL_SPEED: DatagramParams =
        DatagramParams { payload: 1472, bits_per_second: 100_000_000, jitter: 0.5, buffer: 50 };
}

/// One flow.
#[derive(Debug)]
pub struct Datagrams {
    buffer: u32,
    frames: Vec<u32>,
    /// Mean interval in nanoseconds.
    distance: u64,
    /// Maximum deviation in nanoseconds.
    jitter: u64,
    random: Stream,
    /// When its next datagram is due.
    due: Instant,
    /// For a flow that is paced by absolute times: when its next datagram is due without the deviation.
    schedule: Option<Instant>,
    /// Fragments sent of the current datagram.
    begun: usize,
    /// Frames in flight.
    out: u32,
    /// Since when there is room in the buffer.
    room: Instant,
}

impl Datagrams {
    /// A flow that starts within its first interval after `start`; intervals are drawn from `random`.
    ///
    /// Example: 1,472 bytes at 100 Mbit/s are one datagram per 117.8 us; with a jitter of 0.5 intervals are 58.9 to 176.6 us.
    #[must_use]
    pub fn new(params: DatagramParams, start: Instant, mut random: Stream) -> Self {
        let bits = u128::from(params.payload) * 8;
        let nanos = (bits * 1_000_000_000 / u128::from(params.bits_per_second.max(1))).max(1) as u64;
        let due = after(start, Duration::from_nanos(random.below(nanos)));
        let (frames, jitter) = (frames_of(params.payload), (nanos as f64 * params.jitter.clamp(0.0, 1.0)) as u64);
        let buffer = params.buffer.max(1);
        let schedule = None;
        Datagrams { buffer, frames, distance: nanos, jitter, random, due, schedule, begun: 0, out: 0, room: start }
    }

    /// Paces the flow by absolute times, as a generator does that makes up for late wake-ups: each datagram deviates from its place
    /// on a grid, not from the datagram before it, so that two flows of one rate keep their distance. Places that passed
    /// while the flow waited for room are skipped.
    ///
    /// Example: one datagram per 117.8 us with a jitter of 0.1. The thousandth is due 117.8 ms after the first, 11.8 us more or less;
    /// with independent intervals it would be off by 0.2 ms.
    #[must_use]
    pub fn paced_absolutely(mut self) -> Self {
        self.schedule = Some(self.due);
        self
    }

    /// The first place on the grid after both `place` and `now`.
    fn next_place(&self, place: Instant, now: Instant) -> Instant {
        let passed = now.max(place).nanos_since(place) / self.distance;
        after(place, Duration::from_nanos((passed + 1).saturating_mul(self.distance)))
    }
}

impl Workload for Datagrams {
    fn next(&self) -> Option<Instant> {
        match (self.begun, self.out < self.buffer) {
            // The buffer takes a whole datagram.
            (1.., _) => Some(self.room),
            (0, true) => Some(self.due.max(self.room)),
            (0, false) => None,
        }
    }

    fn ask(&mut self, now: Instant) -> WorkloadRequest {
        if self.begun == 0 {
            // The wait for room has ended.
            let deviation = self.random.below(2 * self.jitter + 1);
            self.due = match self.schedule {
                None => after(self.due.max(now), Duration::from_nanos(self.distance - self.jitter + deviation)),
                Some(place) => {
                    let place = self.next_place(place, now);
                    self.schedule = Some(place);
                    Instant::from_nanos((place.as_nanos() - self.jitter).saturating_add(deviation)).max(now)
                }
            };
        }
        self.room = now;
        let length = self.frames[self.begun];
        self.begun = (self.begun + 1) % self.frames.len();
        self.out += 1;
        WorkloadRequest { kind: Kind::Write, offset: 0, length }
    }

    fn completed(&mut self, now: Instant) {
        if self.out >= self.buffer {
            self.room = now;
        }
        self.out -= 1;
    }

    fn dropped(&mut self, now: Instant) {
        self.completed(now);
    }

    fn resume(&mut self, now: Instant) {
        self.due = self.due.max(now);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::random::stream;

    #[test]
    fn a_large_datagram_is_sent_in_fragments() {
        assert_eq!(frames_of(1472), [1514]);
        assert_eq!(frames_of(1500), [1514, 62]);
        assert_eq!(frames_of(18), [60]);
        assert_eq!(frames_of(8192).len(), 6);
    }

    /// Frames that a flow sends in a second if each completes after `takes` microseconds.
    fn sent(params: DatagramParams, takes: u64) -> Vec<(Instant, u32)> {
        let mut flow = Datagrams::new(params, Instant::ZERO, stream(1, "flow"));
        let (mut sent, mut flying) = (Vec::new(), VecDeque::new());
        loop {
            let over = flying.front().copied();
            let next = flow.next().into_iter().chain(over).min();
            let Some(at) = next.filter(|at| *at <= Instant::from_millis(1000)) else { return sent };
            if over == Some(at) {
                flying.pop_front();
                flow.completed(at);
            } else {
                sent.push((at, flow.ask(at).length));
                flying.push_back(at + Duration::from_micros(takes));
            }
        }
    }

    #[test]
    fn a_flow_sends_its_rate_while_its_buffer_has_room() {
        // 100 Mb/s in datagrams of 1472 bytes are 8491 per second.
        let count = sent(DatagramParams::FULL_SPEED, 100).len();
        assert!((8440..=8540).contains(&count), "{count}");
        // With 50 in flight for 10 ms at most 5000 per second are sent.
        let count = sent(DatagramParams::FULL_SPEED, 10_000).len();
        assert!((4990..=5050).contains(&count), "{count}");
    }

    #[test]
    fn absolute_pacing_keeps_the_phase_of_a_flow() {
        let params = DatagramParams { jitter: 0.1, ..DatagramParams::FULL_SPEED };
        // The distance from the grid of the first datagram, as a part of an interval of 117,760 ns, after a second.
        let off = |absolute: bool| {
            let mut flow = Datagrams::new(params, Instant::ZERO, stream(1, "flow"));
            if absolute {
                flow = flow.paced_absolutely();
            }
            let first = flow.next().unwrap().as_nanos();
            let (mut most, mut count) = (0.0f64, 0);
            while let Some(at) = flow.next().filter(|at| *at <= Instant::from_millis(1000)) {
                flow.ask(at);
                flow.completed(at);
                let intervals = (at.as_nanos() - first) as f64 / 117_760.0;
                most = most.max((intervals - intervals.round()).abs());
                count += 1;
            }
            assert!((8480..=8500).contains(&count), "{count}");
            most
        };
        assert!(off(true) <= 0.101, "{}", off(true));
        assert!(off(false) > 0.45, "{}", off(false));
    }

    #[test]
    fn a_flow_that_waited_for_room_skips_what_it_missed_and_keeps_its_phase() {
        let params = DatagramParams { jitter: 0.0, buffer: 1, ..DatagramParams::FULL_SPEED };
        let mut flow = Datagrams::new(params, Instant::ZERO, stream(1, "flow")).paced_absolutely();
        let first = flow.next().unwrap();
        flow.ask(first);
        assert_eq!(flow.next(), None, "its buffer is full");
        let late = after(first, Duration::from_nanos(3 * 117_760 + 5));
        flow.completed(late);
        assert_eq!(flow.next(), Some(late), "the one that was due meanwhile");
        flow.ask(late);
        flow.completed(late);
        assert_eq!(flow.next(), Some(after(first, Duration::from_nanos(4 * 117_760))));
    }

    #[test]
    fn fragments_leave_together() {
        let frames = sent(DatagramParams { payload: 1500, ..DatagramParams::FULL_SPEED }, 100);
        let together =
            |pair: &[(Instant, u32)]| pair.len() < 2 || (pair[0].0, pair[0].1, pair[1].1) == (pair[1].0, 1514, 62);
        assert!(frames.chunks(2).all(together) && frames.len() > 16_000);
    }
}
