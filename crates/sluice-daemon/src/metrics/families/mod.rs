//! The list of metrics. A metric is one entry of the file of what it is about.

use std::fmt;

use prometheus_client::metrics::MetricType;
use sluice_api::event::EventKind;
use sluice_observe::reading::{DeviceReading, VmReading};
use sluice_observe::sample::{VmSample, VolumeSample};

use super::State;
use super::series::Series;

mod device;
mod host;
mod nic;
mod pool;
mod vm;
mod volume;

/// A metric.
#[derive(Debug)]
pub struct Family {
    /// Name of its series.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Names of its labels.
    pub(super) labels: &'static [&'static str],
    /// The measured quantity; a sentence without its full stop.
    pub(super) help: &'static str,
    pub(super) samples: Samples,
}

/// The series of a metric.
#[derive(Debug)]
pub(super) enum Samples {
    /// One for each device that has a value.
    Device(fn(&DeviceReading) -> Option<Value>),
    /// One for each VM on each device that has a value.
    Vm(fn(&VmSample) -> Option<Value>),
    /// Those that the function adds.
    Of(fn(&State, &mut Series<'_>) -> fmt::Result),
}

/// The value of a series.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Count(u64),
    Amount(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Value::Count(count)
    }
}

impl From<f64> for Value {
    fn from(amount: f64) -> Self {
        Value::Amount(amount)
    }
}

impl From<bool> for Value {
    fn from(holds: bool) -> Self {
        Value::Count(holds.into())
    }
}

/// Kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    /// Times, in seconds.
    Histogram,
}

impl Family {
    /// Adds its series.
    pub(super) fn add(&self, state: &State, series: &mut Series<'_>) -> fmt::Result {
        match self.samples {
            Samples::Of(add) => add(state, series),
            Samples::Device(value) => {
                let mut devices = state.reading.devices.iter();
                devices.try_for_each(|device| series.value(&[&device.sample.device], value(device)))
            }
            Samples::Vm(value) => vms(state).try_for_each(|(device, vm, _)| series.value(&[device, &vm.vm], value(vm))),
        }
    }

    /// The name without the suffix of a counter, which the format adds.
    pub(super) fn base(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }
}

impl Kind {
    pub(super) fn metric_type(self) -> MetricType {
        match self {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
    }
}

/// Each VM on each device: its device, its sample, and the state of its promises.
fn vms(state: &State) -> impl Iterator<Item = (&str, &VmSample, &VmReading)> {
    state.reading.devices.iter().flat_map(|device| {
        let vms = device.sample.vms.iter().zip(&device.vms);
        vms.map(|(sample, reading)| (device.sample.device.as_str(), sample, reading))
    })
}

/// A volume or NIC of a VM.
struct VolumeRow<'a> {
    /// Its device, its VM and its name.
    labels: [&'a str; 3],
    vm: &'a VmSample,
    sample: &'a VolumeSample,
    /// Kinds of requests, and the source, that fail now.
    failing: &'a [EventKind],
}

/// Each volume and NIC of each VM on each device.
fn volumes(state: &State) -> impl Iterator<Item = VolumeRow<'_>> {
    vms(state).flat_map(|(device, vm, reading)| {
        vm.volumes.iter().enumerate().map(move |(index, sample)| VolumeRow {
            labels: [device, &vm.vm, &sample.volume],
            vm,
            sample,
            failing: reading.failing.get(index).map_or(&[], Vec::as_slice),
        })
    })
}

/// Every metric, in the order of the text.
pub fn all() -> impl Iterator<Item = &'static Family> {
    let devices = host::FAMILIES.iter().chain(device::FAMILIES).chain(pool::FAMILIES);
    devices.chain(vm::FAMILIES).chain(volume::FAMILIES).chain(nic::FAMILIES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use std::path::Path;

    use super::*;

    /// Begin and end of the table in the manual.
    const MARKS: [&str; 2] =
        ["<!-- metrics: made by `SLUICE_BLESS=1 cargo test -p sluice metrics` -->\n", "<!-- end -->\n"];

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        let mut names = BTreeSet::new();
        for family in all() {
            let name = family.name;
            assert!(names.insert(name), "{name} is listed twice");
            assert!(name.starts_with("sluice_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), family.kind == Kind::Counter, "{name}");
            assert!(family.kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(!family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
        }
    }

    #[test]
    fn the_manual_lists_every_metric() {
        let mut table = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
        for Family { name, kind, labels, help, .. } in all() {
            let kind = format!("{kind:?}").to_lowercase();
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(table, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/monitoring.md");
        let page = std::fs::read_to_string(&path).expect("the manual has the page");
        let (before, rest) = page.split_once(MARKS[0]).expect("the page has the table's begin");
        let (listed, after) = rest.split_once(MARKS[1]).expect("the page has the table's end");
        if std::env::var_os("SLUICE_BLESS").is_some() {
            std::fs::write(path, [before, MARKS[0], &table, MARKS[1], after].concat()).expect("it can be written");
        } else {
            assert_eq!(listed, table, "run SLUICE_BLESS=1 cargo test -p sluice metrics");
        }
    }
}
