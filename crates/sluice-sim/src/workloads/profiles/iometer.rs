//! Jobs of \[mclock\] with Iometer and a custom generator: requests of one size, a number of them outstanding, or a
//! burst in each period. They are random in the volume, or sequential.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::Bytes;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};

use super::{BuildContext, Built, WorkloadProfile, fits, parameter, parse, ranged, request};
use crate::workloads::{Address, Closed, Limited, Mix, Open, Pattern, Workload};

const fn closed(
    name: &'static str,
    summary: &'static str,
    source: &'static str,
    parameters: &'static [Parameter; 6],
) -> WorkloadProfile {
    WorkloadProfile { name, summary, source, parameters, build: outstanding, ..WorkloadProfile::BASE }
}

pub(super) const PROFILES: &[WorkloadProfile] = &[
    WorkloadProfile {
        name: "iometer-rd",
        summary: "RD: 32 random requests of 4 KiB every 250 ms, three quarters of them reads",
        source: "[mclock] 5.1.1",
        parameters: &bursts("\"4KiB\"", "0.75", "1", "32", "\"250ms\""),
        build: burst,
        ..WorkloadProfile::BASE
    },
    closed(
        "iometer-oltp",
        "OLTP: random requests of 8 KiB, three quarters of them reads, 16 outstanding",
        "[mclock] 5.1.1",
        &parameters("\"8KiB\"", "0.75", "1", "16"),
    ),
    closed(
        "iometer-dm",
        "DM: sequential reads of 32 KiB, 32 outstanding",
        "[mclock] 5.1.1",
        &parameters("\"32KiB\"", "1", "0", "32"),
    ),
    closed(
        "iometer-random-16k",
        "VM1 to VM5: random reads of 16 KiB, 32 outstanding",
        "[mclock] 5.1.1 and 5.1.2",
        &parameters("\"16KiB\"", "1", "1", "32"),
    ),
    WorkloadProfile {
        name: "iometer-bursty",
        summary: "bursty: 128 reads of 4 KiB every 400 ms, four fifths of them random",
        source: "[mclock] 5.1.4",
        parameters: &bursts("\"4KiB\"", "1", "0.8", "128", "\"400ms\""),
        build: burst,
        ..WorkloadProfile::BASE
    },
    closed(
        "iometer-steady",
        "steady: reads of 16 KiB, a fifth of them random, 32 outstanding",
        "[mclock] 5.1.4",
        &parameters("\"16KiB\"", "1", "0.2", "32"),
    ),
    closed(
        "dmclock-client",
        "dmClock: random reads of 8 KiB, 64 outstanding",
        "[mclock] 5.2",
        &parameters("\"8KiB\"", "1", "1", "64"),
    ),
];

const SIZE: &str = "Size of each request";
const READS: &str = "Fraction of the requests that are reads";
const RANDOM: &str = "Fraction of the requests at random offsets; the others follow the previous one";
const REQUESTS: &str = "Number of requests after which the workload ends";

const fn parameters(
    size: &'static str,
    reads: &'static str,
    random: &'static str,
    outstanding: &'static str,
) -> [Parameter; 6] {
    [
        parameter("size", "a size", size, SIZE),
        ranged("reads", "a part", Range::Decimal(0.0, 1.0), reads, READS),
        ranged("random", "a part", Range::Decimal(0.0, 1.0), random, RANDOM),
        ranged("outstanding", "requests", Range::Number(1, 65_536), outstanding, "Number of outstanding requests"),
        parameter("think", "a time", "\"0ns\"", "Time between the completion of a request and the next request"),
        parameter("requests", "requests; 0: no end", "0", REQUESTS),
    ]
}

const fn bursts(
    size: &'static str,
    reads: &'static str,
    random: &'static str,
    burst: &'static str,
    period: &'static str,
) -> [Parameter; 6] {
    [
        parameter("size", "a size", size, SIZE),
        ranged("reads", "a part", Range::Decimal(0.0, 1.0), reads, READS),
        ranged("random", "a part", Range::Decimal(0.0, 1.0), random, RANDOM),
        ranged("burst", "requests", Range::Number(1, 65_536), burst, "Number of requests in a burst"),
        parameter("period", "a time", period, "Time from one burst to the next"),
        parameter("requests", "requests; 0: no end", "0", REQUESTS),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outstanding {
    size: Bytes,
    reads: f64,
    random: f64,
    outstanding: u32,
    #[serde(with = "params::duration")]
    think: Duration,
    requests: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Burst {
    size: Bytes,
    reads: f64,
    random: f64,
    burst: u32,
    #[serde(with = "params::duration")]
    period: Duration,
    requests: u64,
}

pub(super) fn mix(size: Bytes, reads: f64, random: f64, context: &BuildContext) -> Result<Mix, ParamError> {
    fits("The bytes of one request", size.0, context.volume)?;
    let length = request("size", size.0)?;
    Ok(Mix { reads, length, address: Address::mixed(0, context.volume, random) })
}

fn limited(workload: impl Workload + 'static, requests: u64) -> Box<dyn Workload> {
    let workload = Box::new(workload);
    if requests == 0 { workload } else { Box::new(Limited::new(workload, requests)) }
}

pub(super) fn outstanding(context: BuildContext, table: &ParamTable) -> Built {
    let Outstanding { size, reads, random, outstanding, think, requests } = parse(table)?;
    let mix = mix(size, reads, random, &context)?;
    Ok(limited(Closed::new(outstanding, think, mix, context.start, context.random), requests))
}

fn burst(context: BuildContext, table: &ParamTable) -> Built {
    let Burst { size, reads, random, burst, period, requests } = parse(table)?;
    if period.is_zero() {
        return Err(ParamError(
            "period is 0; write the time from one burst to the next, for example \"250ms\"".to_owned(),
        ));
    }
    let mix = mix(size, reads, random, &context)?;
    Ok(limited(Open::new(Pattern::Bursts(burst, period), mix, context.start, context.random), requests))
}
