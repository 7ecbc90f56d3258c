//! Filebench's fileserver and varmail: threads that write, append to and read small files.
//!
//! Number of files, mean sizes (gamma, shape 1.5), threads and the order of operations are those of Filebench's own
//! workload files. fileserver: create and write a whole file, append, read a whole file, delete, stat. varmail: delete;
//! create, append, fsync; read a whole file, append, fsync; read a whole file.
//!
//! At the block device a file is a range at its own offset. An operation on data is requests of at most 1 MiB, and an
//! fsync is a flush. Left out: writes of metadata, the journal, and writeback (writes go to the disk immediately).
//! `cached` is the fraction of reads that a guest's page cache serves.

use std::collections::VecDeque;

use serde::Deserialize;
use sluice_sched::params::{ParamError, ParamTable, Parameter, Range};
use sluice_sched::{Bytes, Kind};

use super::{BuildContext, Built, WorkloadProfile, fits, flush, parameter, parse, ranged, stretch};
use crate::random::Stream;
use crate::workloads::{Program, Step, Threads};

/// Shape of the distribution of sizes.
const SHAPE: f64 = 1.5;
/// Maximum size of a request.
const PIECE: u32 = 1 << 20;
/// A file's last page is written and read as a whole.
const PAGE: u64 = 4096;

pub(super) const PROFILES: &[WorkloadProfile] = &[
    WorkloadProfile {
        name: "filebench-fileserver",
        summary: "Filebench fileserver: 50 threads write, append to and read 10,000 files of 128 KiB",
        source: "Filebench, workloads/fileserver.f",
        parameters: &parameters("50", "10000", "\"128KiB\""),
        build: |context, table| build(false, context, table),
        ..WorkloadProfile::BASE
    },
    WorkloadProfile {
        name: "filebench-varmail",
        summary: "Filebench varmail: 16 threads append to 1,000 files of 16 KiB with fsync, and read them",
        source: "Filebench, workloads/varmail.f",
        parameters: &parameters("16", "1000", "\"16KiB\""),
        build: |context, table| build(true, context, table),
        ..WorkloadProfile::BASE
    },
];

const fn parameters(threads: &'static str, files: &'static str, size: &'static str) -> [Parameter; 6] {
    [
        ranged("threads", "threads", Range::Number(1, 4096), threads, "Number of threads"),
        ranged("files", "files", Range::Number(1, 1_000_000), files, "Number of files"),
        parameter("size", "a size", size, "Mean size of a file"),
        parameter("append", "a size", "\"16KiB\"", "Mean size of an append"),
        ranged(
            "cached",
            "a part",
            Range::Decimal(0.0, 1.0),
            "0",
            "[A] Fraction of the reads that a guest's page cache serves",
        ),
        parameter(
            "loops",
            "times; 0: no end",
            "0",
            "Number of rounds, over all threads, after which the workload ends",
        ),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    threads: u32,
    files: u32,
    size: Bytes,
    append: Bytes,
    cached: f64,
    loops: u64,
}

fn build(mail: bool, mut context: BuildContext, table: &ParamTable) -> Built {
    let Params { threads, files, size, append, cached, loops } = parse(table)?;
    if size.0 < 512 || append.0 < 512 {
        return Err(ParamError("size and append must be at least 512 B".to_owned()));
    }
    fits("The files", size.0.saturating_mul(u64::from(files)).max(64 * PAGE), context.volume)?;
    let mut program = Files {
        mail,
        volume: context.volume,
        slot: context.volume / u64::from(files) / PAGE * PAGE,
        sizes: vec![0; files as usize],
        mean: size.0 as f64,
        append: append.0 as f64,
        cached,
        left: if loops == 0 { u64::MAX } else { loops },
    };
    for file in 0..files as usize {
        program.sizes[file] = program.draw(program.mean, &mut context.random);
    }
    Ok(Box::new(Threads::new(threads, program, context.start, context.random)))
}

struct Files {
    mail: bool,
    volume: u64,
    /// Distance between the starts of two files.
    slot: u64,
    sizes: Vec<u64>,
    mean: f64,
    append: f64,
    cached: f64,
    left: u64,
}

impl Files {
    /// A random size in whole pages that fits the volume.
    fn draw(&self, mean: f64, random: &mut Stream) -> u64 {
        let size = (random.gamma(SHAPE, mean) as u64).div_ceil(PAGE).max(1) * PAGE;
        size.min(self.volume / 2 / PAGE * PAGE)
    }

    fn any(&self, random: &mut Stream) -> usize {
        random.below(self.sizes.len() as u64) as usize
    }

    /// Offset of a range of a file.
    fn offset_of(&self, file: usize, from: u64, length: u64) -> u64 {
        (file as u64 * self.slot + from).min(self.volume.saturating_sub(length))
    }

    fn create(&mut self, file: usize, mean: f64, random: &mut Stream, steps: &mut VecDeque<Step>) {
        let size = self.draw(mean, random);
        self.sizes[file] = size;
        stretch(steps, Kind::Write, self.offset_of(file, 0, size), size, PIECE);
    }

    fn append(&mut self, file: usize, random: &mut Stream, steps: &mut VecDeque<Step>) {
        let more = self.draw(self.append, random);
        let from = self.sizes[file];
        // A file that would exceed half of the volume starts again, as if it had been deleted and created.
        self.sizes[file] = if from + more > self.volume / 2 { more } else { from + more };
        stretch(steps, Kind::Write, self.offset_of(file, self.sizes[file] - more, more), more, PIECE);
    }

    fn read(&mut self, file: usize, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if !random.chance(self.cached) {
            let size = self.sizes[file];
            stretch(steps, Kind::Read, self.offset_of(file, 0, size), size, PIECE);
        }
    }
}

impl Program for Files {
    fn refill(&mut self, _thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let (new, other, third) = (self.any(random), self.any(random), self.any(random));
        if self.mail {
            self.create(new, self.append, random, steps);
            steps.push_back(flush());
            self.read(other, random, steps);
            self.append(other, random, steps);
            steps.push_back(flush());
            self.read(third, random, steps);
        } else {
            self.create(new, self.mean, random, steps);
            self.append(other, random, steps);
            self.read(third, random, steps);
        }
    }
}
