//! Devices by name, as a scenario states them: models that are a few numbers, one file for each kind, and device sets.

use sluice_sched::params::{ParamError, ParamTable, Parameter};
use sluice_sched::scheduler::Medium;

use crate::devices::Model;
use crate::devices::presets::{DEVICES, DevicePreset};
use crate::devices::ssd::States;
use crate::named::{parameter, parse};

pub use crate::devices::derived::Derived;

mod bucket;
mod disks;
mod flash;
mod linear;
mod link;
mod servers;

/// Every model, by the file in which it is.
pub const MODELS: &[&[ModelKind]] =
    &[servers::KINDS, bucket::KINDS, linear::KINDS, disks::KINDS, flash::KINDS, link::KINDS];

/// What is known of a model beside what it does.
pub struct ModelKind {
    /// What a scenario calls it.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// What can be changed; the defaults are written as a scenario would write them.
    pub parameters: &'static [&'static [Parameter]],
    derive: fn(&ParamTable) -> Result<Derived, ParamError>,
    build: fn(&ParamTable, &BuildContext, Option<&States>) -> Built,
}

/// A device, or what is wrong with its parameters.
pub type Built = Result<Box<dyn Model>, ParamError>;

/// What a model needs of the run for which it is made.
#[derive(Debug, Clone, Default)]
pub struct BuildContext {
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
    Preset(&'static DevicePreset),
}

/// All of them.
pub fn all() -> impl Iterator<Item = Known> {
    MODELS.iter().copied().flatten().map(Known::Model).chain(DEVICES.iter().map(Known::Preset))
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
            Known::Preset(preset) => preset.name,
        }
    }

    /// What it is, in a line.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Known::Model(kind) => kind.summary,
            Known::Preset(preset) => preset.summary,
        }
    }

    /// Every parameter.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Known::Model(kind) => kind.all().collect(),
            Known::Preset(preset) => preset.own(kind_of(preset).all()),
        }
    }

    /// What follows from these parameters; those that are not stated have their defaults. No device is made for that.
    ///
    /// # Errors
    /// A parameter that does not exist, or has a value that cannot be.
    pub fn derive(&self, params: &ParamTable) -> Result<Derived, ParamError> {
        match self {
            Known::Model(kind) => (kind.derive)(params),
            Known::Preset(preset) => (kind_of(preset).derive)(&preset.with(params)),
        }
    }

    /// What kind of device it is.
    #[must_use]
    pub fn medium(&self) -> Medium {
        match self {
            Known::Model(kind) if link::KINDS.iter().any(|known| known.name == kind.name) => Medium::Network,
            _ => Medium::Disk,
        }
    }

    /// A device.
    ///
    /// # Errors
    /// As [`Known::derive`].
    pub fn build(&self, params: &ParamTable, context: &BuildContext) -> Result<Box<dyn Model>, ParamError> {
        self.build_from(params, context, None)
    }

    /// A device, of which an aged state is kept there, if it has one.
    ///
    /// # Errors
    /// As [`Known::derive`].
    pub fn build_from(&self, params: &ParamTable, context: &BuildContext, states: Option<&States>) -> Built {
        match self {
            Known::Model(kind) => (kind.build)(params, context, states),
            Known::Preset(preset) => (kind_of(preset).build)(&preset.with(params), context, states),
        }
    }
}

impl ModelKind {
    fn all(&self) -> impl Iterator<Item = Parameter> + use<> {
        self.parameters.iter().copied().flatten().copied()
    }
}

/// The model that a set is.
fn kind_of(preset: &DevicePreset) -> &'static ModelKind {
    let mut all = MODELS.iter().copied().flatten();
    all.find(|kind| kind.name == preset.kind).expect("a test makes every set")
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
    }
}
