//! `sluice describe`

use clap::Args;
use serde::Serialize;
use sluice_api::status::{Device, Status, Vm, Volume};
use sluice_daemon::failure::Failure;
use sluice_daemon::server::Blocks;

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::rows::{self, Form};
use crate::output::watch;
use crate::show::{Served, device, object};

/// Show everything that is known of a VM, a volume, a NIC, a device or an uplink.
///
/// A VM is shown once for each device that it uses. A name that a VM and a device share is written as vm:NAME or device:NAME.
#[derive(Args)]
pub(crate) struct Describe {
    /// VM, VM/VOLUME, VM/nic/NIC, DEVICE, or UPLINK.
    name: String,
    #[command(flatten)]
    watch: watch::Watch,
    #[command(flatten)]
    daemon: Daemon,
}

impl Describe {
    pub(crate) fn run(self, form: Form) -> Result<(), Failure> {
        self.watch.run(form, || {
            let status: Status = self.daemon.get(&Request::Status)?;
            let found = find(&status, &self.name)?;
            Ok(match form {
                Form::Json | Form::Jsonl | Form::Csv => rows::of_programs(Form::Json, "objects", &found),
                Form::Table | Form::Wide => {
                    let described = found.iter().map(|found| described(found, &status) + &blocks(found, &status));
                    described.collect::<Vec<_>>().join("\n\n")
                }
            })
        })
    }
}

/// An object with everything that is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
enum Found<'a> {
    Vm(&'a Vm),
    Volume(&'a Volume),
    Device(&'a Device),
}

fn described(found: &Found<'_>, status: &Status) -> String {
    let on = |served: Served<'_>| {
        let device = status.devices.iter().find(|device| device.device == served.device);
        let scheduler = device.and_then(|device| Some(device.settings.as_ref()?.scheduler.as_str()));
        object::vm(&Served { scheduler, ..served })
    };
    match *found {
        Found::Vm(vm) => on(vm.into()),
        Found::Volume(volume) => on(volume.into()),
        Found::Device(described) => device::described(described, &status.vms),
    }
}

/// Returns the line of a volume whose blocks are smaller than those of its disk.
fn blocks(found: &Found<'_>, status: &Status) -> String {
    let Found::Volume(volume) = found else { return String::new() };
    let id = volume.id();
    let of = status.bridged.iter().find(|bridged| bridged.volume == id);
    let blocks = of.map(|of| Blocks { guest: of.block_size, disk: of.disk_block_size });
    blocks.map_or(String::new(), |blocks| format!("\n{}", blocks.cost()))
}

fn find<'a>(status: &'a Status, name: &str) -> Result<Vec<Found<'a>>, Failure> {
    let (vms, devices, name) = match name.split_once(':') {
        Some(("vm", name)) => (true, false, name),
        Some(("device" | "uplink", name)) => (false, true, name),
        _ => (true, true, name),
    };
    let found: Vec<Found<'_>> = match name.split_once('/') {
        Some((vm, volume)) => {
            let known = status.volumes().filter(|known| known.vm == vm && known.volume == volume);
            known.map(Found::Volume).collect()
        }
        None => {
            let vms = status.vms.iter().filter(|vm| vms && vm.vm == name).map(Found::Vm);
            let devices = status.devices.iter().filter(|device| devices && device.device == name);
            vms.chain(devices.map(Found::Device)).collect()
        }
    };
    let is_vm = |found: &Found<'_>| matches!(found, Found::Vm(_));
    if found.iter().any(is_vm) && !found.iter().all(is_vm) {
        let error = format!("{name} is a VM and a device; write vm:{name} or device:{name}");
        return Err(Failure::NotFound(error));
    }
    if found.is_empty() {
        let what = match (vms, devices) {
            (true, false) => "VM",
            (false, true) => "device or uplink",
            _ => "VM, volume, NIC, device or uplink",
        };
        let error = format!(
            "There is no {what} {name}; `sluice get vms`, `get volumes` and `get devices` list the names, and \
             `sluice get policies` those of policies"
        );
        return Err(Failure::NotFound(error));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_finds_a_vm_a_volume_or_a_device() {
        let volume = Volume { vm: "db".to_owned(), volume: "root".to_owned(), ..Volume::default() };
        let vm = |vm: &str, volumes| Vm { vm: vm.to_owned(), volumes, ..Vm::default() };
        let device = |device: &str| Device { device: device.to_owned(), ..Device::default() };
        let (vms, devices) =
            (vec![vm("db", vec![volume]), vm("both", Vec::new())], vec![device("nvme"), device("both")]);
        let status = Status { vms, devices, ..Status::default() };
        let kinds = |name: &str| -> Option<Vec<&str>> {
            let kind = |found: &Found<'_>| match found {
                Found::Vm(_) => "vm",
                Found::Volume(_) => "volume",
                Found::Device(_) => "device",
            };
            find(&status, name).ok().map(|found| found.iter().map(kind).collect())
        };
        assert_eq!(kinds("db"), Some(vec!["vm"]));
        assert_eq!(kinds("db/root"), Some(vec!["volume"]));
        assert_eq!(kinds("nvme"), Some(vec!["device"]));
        assert_eq!(
            (kinds("both"), kinds("device:both"), kinds("vm:both")),
            (None, Some(vec!["device"]), Some(vec!["vm"]))
        );
        assert_eq!((kinds("other"), kinds("db/other"), kinds("device:db")), (None, None, None));
    }
}
