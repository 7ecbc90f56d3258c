//! Servers of a stated speed, and the simplest of them, a constant rate.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, Parameter, Range, read};
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{Bytes, Iops};

use super::{BuildContext, Derived, ModelKind, parameter, ranged};
use crate::devices::Model;
use crate::devices::servers::{Servers, ServiceTime};
use crate::random::stream;

const SIZE: &str = "Size of the device, which its VMs share";

const CONSTANT: &[Parameter] = &[
    ranged("rate", "a rate of requests", Range::Requests(1, 1_000_000_000_000), "\"1000 iops\"", "Requests per second"),
    ranged(
        "servers",
        "number",
        Range::Number(1, 65_536),
        "1",
        "Number of requests served concurrently; each takes servers / rate, for example 4 / 1000 iops = 4 ms",
    ),
    parameter("size", "a size", "\"1TiB\"", SIZE),
];

const SERVERS: &[Parameter] = &[
    ranged("servers", "number", Range::Number(1, 65_536), "1", "Number of servers"),
    ranged(
        "time",
        "a time",
        Range::Time(Duration::from_nanos(1), Duration::from_secs(60)),
        "\"1ms\"",
        "Mean time of a request",
    ),
    ranged(
        "distribution",
        "word",
        Range::Words(&["fixed", "exponential", "uniform"]),
        "\"exponential\"",
        "Distribution of that time; uniform: from 0 to twice the mean",
    ),
    parameter("size", "a size", "\"1TiB\"", SIZE),
];

pub(super) const KINDS: &[ModelKind] = &[
    ModelKind {
        name: "constant",
        summary: "A constant rate, whatever the requests are",
        device_class: DeviceClass::Disk,
        parameters: &[CONSTANT],
        derive: |table| read::<Constant>(CONSTANT, table)?.derive(),
        build: |table, context, _| read::<Constant>(CONSTANT, table)?.build(context),
    },
    ModelKind {
        name: "servers",
        summary: "Servers with one common queue, as in queueing theory",
        device_class: DeviceClass::Disk,
        parameters: &[SERVERS],
        derive: |table| read::<Line>(SERVERS, table)?.derive(),
        build: |table, context, _| read::<Line>(SERVERS, table)?.build(context),
    },
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Constant {
    rate: Iops,
    servers: u32,
    size: Bytes,
}

impl Constant {
    fn derive(&self) -> Result<Derived, ParamError> {
        Ok(Derived {
            span: self.size.0,
            most: (self.rate.as_f64(), "any requests"),
            facts: Vec::new(),
            rotational: false,
        })
    }

    fn build(&self, context: &BuildContext) -> Result<Box<dyn Model>, ParamError> {
        self.derive()?;
        let nanos = u128::from(self.servers) * 1_000_000_000_000 / u128::from(self.rate.milli());
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).max(1));
        Ok(Box::new(Servers::new(self.servers, ServiceTime::Fixed(time), stream(context.seed, &context.name))))
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Distribution {
    Fixed,
    Exponential,
    Uniform,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    servers: u32,
    #[serde(with = "params::duration")]
    time: Duration,
    distribution: Distribution,
    size: Bytes,
}

impl Line {
    fn derive(&self) -> Result<Derived, ParamError> {
        let most = f64::from(self.servers) / self.time.as_secs_f64();
        Ok(Derived { span: self.size.0, most: (most, "any requests"), facts: Vec::new(), rotational: false })
    }

    fn build(&self, context: &BuildContext) -> Result<Box<dyn Model>, ParamError> {
        self.derive()?;
        let time = match self.distribution {
            Distribution::Fixed => ServiceTime::Fixed(self.time),
            Distribution::Exponential => ServiceTime::Exponential(self.time),
            Distribution::Uniform => ServiceTime::Uniform(Duration::ZERO, self.time * 2),
        };
        Ok(Box::new(Servers::new(self.servers, time, stream(context.seed, &context.name))))
    }
}
