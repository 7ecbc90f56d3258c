//! The command line: output and exit codes.

use std::path::Path;

use crate::common::{Ended, Place, install, run, schedulers, script, sluice};
use serde_json::{Value, json};

fn run_sluice(arguments: &[&str]) -> Ended {
    run(sluice().args(arguments))
}

/// Runs in the folder of a place, so that messages contain relative file names.
fn run_in(place: &Place, arguments: &[&str]) -> Ended {
    run(sluice().current_dir(place.folder()).args(arguments))
}

#[track_caller]
fn assert_output(ended: &Ended, code: i32, stdout: &str, stderr: &str) {
    assert_eq!((ended.code(), ended.stdout.as_str(), ended.stderr.as_str()), (Some(code), stdout, stderr));
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    folder.join(name).canonicalize().unwrap().to_str().unwrap().to_owned()
}

const WRONG: &str = r#"[device.disk]
path = "srv/vm"
dept = 8
capacity = "500"

[policy.gold]
reservation = "900 iops@8KiB"
weight = 0

[vm.a]
policy = "glod"

[vm.a.volume.v]
device = "disk"
source = "/srv/vm/a.img"
export = { socket = "/run/sluice/a.sock" }
"#;

const FINDINGS: &str = r#"error: Device disk: path: 'srv/vm' is a relative path
 --> host.toml:2:8
  |
2 | path = "srv/vm"
  |        ^^^^^^^^
  = hint: write an absolute path, for example "/dev/nvme0n1"

error: Device disk: unknown key 'dept'
 --> host.toml:3:1
  |
3 | dept = 8
  | ^^^^
  = hint: did you mean 'depth'?

error: Device disk: capacity: '500' has no unit
 --> host.toml:4:12
  |
4 | capacity = "500"
  |            ^^^^^
  = hint: write for example "500 iops"

error: Policy gold: weight: 0 is out of range
 --> host.toml:8:10
  |
8 | weight = 0
  |          ^
  = hint: it must be from 0.01 to 1000000 with at most two digits after the point

error: VM a: policy: there is no policy 'glod'
  --> host.toml:11:10
   |
11 | policy = "glod"
   |          ^^^^^^
   = hint: did you mean 'gold'?

5 errors
"#;

#[test]
fn check_reports_every_error_with_its_position() {
    let place = Place::new();
    place.write("host.toml", WRONG);
    assert_output(&run_in(&place, &["check", "host.toml"]), 1, "", FINDINGS);
    let ended = run_in(&place, &["check", "host.toml", "--output", "json"]);
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(1), FINDINGS));
    let found = json_of(&ended.stdout);
    assert_eq!(found["ok"], false);
    let places: Vec<_> =
        found["diagnostics"].as_array().unwrap().iter().map(|d| (d["line"].clone(), d["column"].clone())).collect();
    assert_eq!(places, [(2, 8), (3, 1), (4, 12), (8, 10), (11, 10)].map(|(line, column)| (json!(line), json!(column))));
    let second = json!({
        "severity": "error", "file": "host.toml", "line": 3, "column": 1, "length": 4,
        "message": "Device disk: unknown key 'dept'", "hint": "did you mean 'depth'?",
    });
    assert_eq!(found["diagnostics"][1], second);
}

#[test]
fn serve_rejects_an_invalid_file_with_the_same_messages() {
    let place = Place::new();
    place.write("host.toml", WRONG);
    assert_output(&run_in(&place, &["serve", "host.toml"]), 1, "", FINDINGS);
    let ended = run_in(&place, &["-o", "json", "serve", "host.toml"]);
    assert_eq!((ended.code(), &json_of(&ended.stdout)["ok"]), (Some(1), &json!(false)));
}

#[test]
fn a_missing_file_is_reported_by_name() {
    let place = Place::new();
    let missing = "error: Cannot read file: No such file or directory (os error 2)\n --> none.toml\n  = hint: correct its name or its \
                   folder\n\n1 error\n";
    for verb in ["check", "serve"] {
        assert_output(&run_in(&place, &[verb, "none.toml"]), 1, "", missing);
    }
}

#[test]
fn check_reports_the_guarantees_of_a_valid_file() {
    let ended = run_sluice(&["check", &example("host.toml")]);
    let expected = " DEVICE  SCHEDULER  VMS  VOLUMES  CAPACITY                 RESERVED                    FLOOR \n \
         nvme0   mclock     3    4        40000 iops@8KiB, 2GiB/s  2492.307 iops@8KiB (6.24%)  2%    \n \
         VM      DEVICE  PART  \n backup  nvme0   0%    \n db1     nvme0   5%    \n web1    nvme0   1.24% \nNo errors\n";
    assert_output(&ended, 0, expected, "");
    let ended = run_sluice(&["-o", "json", "check", &example("two-vms.toml")]);
    let expected = json!({
        "ok": true,
        "warnings": [],
        "devices": [{
            "device": "disk", "scheduler": "mclock", "depth": 32, "reference_size_bytes": 8192,
            "capacity_iops": 2000.0, "bandwidth_bytes_per_second": null, "reserved_iops": 500.0,
            "reserved_bytes_per_second": 0, "reserved_percent": 25.0, "reserved_percent_of_vms": { "noisy": 0.0, "quiet": 25.0 },
            "weight_floor_percent": 2.0, "vms": 2, "volumes": 2, "reserved_iops_hold_up_to_bytes": null,
        }],
        "uplinks": [],
        "nics": [],
    });
    assert_eq!((ended.code(), json_of(&ended.stdout), ended.stderr.as_str()), (Some(0), expected, ""));
}

#[test]
fn check_reports_the_guarantees_of_nics_and_what_is_not_enforced() {
    let place = Place::new();
    let text = std::fs::read_to_string(example("network.toml")).unwrap();
    let file = place.write("host.toml", text.replace("52:54:00:12:34:56", "52:54:00:00:00:01"));
    let table = run(sluice().arg("check").arg(&file)).ok();
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |name: &str| words.iter().find(|row| row.first() == Some(&name)).unwrap().join(" ");
    assert_eq!(row("lan"), "lan bridge br0 mclock 2 3 1Gbit/s 300Mbit/s (30%) 75%");
    assert_eq!(
        row("db1"),
        "db1 lan reservation 300Mbit/s, limit 600Mbit/s, weight 400, burst 5ms, latency 1ms (measured; segments are cut by it)"
    );
    let eth0 = "db1/nic/eth0 lan /run/sluice/db1-eth0.sock 52:54:00:00:00:01 - limit 800Mbit/s";
    assert_eq!(row("db1/nic/eth0"), eth0);
    assert!(row("db1/nic/backup").ends_with(" limit 100Mbit/s -"), "{table}");
    let netback = text.replace("rate       =", "scheduler = \"netback\"\nrate       =");
    let netback = netback.replace("[policy.gold.net]", "[policy.gold.net]\nallow_unenforced = true");
    let file = place.write("host.toml", netback.replace("limit  =", "allow_unenforced = true\nlimit  ="));
    let found = json_of(&run(sluice().args(["-o", "json", "check"]).arg(&file)).stdout);
    let uplink = &found["uplinks"][0];
    assert_eq!((&uplink["reserved_percent"], &uplink["reservable_percent"]), (&json!(30.0), &json!(75.0)));
    assert_eq!((&uplink["rate_bytes_per_second"], &uplink["nics"]), (&json!(125_000_000), &json!(3)));
    let (vm, nic) = (&found["nics"][0], &found["nics"][1]);
    assert_eq!(vm["policy"]["reservation"], "300Mbit/s");
    assert_eq!(vm["enforced"], json!(["limit"]));
    assert_eq!(vm["not_enforced"], json!(["reservation", "weight", "burst", "latency"]));
    assert_eq!((&nic["name"], &nic["not_enforced"]), (&json!("db1/nic/backup"), &json!(["limit"])));
}

#[test]
fn check_says_up_to_which_size_of_requests_reservations_hold() {
    let place = Place::new();
    let device = "[device.d]\nbackend = \"null\"\ncapacity = \"1000 iops@8KiB\"\nbandwidth = \"100MiB/s\"\n";
    let volume = "[vm.a.volume.v]\ndevice = \"d\"\nsize = \"1MiB\"\nexport.socket = \"/run/a.sock\"\n";
    let check = |form: &str, iops: u32| {
        place.write("host.toml", format!("{device}[vm.a]\nreservation = \"{iops} iops\"\n{volume}"));
        run_in(&place, &["-o", form, "check", "host.toml"]).ok()
    };
    let note = "Device d: its bandwidth of 100MiB/s suffices for all reservations in requests only up to a \
                request size of 159232B; a request of 256KiB counts as 1.82 requests, but takes more of the \
                bandwidth.";
    let all = check("table", 980);
    assert!(all.contains(note), "{all}");
    assert_eq!(json_of(&check("json", 980))["devices"][0]["reserved_iops_hold_up_to_bytes"], 159_232);
    assert!(!check("table", 700).contains("its bandwidth"), "requests of any size");
}

#[test]
fn check_counts_reservations_in_bytes() {
    let place = Place::new();
    let volume = |vm| format!("[vm.{vm}]\nreservation = \"10MiB/s\"\n") + &place.volume(vm, "v", &place.file(vm), "");
    let device = "capacity = \"1000 iops\"\nbandwidth = \"100MiB/s\"\nmclock = { weight_floor = \"0.5%\" }";
    let host = place.device(device) + &volume("a") + &volume("b");
    let file = place.write("host.toml", host);
    let check = |format| run(sluice().args(["-o", format, "check"]).arg(&file)).ok();
    let (table, json) = (check("table"), json_of(&check("json")));
    assert!(table.contains(" 1000 iops@8KiB, 100MiB/s  0 iops@8KiB, 20MiB/s (20%)  0.5% "), "{table}");
    assert_eq!(json["devices"][0]["reserved_bytes_per_second"], 20 << 20, "{json}");
    let (part, floor) = (&json["devices"][0]["reserved_percent"], &json["devices"][0]["weight_floor_percent"]);
    assert_eq!((part, floor), (&json!(20.0), &json!(0.5)), "{json}");
    let nothing = place.write("host.toml", place.device("") + &place.volume("a", "v", &place.file("a"), ""));
    let table = run(sluice().arg("check").arg(nothing)).ok();
    assert!(table.contains(" not stated  0 iops@8KiB (0%)  2% "), "{table}");
}

#[test]
fn files_in_the_folder_next_to_a_host_file_override_it() {
    let place = Place::new();
    let image = place.image("a.img", 1 << 20);
    let file = place.write("host.toml", place.device("") + &place.volume("a", "v", &image, ""));
    std::fs::create_dir(place.file("host.d")).unwrap();
    std::fs::write(place.file("host.d/10.toml"), "[device.disk]\nscheduler = \"noop\"\n").unwrap();
    let check = || run(sluice().args(["-o", "json", "check"]).arg(&file));
    assert_eq!(json_of(&check().ok())["devices"][0]["scheduler"], "noop");
    std::fs::write(place.file("host.d/20.toml"), "[device.disk]\nscheduler = \"nop\"\n").unwrap();
    let error = check().failed();
    assert!(error.contains("there is no scheduler 'nop'") && error.contains("host.d/20.toml:2:13"), "{error}");
}

#[test]
fn a_warning_is_not_an_error() {
    let place = Place::new();
    let image = place.image("a.img", 1 << 20);
    let file = place.write("host.toml", place.device("") + &place.volume("a", "v", &image, "cache = \"buffered\""));
    let ended = run(sluice().args(["-o", "json", "check"]).arg(&file));
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stderr.starts_with("warning: Volume a/v: guarantees do not apply"), "{}", ended.stderr);
    assert_eq!(json_of(&ended.stdout)["warnings"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_arguments_exit_with_2() {
    for arguments in [&["--frobnicate"][..], &["serv"], &["serve"], &["check", "a", "b"], &[]] {
        let ended = run_sluice(arguments);
        assert_eq!((ended.code(), ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains("Usage: sluice"), "{arguments:?}: {}", ended.stderr);
    }
    assert_eq!(run_sluice(&["-o", "xml", "schema"]).code(), Some(2));
    let ended = run_sluice(&["--frobnicate"]);
    assert!(ended.stderr.starts_with("error: unexpected argument '--frobnicate' found\n"), "{}", ended.stderr);
}

#[test]
fn help_and_version_succeed() {
    assert_output(&run_sluice(&["--version"]), 0, concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n"), "");
    for verb in ["serve", "check", "schema", "schedulers", "demo", "completions"] {
        let ended = run_sluice(&[verb, "--help"]);
        assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""), "{verb}");
        assert!(ended.stdout.contains(&format!("Usage: sluice {verb}")), "{}", ended.stdout);
    }
}

/// Collects every dotted key of a TOML table, without arrays.
fn keys(value: &toml::Value, path: &[&str], found: &mut Vec<Vec<String>>) {
    let toml::Value::Table(table) = value else { return };
    for (key, value) in table {
        let path: Vec<&str> = path.iter().copied().chain([key.as_str()]).collect();
        found.push(path.iter().map(|&key| key.to_owned()).collect());
        keys(value, &path, found);
    }
}

/// Returns the schema of a key in a table: that of its property, or that of additional properties.
fn step<'a>(schema: &'a Value, root: &'a Value, key: &str) -> Option<&'a Value> {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => root.pointer(reference.strip_prefix('#')?)?,
        None => schema,
    };
    for kind in ["oneOf", "anyOf"] {
        if let Some(found) = schema[kind].as_array().and_then(|all| all.iter().find_map(|one| step(one, root, key))) {
            return Some(found);
        }
    }
    let others = || schema.get("additionalProperties").filter(|others| others.is_object());
    schema["properties"].get(key).or_else(others)
}

#[test]
fn the_schema_contains_every_key_of_the_examples() {
    let ended = run_sluice(&["schema"]);
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
    let schema = json_of(&ended.stdout);
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for name in ["host.toml", "two-vms.toml"] {
        let text = std::fs::read_to_string(example(name)).unwrap();
        let mut found = Vec::new();
        keys(&toml::Value::Table(text.parse().unwrap()), &[], &mut found);
        assert!(found.len() > 20);
        for path in found {
            let known = path.iter().try_fold(&schema, |at, key| step(at, &schema, key));
            assert!(known.is_some_and(|known| known["description"].is_string()), "{name}: {}", path.join("."));
        }
    }
    let unknown = step(&schema, &schema, "device").and_then(|all| step(all, &schema, "disk"));
    assert!(unknown.is_some_and(|device| step(device, &schema, "dept").is_none()));
}

#[test]
fn schedulers_are_listed_and_described() {
    let names = schedulers(|_| true);
    let table = run_sluice(&["schedulers"]).ok();
    let listed: Vec<&str> = table.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(listed, names);
    for name in &names {
        let page = run_sluice(&["schedulers", name]).ok();
        assert!(page.starts_with(&format!("{name}: ")), "{page}");
        for part in
            ["IDEA", "WHEN TO USE IT", "POLICY FIELDS THAT IT ENFORCES", "PARAMETERS in [device.NAME.", "SOURCE"]
        {
            assert!(page.contains(&format!("\n{part}")), "{name} has no {part}: {page}");
        }
        let described = json_of(&run_sluice(&["schedulers", name, "-o", "json"]).ok());
        assert_eq!(described["name"], **name);
        for key in ["summary", "idea", "when", "source"] {
            assert!(described[key].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {key}");
        }
        assert!(described["enforces"].is_array() && described["parameters"].is_array());
    }
    let unknown = format!("error: No scheduler is called 'none'; there are: {}\n", names.join(", "));
    assert_output(&run_sluice(&["schedulers", "none"]), 3, "", &unknown);
}

#[test]
fn completions_are_printed_for_every_shell() {
    for (shell, start) in [("bash", "_sluice()"), ("zsh", "#compdef sluice"), ("fish", "# Print an optspec")] {
        let script = run_sluice(&["completions", shell]).ok();
        assert!(script.starts_with(start), "{shell}: {}", &script[..script.len().min(80)]);
        assert!(script.contains("schedulers") && script.contains("completions"), "{shell}");
    }
    assert_eq!(run_sluice(&["completions", "cmd"]).code(), Some(2));
}

#[test]
fn output_to_a_full_disk_is_an_error() {
    let example = example("host.toml");
    for arguments in [&["schema"][..], &["-o", "json", "check", &example], &["completions", "bash"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let child = sluice().args(arguments).stdout(full).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(
            error.starts_with("error: Cannot write all results to standard output: No space left"),
            "{arguments:?}: {error}"
        );
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let example = example("host.toml");
    for arguments in
        [&["schema"][..], &["schedulers"], &["schedulers", "mclock"], &["check", &example], &["completions", "bash"]]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = sluice().args(arguments).stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn another_program_is_that_in_its_own_folder_and_a_missing_one_is_named() {
    let place = Place::new();
    let program = place.file("sluice");
    install(sluice().get_program().as_ref(), &program);
    let start = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        run(command.args(arguments).env("PATH", Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap()))
    };
    let missing = [
        (
            &["serve", "host.toml"][..],
            "sluiced",
            "run `cargo build --release` in a clone, or install the package sluicegate",
        ),
        (
            &["sim", "run", "scenario.toml"],
            "sluice-lab",
            "run `cargo build --release` in a clone, or install the package sluicegate-lab",
        ),
        (
            &["schema", "scenario"],
            "sluice-lab",
            "run `cargo build --release` in a clone, or install the package sluicegate-lab",
        ),
    ];
    for (arguments, name, remedy) in missing {
        let error = start(arguments).failed();
        let named = format!("error: This command needs {}, which is missing: {remedy}", place.file(name).display());
        assert!(error.starts_with(&named), "{error}");
    }
    assert_eq!(
        start(&["sim", "run"]).failed().lines().next(),
        Some("error: the following required arguments were not provided:")
    );
    let laboratory = place.file("sluice-lab");
    script(&laboratory, "#!/bin/sh\necho \"$*\"\n");
    let output = start(&["-o", "json", "sim", "run", "a b.toml", "--seed=7"]).ok();
    assert_eq!(output, "-o json sim run a b.toml --seed=7\n");
}
