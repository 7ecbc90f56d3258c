//! Simple workloads: a number of outstanding requests, or requests at a rate, independent of completions.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::{Bytes, Iops};

use super::iometer::{mix, outstanding};
use super::{BuildContext, Built, WorkloadProfile, parameter, parse, ranged};
use crate::workloads::{Open, Pattern};

const SOURCE: &str = "none: defined by the scenario";

pub(super) const PROFILES: &[WorkloadProfile] = &[
    WorkloadProfile {
        name: "closed",
        summary: "A number of outstanding requests; each completion is followed by the next request",
        source: SOURCE,
        parameters: &[
            ranged("outstanding", "requests", Range::Number(1, 65_536), "32", "Number of outstanding requests"),
            parameter("think", "a time", "\"0s\"", "Time between a completion and the next request"),
            parameter("requests", "requests; 0: no end", "0", "Number of requests after which the workload ends"),
            SIZE,
            READS,
            RANDOM,
        ],
        build: outstanding,
        ..WorkloadProfile::BASE
    },
    rated("poisson", "Independent requests at a mean rate, whether previous ones have completed or not", poisson),
    rated("periodic", "Requests at a fixed rate, whether previous ones have completed or not", periodic),
    WorkloadProfile {
        name: "bursts",
        summary: "A number of concurrent requests at regular intervals",
        source: SOURCE,
        parameters: &[
            ranged("requests", "requests", Range::Number(1, 65_536), "128", "Number of requests in a burst"),
            parameter("every", "a time", "\"400ms\"", "Time between two bursts"),
            SIZE,
            READS,
            RANDOM,
        ],
        build: bursts,
        ..WorkloadProfile::BASE
    },
];

const SIZE: Parameter = parameter("size", "a size", "\"8KiB\"", "Size of each request");
const READS: Parameter = ranged(
    "reads",
    "a part",
    Range::Decimal(0.0, 1.0),
    "1.0",
    "Fraction of the requests that are reads; the others are writes",
);
const RANDOM: Parameter = ranged(
    "random",
    "a part",
    Range::Decimal(0.0, 1.0),
    "1.0",
    "Fraction of the requests at random offsets; the others follow the previous one",
);

const RATED: [Parameter; 4] = [
    ranged("rate", "a rate of requests", Range::Requests(1, 100_000_000_000), "\"500 iops\"", "Rate of each thread"),
    SIZE,
    READS,
    RANDOM,
];

const fn rated(
    name: &'static str,
    summary: &'static str,
    build: fn(BuildContext, &ParamTable) -> Built,
) -> WorkloadProfile {
    WorkloadProfile { name, summary, source: SOURCE, parameters: &RATED, build, ..WorkloadProfile::BASE }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rated {
    rate: Iops,
    size: Bytes,
    reads: f64,
    random: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bursts {
    requests: u32,
    #[serde(with = "params::duration")]
    every: Duration,
    size: Bytes,
    reads: f64,
    random: f64,
}

fn poisson(context: BuildContext, table: &ParamTable) -> Built {
    open(context, table, Pattern::Poisson)
}

fn periodic(context: BuildContext, table: &ParamTable) -> Built {
    open(context, table, Pattern::Periodic)
}

fn open(context: BuildContext, table: &ParamTable, pattern: fn(Duration) -> Pattern) -> Built {
    let Rated { rate, size, reads, random } = parse(table)?;
    let mix = mix(size, reads, random, &context)?;
    let distance = Duration::from_nanos(1_000_000_000_000 / rate.milli());
    Ok(Box::new(Open::new(pattern(distance), mix, context.start, context.random)))
}

fn bursts(context: BuildContext, table: &ParamTable) -> Built {
    let Bursts { requests, every, size, reads, random } = parse(table)?;
    if every.is_zero() {
        return Err(ParamError("every is 0s; write the time between two bursts".to_owned()));
    }
    let mix = mix(size, reads, random, &context)?;
    Ok(Box::new(Open::new(Pattern::Bursts(requests, every), mix, context.start, context.random)))
}
