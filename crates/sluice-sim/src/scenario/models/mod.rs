//! Devices by name, as in a scenario: models with parameters, one file for each kind, and device presets.

use sluice_sched::params::{ParamError, ParamTable, Parameter};
use sluice_sched::scheduler::DeviceClass;

use crate::devices::Model;
use crate::devices::presets::{DEVICES, DevicePreset};
use crate::devices::ssd::States;
use crate::named::{check, parameter, parse, ranged};

pub use crate::devices::derived::Derived;

mod bucket;
mod disks;
mod flash;
mod linear;
mod link;
mod servers;

/// All models, by file.
pub const MODELS: &[&[ModelKind]] =
    &[servers::KINDS, bucket::KINDS, linear::KINDS, disks::KINDS, flash::KINDS, link::KINDS];

/// Description of a model.
pub struct ModelKind {
    /// Name in a scenario.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    pub device_class: DeviceClass,
    /// Parameters, with defaults as written in a scenario.
    pub parameters: &'static [&'static [Parameter]],
    derive: fn(&ParamTable) -> Result<Derived, ParamError>,
    build: fn(&ParamTable, &BuildContext, Option<&States>) -> Built,
}

/// A device, or the error of its parameters.
pub type Built = Result<Box<dyn Model>, ParamError>;

/// Input of a model from its run.
#[derive(Debug, Clone, Default)]
pub struct BuildContext {
    /// The run's seed.
    pub seed: u64,
    /// Name of its streams of random numbers.
    pub name: String,
}

/// A model or a preset.
#[derive(Clone, Copy)]
pub enum Known {
    /// A model.
    Model(&'static ModelKind),
    /// A preset.
    Preset(&'static DevicePreset),
}

/// All models and presets.
pub fn all() -> impl Iterator<Item = Known> {
    MODELS.iter().copied().flatten().map(Known::Model).chain(DEVICES.iter().map(Known::Preset))
}

/// The one with that name.
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
    /// Name in a scenario.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Known::Model(kind) => kind.name,
            Known::Preset(preset) => preset.name,
        }
    }

    /// Summary in one line.
    #[must_use]
    pub fn summary(&self) -> &'static str {
        match self {
            Known::Model(kind) => kind.summary,
            Known::Preset(preset) => preset.summary,
        }
    }

    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Known::Model(kind) => kind.all().collect(),
            Known::Preset(preset) => preset.own(kind_of(preset).all()),
        }
    }

    /// Properties that follow from these parameters, with defaults for the others. Builds no device.
    ///
    /// # Errors
    /// An unknown parameter, or an invalid value.
    pub fn derive(&self, params: &ParamTable) -> Result<Derived, ParamError> {
        match self {
            Known::Model(kind) => kind.derive(params),
            Known::Preset(preset) => kind_of(preset).derive(&preset.with(params)),
        }
    }

    /// Kind of the device.
    #[must_use]
    pub fn device_class(&self) -> DeviceClass {
        match self {
            Known::Model(kind) => kind.device_class,
            Known::Preset(preset) => kind_of(preset).device_class,
        }
    }

    /// Builds the device.
    ///
    /// # Errors
    /// As [`Known::derive`].
    pub fn build(&self, params: &ParamTable, context: &BuildContext) -> Result<Box<dyn Model>, ParamError> {
        self.build_from(params, context, None)
    }

    /// Builds the device; the state of an aged drive is kept in `states`, if given.
    ///
    /// # Errors
    /// As [`Known::derive`].
    pub fn build_from(&self, params: &ParamTable, context: &BuildContext, states: Option<&States>) -> Built {
        match self {
            Known::Model(kind) => kind.build(params, context, states),
            Known::Preset(preset) => kind_of(preset).build(&preset.with(params), context, states),
        }
    }
}

impl ModelKind {
    fn all(&self) -> impl Iterator<Item = Parameter> + use<> {
        self.parameters.iter().copied().flatten().copied()
    }

    fn check(&self, params: &ParamTable) -> Result<(), ParamError> {
        check(self.parameters.iter().copied().flatten(), params)
    }

    fn derive(&self, params: &ParamTable) -> Result<Derived, ParamError> {
        self.check(params)?;
        (self.derive)(params)
    }

    fn build(&self, params: &ParamTable, context: &BuildContext, states: Option<&States>) -> Built {
        self.check(params)?;
        (self.build)(params, context, states)
    }
}

/// The model of a preset.
fn kind_of(preset: &DevicePreset) -> &'static ModelKind {
    let mut all = MODELS.iter().copied().flatten();
    all.find(|kind| kind.name == preset.kind).expect("a test makes every set")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named::outside;
    use crate::scenario::written;

    #[test]
    fn documented_defaults_are_used() {
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
    fn bounds_of_models_were_stated_in_words_and_again_in_code() {
        let mut refused = 0;
        for known in all() {
            for parameter in known.parameters() {
                for value in outside(parameter.range) {
                    let stated = ParamTable::from([(parameter.name.to_owned(), value.clone())]);
                    let error = known.derive(&stated).expect_err("a value outside its range").to_string();
                    assert!(error.starts_with(&format!("{} is {value}; it must be from ", parameter.name)), "{error}");
                    let built = known.build(&stated, &BuildContext::default()).map(drop);
                    assert_eq!(built.unwrap_err().to_string(), error);
                    refused += 1;
                }
            }
        }
        assert!(refused > 100, "{refused}");
    }

    #[test]
    fn every_name_is_unique() {
        let mut names: Vec<&str> = all().map(|known| known.name()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }
}
