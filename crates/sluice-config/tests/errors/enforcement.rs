//! Policies that the scheduler of a device does not enforce.

use super::*;

#[test]
fn an_unenforced_field_names_the_schedulers_that_enforce_it() {
    let noop = GOOD.replace(PATH, "path = \"/dev/sda\"\nscheduler = \"noop\"").replace("= 100\n", "= 200\n");
    let found = parse("host.toml", &noop).unwrap_err().0;
    let message = "Policy p: weight is not enforced by noop, the scheduler of device d: no guarantee is given";
    assert_eq!((found.len(), found[0].message.as_str()), (1, message));
    let hint = found[0].hint.as_deref().unwrap();
    assert!(
        hint.contains("mclock") && hint.ends_with("; or set allow_unenforced = true to accept it without effect"),
        "{hint}"
    );
    let allowed = parse("host.toml", &noop.replace("= 200\n", "= 200\nallow_unenforced = true\n")).unwrap();
    assert_eq!((allowed.warnings.len(), allowed.warnings[0].message.as_str()), (1, message));
}

#[test]
fn a_latency_is_enforced_by_schedulers_with_deadlines() {
    let latency = GOOD.replace("= 100\n", "= 100\nlatency = { p99 = \"5ms\" }\n");
    let found = parse("host.toml", &latency).unwrap_err().0;
    let hint = "enforced by edf-credit, flubber; or set allow_unenforced = true to accept it without effect";
    assert_eq!((found.len(), found[0].hint.as_deref()), (1, Some(hint)), "{found:?}");
    for scheduler in ["edf-credit", "flubber"] {
        let chosen = format!("path = \"/dev/sda\"\nscheduler = \"{scheduler}\"");
        let host = latency.replace(PATH, &chosen);
        assert!(parse("host.toml", &host).is_ok(), "{scheduler}: {:?}", parse("host.toml", &host));
        let class = host.replace("p99 = \"5ms\" }\n", "p99 = \"5ms\" }\nclass = \"background\"\n");
        let refused = parse("host.toml", &class).err().map(|found| found.0[0].hint.clone().unwrap_or_default());
        let needs = "edf-credit with background = \"idle\", flubber, ";
        let by_a_parameter = refused.as_deref().is_some_and(|hint| hint.contains(needs));
        assert_eq!(by_a_parameter, scheduler == "edf-credit", "{refused:?}");
        let class = class.replace(&chosen, &format!("{chosen}\nedf-credit = {{ background = \"idle\" }}"));
        assert!(parse("host.toml", &class).is_ok() || scheduler == "flubber", "{:?}", parse("host.toml", &class));
        let limited = parse("host.toml", &class.replace("= 100\n", "= 100\nlimit = \"5 iops\"\n")).unwrap_err().0;
        assert!(limited.iter().any(|found| found.message.contains("limit is not enforced")), "{limited:?}");
    }
}

#[test]
fn a_volume_has_no_policy_if_volumes_share_a_queue() {
    let sfqd = GOOD.replace(PATH, "path = \"/dev/sda\"\nscheduler = \"sfqd\"");
    let found = parse("host.toml", &sfqd.replace("device = \"d\"", "device = \"d\"\nweight = 200")).unwrap_err().0;
    let message = "Volume a/v: weight of a volume inside a VM is not enforced by sfqd, the scheduler of device d: no guarantee is given";
    assert_eq!((found.len(), found[0].message.as_str()), (1, message));
    assert!(found[0].hint.as_deref().unwrap().starts_with("enforced by mclock;"), "{found:?}");
    assert!(parse("host.toml", &sfqd).is_ok(), "the VM's own weight is enforced");
}

#[test]
fn the_published_mclock_has_no_volume_policies() {
    let host = |mode: &str, allow: &str| {
        let host = GOOD.replace(PATH, &format!("path = \"/dev/sda\"\nscheduler = \"{mode}\""));
        host.replace("device = \"d\"", &format!("device = \"d\"\nweight = 200{allow}"))
    };
    assert!(parse("host.toml", &host("mclock", "")).is_ok());
    let found = parse("host.toml", &host("mclock-paper", "")).unwrap_err().0;
    let message = "Volume a/v: weight of a volume inside a VM is not enforced by mclock-paper, the scheduler of device d: no guarantee is given";
    assert_eq!((found.len(), found[0].message.as_str()), (1, message));
    let hint = "enforced by mclock; or set allow_unenforced = true to accept it without effect";
    assert_eq!(found[0].hint.as_deref(), Some(hint));
    let warnings = parse("host.toml", &host("mclock-paper", "\nallow_unenforced = true")).unwrap().warnings;
    assert!(warnings.iter().any(|found| found.message == message), "{warnings:?}");
}

#[test]
fn no_scheduler_enforces_a_latency_for_reads_only() {
    for scheduler in ["edf-credit", "flubber"] {
        let host = GOOD.replace(PATH, &format!("path = \"/dev/sda\"\nscheduler = \"{scheduler}\""));
        let host = |more: &str| {
            host.replace("= 100\n", &format!("= 100\nlatency = {{ p99 = \"5ms\", reads_only = true }}\n{more}"))
        };
        let found = parse("host.toml", &host("")).unwrap_err().0;
        let message = format!(
            "Policy p: latency.reads_only is not enforced by {scheduler}, the scheduler of device d: writes have the \
             same deadline, and reads wait for them"
        );
        assert_eq!((found.len(), found[0].message.as_str()), (1, message.as_str()), "{found:?}");
        assert!(found[0].hint.as_deref().unwrap().contains("remove reads_only"), "{found:?}");
        let warnings = parse("host.toml", &host("allow_unenforced = true\n")).unwrap().warnings;
        assert!(warnings.iter().any(|found| found.message == message), "{warnings:?}");
    }
}

#[test]
fn a_policy_on_two_devices_causes_a_warning() {
    let more = "[device.e]\npath = \"/dev/sdb\"\n[vm.a.volume.w]\ndevice = \"e\"\nsource = \"/srv/vm/w.img\"\n\
                export = { socket = \"/run/sluice/w.sock\" }\n";
    let text = GOOD.replace("= 100\n", "= 200\n") + more;
    let warnings = parse("host.toml", &text).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    // rule: mclock.two-devices
    assert_eq!(warnings[0].message, "VM a has volumes on 2 devices: d, e");
    assert_eq!((warnings[0].line, warnings[0].column, warnings[0].length), (7, 5, 1));
}
