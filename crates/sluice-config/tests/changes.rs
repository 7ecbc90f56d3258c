//! Changes at run time, which override a host file.

use std::sync::Arc;

use sluice_config::changes::Changes;
use sluice_config::load_files;

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
