//! `sluice check FILE`

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use sluice_config::{Device, Host};
use sluice_sched::admission::Part;
use sluice_sched::{ByteRate, Iops, Percent};

use crate::failure::Failure;
use crate::output::{self, Format};

/// Check a host file; report all errors, and the capacity reserved on each device.
///
/// Reads only the file. `sluice serve` checks that its disks and sockets can be opened.
#[derive(Args)]
pub(crate) struct Check {
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: PathBuf,
}

/// Guarantees on one device.
struct Promised<'a> {
    vms: usize,
    volumes: usize,
    iops: f64,
    bytes: u64,
    /// The reserved part of the device; `None` if its capacity is not stated.
    part: Option<Part>,
    /// The reserved part of each VM.
    parts: Vec<(&'a str, Option<Part>)>,
    /// The part that admission control leaves free.
    floor: Percent,
}

impl Check {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let host = sluice_config::load(&self.file).map_err(Failure::Config)?;
        for warning in &host.warnings {
            crate::output::message(warning);
        }
        match format {
            Format::Json => print_json(&host),
            Format::Table => print_table(&host),
        }
        Ok(())
    }
}

fn promised<'a>(host: &'a Host, device: &Device) -> Promised<'a> {
    let here = |vm: &&std::sync::Arc<sluice_config::Vm>| vm.volumes.values().any(|volume| volume.device == device.name);
    let volumes = host.vms.values().flat_map(|vm| vm.volumes.values());
    let reservations = || host.vms.values().filter(here).map(|vm| vm.policy.reservation);
    let supply = device.supply();
    Promised {
        vms: host.vms.values().filter(here).count(),
        volumes: volumes.filter(|volume| volume.device == device.name).count(),
        iops: reservations().filter_map(|reserved| reserved.iops).map(Iops::as_f64).fold(0.0, |sum, iops| sum + iops),
        bytes: reservations()
            .filter_map(|reserved| reserved.bytes)
            .fold(0, |sum, rate| rate.bytes_per_second().saturating_add(sum)),
        part: supply.reserved(host.vms.values().filter(here).map(|vm| &vm.policy)),
        parts: host.vms.values().filter(here).map(|vm| (vm.name.as_str(), supply.reserved([&vm.policy]))).collect(),
        floor: supply.weight_floor,
    }
}

fn print_json(host: &Host) {
    let devices: Vec<_> = host
        .devices
        .values()
        .map(|device| {
            let Promised { vms, volumes, iops, bytes, part, parts, floor } = promised(host, device);
            let parts: serde_json::Map<_, _> =
                parts.into_iter().map(|(vm, part)| (vm.to_owned(), json!(output::percent(part)))).collect();
            json!({
                "device": device.name,
                "scheduler": device.scheduler.name,
                "depth": device.depth,
                "reference_size_bytes": device.reference.0,
                "capacity_iops": device.capacity.iops.map(Iops::as_f64),
                "bandwidth_bytes_per_second": device.capacity.bytes.map(ByteRate::bytes_per_second),
                "reserved_iops": iops,
                "reserved_bytes_per_second": bytes,
                "reserved_percent": output::percent(part),
                "reserved_percent_of_vms": parts,
                "weight_floor_percent": floor.hundredths() as f64 / 100.0,
                "vms": vms,
                "volumes": volumes,
            })
        })
        .collect();
    output::json(&json!({ "ok": true, "warnings": host.warnings, "devices": devices }));
}

fn print_table(host: &Host) {
    let mut table = output::table(&["DEVICE", "SCHEDULER", "VMS", "VOLUMES", "CAPACITY", "RESERVED", "FLOOR"]);
    let mut of_vms = output::table(&["VM", "DEVICE", "PART"]);
    for device in host.devices.values() {
        let Promised { vms, volumes, iops, bytes, part, parts, floor } = promised(host, device);
        for (vm, part) in parts {
            let part = part.map_or_else(|| "not stated".to_owned(), |part| part.to_string());
            of_vms.add_row([vm.to_owned(), device.name.clone(), part]);
        }
        let in_requests = |iops: String| format!("{iops}@{}", device.reference);
        let requests = device.capacity.iops.map(|iops| in_requests(iops.to_string()));
        let bandwidth = device.capacity.bytes.map(|bytes| bytes.to_string());
        let capacity = both(requests, bandwidth).unwrap_or_else(|| "not stated".to_owned());
        let bytes = (bytes > 0).then(|| ByteRate::per_second(bytes).to_string());
        let reserved = both(Some(in_requests(format!("{iops} iops"))), bytes).expect("one of them is there");
        let part = part.map_or_else(String::new, |part| format!(" ({part})"));
        table.add_row([
            device.name.clone(),
            device.scheduler.name.to_owned(),
            vms.to_string(),
            volumes.to_string(),
            capacity,
            reserved + &part,
            floor.to_string(),
        ]);
    }
    output::line(&table.to_string());
    output::line(&of_vms.to_string());
    output::line("No errors");
}

/// Joins requests and bytes, either of which may be absent.
fn both(requests: Option<String>, bytes: Option<String>) -> Option<String> {
    match (requests, bytes) {
        (Some(requests), Some(bytes)) => Some(format!("{requests}, {bytes}")),
        (one, other) => one.or(other),
    }
}
