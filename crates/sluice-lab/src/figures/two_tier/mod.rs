//! Two-tier disk scheduling in Xen.

use sluice_sched::Bytes;
use sluice_sched::params::{ParamTable, Value};
use sluice_sim::workloads::Workload;

use crate::band::BandPoint;
use crate::figure::LabError;
use crate::setup::Host;

pub(super) mod credit;
pub(super) mod loss;
pub(super) mod pairs;
mod tiers;

/// Device of all figures.
const DEVICE: &str = "two-tier-sas";
/// The four elevators of Linux, in the order of the paper.
const ELEVATORS: [&str; 4] = ["noop", "deadline", "anticipatory", "cfq"];

/// A load of FFSB.
struct Load {
    /// Name in the paper.
    name: &'static str,
    profile: &'static str,
    /// Overrides the profile's fraction: the paper's mix has random reads and writes.
    random: Option<f64>,
    /// Simulated seconds; a sequential load has many requests.
    seconds: u64,
    /// Whether it fills a write cache.
    writes: bool,
    /// Seconds of a window behind a write cache, in which a sequential load has tens of thousands of requests per second.
    window: u64,
}

const LOADS: [Load; 5] = [
    Load { name: "random read", profile: "ffsb-random-read", random: None, seconds: 21, writes: false, window: 5 },
    Load { name: "random write", profile: "ffsb-random-write", random: None, seconds: 21, writes: true, window: 5 },
    Load {
        name: "sequential read",
        profile: "ffsb-sequential-read",
        random: None,
        seconds: 4,
        writes: false,
        window: 1,
    },
    Load {
        name: "sequential write",
        profile: "ffsb-sequential-write",
        random: None,
        seconds: 21,
        writes: true,
        window: 1,
    },
    Load { name: "mixed", profile: "ffsb-mixed", random: Some(1.0), seconds: 21, writes: true, window: 5 },
];

impl Load {
    fn threads(&self, count: u32, volume: u64, point: &BandPoint) -> Result<Vec<Box<dyn Workload>>, LabError> {
        let mut overrides = ParamTable::new();
        overrides.extend(self.random.map(|random| ("random".to_owned(), Value::Float(random))));
        tiers::threads(self.profile, &overrides, count, volume, |name| point.stream(name))
    }
}

/// Kernel of an elevator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// The paper's kernel.
    Linux2_6_32,
    /// The kernel of Xen's first years.
    Linux2_6_18,
    /// The paper's kernel with idling disabled.
    NobodyIdles,
    /// 2.6.32 with the rules of 2.6.33 for queues that seek, as a kernel of RHEL 6 probably has them.
    El6,
}

/// An elevator of that kernel for a disk; 32 requests in flight, merged up to 512 KiB.
fn elevator(name: &'static str, kernel: Kernel) -> Host {
    let host = Host::new(name, 32).rotational().merging(Bytes::kib(512));
    match (name, kernel) {
        ("cfq", Kernel::Linux2_6_32) => host.text("mode", "2.6.32"),
        ("cfq", Kernel::El6) => host.text("mode", "2.6.32-el6"),
        ("cfq", Kernel::Linux2_6_18) => host.text("mode", "2.6.18"),
        ("cfq", Kernel::NobodyIdles) => host.text("mode", "2.6.32").text("slice_idle", "0ms"),
        ("anticipatory", Kernel::NobodyIdles) => host.text("antic_expire", "0ms"),
        ("deadline", Kernel::Linux2_6_18) => host.text("mode", "early"),
        _ => host,
    }
}
