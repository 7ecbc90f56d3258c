//! `proxmox-conf`: a VM of Proxmox VE. The keys of its disks are in the manual page qm.conf(5).

use super::bandwidth::Nic;
use super::throttle::{Direction, Part, Throttle, Unit, number};
use super::{Access, Disk, ImportError, Machine, convert, serial_line, valid_name};

/// Disk controllers. `efidisk`, `tpmstate` and `unused` are not disks of the guest.
const BUSES: [&str; 4] = ["scsi", "virtio", "sata", "ide"];
const MIB: u64 = 1 << 20;

/// `stem` is the name of the file without its extension, which contains the VM's number.
pub(crate) fn read(text: &str, stem: Option<&str>) -> Result<Machine, ImportError> {
    let number = stem.filter(|stem| !stem.is_empty() && stem.chars().all(|c| c.is_ascii_digit()));
    let name = number.map_or("vm".to_owned(), |number| format!("vm{number}"));
    let (disks, nics, warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut machine = Machine { name, disks, nics, weight: None, access: Access::Nbd, warnings };
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        // The next sections are snapshots and pending changes.
        if line.starts_with('[') {
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

/// Reads a NIC. Returns `None` for one without a rate, and for one that is no port of a bridge of the host.
fn read_nic(name: &str, value: &str, warnings: &mut Vec<String>) -> Result<Option<Nic>, ImportError> {
    let mut nic = Nic { name: name.to_owned(), ..Nic::default() };
    for (key, value) in value.split(',').filter_map(|option| option.split_once('=')) {
        match key {
            "bridge" => value.clone_into(&mut nic.bridge),
            "rate" => {
                let rate = Some(number(name, key, value, MIB)?).filter(|rate| *rate > 0);
                (nic.sends, nic.receives) = (rate, rate);
                nic.stated.push(format!("{key}={value}"));
            }
            "tag" => {
                nic.vlan = value.parse().ok().filter(|id| (1..=4094).contains(id));
                if nic.vlan.is_none() {
                    warnings.push(format!("{name}: tag={value} is not a VLAN from 1 to 4094; it is left out"));
                }
            }
            "trunks" => warnings.push(format!("{name}: a NIC has one VLAN here; trunks={value} is left out")),
            // The model of the NIC is the key of its address.
            _ if value.split(':').count() == 6 => nic.mac = Some(value.to_owned()),
            _ => {}
        }
    }
    if nic.is_limited() && nic.bridge.is_empty() {
        warnings.push(format!("{name}: it is not a port of a bridge; the NIC is left out"));
    }
    Ok(Some(nic).filter(|nic| nic.is_limited() && !nic.bridge.is_empty()))
}

fn read_disk(name: &str, value: &str, warnings: &mut Vec<String>) -> Result<Option<Disk>, ImportError> {
    let options = value.split(',').map(|option| option.split_once('=').unwrap_or(("file", option)));
    let (mut volume, mut throttle, mut read_only, mut is_disk) = ("", Throttle::default(), false, true);
    let (mut is_discarding, mut serial) = (false, None);
    for (key, value) in options {
        match key {
            "file" | "volume" => volume = value,
            "media" => is_disk = value == "disk",
            "ro" => read_only = value == "1" || value == "on",
            "discard" => is_discarding = value == "on",
            "serial" => serial = serial_line(name, value, warnings),
            _ => match key_of(key) {
                Some((unit, direction, part, scale)) => {
                    throttle.set(unit, direction, part, number(name, key, value, scale)?);
                    throttle.stated.push(format!("{key}={value}"));
                }
                None if ["iops", "bps", "mbps"].iter().any(|rate| key.starts_with(rate)) => {
                    warnings.push(format!("{name}: {key} is not known; it is left out"));
                }
                None => {}
            },
        }
    }
    if !is_disk || volume.is_empty() || volume == "none" {
        return Ok(None);
    }
    let (source, mut notes) = source_of(name, volume, warnings);
    if let Some(format) = ["qcow2", "vmdk"].into_iter().find(|format| source.ends_with(&format!(".{format}"))) {
        let advice = convert(name, format, &source);
        notes.push(advice.clone());
        warnings.push(advice);
    }
    let is_block = source.starts_with("/dev/");
    let discard = (!is_discarding).then(|| "discard = \"ignore\"".to_owned());
    let (name, keys) = (name.to_owned(), discard.into_iter().chain(serial).collect());
    Ok(Some(Disk { name, source, is_block, read_only, keys, throttle, group: None, notes }))
}

/// Returns the path of a volume. Only Proxmox knows it for certain; those of the default storages are known.
fn source_of(name: &str, volume: &str, warnings: &mut Vec<String>) -> (String, Vec<String>) {
    if volume.starts_with('/') {
        return (volume.to_owned(), Vec::new());
    }
    let (path, is_known) = match volume.split_once(':') {
        Some(("local", file)) => (format!("/var/lib/vz/images/{file}"), true),
        Some(("local-lvm", logical)) => (format!("/dev/pve/{logical}"), true),
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
