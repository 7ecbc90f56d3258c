//! Describes VMs and volumes for replies and the log.

use serde::Serialize;
use serde_json::{Value, json};
use sluice_config::changes::Target;
use sluice_config::{NetPolicy, Nic, NicAccess, Vm, Volume};
use sluice_sched::policy::{Class, PriorityClass};
use sluice_sched::{ByteRate, Iops, Percent, Policy, Weight};

use crate::server::Server;

/// Describes a VM or a volume; null if it does not exist.
pub(super) fn describe(server: &Server, target: &Target) -> Value {
    let Some(vm) = server.host().vms.get(&target.vm) else { return Value::Null };
    let loss = |volume: &Volume| server.loss(&target.vm, &volume.name);
    match &target.volume {
        None => describe_vm(vm, loss),
        Some(volume) => match target.as_nic() {
            Some(nic) => vm.nics.get(nic).map_or(Value::Null, describe_nic),
            None => vm.volumes.get(volume).map_or(Value::Null, |volume| {
                describe_volume(volume, server.block_size(&target.vm, &volume.name), loss(volume))
            }),
        },
    }
}

fn describe_vm(vm: &Vm, loss: impl Fn(&Volume) -> Option<&'static str>) -> Value {
    let volumes: Vec<&String> = vm.volumes.keys().collect();
    let lost = vm.volumes.values().filter(|volume| loss(volume).is_some()).map(|volume| &volume.name);
    let mut value =
        json!({ "policy": describe_policy(&vm.policy), "volumes": volumes, "writes_fail": lost.collect::<Vec<_>>() });
    value["cpu_limit_percent"] = json!(vm.cpu_limit.map(percent));
    if !vm.nics.is_empty() {
        value["net"] = describe_net(&vm.net);
        value["nics"] = json!(vm.nics.keys().collect::<Vec<_>>());
    }
    value
}

/// A percentage as a number.
fn percent(part: Percent) -> f64 {
    part.hundredths() as f64 / 100.0
}

pub(super) fn describe_nic(nic: &Nic) -> Value {
    let addresses: Vec<String> = nic.addresses.iter().map(ToString::to_string).collect();
    let access = match &nic.access {
        NicAccess::VhostUser { endpoint, .. } => endpoint.socket().map(|path| path.display().to_string()),
        NicAccess::Tap(name) => Some(format!("tap {name}")),
    };
    json!({
        "uplink": nic.uplink,
        "access": access,
        "mac": nic.mac.to_string(),
        "addresses": addresses,
        "spoof": nic.spoof,
        "dhcp_server": nic.dhcp_server,
        "router_advertisement": nic.router_advertisement,
        "vlan": nic.vlan,
        "mtu": nic.mtu,
        "offloads": nic.offloads,
        "policy": describe_net(&nic.policy),
    })
}

/// Describes the network half of a policy.
pub fn describe_net(net: &NetPolicy) -> Value {
    let mut value = describe_policy(&net.transmit);
    value["burst_time_us"] = json!(net.burst.map(|burst| burst.as_micros() as u64));
    value["receive_limit_bytes_per_second"] = json!(net.receive.limit.map(ByteRate::bytes_per_second));
    value["receive_weight"] = json!(net.receive.weight.map(Weight::as_f64));
    value
}

/// The value of the key `discard`.
pub fn discard(volume: &Volume) -> &'static str {
    if volume.unmaps { "unmap" } else { "ignore" }
}

/// `block_size` is that of the served volume.
fn describe_volume(volume: &Volume, block_size: Option<u32>, loss: Option<&str>) -> Value {
    json!({
        "device": volume.device,
        "source": volume.source,
        "size_bytes": volume.size,
        "block_size_bytes": block_size,
        "serial": volume.serial,
        "discard": discard(volume),
        "writes_fail": loss.map(|reason| format!("yes: {reason}")),
        "policy": describe_policy(&volume.policy),
    })
}

/// Describes a policy.
pub fn describe_policy(policy: &Policy) -> Value {
    serde_json::to_value(PolicyFields::from(policy)).expect("our own types have string keys")
}

/// The fields of a policy in replies. Rates in requests are normalised.
#[derive(Serialize)]
pub struct PolicyFields {
    reservation_iops: Option<f64>,
    reservation_bytes_per_second: Option<u64>,
    limit_iops: Option<f64>,
    limit_bytes_per_second: Option<u64>,
    read_limit_iops: Option<f64>,
    read_limit_bytes_per_second: Option<u64>,
    write_limit_iops: Option<f64>,
    write_limit_bytes_per_second: Option<u64>,
    weight: Option<f64>,
    burst: Option<u32>,
    burst_iops: Option<f64>,
    burst_bytes_per_second: Option<u64>,
    burst_seconds: Option<f64>,
    idle_credit: u32,
    latency_p99_us: Option<f64>,
    latency_reads_only: Option<bool>,
    class: Class,
    priority_class: PriorityClass,
    priority_level: u8,
}

impl From<&Policy> for PolicyFields {
    fn from(policy: &Policy) -> Self {
        let burst = policy.timed_burst;
        PolicyFields {
            reservation_iops: policy.reservation.iops.map(Iops::as_f64),
            reservation_bytes_per_second: policy.reservation.bytes.map(ByteRate::bytes_per_second),
            limit_iops: policy.limit.iops.map(Iops::as_f64),
            limit_bytes_per_second: policy.limit.bytes.map(ByteRate::bytes_per_second),
            read_limit_iops: policy.read_limit.iops.map(Iops::as_f64),
            read_limit_bytes_per_second: policy.read_limit.bytes.map(ByteRate::bytes_per_second),
            write_limit_iops: policy.write_limit.iops.map(Iops::as_f64),
            write_limit_bytes_per_second: policy.write_limit.bytes.map(ByteRate::bytes_per_second),
            weight: policy.weight.map(Weight::as_f64),
            burst: policy.burst,
            burst_iops: burst.and_then(|burst| burst.rate.iops).map(Iops::as_f64),
            burst_bytes_per_second: burst.and_then(|burst| burst.rate.bytes).map(ByteRate::bytes_per_second),
            burst_seconds: burst.map(|burst| burst.length.as_secs_f64()),
            idle_credit: policy.idle_credit,
            latency_p99_us: policy.latency.map(|target| target.p99.as_secs_f64() * 1e6),
            latency_reads_only: policy.latency.map(|target| target.reads_only),
            class: policy.class,
            priority_class: policy.priority_class,
            priority_level: policy.priority_level,
        }
    }
}

/// Returns what differs between two descriptions, in words: `limit_iops=500`. A missing object is `-`.
pub(super) fn difference(before: &Value, after: &Value) -> (String, String) {
    let (before, after) = (flat(before), flat(after));
    let of = |one: &[(String, Value)], other: &[(String, Value)]| {
        let differing = one.iter().filter(|entry| !other.contains(entry) && !entry.1.is_null());
        let words: Vec<String> = differing.map(|(key, value)| format!("{key}={value}")).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(" ") }
    };
    (of(&before, &after), of(&after, &before))
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

fn flat(value: &Value) -> Vec<(String, Value)> {
    let fields = value.as_object().into_iter().flatten();
    let pairs = fields.flat_map(|(key, value)| match value {
        Value::Object(inner) => inner.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        value => vec![(key.clone(), value.clone())],
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_has_only_what_a_change_changed() {
        let vm = |limit: Value| json!({ "policy": { "limit_iops": limit, "weight": 100.0 }, "volumes": ["v"] });
        let words = |before: &Value, after: &Value| {
            let (before, after) = difference(before, after);
            format!("{before} | {after}")
        };
        assert_eq!(words(&vm(Value::Null), &vm(500.0.into())), "- | limit_iops=500.0");
        assert_eq!(words(&vm(500.0.into()), &Value::Null), "limit_iops=500.0 weight=100.0 volumes=[\"v\"] | -");
    }
}
