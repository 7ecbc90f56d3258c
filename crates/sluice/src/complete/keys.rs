//! Completion of `KEY=VALUE` for `set` and `attach`: the keys of the table that the target is, and values that are words or names.

use sluice_api::object::ObjectId;
use sluice_config::fields::{Key, Kind, NIC, POLICY, Section, VM, VOLUME};

/// Returns what an assignment for `target` can begin with. `names` are those of a kind of object: `device`, `uplink` or `policy`.
pub(super) fn of(target: &str, names: &dyn Fn(&'static str) -> Vec<String>) -> Vec<String> {
    let section = match target.split_once('/') {
        None => &VM,
        Some(("policy", _)) => &POLICY,
        Some((vm, name)) => match ObjectId::of_vm(vm, name) {
            ObjectId::Nic { .. } => &NIC,
            _ => &VOLUME,
        },
    };
    let mut found = Vec::new();
    add_section(section, "", names, &mut found);
    found
}

fn add_section(section: &Section, prefix: &str, names: &dyn Fn(&'static str) -> Vec<String>, found: &mut Vec<String>) {
    for key in section.groups.iter().copied().flatten() {
        let Key { name, kind, .. } = key;
        add(&format!("{prefix}{name}"), kind, names, found);
    }
}

fn add(name: &str, kind: &Kind, names: &dyn Fn(&'static str) -> Vec<String>, found: &mut Vec<String>) {
    let mut values = |values: &[&str]| found.extend(values.iter().map(|value| format!("{name}={value}")));
    match kind {
        Kind::Bool => values(&["true", "false"]),
        Kind::Word(words) => values(words),
        Kind::Name(of) => values(&names(of).iter().map(String::as_str).collect::<Vec<_>>()),
        Kind::Table(section) => add_section(section, &format!("{name}."), names, found),
        Kind::Either(kinds) => kinds.iter().for_each(|kind| add(name, kind, names, found)),
        // Objects of their own, and what no single value states.
        Kind::Named(_) | Kind::NamedChoices(_) | Kind::List(_) | Kind::Open(_) | Kind::Chosen(_) => {}
        _ => values(&[""]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(target: &str) -> Vec<String> {
        of(target, &|kind| vec![format!("a-{kind}")])
    }

    #[track_caller]
    fn has(target: &str, wanted: &[&str], unwanted: &[&str]) {
        let keys = keys(target);
        let known = |key: &&&str| keys.iter().any(|known| known == *key);
        let missing: Vec<_> = wanted.iter().filter(|key| !known(key)).collect();
        let too_much: Vec<_> = unwanted.iter().filter(known).collect();
        assert!(missing.is_empty() && too_much.is_empty(), "missing {missing:?}, too much {too_much:?}: {keys:?}");
    }

    #[test]
    fn each_target_has_the_keys_of_its_table() {
        has(
            "vm1",
            &["weight=", "weight=none", "net.limit=", "policy=a-policy", "limit=unlimited"],
            &["uplink=a-uplink"],
        );
        has("vm1/nic/eth0", &["uplink=a-uplink", "receive.weight=", "mac=", "spoof=true"], &["device=a-device"]);
        has("vm1/data", &["device=a-device", "latency.p99=", "export.socket="], &["net.weight="]);
        has("policy/gold", &["reservation=", "cpu_limit=unlimited"], &["policy=a-policy"]);
    }
}
