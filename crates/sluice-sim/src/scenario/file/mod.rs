//! The scenario file: modelled devices, VMs and their workloads, with the keys of the host file.
//!
//! ```toml
//! [sim]
//! duration = "60s"
//!
//! [device.disk]
//! model    = { type = "constant", rate = "1200 iops" }
//! capacity = "1200 iops"
//!
//! [vm.db1]
//! device      = "disk"
//! reservation = "250 iops"
//! workload    = { type = "closed", outstanding = 32 }
//! ```
//!
//! The result is a [`Scenario`]. A sweep is the same file with other values, and each combination is checked like the
//! file itself. All errors are reported together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::scenario::cpus::Host;
use crate::scenario::models::Derived;
use crate::scenario::{Event, Placement, Planned, Scenario, Settings, Source, VmEvent};
use sluice_sched::admission::{Capacity, Supply};
use sluice_sched::scheduler::DeviceClass;
use sluice_sched::{ByteRate, Iops, Percent};

use sluice_config::checks::admission::{Room, check_admission};
use sluice_config::checks::bursts::check_burst;
use sluice_config::checks::promises::{Unenforced, check_enforced, check_itself, check_sizes, check_units};
use sluice_config::diagnostics::{Diagnostic, Diagnostics, Report};
use sluice_config::dropins;
use sluice_config::policy::Part;
use sluice_config::reader::Reader;
use sluice_config::schema_of;
use sluice_config::source::{Sources, Span};
use sluice_config::tree::{Node, Table, Value};

mod choice;
mod count;
mod device;
pub mod fields;
mod host;
mod identity;
mod layout;
mod sweep;
mod timeline;
mod trace;
mod vm;

use device::Device;
use timeline::{Entry, What};
use vm::{Tables, Vm};

const DEVICES_MAX: usize = 256;
const POLICIES_MAX: usize = 10_000;
const VM_TABLES_MAX: usize = 10_000;
const NAMES_MAX: usize = 1000;
const CHANGES_MAX: usize = 100_000;
/// Maximum number of windows in the series of one run.
const WINDOWS_MAX: u128 = 1_000_000;

/// A scenario file without errors.
#[derive(Debug, Clone)]
pub struct ScenarioFile {
    /// The scenario as written.
    pub base: Loaded,
    /// Its sweep, if it has one.
    pub sweep: Option<Sweep>,
    /// Warnings.
    pub warnings: Vec<Diagnostic>,
}

/// A scenario, with its origin.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub scenario: Scenario,
    pub seed: u64,
    /// Properties that follow from each device's model.
    pub derived: Vec<Derived>,
    /// The file as JSON, with the values of a sweep.
    pub echo: serde_json::Value,
    /// Identity: equal for equal scenarios with any seed.
    pub identity: String,
}

/// Runs of a scenario with other values.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Number of seeds per point, starting at that of the scenario.
    pub seeds: u32,
    /// All combinations of values.
    pub points: Vec<Point>,
}

/// One combination of values.
#[derive(Debug, Clone)]
pub struct Point {
    /// Names of keys, and their values.
    pub values: Vec<(String, serde_json::Value)>,
    /// The scenario with these values.
    pub loaded: Loaded,
}

/// The schema of a scenario file, draft 2020-12.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_of("Sluicegate scenario file", &fields::SCENARIO)
}

/// Reads the scenario file at `path`.
///
/// # Errors
/// All errors of the file.
pub fn load_scenario(path: &Path) -> Result<ScenarioFile, Diagnostics> {
    let (mut sources, report) = (Sources::default(), Report::default());
    let tree = dropins::read_file(path, &mut sources, &report);
    check(&Arc::new(tree), path.parent().unwrap_or(Path::new("")), report, &sources)
}

/// Parses a scenario file in `folder`; diagnostics call it `name`.
///
/// # Errors
/// All errors of the file.
pub fn parse_scenario(name: &str, text: &str, folder: &Path) -> Result<ScenarioFile, Diagnostics> {
    let (mut sources, report) = (Sources::default(), Report::default());
    let tree = dropins::read_text(name, text.to_owned(), &mut sources, &report);
    check(&Arc::new(tree), folder, report, &sources)
}

fn check(tree: &Arc<Table>, folder: &Path, report: Report, sources: &Sources) -> Result<ScenarioFile, Diagnostics> {
    let scans = trace::Scans::default();
    let base = read(tree, folder, &scans, &report);
    let plan = sweep::read(&Reader::root(&report, "Scenario file", &fields::SCENARIO, tree), &fields::SWEEP);
    let sweep = match (&base, plan) {
        (Some(_), Some(plan)) => read_points(tree, folder, &scans, plan, &report),
        _ => None,
    };
    let errors = report.errors();
    let found = report.finish(sources);
    match base {
        Some(base) if errors == 0 => Ok(ScenarioFile { base, sweep, warnings: found.0 }),
        _ => Err(found),
    }
}

fn read_points(
    tree: &Arc<Table>,
    folder: &Path,
    scans: &trace::Scans,
    plan: sweep::Plan,
    report: &Report,
) -> Option<Sweep> {
    let mut points = Vec::new();
    for settings in plan.points {
        let mut tree = Table::clone(tree);
        for value in &settings {
            let path: Vec<&str> = value.path.iter().map(String::as_str).collect();
            if !tree.put(&path, value.node.clone()) {
                let name = value.path.join(".");
                let hint = "a key in its path is a value, not a table".to_owned();
                report.error(value.node.span, format!("[sweep]: {name} cannot be set"), hint);
                return None;
            }
        }
        let values = settings.iter().map(|value| (value.path.join("."), value.node.value.to_json())).collect();
        points.push(Point { values, loaded: read(&Arc::new(tree), folder, scans, report)? });
    }
    Some(Sweep { seeds: plan.seeds, points })
}

/// The parsed tables.
struct Draft {
    settings: Settings,
    seed: u64,
    host: Option<Host>,
    devices: BTreeMap<String, Device>,
    vms: BTreeMap<String, Vm>,
    timeline: Vec<Entry>,
}

/// Parses one scenario; `None` if it has an error.
fn read(tree: &Arc<Table>, folder: &Path, scans: &trace::Scans, report: &Report) -> Option<Loaded> {
    let before = report.errors();
    let root = Reader::root(report, "Scenario file", &fields::SCENARIO, tree);
    let draft = read_tables(&root, folder, scans)?;
    if report.is_incomplete() {
        return None;
    }
    check_promises(&draft, report);
    let loaded = assemble(&draft, report);
    if report.errors() > before {
        return None;
    }
    let (scenario, derived) = loaded?;
    let echo = identity::echo(tree);
    let identity = identity::identity(&echo, &scenario);
    Some(Loaded { scenario, seed: draft.seed, derived, echo, identity })
}

fn read_tables(root: &Reader<'_>, folder: &Path, scans: &trace::Scans) -> Option<Draft> {
    let (settings, seed, admission) = read_sim(root)?;
    let host = host::read(root);
    let devices_read = root.named("device", DEVICES_MAX, |name| format!("Device {name}"));
    let devices: BTreeMap<String, Device> = devices_read
        .iter()
        .map(|(name, reader)| ((*name).to_owned(), device::read(name, reader, folder, admission)))
        .collect();
    for (name, reader) in devices_read.iter().filter(|_| host.is_some()) {
        if devices[*name].nodes > 1 {
            reader.refuse("nodes", "devices on a host with CPUs must have one node", "remove [host] or nodes");
        }
        if devices[*name].hosts > 1 {
            reader.refuse("hosts", "the CPUs of [host] are those of one host", "remove [host] or hosts");
        }
    }
    let policies = root.named("policy", POLICIES_MAX, |name| format!("Policy {name}"));
    let policies: BTreeMap<String, Part> =
        policies.iter().map(|(name, reader)| ((*name).to_owned(), Part::read(reader))).collect();
    for (name, part) in &policies {
        check_itself(&format!("Policy {name}"), part, Span::default(), root.report);
    }
    let traces = root.named("trace", NAMES_MAX, |name| format!("Trace {name}"));
    let traces: BTreeMap<String, Reader<'_>> =
        traces.into_iter().map(|(name, reader)| (name.to_owned(), reader)).collect();
    let workloads = workloads(root);
    let tables = Tables {
        host: host.as_ref(),
        devices: &devices,
        policies: &policies,
        workloads,
        traces: &traces,
        folder,
        scans,
    };
    // Unused traces are also checked.
    traces.values().for_each(|reader| drop(trace::read(reader, folder, scans)));
    for (name, node) in &tables.workloads {
        vm::workload_of(&format!("Workload {name}"), node, root, &tables);
    }
    let readers = root.named("vm", VM_TABLES_MAX, |name| format!("VM {name}"));
    let stated = readers.iter().map(|(name, reader)| (*name, reader, vm::read(name, reader, &tables)));
    let (vms, groups) = count::expand(stated);
    let names = timeline::Names { end: settings.duration, vms: &groups, devices: &devices, policies: &policies };
    let entries = root.listed("timeline", CHANGES_MAX, |number| format!("[[timeline]] {number}"));
    let mut timeline: Vec<Entry> = entries.iter().filter_map(|reader| timeline::read(reader, &names)).collect();
    timeline.sort_by_key(|entry| entry.at);
    if vms.is_empty() {
        let hint = "add [device.disk] with a model and [vm.a] with a workload".to_owned();
        root.report.error(Span::FIRST, "There is no VM in it", hint);
    }
    Some(Draft { settings, seed, host, devices, vms, timeline })
}

/// Tables of named workloads.
fn workloads<'a>(root: &Reader<'a>) -> BTreeMap<String, &'a Node> {
    let Some(node) = root.node("workload") else { return BTreeMap::new() };
    let Value::Table(table) = &node.value else {
        root.wrong_kind("workload", node);
        return BTreeMap::new();
    };
    let named = table.entries.iter().map(|(name, node)| {
        root.check_name(name, node.key, &format!("Workload {name}"));
        (name.clone(), node)
    });
    named.collect()
}

fn read_sim(root: &Reader<'_>) -> Option<(Settings, u64, bool)> {
    if root.node("sim").is_none() && !root.report.is_incomplete() {
        root.report.error(Span::FIRST, "There is no [sim]", "add [sim] with duration = \"60s\"".to_owned());
    }
    let mut reader = root.table("sim")?;
    reader.whose = "[sim]".into();
    if reader.node("duration").is_none() {
        reader.missing("duration", "");
    }
    let warm_up = reader.time("warm_up").unwrap_or_default();
    let window = reader.time("window").unwrap_or(core::time::Duration::from_secs(1));
    let (seed, admission) = (reader.integer("seed").unwrap_or(1), reader.word("admission") != Some("off"));
    // Other errors of the file are reported even if these values are invalid.
    let duration = reader.time("duration").unwrap_or(warm_up + window);
    if warm_up >= duration {
        reader.refuse("warm_up", "nothing would be measured", "it must be shorter than duration");
    } else if (duration - warm_up).as_nanos() / window.as_nanos() > WINDOWS_MAX {
        reader.refuse("window", format!("the run would have more than {WINDOWS_MAX} windows"), "write a longer window");
    }
    Some((Settings { duration, warm_up, window }, seed, admission))
}

fn check_promises(draft: &Draft, report: &Report) {
    let mut parts: BTreeMap<&str, Part> = draft.vms.iter().map(|(name, vm)| (name.as_str(), vm.part.clone())).collect();
    for vm in draft.vms.values().filter(|vm| !vm.is_copy) {
        if vm.has_own {
            check_itself(&format!("VM {}", vm.name), &vm.part, vm.span, report);
        }
        check_part(vm, &vm.part, draft, report);
        check_burst_of(vm, &vm.part, draft, report);
    }
    for name in draft.devices.keys() {
        check_device(name, &parts, draft, report);
    }
    for entry in &draft.timeline {
        let What::Vm(names, timeline::VmChange::Policy(part, _)) = &entry.what else { continue };
        let before = report.errors();
        for name in names {
            let (vm, now) = (&draft.vms[name], in_force(&parts[name.as_str()], &entry.what));
            // VMs of one count have different policies only after changes of one of them. One error is enough.
            if report.errors() == before {
                check_itself(&format!("VM {name}, changed"), &now, entry.span, report);
                check_part(vm, part, draft, report);
                check_burst_of(vm, &now, draft, report);
            }
            parts.insert(name, now);
        }
        if let Some(device) = names.first().and_then(|name| draft.vms[name].device.as_ref()) {
            check_device(device, &parts, draft, report);
        }
    }
}

/// The policy of a VM after a change.
fn in_force(before: &Part, what: &What) -> Part {
    match what {
        What::Vm(_, timeline::VmChange::Policy(part, true)) => (**part).clone(),
        What::Vm(_, timeline::VmChange::Policy(part, false)) => before.overlaid((**part).clone()),
        _ => before.clone(),
    }
}

fn check_part(vm: &Vm, part: &Part, draft: &Draft, report: &Report) {
    let device = vm.device.as_ref().and_then(|name| draft.devices.get(name));
    if let Some(device) = device.filter(|device| !device.draft.broken && !part.broken) {
        check_sizes(part, &device.draft, report);
        check_enforced(part, false, &device.draft, &mut Unenforced::new(), report);
        check_units(part, &device.draft, report);
        check_across_nodes(vm, part, device, report);
    }
}

/// Reports of other nodes do not distinguish reads and writes, so limits that do cannot hold across nodes.
fn check_across_nodes(vm: &Vm, part: &Part, device: &Device, report: &Report) {
    let policy = part.policy();
    let by_direction = policy.read_limit.is_set() || policy.write_limit.is_set();
    if by_direction && device.reports_remote() && !matches!(vm.placement, Placement::Node(_)) {
        let message = format!("VM {}: read_limit and write_limit cannot hold across the nodes of its device", vm.name);
        let hint = "write placement = 0, or policies_hold = \"at-each-node\" in the device";
        report.error(vm.span, message, hint.to_owned());
    }
}

/// Checks the burst of a policy. If policies hold across nodes, the limit counts the service of all nodes, and a node
/// has no fixed part of the reservation, so nothing can be checked.
fn check_burst_of(vm: &Vm, part: &Part, draft: &Draft, report: &Report) {
    let device = vm.device.as_ref().and_then(|name| draft.devices.get(name));
    if let Some(device) = device.filter(|device| !device.draft.broken && !device.reports_remote()) {
        check_burst(part, false, &device.draft, report);
    }
}

fn check_device(name: &str, parts: &BTreeMap<&str, Part>, draft: &Draft, report: &Report) {
    let Some(device) = draft.devices.get(name).filter(|device| !device.draft.broken) else { return };
    let here = || draft.vms.values().filter(|vm| vm.device.as_deref() == Some(name));
    let of = |vm: &Vm| parts.get_key_value(vm.name.as_str()).map(|(name, part)| (*name, part));
    let fits = |room: &Room, counts: &dyn Fn(&Vm) -> bool| {
        let parts: Vec<(&str, &Part)> = here().filter(|vm| counts(vm)).filter_map(of).collect();
        check_admission(&device.draft, room, &parts, report)
    };
    let mut fit = !device.reports_remote() || fits(&device.room(), &|_| true);
    for node in 0..device.nodes {
        // If policies hold across nodes, a node must keep alone the reservations of VMs that are pinned to it.
        let counts = |vm: &Vm| match vm.placement {
            // All hosts share the capacity.
            Placement::Node(number) => number == node || device.hosts > 1,
            Placement::Uniform | Placement::RoundRobin => !device.reports_remote(),
        };
        fit = fit && fits(&device.room_of(node), &counts);
    }
}

/// Builds the scenario, if there are no errors.
fn assemble(draft: &Draft, report: &Report) -> Option<(Scenario, Vec<Derived>)> {
    let mut devices = Vec::new();
    let mut places: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, device) in &draft.devices {
        let (device, derived) = device.device.clone()?;
        let vms: Vec<&Vm> = draft.vms.values().filter(|vm| vm.device.as_ref() == Some(name)).collect();
        check_guests(name, &vms, report);
        if draft.devices[name].device_class == Some(DeviceClass::Network) {
            places.extend(vms.iter().map(|vm| (vm.name.as_str(), (0, 0))));
            devices.push((device, derived));
            continue;
        }
        for (vm, span) in vms.iter().zip(layout::lay(name, derived.span, &vms, report)) {
            let span = span?;
            layout::check_fit(vm, span.1, report);
            places.insert(&vm.name, span);
        }
        devices.push((device, derived));
    }
    let number = |name: &str| draft.devices.keys().position(|known| known == name);
    let paused = paused(&draft.timeline);
    let mut vms = Vec::new();
    for vm in draft.vms.values() {
        let ((source, _), (offset, size)) = (vm.source.clone()?, *places.get(vm.name.as_str())?);
        vms.push(crate::scenario::Vm {
            name: vm.name.clone(),
            device: number(vm.device.as_deref()?)?,
            placement: vm.placement,
            policy: vm.part.policy(),
            source,
            threads: vm.threads,
            guest: vm.guest.clone(),
            offset,
            size,
            direct: vm.direct,
            work: vm.work,
            starts_paused: paused.contains(vm.name.as_str()),
        });
    }
    let (devices, derived) = devices.into_iter().unzip();
    let (settings, host, timeline) = (draft.settings, draft.host, plan(draft));
    Some((Scenario { settings, host, devices, vms, timeline }, derived))
}

/// The VMs whose first event is their start; until then they submit nothing.
fn paused(timeline: &[Entry]) -> BTreeSet<&str> {
    let mut first: BTreeMap<&str, VmEvent> = BTreeMap::new();
    for entry in timeline {
        if let What::Vm(names, timeline::VmChange::Event(event)) = &entry.what {
            names.iter().for_each(|name| _ = first.entry(name).or_insert(*event));
        }
    }
    first.into_iter().filter(|(_, event)| *event == VmEvent::Start).map(|(name, _)| name).collect()
}

fn check_guests(device: &str, vms: &[&Vm], report: &Report) {
    let with = vms.iter().find(|vm| vm.guest.is_some());
    let without = vms.iter().find(|vm| vm.guest.is_none());
    if let (Some(with), Some(without)) = (with, without) {
        let message =
            format!("VM {}: guest is missing, but VM {} on the same device {device} has one", without.name, with.name);
        let span = if without.guest_at == Span::default() { without.span } else { without.guest_at };
        report.error(span, message, "add guest = { scheduler = \"noop\", ring = \"xen\" }".to_owned());
    }
}

fn plan(draft: &Draft) -> Vec<Planned> {
    let parts = draft.vms.iter().enumerate();
    let mut parts: BTreeMap<&str, (usize, Part)> =
        parts.map(|(number, (name, vm))| (name.as_str(), (number, vm.part.clone()))).collect();
    let mut planned = Vec::new();
    for entry in &draft.timeline {
        match &entry.what {
            What::Vm(names, change) => {
                for name in names {
                    let (number, part) = parts.get_mut(name.as_str()).expect("it was looked up");
                    let event = match change {
                        timeline::VmChange::Event(event) => *event,
                        timeline::VmChange::Policy(..) => {
                            *part = in_force(part, &entry.what);
                            VmEvent::Policy(part.policy())
                        }
                    };
                    planned.push(Planned { at: entry.at, event: Event::Vm(*number, event) });
                }
            }
            What::Device(name, node, event) => {
                let number = draft.devices.keys().position(|known| known == name).expect("it was looked up");
                planned.push(Planned { at: entry.at, event: Event::Device(number, *node, *event) });
            }
        }
    }
    planned
}

impl Loaded {
    /// Sum of the reservations of a device's VMs, in normalised requests per second.
    #[must_use]
    pub fn reserved(&self, device: usize) -> f64 {
        let here = self.scenario.vms.iter().filter(|vm| vm.device == device);
        here.filter_map(|vm| vm.policy.reservation.iops).map(Iops::as_f64).sum::<f64>() + 0.0
    }

    /// Sum of the reservations in bytes per second.
    #[must_use]
    pub fn reserved_bytes(&self, device: usize) -> f64 {
        let here = self.scenario.vms.iter().filter(|vm| vm.device == device);
        let rates = here.filter_map(|vm| vm.policy.reservation.bytes);
        rates.map(|rate| rate.bytes_per_second() as f64).sum::<f64>() + 0.0
    }

    /// Capacity against which the reservations of a device's VMs are admitted: all nodes if policies hold across them,
    /// otherwise each of them.
    #[must_use]
    pub fn supply(&self, device: usize) -> Supply {
        let device = &self.scenario.devices[device];
        let nodes = if device.reporting.is_some() { u64::from(device.nodes) } else { 1 };
        let Capacity { iops, bytes } = device.capacity;
        let capacity = Capacity {
            iops: iops.map(|iops| Iops::from_milli(iops.milli().saturating_mul(nodes))),
            bytes: bytes.map(|rate| ByteRate::per_second(rate.bytes_per_second().saturating_mul(nodes))),
        };
        let weight_floor = (device.scheduler.weight_floor)(&device.params);
        let reservable = Percent::WHOLE;
        Supply { capacity, weight_floor, reservable, device_class: device.gate.device_class }
    }

    /// Whether a VM replays a trace.
    #[must_use]
    pub fn trace(&self, vm: usize) -> Option<&crate::scenario::trace::Trace> {
        match &self.scenario.vms[vm].source {
            Source::Trace(trace) => Some(trace),
            Source::Workload(..) => None,
        }
    }
}
