//! `firecracker-json`: the parts `drives` and `network-interfaces` of Firecracker's configuration file. Each entry is also the
//! body of a `PUT /drives/ID` or `PUT /network-interfaces/ID`.
//!
//! Firecracker's API specification describes it under `Drive`, and a page on vhost-user block devices adds that such
//! a drive has a socket, no fields of a file, and a single queue.

use serde_json::{Value, json};

use super::{CardLink, ExportError, Machine, Parts, Rendered};

const VMM: &str = "Firecracker";

pub(crate) fn render(parts: &Parts<'_>, machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let drives = parts.disks.iter().enumerate().map(|(number, disk)| {
        let (socket, _one_queue) = disk.vhost_user(VMM)?;
        let is_root = machine.root == Some(disk.volume);
        // Volume names may contain characters that drive ids must not contain.
        Ok(json!({ "drive_id": format!("sluice{number}"), "is_root_device": is_root, "socket": socket }))
    });
    let drives = drives.collect::<Result<Vec<Value>, ExportError>>()?;
    let cards = parts.cards.iter().map(|card| match card.link {
        CardLink::Tap(name) => {
            let id = format!("sluice{}", card.number);
            Ok(json!({ "iface_id": id, "guest_mac": card.mac.to_string(), "host_dev_name": name }))
        }
        CardLink::VhostUser { .. } => Err(ExportError::NoVhostUserNet { vmm: VMM, title: card.title.clone() }),
    });
    let cards = cards.collect::<Result<Vec<Value>, ExportError>>()?;
    let mut fields = vec![("drives", json!(drives))];
    if !cards.is_empty() {
        fields.push(("network-interfaces", json!(cards)));
    }
    let whole: serde_json::Map<_, _> = fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let text = serde_json::to_string_pretty(&whole).expect("it is made of strings");
    Ok(Rendered { text, fields })
}
