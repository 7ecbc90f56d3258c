//! A bulk transfer that backs off: what one TCP sender does, as far as a scheduler can tell.
//!
//! It has a window of segments that it may have on their way. An acknowledgement comes a round-trip time after a segment
//! has left; it makes the window larger, by one segment each while it is below the threshold (slow start) and by one per
//! window beyond that. A lost segment is noticed a round-trip time after it was dropped: the window and the threshold
//! become half of what the window was, once per round trip, and the segment is sent again.
//!
//! Assumptions: a segment is over for whoever sends it when it is on the wire (a link that says so earlier gives it no way
//! to feel a queue); segments are full frames; acknowledgements are not lost and cost nothing; there are no time-outs, since
//! at least two segments are on their way at any time; the receiver's window is `window_max`.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::{Instant, Kind};

use super::{Workload, WorkloadRequest, after};

/// Bytes of a frame with a full segment.
const FRAME: u32 = 1514;
/// The window at first, and the smallest.
const WINDOW_FIRST: f64 = 3.0;
const WINDOW_MIN: f64 = 2.0;

/// What a transfer is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TcpParams {
    /// From a segment's end on the wire to its acknowledgement.
    pub round_trip: Duration,
    /// Segments on their way, at most.
    pub window_max: u32,
}

/// One flow.
#[derive(Debug)]
pub struct Tcp {
    params: TcpParams,
    window: f64,
    threshold: f64,
    /// Sent, and nothing heard of.
    out: u32,
    /// Losses before this have been answered.
    recovered: Instant,
    /// News that is coming, and whether each is of a loss.
    coming: VecDeque<(Instant, bool)>,
    since: Instant,
}

impl Tcp {
    /// A transfer that begins at `start` and does not end.
    #[must_use]
    pub fn new(params: TcpParams, start: Instant) -> Self {
        let (threshold, coming) = (f64::from(params.window_max.max(2)), VecDeque::new());
        Tcp { params, window: WINDOW_FIRST, threshold, out: 0, recovered: start, coming, since: start }
    }

    /// Segments that it may have on their way.
    #[must_use]
    pub fn window(&self) -> f64 {
        self.window
    }

    fn has_room(&self) -> bool {
        f64::from(self.out) + 1.0 <= self.window
    }

    fn hear(&mut self, at: Instant, lost: bool) {
        self.out -= 1;
        if !lost {
            let more = if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
            self.window = (self.window + more).min(f64::from(self.params.window_max.max(2)));
        } else if at >= self.recovered {
            self.threshold = (self.window / 2.0).max(WINDOW_MIN);
            self.window = self.threshold;
            self.recovered = after(at, self.params.round_trip);
        }
    }

    /// Hears what has come until there is room. The window may have shrunk below what is on its way.
    fn catch_up(&mut self, now: Instant) {
        while let Some((at, lost)) = self.coming.front().copied()
            && (at <= now || !self.has_room())
        {
            self.coming.pop_front();
            self.hear(at, lost);
            self.since = self.since.max(at);
        }
    }

    fn over(&mut self, now: Instant, lost: bool) {
        self.coming.push_back((after(now, self.params.round_trip), lost));
        // What is heard before there is room again changes nothing that anybody sees before.
        if !self.has_room() {
            self.catch_up(Instant::ZERO);
        }
    }
}

impl Workload for Tcp {
    fn next(&self) -> Option<Instant> {
        self.has_room().then_some(self.since)
    }

    fn ask(&mut self, now: Instant) -> WorkloadRequest {
        self.since = self.since.max(now);
        self.out += 1;
        self.catch_up(now);
        WorkloadRequest { kind: Kind::Write, offset: 0, length: FRAME }
    }

    fn completed(&mut self, now: Instant) {
        self.over(now, false);
    }

    fn dropped(&mut self, now: Instant) {
        self.over(now, true);
    }

    fn resume(&mut self, now: Instant) {
        self.since = self.since.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: TcpParams = TcpParams { round_trip: Duration::from_millis(10), window_max: 64 };

    /// A flow through a link that takes 0.1 ms per frame and holds `queue` of them, for a second: frames and drops.
    fn transfer(queue: usize) -> (u64, u64) {
        let mut flow = Tcp::new(PARAMS, Instant::ZERO);
        let (mut link, mut sent, mut drops) = (VecDeque::new(), 0, 0);
        loop {
            let over = link.front().copied();
            let next = flow.next().into_iter().chain(over).min();
            let Some(at) = next.filter(|at| *at <= Instant::from_millis(1000)) else { return (sent, drops) };
            if over == Some(at) {
                link.pop_front();
                sent += 1;
                flow.completed(at);
                continue;
            }
            flow.ask(at);
            if link.len() >= queue {
                drops += 1;
                flow.dropped(at);
            } else {
                let begins = link.back().copied().unwrap_or(at).max(at);
                link.push_back(begins + Duration::from_micros(100));
            }
        }
    }

    #[test]
    fn the_window_grows_by_one_each_and_then_by_one_per_window() {
        let mut flow = Tcp::new(TcpParams { window_max: 8, ..PARAMS }, Instant::ZERO);
        let mut now = Instant::ZERO;
        for (round, window) in [3.0, 6.0, 8.0, 8.0].into_iter().enumerate() {
            assert_eq!(flow.next(), Some(now), "round {round}");
            let mut count = 0;
            while flow.next() == Some(now) {
                flow.ask(now);
                count += 1;
            }
            assert_eq!(f64::from(count), window, "round {round}");
            (0..count).for_each(|_| flow.completed(now));
            now = now + PARAMS.round_trip;
        }
    }

    #[test]
    fn a_flow_fills_a_link_with_a_queue_and_backs_off_when_that_is_full() {
        // 100 frames fit into a round trip; a window of 64 is less.
        let (sent, drops) = transfer(1000);
        assert!(drops == 0 && (5400..=6400).contains(&sent), "{sent} sent, {drops} dropped");
        // With a small queue there are losses, and more than half of the link is used all the same.
        let (sent, drops) = transfer(20);
        assert!(drops > 3 && (2000..=6400).contains(&sent), "{sent} sent, {drops} dropped");
        assert!(drops < sent / 50, "it backs off: {sent} sent, {drops} dropped");
    }
}
