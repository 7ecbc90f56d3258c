//! Changes made at run time that the host file does not allow any more, for example because a MAC address collides now.
//!
//! Such a change is set aside and does not keep the daemon from starting. Without it a disk or a NIC might be another one than its
//! guest knows, or be there although it was detached. So what it names is held back until the file allows the change again or
//! `sluice reset` takes it back. A policy is that of the file until then.

use std::collections::BTreeMap;

use sluice_api::object::ObjectId;
use sluice_config::Host;
use sluice_config::changes::{Object, Target};

use crate::control::roles::is_policy;
use crate::state::overrides::{Change, Overrides};

/// Returns what these changes hold back, and why.
pub fn held(overrides: &Overrides, host: &Host) -> BTreeMap<ObjectId, String> {
    let mut held = BTreeMap::new();
    for known in overrides.aside() {
        let name = known.name();
        let reason = format!(
            "the change made at run time {name} = {} is not valid with the host file any more; correct the file, or take the \
             change back (`sluice reset {name}`), and reload",
            known.value()
        );
        let Object::Target(Target { vm, volume }) = &known.target else { continue };
        let names = match (volume, &known.change) {
            (_, Change::Set { key, .. }) if is_policy(key) => Vec::new(),
            (Some(volume), _) => vec![ObjectId::of_vm(vm, volume)],
            // Without its keys the VM would have no policy.
            (None, Change::Detach | Change::Attach { .. }) => host.vms.get(vm).map_or_else(Vec::new, |spec| {
                let nics = spec.nics.keys().map(|nic| ObjectId::nic(vm, nic));
                spec.volumes.keys().map(|volume| ObjectId::volume(vm, volume)).chain(nics).collect()
            }),
            (None, Change::Set { .. }) => Vec::new(),
        };
        held.extend(names.into_iter().map(|name| (name, reason.clone())));
    }
    held
}
