//! Volumes and NICs of a host file, by their names.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_api::status::NotServed;
use sluice_config::{Host, ListenAddress, Nic, Volume};

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

/// What is held back, with the reasons.
pub fn not_served(held: &BTreeMap<ObjectId, String>) -> Vec<NotServed> {
    held.iter().map(|(name, reason)| NotServed { volume: name.clone(), reason: reason.clone() }).collect()
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
