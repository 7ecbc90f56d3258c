//! Selection and order of the rows.

use std::cmp::Ordering;

use clap::ValueEnum;
use sluice_api::status::State;
use sluice_api::top::{Figures, Rates, Top, Vm};

use super::model::Name;

/// Orders of VMs. Equal ones are sorted by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Broken promises first, then by rate.
    #[default]
    Broken,
    Name,
    /// Highest rate first.
    Rate,
    /// Longest p99 first.
    Latency,
    /// Most outstanding requests first.
    Outstanding,
    /// Most CPU time of the daemon first.
    Cpu,
}

impl Sort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Sort::Broken => "broken first",
            Sort::Name => "name",
            Sort::Rate => "rate",
            Sort::Latency => "p99",
            Sort::Outstanding => "outstanding",
            Sort::Cpu => "CPU",
        }
    }

    fn compare(self, one: &Vm, other: &Vm) -> Ordering {
        let rates = |vm: &Vm| vm.now.rates.unwrap_or_default();
        let (a, b) = (rates(one), rates(other));
        let by_rate = b.iops.total_cmp(&a.iops);
        match self {
            Sort::Broken => rank(&one.now).cmp(&rank(&other.now)).then(by_rate),
            Sort::Name => Ordering::Equal,
            Sort::Rate => by_rate,
            Sort::Latency => b.p99_us.unwrap_or(-1.0).total_cmp(&a.p99_us.unwrap_or(-1.0)),
            Sort::Outstanding => other.now.outstanding.cmp(&one.now.outstanding),
            Sort::Cpu => other.cpu_percent.total_cmp(&one.cpu_percent),
        }
    }
}

/// The worst states first.
fn rank(figures: &Figures) -> u8 {
    match figures.state {
        Some(State::Broken) => 0,
        Some(State::Unknown) => 1,
        _ => 2,
    }
}

/// Selection of the rows of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    /// Part of a name, a device or a state; letters of either case are the same.
    pub(crate) filter: String,
    /// Devices with their VMs, and VMs with their volumes.
    pub(crate) tree: bool,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Row<'a> {
    Device { name: &'a str },
    Vm(&'a Vm),
    Volume { vm: &'a Vm, index: usize },
}

impl<'a> Row<'a> {
    /// Its name, unless it is a device.
    pub(crate) fn name(&self) -> Option<Name> {
        let (vm, volume) = match self {
            Row::Device { .. } => return None,
            Row::Vm(vm) => (vm, None),
            Row::Volume { vm, index } => (vm, Some(vm.volumes[*index].volume.clone())),
        };
        Some(Name { device: vm.device.clone(), vm: vm.vm.clone(), volume })
    }

    /// Whether this is its name. As `name`, without making one.
    pub(crate) fn is(&self, name: &Name) -> bool {
        let is_vm = |vm: &Vm| vm.vm == name.vm && vm.device == name.device;
        match self {
            Row::Device { .. } => false,
            Row::Vm(vm) => name.volume.is_none() && is_vm(vm),
            Row::Volume { vm, index } => name.volume.as_ref() == Some(&vm.volumes[*index].volume) && is_vm(vm),
        }
    }

    /// CPU time of the daemon, which is known of VMs.
    pub(crate) fn cpu_percent(&self) -> Option<f64> {
        match self {
            Row::Vm(vm) => Some(vm.cpu_percent),
            Row::Device { .. } | Row::Volume { .. } => None,
        }
    }

    pub(crate) fn figures(&self) -> Option<(&'a Figures, Rates)> {
        match self {
            Row::Device { .. } => None,
            Row::Vm(vm) => Some((&vm.now, vm.now.rates.unwrap_or_default())),
            Row::Volume { vm, index } => {
                let now = &vm.volumes[*index].now;
                Some((now, now.rates.or(vm.now.rates).unwrap_or_default()))
            }
        }
    }
}

/// The rows of a snapshot.
pub(crate) fn rows<'a>(snapshot: &'a Top, view: &View) -> Vec<Row<'a>> {
    let filter = view.filter.to_lowercase();
    let mut vms: Vec<&Vm> = snapshot.vms.iter().filter(|vm| filter.is_empty() || matches(vm, &filter)).collect();
    vms.sort_by(|one, other| {
        let order = view.sort.compare(one, other).then_with(|| one.vm.cmp(&other.vm));
        if view.reversed { order.reverse() } else { order }
    });
    if !view.tree {
        return vms.into_iter().map(Row::Vm).collect();
    }
    let mut rows = Vec::new();
    for device in &snapshot.devices {
        let name = device.device.as_str();
        rows.push(Row::Device { name });
        for vm in vms.iter().filter(|vm| vm.device == name) {
            rows.push(Row::Vm(vm));
            rows.extend((0..vm.volumes.len()).map(|index| Row::Volume { vm, index }));
        }
    }
    rows
}

/// Whether a VM has this text, in lower case, in its names or its state.
fn matches(vm: &Vm, text: &str) -> bool {
    let has = |name: &str| name.to_lowercase().contains(text);
    let state = vm.now.state.map_or("", State::name);
    let has_volume = |volume: &str| has(volume) || text.contains('/') && has(&format!("{}/{volume}", vm.vm));
    has(&vm.vm) || has(&vm.device) || has(state) || vm.volumes.iter().any(|volume| has_volume(&volume.volume))
}
