//! One device or uplink, from top to bottom: what it is, what it gives, what is promised, who uses it.

use std::path::PathBuf;

use sluice_api::amount::{bits, counted, percent, rate, time};
use sluice_api::policy::Policy;
use sluice_api::status::{Capacity, Device, DeviceSettings, DeviceWindow, Vm};

use super::devices::verdict;
use sluice_daemon::explain::shares;

use super::{NOTHING, amount, object, operations, pool, throughput_of};
use crate::output;

/// Disks that are named.
const DISKS: usize = 8;
/// Consumers that are named.
const CONSUMERS: usize = 5;

/// Describes a device. `vms` are those of all devices.
pub(crate) fn described(device: &Device, vms: &[Vm]) -> String {
    let is_link = device.rates.are_of_link();
    let kind = if is_link { "Uplink" } else { "Device" };
    let mut lines = vec![format!("{kind} {}: {}", device.device, device.health.name())];
    lines.extend(device.problems.iter().map(|problem| format!("  It {problem}")));
    lines.push(String::new());
    let of_pool = device.pool.iter().flat_map(pool::pairs);
    lines.extend(pairs(device, is_link).into_iter().chain(of_pool).map(|(name, value)| format!("{name:<12}{value}")));
    lines.extend(device.pool.iter().flat_map(|pool| [String::new(), pool::hosts(pool)]));
    lines.extend([String::new(), object::rates(&device.rates)]);
    lines.extend([String::new(), consumers(device, vms, is_link)]);
    if !device.service_times.is_empty() {
        let mut table = output::table(&["KIND", "DEVICE P50", "DEVICE P99"]);
        for times in &device.service_times {
            table.add_row([times.kind.name().to_owned(), time(times.p50_us), time(times.p99_us)]);
        }
        lines.extend([String::new(), table.to_string()]);
    }
    lines.join("\n")
}

/// The path of a device, or all of them.
fn of_paths(settings: &DeviceSettings) -> String {
    let DeviceSettings { path, paths, .. } = settings;
    let all: &[PathBuf] = if paths.is_empty() { path.as_slice() } else { paths };
    let all: Vec<String> = all.iter().map(|path| path.display().to_string()).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Names and values of a device's settings and state, in the order in which an operator asks for them.
fn pairs(device: &Device, is_link: bool) -> Vec<(&'static str, String)> {
    let (settings, capacity) = (device.settings.clone().unwrap_or_default(), &device.capacity);
    let mut pairs = vec![
        (if is_link { "Interface" } else { "Path" }, of_paths(&settings)),
        (
            "Scheduler",
            settings.scheduler.clone()
                + &settings
                    .batch
                    .filter(|batch| *batch > 1)
                    .map_or(String::new(), |batch| format!(", batches of up to {batch} adjacent requests")),
        ),
        ("Depth", counted(device.depth.into(), "request", "requests")),
        ("Window", device.window.as_ref().map_or("none: `latency` is not stated".to_owned(), of_window)),
        ("Capacity", of_capacity(capacity, is_link)),
        ("Reserved", {
            let reserved =
                amounts(is_link, Some(capacity.reserved_iops), Some(capacity.reserved_bytes_per_second as f64));
            let most = settings.reservable_bytes_per_second.map(|bytes| bytes as f64);
            let most = amounts(is_link, settings.reservable_iops, most);
            if most == NOTHING { reserved } else { format!("{reserved}; at most {most}") }
        }),
        ("Now", {
            let now = &device.rates.second;
            let (unit, throughput) = if is_link { ("frames/s", "") } else { ("iops", " MiB/s") };
            format!(
                "{} {unit}, {}{throughput}, full {} of the time",
                operations(now),
                throughput_of(now),
                percent(device.full_percent)
            )
        }),
        ("Queue", format!("{} in flight, {} queued", device.in_flight, device.queued)),
        (
            "Thread",
            format!(
                "busy {}, late {} of the time",
                percent(device.thread_busy_percent),
                percent(device.thread_late_percent)
            ),
        ),
    ];
    if !settings.disks.is_empty() {
        let (names, all) = (&settings.disks, settings.disks.len());
        let some = names.iter().take(DISKS).cloned().collect::<Vec<_>>().join(", ");
        let more = if all > DISKS { format!(" and {} more", all - DISKS) } else { String::new() };
        pairs.insert(1, ("Disks", format!("{all}: {some}{more}")));
    }
    let clients = counted(device.clients.into(), "client", "clients");
    pairs.push(("Serves", format!("{}, {clients}", counted(device.vms.into(), "VM", "VMs"))));
    pairs
}

fn of_window(window: &DeviceWindow) -> String {
    let measured = window.measured_latency_us.map_or(NOTHING.to_owned(), |us| time(us as f64));
    let stated = time(window.latency_us as f64);
    format!("{:.1} requests; they take {measured} at the device, {stated} stated", window.requests)
}

fn of_capacity(capacity: &Capacity, is_link: bool) -> String {
    let stated = amounts(is_link, capacity.stated_iops, capacity.stated_bytes_per_second.map(|bytes| bytes as f64));
    let measured = amounts(is_link, capacity.measured_iops, capacity.measured_bytes_per_second);
    match (stated.as_str(), measured.as_str()) {
        (NOTHING, NOTHING) => "not stated".to_owned(),
        (NOTHING, _) => format!("not stated, measured {measured}"),
        (_, NOTHING) => format!("{stated} stated; {}", verdict(capacity.verdict)),
        _ => format!("{stated} stated, measured {measured}: {}", verdict(capacity.verdict)),
    }
}

/// Rates in requests and in bytes, without those that are 0.
fn amounts(is_link: bool, iops: Option<f64>, bytes: Option<f64>) -> String {
    if is_link {
        return bytes.map_or(NOTHING.to_owned(), |bytes| bits(8.0 * bytes));
    }
    let bytes = bytes.filter(|bytes| *bytes > 0.0).map(sluice_api::amount::bandwidth);
    let both: Vec<String> = iops.map(|iops| format!("{} iops", rate(iops))).into_iter().chain(bytes).collect();
    if both.is_empty() { NOTHING.to_owned() } else { both.join(", ") }
}

/// The VMs that get most of it.
fn consumers(device: &Device, vms: &[Vm], is_link: bool) -> String {
    let all = shares::of_device(&device.device, vms);
    if all.is_empty() {
        return "No VM has asked for anything in the last 10 s.".to_owned();
    }
    let mut table = output::table(&["TOP CONSUMERS", "PART", "IOPS", "BY", "RESERVED", "WEIGHT"]);
    let nothing = Policy::default();
    for one in all.iter().take(CONSUMERS) {
        let vm = vms.iter().find(|vm| vm.vm == one.vm && vm.device == device.device);
        let policy = vm.map_or(&nothing, |vm| &vm.policy);
        let bytes = policy.reservation_bytes_per_second.map(|bytes| bytes as f64);
        table.add_row([
            one.vm.clone(),
            percent(one.percent),
            rate(one.iops),
            one.by.name().to_owned(),
            amount(is_link, policy.reservation_iops, bytes),
            policy.weight.map_or(NOTHING.to_owned(), |weight| weight.to_string()),
        ]);
    }
    match all.len().saturating_sub(CONSUMERS) {
        0 => table.to_string(),
        more => format!("{table}\n and {more} more"),
    }
}
