//! What VMs ask for, and when.

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

/// One request of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkloadRequest {
    /// What is to be done.
    pub kind: Kind,
    /// In bytes from the start of the VM's volume.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

/// A source of requests.
pub trait Workload {
    /// When it asks next, if nothing of it completes before; nothing: only after a completion, or never again.
    fn next(&self) -> Option<Instant>;

    /// What it asks at the time that [`Workload::next`] gave.
    fn ask(&mut self, now: Instant) -> WorkloadRequest;

    /// One of its requests is over.
    fn completed(&mut self, now: Instant);

    /// One of its requests was given up by the device.
    fn dropped(&mut self, now: Instant) {
        self.completed(now);
    }

    /// Its VM asked for nothing for a while and goes on now. What would have come meanwhile does not come.
    fn resume(&mut self, _now: Instant) {}
}

/// What requests are like: reads and writes of one size, somewhere.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Part of them that reads.
    pub reads: f64,
    /// In bytes.
    pub length: u32,
    /// Where.
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
