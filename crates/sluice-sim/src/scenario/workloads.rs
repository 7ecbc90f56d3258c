//! Workloads by name: those that are a few numbers, and whatever else is listed.

use std::time::Duration;

use serde::Deserialize;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter};
use sluice_sched::{Bytes, Iops};

use crate::workloads::recipes::{self, Recipe, RecipeError};
use crate::workloads::{Address, Closed, Mix, Open, Pattern, Workload};

pub use crate::workloads::recipes::Setting;

/// What is known of a workload.
pub struct WorkloadKind {
    /// What a scenario calls it.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What can be changed; the defaults are written as a scenario would write them.
    pub parameters: &'static [Parameter],
    build: fn(&ParamTable, Setting) -> Built,
}

type Built = Result<Box<dyn Workload>, ParamError>;

/// One of all that can be named.
#[derive(Clone, Copy)]
pub enum Known {
    /// A few numbers.
    Plain(&'static WorkloadKind),
    /// A program of a paper or a benchmark.
    Recipe(&'static Recipe),
}

const KINDS: &[WorkloadKind] = &[
    WorkloadKind {
        name: "closed",
        summary: "So many requests outstanding, each followed by the next",
        parameters: &[
            parameter("outstanding", "1 to 65536", "32", "How many"),
            parameter("think", "a time", "\"0s\"", "Between a completion and the next request"),
            SIZE,
            READS,
            RANDOM,
        ],
        build: |table, setting| read::<Loop>(table)?.build(setting),
    },
    WorkloadKind {
        name: "poisson",
        summary: "Requests independent of each other, at a mean rate, whether those before are over or not",
        parameters: &[parameter("rate", "a rate of requests", "\"500 iops\"", "Of each thread"), SIZE, READS, RANDOM],
        build: |table, setting| read::<Rated>(table)?.build(setting, Pattern::Poisson),
    },
    WorkloadKind {
        name: "periodic",
        summary: "Requests at a fixed rate, whether those before are over or not",
        parameters: &[parameter("rate", "a rate of requests", "\"500 iops\"", "Of each thread"), SIZE, READS, RANDOM],
        build: |table, setting| read::<Rated>(table)?.build(setting, Pattern::Periodic),
    },
    WorkloadKind {
        name: "bursts",
        summary: "So many requests at once, every so often",
        parameters: &[
            parameter("requests", "1 to 65536", "128", "Of a burst"),
            parameter("every", "a time", "\"400ms\"", "Between two bursts"),
            SIZE,
            READS,
            RANDOM,
        ],
        build: |table, setting| read::<Bursts>(table)?.build(setting),
    },
];

const SIZE: Parameter = parameter("size", "a size", "\"8KiB\"", "Of each request");
const READS: Parameter = parameter("reads", "0 to 1", "1.0", "Of the requests, what reads; the others write");
const RANDOM: Parameter =
    parameter("random", "0 to 1", "1.0", "Of the requests, what lies anywhere; the others follow the one before");

const fn parameter(name: &'static str, kind: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, kind, default, help }
}

/// All of them.
pub fn all() -> impl Iterator<Item = Known> {
    KINDS.iter().map(Known::Plain).chain(recipes::all().map(Known::Recipe))
}

/// The one of that name.
#[must_use]
pub fn find(name: &str) -> Option<Known> {
    all().find(|known| known.name() == name)
}

impl core::fmt::Debug for Known {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl Known {
    /// What a scenario calls it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Known::Plain(kind) => kind.name,
            Known::Recipe(recipe) => recipe.name,
        }
    }

    /// What it is, in a line.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Known::Plain(kind) => kind.summary,
            Known::Recipe(recipe) => recipe.summary,
        }
    }

    /// What can be changed.
    #[must_use]
    pub fn parameters(&self) -> &'static [Parameter] {
        match self {
            Known::Plain(kind) => kind.parameters,
            Known::Recipe(recipe) => recipe.parameters,
        }
    }

    /// Makes one.
    ///
    /// # Errors
    /// A parameter that does not exist, or has a value that cannot be, or does not fit the volume.
    pub fn build(&self, params: &ParamTable, setting: Setting) -> Result<Box<dyn Workload>, ParamError> {
        match self {
            Known::Plain(kind) => (kind.build)(params, setting),
            Known::Recipe(recipe) => match recipes::build(recipe.name, setting, params) {
                Err(RecipeError::Parameter { source, .. }) => Err(source),
                built => built.map_err(|error| ParamError(error.to_string())),
            },
        }
    }
}

/// What its requests are like.
#[derive(Deserialize)]
struct Requests {
    size: Bytes,
    reads: f64,
    random: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loop {
    outstanding: u32,
    #[serde(with = "params::duration")]
    think: Duration,
    size: Bytes,
    reads: f64,
    random: f64,
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

/// What is stated over the defaults of the workload that has these parameters.
fn read<T: serde::de::DeserializeOwned + Defaults>(table: &ParamTable) -> Result<T, ParamError> {
    let mut all: ParamTable =
        T::of().parameters.iter().map(|known| (known.name.to_owned(), super::written(known.default))).collect();
    all.extend(table.iter().map(|(name, value)| (name.clone(), value.clone())));
    params::parse(&all)
}

/// The kind whose defaults a type of parameters has.
trait Defaults {
    fn of() -> &'static WorkloadKind;
}

impl Defaults for Loop {
    fn of() -> &'static WorkloadKind {
        &KINDS[0]
    }
}

impl Defaults for Rated {
    fn of() -> &'static WorkloadKind {
        &KINDS[1]
    }
}

impl Defaults for Bursts {
    fn of() -> &'static WorkloadKind {
        &KINDS[3]
    }
}

impl Requests {
    fn mix(&self, volume: u64) -> Result<Mix, ParamError> {
        let size = self.size.0;
        if !size.is_multiple_of(512) || !(512..=64 << 20).contains(&size) {
            return Err(ParamError(format!("size is {size}B; it must be a multiple of 512B, up to 64MiB")));
        }
        if size > volume {
            return Err(ParamError(format!("size is {}; the volume of a thread has {}", Bytes(size), Bytes(volume))));
        }
        for (name, part) in [("reads", self.reads), ("random", self.random)] {
            if !(0.0..=1.0).contains(&part) {
                return Err(ParamError(format!("{name} is {part}; it must be from 0 to 1")));
            }
        }
        let address = Address::mixed(0, volume, self.random);
        Ok(Mix { reads: self.reads, length: size as u32, address })
    }
}

/// Refuses a number of requests that is none.
fn many(name: &str, value: u32) -> Result<(), ParamError> {
    params::within(name, value, 1, 65_536, "requests")
}

impl Loop {
    fn build(&self, setting: Setting) -> Result<Box<dyn Workload>, ParamError> {
        many("outstanding", self.outstanding)?;
        let mix = Requests { size: self.size, reads: self.reads, random: self.random }.mix(setting.volume)?;
        Ok(Box::new(Closed::new(self.outstanding, self.think, mix, setting.start, setting.random)))
    }
}

impl Rated {
    fn build(&self, setting: Setting, pattern: fn(Duration) -> Pattern) -> Result<Box<dyn Workload>, ParamError> {
        if self.rate.as_f64() > 1e8 {
            return Err(ParamError(format!("rate is {}; it must be at most 100000000 iops", self.rate)));
        }
        let mix = Requests { size: self.size, reads: self.reads, random: self.random }.mix(setting.volume)?;
        let distance = Duration::from_nanos(1_000_000_000_000 / self.rate.milli());
        Ok(Box::new(Open::new(pattern(distance), mix, setting.start, setting.random)))
    }
}

impl Bursts {
    fn build(&self, setting: Setting) -> Result<Box<dyn Workload>, ParamError> {
        many("requests", self.requests)?;
        if self.every.is_zero() {
            return Err(ParamError("every is 0s; bursts need a time between them".to_owned()));
        }
        let mix = Requests { size: self.size, reads: self.reads, random: self.random }.mix(setting.volume)?;
        let pattern = Pattern::Bursts(self.requests, self.every);
        Ok(Box::new(Open::new(pattern, mix, setting.start, setting.random)))
    }
}

#[cfg(test)]
mod tests {
    use sluice_sched::Instant;

    use super::*;
    use crate::random::stream;

    fn setting() -> Setting {
        Setting { volume: 1 << 30, start: Instant::ZERO, random: stream(1, "test") }
    }

    #[test]
    fn defaults_are_accepted_and_nonsense_is_not() {
        for known in all() {
            let large = Setting { volume: 1 << 42, ..setting() };
            assert!(known.build(&ParamTable::new(), large).is_ok(), "{known:?}");
            for (name, text) in [("colour", "1"), ("size", "\"7B\""), ("reads", "1.5"), ("size", "\"32MiB\"")] {
                let volume = if text == "\"32MiB\"" { 1 << 20 } else { 1 << 30 };
                let table = ParamTable::from([(name.to_owned(), crate::scenario::written(text))]);
                let refused = known.build(&table, Setting { volume, ..setting() });
                assert!(refused.is_err(), "{known:?}: {name} = {text}");
            }
        }
    }
}
