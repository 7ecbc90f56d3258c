//! The last minute: ten seconds one by one, and what was before in intervals of ten seconds.

use std::collections::VecDeque;

use crate::flow::Flow;

/// Intervals of a second that are joined when they are not among the last ten any more.
pub(crate) const JOINED: usize = 10;
/// Joined intervals that are kept.
const JOINED_KEPT: usize = 5;

/// Counts of one interval; `None` if nothing happened.
#[derive(Debug, Clone)]
struct Interval {
    nanos: u64,
    flow: Option<Box<Flow>>,
}

/// The last minute of a VM or volume, at most 69 s. An interval without requests takes no memory but its place.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    /// The newest last.
    seconds: VecDeque<Interval>,
    joined: VecDeque<Interval>,
    /// Whether it is of an uplink. Idle intervals do not tell.
    is_link: bool,
}

impl Recent {
    /// Adds what happened since the last call, about a second ago.
    pub fn push(&mut self, flow: Flow) {
        let (nanos, is_idle) = (flow.nanos, flow.is_idle());
        self.is_link = flow.is_link;
        self.seconds.push_back(Interval { nanos, flow: (!is_idle).then(|| Box::new(flow)) });
        if self.seconds.len() < 2 * JOINED {
            return;
        }
        let joined = sum(self.is_link, self.seconds.drain(..JOINED).collect::<Vec<_>>().iter(), Flow::add);
        if self.joined.len() == JOINED_KEPT {
            self.joined.pop_front();
        }
        let (nanos, is_idle) = (joined.nanos, joined.is_idle());
        self.joined.push_back(Interval { nanos, flow: (!is_idle).then(|| Box::new(joined)) });
    }

    /// Whether it is of an uplink.
    pub(crate) fn is_link(&self) -> bool {
        self.is_link
    }

    /// Counts of the last second; `None` if nothing happened.
    pub(crate) fn last_flow(&self) -> Option<&Flow> {
        self.seconds.back()?.flow.as_deref()
    }

    /// The seconds of the last ten in which something happened.
    pub(crate) fn flows_of_ten_seconds(&self) -> impl Iterator<Item = &Flow> {
        self.seconds.iter().rev().take(JOINED).filter_map(|second| second.flow.as_deref())
    }

    /// Counts and latencies of the last second.
    #[must_use]
    pub fn last(&self) -> Flow {
        sum(self.is_link, self.seconds.iter().rev().take(1), Flow::add_with_latency)
    }

    /// Counts and latencies of the last ten seconds, or since the beginning.
    #[must_use]
    pub fn ten_seconds(&self) -> Flow {
        sum(self.is_link, self.seconds.iter().rev().take(JOINED), Flow::add_with_latency)
    }

    /// Counts of the last `seconds` seconds, at most ten, without histograms.
    #[must_use]
    pub(crate) fn counts(&self, seconds: usize) -> Flow {
        sum(self.is_link, self.seconds.iter().rev().take(seconds.min(JOINED)), Flow::add_counts)
    }

    /// Counts and latencies of the last minute, up to 69 s, or since the beginning.
    #[must_use]
    pub fn minute(&self) -> Flow {
        sum(self.is_link, self.joined.iter().chain(&self.seconds), Flow::add_with_latency)
    }

    /// The same with all histograms.
    #[must_use]
    pub(crate) fn minute_of_histograms(&self) -> Flow {
        sum(self.is_link, self.joined.iter().chain(&self.seconds), Flow::add)
    }
}

fn sum<'a>(is_link: bool, intervals: impl Iterator<Item = &'a Interval>, add: fn(&mut Flow, &Flow)) -> Flow {
    let mut sum = Flow { is_link, ..Flow::default() };
    for interval in intervals {
        match &interval.flow {
            Some(flow) => add(&mut sum, flow),
            None => sum.nanos += interval.nanos,
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_kept_and_idle_seconds_count_in_the_average() {
        let mut recent = Recent::default();
        let busy = Flow { nanos: 1_000_000_000, succeeded: [10, 0, 0, 0, 0], ..Flow::default() };
        let idle = Flow { nanos: 1_000_000_000, ..Flow::default() };
        (0..30).for_each(|_| recent.push(busy.clone()));
        (0..5).for_each(|_| recent.push(idle.clone()));
        assert_eq!((recent.last().iops(), recent.ten_seconds().iops()), (0.0, 5.0));
        let minute = recent.minute();
        assert_eq!((minute.seconds(), minute.requests()), (35.0, 300), "only what is known");
        (0..100).for_each(|_| recent.push(idle.clone()));
        let minute = recent.minute();
        assert!(minute.requests() == 0 && (60.0..70.0).contains(&minute.seconds()), "{minute:?}");
    }
}
