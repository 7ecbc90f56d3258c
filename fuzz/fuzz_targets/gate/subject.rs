//! The scheduler under test and its parameters.

use sluice_sched::guarantees::Guarantees;
use sluice_sched::params::{ParamTable, Parameter, Range, Value};
use sluice_sched::scheduler::{ChangeError, Descriptor, DeviceClass, DeviceInfo, Scheduler};
use sluice_sched::{Policy, schedulers};

use super::input::Input;

/// A scheduler with parameters that it accepts.
#[derive(Clone)]
pub struct Subject {
    pub descriptor: &'static Descriptor,
    pub params: ParamTable,
}

impl Subject {
    /// Returns mClock with its default parameters.
    pub fn product() -> Self {
        Subject { descriptor: &schedulers::mclock::DESCRIPTOR, params: ParamTable::new() }
    }

    /// Chooses a scheduler, half of the time mClock, and sets about a quarter of its parameters. A
    /// parameter that it rejects is left out.
    pub fn read(input: &mut Input<'_>) -> Self {
        let place = input.below(2 * sluice_papers::ALL.len());
        let mut subject = Subject::product();
        subject.descriptor = sluice_papers::ALL.get(place).unwrap_or(&subject.descriptor);
        if !input.one_in(2) {
            return subject;
        }
        for parameter in subject.descriptor.parameters {
            if !input.one_in(4) {
                continue;
            }
            let Some(value) = value(input, parameter) else { continue };
            subject.params.insert(parameter.name.to_owned(), value);
            if subject.descriptor.build(&DeviceInfo::default(), &subject.params).is_err() {
                subject.params.remove(parameter.name);
            }
        }
        subject
    }

    pub fn build(&self, info: &DeviceInfo) -> Box<dyn Scheduler> {
        self.descriptor.build(info, &self.params).expect("parameters that were accepted before")
    }

    /// The first kind of devices that the scheduler is for.
    pub fn device_class(&self) -> DeviceClass {
        self.descriptor.device_classes[0]
    }

    pub fn check_units(&self, policy: &Policy) -> Result<(), ChangeError> {
        self.descriptor.check_units(policy, self.device_class())
    }

    pub fn guarantees(&self, info: &DeviceInfo) -> Guarantees {
        (self.descriptor.guarantees)(info, &self.params)
    }
}

impl core::fmt::Display for Subject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {:?}", self.descriptor.name, self.params)
    }
}

/// Returns a value of the parameter's kind: an end of its range, a usual value, or an unusual one, which may be out
/// of range.
fn value(input: &mut Input<'_>, parameter: &Parameter) -> Option<Value> {
    let which = input.byte();
    if let (Some(ends), 0..=63) = (parameter.range.ends(), which) {
        return Some(ends[usize::from(which & 1)].clone());
    }
    let which = usize::from(which);
    let text = |texts: &[&str]| Some(Value::Text(texts[which % texts.len()].to_owned()));
    match parameter.range {
        Range::Any => None,
        Range::Words(words) => text(words),
        Range::Flag => Some(Value::Bool(which & 1 == 1)),
        Range::Number(least, most) => Some(Value::Integer((i64::from(least) + (which as i64 & 31)).min(most.into()))),
        Range::Decimal(least, most) => Some(Value::Float((least + which as f64 / 8.0).min(most))),
        Range::Requests(..) => text(&["100 iops", "0.001 iops", "1 iops", "100000 iops"]),
        Range::Time(..) => text(&["1ms", "0s", "1ns", "1us", "4ms", "6ms", "50ms", "333ms", "1s", "10s", "1h"]),
        Range::Size(..) => text(&["4KiB", "0B", "1B", "512B", "44KiB", "1MiB", "4MiB", "1GiB"]),
        Range::Rate(..) => text(&["100MB/s", "1KiB/s", "1GiB/s", "1TiB/s"]),
        Range::Percent(..) => text(&["2%", "0%", "0.01%", "10%", "50%", "100%"]),
    }
}
