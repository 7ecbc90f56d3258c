//! The object of a change: whether there is one of this name, and what may be meant otherwise.

use sluice_api::object::ObjectId;
use sluice_config::Host;
use sluice_config::changes::{Target, matches};

use super::{Code, Reply};
use crate::server::{Absence, Server};

/// Refuses changes of what is held back. The reason says what to do.
pub(super) fn refuse_held(server: &Server, target: &Target) -> Result<(), Reply> {
    let volume = target.volume.as_ref().map(|volume| ObjectId::of_vm(&target.vm, volume));
    match volume.and_then(|volume| server.absent().get(&volume)) {
        Some(Absence::HeldBack(reason)) => {
            Err(Reply::failed(Code::Refused, format!("{target} is held back: {reason}")))
        }
        _ => Ok(()),
    }
}

/// Finds the object of a change.
pub(super) fn known(server: &Server, target: &str) -> Result<Target, Reply> {
    let target: Target = target.parse().map_err(|error: String| Reply::failed(Code::Invalid, error))?;
    let vms = &server.host().vms;
    refuse_held(server, &target)?;
    let Some(vm) = vms.get(&target.vm) else {
        let names: Vec<&str> = vms.keys().take(10).map(String::as_str).collect();
        let are = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let other = of_another_kind(server.host(), &target.vm).map_or_else(String::new, |other| format!("; {other}"));
        let error = format!("There is no VM {}; there are {are}{other}", target.vm);
        return Err(Reply::failed(Code::NotFound, error));
    };
    match &target.volume {
        Some(volume) if !has(vm, &target, volume) => {
            let (what, name, names): (_, _, Vec<&str>) = match target.as_nic() {
                Some(nic) => ("NIC", nic, vm.nics.keys().map(String::as_str).collect()),
                None => ("volume", volume.as_str(), vm.volumes.keys().map(String::as_str).collect()),
            };
            let has = if names.is_empty() { "no other".to_owned() } else { names.join(", ") };
            let error = format!("VM {} has no {what} {name}; it has {has}", target.vm);
            Err(Reply::failed(Code::NotFound, error))
        }
        _ => Ok(target),
    }
}

/// Says what a name is that no VM has.
fn of_another_kind(host: &Host, name: &str) -> Option<String> {
    let holds = |known: &Option<String>| known.as_deref() == Some(name);
    if host.devices.contains_key(name) || host.uplinks.contains_key(name) {
        let advice = "its keys are changed in the host file, and `sluice apply FILE` puts them into force";
        return Some(format!("{name} is a device or an uplink: {advice}"));
    }
    let is_policy = host.vms.values().any(|vm| holds(&vm.policy_name));
    is_policy.then(|| format!("the policy is written policy/{name}"))
}

/// Whether a VM has the volume or NIC of a target.
pub(super) fn has(vm: &sluice_config::Vm, target: &Target, volume: &str) -> bool {
    target.as_nic().map_or_else(|| vm.volumes.contains_key(volume), |nic| vm.nics.contains_key(nic))
}

/// The VMs, or the volumes, whose names match; none of them is held back.
pub(super) fn matching(server: &Server, pattern: &Target) -> Result<Vec<Target>, Reply> {
    let vms = server.host().vms.values().filter(|vm| matches(&pattern.vm, &vm.name));
    let targets: Vec<Target> = match &pattern.volume {
        None => vms.map(|vm| Target { vm: vm.name.clone(), volume: None }).collect(),
        Some(volume) => vms
            .flat_map(|vm| {
                let held = server.absent().held_back().map(|(name, _)| name);
                let held = held.filter(|held| held.vm() == Some(&vm.name));
                let held = held.map(|held| held.parts().1.into_owned());
                let all = vm.volumes.keys().cloned().chain(held).filter(|name| matches(volume, name));
                let all = all.map(|name| Target { vm: vm.name.clone(), volume: Some(name) });
                let nics = vm.nics.keys().filter(|name| pattern.as_nic().is_some_and(|nic| matches(nic, name)));
                all.chain(nics.map(|name| Target::nic(&vm.name, name)))
            })
            .collect(),
    };
    if targets.is_empty() {
        let what = if pattern.volume.is_some() { "volume" } else { "VM" };
        let error = format!("No {what} matches '{pattern}'; `sluice get {}s` lists them", what.to_lowercase());
        return Err(Reply::failed(Code::NotFound, error));
    }
    targets.into_iter().map(|target| known(server, &target.to_string())).collect()
}
