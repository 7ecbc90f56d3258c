//! Workloads of VMs: their requests, and when they are submitted.

use std::time::Duration;

use sluice_sched::{Instant, Kind};

use crate::random::Stream;

pub mod address;
mod closed;
pub mod datagrams;
mod limited;
mod open;
pub mod profiles;
mod replay;
pub mod tcp;
mod threads;

pub use address::Address;
pub use closed::Closed;
pub use datagrams::{DatagramParams, Datagrams};
pub use limited::Limited;
pub use open::{Open, Pattern};
pub use replay::{Replay, ReplayTiming};
pub use tcp::{Tcp, TcpParams};
pub use threads::{Program, Step, Threads};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadRequest {
    pub kind: Kind,
    /// Offset in the VM's volume in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// A source of requests.
pub trait Workload {
    /// When it submits the next request, if none of its requests completes before; `None`: only after a completion, or
    /// never.
    fn next(&self) -> Option<Instant>;

    /// The request at the time that [`Workload::next`] returned.
    fn ask(&mut self, now: Instant) -> WorkloadRequest;

    /// Notes that one of its requests has completed.
    fn completed(&mut self, now: Instant);

    /// Notes that the device has dropped one of its requests.
    fn dropped(&mut self, now: Instant) {
        self.completed(now);
    }

    /// Reads what a completion and the next request will change, so that it is in the CPU caches then. Simulations with many VMs call
    /// it for several of them at once.
    fn fetch(&self) {
        std::hint::black_box(self.next());
    }

    /// Continues after a pause of the VM. Requests that would have been submitted during the pause are skipped.
    fn resume(&mut self, _now: Instant) {}
}

/// Requests of one size, at offsets in a range, reads or writes.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Fraction of reads.
    pub reads: f64,
    /// Length in bytes.
    pub length: u32,
    pub address: Address,
}

impl Mix {
    fn ask(&mut self, random: &mut Stream) -> WorkloadRequest {
        let kind = if self.reads >= 1.0 || random.chance(self.reads) { Kind::Read } else { Kind::Write };
        WorkloadRequest { kind, offset: self.address.next(self.length, random), length: self.length }
    }
}

fn after(now: Instant, time: Duration) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add(time.as_nanos() as u64))
}
