//! Synthetic workloads for \[mcfq\] Table 3, for users without the real traces.
//!
//! They are fitted to all data of the table: the ratio of writes to reads, and the mean size. Sizes are geometric in
//! sectors of 512 B, so the mean is exact. Offsets, the number of outstanding requests and their order are assumptions.
//! The table gives the ratio of MSN as 66.7, which is taken as percent. Users with the traces can replay them instead.

use serde::Deserialize;
use sluice_sched::params::{ParamTable, Parameter, Range};
use sluice_sched::{Instant, Kind};

use super::{BuildContext, Built, WorkloadProfile, fits, parameter, parse, ranged};
use crate::random::Stream;
use crate::workloads::{Limited, Workload, WorkloadRequest};

const SECTOR: f64 = 512.0;
/// Maximum size of a request in sectors.
const SECTORS_MAX: u64 = 2048;

const fn profile(name: &'static str, summary: &'static str, parameters: &'static [Parameter; 5]) -> WorkloadProfile {
    WorkloadProfile { name, summary, source: "[mcfq] Table 3", parameters, build, ..WorkloadProfile::BASE }
}

pub(super) const PROFILES: &[WorkloadProfile] = &[
    profile("lookalike-financial", "like Financial: 0.24 writes per read, 2.38 KB", &parameters("0.24", "2.38")),
    profile("lookalike-msn", "like MSN: 0.667 writes per read, 22.5 KB", &parameters("0.667", "22.5")),
    profile("lookalike-exchange", "like Exchange: 1.5 writes per read, 12.5 KB", &parameters("1.5", "12.5")),
    profile("lookalike-fileserver", "like Filebench fileserver: 2 writes per read, 72 KB", &parameters("2", "72")),
    profile("lookalike-varmail", "like Filebench varmail: 1 write per read, 24 KB", &parameters("1", "24")),
];

const fn parameters(writes_per_read: &'static str, mean_kib: &'static str) -> [Parameter; 5] {
    [
        ranged("writes_per_read", "a number", Range::Decimal(0.0, 1e6), writes_per_read, "Number of writes per read"),
        ranged("mean_kib", "KiB", Range::Decimal(0.5, 256.0), mean_kib, "Mean size of a request"),
        ranged("outstanding", "requests", Range::Number(1, 65_536), "16", "[A] Number of outstanding requests"),
        ranged(
            "random",
            "a part",
            Range::Decimal(0.0, 1.0),
            "1",
            "[A] Fraction of the requests at random offsets; the others follow the previous one",
        ),
        parameter("requests", "requests; 0: no end", "0", "Number of requests after which the workload ends"),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    writes_per_read: f64,
    mean_kib: f64,
    outstanding: u32,
    random: f64,
    requests: u64,
}

fn build(context: BuildContext, table: &ParamTable) -> Built {
    let params: Params = parse(table)?;
    fits("The bytes of the longest request", SECTORS_MAX * SECTOR as u64, context.volume)?;
    let (due, requests) = (vec![context.start; params.outstanding as usize], params.requests);
    let workload = Box::new(LookAlike {
        reads: 1.0 / (1.0 + params.writes_per_read),
        mean: params.mean_kib * 1024.0 / SECTOR,
        random: params.random,
        sectors: context.volume / SECTOR as u64,
        cursor: 0,
        stream: context.random,
        due: due.into(),
    });
    Ok(if requests == 0 { workload } else { Box::new(Limited::new(workload, requests)) })
}

struct LookAlike {
    reads: f64,
    /// In sectors.
    mean: f64,
    random: f64,
    sectors: u64,
    cursor: u64,
    stream: Stream,
    due: std::collections::VecDeque<Instant>,
}

impl Workload for LookAlike {
    fn next(&self) -> Option<Instant> {
        self.due.front().copied()
    }

    fn ask(&mut self, _now: Instant) -> WorkloadRequest {
        self.due.pop_front();
        let kind = if self.stream.chance(self.reads) { Kind::Read } else { Kind::Write };
        let length = self.stream.geometric(self.mean).min(SECTORS_MAX);
        if self.stream.chance(self.random) {
            // Pages of a file system.
            self.cursor = self.stream.below(self.sectors / 8) * 8;
        }
        if self.cursor + length > self.sectors {
            self.cursor = 0;
        }
        let offset = self.cursor * 512;
        self.cursor += length;
        WorkloadRequest { kind, offset, length: (length * 512) as u32 }
    }

    fn completed(&mut self, now: Instant) {
        self.due.push_back(now);
    }
}
