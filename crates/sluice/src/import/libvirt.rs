//! `libvirt-xml`: a domain. libvirt describes it in "Domain XML format", sections "Hard drives, floppy disks, CDROMs"
//! (`<iotune>`), "Block I/O Tuning" (`<blkiotune>`) and "Quality of service" of a network interface (`<bandwidth>`), which `virsh
//! domiftune` sets.

use std::collections::BTreeMap;

use roxmltree::{Document, Node};
use sluice_sched::Bytes;

use super::bandwidth::Nic;
use super::known::{Check, Property, damages, harmless, known, left_out, lost, refused, whole};
use super::throttle::{Direction, Part, Throttle, Unit, number};
use super::{
    Access, Disk, ImportError, Limit, Machine, drop_equal_serials, guest_keys, mtu, not_raw, queues, valid_name,
};

const NO_SNAPSHOTS: &str = "libvirt can take no snapshot of this disk any more";
const DURABLE: &str = "a write was durable when it completed; now it is when the guest has flushed";
const REPORTED: &str = "now each error is reported to the guest, which goes on";
const OTHER_BUS: &str = "the guest will see a virtio disk, which needs its driver and may have another name there";
const BOOT: &str = "state it again at the exported element";

/// Properties of a disk that is a file or block device of this host.
const DISK: &[Property] = &[
    known("@type"),
    known("@device"),
    harmless("@model", &["virtio", "virtio-non-transitional"]),
    harmless("@snapshot", &["no"]),
    lost("@snapshot", NO_SNAPSHOTS),
    known("driver"),
    harmless("driver@name", &["qemu"]),
    known("driver@type"),
    harmless("driver@cache", &["default", "none", "writeback", "unsafe"]),
    lost("driver@cache", DURABLE),
    harmless("driver@error_policy", &["report"]),
    lost("driver@error_policy", REPORTED),
    harmless("driver@rerror_policy", &["report"]),
    lost("driver@rerror_policy", REPORTED),
    known("driver@io"),
    known("driver@ioeventfd"),
    known("driver@event_idx"),
    harmless("driver@copy_on_read", &["off"]),
    harmless("driver@discard", &["unmap", "ignore"]),
    known("driver@iothread"),
    whole("driver/iothreads"),
    harmless("driver@detect_zeroes", &["off"]),
    lost("driver@detect_zeroes", "zeroes that the guest writes as data now need space"),
    known("driver@queues"),
    known("driver@queue_size"),
    harmless("driver@iommu", &["off"]),
    harmless("driver@ats", &["off"]),
    harmless("driver@packed", &["off"]),
    known("driver@page_per_vq"),
    whole("driver/metadata_cache"),
    whole("driver/statistics"),
    known("source"),
    known("source@file"),
    known("source@dev"),
    known("source@index"),
    left_out("source@fdgroup", "libvirt gets its descriptors from another program"),
    harmless("source@startupPolicy", &["mandatory"]),
    lost("source@startupPolicy", "the daemon needs the source"),
    whole("source/slices"),
    damages("source/encryption", "the guest would see the encrypted bytes; decrypt it with `qemu-img convert` first"),
    whole("source/seclabel"),
    damages("encryption", "the guest would see the encrypted bytes; decrypt it with `qemu-img convert` first"),
    damages("transient", "what the guest writes would stay in the source; give the VM a copy that may change"),
    damages("mirror", "a block job is copying the disk; end it with `virsh blockjob` first"),
    left_out("backenddomain", "another domain of Xen serves it"),
    lost("shareable", "no other VM can write to the source while the daemon serves it"),
    whole("backingStore"),
    known("target"),
    known("target@dev"),
    harmless("target@bus", &["virtio"]),
    lost("target@bus", OTHER_BUS),
    harmless("target@removable", &["off"]),
    known("readonly"),
    whole("iotune"),
    whole("throttlefilters"),
    known("serial"),
    known("blockio"),
    known("blockio@logical_block_size"),
    lost("boot", BOOT),
    whole("alias"),
    whole("address"),
    whole("acpi"),
];

/// Properties of a NIC with a rate.
const NIC: &[Property] = &[
    known("@type"),
    harmless("@trustGuestRxFilters", &["no"]),
    known("mac"),
    known("mac@address"),
    known("mac@type"),
    known("mac@check"),
    known("source"),
    known("source@bridge"),
    harmless("source@macTableManager", &["kernel"]),
    whole("bandwidth"),
    whole("vlan"),
    known("link"),
    harmless("link@state", &["up"]),
    left_out("link@state", "a NIC of the daemon is always connected"),
    left_out("virtualport", "the daemon cannot be a port of this switch"),
    left_out("backenddomain", "another domain of Xen serves it"),
    lost("filterref", "the filter is not applied; the daemon itself checks MAC addresses, and `addresses` those of IP"),
    known("port"),
    harmless("port@isolated", &["no"]),
    lost("port@isolated", "NICs of the same uplink can reach each other"),
    known("model"),
    harmless("model@type", &["virtio", "virtio-non-transitional"]),
    lost("model@type", "the guest will see a virtio NIC, which needs its driver"),
    known("mtu"),
    known("mtu@size"),
    known("driver"),
    harmless("driver@name", &["vhost", "qemu"]),
    known("driver@queues"),
    known("driver@txmode"),
    known("driver@ioeventfd"),
    known("driver@event_idx"),
    harmless("driver@iommu", &["off"]),
    harmless("driver@ats", &["off"]),
    harmless("driver@packed", &["off"]),
    known("driver@page_per_vq"),
    harmless("driver@rss", &["off"]),
    harmless("driver@rss_hash_report", &["off"]),
    known("target"),
    known("target@dev"),
    lost("address", "state it again at the exported element, or the guest may name the NIC otherwise"),
    lost("boot", BOOT),
    whole("alias"),
];

pub(crate) fn read(text: &str) -> Result<Machine, ImportError> {
    let document = Document::parse(text)?;
    let domain = document.root_element();
    if !domain.has_tag_name("domain") {
        return Err(ImportError::NoDomain(domain.tag_name().name().to_owned()));
    }
    let name = text_of(domain, "name").map_or("vm".to_owned(), |name| valid_name(&name));
    let (disks, nics, warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut machine = Machine { name, disks, nics, weight: None, access: Access::Libvirt, warnings };
    let groups = read_groups(domain, &mut machine.warnings)?;
    let devices: Vec<_> = children(domain, "devices").collect();
    for disk in devices.iter().flat_map(|devices| devices.children()).filter(|node| node.has_tag_name("disk")) {
        if let Some(disk) = read_disk(disk, &groups, &mut machine.warnings)? {
            machine.disks.push(disk);
        }
    }
    let interfaces = devices.iter().flat_map(|devices| children(*devices, "interface"));
    for (number, interface) in interfaces.enumerate() {
        let nic = read_interface(&format!("net{number}"), interface, &mut machine.warnings)?;
        machine.nics.extend(nic);
    }
    drop_equal_serials(&mut machine);
    read_blkio(domain, &mut machine)?;
    for own in domain.children().filter(|node| ["commandline", "override"].contains(&node.tag_name().name())) {
        machine.warnings.push(format!(
            "<qemu:{}>: it is not read; what it changes at disks and NICs is left out",
            own.tag_name().name()
        ));
    }
    Ok(machine)
}

/// Looks up every property of a disk or NIC. Returns whether it can be served.
fn check(
    node: Node<'_, '_>,
    (what, name): (&'static str, &str),
    properties: &'static [Property],
    warnings: &mut Vec<String>,
) -> Result<bool, ImportError> {
    let mut check = Check { what, name, properties, warnings, is_served: true };
    check_inside(node, "", &mut check)?;
    Ok(check.is_served)
}

fn check_inside(node: Node<'_, '_>, path: &str, check: &mut Check<'_>) -> Result<(), ImportError> {
    for attribute in node.attributes() {
        let (key, value) = (attribute.name(), attribute.value());
        let shown = format!("<{} {key}='{value}'>", node.tag_name().name());
        check.property(&format!("{path}@{key}"), value, &shown)?;
    }
    for child in node.children().filter(Node::is_element) {
        let name = child.tag_name().name();
        let within = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        if check.property(&within, child.text().unwrap_or_default().trim(), &format!("<{name}>"))? {
            check_inside(child, &within, check)?;
        }
    }
    Ok(())
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

/// Reads the groups that `<throttlefilter>` names.
fn read_groups(domain: Node<'_, '_>, warnings: &mut Vec<String>) -> Result<BTreeMap<String, Throttle>, ImportError> {
    let listed = children(domain, "throttlegroups").flat_map(|groups| groups.children());
    let mut groups = BTreeMap::new();
    for node in listed.filter(|node| node.has_tag_name("throttlegroup")) {
        let name = text_of(node, "group_name").unwrap_or_default();
        let (throttle, _) = read_iotune(&format!("group {name}"), node, warnings)?;
        groups.insert(name, throttle);
    }
    Ok(groups)
}

/// Returns the path of a disk's source, or why the daemon cannot serve it.
fn source_of<'a>(node: Node<'a, '_>) -> Result<&'a str, String> {
    let kind = node.attribute("type").unwrap_or("file");
    let source = match kind {
        "file" => attribute(node, "source", "file"),
        "block" => attribute(node, "source", "dev"),
        _ => None,
    };
    source.filter(|path| path.starts_with('/')).ok_or_else(|| match kind {
        "volume" => "its source is a volume of a pool; add it with the path that `virsh vol-path` prints".to_owned(),
        "file" | "block" => "it has no source with an absolute path".to_owned(),
        kind => format!("a source of type '{kind}' is not on this host"),
    })
}

/// Reads a disk. Returns `None` for a medium that is not a disk, and for a disk that the daemon cannot serve.
fn read_disk(
    node: Node<'_, '_>,
    groups: &BTreeMap<String, Throttle>,
    warnings: &mut Vec<String>,
) -> Result<Option<Disk>, ImportError> {
    let name = valid_name(attribute(node, "target", "dev").unwrap_or("disk"));
    match node.attribute("device") {
        Some("lun") => {
            warnings.push(format!("{name}: a disk that takes SCSI commands of the guest; the disk is left out"));
            return Ok(None);
        }
        Some("cdrom" | "floppy") => {
            for limits in ["iotune", "throttlefilters"].into_iter().filter(|limits| child(node, limits).is_some()) {
                warnings.push(format!("{name}: not a disk; its <{limits}> is left out"));
            }
            return Ok(None);
        }
        _ => {}
    }
    let source = match source_of(node) {
        Ok(source) => source,
        Err(why) => {
            warnings.push(format!("{name}: {why}; the disk is left out"));
            return Ok(None);
        }
    };
    if !check(node, ("disk", &name), DISK, warnings)? {
        return Ok(None);
    }
    let mut notes = Vec::new();
    let format = attribute(node, "driver", "type").unwrap_or("raw");
    if !["raw", "aio"].contains(&format) {
        notes.push(not_raw(&name, format, source, warnings)?);
    }
    let mut keys = read_slice(&name, node, format)?;
    let serial = text_of(node, "serial");
    let stated = (attribute(node, "blockio", "logical_block_size"), serial.as_deref());
    // Without the attribute QEMU ignores discards.
    let unmaps = attribute(node, "driver", "discard") == Some("unmap");
    keys.extend(guest_keys(&name, stated, unmaps, warnings));
    let limits = read_limits(&name, node, groups, warnings)?;
    let queues = attribute(node, "driver", "queues").and_then(|stated| queues(&name, stated, warnings));
    let (source, is_block) = (source.to_owned(), node.attribute("type") == Some("block"));
    let read_only = child(node, "readonly").is_some();
    Ok(Some(Disk { name, source, is_block, read_only, limits, keys, queues, notes }))
}

/// Reads the part of its source that is the disk, as lines of a host file.
fn read_slice(disk: &str, node: Node<'_, '_>, format: &str) -> Result<Vec<String>, ImportError> {
    let slices = child(node, "source").and_then(|source| child(source, "slices"));
    let found: Vec<_> = slices.into_iter().flat_map(|slices| slices.children()).filter(Node::is_element).collect();
    let number = |slice: Node<'_, '_>, key| slice.attribute(key).and_then(|text| text.parse::<u64>().ok());
    let why = match found[..] {
        [] => return Ok(Vec::new()),
        [slice] if slice.attribute("type") == Some("storage") && ["raw", "aio"].contains(&format) => {
            if let (Some(offset), Some(size)) = (number(slice, "offset"), number(slice, "size"))
                && (offset | size) % 512 == 0
            {
                let (offset, size) = (Bytes(offset), Bytes(size));
                return Ok(vec![format!("offset = \"{offset}\""), format!("size = \"{size}\"")]);
            }
            "the disk does not begin and end at whole sectors of 512 B; copy it to a file of its own"
        }
        _ => "only one slice of type 'storage' of a raw image can be served; copy it to a file of its own",
    };
    Err(refused(disk, "<slices>", why))
}

/// Reads the throttles of a disk: its own, and those of its groups.
fn read_limits(
    disk: &str,
    node: Node<'_, '_>,
    groups: &BTreeMap<String, Throttle>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Limit>, ImportError> {
    let mut limits = Vec::new();
    if let Some(tune) = child(node, "iotune") {
        let (throttle, group) = read_iotune(disk, tune, warnings)?;
        if let Some(group) = &group {
            let warning = format!("Group {group}: a limit is never shared with other VMs");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        limits.push(Limit { group, throttle });
    }
    let filters = children(node, "throttlefilters").flat_map(|filters| filters.children());
    for name in filters.filter_map(|filter| filter.attribute("group")) {
        match groups.get(name) {
            Some(throttle) => limits.push(Limit { group: Some(name.to_owned()), throttle: throttle.clone() }),
            None => warnings.push(format!("{disk}: <throttlegroups> has no group '{name}'; its limit is left out")),
        }
    }
    Ok(limits)
}

/// Reads `<iotune>` or `<throttlegroup>`: the throttle, and the name of its group.
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

/// Units of `<bandwidth>`, as libvirt passes them to tc: rates in its `kbps`, bursts in its `kb`. Example: an average of 12500
/// is 12,500,000 bytes or 100 Mbit per second, and a burst of 1250 is 1,280,000 bytes.
const RATE_UNIT: u64 = 1000;
const BURST_UNIT: u64 = 1 << 10;

/// Reads `<bandwidth>`.
fn read_bandwidth(nic: &mut Nic, bandwidth: Node<'_, '_>, warnings: &mut Vec<String>) -> Result<(), ImportError> {
    let name = nic.name.clone();
    for direction in bandwidth.children().filter(Node::is_element) {
        let title = direction.tag_name().name();
        let is_sent = match title {
            "outbound" => true,
            "inbound" => false,
            _ => {
                warnings.push(format!("{name}: <{title}> is not known; it is left out"));
                continue;
            }
        };
        for attribute in direction.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            nic.stated.push(format!("{title} {key}={value}"));
            let amount = |unit| number(&name, key, value, unit);
            match (key, is_sent) {
                ("average", true) => nic.sends = Some(amount(RATE_UNIT)?),
                ("average", false) => nic.receives = Some(amount(RATE_UNIT)?),
                ("burst", true) => nic.burst = Some(amount(BURST_UNIT)?),
                ("floor", _) => warnings.push(format!(
                    "{name}: {title} floor: a minimum of what is received cannot be kept on this host alone; it is left out"
                )),
                _ => warnings.push(format!("{name}: {title} {key} has no counterpart; it is left out")),
            }
        }
    }
    Ok(())
}

/// Reads a NIC. Returns `None` for one without a rate, and for one that is no port of a bridge of the host.
fn read_interface(name: &str, node: Node<'_, '_>, warnings: &mut Vec<String>) -> Result<Option<Nic>, ImportError> {
    let Some(bandwidth) = child(node, "bandwidth") else { return Ok(None) };
    let mut nic = Nic { name: name.to_owned(), ..Nic::default() };
    read_bandwidth(&mut nic, bandwidth, warnings)?;
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
    if !check(node, ("NIC", name), NIC, warnings)? {
        return Ok(None);
    }
    bridge.clone_into(&mut nic.bridge);
    nic.mac = attribute(node, "mac", "address").map(str::to_owned);
    nic.mtu = attribute(node, "mtu", "size").and_then(|stated| mtu(name, stated, warnings));
    nic.queues = attribute(node, "driver", "queues").and_then(|stated| queues(name, stated, warnings));
    match read_vlan(node) {
        Ok(vlan) => nic.vlan = vlan,
        Err(why) => {
            warnings.push(format!("{name}: {why}; the NIC is left out"));
            return Ok(None);
        }
    }
    Ok(Some(nic))
}

/// Reads the tag of an access port. `Err` for a trunk: without its tags the NIC would be in another VLAN.
fn read_vlan(node: Node<'_, '_>) -> Result<Option<u16>, String> {
    let Some(vlan) = child(node, "vlan") else { return Ok(None) };
    let tags: Vec<_> = children(vlan, "tag").collect();
    let id = match tags[..] {
        [tag] if vlan.attribute("trunk") != Some("yes") && tag.attribute("nativeMode").is_none() => {
            tag.attribute("id").and_then(|id| id.parse().ok()).filter(|id| (1..=4094).contains(id))
        }
        _ => None,
    };
    let ids: Vec<_> = tags.iter().filter_map(|tag| tag.attribute("id")).collect();
    id.map(Some).ok_or_else(|| format!("a NIC has one VLAN from 1 to 4094 here, not a trunk ({})", ids.join(", ")))
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
