//! Common parts of the elevators: requests in two orders, the choice between two of them, averages, and ticks.
//!
//! An elevator looks up its queue by offset (which request is near the head?) and by age (which request has waited too
//! long?). A [`Queue`] keeps its requests in both orders. A step takes logarithmic time in the length of the queue.

mod average;
mod choice;
mod queue;
mod ticks;

pub(crate) use average::{Average, SeekAverage};
pub(crate) use choice::Nearness;
pub(crate) use queue::{Queue, SortKey};
pub(crate) use ticks::Ticks;

use core::time::Duration;

use sluice_sched::params::{Parameter, Range};
use sluice_sched::request::{Flags, Kind, Request};

/// Parameter of the elevators' clock.
pub(crate) const TICK: Parameter = Parameter {
    name: "tick",
    kind: "time with unit",
    range: Range::Time(Duration::ZERO, Duration::from_secs(1)),
    default: "\"1ms\"",
    help: "Resolution of the scheduler's clock; 1ms is that of a kernel timer at 1000 Hz, \"0s\" is exact time",
};
/// Parameter of [`Nearness`].
pub(crate) const BACK_SEEK_PENALTY: Parameter = Parameter {
    name: "back_seek_penalty",
    kind: "factor",
    range: Range::Number(1, 1_000),
    default: "2",
    help: "Factor by which a backward distance is multiplied before it is compared with a forward one",
};
/// Bytes of a sector, the unit in which elevators count distances.
pub(crate) const SECTOR: u64 = 512;

/// Whether a client waits for the request: every read, and a write that is flagged so.
// rule: gate.sync
// DEVIATION: Linux's elevators do not see flushes, only the writes that a flush holds back. Here a flush is a request,
// and it is sync, since its sender waits for it.
pub(crate) fn is_sync(request: &Request) -> bool {
    matches!(request.kind, Kind::Read | Kind::Flush) || request.flags.contains(Flags::SYNC)
}

#[cfg(test)]
pub(crate) mod drive;

#[cfg(test)]
mod tests {
    use super::*;

    /// rule: gate.sync
    #[test]
    fn reads_and_flagged_writes_are_sync() {
        let flagged = |kind| Request { flags: Flags::SYNC, ..drive::at(kind, 0) };
        let sync = |request: Request| is_sync(&request);
        assert!(sync(drive::at(Kind::Read, 0)) && sync(flagged(Kind::Write)) && sync(drive::at(Kind::Flush, 0)));
        assert!(!sync(drive::at(Kind::Write, 0)) && !sync(drive::at(Kind::Discard, 0)));
    }
}
