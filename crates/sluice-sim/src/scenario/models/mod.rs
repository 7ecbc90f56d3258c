//! Devices by name, as a scenario states them: models that are a few numbers, one file for each kind, and device sets.

use serde::de::DeserializeOwned;
use sluice_sched::params::{self, ParamError, ParamTable, Parameter};

use crate::devices::Model;
use crate::devices::sets::{self, DEVICES, DeviceSet};
use crate::random::stream;

pub use crate::devices::derived::Derived;

mod bucket;
mod disks;
mod flash;
mod linear;
mod servers;

/// Every model, by the file in which it is.
pub const MODELS: &[&[ModelKind]] = &[servers::KINDS, bucket::KINDS, linear::KINDS, disks::KINDS, flash::KINDS];

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

/// One of all that can be named.
#[derive(Clone, Copy)]
pub enum Known {
    /// A few numbers.
    Model(&'static ModelKind),
    /// A certain device.
    Set(&'static DeviceSet),
}

/// All of them.
pub fn all() -> impl Iterator<Item = Known> {
    MODELS.iter().copied().flatten().map(Known::Model).chain(DEVICES.iter().map(Known::Set))
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
            Known::Model(kind) => kind.name,
            Known::Set(set) => set.name,
        }
    }

    /// What it is, in a line.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Known::Model(kind) => kind.summary,
            Known::Set(set) => set.summary,
        }
    }

    /// Every parameter.
    #[must_use]
    pub fn parameters(&self) -> Vec<&'static Parameter> {
        match self {
            Known::Model(kind) => kind.parameters.iter().copied().flatten().collect(),
            Known::Set(set) => set.parameters.iter().collect(),
        }
    }

    /// What follows from these parameters; those that are not stated have their defaults. No device is made for that.
    ///
    /// # Errors
    /// A parameter that does not exist, or has a value that cannot be.
    pub fn derive(&self, params: &ParamTable) -> Result<Derived, ParamError> {
        match self {
            Known::Model(kind) => (kind.derive)(params),
            Known::Set(set) => set.derive(params),
        }
    }

    /// A device.
    ///
    /// # Errors
    /// As [`Known::derive`].
    pub fn build(&self, params: &ParamTable, setting: &Setting) -> Result<Box<dyn Model>, ParamError> {
        match self {
            Known::Model(kind) => (kind.build)(params, setting),
            Known::Set(set) => {
                // Each node is random in its own way.
                let seed = stream(setting.seed, &setting.name).below(u64::MAX);
                Ok(set.build(&sets::Setting { seed, states: None }, params)?.model)
            }
        }
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
        for known in all() {
            let derived = known.derive(&ParamTable::new()).unwrap_or_else(|error| panic!("{known:?}: {error}"));
            for parameter in known.parameters().into_iter().filter(|parameter| parameter.default != "none") {
                let alone = ParamTable::from([(parameter.name.to_owned(), written(parameter.default))]);
                assert_eq!(known.derive(&alone).as_ref(), Ok(&derived), "{known:?}.{}", parameter.name);
            }
            assert!(known.derive(&ParamTable::from([("colour".to_owned(), written("1"))])).is_err());
        }
    }

    #[test]
    fn every_name_is_one_devices() {
        let mut names: Vec<&str> = all().map(|known| known.name()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        for (drive, disks) in [("sata-7200-1tb", 1), ("fc-15k-146", 1), ("sas-15k-450", 1), ("raid5-6x-fc-15k-146", 6)]
        {
            let set = find(drive).unwrap().derive(&ParamTable::new()).unwrap();
            let name = drive.trim_start_matches("raid5-6x-");
            let mut params = ParamTable::from([("drive".to_owned(), written(&format!("\"{name}\"")))]);
            let kind = if disks > 1 { "raid5" } else { "hdd" };
            if disks > 1 {
                params.insert("disks".to_owned(), written("6"));
            }
            // The drive of a model and the set of the same name are the same.
            assert_eq!(find(kind).unwrap().derive(&params).unwrap(), set, "{drive}");
        }
    }
}
