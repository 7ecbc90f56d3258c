//! The examples are parsed as intended, and drop-ins are combined.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_config::{Backend, Delay, DelayTime, ListenAddress, NicAccess, Window, load, parse};
use sluice_net::Mac;
use sluice_sched::admission::{Capacity, reservation_for};
use sluice_sched::params::Value;
use sluice_sched::policy::{Class, LatencyTarget};
use sluice_sched::{ByteRate, Bytes, CostModel, Iops, Policy, Weight};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

#[test]
fn the_host_example_is_parsed_as_intended() {
    let host = load(&example("host.toml")).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(host.warnings, []);
    let device = &host.devices["nvme0"];
    assert_eq!(device.paths[0].path(), Path::new("/dev/nvme0n1"));
    assert_eq!((&device.backend, device.scheduler.name, device.depth), (&Backend::Direct, "mclock", 32));
    let capacity = Capacity { iops: Some(Iops::per_second(40_000)), bytes: Some(ByteRate::per_second(2 << 30)) };
    assert_eq!(device.capacity, capacity);
    assert_eq!((device.reference, device.rotational, device.admission), (Bytes::kib(8), None, true));
    assert_eq!(device.window, Window { requests: 128, bytes: 32 << 20 });
    assert_eq!((device.cost, &device.delay), (CostModel::default(), &None));
    let params = [("reservation_catchup_max", "1s"), ("weight_floor", "2%")];
    let params = params.map(|(name, value)| (name.to_owned(), Value::Text(value.to_owned())));
    assert_eq!(device.params, BTreeMap::from(params));
    assert_eq!(host.vms.keys().collect::<Vec<_>>(), ["backup", "db1", "web1"]);
    let gold = Policy { burst: Some(64), idle_credit: 16, ..Policy::weighted(400).reserving(2000).limited(8000) };
    let db1 = &host.vms["db1"];
    assert_eq!(db1.policy, gold);
    let root = &db1.volumes["root"];
    assert_eq!((root.offset, root.size, root.read_only, root.buffered), (0, None, false, false));
    assert_eq!((root.device.as_str(), root.policy), ("nvme0", Policy::default()));
    let (owner, group) = (Some("libvirt-qemu".to_owned()), Some("kvm".to_owned()));
    let socket = ListenAddress::Unix { path: "/run/sluice/db1-root.sock".into(), owner, group, mode: 0o660 };
    assert_eq!((root.export.name.as_str(), &root.export.endpoint), ("db1/root", &socket));
    assert_eq!((db1.volumes["log"].size, db1.volumes["log"].policy), (Some(10 << 30), Policy::weighted(200)));
    let web1 = &host.vms["web1"];
    assert_eq!(web1.policy.reservation.iops, Some(reservation_for(32, Duration::from_millis(65))));
    assert_eq!(web1.policy.limit.bytes, Some(ByteRate::per_second(200 << 20)));
    assert_eq!(web1.policy.weight, Some(Weight::new(200)));
    assert_eq!(web1.volumes["root"].export.endpoint, ListenAddress::Tcp("127.0.0.1:10810".parse().unwrap()));
    assert_eq!(host.vms["backup"].policy.class, Class::Background);
    assert_eq!(host.vms["backup"].volumes["db1"].export.name, "backup-of-db1");
    assert_eq!((host.nbd.endpoints.len(), host.nbd.connections_max), (1, 1024));
    assert_eq!(host.daemon.drain_timeout, Duration::from_secs(10));
}

#[test]
fn the_network_example_is_parsed_as_intended() {
    let host = load(&example("network.toml")).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(host.warnings, []);
    let mbit = |rate: u64| Some(ByteRate::per_second(rate * 125_000));
    let lan = &host.uplinks["lan"];
    assert_eq!((lan.port.key(), lan.port.interface(), lan.isolated, lan.mtu), ("bridge", "br0", false, 1500));
    assert_eq!(
        (lan.link.scheduler.name, lan.link.capacity.bytes, lan.link.capacity.iops),
        ("mclock", mbit(1000), None)
    );
    assert_eq!((lan.link.cost, lan.link.reservable.to_string().as_str()), (CostModel::frames(), "75%"));
    let (db1, web1) = (&host.vms["db1"], &host.vms["web1"]);
    assert_eq!(db1.policy, Policy::default(), "nothing is inherited by disks");
    let gold = db1.net;
    assert_eq!((gold.transmit.reservation.bytes, gold.transmit.limit.bytes), (mbit(300), mbit(600)));
    assert_eq!((gold.transmit.weight, gold.burst), (Some(Weight::new(400)), Some(Duration::from_millis(5))));
    // 5 ms at 600 Mbit/s are 375,000 bytes: 243.8 full frames of 1538 bytes, and one.
    assert_eq!(gold.transmit.burst, Some(245));
    assert_eq!(gold.transmit.latency, Some(LatencyTarget { p99: Duration::from_millis(1), reads_only: false }));
    assert_eq!(host.net_policies["gold"], gold);
    let (eth0, backup) = (&db1.nics["eth0"], &db1.nics["backup"]);
    assert_eq!((eth0.mac.to_string().as_str(), eth0.mtu, eth0.offloads), ("52:54:00:12:34:56", 1500, true));
    let addresses: Vec<String> = eth0.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.5/32", "fd00::5/128"]);
    assert_eq!((eth0.policy.transmit, eth0.policy.receive), (Policy::default(), gold.receive));
    let NicAccess::VhostUser { endpoint, queues: 16 } = &eth0.access else { panic!("{eth0:?}") };
    assert_eq!(endpoint.socket(), Some(Path::new("/run/sluice/db1-eth0.sock")));
    assert_eq!((&backup.access, backup.vlan), (&NicAccess::Tap("db1-backup".to_owned()), Some(20)));
    assert_eq!((backup.policy.transmit.limit.bytes, backup.policy.receive.limit), (mbit(100), None));
    assert_eq!(gold.receive.limit, mbit(800), "which this NIC does not inherit");
    assert_eq!((web1.net.transmit.limit.bytes, web1.nics["eth0"].mac), (mbit(200), Mac::of("web1", "eth0")));
}

#[test]
fn the_small_example_is_parsed_as_intended() {
    let host = load(&example("two-vms.toml")).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!(host.warnings, []);
    let time = DelayTime::Fixed(Duration::from_millis(4));
    let delay = Delay { time, parallel: 8, bandwidth: None, log: None, seed: 1 };
    assert_eq!(host.devices["disk"].delay, Some(delay));
    assert_eq!(host.vms["quiet"].policy, Policy::default().reserving(500));
    assert_eq!(host.vms["noisy"].policy, Policy::default().limited(1500));
    assert_eq!((host.nbd.endpoints.len(), host.nbd.connections_max), (0, 1024));
}

#[test]
fn keys_that_the_examples_do_not_use_are_parsed() {
    let text = r#"
[device.null]
backend = "null"
depth = 1
reference_size = "4KiB"
rotational = true
admission = "off"
cost = { flush = 0.5, discard = 2, discard_mib = 0.25 }
window.requests = 7
delay = { time = { min = "3ms", max = "11ms" }, bandwidth = "60MB/s", log = "/srv/slots.csv", seed = 9 }
scheduler = "mclock-paper"
mclock-paper = { batch = 4 }
[vm.a]
reservation = { iops = "10 iops@4KiB", bytes = "10MiB/s" }
limit = { iops = "unlimited", bytes = "20MiB/s" }
weight = "none"
latency = { p99 = "5ms", reads_only = true }
allow_unenforced = true
[vm.a.volume.v]
device = "null"
size = "1GiB"
export = { listen = "[::1]:10810" }
"#;
    let host = parse("inline", text).unwrap_or_else(|found| panic!("{found}"));
    let device = &host.devices["null"];
    assert_eq!((device.depth, device.window.requests, device.rotational), (1, 7, Some(true)));
    assert_eq!((device.cost.flush.as_f64(), device.cost.discard.as_f64()), (0.5, 2.0));
    assert_eq!(device.cost.discard_mib.as_f64(), 0.25);
    assert_eq!(device.cost.reference, Some(Bytes::kib(4)));
    assert_eq!(device.params["batch"], Value::Integer(4));
    let (min, max) = (Duration::from_millis(3), Duration::from_millis(11));
    assert_eq!(device.delay.as_ref().unwrap().time, DelayTime::Uniform { min, max });
    let policy = host.vms["a"].policy;
    assert_eq!((policy.weight, policy.limit.iops), (None, None));
    assert_eq!(policy.latency, Some(LatencyTarget { p99: Duration::from_millis(5), reads_only: true }));
    // The latency that no scheduler enforces, and the reservation without a capacity, with admission off.
    assert_eq!(host.warnings.len(), 2, "{:#?}", host.warnings);
    assert_eq!(parse("inline", text).unwrap(), host);
    assert_ne!(parse("inline", &text.replace("depth = 1", "depth = 2")).unwrap(), host);
}

const MAIN: &str = r#"
[device.d]
path = "/dev/sda"
capacity = "1000 iops"
delay = { time = "4ms" }
[policy.p]
weight = 100
limit = { iops = "100 iops", bytes = "1MiB/s" }
[vm.a]
policy = "p"
[vm.a.volume.v]
device = "d"
source = "/srv/vm/a.img"
export = { socket = "/run/sluice/a.sock" }
"#;

fn with_dropins(dropins: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("sluice.toml");
    fs::write(&main, MAIN).unwrap();
    fs::create_dir(folder.path().join("sluice.d")).unwrap();
    for (name, text) in dropins {
        fs::write(folder.path().join("sluice.d").join(name), text).unwrap();
    }
    (folder, main)
}

#[test]
fn drop_ins_override_in_the_order_of_their_names() {
    let (_folder, main) = with_dropins(&[
        ("20-b.toml", "[policy.p]\nweight = 300\n[device.d]\ndepth = 8\n"),
        ("10-a.toml", "[policy.p]\nweight = 200\nlimit.bytes = \"2MiB/s\"\n[vm.a]\nburst = 3\n"),
        ("30-c.toml", "[device.d]\ndelay = { time = \"5ms\", parallel = 2 }\n"),
        ("40-not.conf", "weight = \n"),
        (".50-hidden.toml", "weight = \n"),
    ]);
    let host = load(&main).unwrap_or_else(|found| panic!("{found}"));
    let policy = host.vms["a"].policy;
    assert_eq!((policy.weight, policy.burst), (Some(Weight::new(300)), Some(3)));
    assert_eq!(policy.limit.iops, Some(Iops::per_second(100)));
    assert_eq!(policy.limit.bytes, Some(ByteRate::per_second(2 << 20)));
    let device = &host.devices["d"];
    assert_eq!((device.depth, device.delay.as_ref().unwrap().parallel), (8, 2));
}

#[test]
fn an_error_names_its_file() {
    let (_folder, main) = with_dropins(&[("10-a.toml", "[policy.p]\n\nweight = \"much\"\n")]);
    let found = load(&main).unwrap_err();
    assert_eq!(found.0.len(), 1, "{found}");
    assert!(found.0[0].file.ends_with("sluice.d/10-a.toml"), "{found}");
    assert_eq!((found.0[0].line, found.0[0].column), (3, 10));
}

#[test]
fn an_invalid_file_neither_hides_nor_causes_errors_of_other_files() {
    let (_folder, main) = with_dropins(&[
        ("10-a.toml", "[policy.gold\nweight = 1\n"),
        ("20-b.toml", "[vm.b]\npolicy = \"gold\"\nwieght = 3\n"),
    ]);
    let found = load(&main).unwrap_err();
    let messages: Vec<_> = found.0.iter().map(|found| found.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{found}");
    assert!(messages[0].starts_with("Not TOML: "), "{found}");
    assert_eq!(messages[1], "VM b: unknown key 'wieght'");
}

#[test]
fn an_unreadable_file_is_reported_as_an_error_of_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.toml");
    let found = load(&missing).unwrap_err();
    assert_eq!((found.0.len(), found.0[0].line), (1, 0));
    let name = missing.display().to_string();
    assert_eq!(
        found.to_string(),
        format!(
            "error: Cannot read file: No such file or directory (os error 2)\n --> {name}\n  = hint: correct its name or its folder\n\n1 error"
        )
    );
    fs::write(&missing, b"a = 1\nb = \"\xff\"\n").unwrap();
    let found = load(&missing).unwrap_err();
    assert_eq!((found.0[0].message.as_str(), found.0[0].line, found.0[0].column), ("File is not UTF-8", 2, 6));
    fs::write(&missing, vec![b'\n'; (1 << 20) + 1]).unwrap();
    assert_eq!(load(&missing).unwrap_err().0[0].message, "File is too large");
}
