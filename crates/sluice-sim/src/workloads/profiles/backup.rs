//! A backup: an image is read sequentially, and each piece is written.
//!
//! \[flubber\] IV copies an image of 12 GB in the host while two VMs run; destination and request sizes are not stated.

use std::collections::VecDeque;

use serde::Deserialize;
use sluice_sched::params::{ParamTable, Range};
use sluice_sched::{Bytes, Kind};

use super::{BuildContext, Built, WorkloadProfile, ask, fits, parameter, parse, ranged, request};
use crate::random::Stream;
use crate::workloads::{Program, Step, Threads};

pub(super) const PROFILES: &[WorkloadProfile] = &[WorkloadProfile {
    name: "backup",
    summary: "sequential copy of an image of 12 GiB, once",
    source: "[flubber] IV",
    parameters: &[
        parameter("image", "a size", "\"12GiB\"", "Size of the image, from the start of the volume"),
        parameter("block", "a size", "\"64KiB\"", "[A] Bytes per read and per write"),
        ranged("threads", "threads", Range::Number(1, 4096), "1", "[A] Number of pieces in flight"),
        parameter(
            "to",
            "\"same\" or \"elsewhere\"",
            "\"same\"",
            "[A] same: the copy is written to the space after the image; elsewhere: the copy goes to another device, \
             and its writes are not simulated",
        ),
    ],
    build,
    ..WorkloadProfile::BASE
}];

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Target {
    Same,
    Elsewhere,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    image: Bytes,
    block: Bytes,
    threads: u32,
    to: Target,
}

fn build(context: BuildContext, table: &ParamTable) -> Built {
    let params: Params = parse(table)?;
    let block = request("block", params.block.0)?;
    let copies = if params.to == Target::Same { 2 } else { 1 };
    fits("The image and its copy", params.image.0.saturating_mul(copies), context.volume)?;
    let threads = params.threads;
    Ok(Box::new(Threads::new(threads, Backup { params, block, cursor: 0 }, context.start, context.random)))
}

struct Backup {
    params: Params,
    block: u32,
    cursor: u64,
}

impl Program for Backup {
    fn refill(&mut self, _thread: u32, _random: &mut Stream, steps: &mut VecDeque<Step>) {
        let image = self.params.image.0;
        if self.cursor >= image {
            return;
        }
        let length = u64::from(self.block).min(image - self.cursor) as u32;
        steps.push_back(ask(Kind::Read, self.cursor, length));
        if self.params.to == Target::Same {
            steps.push_back(ask(Kind::Write, image + self.cursor, length));
        }
        self.cursor += u64::from(length);
    }
}
