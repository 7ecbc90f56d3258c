//! A bulk transfer with congestion control: the behaviour of a TCP sender that a scheduler can observe.
//!
//! It has a window of segments that may be in flight. An acknowledgement arrives a round-trip time after a segment was
//! sent. It increases the window by one segment below the threshold (slow start), and by one segment per window above
//! it. A lost segment is noticed a round-trip time after it was dropped: window and threshold become half of the
//! window, once per round trip, and the segment is sent again.
//!
//! Assumptions: a segment is sent when it is on the wire (with a link that reports it earlier, the transfer does not
//! notice a queue); segments are full frames; acknowledgements are not lost and cost nothing; there are no time-outs,
//! since at least two segments are always in flight; the receiver's window is `window_max`.

use std::collections::VecDeque;
use std::time::Duration;

use sluice_sched::{Instant, Kind};

use super::{Workload, WorkloadRequest, after};

/// Bytes of a frame with a full segment.
const FRAME: u32 = 1514;
/// Initial and minimum window.
const WINDOW_FIRST: f64 = 3.0;
const WINDOW_MIN: f64 = 2.0;

/// Parameters of a transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TcpParams {
    /// Time from a segment's end on the wire to its acknowledgement.
    pub round_trip: Duration,
    /// Maximum number of segments in flight.
    pub window_max: u32,
}

/// One flow.
#[derive(Debug)]
pub struct Tcp {
    params: TcpParams,
    window: f64,
    threshold: f64,
    /// Segments in flight.
    out: u32,
    /// Losses before this time have been handled.
    recovered: Instant,
    /// Acknowledgements on their way, and whether each reports a loss.
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

    /// Current window in segments.
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

    /// Handles acknowledgements until there is room. The window may be smaller than the segments in flight.
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
        // Further acknowledgements have no visible effect before there is room.
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

    /// Frames and drops of a flow, in a second, through a link that takes 0.1 ms per frame with a queue of `queue`
    /// frames.
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
    fn the_window_grows_by_slow_start_and_then_linearly() {
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
    fn a_transfer_fills_a_link_and_backs_off_at_a_full_queue() {
        // 100 frames fit into a round trip; a window of 64 is smaller.
        let (sent, drops) = transfer(1000);
        assert!(drops == 0 && (5400..=6400).contains(&sent), "{sent} sent, {drops} dropped");
        // With a small queue there are losses, and still more than half of the link is used.
        let (sent, drops) = transfer(20);
        assert!(drops > 3 && (2000..=6400).contains(&sent), "{sent} sent, {drops} dropped");
        assert!(drops < sent / 50, "it backs off: {sent} sent, {drops} dropped");
    }
}
