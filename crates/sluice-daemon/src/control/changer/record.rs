//! What the state records of the volumes that a change serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::object::ObjectId;

use crate::server::Prepared;
use crate::state::Saved;

/// Maximum number of removed volumes of which it is known that they are raw.
const GONE_MAX: usize = 4096;

/// Records what volumes serve when a prepared change is in force.
pub(super) fn record(saved: &mut Saved, prepared: &Prepared, held: &BTreeMap<ObjectId, String>) {
    let Saved { exports, unknown, .. } = saved;
    let served: Vec<_> = prepared.serves().collect();
    unknown.retain(|name| served.iter().all(|(now, _)| now != name));
    let is_there = |name: &str| {
        let Some((vm, volume)) = name.split_once('/') else { return false };
        let is_served = prepared.host().vms.get(vm).is_some_and(|vm| vm.volumes.contains_key(volume));
        is_served || held.contains_key(&ObjectId::of_vm(vm, volume))
    };
    // Most changes concern no source: the map stays shared with the state in force.
    if served.is_empty() && exports.iter().all(|(name, served)| served.gone || is_there(name)) {
        return;
    }
    let exports = Arc::make_mut(exports);
    exports.extend(served);
    for (name, served) in &mut *exports {
        served.gone |= !is_there(name);
    }
    let mut gone = exports.values().filter(|served| served.gone).count();
    exports.retain(|_, served| {
        let is_kept = !served.gone || gone <= GONE_MAX;
        gone -= usize::from(!is_kept);
        is_kept
    });
}
