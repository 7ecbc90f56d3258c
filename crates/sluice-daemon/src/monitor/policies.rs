//! Named policies: what each states, who holds it, and what its holders reserve on each device and uplink.

use std::collections::BTreeMap;

use sluice_api::list::NamedPolicy;
use sluice_api::object::ObjectId;
use sluice_api::policy::{Half, Policy};
use sluice_config::{Host, Nic, Vm};
use sluice_observe::status;

use crate::control::describe::describe_net;

/// Who holds a policy on one device.
#[derive(Default)]
struct Holders<'a> {
    vms: Vec<&'a Vm>,
    /// As VM/VOLUME, or VM/nic/NIC. Their reservations are parts of those of their VMs.
    volumes: Vec<String>,
}

/// Returns one row for each named policy and device or uplink on which a VM, volume or NIC holds it, and one for a policy that nothing holds.
pub(super) fn rows(host: &Host) -> Vec<NamedPolicy> {
    let mut rows = Vec::new();
    for (name, policy) in &host.policies {
        let holders = holders(host, name);
        let policy = status::policy(policy);
        if holders.is_empty() {
            let policy = Half::Disk(policy.clone());
            rows.push(NamedPolicy { policy_name: name.clone(), policy, ..NamedPolicy::default() });
        }
        rows.extend(holders.iter().map(|(device, holders)| row(host, name, device, holders, &policy)));
    }
    rows
}

fn holders<'a>(host: &'a Host, name: &str) -> BTreeMap<&'a str, Holders<'a>> {
    let mut found = BTreeMap::<&str, Holders<'_>>::new();
    let is_held = |by: &Option<String>| by.as_deref() == Some(name);
    for vm in host.vms.values() {
        for volume in vm.volumes.values() {
            if is_held(&vm.policy_name) {
                let vms = &mut found.entry(volume.device.as_str()).or_default().vms;
                // Its policy applies once on each device.
                if vms.last().is_none_or(|last| last.name != vm.name) {
                    vms.push(vm);
                }
            }
            if is_held(&volume.policy_name) {
                found.entry(volume.device.as_str()).or_default().volumes.push(format!("{}/{}", vm.name, volume.name));
            }
        }
        for nic in vm.nics.values() {
            let held = [&vm.policy_name, &nic.policy_name].map(is_held);
            if held != [false, false] {
                add_nic(found.entry(nic.uplink.as_str()).or_default(), vm, nic, held);
            }
        }
    }
    found
}

/// Adds what a NIC and its VM hold on their uplink.
fn add_nic<'a>(holders: &mut Holders<'a>, vm: &'a Vm, nic: &Nic, [by_vm, by_nic]: [bool; 2]) {
    // A VM is listed once on each uplink.
    if by_vm && holders.vms.last().is_none_or(|last| last.name != vm.name) {
        holders.vms.push(vm);
    }
    if by_nic {
        holders.volumes.push(ObjectId::nic(&vm.name, &nic.name).to_string());
    }
}

fn row(host: &Host, name: &str, device: &str, Holders { vms, volumes }: &Holders<'_>, policy: &Policy) -> NamedPolicy {
    let uplink = host.uplinks.get(device);
    let policies = || vms.iter().map(|vm| if uplink.is_some() { &vm.net.transmit } else { &vm.policy });
    let iops = policies().filter_map(|policy| policy.reservation.iops).map(|iops| iops.as_f64());
    // The sum of no numbers is -0.0.
    let iops = iops.sum::<f64>() + 0.0;
    let bytes: u64 = policies().filter_map(|policy| policy.reservation.bytes).map(|rate| rate.bytes_per_second()).sum();
    let shared = host.devices.get(device).or_else(|| uplink.map(|uplink| &uplink.link));
    let policy = match (uplink, host.net_policies.get(name)) {
        (Some(_), Some(net)) => Half::Net(describe_net(net)),
        _ => Half::Disk(policy.clone()),
    };
    let part = shared.and_then(|device| device.supply().reserved(policies()));
    NamedPolicy {
        policy_name: name.to_owned(),
        device: Some(device.to_owned()),
        vms: vms.iter().map(|vm| vm.name.clone()).collect(),
        volumes: volumes.clone(),
        reserved_iops: (iops > 0.0).then_some(iops),
        reserved_bytes_per_second: (bytes > 0).then_some(bytes),
        reserved_percent: part.map(|part| part.0 as f64 / 100.0),
        policy,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, to_value};

    use super::*;

    #[test]
    fn nics_hold_the_network_half_of_a_policy_on_their_uplink() {
        let text = "[policy.gold.net]\nreservation = \"100Mbit/s\"\n[policy.tin.net]\nweight = 3\n\
                    [uplink.lan]\ntap = \"up0\"\nrate = \"1Gbit/s\"\n[vm.a]\npolicy = \"gold\"\n\
                    [vm.a.nic.eth0]\nuplink = \"lan\"\ntap = \"a0\"\n\
                    [vm.a.nic.eth1]\nuplink = \"lan\"\ntap = \"a1\"\npolicy = \"tin\"\n";
        let host = sluice_config::parse("host.toml", text).unwrap_or_else(|errors| panic!("{errors}"));
        let keys = ["policy_name", "device", "vms", "volumes", "reserved_bytes_per_second", "reserved_percent"];
        let rows: Vec<Value> = rows(&host).iter().map(|row| to_value(row).unwrap()).collect();
        let seen: Vec<Value> = rows.iter().map(|row| keys.map(|key| row[key].clone()).into()).collect();
        let expected =
            [json!(["gold", "lan", ["a"], [], 12_500_000, 10.0]), json!(["tin", "lan", [], ["a/nic/eth1"], null, 0.0])];
        assert_eq!(seen, expected);
        assert_eq!(rows[0]["policy"]["reservation_bytes_per_second"], 12_500_000);
        assert!(
            rows[0]["policy"].get("receive_weight").is_some(),
            "by which a reader knows the policy of a link: {rows:?}"
        );
    }

    #[test]
    fn each_policy_has_its_holders_and_what_they_reserve_on_each_device() {
        let volume = |vm: &str, volume: &str, device: &str, policy: &str| {
            format!(
                "[vm.{vm}.volume.{volume}]\ndevice = \"{device}\"\nsize = \"1MiB\"\n{policy}\nexport.socket = \"/run/{vm}-{volume}\"\n"
            )
        };
        let text = [
            "[policy.gold]\nreservation = \"100 iops\"\nlimit = \"900 iops\"\n[policy.tin]\nweight = 3\n[policy.idle]\nweight = 1\n",
            "[device.d]\nbackend = \"null\"\ncapacity = \"1000 iops@8KiB\"\n[device.e]\nbackend = \"null\"\ncapacity = \"500 iops@8KiB\"\n",
            "[vm.a]\npolicy = \"gold\"\n[vm.b]\npolicy = \"gold\"\nreservation = \"50 iops\"\n",
            &volume("a", "r", "d", ""),
            &volume("a", "s", "d", "policy = \"tin\""),
            &volume("a", "t", "e", ""),
            &volume("b", "r", "d", ""),
        ];
        let host = sluice_config::parse("host.toml", &text.concat()).unwrap_or_else(|errors| panic!("{errors}"));
        let seen: Vec<Value> = rows(&host)
            .into_iter()
            .map(|row| {
                let row = to_value(row).unwrap();
                let policy =
                    (&row["policy"]["reservation_iops"], &row["policy"]["limit_iops"], &row["policy"]["weight"]);
                json!([
                    row["policy_name"],
                    row["device"],
                    row["vms"],
                    row["volumes"],
                    row["reserved_iops"],
                    row["reserved_percent"],
                    policy
                ])
            })
            .collect();
        let gold = json!([100.0, 900.0, 100.0]);
        let expected = [
            json!(["gold", "d", ["a", "b"], [], 150.0, 15.0, gold]),
            json!(["gold", "e", ["a"], [], 100.0, 20.0, gold]),
            json!(["idle", null, [], [], null, null, [null, null, 1.0]]),
            json!(["tin", "d", [], ["a/s"], null, 0.0, [null, null, 3.0]]),
        ];
        assert_eq!(seen, expected);
    }
}
