//! FFSB as \[two-tier\] uses it: direct I/O on files, with 1 thread (first part) or 8 (second part).
//!
//! The paper names only the patterns and the threads. Requests of 4 KiB, ten per operation, are those of FFSB's example
//! profile (`examples/profile_everything`: sizes of 40k in blocks of 4k). A sequential operation covers a whole file,
//! whose size is separate. Files and sizes are assumptions, as marked. Left out: create, delete and stat, which the
//! paper's patterns do not contain.

use std::collections::VecDeque;

use serde::Deserialize;
use sluice_sched::params::{ParamError, ParamTable, Parameter, Range};
use sluice_sched::{Bytes, Kind};

use super::{BuildContext, Built, WorkloadProfile, ask, fits, parameter, parse, ranged, request, stretch};
use crate::random::Stream;
use crate::workloads::{Program, Step, Threads};

const SOURCE: &str = "FFSB, examples/profile_everything; [two-tier] 3";

const fn profile(name: &'static str, summary: &'static str, parameters: &'static [Parameter; 8]) -> WorkloadProfile {
    WorkloadProfile { name, summary, source: SOURCE, parameters, build, ..WorkloadProfile::BASE }
}

pub(super) const PROFILES: &[WorkloadProfile] = &[
    profile("ffsb-random-read", "FFSB: random reads of 4 KiB in a file, ten per operation", &parameters("1", "1")),
    profile("ffsb-random-write", "FFSB: random writes of 4 KiB in a file, ten per operation", &parameters("0", "1")),
    profile("ffsb-sequential-read", "FFSB: whole files read in blocks of 4 KiB", &parameters("1", "0")),
    profile("ffsb-sequential-write", "FFSB: whole files written in blocks of 4 KiB", &parameters("0", "0")),
    profile("ffsb-mixed", "FFSB: half of the operations are reads, half are sequential", &parameters("0.5", "0.5")),
];

const fn parameters(reads: &'static str, random: &'static str) -> [Parameter; 8] {
    [
        ranged(
            "threads",
            "threads",
            Range::Number(1, 4096),
            "1",
            "Number of threads: 1 in the first part of the paper, 8 in the second",
        ),
        ranged(
            "files",
            "files",
            Range::Number(1, 1_000_000),
            "100",
            "[A] Number of files, one after the other on the volume",
        ),
        parameter("file_size", "a size", "\"32MiB\"", "[A] Size of each file"),
        parameter("operation", "a size", "\"40KiB\"", "Number of bytes that a random operation reads or writes"),
        parameter("block", "a size", "\"4KiB\"", "Size of a request"),
        ranged("reads", "a part", Range::Decimal(0.0, 1.0), reads, "Fraction of the operations that are reads"),
        ranged(
            "random",
            "a part",
            Range::Decimal(0.0, 1.0),
            random,
            "Fraction of the operations that are random within a file",
        ),
        parameter("operations", "times; 0: no end", "0", "Number of operations after which the workload ends"),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    threads: u32,
    files: u32,
    file_size: Bytes,
    operation: Bytes,
    block: Bytes,
    reads: f64,
    random: f64,
    operations: u64,
}

fn build(context: BuildContext, table: &ParamTable) -> Built {
    let params: Params = parse(table)?;
    let block = request("block", params.block.0)?;
    fits("The files", params.file_size.0.saturating_mul(u64::from(params.files)), context.volume)?;
    if params.operation.0 < u64::from(block) || params.operation.0 > params.file_size.0 {
        return Err(ParamError("operation must be at least a block, and at most a file".to_owned()));
    }
    let threads = params.threads;
    let left = if params.operations == 0 { u64::MAX } else { params.operations };
    Ok(Box::new(Threads::new(threads, Ffsb { params, block, left }, context.start, context.random)))
}

struct Ffsb {
    params: Params,
    block: u32,
    left: u64,
}

impl Program for Ffsb {
    fn refill(&mut self, _thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let (size, block) = (self.params.file_size.0, u64::from(self.block));
        let start = random.below(u64::from(self.params.files)) * size;
        let kind = if random.chance(self.params.reads) { Kind::Read } else { Kind::Write };
        if random.chance(self.params.random) {
            for _ in 0..self.params.operation.0 / block {
                steps.push_back(ask(kind, start + random.below(size / block) * block, self.block));
            }
        } else {
            stretch(steps, kind, start, size, self.block);
        }
    }
}
