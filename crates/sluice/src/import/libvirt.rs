//! `libvirt-xml`: a domain. libvirt describes it in "Domain XML format", sections "Hard drives, floppy disks, CDROMs"
//! (`<iotune>`), "Block I/O Tuning" (`<blkiotune>`) and "Quality of service" of a network interface (`<bandwidth>`), which `virsh
//! domiftune` sets.

use roxmltree::{Document, Node};

use super::bandwidth::Nic;
use super::render::quoted;
use super::throttle::{Direction, Part, Throttle, Unit, number};
use super::{Access, Disk, ImportError, Machine, convert, serial_line, valid_name};

pub(crate) fn read(text: &str) -> Result<Machine, ImportError> {
    let document = Document::parse(text)?;
    let domain = document.root_element();
    if !domain.has_tag_name("domain") {
        return Err(ImportError::NoDomain(domain.tag_name().name().to_owned()));
    }
    let name = text_of(domain, "name").map_or("vm".to_owned(), |name| valid_name(&name));
    let (disks, nics, warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut machine = Machine { name, disks, nics, weight: None, access: Access::Libvirt, warnings };
    let devices: Vec<_> = children(domain, "devices").collect();
    for disk in devices.iter().flat_map(|devices| devices.children()).filter(|node| node.has_tag_name("disk")) {
        if let Some(disk) = read_disk(disk, &mut machine.warnings)? {
            machine.disks.push(disk);
        }
    }
    let interfaces = devices.iter().flat_map(|devices| children(*devices, "interface"));
    for (number, interface) in interfaces.enumerate() {
        let nic = read_interface(&format!("net{number}"), interface, &mut machine.warnings)?;
        machine.nics.extend(nic);
    }
    read_blkio(domain, &mut machine)?;
    Ok(machine)
}

fn children<'a, 'i>(node: Node<'a, 'i>, name: &str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    children(node, name).next()
}

fn text_of(node: Node<'_, '_>, name: &str) -> Option<String> {
    Some(child(node, name)?.text()?.trim().to_owned())
}

fn attribute<'a>(node: Node<'a, '_>, name: &str, key: &str) -> Option<&'a str> {
    child(node, name)?.attribute(key)
}

/// Reads a disk. Returns `None` for a medium that is not a disk, and for a disk that the daemon cannot serve.
fn read_disk(node: Node<'_, '_>, warnings: &mut Vec<String>) -> Result<Option<Disk>, ImportError> {
    let name = valid_name(attribute(node, "target", "dev").unwrap_or("disk"));
    if matches!(node.attribute("device"), Some("cdrom" | "floppy" | "lun")) {
        if child(node, "iotune").is_some() {
            warnings.push(format!("{name}: not a disk; its <iotune> is left out"));
        }
        return Ok(None);
    }
    let kind = node.attribute("type").unwrap_or("file");
    let source = match kind {
        "file" => attribute(node, "source", "file"),
        "block" => attribute(node, "source", "dev"),
        _ => None,
    };
    let Some(source) = source.filter(|path| path.starts_with('/')) else {
        let why = match kind {
            "volume" => {
                "its source is a volume of a pool; add it with the path that `virsh vol-path` prints".to_owned()
            }
            "file" | "block" => "it has no source with an absolute path".to_owned(),
            kind => format!("a source of type '{kind}' is not on this host"),
        };
        warnings.push(format!("{name}: {why}; the disk is left out"));
        return Ok(None);
    };
    let mut notes = Vec::new();
    if let Some(format) = attribute(node, "driver", "type").filter(|format| *format != "raw") {
        let advice = convert(&name, format, source);
        notes.push(advice.clone());
        warnings.push(advice);
    }
    let (throttle, group) =
        child(node, "iotune").map_or(Ok(Default::default()), |node| read_iotune(&name, node, warnings))?;
    let keys = keys(&name, node, warnings);
    Ok(Some(Disk {
        name,
        source: source.to_owned(),
        is_block: kind == "block",
        read_only: child(node, "readonly").is_some(),
        keys,
        throttle,
        group,
        notes,
    }))
}

/// Returns the keys for what the guest sees of the disk. libvirt ignores discards unless it is told otherwise.
fn keys(name: &str, node: Node<'_, '_>, warnings: &mut Vec<String>) -> Vec<String> {
    let mut keys = Vec::new();
    if let Some(block) = attribute(node, "blockio", "logical_block_size") {
        keys.push(format!("block_size = {}", quoted(&format!("{block}B"))));
    }
    if attribute(node, "driver", "discard") != Some("unmap") {
        keys.push("discard = \"ignore\"".to_owned());
    }
    keys.extend(text_of(node, "serial").and_then(|serial| serial_line(name, &serial, warnings)));
    keys
}

/// Reads `<iotune>`: the throttle, and the name of its group.
fn read_iotune(
    disk: &str,
    node: Node<'_, '_>,
    warnings: &mut Vec<String>,
) -> Result<(Throttle, Option<String>), ImportError> {
    let (mut throttle, mut group) = (Throttle::default(), None);
    for entry in node.children().filter(Node::is_element) {
        let (key, value) = (entry.tag_name().name(), entry.text().unwrap_or_default().trim());
        if key == "group_name" {
            group = Some(value.to_owned());
        } else if key == "size_iops_sec" {
            throttle.iops_size = Some(number(disk, key, value, 1)?).filter(|size| *size > 0);
        } else if let Some((unit, direction, part)) = key_of(key) {
            throttle.set(unit, direction, part, number(disk, key, value, 1)?);
        } else {
            warnings.push(format!("{disk}: <{key}> is not known; it is left out"));
            continue;
        }
        throttle.stated.push(format!("{key} {value}"));
    }
    Ok((throttle, group))
}

/// Returns the meaning of `read_bytes_sec_max_length` and similar names.
fn key_of(key: &str) -> Option<(Unit, Direction, Part)> {
    let (direction, rest) = key.split_once('_')?;
    let direction = match direction {
        "total" => Direction::Total,
        "read" => Direction::Read,
        "write" => Direction::Write,
        _ => return None,
    };
    let (unit, rest) = match (rest.strip_prefix("iops_sec"), rest.strip_prefix("bytes_sec")) {
        (Some(rest), _) => (Unit::Requests, rest),
        (_, Some(rest)) => (Unit::Bytes, rest),
        _ => return None,
    };
    let part = match rest {
        "" => Part::Limit,
        "_max" => Part::Max,
        "_max_length" => Part::Length,
        _ => return None,
    };
    Some((unit, direction, part))
}

/// Reads a NIC. Returns `None` for one without a rate, and for one that is no port of a bridge of the host.
fn read_interface(name: &str, node: Node<'_, '_>, warnings: &mut Vec<String>) -> Result<Option<Nic>, ImportError> {
    const KIB: u64 = 1 << 10;
    let Some(bandwidth) = child(node, "bandwidth") else { return Ok(None) };
    let mut nic = Nic { name: name.to_owned(), ..Nic::default() };
    for direction in bandwidth.children().filter(Node::is_element) {
        let title = direction.tag_name().name();
        let is_sent = title == "outbound";
        for attribute in direction.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            nic.stated.push(format!("{title} {key}={value}"));
            let amount = number(name, key, value, KIB)?;
            match (key, is_sent) {
                ("average", true) => nic.sends = Some(amount),
                ("average", false) => nic.receives = Some(amount),
                ("burst", true) => nic.burst = Some(amount),
                ("floor", _) => warnings.push(format!(
                    "{name}: {title} floor: a minimum of what is received cannot be kept on this host alone; it is left out"
                )),
                _ => warnings.push(format!("{name}: {title} {key} has no counterpart; it is left out")),
            }
        }
    }
    let kind = node.attribute("type").unwrap_or("network");
    let bridge = attribute(node, "source", "bridge").filter(|_| kind == "bridge");
    let Some(bridge) = bridge.filter(|_| nic.is_limited()) else {
        let why = match kind {
            "bridge" => "it states no average rate".to_owned(),
            "network" => "its bridge is that of a network; state the bridge that `virsh net-info` prints".to_owned(),
            kind => format!("an interface of type '{kind}' is not a port of a bridge"),
        };
        warnings.push(format!("{name}: {why}; the NIC is left out"));
        return Ok(None);
    };
    bridge.clone_into(&mut nic.bridge);
    nic.mac = attribute(node, "mac", "address").map(str::to_owned);
    nic.vlan = read_vlan(name, node, warnings);
    Ok(Some(nic))
}

/// Reads the tag of an access port; a trunk is left out.
fn read_vlan(name: &str, node: Node<'_, '_>, warnings: &mut Vec<String>) -> Option<u16> {
    let vlan = child(node, "vlan")?;
    let tags: Vec<_> = children(vlan, "tag").filter_map(|tag| tag.attribute("id")).collect();
    let id = match tags[..] {
        [id] => id.parse().ok().filter(|id| (1..=4094).contains(id)),
        _ => None,
    };
    if id.is_none() {
        warnings
            .push(format!("{name}: a NIC has one VLAN from 1 to 4094 here, not {}; it is left out", tags.join(", ")));
    }
    id
}

/// Reads the weight of `<blkiotune>`; limits in it belong to the host's cgroups.
fn read_blkio(domain: Node<'_, '_>, machine: &mut Machine) -> Result<(), ImportError> {
    let Some(tuning) = child(domain, "blkiotune") else { return Ok(()) };
    if let Some(weight) = text_of(tuning, "weight") {
        let weight = number("<blkiotune>", "weight", &weight, 1)?;
        machine.weight = Some(u32::try_from(weight.clamp(1, 1_000_000)).expect("it is clamped"));
    }
    if child(tuning, "device").is_some() {
        machine.warnings.push(
            "<blkiotune>: the weights and limits of host devices apply to the VM's own I/O, and the daemon does that now; they are \
             left out"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_throttle_of_libvirt_has_a_meaning() {
        for direction in ["total", "read", "write"] {
            for unit in ["iops", "bytes"] {
                for part in ["", "_max", "_max_length"] {
                    assert!(key_of(&format!("{direction}_{unit}_sec{part}")).is_some());
                }
            }
        }
        for other in ["total", "all_iops_sec", "total_iops", "total_iops_sec_min"] {
            assert_eq!(key_of(other), None, "{other}");
        }
    }
}
