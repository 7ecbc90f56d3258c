//! Writes a host file for an imported VM.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use sluice_net::Mac;

use super::bandwidth::Nic;
use super::throttle::{Fields, Throttle};
use super::{Access, Disk, ImportError, Machine, valid_name};

/// A host file, and what has no counterpart in it.
#[derive(Debug)]
pub(crate) struct HostFile {
    pub(crate) text: String,
    pub(crate) warnings: Vec<String>,
}

/// Returns a host file for the VM. `origin` is what it was read from.
pub(crate) fn host_file(mut machine: Machine, origin: &str) -> Result<HostFile, ImportError> {
    if machine.disks.is_empty() {
        return Err(ImportError::NoDisks);
    }
    let mut warnings = std::mem::take(&mut machine.warnings);
    let shared = shared_throttle(&mut machine.disks, &mut warnings);
    let devices = devices(&machine.disks);
    let mut text = header(&machine, origin);
    if devices.len() > 1 {
        text.push_str("# A disk needs one [device]: join those below that are on the same disk.\n");
    }
    for (path, name) in &devices {
        let _ = write!(
            text,
            "\n[device.{name}]\npath = {}\n# capacity = \"...\"  # needed for reservations: docs/how-to/measure-capacity.md\n",
            quoted(path)
        );
    }
    let uplinks = uplinks(&machine.nics, &devices);
    for (bridge, name) in &uplinks {
        let _ = write!(
            text,
            "\n[uplink.{}]\nbridge = {}\n# rate = \"...\"  # of the wire: needed for reservations, and so that the daemon decides\n",
            key(name),
            quoted(bridge)
        );
    }
    let vm = key(&machine.name);
    let _ = write!(text, "\n[vm.{vm}]\n");
    if let Some(weight) = machine.weight {
        let _ =
            writeln!(text, "# From <blkiotune>: relative to other VMs, whose default here is 100.\nweight = {weight}");
    }
    if let Some((title, throttle)) = &shared {
        throttle_lines(&mut text, title, throttle, &mut warnings);
    }
    for disk in &machine.disks {
        let device = &devices[&device_path(disk)];
        volume(&mut text, &machine, disk, device);
        if !disk.throttle.is_empty() {
            throttle_lines(&mut text, &disk.name, &disk.throttle, &mut warnings);
        }
    }
    for card in &machine.nics {
        nic(&mut text, &machine, card, &uplinks[&card.bridge], &mut warnings);
    }
    Ok(HostFile { text: allowed_slow(text, &machine.name, &mut warnings), warnings })
}

fn header(machine: &Machine, origin: &str) -> String {
    let next = match machine.access {
        Access::Libvirt => {
            "# Then replace the disks of the domain by those of `sluice export libvirt-xml`: docs/how-to/first-vm-libvirt.md.\n"
        }
        Access::Nbd => {
            "# Then replace the disks of the VM by those of `sluice export qemu-args`: docs/how-to/proxmox.md.\n"
        }
    };
    format!(
        "# VM {}, imported from {}. Look through it, and try it with `sluice check`.\n{next}",
        machine.name,
        origin.replace(char::is_control, "?"),
    )
}

/// Takes a throttle that all disks share out of the disks: it becomes that of the VM, as does that of an only disk.
fn shared_throttle(disks: &mut [Disk], warnings: &mut Vec<String>) -> Option<(String, Throttle)> {
    if let [disk] = disks {
        if let Some(group) = &disk.group {
            warnings.push(format!("{}: group {group}: a limit is never shared with other VMs", disk.name));
        }
        let throttle = std::mem::take(&mut disk.throttle);
        return (!throttle.is_empty()).then(|| (disk.name.clone(), throttle));
    }
    let group = disks.iter().find_map(|disk| disk.group.clone())?;
    warnings.push(format!("Group {group}: a limit is never shared with other VMs"));
    if disks.iter().all(|disk| disk.group.as_ref() == Some(&group)) {
        let throttle = disks.iter().find(|disk| !disk.throttle.is_empty())?.throttle.clone();
        disks.iter_mut().for_each(|disk| disk.throttle = Throttle::default());
        return Some((format!("group {group}"), throttle));
    }
    warnings.push(format!(
        "Group {group}: a limit cannot be shared by only some disks of a VM; each disk of the group gets the whole limit"
    ));
    // libvirt states the values of a group at any of its disks.
    let known = |name: &str| {
        let mut of_group = disks.iter().filter(|disk| disk.group.as_deref() == Some(name));
        of_group.find(|disk| !disk.throttle.is_empty()).map(|disk| disk.throttle.clone())
    };
    let throttles: Vec<Option<Throttle>> = disks.iter().map(|disk| known(disk.group.as_deref()?)).collect();
    for (disk, throttle) in disks.iter_mut().zip(throttles) {
        if let Some(throttle) = throttle {
            disk.throttle = throttle;
        }
    }
    None
}

/// Returns the path that stands for the device of a disk: its folder, or the block device itself.
fn device_path(disk: &Disk) -> String {
    let folder = Path::new(&disk.source).parent().and_then(Path::to_str).unwrap_or("/");
    if disk.is_block { disk.source.clone() } else { folder.to_owned() }
}

/// Returns the name of each device. Whether two of them are on one disk is not known here.
fn devices(disks: &[Disk]) -> BTreeMap<String, String> {
    let mut paths: Vec<String> = disks.iter().map(device_path).collect();
    paths.sort();
    paths.dedup();
    let name = |number: usize| if number == 0 { "disk".to_owned() } else { format!("disk{}", number + 1) };
    paths.into_iter().enumerate().map(|(number, path)| (path, name(number))).collect()
}

/// Returns the name of the uplink of each bridge, which is no name of a device.
fn uplinks(nics: &[Nic], devices: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let name = |bridge: &str| {
        let name = valid_name(bridge);
        if devices.values().any(|device| *device == name) { format!("{name}-link") } else { name }
    };
    nics.iter().map(|nic| (nic.bridge.clone(), name(&nic.bridge))).collect()
}

fn nic(text: &mut String, machine: &Machine, nic: &Nic, uplink: &str, warnings: &mut Vec<String>) {
    let socket = quoted(&format!("/run/sluice/{}-{}.sock", machine.name, nic.name));
    let _ = write!(text, "\n[vm.{}.nic.{}]\nuplink = {}\n", key(&machine.name), key(&nic.name), quoted(uplink));
    let _ = writeln!(text, "socket = {socket}");
    if machine.access == Access::Libvirt {
        text.push_str("owner = \"libvirt-qemu\"\ngroup = \"kvm\"\n");
    }
    match &nic.mac {
        Some(mac) if mac.parse().is_ok_and(Mac::is_station) => {
            let _ = writeln!(text, "mac = {}", quoted(mac));
        }
        Some(mac) => warnings.push(format!("{}: '{mac}' is not the address of an interface; it is left out", nic.name)),
        None => {}
    }
    if let Some(vlan) = nic.vlan {
        let _ = writeln!(text, "vlan = {vlan}");
    }
    let _ = writeln!(text, "# From {}: {}.", nic.name, nic.stated.join(", ").replace(char::is_control, "?"));
    text.push_str("# A frame counts with the 24 bytes around it on the wire; before, the host counted without them.\n");
    for line in nic.lines(warnings) {
        let _ = writeln!(text, "{line}");
    }
}

fn volume(text: &mut String, machine: &Machine, disk: &Disk, device: &str) {
    let socket = quoted(&format!("/run/sluice/{}-{}.sock", machine.name, disk.name));
    let export = match machine.access {
        // Debian's names; "qemu" for both elsewhere.
        Access::Libvirt => {
            format!("type = \"vhost-user-blk\", socket = {socket}, owner = \"libvirt-qemu\", group = \"kvm\"")
        }
        Access::Nbd => format!("type = \"nbd\", socket = {socket}"),
    };
    let _ = write!(text, "\n[vm.{}.volume.{}]\ndevice = \"{device}\"\n", key(&machine.name), key(&disk.name));
    for note in &disk.notes {
        let _ = writeln!(text, "# {}", note.replace(char::is_control, "?"));
    }
    let _ = writeln!(text, "source = {}", quoted(&disk.source));
    if disk.read_only {
        text.push_str("read_only = true\n");
    }
    for line in &disk.keys {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "export = {{ {export} }}");
}

fn throttle_lines(text: &mut String, title: &str, throttle: &Throttle, warnings: &mut Vec<String>) {
    let Fields { lines, warnings: lost } = throttle.fields(title);
    warnings.extend(lost);
    let _ = writeln!(text, "# From {title}: {}.", throttle.stated.join(", ").replace(char::is_control, "?"));
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
}

/// Adds `allow_slow` if a limit is so low that the host file would otherwise be rejected.
fn allowed_slow(text: String, vm: &str, warnings: &mut Vec<String>) -> String {
    let Err(found) = sluice_config::parse("imported", &text) else { return text };
    if !found.to_string().contains("allow_slow") {
        return text;
    }
    warnings.push(
        "A limit is so low that requests may wait longer than 30 s, and guests may give up; allow_slow accepts it"
            .to_owned(),
    );
    let table = format!("[vm.{}]\n", key(vm));
    text.replacen(&table, &format!("{table}allow_slow = true  # guests may time out; better raise the limits\n"), 1)
}

/// Returns a key of TOML, in quotes if it needs them.
fn key(name: &str) -> String {
    if name.contains('.') { quoted(name) } else { name.to_owned() }
}

/// Returns a string of TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
