//! `sluice check FILE`

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use sluice_config::{Device, Host};
use sluice_sched::Iops;

use crate::failure::Failure;
use crate::output::{self, Format};

/// Say everything that is wrong with a host file, and what it promises.
///
/// Looks at the file alone; whether its disks and sockets are there is seen when it is served.
#[derive(Args)]
pub(crate) struct Check {
    /// The host file; the files in the folder NAME.d beside NAME.toml are laid over it.
    file: PathBuf,
}

/// What is promised on one device.
struct Promised {
    vms: usize,
    volumes: usize,
    reserved: f64,
}

impl Check {
    pub(crate) fn run(self, format: Format) -> Result<(), Failure> {
        let host = sluice_config::load(&self.file).map_err(Failure::Config)?;
        for warning in &host.warnings {
            anstream::eprintln!("{warning}");
        }
        match format {
            Format::Json => print_json(&host),
            Format::Table => print_table(&host),
        }
        Ok(())
    }
}

fn promised(host: &Host, device: &Device) -> Promised {
    let here = |vm: &&sluice_config::Vm| vm.volumes.values().any(|volume| volume.device == device.name);
    let volumes = host.vms.values().flat_map(|vm| vm.volumes.values());
    Promised {
        vms: host.vms.values().filter(here).count(),
        volumes: volumes.filter(|volume| volume.device == device.name).count(),
        reserved: host
            .vms
            .values()
            .filter(here)
            .filter_map(|vm| vm.policy.reservation.iops)
            .map(Iops::as_f64)
            .fold(0.0, |sum, iops| sum + iops),
    }
}

fn print_json(host: &Host) {
    let devices: Vec<_> = host
        .devices
        .values()
        .map(|device| {
            let Promised { vms, volumes, reserved } = promised(host, device);
            json!({
                "device": device.name,
                "scheduler": device.scheduler.name,
                "depth": device.depth,
                "reference_size_bytes": device.reference.0,
                "capacity_iops": device.capacity.iops.map(Iops::as_f64),
                "reserved_iops": reserved,
                "vms": vms,
                "volumes": volumes,
            })
        })
        .collect();
    output::json(&json!({ "ok": true, "warnings": host.warnings, "devices": devices }));
}

fn print_table(host: &Host) {
    let mut table = output::table(&["DEVICE", "SCHEDULER", "VMS", "VOLUMES", "CAPACITY", "RESERVED"]);
    for device in host.devices.values() {
        let Promised { vms, volumes, reserved } = promised(host, device);
        let capacity = device.capacity.iops.map_or("not stated".to_owned(), |iops| iops.to_string());
        table.add_row([
            device.name.clone(),
            device.scheduler.name.to_owned(),
            vms.to_string(),
            volumes.to_string(),
            format!("{capacity}@{}", device.reference),
            format!("{reserved} iops@{}", device.reference),
        ]);
    }
    output::line(&table.to_string());
    output::line("No errors");
}
