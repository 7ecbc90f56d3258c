//! `sluice check FILE`

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use sluice_config::{Device, Host};
use sluice_sched::admission::Part;
use sluice_sched::{ByteRate, Bytes, Iops, Percent};

use crate::output::{self, Format};
use sluice_daemon::failure::Failure;
use sluice_daemon::findings::{self, Finding, Level};
use sluice_daemon::{preflight, request_sizes};

mod as_user;
mod links;
mod outstanding;
mod udev;
mod unit;

/// Check a host file; report all errors, and what is reserved on each device and uplink.
///
/// Reads only the file. With --host it also looks at this host, and reports everything at once: whether each source exists, can
/// be opened directly, has its size, is on the disk of its device and is not locked; whether each socket can be made, with its
/// owner and group; whether each interface carries the MTU of its uplink; the state directory, the control socket and volumes that would be held back; limits and io_uring. It
/// changes nothing. Permissions are those of the user who runs it, or of the user of the unit `sluice.service` if root runs it and the unit has
/// one.
#[derive(Args)]
pub(crate) struct Check {
    /// Host file; files in the folder NAME.d next to NAME.toml override its keys.
    file: PathBuf,
    /// Look at this host too.
    #[arg(long)]
    host: bool,
    /// Print a drop-in for the unit of systemd that leaves the daemon only the folders and disks of the host file.
    #[arg(long, conflicts_with = "host")]
    unit: bool,
    /// Print rules of udev that give the disks of the host file to the user `sluice`.
    #[arg(long, conflicts_with_all = ["host", "unit"])]
    udev: bool,
    /// Look at this host with the rights of this user.
    #[arg(long, value_name = "USER", requires = "host")]
    user: Option<String>,
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
    /// The largest request with which reservations in requests are met; `None` if that is any, or not known.
    request_max: Option<Bytes>,
}

impl Check {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let (files, host) = sluice_config::load_files(&self.file).map_err(Failure::Config)?;
        for warning in &host.warnings {
            crate::output::message(warning);
        }
        if self.unit || self.udev {
            let (host, comment) = unit::with_attached(&files, host);
            let (key, text) = match self.unit {
                true => ("drop_in", unit::drop_in(&self.file, &host)),
                false => ("rules", udev::rules(&self.file, &host)),
            };
            let text = comment + &text;
            match format {
                Format::Json => output::json(&json!({ "ok": true, key: text })),
                Format::Table => output::line(text.trim_end()),
            }
            return Ok(());
        }
        if self.host {
            self.become_user()?;
        }
        let findings = self.host.then(|| preflight::look(&files, &host)).transpose()?;
        let is_ok = findings.as_ref().is_none_or(|findings| findings::worst(findings) < Level::Error);
        match format {
            Format::Json => print_json(&host, is_ok, findings.as_deref()),
            Format::Table => {
                print_table(&host);
                links::print(&host);
                findings.iter().for_each(|findings| findings::print(findings, format));
                if is_ok {
                    output::line("No errors");
                }
            }
        }
        is_ok.then_some(()).ok_or(Failure::No)
    }
}

impl Check {
    /// Goes on as the user of the daemon, if that is another one.
    fn become_user(&self) -> Result<(), Failure> {
        let is_root = rustix::process::geteuid().is_root();
        let rights = match &self.user {
            Some(user) if !is_root && sluice_io::users::user(user) != Some(rustix::process::geteuid().as_raw()) => {
                return Err(Failure::Run(
                    format!("Only root can look as user {user}; run this command as root").into(),
                ));
            }
            _ if !is_root => return Ok(()),
            Some(user) if sluice_io::users::user(user).is_none() => {
                return Err(Failure::NotFound(format!("There is no user {user} on this host")));
            }
            Some(user) if user == "root" => return Ok(()),
            Some(user) => as_user::Rights { user: user.clone(), ..Default::default() },
            None => match as_user::Rights::of_unit() {
                Some(rights) => rights,
                None => return Ok(()),
            },
        };
        output::message(format!("Looking with the rights of user {}", rights.user));
        let failed =
            |error| format!("Cannot run `setpriv`, which changes the user: {error}; install the package util-linux");
        rights.exec().map_err(|error| Failure::Run(failed(error).into()))
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
        request_max: request_sizes::request_max(host, device),
    }
}

fn print_json(host: &Host, is_ok: bool, findings: Option<&[Finding]>) {
    let devices: Vec<_> = host
        .devices
        .values()
        .map(|device| {
            let Promised { vms, volumes, iops, bytes, part, parts, floor, request_max } = promised(host, device);
            let parts: serde_json::Map<_, _> =
                parts.into_iter().map(|(vm, part)| (vm.to_owned(), json!(output::percent(part)))).collect();
            let mut found = json!({
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
                "reserved_iops_hold_up_to_bytes": request_max.map(|size| size.0),
                "vms": vms,
                "volumes": volumes,
            });
            outstanding::add_json(host, device, &mut found);
            found
        })
        .collect();
    let mut result = json!({ "ok": is_ok, "warnings": host.warnings, "devices": devices });
    links::add_json(&mut result, host);
    if let Some(findings) = findings {
        result["findings"] = json!(findings);
    }
    output::json(&result);
}

fn print_table(host: &Host) {
    let mut table = output::table(&["DEVICE", "SCHEDULER", "VMS", "VOLUMES", "CAPACITY", "RESERVED", "FLOOR"]);
    let mut of_vms = output::table(&["VM", "DEVICE", "PART"]);
    let mut notes = Vec::new();
    for device in host.devices.values() {
        let Promised { vms, volumes, iops, bytes, part, parts, floor, request_max } = promised(host, device);
        notes.extend(request_max.map(|size| request_sizes::note(device, size)));
        notes.extend(outstanding::notes(host, device));
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
    if host.uplinks.is_empty() || !host.devices.is_empty() {
        output::line(&table.to_string());
        output::line(&of_vms.to_string());
    }
    notes.iter().for_each(|note| output::line(note));
}

/// Joins requests and bytes, either of which may be absent.
fn both(requests: Option<String>, bytes: Option<String>) -> Option<String> {
    match (requests, bytes) {
        (Some(requests), Some(bytes)) => Some(format!("{requests}, {bytes}")),
        (one, other) => one.or(other),
    }
}
