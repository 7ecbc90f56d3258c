//! `firecracker-json`: the part `drives` of Firecracker's configuration file; each entry is also the body of a
//! `PUT /drives/ID`.
//!
//! Described in Firecracker's API specification under `Drive` and in its page on vhost-user block devices: such a drive
//! has a socket and none of a file's fields, and a single queue.

use serde_json::{Value, json};

use super::{Disk, ExportError, Machine, Rendered};

pub(crate) fn render(disks: &[Disk<'_>], machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let drives = disks.iter().enumerate().map(|(number, disk)| {
        let (socket, _one_queue) = disk.vhost_user("Firecracker")?;
        let is_root = machine.root == Some(disk.volume);
        // The names of volumes have characters that identifiers of drives have not.
        Ok(json!({ "drive_id": format!("sluice{number}"), "is_root_device": is_root, "socket": socket }))
    });
    let drives = drives.collect::<Result<Vec<Value>, ExportError>>()?;
    let text = serde_json::to_string_pretty(&json!({ "drives": drives })).expect("it is made of strings");
    Ok(Rendered { text, fields: vec![("drives", json!(drives))] })
}
