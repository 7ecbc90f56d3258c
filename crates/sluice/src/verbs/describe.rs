//! `sluice describe`

use clap::Args;
use serde_json::{Value, json};

use crate::control::Request;
use crate::control::client::Daemon;
use crate::output::rows::Form;
use crate::output::watch;
use crate::show::{list, object, text};
use sluice_daemon::failure::Failure;
use sluice_daemon::server::Blocks;

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
            let status = self.daemon.get(&Request::Status)?;
            let found = find(&status, &self.name)?;
            Ok(match form {
                Form::Json | Form::Jsonl | Form::Csv => {
                    let objects: Vec<&Value> = found.iter().map(|(_, object)| object).collect();
                    json!({ "ok": true, "version": 1, "objects": objects }).to_string()
                }
                Form::Table | Form::Wide => {
                    let described = found.iter().map(|found| described(found) + &blocks(found, &status));
                    described.collect::<Vec<_>>().join("\n\n")
                }
            })
        })
    }
}

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vm,
    Volume,
    Device,
}

fn described((kind, value): &(Kind, Value)) -> String {
    match kind {
        Kind::Vm => object::vm(text(&value["vm"]), value),
        Kind::Volume => object::vm(&format!("{}/{}", text(&value["vm"]), text(&value["volume"])), value),
        Kind::Device => object::device(value),
    }
}

/// Returns the line of a volume whose blocks are smaller than those of its disk.
fn blocks((kind, value): &(Kind, Value), status: &Value) -> String {
    let name = format!("{}/{}", text(&value["vm"]), text(&value["volume"]));
    let of = list(&status["bridged"]).iter().find(|bridged| *kind == Kind::Volume && bridged["volume"] == name);
    let number = |value: &Value| value.as_u64().and_then(|bytes| u32::try_from(bytes).ok());
    let of =
        of.and_then(|of| Some(Blocks { guest: number(&of["block_size"])?, disk: number(&of["disk_block_size"])? }));
    of.map_or(String::new(), |blocks| format!("\n{}", blocks.cost()))
}

fn find(status: &Value, name: &str) -> Result<Vec<(Kind, Value)>, Failure> {
    let (only, name) = match name.split_once(':') {
        Some(("vm", name)) => (Some(Kind::Vm), name),
        Some(("device" | "uplink", name)) => (Some(Kind::Device), name),
        _ => (None, name),
    };
    let is = |kind| only.is_none_or(|only| only == kind);
    let vms = list(&status["vms"]);
    let found: Vec<(Kind, Value)> = match name.split_once('/') {
        Some((vm, volume)) => {
            let volumes = vms.iter().flat_map(|vm| list(&vm["volumes"]));
            let known = volumes.filter(|known| known["vm"] == vm && known["volume"] == volume);
            known.map(|known| (Kind::Volume, known.clone())).collect()
        }
        None => {
            let vms = vms.iter().filter(|vm| is(Kind::Vm) && vm["vm"] == name).map(|vm| (Kind::Vm, vm.clone()));
            let devices = list(&status["devices"]).iter().filter(|device| is(Kind::Device) && device["device"] == name);
            vms.chain(devices.map(|device| (Kind::Device, device.clone()))).collect()
        }
    };
    if found.iter().any(|(kind, _)| *kind == Kind::Vm) && found.iter().any(|(kind, _)| *kind == Kind::Device) {
        let error = format!("{name} is a VM and a device; write vm:{name} or device:{name}");
        return Err(Failure::NotFound(error));
    }
    if found.is_empty() {
        let error = format!(
            "There is no VM, volume, NIC, device or uplink {name}; `sluice get vms`, `get volumes` and `get devices` list the names"
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
        let volume = json!({ "vm": "db", "volume": "root" });
        let status = json!({
            "vms": [{ "vm": "db", "volumes": [volume] }, { "vm": "both", "volumes": [] }],
            "devices": [{ "device": "nvme" }, { "device": "both" }],
        });
        let kinds = |name: &str| -> Option<Vec<Kind>> {
            find(&status, name).ok().map(|found| found.iter().map(|(kind, _)| *kind).collect())
        };
        assert_eq!(kinds("db"), Some(vec![Kind::Vm]));
        assert_eq!(kinds("db/root"), Some(vec![Kind::Volume]));
        assert_eq!(kinds("nvme"), Some(vec![Kind::Device]));
        assert_eq!(
            (kinds("both"), kinds("device:both"), kinds("vm:both")),
            (None, Some(vec![Kind::Device]), Some(vec![Kind::Vm]))
        );
        assert_eq!((kinds("other"), kinds("db/other"), kinds("device:db")), (None, None, None));
    }
}
