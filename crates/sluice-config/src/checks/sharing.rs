//! Resources that may not be shared: a disk under two gates, a socket, an address, an export's name, bytes of a source, a
//! network interface, the MAC address of a NIC.
//! The first user has the resource (`[nbd]` before all), and the error is reported at the second one. Changes at run
//! time come after the files, so their errors are reported at the change.

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use sluice_net::Mac;

use super::{Draft, volumes};
use crate::device::DeviceDraft;
use crate::diagnostics::Report;
use crate::disk_path::DiskPath;
use crate::meeting::Meeting;
use crate::model::{Backend, ListenAddress, NicAccess};
use crate::nic::NicDraft;
use crate::node::NodeAddress;
use crate::rbd::RbdPool;
use crate::source::Span;
use crate::vm::VolumeDraft;

pub(super) fn check(draft: &Draft, report: &Report) {
    check_disks(draft, report);
    check_endpoints(draft, report);
    check_names(draft, report);
    check_meetings(draft, report);
    check_ranges(draft, report);
    check_interfaces(draft, report);
    check_macs(draft, report);
}

fn nics(draft: &Draft) -> impl Iterator<Item = &NicDraft> {
    draft.vms.iter().flat_map(|vm| &vm.nics).filter(|nic| !nic.broken)
}

/// Reports interfaces of the host with two users, and uplinks with the name of a device: both have a thread of that name, and
/// output names either.
fn check_interfaces(draft: &Draft, report: &Report) {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    let uplinks = draft.uplinks.values().filter(|uplink| !uplink.link.broken);
    let uplinks = uplinks.map(|uplink| (uplink.link.device.heading(), uplink.port.interface(), uplink.port_at()));
    let mut taps: Vec<_> = nics(draft)
        .filter_map(|nic| match &nic.nic.access {
            NicAccess::Tap(name) => Some((format!("NIC {}", nic.title), name.as_str(), nic.access_at)),
            NicAccess::VhostUser { .. } => None,
        })
        .collect();
    taps.sort_by_key(|(.., span)| *span);
    for (whose, interface, span) in uplinks.chain(taps) {
        if let Some(first) = seen.get(interface) {
            let message = format!("{whose}: {interface} is already used by {first}");
            report.error(span, message, "use a different interface for each".to_owned());
        } else {
            seen.insert(interface, whose);
        }
    }
    for (name, uplink) in draft.uplinks.iter().filter(|(name, _)| draft.devices.contains_key(*name)) {
        let message = format!("Uplink {name}: a device has this name");
        report.error(
            uplink.span,
            message,
            "use another name; commands and metrics name devices and uplinks alike".to_owned(),
        );
    }
}

/// Reports NICs of one uplink and VLAN with the same address. Each VLAN is a network of its own.
fn check_macs(draft: &Draft, report: &Report) {
    let mut seen: BTreeMap<(&str, Option<u16>, Mac), &NicDraft> = BTreeMap::new();
    let mut all: Vec<_> = nics(draft).collect();
    all.sort_by_key(|nic| nic.mac_at);
    for nic in all {
        let (uplink, mac) = (nic.nic.uplink.as_str(), nic.nic.mac);
        let vlan = nic.nic.vlan;
        if let Some(first) = seen.insert((uplink, vlan, mac), nic) {
            let within = vlan.map_or(String::new(), |vlan| format!(" in VLAN {vlan}"));
            let (nic_title, first) = (&nic.title, &first.title);
            let message =
                format!("NIC {nic_title}: mac {mac} is already that of NIC {first} on uplink {uplink}{within}");
            report.error(nic.mac_at, message, "state another mac for one of them".to_owned());
        }
    }
}

fn check_disks(draft: &Draft, report: &Report) {
    let mut seen: BTreeMap<&Path, &str> = BTreeMap::new();
    let mut patterns: Vec<(&DiskPath, &str)> = Vec::new();
    for draft in draft.devices.values().filter(|draft| draft.device.backend == Backend::Direct) {
        let name = draft.device.name.as_str();
        let refuse = |path: &DiskPath, (first, first_path): (&str, &Path)| {
            let message = match path.path() == first_path {
                true => format!("Device {name}: path: device {first} is the same disk"),
                false => format!(
                    "Device {name}: path: {path} and {} of device {first} lead to the same disk",
                    first_path.display()
                ),
            };
            let hint = "put their volumes on one device; two devices cannot share a disk";
            report.error(draft.path_at, message, hint.to_owned());
        };
        let mut new: Vec<&DiskPath> = Vec::with_capacity(draft.device.paths.len());
        for path in &draft.device.paths {
            let pattern = patterns.iter().find(|(pattern, _)| pattern.covers(path.path()));
            let covered = || seen.iter().find(|(known, _)| path.is_pattern() && path.covers(known));
            let same = seen.get_key_value(path.path()).or_else(covered).map(|(known, first)| (*first, *known));
            match same.or(pattern.map(|(pattern, first)| (*first, pattern.path()))) {
                Some(first) => refuse(path, first),
                None => new.push(path),
            }
        }
        seen.extend(new.iter().map(|path| (path.path(), name)));
        patterns.extend(new.iter().filter(|path| path.is_pattern()).map(|path| (*path, name)));
    }
    check_nodes(draft, report);
    check_files(draft, report);
}

/// Reports servers and pools that are several devices: each device has a gate of its own.
fn check_nodes(draft: &Draft, report: &Report) {
    let mut nodes: BTreeMap<&NodeAddress, &str> = BTreeMap::new();
    let mut pools: BTreeMap<(&Path, &RbdPool), &str> = BTreeMap::new();
    for draft in draft.devices.values() {
        let name = draft.device.name.as_str();
        let (same, kind) = match &draft.device.backend {
            Backend::Nbd(node) => (nodes.insert(&node.address, name), "server"),
            Backend::Rbd(ceph) => (pools.insert((&ceph.conf, &ceph.pool), name), "pool"),
            Backend::Direct | Backend::Null => continue,
        };
        if let Some(first) = same {
            let message = format!("Device {name}: path: device {first} is the same {kind}");
            let hint = format!("put their volumes on one device; two devices cannot share a {kind}");
            report.error(draft.path_at, message, hint);
        }
    }
}

/// Reports places where hosts meet that are something else too: hosts write over what is there.
fn check_meetings(draft: &Draft, report: &Report) {
    let mut seen: Vec<(&Meeting, &str)> = Vec::new();
    for draft_device in draft.devices.values() {
        let (device, at) = (&draft_device.device, draft_device.path_at);
        let Some(pool) = &device.pool else { continue };
        let (name, meeting) = (device.name.as_str(), &pool.meeting);
        let is_there = |path: &Path| meeting.file() == Some(path);
        let volume = volumes(draft).find(|volume| volume.volume.source.file().is_some_and(is_there));
        if let Some(volume) = volume {
            let message = format!("Device {name}: pool.meeting: {meeting} is volume {}", volume.title);
            report.error(at, message, "hosts write there: state a file or a block device of its own".to_owned());
        }
        if let Some((_, first)) = seen.iter().find(|(other, _)| other.is_same_place(meeting)) {
            let message = format!("Device {name}: pool.meeting: device {first} meets at {meeting} already");
            report.error(at, message, "a place is that of one pool, and a pool one device of each host".to_owned());
        }
        seen.push((meeting, name));
        if device.paths.iter().any(|path| is_there(path.path())) {
            let message = format!("Device {name}: pool.meeting: {meeting} is its path");
            report.error(at, message, "hosts write there: state a file or a block device of its own".to_owned());
        }
    }
}

/// Reports a path of a list that is the image of a volume. Below `/dev` it may be a disk, and then both may name it.
fn check_files(draft: &Draft, report: &Report) {
    let lists = draft.devices.values().filter(|draft| draft.device.paths.len() > 1);
    let files = lists.flat_map(|draft| draft.device.paths.iter().map(move |path| (path.path(), draft)));
    let files: BTreeMap<&Path, &DeviceDraft> = files.filter(|(path, _)| !path.starts_with("/dev")).collect();
    if files.is_empty() {
        return;
    }
    let mut seen = BTreeSet::new();
    for volume in volumes(draft) {
        let Some((path, draft)) = volume.volume.source.file().and_then(|source| files.get_key_value(source)) else {
            continue;
        };
        if seen.insert(*path) {
            let (name, title, shown) = (&draft.device.name, &volume.title, path.display());
            let message = format!("Device {name}: path: {shown} is the source of volume {title}, and no disk");
            let folder = path.parent().unwrap_or(Path::new("/")).display();
            let hint =
                format!("write the folder that contains it, '{folder}', or the block device of its disk below /dev");
            report.error(draft.path_at, message, hint);
        }
    }
}

/// User of an endpoint.
#[derive(Clone, Copy)]
enum User<'a> {
    Daemon(&'a str),
    Nbd,
    Volume(&'a str),
    Nic(&'a str),
}

impl core::fmt::Display for User<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            User::Daemon(key) => write!(f, "[daemon] {key}"),
            User::Nbd => write!(f, "[nbd]"),
            User::Volume(title) => write!(f, "Volume {title}"),
            User::Nic(title) => write!(f, "NIC {title}"),
        }
    }
}

fn check_endpoints(draft: &Draft, report: &Report) {
    let host = draft.nbd.settings.endpoints.iter().zip(&draft.nbd.endpoints_at);
    let host = host.map(|(endpoint, span)| (User::Nbd, endpoint, *span));
    let daemon = draft.daemon.iter().map(|(key, endpoint, span)| (User::Daemon(key), endpoint, *span));
    let own = volumes(draft).filter(|volume| !volume.export.broken);
    let own = own.map(|v| (User::Volume(&v.title), &v.volume.export.endpoint, v.export.endpoint_at));
    let mut sockets: HashMap<&Path, User<'_>> = HashMap::new();
    let mut addresses: BTreeMap<u16, Vec<(SocketAddr, User<'_>)>> = BTreeMap::new();
    let nics = nics(draft).filter_map(|nic| match &nic.nic.access {
        NicAccess::VhostUser { endpoint, .. } => Some((User::Nic(&nic.title), endpoint, nic.access_at)),
        NicAccess::Tap(_) => None,
    });
    let mut own: Vec<_> = own.chain(nics).collect();
    own.sort_by_key(|(_, _, span)| *span);
    for (whose, endpoint, span) in daemon.chain(host).chain(own) {
        let first = match endpoint {
            ListenAddress::Unix { path, .. } => sockets.insert(path, whose),
            ListenAddress::Tcp(address) => {
                let same_port = addresses.entry(address.port()).or_default();
                let first = same_port.iter().find(|(other, _)| collide(other, address)).map(|(_, first)| *first);
                // One of each kind is enough to find every later collision, and keeps this list short.
                if first.is_none() {
                    same_port.push((*address, whose));
                }
                first
            }
        };
        if let Some(first) = first {
            let what = match endpoint {
                ListenAddress::Unix { path, .. } => path.display().to_string(),
                ListenAddress::Tcp(address) => address.to_string(),
            };
            let message = format!("{whose}: {what} is already used by {first}");
            report.error(
                span,
                message,
                "use a different one for each; only [nbd] serves several volumes, by export name".to_owned(),
            );
        }
    }
}

/// Whether a socket bound to one address prevents binding the other.
fn collide(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.port() == b.port() && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
}

fn check_names(draft: &Draft, report: &Report) {
    let mut seen: HashMap<&str, &VolumeDraft> = HashMap::new();
    let mut all: Vec<_> = volumes(draft).filter(|volume| !volume.export.broken).collect();
    all.sort_by_key(|volume| volume.export.name_at);
    for volume in all {
        let name = volume.volume.export.name.as_str();
        if let Some(first) = seen.insert(name, volume) {
            let message =
                format!("Volume {}: the export name '{name}' is already used by {}", volume.title, first.title);
            report.error(
                volume.export.name_at,
                message,
                "use another name; [nbd] distinguishes exports by name".to_owned(),
            );
        }
    }
}

/// Reports overlapping ranges of one source in two volumes, if one of them may write.
fn check_ranges(draft: &Draft, report: &Report) {
    // A hash look-up is cheaper than comparing long paths component by component; the iteration is in file order.
    let mut numbers: HashMap<PathBuf, usize> = HashMap::new();
    let mut sources: Vec<(PathBuf, Vec<&VolumeDraft>)> = Vec::new();
    for volume in volumes(draft).filter(|volume| !volume.broken) {
        let device = draft.devices.get(&volume.volume.device);
        let is_stored = device.is_some_and(|draft| draft.device.backend != Backend::Null);
        if let Some(path) = volume.volume.source.stated().filter(|_| is_stored) {
            let number = *numbers.entry(path.clone()).or_insert(sources.len());
            if number == sources.len() {
                sources.push((path, Vec::new()));
            }
            sources[number].1.push(volume);
        }
    }
    for (path, mut on_path) in sources {
        on_path.sort_by_key(|draft| draft.volume.offset);
        let (mut any, mut writer): (Option<&VolumeDraft>, Option<&VolumeDraft>) = (None, None);
        for volume in on_path {
            let earlier = if volume.volume.read_only { writer } else { any };
            if let Some(earlier) = earlier.filter(|earlier| end(earlier) > volume.volume.offset) {
                refuse_range(&path, volume, earlier, report);
            }
            any = further(any, volume);
            if !volume.volume.read_only {
                writer = further(writer, volume);
            }
        }
    }
}

fn further<'a>(known: Option<&'a VolumeDraft>, next: &'a VolumeDraft) -> Option<&'a VolumeDraft> {
    known.filter(|known| end(known) >= end(next)).or(Some(next))
}

fn end(draft: &VolumeDraft) -> u64 {
    draft.volume.size.map_or(u64::MAX, |size| draft.volume.offset.saturating_add(size))
}

fn refuse_range(path: &Path, one: &VolumeDraft, other: &VolumeDraft, report: &Report) {
    let (first, second) = if one.source_at < other.source_at { (one, other) } else { (other, one) };
    let span: Span = second.source_at;
    let message = format!("Volume {}: its bytes of {} overlap those of {}", second.title, path.display(), first.title);
    let hint = "give each its own source or range (offset, size), or make both read_only";
    report.error(span, message, hint.to_owned());
}
