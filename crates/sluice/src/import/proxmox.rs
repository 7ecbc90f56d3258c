//! `proxmox-conf`: a VM of Proxmox VE. The keys of its disks are in the manual page qm.conf(5).

use super::bandwidth::Nic;
use super::known::{Check, Property, damages, harmless, known, left_out, lost};
use super::throttle::{Direction, Part, Throttle, Unit, number};
use super::{
    Access, Disk, ImportError, Limit, Machine, drop_equal_serials, guest_keys, mtu, not_raw, queues, valid_name,
};

/// Disk controllers. `efidisk`, `tpmstate` and `unused` are not disks of the guest.
const BUSES: [&str; 4] = ["scsi", "virtio", "sata", "ide"];
const MIB: u64 = 1 << 20;
/// Values of an option that is off or on.
const OFF: &[&str] = &["0", "off", "no", "false"];
const ON: &[&str] = &["1", "on", "yes", "true"];
const DURABLE: &str = "a write was durable when it completed; now it is when the guest has flushed";
const ERRORS: &str = "add it to the `-device` of the disk that `sluice export qemu-args` prints";
const IDENTITY: &str = "the guest will not see it";

/// Options of a disk.
const DISK: &[Property] = &[
    known("file"),
    known("volume"),
    known("media"),
    known("ro"),
    known("format"),
    known("size"),
    known("aio"),
    known("iothread"),
    known("shared"),
    harmless("backup", OFF),
    lost("backup", "`vzdump` will not back up this disk: docs/how-to/backup.md"),
    harmless("replicate", OFF),
    lost("replicate", "Proxmox will not replicate this disk"),
    harmless("cache", &["none", "writeback", "unsafe"]),
    lost("cache", DURABLE),
    harmless("detect_zeroes", OFF),
    lost("detect_zeroes", "zeroes that the guest writes as data now need space"),
    harmless("discard", &["on", "ignore"]),
    harmless("snapshot", OFF),
    damages("snapshot", "what the guest writes would stay in the source; give the VM a copy that may change"),
    harmless("ssd", OFF),
    lost("ssd", IDENTITY),
    known("serial"),
    lost("wwn", IDENTITY),
    lost("model", IDENTITY),
    lost("vendor", IDENTITY),
    lost("product", IDENTITY),
    lost("queues", "QEMU chooses the number of queues; add num-queues to the `-device` of the disk"),
    harmless("rerror", &["report"]),
    lost("rerror", ERRORS),
    harmless("werror", &["enospc"]),
    lost("werror", ERRORS),
    harmless("scsiblock", OFF),
    lost("scsiblock", "the guest cannot send SCSI commands to the disk"),
];

/// Options of a NIC with a rate.
const NIC: &[Property] = &[
    known("bridge"),
    known("rate"),
    known("tag"),
    known("macaddr"),
    known("mtu"),
    known("queues"),
    harmless("model", &["virtio"]),
    lost("model", "the guest will see a virtio NIC, which needs its driver"),
    harmless("link_down", OFF),
    left_out("link_down", "a NIC of the daemon is always connected"),
    harmless("firewall", OFF),
    lost(
        "firewall",
        "the firewall of Proxmox does not see this NIC; the daemon checks MAC addresses, and `addresses` those of IP",
    ),
];

/// `stem` is the name of the file without its extension, which contains the VM's number.
pub(crate) fn read(text: &str, stem: Option<&str>) -> Result<Machine, ImportError> {
    let number = stem.filter(|stem| !stem.is_empty() && stem.chars().all(|c| c.is_ascii_digit()));
    let name = number.map_or("vm".to_owned(), |number| format!("vm{number}"));
    let (disks, nics, warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut machine = Machine { name, disks, nics, weight: None, access: Access::Nbd, warnings };
    let mut boot = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        // The next sections are snapshots and pending changes.
        if line.starts_with('[') {
            if text.lines().any(|line| line.trim() == "[PENDING]") {
                machine.warnings.push("[PENDING]: changes that wait for a restart of the VM are left out".to_owned());
            }
            break;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((key, value)) = line.split_once(':') else {
            return Err(ImportError::NotProxmox { line: index + 1, text: line.chars().take(60).collect() });
        };
        let value = value.trim();
        if key == "name" {
            machine.name = valid_name(value);
        } else if key == "template" && ON.contains(&value) {
            return Err(ImportError::Template);
        } else if key == "args" {
            let what =
                "it is not read, and `qm set --args` replaces it; append the output of `sluice export qemu-args`";
            machine.warnings.push(format!("args: {what}"));
        } else if ["boot", "bootdisk"].contains(&key) {
            boot.extend(value.trim_start_matches("order=").split(';'));
        } else if is_disk(key)
            && let Some(disk) = read_disk(key, value, &mut machine.warnings)?
        {
            machine.disks.push(disk);
        } else if is_nic(key)
            && let Some(nic) = read_nic(key, value, &mut machine.warnings)?
        {
            machine.nics.push(nic);
        }
    }
    drop_equal_serials(&mut machine);
    for disk in machine.disks.iter().filter(|disk| boot.contains(&disk.name.as_str())) {
        let what =
            "the VM boots from it; add bootindex=0 to the `-device` of the exported disk: docs/how-to/proxmox.md";
        machine.warnings.push(format!("{}: {what}", disk.name));
    }
    Ok(machine)
}

fn is_disk(key: &str) -> bool {
    BUSES.iter().any(|bus| is_numbered(key, bus))
}

fn is_nic(key: &str) -> bool {
    is_numbered(key, "net")
}

fn is_numbered(key: &str, name: &str) -> bool {
    key.strip_prefix(name).is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
}

/// Returns the options of a line, of which the first may be without its key.
fn options<'a>(value: &'a str, first: &'a str) -> Vec<(&'a str, &'a str)> {
    value.split(',').map(|option| option.split_once('=').unwrap_or((first, option))).collect()
}

/// Reads a NIC. Returns `None` for one without a rate, and for one that is no port of a bridge of the host.
fn read_nic(name: &str, value: &str, warnings: &mut Vec<String>) -> Result<Option<Nic>, ImportError> {
    // The model of the NIC may be the key of its address.
    let models = options(value, "model").into_iter().flat_map(|(key, value)| match value.split(':').count() == 6 {
        true if key != "macaddr" => vec![("model", key), ("macaddr", value)],
        _ => vec![(key, value)],
    });
    let options: Vec<(&str, &str)> = models.collect();
    let mut nic = Nic { name: name.to_owned(), ..Nic::default() };
    for (key, value) in &options {
        match *key {
            "bridge" => (*value).clone_into(&mut nic.bridge),
            "macaddr" => nic.mac = Some((*value).to_owned()),
            "rate" => {
                let rate = Some(number(name, key, value, MIB)?).filter(|rate| *rate > 0);
                (nic.sends, nic.receives) = (rate, rate);
                nic.stated.push(format!("{key}={value}"));
            }
            _ => {}
        }
    }
    if !nic.is_limited() {
        return Ok(None);
    }
    let mut check = Check { what: "NIC", name, properties: NIC, warnings, is_served: true };
    for (key, value) in &options {
        match *key {
            "tag" => {
                nic.vlan = value.parse().ok().filter(|id| (1..=4094).contains(id));
                if nic.vlan.is_none() {
                    check
                        .warnings
                        .push(format!("{name}: tag={value} is not a VLAN from 1 to 4094; the NIC is left out"));
                    check.is_served = false;
                }
            }
            // 1 is the MTU of the bridge.
            "mtu" if *value != "1" => nic.mtu = mtu(name, value, check.warnings),
            "queues" if !OFF.contains(value) => nic.queues = queues(name, value, check.warnings),
            "trunks" => {
                check.warnings.push(format!("{name}: a NIC has one VLAN here; trunks={value} is left out"));
                continue;
            }
            _ => {}
        }
        check.property(key, value, &format!("{key}={value}"))?;
    }
    if nic.bridge.is_empty() {
        check.warnings.push(format!("{name}: it is not a port of a bridge; the NIC is left out"));
        check.is_served = false;
    }
    Ok(Some(nic).filter(|_| check.is_served))
}

/// Returns a serial number as it is: Proxmox writes `%20` for a blank.
fn decoded(serial: &str) -> String {
    let mut parts = serial.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[2..]].concat()),
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Adds the line of a disk that is refused, which has everything else that is stated about it.
fn in_line(error: ImportError, line: &str) -> ImportError {
    match error {
        ImportError::Refused { disk, shown, why } => {
            let shown = format!("{shown} in '{}'", line.replace(char::is_control, "?"));
            ImportError::Refused { disk, shown, why }
        }
        other => other,
    }
}

fn read_disk(name: &str, line: &str, warnings: &mut Vec<String>) -> Result<Option<Disk>, ImportError> {
    let options = options(line, "file");
    let last = |key| options.iter().rev().find(|option| option.0 == key).map(|option| option.1);
    let volume = last("file").or(last("volume")).unwrap_or_default();
    if last("media").is_some_and(|media| media != "disk") || volume.is_empty() || volume == "none" {
        return Ok(None);
    }
    let mut throttle = Throttle::default();
    let mut check = Check { what: "disk", name, properties: DISK, warnings, is_served: true };
    for (key, value) in &options {
        match key_of(key) {
            Some((unit, direction, part, scale)) => {
                throttle.set(unit, direction, part, number(name, key, value, scale)?);
                throttle.stated.push(format!("{key}={value}"));
            }
            None => drop(check.property(key, value, &format!("{key}={value}")).map_err(|error| in_line(error, line))?),
        }
    }
    let bus = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if bus != "virtio" {
        warnings.push(format!(
            "{name}: the guest will see a virtio disk instead of one of {bus}; it needs the driver, and the disk may have another \
             name there"
        ));
    }
    let (source, mut notes) = source_of(name, volume, warnings);
    let extension = || ["qcow2", "vmdk"].into_iter().find(|format| source.ends_with(&format!(".{format}")));
    if let Some(format) = last("format").or_else(extension).filter(|format| *format != "raw") {
        notes.push(not_raw(name, format, &source, warnings)?);
    }
    let is_block = source.starts_with("/dev/");
    let read_only = last("ro").is_some_and(|ro| ON.contains(&ro));
    let serial = last("serial").map(decoded);
    // Without the option QEMU ignores discards.
    let keys = guest_keys(name, (None, serial.as_deref()), last("discard") == Some("on"), warnings);
    let limits = vec![Limit { group: None, throttle }];
    let name = name.to_owned();
    Ok(Some(Disk { name, source, is_block, read_only, limits, keys, queues: None, notes }))
}

/// Returns the path of a volume. Only Proxmox knows it for certain; those of the default storages are known.
fn source_of(name: &str, volume: &str, warnings: &mut Vec<String>) -> (String, Vec<String>) {
    if volume.starts_with('/') {
        return (volume.to_owned(), Vec::new());
    }
    let (path, is_known) = match volume.split_once(':') {
        // A linked clone names its base first.
        Some(("local", file)) => {
            let own = file.rmatch_indices('/').nth(1).map_or(file, |(at, _)| &file[at + 1..]);
            (format!("/var/lib/vz/images/{own}"), true)
        }
        Some(("local-lvm", logical)) => {
            (format!("/dev/pve/{}", logical.rsplit_once('/').map_or(logical, |own| own.1)), true)
        }
        Some((storage, volume)) => (format!("/dev/{storage}/{volume}"), false),
        None => (format!("/dev/{volume}"), false),
    };
    if !is_known {
        warnings.push(format!(
            "{name}: only Proxmox knows the path of {volume}; write the output of `pvesm path {volume}` as its source"
        ));
    }
    (path, vec![format!("Path of {volume}; compare with `pvesm path {volume}`")])
}

/// Returns the meaning of `iops_rd_max_length` and similar names, and the scale of the value.
fn key_of(key: &str) -> Option<(Unit, Direction, Part, u64)> {
    let mut words = key.split('_').peekable();
    let (unit, scale) = match words.next()? {
        "iops" => (Unit::Requests, 1),
        "bps" => (Unit::Bytes, 1),
        "mbps" => (Unit::Bytes, MIB),
        _ => return None,
    };
    let direction = match words.peek() {
        Some(&"rd") => Direction::Read,
        Some(&"wr") => Direction::Write,
        _ => Direction::Total,
    };
    if direction != Direction::Total {
        words.next();
    }
    let part = match words.collect::<Vec<_>>()[..] {
        [] => Part::Limit,
        ["max"] => Part::Max,
        ["max", "length"] => return Some((unit, direction, Part::Length, 1)),
        // Older names of the same.
        ["length"] if direction != Direction::Total => return Some((unit, direction, Part::Length, 1)),
        _ => return None,
    };
    Some((unit, direction, part, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_qm_conf_have_a_meaning() {
        use Direction::{Read, Total, Write};
        use Part::{Length, Limit, Max};
        use Unit::{Bytes, Requests};
        let known = [
            ("iops", (Requests, Total, Limit, 1)),
            ("iops_rd_max", (Requests, Read, Max, 1)),
            ("iops_wr_max_length", (Requests, Write, Length, 1)),
            ("iops_wr_length", (Requests, Write, Length, 1)),
            ("mbps_rd", (Bytes, Read, Limit, MIB)),
            ("mbps_max", (Bytes, Total, Max, MIB)),
            ("bps_max_length", (Bytes, Total, Length, 1)),
        ];
        for (key, meaning) in known {
            assert_eq!(key_of(key), Some(meaning), "{key}");
        }
        for other in ["iothread", "size", "iops_up", "iops_rd_min", "bps_length"] {
            assert_eq!(key_of(other), None, "{other}");
        }
    }

    #[test]
    fn only_disks_are_read() {
        let is = ["scsi0", "virtio15", "sata1", "ide2"].map(is_disk);
        assert_eq!(is, [true; 4]);
        assert_eq!(["scsihw", "efidisk0", "unused0", "tpmstate0", "scsi"].map(is_disk), [false; 5]);
    }
}
