//! Volumes and NICs of a host file, by their names, and whether they stay as they are.

use std::borrow::Cow;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_api::status::NotServed;
use sluice_config::{Host, ListenAddress, Nic, NicAccess, Volume};

use super::translate;

/// Returns a file without some of its volumes and NICs.
pub fn without<'a, 'b>(host: &'a Host, missing: impl ExactSizeIterator<Item = &'b ObjectId>) -> Cow<'a, Host> {
    if missing.len() == 0 {
        return Cow::Borrowed(host);
    }
    let mut rest = host.clone();
    for name in missing {
        let Some(vm) = name.vm().and_then(|vm| rest.vms.get_mut(vm)).map(Arc::make_mut) else { continue };
        match name {
            ObjectId::Nic { nic, .. } => drop(vm.nics.remove(nic)),
            ObjectId::Volume { volume, .. } => drop(vm.volumes.remove(volume)),
            ObjectId::Uplink(_) | ObjectId::Device(_) | ObjectId::Socket(_) => {}
        }
    }
    Cow::Owned(rest)
}

/// The VM of a volume or NIC and its name there, as the data plane has them.
pub(super) fn pair(name: &ObjectId) -> (String, String) {
    let (vm, name) = name.parts();
    (vm.to_owned(), name.into_owned())
}

/// What is not served, with the reasons.
pub fn not_served<'a>(held: impl Iterator<Item = (&'a ObjectId, &'a str)>) -> Vec<NotServed> {
    held.map(|(name, reason)| NotServed { volume: name.clone(), reason: reason.to_owned() }).collect()
}

/// Returns a volume by its name.
pub fn volume_of<'a>(host: &'a Host, name: &ObjectId) -> Option<&'a Arc<Volume>> {
    let ObjectId::Volume { vm, volume } = name else { return None };
    host.vms.get(vm)?.volumes.get(volume)
}

/// Returns a NIC by its name.
pub fn nic_of<'a>(host: &'a Host, name: &ObjectId) -> Option<&'a Nic> {
    let ObjectId::Nic { vm, nic } = name else { return None };
    host.vms.get(vm)?.nics.get(nic)
}

/// Returns the name of the socket at an endpoint.
pub(super) fn name_of(endpoint: &ListenAddress) -> String {
    translate::endpoint(endpoint).to_string()
}

/// Returns the volumes of a host file, by name.
pub(super) fn volumes(host: &Host) -> impl Iterator<Item = (ObjectId, &Volume)> {
    host.vms
        .iter()
        .flat_map(|(vm, spec)| spec.volumes.iter().map(move |(name, volume)| (ObjectId::volume(vm, name), &**volume)))
}

/// Whether a volume has the same source as before, possibly with another size.
pub(super) fn stays(old: Option<&Volume>, new: &Volume) -> bool {
    old.is_some_and(|old| differing_keys(old, new).is_empty())
}

/// Returns the keys in which two volumes differ and that cannot change while a volume is served.
pub(super) fn differing_keys(old: &Volume, new: &Volume) -> Vec<&'static str> {
    let Volume { device, source, offset, read_only, buffered, block_size, unmaps, serial, export, .. } = old;
    let differs = [
        ("device", *device != new.device),
        ("source", *source != new.source),
        ("offset", *offset != new.offset),
        ("read_only", *read_only != new.read_only),
        ("cache", *buffered != new.buffered),
        ("block_size", *block_size != new.block_size),
        ("discard", *unmaps != new.unmaps),
        ("serial", *serial != new.serial),
        ("export.name", export.name != new.export.name),
        ("export.type", export.protocol != new.export.protocol),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// Returns the NICs of a host file, by name.
pub(super) fn nics(host: &Host) -> impl Iterator<Item = (ObjectId, &Nic)> {
    host.vms.iter().flat_map(|(vm, spec)| spec.nics.iter().map(move |(nic, spec)| (ObjectId::nic(vm, nic), spec)))
}

/// Whether a NIC is served further: its VMM stays connected.
pub(super) fn nic_stays(old: Option<&Nic>, new: &Nic) -> bool {
    let same = |old: &Nic| {
        let device = (old.mac, old.mtu, old.offloads) == (new.mac, new.mtu, new.offloads);
        device && (&old.uplink, &old.access) == (&new.uplink, &new.access)
    };
    old.is_some_and(same)
}

/// The socket of a NIC.
pub(super) fn nic_socket(nic: &Nic) -> Option<&ListenAddress> {
    match &nic.access {
        NicAccess::VhostUser { endpoint, .. } => Some(endpoint),
        NicAccess::Tap(_) => None,
    }
}
