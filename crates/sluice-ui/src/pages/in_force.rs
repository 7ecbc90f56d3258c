//! What an object has of its own, and what is in force for it, which may be the value of a policy.

use serde_json::Value;
use sluice_api::amount::{self, bandwidth, bits};
use sluice_api::policy::Policy;
use sluice_api::status::Vm;

/// Keys of an object, with the tag of their version, and what it has of them and of its policy.
#[derive(Default)]
pub(super) struct InForce {
    pub(super) keys: Value,
    pub(super) etag: String,
    /// Of its requests, and of the frames that its NICs send; none while it is not served.
    pub(super) disk: Option<Policy>,
    pub(super) net: Option<Policy>,
}

impl InForce {
    /// Adds what is in force for a VM, on each of its devices, or for one of its volumes.
    pub(super) fn with_policies(self, vms: &[Vm], volume: Option<&str>) -> InForce {
        let is_nic = |name: &str| name.starts_with("nic/");
        let of_uplink = |vm: &&Vm| vm.volumes.iter().any(|volume| is_nic(&volume.volume));
        let Some(name) = volume else {
            let disk = vms.iter().find(|vm| !of_uplink(vm)).map(|vm| vm.policy.clone());
            let net = vms.iter().find(of_uplink).map(|vm| vm.policy.clone());
            return InForce { disk, net, ..self };
        };
        let policy = vms.iter().flat_map(|vm| &vm.volumes).find(|volume| volume.volume == name);
        let policy = policy.map(|volume| volume.policy.clone());
        if is_nic(name) { InForce { net: policy, ..self } } else { InForce { disk: policy, ..self } }
    }

    /// The value of a key that is in force, with the policy that it comes from.
    pub(super) fn value(&self, key: &str) -> Option<String> {
        let policy = match key.starts_with("net.") {
            true => self.net.as_ref(),
            // The keys of a NIC have the same names as those of a volume.
            false => self.disk.as_ref().or(self.net.as_ref()),
        }?;
        let is_net = self.disk.is_none() || key.starts_with("net.");
        let bytes = |value: u64| if is_net { bits(8.0 * value as f64) } else { bandwidth(value as f64) };
        let both = |iops: Option<f64>, rate: Option<u64>, none: &str| {
            let texts = iops.map(|value| format!("{} iops", amount::rate(value))).into_iter().chain(rate.map(bytes));
            Some(texts.collect::<Vec<_>>().join(", "))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| none.to_owned())
        };
        let value = match key.rsplit('.').next()? {
            "reservation" => both(policy.reservation_iops, policy.reservation_bytes_per_second, "none"),
            "limit" => both(policy.limit_iops, policy.limit_bytes_per_second, "unlimited"),
            _ => policy.weight?.to_string(),
        };
        match self.keys["policy"].as_str().filter(|_| shown(&self.keys, key).is_empty()) {
            Some(name) => Some(format!("{value} (policy {name})")),
            None => Some(value),
        }
    }
}

/// The value of a key as the form shows it.
pub(super) fn shown(keys: &Value, key: &str) -> String {
    let value = key.split('.').fold(keys, |at, part| &at[part]);
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // A rate in requests and one in bytes.
        Value::Object(both) if both.len() == 2 && both.values().all(Value::is_string) => {
            let texts: Vec<&str> = ["iops", "bytes"].iter().filter_map(|unit| both.get(*unit)?.as_str()).collect();
            if texts.len() == 2 { texts.join(", ") } else { value.to_string() }
        }
        other => other.to_string(),
    }
}
