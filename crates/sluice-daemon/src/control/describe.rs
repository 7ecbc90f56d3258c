//! Describes VMs and volumes for replies and the log.

use serde_json::Value;
use sluice_api::change::{NicSettings, Settings, VmSettings, VolumeSettings};
use sluice_api::fields;
use sluice_api::policy::NetPolicy as Net;
use sluice_api::problem::Fault;
use sluice_config::changes::Target;
use sluice_config::{Diagnostic, ListenAddress, NetPolicy, Nic, NicAccess, Vm, Volume};
use sluice_io::volume::VolumeInfo;
use sluice_observe::status::policy;
use sluice_sched::{ByteRate, Percent, Weight};

use crate::server::Server;

/// Describes a VM, a volume or a NIC, if it exists.
pub(super) fn describe(server: &Server, target: &Target) -> Option<Settings> {
    let vm = server.host().vms.get(&target.vm)?;
    let loss = |volume: &Volume| server.loss(&target.vm, &volume.name);
    let Some(volume) = &target.volume else { return Some(Settings::Vm(Box::new(describe_vm(vm, loss)))) };
    if let Some(nic) = target.as_nic() {
        return vm.nics.get(nic).map(|nic| Settings::Nic(Box::new(describe_nic(nic))));
    }
    let volume = vm.volumes.get(volume)?;
    let described = describe_volume(volume, server.info(&target.vm, &volume.name), loss(volume));
    Some(Settings::Volume(Box::new(described)))
}

fn describe_vm(vm: &Vm, loss: impl Fn(&Volume) -> Option<&'static str>) -> VmSettings {
    let lost = vm.volumes.values().filter(|volume| loss(volume).is_some()).map(|volume| volume.name.clone());
    VmSettings {
        policy: policy(&vm.policy),
        volumes: vm.volumes.keys().cloned().collect(),
        writes_fail: lost.collect(),
        cpu_limit_percent: vm.cpu_limit.map(percent),
        net: (!vm.nics.is_empty()).then(|| describe_net(&vm.net)),
        nics: vm.nics.keys().cloned().collect(),
    }
}

/// A percentage as a number.
fn percent(part: Percent) -> f64 {
    part.hundredths() as f64 / 100.0
}

pub(super) fn describe_nic(nic: &Nic) -> NicSettings {
    NicSettings {
        uplink: nic.uplink.clone(),
        access: match &nic.access {
            NicAccess::VhostUser { endpoint, .. } => endpoint.socket().map(|path| path.display().to_string()),
            NicAccess::Tap(name) => Some(format!("tap {name}")),
        },
        mac: nic.mac.to_string(),
        addresses: nic.addresses.iter().map(ToString::to_string).collect(),
        spoof: nic.spoof,
        dhcp_server: nic.dhcp_server,
        router_advertisement: nic.router_advertisement,
        vlan: nic.vlan,
        mtu: nic.mtu,
        offloads: nic.offloads,
        policy: describe_net(&nic.policy),
    }
}

/// Describes the network half of a policy.
pub fn describe_net(net: &NetPolicy) -> Net {
    Net {
        transmit: policy(&net.transmit),
        burst_time_us: net.burst.map(|burst| burst.as_micros() as u64),
        receive_limit_bytes_per_second: net.receive.limit.map(ByteRate::bytes_per_second),
        receive_weight: net.receive.weight.map(Weight::as_f64),
    }
}

/// Describes what is wrong with a host file. `path` is that of the object whose keys a request states.
pub(super) fn fault(found: &Diagnostic, path: &[&str]) -> Fault {
    let escaped = |part: &String| part.replace('~', "~0").replace('/', "~1");
    let below = |key: &[String], path: &[&str], root: &str| {
        let rest = key.get(..path.len()).filter(|own| !path.is_empty() && *own == path).map(|_| &key[path.len()..])?;
        Some(format!("/{root}/{}", rest.iter().map(escaped).collect::<Vec<_>>().join("/")))
    };
    // Of the VM that an attach adds.
    let of_vm = || below(&found.key, &path[..path.len().min(2)], "vm").filter(|_| path.len() > 2);
    let pointer = below(&found.key, path, "keys").or_else(of_vm);
    let is_in_file = found.key.is_empty();
    Fault {
        detail: found.message.clone(),
        hint: found.hint.clone(),
        pointer,
        file: is_in_file.then(|| found.file.clone()),
        line: (is_in_file && found.line > 0).then_some(found.line),
        column: (is_in_file && found.column > 0).then_some(found.column),
    }
}

/// The value of the key `discard`.
pub fn discard(volume: &Volume) -> &'static str {
    if volume.unmaps { "unmap" } else { "ignore" }
}

/// `info` is that of the served volume.
fn describe_volume(volume: &Volume, info: Option<&VolumeInfo>, loss: Option<&str>) -> VolumeSettings {
    VolumeSettings {
        device: volume.device.clone(),
        socket: Some(match &volume.export.endpoint {
            ListenAddress::Unix { path, .. } => path.display().to_string(),
            ListenAddress::Tcp(address) => address.to_string(),
        }),
        source: volume.source.stated(),
        size_bytes: volume.size.or(info.map(|info| info.size_bytes)),
        block_size_bytes: info.map(|info| info.block_minimum),
        serial: volume.serial.clone(),
        discard: discard(volume).to_owned(),
        writes_fail: loss.map(|reason| format!("yes: {reason}")),
        policy: policy(&volume.policy),
    }
}

/// Returns what differs between two descriptions, in words: `limit_iops=500`. A missing object is `-`.
pub(super) fn difference(before: Option<&Settings>, after: Option<&Settings>) -> (String, String) {
    let [before, after] = [before, after].map(|one| one.map_or_else(Vec::new, fields));
    let of = |one: &[(String, Value)], other: &[(String, Value)]| {
        let differing = one.iter().filter(|entry| !other.contains(entry) && !entry.1.is_null());
        let words: Vec<String> = differing.map(|(key, value)| format!("{key}={value}")).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(" ") }
    };
    (of(&before, &after), of(&after, &before))
}

/// Returns the value of a key of the host file as a description has it, in words; `None` if no field of the description has its name.
pub(super) fn value_of(settings: Option<&Settings>, key: &str) -> Option<String> {
    let fields = settings.map_or_else(Vec::new, fields);
    fields.into_iter().find(|(name, value)| name == key && !value.is_null()).map(|(_, value)| words(&value))
}

/// A value in words; `-` if it is not set.
pub(super) fn words(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => {
            number.as_f64().filter(|_| !number.is_u64()).map_or_else(|| number.to_string(), |number| number.to_string())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::policy::Policy;

    use super::*;

    #[test]
    fn a_log_line_has_only_what_a_change_changed() {
        let vm = |limit_iops| {
            let policy = Policy { limit_iops, weight: Some(100.0), ..Policy::default() };
            Settings::Vm(Box::new(VmSettings { policy, volumes: vec!["v".to_owned()], ..VmSettings::default() }))
        };
        let words = |before: Option<&Settings>, after: Option<&Settings>| {
            let (before, after) = difference(before, after);
            format!("{before} | {after}")
        };
        assert_eq!(words(Some(&vm(None)), Some(&vm(Some(500.0)))), "- | limit_iops=500.0");
        let all = "class=\"foreground\" idle_credit=0 limit_iops=500.0 priority_class=\"best-effort\" priority_level=0 weight=100.0 \
                   volumes=[\"v\"] writes_fail=[] | -";
        assert_eq!(words(Some(&vm(Some(500.0))), None), all);
    }
}
