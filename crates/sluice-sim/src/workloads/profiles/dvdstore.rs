//! An OLTP database similar to DVDStore: orders with a fixed number of requests and one write of the log.
//!
//! \[mclock\] Fig. 1 gives orders per second (500, then 275) but does not define an order; all sizes here are
//! assumptions. Orders per second are the VM's requests per second divided by those of an order: `requests`, the log
//! write and its flush, so 22 by default.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Range};
use sluice_sched::{Bytes, Kind};

use super::{BuildContext, Built, WorkloadProfile, ask, fits, flush, parameter, parse, ranged, request};
use crate::random::Stream;
use crate::workloads::{Program, Step, Threads};

pub(super) const PROFILES: &[WorkloadProfile] = &[WorkloadProfile {
    name: "dvdstore-like",
    summary: "orders, each with 20 random requests of 8 KiB, a log write and a flush; 16 threads",
    source: "[mclock] Fig. 1 names the benchmark; all numbers are assumptions",
    parameters: &[
        ranged("threads", "threads", Range::Number(1, 4096), "16", "[A] Number of concurrent orders"),
        ranged(
            "requests",
            "requests",
            Range::Number(1, 65_536),
            "20",
            "[A] Number of requests in an order, in addition to the log write",
        ),
        parameter("size", "a size", "\"8KiB\"", "[A] Size of each"),
        ranged("reads", "a part", Range::Decimal(0.0, 1.0), "0.75", "[A] Fraction of them that are reads"),
        parameter(
            "log",
            "a size",
            "\"256MiB\"",
            "[A] Size of the log at the end of the volume; at its end it starts again from its beginning",
        ),
        parameter("think", "a time", "\"0ns\"", "Time before an order"),
        parameter("orders", "orders; 0: no end", "0", "Number of orders after which the workload ends"),
    ],
    build,
    ..WorkloadProfile::BASE
}];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    threads: u32,
    requests: u32,
    size: Bytes,
    reads: f64,
    log: Bytes,
    #[serde(with = "params::duration")]
    think: Duration,
    orders: u64,
}

fn build(context: BuildContext, table: &ParamTable) -> Built {
    let params: Params = parse(table)?;
    let size = request("size", params.size.0)?;
    if params.log.0 < u64::from(size) {
        return Err(ParamError("log must have space for a write".to_owned()));
    }
    fits("The log and one request", params.log.0.saturating_add(u64::from(size)), context.volume)?;
    let left = if params.orders == 0 { u64::MAX } else { params.orders };
    let places = (context.volume - params.log.0) / u64::from(size);
    let threads = params.threads;
    let program = Orders { volume: context.volume, params, size, places, cursor: 0, left };
    Ok(Box::new(Threads::new(threads, program, context.start, context.random)))
}

struct Orders {
    volume: u64,
    params: Params,
    size: u32,
    /// Number of offsets in the data.
    places: u64,
    /// Position in the log.
    cursor: u64,
    left: u64,
}

impl Program for Orders {
    fn refill(&mut self, _thread: u32, random: &mut Stream, steps: &mut VecDeque<Step>) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        steps.push_back(Step::Think(self.params.think));
        for _ in 0..self.params.requests {
            let kind = if random.chance(self.params.reads) { Kind::Read } else { Kind::Write };
            steps.push_back(ask(kind, random.below(self.places) * u64::from(self.size), self.size));
        }
        let log = self.params.log.0 / u64::from(self.size);
        let place = self.volume - self.params.log.0 + self.cursor * u64::from(self.size);
        self.cursor = (self.cursor + 1) % log;
        steps.extend([ask(Kind::Write, place, self.size), flush()]);
    }
}
