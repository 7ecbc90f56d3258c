//! The number of requests that VMs must keep outstanding for what they reserve, where what is in flight follows the time of requests.

use serde_json::{Map, Value, json};
use sluice_config::{Device, Host};

use sluice_daemon::explain::outstanding::Needed;

/// VMs with a reservation in requests on a device with `latency`, and what they need.
fn needed<'a>(host: &'a Host, device: &Device) -> impl Iterator<Item = (&'a str, Needed)> {
    let aim = device.aim();
    let name = device.name.clone();
    let here = host.vms.values().filter(move |vm| vm.volumes.values().any(|volume| volume.device == name));
    here.filter_map(move |vm| Some((vm.name.as_str(), Needed::new(&aim?, vm.policy.reservation.iops?.as_f64()))))
}

/// Notes for people.
pub(super) fn notes(host: &Host, device: &Device) -> Vec<String> {
    let of = |(vm, needed): (&str, Needed)| format!("Device {}: {vm} {}.", device.name, needed.in_words());
    needed(host, device).map(of).collect()
}

/// What is needed of each VM, for programs; nothing if the device states no `latency`.
pub(super) fn add_json(host: &Host, device: &Device, result: &mut Value) {
    let Some(latency) = device.latency else { return };
    let vms: Map<String, Value> = needed(host, device).map(|(vm, needed)| (vm.to_owned(), needed.json())).collect();
    result["latency_us"] = json!(latency.as_micros() as u64);
    result["outstanding_needed"] = Value::Object(vms);
}
