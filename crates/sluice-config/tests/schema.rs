//! The schema contains every key of the examples, and the reader accepts every default and example in it.

use serde_json::Value;
use sluice_config::fields::{HOST, Kind, Section};
use sluice_config::schema;

fn example(name: &str) -> toml::Table {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Keys of `table` that the schema does not have.
fn unknown(schema: &Value, table: &toml::Table, path: &str, found: &mut Vec<String>) {
    let any = schema.get("anyOf").and_then(Value::as_array).map_or(vec![schema], |any| any.iter().collect());
    let schema = any.into_iter().find(|one| one["type"] == "object").unwrap_or(schema);
    for (key, value) in table {
        let path = format!("{path}.{key}");
        let known =
            schema["properties"].get(key).or_else(|| schema.get("additionalProperties").filter(|s| s.is_object()));
        match (known, value) {
            (None, _) => found.push(path),
            (Some(known), toml::Value::Table(table)) => unknown(known, table, &path, found),
            _ => {}
        }
    }
}

#[test]
fn the_schema_has_every_key_of_the_examples() {
    let schema = schema();
    for name in ["host.toml", "two-vms.toml", "network.toml"] {
        let mut found = Vec::new();
        unknown(&schema, &example(name), "", &mut found);
        assert_eq!(found, [""; 0], "{name}");
    }
    let mut found = Vec::new();
    let wrong: toml::Table = "[device.d]\npaht = 1\ndelay.time.maen = 2\nmclock.batsh = 3\n".parse().unwrap();
    unknown(&schema, &wrong, "", &mut found);
    assert_eq!(found, [".device.d.delay.time.maen", ".device.d.mclock.batsh", ".device.d.paht"]);
}

#[test]
fn the_schema_states_kinds_ranges_and_defaults() {
    let schema = schema();
    let device = &schema["properties"]["device"]["additionalProperties"];
    let depth = &device["properties"]["depth"];
    assert_eq!((&depth["minimum"], &depth["maximum"]), (&Value::from(1), &Value::from(65_536)));
    assert_eq!((&depth["type"], &depth["default"]), (&Value::from("integer"), &Value::from(32)));
    assert_eq!(device["properties"]["backend"]["enum"], serde_json::json!(["direct", "null"]));
    assert_eq!(device["properties"]["mclock"]["properties"]["batch_distance"]["default"], "4MiB");
    assert_eq!(device["additionalProperties"], false);
}

#[test]
fn the_schema_knows_where_data_may_be() {
    let schema = schema();
    let device = &schema["properties"]["device"]["additionalProperties"]["properties"];
    let volume = &schema["properties"]["vm"]["additionalProperties"]["properties"]["volume"];
    let source = &volume["additionalProperties"]["properties"]["source"];
    let meeting = &device["pool"]["properties"]["meeting"];
    let path = &device["path"]["anyOf"][1];
    for (key, starts) in [(path, ["nbd", "rbd:"]), (source, ["nbd", "rbd:"]), (meeting, ["/", "rados:"])] {
        let pattern = key["pattern"].as_str().unwrap();
        assert!(starts.iter().all(|start| pattern.contains(start)), "{pattern}");
    }
}

/// Calls `visit` with every section and key.
fn walk(section: &'static Section, visit: &mut impl FnMut(&'static Section, &'static sluice_config::fields::Key)) {
    fn inner(kind: &'static Kind, visit: &mut impl FnMut(&'static Section, &'static sluice_config::fields::Key)) {
        match kind {
            Kind::Table(section) | Kind::Named(section) => walk(section, visit),
            Kind::Either(kinds) => kinds.iter().for_each(|kind| inner(kind, visit)),
            _ => {}
        }
    }
    for key in section.keys() {
        visit(section, key);
        inner(&key.kind, visit);
    }
}

/// A valid host with everything that other keys require.
const BASE: &str = r#"
[device.nvme0]
path = "/dev/nvme0n1"
capacity = "40000 iops@8KiB"
bandwidth = "2GiB/s"
[device.nvme0.delay]
time = "5ms"
[policy.gold]
weight = 1
[vm.a]
reservation = "3000 iops"
allow_unenforced = true
[vm.a.volume.v]
device = "nvme0"
source = "/srv/vm/a.img"
allow_unenforced = true
export = { socket = "/run/sluice/a.sock" }
[nbd]
socket = "/run/sluice/nbd.sock"
[uplink.lan]
bridge = "br1"
rate = "10Gbit/s"
[vm.a.net]
reservation = "200Mbit/s"
[vm.a.nic.v]
uplink = "lan"
socket = "/run/sluice/a-v.sock"
"#;

/// A drop-in that sets one key of a section.
fn drop_in(section: &Section, key: &str, value: &str) -> String {
    let beside = match (section.title, key) {
        ("vm.NAME.volume.NAME.export", "listen") => {
            return format!("[vm.a.volume.v]\nexport = {{ listen = {value} }}\n");
        }
        ("vm.NAME.volume.NAME.export", "queues") => "type = \"vhost-user-blk\"",
        ("policy.NAME.burst", _) | ("policy.NAME.burst.rate", _) => {
            let limit = "[policy.a]\nlimit = { iops = \"100 iops\", bytes = \"1MiB/s\" }\n";
            return match key {
                "rate" => format!("{limit}burst = {{ rate = {value}, for = \"1s\" }}\n"),
                "for" => format!("{limit}burst = {{ rate = \"500 iops\", for = {value} }}\n"),
                _ => format!("{limit}burst = {{ rate = {{ {key} = {value} }}, for = \"1s\" }}\n"),
            };
        }
        ("device.NAME", "pool") => "latency = \"8ms\"",
        ("device.NAME.pool", key) => {
            let other = if key == "host" { "meeting = \"/m\"" } else { "host = 1" };
            return format!("[device.nvme0]\nlatency = \"8ms\"\npool = {{ {key} = {value}, {other} }}\n");
        }
        ("nbd.tls", "certificate") => "key = \"/k\"",
        ("nbd.tls", "key") => "certificate = \"/c\"",
        ("nbd.tls", _) => "certificate = \"/c\"\nkey = \"/k\"",
        ("nbd.tls.client.NAME", _) => {
            let tls = "[nbd.tls]\ncertificate = \"/c\"\nkey = \"/k\"\nclient_ca = \"/a\"";
            return format!("{tls}\n[nbd.tls.client.a]\n{key} = {value}\n");
        }
        ("nbd.gateway.NAME", key) => {
            let other = if key == "vms" { "key_file = \"/k\"" } else { "vms = \"*\"" };
            return format!("[nbd]\nnode = \"n\"\n[nbd.gateway.a]\n{other}\n{key} = {value}\n");
        }
        ("device.NAME.delay.time", "min") => "max = \"1s\"",
        ("device.NAME.delay.time", "max") => "min = \"1ms\"",
        ("policy.NAME.latency", "reads_only") => "p99 = \"5ms\"",
        ("policy.NAME.reservation", "outstanding") => "latency = \"5ms\"",
        ("policy.NAME.reservation", "latency") => "outstanding = 5",
        ("uplink.NAME", "nic" | "tap") => return format!("[uplink.b]\n{key} = {value}\n"),
        ("vm.NAME.nic.NAME", "tap") => return format!("[vm.a.nic.w]\nuplink = \"lan\"\ntap = {value}\n"),
        ("policy.NAME.net" | "vm.NAME.nic.NAME", "burst") => "limit = \"1Gbit/s\"",
        ("alert.NAME", "every") => return format!("[alert.all]\ncommand = \"/alert\"\nevery = {value}\n"),
        ("alert.NAME", _) => return format!("[alert.all]\n{key} = {value}\n"),
        _ => "",
    };
    let header = match (section.title.strip_prefix("device.NAME"), section.title) {
        (Some(rest), _) => format!("device.nvme0{rest}"),
        (None, "uplink.NAME") => "uplink.lan".to_owned(),
        (None, _) => section.title.replacen("NAME", "a", 1).replacen("NAME", "v", 1),
    };
    format!("[{header}]\n{beside}\n{key} = {value}\n")
}

#[test]
fn the_reader_accepts_every_example_and_every_default() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("host.toml");
    std::fs::create_dir(folder.path().join("host.d")).unwrap();
    std::fs::write(&main, BASE).unwrap();
    let mut checked = 0;
    walk(&HOST, &mut |section, key| {
        if section.title.is_empty() || key.example.is_empty() {
            return;
        }
        let default = key.default.filter(|default| serde_json::from_str::<Value>(default).is_ok());
        for value in std::iter::once(key.example).chain(default) {
            let text = drop_in(section, key.name, value);
            std::fs::write(folder.path().join("host.d/key.toml"), &text).unwrap();
            sluice_config::load(&main).unwrap_or_else(|found| panic!("{text}\n{found}"));
            checked += 1;
        }
    });
    assert!(checked > 80, "{checked}");
}
