//! sysbench fileio: threads that read and write blocks of many files, which are adjacent or at a stated distance.
//!
//! Files, block, total, ratio and the fsync of files every 100 requests are those of the tool; 10,000 events is the
//! default of its versions 0.4, which are of \[flubber\]'s time (Table I there: seqrd with 16 threads over 2 GB, rndrd
//! with 8 over 1 GB). Threads share the cursor of a sequential mode, as in the tool. An fsync of a file without new
//! writes reaches no disk, so a round of fsyncs has as many flushes as files were written.
//!
//! `cached` is the fraction of reads that a guest's page cache serves: without it 36 % of the random reads of
//! \[flubber\] are unexplained. Left out: writeback (writes go to the disk immediately) and metadata. The split at 44
//! KiB by a Xen ring is part of the ring.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::{Bytes, Kind};

use super::{BuildContext, Built, WorkloadProfile, ask, fits, flush, parameter, parse, ranged, request};
use crate::named::{check, with_defaults};
use crate::random::{Stream, stream};
use crate::workloads::{Program, Step, Threads, Workload};

const SOURCE: &str = "sysbench 0.4 fileio; [flubber] IV, Table I";

pub(super) const PROFILES: &[WorkloadProfile] = &[
    WorkloadProfile {
        name: "sysbench-seqrd",
        summary: "sysbench fileio: 16 threads read 2 GiB sequentially, with one common position",
        source: SOURCE,
        parameters: &parameters("16", "\"2GiB\"", "0"),
        build: |context, table| build(Mode::SequentialRead, context, table),
        ..WorkloadProfile::BASE
    },
    WorkloadProfile {
        name: "sysbench-rndrd",
        summary: "sysbench fileio: 8 threads read random blocks within 1 GiB",
        source: SOURCE,
        parameters: &parameters("8", "\"1GiB\"", "0.36"),
        build: |context, table| build(Mode::RandomRead, context, table),
        ..WorkloadProfile::BASE
    },
    WorkloadProfile {
        name: "sysbench-rndrw",
        summary: "sysbench fileio: 8 threads read and write random blocks within 2 GiB, 1.5 reads per write",
        source: SOURCE,
        parameters: &parameters("8", "\"2GiB\"", "0"),
        build: |context, table| build(Mode::RandomMixed, context, table),
        ..WorkloadProfile::BASE
    },
    WorkloadProfile {
        name: "sysbench-seqwr",
        summary: "sysbench fileio: 16 threads write 2 GiB sequentially, with one common position",
        source: SOURCE,
        parameters: &parameters("16", "\"2GiB\"", "0"),
        build: |context, table| build(Mode::SequentialWrite, context, table),
        ..WorkloadProfile::BASE
    },
];

const fn parameters(threads: &'static str, total: &'static str, cached: &'static str) -> [Parameter; 10] {
    [
        ranged("threads", "threads", Range::Number(1, 4096), threads, "Number of threads"),
        ranged("files", "files", Range::Number(1, 65_536), "128", "Number of files"),
        parameter("apart", "a size", "\"0B\"", "[A] Distance between the starts of two files; 0: files are adjacent"),
        parameter("total", "a size", total, "Size of all files together"),
        parameter("block", "a size", "\"16KiB\"", "Bytes per read or write"),
        parameter(
            "events",
            "requests; 0: no end",
            "10000",
            "Number of requests, cached ones included, after which the workload ends",
        ),
        parameter(
            "fsync_every",
            "requests; 0: never",
            "100",
            "Number of requests after which every file is synced, if the workload writes",
        ),
        ranged(
            "reads_per_write",
            "a number",
            Range::Decimal(0.0, 1e6),
            "1.5",
            "Reads per write, in the mode with both",
        ),
        ranged(
            "cached",
            "a part, below 1",
            Range::Decimal(0.0, 1.0),
            cached,
            "[A] Fraction of the reads that a guest's page cache serves",
        ),
        parameter(
            "think",
            "a time",
            "\"0ns\"",
            "[A] Time of a thread before each of its requests, cached ones included",
        ),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    SequentialRead,
    RandomRead,
    RandomMixed,
    SequentialWrite,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    threads: u32,
    files: u32,
    apart: Bytes,
    total: Bytes,
    block: Bytes,
    events: u64,
    fsync_every: u32,
    reads_per_write: f64,
    cached: f64,
    #[serde(with = "params::duration")]
    think: Duration,
}

fn build(mode: Mode, context: BuildContext, table: &ParamTable) -> Built {
    let (threads, program) = program(mode, &context, table)?;
    Ok(Box::new(Threads::new(threads, program, context.start, context.random)))
}

/// The threads of `sysbench-rndrd`, or else of `sysbench-seqrd`, as a workload each, so that a guest's scheduler tells them apart. They share
/// the position, and the number of requests that are left.
///
/// # Errors
/// An unknown parameter, an invalid value, or a volume that is too small.
pub fn sysbench_processes(
    is_random: bool,
    context: &BuildContext,
    overrides: &ParamTable,
) -> Result<Vec<Box<dyn Workload>>, ParamError> {
    let (profile, mode) = match is_random {
        true => (&PROFILES[1], Mode::RandomRead),
        false => (&PROFILES[0], Mode::SequentialRead),
    };
    check(profile.parameters, overrides)?;
    let (threads, program) = program(mode, context, &with_defaults(profile.parameters, overrides))?;
    let program = Rc::new(RefCell::new(program));
    let mut seeds = context.random.clone();
    let one = |_| {
        let random = stream(seeds.below(u64::MAX), "thread");
        Box::new(Threads::new(1, Rc::clone(&program), context.start, random)) as Box<dyn Workload>
    };
    Ok((0..threads).map(one).collect())
}

fn program(mode: Mode, context: &BuildContext, table: &ParamTable) -> Result<(u32, Sysbench), ParamError> {
    let params: Params = parse(table)?;
    let block = request("block", params.block.0)?;
    let file = params.total.0 / u64::from(params.files);
    let apart = if params.apart.0 == 0 { file / u64::from(block) * u64::from(block) } else { params.apart.0 };
    if apart < file / u64::from(block) * u64::from(block) || apart % 512 != 0 {
        let wrong = format!("apart must be 0, or a multiple of 512 B and at least {file} B, the size of a file");
        return Err(ParamError(wrong));
    }
    let span = params.total.0.max(apart.saturating_mul(u64::from(params.files)));
    fits("The files", span, context.volume)?;
    let blocks = file / u64::from(block);
    if blocks == 0 || params.cached >= 1.0 {
        let wrong = "each file must have a block, and cached must be below 1";
        return Err(ParamError(wrong.to_owned()));
    }
    let program = Sysbench {
        mode,
        block,
        file_blocks: blocks,
        apart,
        think: params.think,
        reads: params.reads_per_write / (1.0 + params.reads_per_write),
        cached: params.cached,
        left: if params.events == 0 { u64::MAX } else { params.events },
        fsync_every: params.fsync_every,
        since_fsync: 0,
        cursor: 0,
        written: vec![false; params.files as usize],
        flushes: 0,
    };
    Ok((params.threads, program))
}

struct Sysbench {
    mode: Mode,
    block: u32,
    file_blocks: u64,
    apart: u64,
    think: Duration,
    reads: f64,
    cached: f64,
    left: u64,
    fsync_every: u32,
    since_fsync: u32,
    cursor: u64,
    /// Files with writes since their last sync.
    written: Vec<bool>,
    /// Flushes left in a round of syncs.
    flushes: u32,
}

impl Sysbench {
    fn sync(&mut self) {
        self.flushes = self.written.iter().filter(|written| **written).count() as u32;
        self.written.fill(false);
        self.since_fsync = 0;
    }

    /// The next request, unless the page cache serves it.
    fn request(&mut self, random: &mut Stream) -> Option<Step> {
        let blocks = self.file_blocks * self.written.len() as u64;
        let block = match self.mode {
            Mode::SequentialRead | Mode::SequentialWrite => {
                let block = self.cursor;
                self.cursor = (block + 1) % blocks;
                block
            }
            Mode::RandomRead | Mode::RandomMixed => random.below(blocks),
        };
        let reads = match self.mode {
            Mode::SequentialRead | Mode::RandomRead => true,
            Mode::SequentialWrite => false,
            Mode::RandomMixed => random.chance(self.reads),
        };
        if !reads {
            self.written[(block / self.file_blocks) as usize] = true;
        }
        self.since_fsync += 1;
        if self.since_fsync == self.fsync_every {
            self.sync();
        }
        if reads && random.chance(self.cached) {
            return None;
        }
        let kind = if reads { Kind::Read } else { Kind::Write };
        let (file, within) = (block / self.file_blocks, block % self.file_blocks);
        Some(ask(kind, file * self.apart + within * u64::from(self.block), self.block))
    }
}

impl Program for Sysbench {
    fn refill(&mut self, _thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>) {
        while steps.is_empty() {
            if self.flushes > 0 {
                self.flushes -= 1;
                steps.push_back(flush());
            } else if self.left > 0 {
                self.left -= 1;
                steps.extend((!self.think.is_zero()).then_some(Step::Think(self.think)));
                steps.extend(self.request(random));
            } else {
                // The tool syncs every file at its end.
                self.sync();
                if self.flushes == 0 || self.fsync_every == 0 {
                    return;
                }
            }
        }
    }
}
