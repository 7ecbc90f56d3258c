//! What the elevators have in common: requests in two orders, the choice between two of them, averages, and ticks.
//!
//! An elevator looks at its queue by place (who is near the head?) and by age (who has waited too long?). A [`Pool`]
//! keeps the requests of all queues, each in both orders; a step costs the logarithm of the queue's length, and nothing is
//! allocated once the queues have had their largest size.

mod average;
mod choice;
mod pool;
mod ticks;
mod tree;

pub(crate) use average::{Average, SeekAverage};
pub(crate) use choice::Nearness;
pub(crate) use pool::{Node, Pool, Queue, Taken};
pub(crate) use ticks::Ticks;
pub(crate) use tree::{Forest, Tree};

use crate::request::{Flags, Kind, Request};

/// Bytes of a sector, in which the elevators count distances.
pub(crate) const SECTOR: u64 = 512;

/// Whether somebody waits for a request: every read, and a write that is flagged so.
// rule: gate.sync
// DEVIATION: a flush has no place in the elevators of Linux, which see it as writes that they hold back. Here it is a
// request, and sync, since nobody asks for one who does not wait for it.
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
