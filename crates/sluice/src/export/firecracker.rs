//! `firecracker-json`: the part `drives` of Firecracker's configuration file. Each entry is also the body of a `PUT
//! /drives/ID`.
//!
//! Firecracker's API specification describes it under `Drive`, and a page on vhost-user block devices adds that such
//! a drive has a socket, no fields of a file, and a single queue.

use serde_json::{Value, json};

use super::{Disk, ExportError, Machine, Rendered};

pub(crate) fn render(disks: &[Disk<'_>], machine: &Machine<'_>) -> Result<Rendered, ExportError> {
    let drives = disks.iter().enumerate().map(|(number, disk)| {
        let (socket, _one_queue) = disk.vhost_user("Firecracker")?;
        let is_root = machine.root == Some(disk.volume);
        // Volume names may contain characters that drive ids must not contain.
        Ok(json!({ "drive_id": format!("sluice{number}"), "is_root_device": is_root, "socket": socket }))
    });
    let drives = drives.collect::<Result<Vec<Value>, ExportError>>()?;
    let text = serde_json::to_string_pretty(&json!({ "drives": drives })).expect("it is made of strings");
    Ok(Rendered { text, fields: vec![("drives", json!(drives))] })
}
