//! Device models by name, as a scenario states them: one file for each kind, one line in the list.

use serde::de::DeserializeOwned;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter};

use crate::devices::Model;

mod bucket;
mod disks;
mod flash;
mod servers;

/// Every model, by the file in which it is.
pub const MODELS: &[&[ModelKind]] = &[servers::KINDS, bucket::KINDS, disks::KINDS, flash::KINDS];

/// What is known of a model beside what it does.
pub struct ModelKind {
    /// What a scenario calls it.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What can be changed; the defaults are written as a scenario would write them.
    pub parameters: &'static [&'static [Parameter]],
    derive: fn(&ParamTable) -> Result<Derived, ParamError>,
    build: fn(&ParamTable, &Setting) -> Built,
}

type Built = Result<Box<dyn Model>, ParamError>;

/// What a model needs of the run for which it is made.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The run's seed.
    pub seed: u64,
    /// The name of its streams of random numbers.
    pub name: String,
}

/// What follows from a model's parameters, without a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    /// Bytes that it has.
    pub span: u64,
    /// Requests per second that it does at most, and of what kind those are.
    pub most: (f64, &'static str),
    /// What else there is to know: what, and how much of it.
    pub facts: Vec<(&'static str, String)>,
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static ModelKind> {
    MODELS.iter().copied().flatten()
}

/// The one of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static ModelKind> {
    all().find(|kind| kind.name == name)
}

impl core::fmt::Debug for ModelKind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl ModelKind {
    /// Every parameter.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> + use<> {
        self.parameters.iter().copied().flatten()
    }

    /// What follows from these parameters; those that are not stated have their defaults.
    ///
    /// # Errors
    /// A parameter that does not exist, or has a value that cannot be.
    pub fn derive(&self, params: &ParamTable) -> Result<Derived, ParamError> {
        (self.derive)(params)
    }

    /// A device.
    ///
    /// # Errors
    /// As [`ModelKind::derive`].
    pub fn build(&self, params: &ParamTable, setting: &Setting) -> Result<Box<dyn Model>, ParamError> {
        (self.build)(params, setting)
    }
}

fn parse<T: DeserializeOwned>(table: &ParamTable) -> Result<T, ParamError> {
    params::parse(table)
}

const fn parameter(name: &'static str, kind: &'static str, default: &'static str, help: &'static str) -> Parameter {
    Parameter { name, kind, default, help }
}

/// Refuses what is out of range.
fn within<T: PartialOrd + core::fmt::Display>(name: &str, value: T, min: T, max: T) -> Result<T, ParamError> {
    match value >= min && value <= max {
        true => Ok(value),
        false => Err(ParamError(format!("{name} is {value}; it must be from {min} to {max}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::written;

    #[test]
    fn stated_defaults_are_the_defaults() {
        for kind in all() {
            let derived = kind.derive(&ParamTable::new()).unwrap_or_else(|error| panic!("{}: {error}", kind.name));
            for parameter in kind.parameters().filter(|parameter| parameter.default != "none") {
                let alone = ParamTable::from([(parameter.name.to_owned(), written(parameter.default))]);
                assert_eq!(kind.derive(&alone).as_ref(), Ok(&derived), "{}.{}", kind.name, parameter.name);
            }
            assert!(kind.derive(&ParamTable::from([("colour".to_owned(), written("1"))])).is_err());
        }
    }
}
