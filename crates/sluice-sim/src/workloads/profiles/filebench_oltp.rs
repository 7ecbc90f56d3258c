//! Filebench's oltp: many readers of a database, few writers that follow them, and a log.
//!
//! 200 readers read 2 KiB at random. After 1,000 reads a writer makes 100 synchronous writes of 2 KiB, and after 3,200
//! the log gets one of 256 KiB. When 2,000 reads are waiting for a writer, readers wait. A synchronous write is a write
//! and, from a guest with barriers, a flush. \[mclock\] 5.1.5 used a database of 10 GB and a log of 1 GB; the tool's
//! own files are ten of 10 MiB, and 10 MiB.
//!
//! Between two reads a reader runs a loop of 200,000 iterations, whose time depends on the guest's CPU: `think`. Left
//! out: the bound of the log's semaphore, metadata, and the page cache apart from `cached`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Range};
use sluice_sched::{Bytes, Kind};

use super::{BuildContext, Built, WorkloadProfile, ask, fits, flush, parameter, parse, ranged, request};
use crate::random::Stream;
use crate::workloads::{Program, Step, Threads};

/// Reads that wake a writer, which then makes its writes.
const READS_PER_WRITER: u64 = 1000;
const WRITES: u32 = 100;
/// Number of reads waiting for a writer above which readers wait.
const WAITING_MAX: u64 = 2000;
/// Reads that wake the log.
const READS_PER_LOG: u64 = 3200;

pub(super) const PROFILES: &[WorkloadProfile] = &[WorkloadProfile {
    name: "filebench-oltp",
    summary: "Filebench oltp: 200 readers and 10 writers of 2 KiB, and a log of 256 KiB writes, synchronous",
    source: "Filebench, workloads/oltp.f; [mclock] 5.1.5",
    parameters: &[
        ranged("readers", "threads", Range::Number(1, 4096), "200", "Number of readers"),
        ranged("writers", "threads", Range::Number(1, 4096), "10", "Number of writers"),
        parameter("size", "a size", "\"2KiB\"", "Size of a read and of a writer's write"),
        parameter("log_size", "a size", "\"256KiB\"", "Size of a log write"),
        parameter("database", "a size", "\"100MiB\"", "Size of all data"),
        parameter(
            "log",
            "a size",
            "\"10MiB\"",
            "Size of the log after the data; at its end it starts again from its beginning",
        ),
        parameter("think", "a time", "\"1ms\"", "[A] Time of a reader between two reads"),
        ranged(
            "cached",
            "a part",
            Range::Decimal(0.0, 1.0),
            "0",
            "[A] Fraction of the reads that a guest's page cache serves",
        ),
        parameter(
            "flush",
            "true or false",
            "true",
            "Whether a flush follows each write; guests without barriers send none",
        ),
        parameter(
            "reads",
            "requests; 0: no end",
            "0",
            "Number of reads, cached ones included, after which the readers end",
        ),
    ],
    build,
    ..WorkloadProfile::BASE
}];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    readers: u32,
    writers: u32,
    size: Bytes,
    log_size: Bytes,
    database: Bytes,
    log: Bytes,
    #[serde(with = "params::duration")]
    think: Duration,
    cached: f64,
    flush: bool,
    reads: u64,
}

fn build(context: BuildContext, table: &ParamTable) -> Built {
    let params: Params = parse(table)?;
    let (size, log_size) = (request("size", params.size.0)?, request("log_size", params.log_size.0)?);
    fits("Database and log", params.database.0.saturating_add(params.log.0), context.volume)?;
    if params.database.0 < u64::from(size) || params.log.0 < u64::from(log_size) {
        return Err(ParamError("database and log must have space for one write each".to_owned()));
    }
    let program = Oltp {
        places: params.database.0 / u64::from(size),
        size,
        log_start: params.database.0,
        log_size,
        log_places: params.log.0 / u64::from(log_size),
        log_cursor: 0,
        readers: params.readers,
        running: params.readers,
        writers: params.writers,
        think: params.think,
        cached: params.cached,
        flush: params.flush,
        left: if params.reads == 0 { u64::MAX } else { params.reads },
        to_write: 0,
        to_log: 0,
    };
    let threads = params.readers + params.writers + 1;
    Ok(Box::new(Threads::new(threads, program, context.start, context.random)))
}

struct Oltp {
    places: u64,
    size: u32,
    log_start: u64,
    log_size: u32,
    log_places: u64,
    log_cursor: u64,
    readers: u32,
    /// Readers that have not ended.
    running: u32,
    writers: u32,
    think: Duration,
    cached: f64,
    flush: bool,
    left: u64,
    /// Reads that have not yet woken a writer, and those that have not woken the log.
    to_write: u64,
    to_log: u64,
}

impl Oltp {
    fn read(&mut self, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if self.left == 0 {
            self.running -= 1;
            return;
        }
        if self.to_write >= WAITING_MAX {
            return steps.push_back(Step::Park);
        }
        self.left -= 1;
        self.to_write += 1;
        self.to_log += 1;
        steps.push_back(Step::Think(self.think));
        if !random.chance(self.cached) {
            let offset = random.below(self.places) * u64::from(self.size);
            steps.push_back(ask(Kind::Read, offset, self.size));
        }
    }

    fn write(&mut self, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if self.to_write >= READS_PER_WRITER {
            self.to_write -= READS_PER_WRITER;
            for _ in 0..WRITES {
                let offset = random.below(self.places) * u64::from(self.size);
                steps.push_back(ask(Kind::Write, offset, self.size));
                steps.extend(self.flush.then(flush));
            }
        } else if self.running > 0 {
            steps.push_back(Step::Park);
        }
    }

    fn log(&mut self, steps: &mut VecDeque<Step>) {
        if self.to_log >= READS_PER_LOG {
            self.to_log -= READS_PER_LOG;
            let offset = self.log_start + self.log_cursor * u64::from(self.log_size);
            self.log_cursor = (self.log_cursor + 1) % self.log_places;
            steps.push_back(ask(Kind::Write, offset, self.log_size));
            steps.extend(self.flush.then(flush));
        } else if self.running > 0 {
            steps.push_back(Step::Park);
        }
    }
}

impl Program for Oltp {
    fn refill(&mut self, thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if thread < self.readers {
            self.read(random, steps);
        } else if thread < self.readers + self.writers {
            self.write(random, steps);
        } else {
            self.log(steps);
        }
    }
}
