//! Changes at run time, which override a host file.

use std::sync::Arc;

use proptest::prelude::*;
use sluice_config::changes::Changes;
use sluice_config::{Host, load_files};

#[test]
fn a_change_parsed_the_tables_of_all_vms_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    // The warning of `warned` concerns only its own table.
    let text = "[device.d]\nbackend = \"null\"\n[policy.p]\nweight = 300\n".to_owned()
        + &vm("a", "policy = \"p\"", "")
        + &vm("b", "", "")
        + &vm("warned", "", "source = \"/not/used\"\n");
    std::fs::write(&file, text).unwrap();
    let (files, before) = load_files(&file).unwrap();
    let mut changes = Changes::default();
    changes.set("b".parse().unwrap(), "weight = 7".parse().unwrap());
    changes.set("c/v".parse().unwrap(), new_volume("c"));
    let after = files.changed(&changes).unwrap();
    assert_eq!(after.vms.keys().collect::<Vec<_>>(), ["a", "b", "c", "warned"]);
    assert!(Arc::ptr_eq(&before.vms["a"], &after.vms["a"]), "nothing of it has changed");
    assert_eq!(after.vms["b"].policy.weight.map(|weight| weight.as_f64()), Some(7.0));
    assert_eq!(before.vms["warned"], after.vms["warned"]);
    assert_eq!((before.warnings.len(), &before.warnings), (1, &after.warnings), "it is said each time");
    changes.set("c/v".parse().unwrap(), "export.socket = \"/run/a\"".parse().unwrap());
    let refused = files.changed(&changes).unwrap_err();
    assert!(refused.to_string().contains("/run/a is already used by Volume a/v"), "{refused}");
}

#[test]
fn a_change_parsed_the_tables_of_all_vms_with_earlier_changes_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    std::fs::write(&file, two_policies()).unwrap();
    let (files, _) = load_files(&file).unwrap();
    let mut changes = Changes::default();
    changes.set("a".parse().unwrap(), "weight = 7".parse().unwrap());
    let first = files.changed(&changes).unwrap();
    // A refused change changes nothing of this.
    let mut wrong = changes.clone();
    wrong.set("a".parse().unwrap(), "weight = 0".parse().unwrap());
    files.changed(&wrong).unwrap_err();
    changes.set("b".parse().unwrap(), "weight = 8".parse().unwrap());
    let second = files.changed(&changes).unwrap();
    assert!(Arc::ptr_eq(&first.vms["a"], &second.vms["a"]), "nothing of it has changed since");
    assert_eq!(second.vms["b"].policy.weight.map(|weight| weight.as_f64()), Some(8.0));
}

fn two_policies() -> String {
    "[device.d]\nbackend = \"null\"\n[policy.p]\nweight = 300\n[policy.q]\nweight = 400\n".to_owned()
        + &vm("a", "policy = \"p\"", "")
        + &vm("b", "policy = \"q\"", "")
        + &vm("c", "", "")
}

/// The changes of a list of operations: each a kind, a VM or policy, and a value.
fn changes_of(operations: &[(u8, u8, u8)]) -> Changes {
    let mut changes = Changes::default();
    for (kind, of, value) in operations {
        let vm = ["a", "b", "c", "d"][*of as usize % 4];
        let policy = ["p", "q"][*of as usize % 2];
        match kind % 6 {
            0 => changes.set(vm.parse().unwrap(), format!("weight = {value}").parse().unwrap()),
            1 => changes
                .set(vm.parse().unwrap(), format!("policy = \"{}\"", ["p", "q"][*value as usize % 2]).parse().unwrap()),
            2 => changes.set(format!("policy/{policy}").parse().unwrap(), format!("weight = {value}").parse().unwrap()),
            3 => changes.remove(vm.parse().unwrap()),
            4 => changes.set(format!("{vm}/v").parse().unwrap(), new_volume(vm)),
            _ => changes.set(format!("{vm}/v").parse().unwrap(), format!("weight = {value}").parse().unwrap()),
        }
    }
    changes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn files_with_changes_are_what_they_are_without_the_changes_before(
        operations in prop::collection::vec((any::<u8>(), any::<u8>(), 0_u8..20), 1..40),
        taken_back in prop::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("host.toml");
        std::fs::write(&file, two_policies()).unwrap();
        let (files, _) = load_files(&file).unwrap();
        let mut made: Vec<(u8, u8, u8)> = Vec::new();
        for (operation, taken_back) in operations.into_iter().zip(taken_back) {
            // Each third one takes an earlier one back.
            if operation.0 % 3 == 0 && !made.is_empty() {
                made.remove(taken_back.index(made.len()));
            } else {
                made.push(operation);
            }
            let changes = changes_of(&made);
            let (again, alone) = (files.changed(&changes), load_files(&file).unwrap().0.changed(&changes));
            let without_warnings = |host: Host| Host { warnings: Vec::new(), ..host };
            let texts = |host: &Host| {
                let mut texts: Vec<_> = host.warnings.iter().map(|warning| warning.message.clone()).collect();
                texts.sort();
                texts
            };
            match (again, alone) {
                (Ok(again), Ok(alone)) => {
                    prop_assert_eq!(texts(&again), texts(&alone));
                    prop_assert_eq!(without_warnings(again), without_warnings(alone));
                }
                (again, alone) => prop_assert_eq!(again.map_err(|found| found.errors()), alone.map_err(|found| found.errors())),
            }
        }
    }
}

#[test]
fn the_files_own_value_of_a_key_is_found_where_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("host.toml");
    let text = "[device.d]\nbackend = \"null\"\n[policy.p]\nweight = 300\nlimit = \"90 iops\"\n".to_owned()
        + &vm("a", "policy = \"p\"\nweight = 7", "");
    std::fs::write(&file, text).unwrap();
    let (files, _) = load_files(&file).unwrap();
    let stated = |target: &str, key: &str| files.stated(&target.parse().unwrap(), key);
    assert_eq!(stated("a", "weight"), Some(7.into()), "its own");
    assert_eq!(stated("a", "limit"), Some("90 iops".into()), "that of its policy");
    assert_eq!(stated("a", "limit.bytes"), Some("90 iops".into()), "what is in place of it");
    assert_eq!(stated("a/v", "export.socket"), Some("/run/a".into()));
    assert_eq!((stated("a", "burst"), stated("b", "weight"), stated("a/w", "size")), (None, None, None));
    assert!(files.has(&"a/v".parse().unwrap()) && !files.has(&"a/w".parse().unwrap()));
}

fn vm(name: &str, keys: &str, of_volume: &str) -> String {
    let volume = format!("device = \"d\"\nsize = \"1MiB\"\nexport = {{ socket = \"/run/{name}\" }}\n");
    format!("[vm.{name}]\n{keys}\n[vm.{name}.volume.v]\n{volume}{of_volume}")
}

fn new_volume(name: &str) -> toml::Table {
    format!("device = \"d\"\nsize = \"1MiB\"\nexport.socket = \"/run/{name}\"").parse().unwrap()
}
