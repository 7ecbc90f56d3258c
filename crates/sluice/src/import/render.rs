//! Writes a host file for an imported VM.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use sluice_net::Mac;

use super::bandwidth::Nic;
use super::throttle::{Fields, Throttle};
use super::{Access, Disk, ImportError, Limit, Machine, valid_name};

/// MTU of a NIC and of an uplink that state none.
const MTU: u16 = 1500;

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
    let shared = shared_limits(&mut machine.disks, &mut warnings);
    let devices = devices(&machine.disks);
    let mut text = header(&machine, origin);
    if devices.len() > 1 {
        text.push_str("# A disk needs one [device]: join those below that are on the same disk.\n");
    }
    for (path, name) in &devices {
        let _ = write!(
            text,
            "\n[device.{}]\npath = {}\n# capacity = \"...\"  # needed for reservations: docs/how-to/measure-capacity.md\n",
            key(name),
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
        let of_bridge = || machine.nics.iter().filter(|nic| nic.bridge == *bridge);
        if let Some(mtu) = of_bridge().filter_map(|nic| nic.mtu).max().filter(|mtu| *mtu > MTU) {
            let _ = writeln!(text, "mtu = {mtu}");
            let others = machine.nics.iter_mut().filter(|nic| nic.bridge == *bridge);
            others.for_each(|nic| nic.mtu = nic.mtu.or(Some(MTU)));
        }
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
    for disk in &mut machine.disks {
        let throttle = merged(disk.limits.drain(..));
        let device = &devices[&device_path(disk)];
        volume(&mut text, (&machine.name, machine.access), disk, device);
        if !throttle.is_empty() {
            throttle_lines(&mut text, &disk.name, &throttle, &mut warnings);
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

/// Takes the limits that all disks share out of the disks: they become those of the VM, as do those of an only disk.
fn shared_limits(disks: &mut [Disk], warnings: &mut Vec<String>) -> Option<(String, Throttle)> {
    if let [disk] = disks {
        let throttle = merged(disk.limits.drain(..));
        return (!throttle.is_empty()).then(|| (disk.name.clone(), throttle));
    }
    let groups: BTreeSet<String> =
        disks.iter().flat_map(|disk| disk.limits.iter().filter_map(|limit| limit.group.clone())).collect();
    let mut shared: Vec<(String, Throttle)> = Vec::new();
    for group in groups {
        let is = |limit: &Limit| limit.group.as_ref() == Some(&group);
        let members = disks.iter().filter(|disk| disk.limits.iter().any(is)).count();
        // libvirt states the values of an <iotune> group at any of its disks.
        let of_group = || disks.iter().flat_map(|disk| &disk.limits).filter(|limit| is(limit));
        let Some(throttle) = of_group().map(|limit| &limit.throttle).find(|throttle| !throttle.is_empty()).cloned()
        else {
            continue;
        };
        if members == disks.len() {
            disks.iter_mut().for_each(|disk| disk.limits.retain(|limit| !is(limit)));
            shared.push((format!("group {group}"), throttle));
            continue;
        }
        let limits = disks.iter_mut().flat_map(|disk| &mut disk.limits).filter(|limit| is(limit));
        limits.for_each(|limit| limit.throttle = throttle.clone());
        if members > 1 {
            warnings.push(format!(
                "Group {group}: a limit cannot be shared by only some disks of a VM; each disk of the group gets the whole limit"
            ));
        }
    }
    let (titles, throttles): (Vec<_>, Vec<_>) = shared.into_iter().unzip();
    let throttle = throttles.into_iter().fold(Throttle::default(), Throttle::and);
    (!throttle.is_empty()).then(|| (titles.join(", "), throttle))
}

/// Returns one throttle for all of these, which apply together.
fn merged(limits: impl Iterator<Item = Limit>) -> Throttle {
    limits.map(|limit| limit.throttle).fold(Throttle::default(), Throttle::and)
}

/// Returns the path that stands for the device of a disk: its folder, or the block device itself.
fn device_path(disk: &Disk) -> String {
    let folder = Path::new(&disk.source).parent().and_then(Path::to_str).unwrap_or("/");
    if disk.is_block { disk.source.clone() } else { folder.to_owned() }
}

/// Maximum length of a device's name before a number is added.
const DEVICE_NAME_MAX: usize = 56;

/// Returns the name of each device: its path, so that the files of several VMs may be drop-ins of one host file. Whether two
/// devices are on one disk is not known here.
fn devices(disks: &[Disk]) -> BTreeMap<String, String> {
    let mut paths: Vec<String> = disks.iter().map(device_path).collect();
    paths.sort();
    paths.dedup();
    let mut used = BTreeSet::new();
    let mut name = |path: &str| {
        let name = device_name(path);
        let more = (2..).map(|number| format!("{name}-{number}"));
        let name = [name.clone()].into_iter().chain(more).find(|name| !used.contains(name)).expect("it has no end");
        used.insert(name.clone());
        name
    };
    paths.into_iter().map(|path| (name(&path), path)).map(|(name, path)| (path, name)).collect()
}

/// Returns a path as a name: `srv-vm` for `/srv/vm`. A long path loses its beginning.
fn device_name(path: &str) -> String {
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    let path = words.join("-");
    let start = path.char_indices().rev().nth(DEVICE_NAME_MAX - 1).map_or(0, |(at, _)| at);
    if path.is_empty() { "root".to_owned() } else { valid_name(path[start..].trim_start_matches('-')) }
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
    let numbers = [("mtu", nic.mtu), ("queues", nic.queues.map(u16::from))];
    for (key, number) in numbers.into_iter().filter_map(|(key, number)| Some((key, number?))) {
        let _ = writeln!(text, "{key} = {number}");
    }
    let _ = writeln!(text, "# From {}: {}.", nic.name, nic.stated.join(", ").replace(char::is_control, "?"));
    text.push_str("# A frame counts with the 24 bytes around it on the wire; before, the host counted without them.\n");
    for line in nic.lines(warnings) {
        let _ = writeln!(text, "{line}");
    }
}

fn volume(text: &mut String, (vm, access): (&str, Access), disk: &Disk, device: &str) {
    let socket = quoted(&format!("/run/sluice/{vm}-{}.sock", disk.name));
    let export = match access {
        // Debian's names; "qemu" for both elsewhere.
        Access::Libvirt => {
            let queues = disk.queues.map_or(String::new(), |queues| format!(", queues = {queues}"));
            format!("type = \"vhost-user-blk\", socket = {socket}, owner = \"libvirt-qemu\", group = \"kvm\"{queues}")
        }
        Access::Nbd => format!("type = \"nbd\", socket = {socket}"),
    };
    let _ = write!(text, "\n[vm.{}.volume.{}]\ndevice = \"{device}\"\n", key(vm), key(&disk.name));
    for note in &disk.notes {
        let _ = writeln!(text, "# {}", note.replace(char::is_control, "?"));
    }
    let _ = writeln!(text, "source = {}", quoted(&disk.source));
    if disk.read_only {
        text.push_str("read_only = true\n");
    }
    for key in &disk.keys {
        let _ = writeln!(text, "{key}");
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
