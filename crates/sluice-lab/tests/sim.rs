//! `sluice sim`: its output, its repeatability, and errors in scenario files.

use std::path::{Path, PathBuf};

use crate::common::{Ended, Place, run, sluice};
use serde_json::Value;

mod results;
mod sweeps;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().expect("the examples are there")
}

fn sim(arguments: &[&str]) -> Ended {
    run(sluice().current_dir(examples()).arg("sim").args(arguments))
}

fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
}

/// A scenario of two VMs on a device of 1,000 requests per second.
const SMALL: &str = r#"[sim]
duration = "4s"
warm_up = "1s"
[device.d]
model = { type = "servers", time = "1ms", distribution = "exponential" }
capacity = "500 iops"
[vm.a]
device = "d"
workload = "closed"
reservation = "400 iops"
[vm.b]
device = "d"
workload = { type = "closed", outstanding = 4 }
weight = 300
"#;

fn in_folder(place: &Place, arguments: &[&str]) -> Ended {
    run(sluice().current_dir(place.folder()).args(["sim"]).args(arguments))
}

fn text(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns every file in a folder with its content, in order.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(files(&path)),
            false => all.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    all.sort();
    all
}

fn names(folder: &Path) -> Vec<String> {
    let name = |(path, _): &(PathBuf, Vec<u8>)| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files(folder).iter().map(name).collect()
}

#[test]
fn a_run_prints_promises_and_results() {
    let place = Place::new();
    let file = place.write("s.toml", SMALL);
    let result = json_of(&run(sluice().args(["-o", "json", "sim", "run"]).arg(&file)));
    let keys: Vec<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
    for key in ["version", "seed", "duration_s", "vms", "series", "checks"] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }
    assert_eq!((result["version"].as_str(), result["seed"].as_u64()), (Some(env!("CARGO_PKG_VERSION")), Some(1)));
    assert_eq!(result["duration_s"].as_f64(), Some(4.0));
    let vms = result["vms"].as_array().unwrap();
    assert_eq!(vms.iter().map(|vm| vm["vm"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    for vm in vms {
        let completed = vm["completed"].as_f64().unwrap();
        assert_eq!(vm["iops"].as_f64(), Some(completed / 3.0));
        assert_eq!(vm["bytes_per_second"].as_f64(), Some(completed * 8192.0 / 3.0));
        let latency = |what: &str| vm["latency_us"][what].as_f64().unwrap();
        assert!(latency("p50") <= latency("p99") && latency("mean") > 0.0, "{vm}");
        let by = |what: &str| vm["dispatched"][what].as_u64().unwrap();
        assert!((by("reservation") + by("weight")).abs_diff(completed as u64) <= 64, "{vm}");
        let series = result["series"].as_array().unwrap().iter().filter(|moment| moment["vm"] == vm["vm"]);
        let series: Vec<_> =
            series.map(|moment| (moment["t_s"].as_f64().unwrap(), moment["iops"].as_f64().unwrap())).collect();
        assert_eq!(series.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
        assert_eq!(series.iter().map(|(_, iops)| iops).sum::<f64>(), completed);
    }
    let checks = result["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
    assert_eq!(names, ["conservation", "little", "device-busy", "timeline", "flash-writes"]);
    assert!(checks.iter().all(|check| check["ok"] == true));
    let iops = |vm: usize| vms[vm]["iops"].as_f64().unwrap();
    assert!(iops(0) >= 392.0 && (950.0..1050.0).contains(&(iops(0) + iops(1))), "{} and {}", iops(0), iops(1));
}

/// The device serves 1,000 requests per second, the file states 2,000, and VM a reserves 1,500 of them.
/// Requests of 4 KiB count as the part of 8 MiB/s that a device of 1000 requests and 32 MiB per second can give them: a quarter, 250 requests.
#[test]
fn a_kept_reservation_in_bytes_was_called_broken_for_small_requests() {
    let place = Place::new();
    let scenario = r#"
        [sim]
        duration = "30s"
        warm_up = "2s"
        [device.d]
        model = { type = "constant", rate = "1000 iops" }
        depth = 4
        capacity = "1000 iops"
        bandwidth = "32MiB/s"
        [vm.a]
        device = "d"
        workload = { type = "closed", outstanding = 32, size = "4KiB" }
        reservation = "8MiB/s"
        weight = 0.01
        [vm.b]
        device = "d"
        workload = { type = "closed", outstanding = 32 }
        weight = 10000
    "#;
    let file = place.write("bytes.toml", scenario);
    let ran = run(sluice().args(["-o", "json", "sim", "run"]).arg(&file));
    assert_eq!(ran.code(), Some(0), "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    let a = &result["vms"][0];
    assert_eq!(a["promises"][0]["verdict"], "kept", "{a}");
    let iops = a["iops"].as_f64().unwrap();
    assert!((245.0..270.0).contains(&iops), "{iops} of 250 requests per second");
}

#[test]
fn a_run_with_broken_promises_exited_with_success() {
    let place = Place::new();
    let text = SMALL.replace("500 iops", "2000 iops").replace("400 iops", "1500 iops");
    let text = text.replace("workload = \"closed\"", "workload = { type = \"closed\", outstanding = 32 }");
    let file = place.write("s.toml", text + "limit = \"500 iops\"\n");
    let table = run(sluice().args(["sim", "run"]).arg(&file));
    assert_eq!(table.code(), Some(2), "{}", table.stderr);
    for part in
        ["PROMISE", "VERDICT", "reservation 1500 iops", "BROKEN: ", "limit 500 iops", "kept", "1 promise NOT kept"]
    {
        assert!(table.stdout.contains(part), "no {part:?} in\n{}", table.stdout);
    }
    let json = run(sluice().args(["-o", "json", "sim", "run"]).arg(&file));
    assert_eq!(json.code(), Some(2));
    let result: Value = serde_json::from_str(&json.stdout).unwrap();
    let (a, b) = (&result["vms"][0]["promises"][0], &result["vms"][1]["promises"][0]);
    assert_eq!((a["verdict"].as_str(), a["expected"].as_f64()), (Some("broken"), Some(1500.0)));
    assert!(a["measured"].as_f64().unwrap() < 1100.0, "{a}");
    assert_eq!((b["promise"].as_str(), b["verdict"].as_str()), (Some("limit 500 iops"), Some("kept")));
    let check = run(sluice().args(["sim", "check"]).arg(&file));
    let warning = "capacity = 2000 iops@8KiB is more than the 1000 iops that its model delivers: any requests";
    assert!(check.code() == Some(0) && check.stderr.contains(warning), "{}", check.stderr);
    assert!(run(sluice().args(["sim", "check"]).arg(place.write("small.toml", SMALL))).ok().contains("No errors"));
}

#[test]
fn a_field_that_a_timeline_entry_does_not_state_was_shown_as_reset() {
    let place = Place::new();
    let text = SMALL.to_owned() + "[[timeline]]\nat = \"2s\"\nchange = \"policy\"\nvm = \"a\"\nlimit = \"450 iops\"\n";
    let file = place.write("s.toml", text);
    let output = run(sluice().args(["sim", "run"]).arg(&file)).ok();
    assert!(output.contains("At 2 s the policy of VM a changed in limit; as before: reservation"), "{output}");
    let json = json_of(&run(sluice().args(["-o", "json", "sim", "run"]).arg(&file)));
    let change = serde_json::json!({ "t_s": 2.0, "vm": "a", "changed": ["limit"], "as_before": ["reservation"] });
    assert_eq!(json["policy_changes"], serde_json::json!([change]));
}

#[test]
fn the_papers_division_is_reproduced() {
    let result = json_of(&sim(&["run", "scenario-division.toml", "-o", "json"]));
    let iops: Vec<f64> = result["vms"].as_array().unwrap().iter().map(|vm| vm["iops"].as_f64().unwrap()).collect();
    for (got, paper) in iops.iter().zip([250.0, 380.0, 570.0]) {
        assert!((got - paper).abs() <= 0.02 * 1200.0, "{iops:?}");
    }
}

#[test]
fn weights_hold_across_nodes_only_if_vms_report_remote_service() {
    let place = Place::new();
    let text = std::fs::read_to_string(examples().join("scenario-dmclock.toml")).unwrap();
    let (placed, alone) = ("placement = 0\n", "policies_hold = \"at-each-node\"");
    assert!(text.contains(placed) && text.contains("policies_hold = \"across-nodes\""));
    let over_c1 = |text: &str| {
        let file = place.write("s.toml", text);
        let result = json_of(&run(sluice().args(["sim", "run", "-o", "json"]).arg(file)));
        let iops = |vm: usize| result["vms"][vm]["iops"].as_f64().unwrap();
        [iops(1) / iops(0), iops(2) / iops(0)]
    };
    let near = |[c2, c3]: [f64; 2], wanted: [f64; 2]| {
        (c2 / wanted[0] - 1.0).abs() <= 0.03 && (c3 / wanted[1] - 1.0).abs() <= 0.03
    };
    let untold = text.replace("policies_hold = \"across-nodes\"", alone);
    let anywhere = over_c1(&text.replace(placed, ""));
    assert!(near(anywhere, [4.0, 6.0]), "{anywhere:?}");
    // The requests of one VM go to a single node, where the others get a third of their total.
    let (told, untold) = (over_c1(&text), over_c1(&untold));
    assert!(near(told, [4.0, 6.0]), "{told:?}");
    assert!(near(untold, [12.0, 18.0]), "{untold:?}");
}

#[test]
fn a_limit_holds_across_nodes() {
    let place = Place::new();
    let file = |holds: &str| {
        let text = SMALL.replace("[vm.a]", &format!("nodes = 3\npolicies_hold = \"{holds}\"\n[vm.a]"));
        let many = text.replace("outstanding = 4", "outstanding = 64");
        place.write("s.toml", many.replace("weight = 300", "limit = \"90 iops\"\nburst = 1"))
    };
    let b = |holds: &str| {
        let result = json_of(&run(sluice().args(["sim", "run", "-o", "json"]).arg(file(holds))));
        result["vms"][1]["iops"].as_f64().unwrap()
    };
    let (across, each) = (b("across-nodes"), b("at-each-node"));
    assert!((85.0..=92.0).contains(&across) && (255.0..=276.0).contains(&each), "{across} and {each}");
}

#[test]
fn every_example_runs_and_repeats() {
    let entries = std::fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let scenarios: Vec<String> = entries.filter(|name| name.starts_with("scenario-")).collect();
    assert!(scenarios.len() >= 6, "{scenarios:?}");
    for name in &scenarios {
        let (first, again) = (sim(&["run", name, "-o", "json"]), sim(&["run", name, "-o", "json"]));
        let result = json_of(&first);
        assert!(
            result["vms"].as_array().unwrap().iter().all(|vm| vm["completed"].as_u64() > Some(0)),
            "{name}: {result}"
        );
        assert_eq!(first.stdout, again.stdout, "{name}");
        assert_ne!(first.stdout, sim(&["run", name, "-o", "json", "--seed", "2"]).stdout, "{name}");
        assert_eq!(json_of(&sim(&["check", name, "-o", "json"]))["ok"], true);
        assert!(sim(&["run", name]).stdout.contains("all invariants hold"), "{name}");
    }
}

#[test]
fn the_error_for_an_unwritable_folder_names_its_option() {
    for verb in ["run", "sweep"] {
        let refused = sim(&[verb, "scenario-division.toml", "--out", "/proc/none"]);
        assert_eq!(refused.code(), Some(4), "{verb}");
        let output = refused.failed();
        assert!(
            output.contains("Cannot write into /proc") && output.contains("name a folder with --out"),
            "{verb}: {output}"
        );
    }
}

#[test]
fn check_prints_derived_values() {
    let nodes = sim(&["check", "scenario-three-nodes.toml"]).ok();
    assert!(nodes.starts_with("Device store: 3 nodes of servers, scheduler mclock\n"), "{nodes}");
    let result = json_of(&sim(&["check", "scenario-aged-ssd.toml", "-o", "json"]));
    let device = &result["devices"][0];
    assert_eq!((device["reserved_iops"].as_f64(), device["capacity_iops"].as_f64()), (Some(300.0), Some(1000.0)));
    assert_eq!(device["facts"]["spare blocks of a plane"], "67, of which 3 stay free");
    assert_eq!((result["runs"].as_u64(), result["vms"][1]["offset_bytes"].as_u64()), (Some(12), Some(3828 << 20)));
}

#[test]
fn an_overcommitted_scenario_is_rejected_unless_admission_is_off() {
    let place = Place::new();
    let text = SMALL.replace("400 iops", "600 iops");
    let file = place.write("s.toml", &text);
    let refused = run(sluice().args(["sim", "run"]).arg(file));
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("short by 22%") && refused.stdout.is_empty(), "{}", refused.stderr);
    let file = place.write("s.toml", text.replace("warm_up", "admission = \"off\"\nwarm_up"));
    let run = run(sluice().args(["sim", "run"]).arg(&file));
    assert_eq!(run.code(), Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("warning: ") && run.stderr.contains("short by 22%"), "{}", run.stderr);
}

#[test]
fn vms_share_a_link_and_keep_a_minimum() {
    let result = json_of(&sim(&["run", "scenario-network.toml", "-o", "json"]));
    let vm = |name: &str| result["vms"].as_array().unwrap().iter().find(|vm| vm["vm"] == name).unwrap().clone();
    let rate = |name: &str| vm(name)["bytes_per_second"].as_f64().unwrap() / 1e6;
    // 16 Mbit/s of 200 bytes each, in frames of 242 bytes.
    assert!((rate("telephone") - 2.42).abs() < 0.05, "{}", rate("telephone"));
    assert!((rate("shop") / rate("backup") - 3.0).abs() < 0.1, "{} and {}", rate("shop"), rate("backup"));
    assert_eq!(vm("shop")["dropped"], 0, "wrr takes no frame that has no room");
    assert_eq!(result.get("cpus"), None);
    let check = sim(&["check", "scenario-network.toml"]).ok();
    assert!(check.contains("95.71 Mbit/s") && check.contains("12.30 MB/s"), "{check}");
    assert!(check.contains("as stated   12.0 MB/s") && check.contains("reserved              2.5 MB/s"), "{check}");
}

#[test]
fn a_disk_takes_the_driver_domains_cpu_from_the_network() {
    let result = json_of(&sim(&["run", "scenario-driver-domain.toml", "-o", "json"]));
    let series = result["series"].as_array().unwrap().iter().filter(|moment| moment["vm"] == "sender");
    let rates: Vec<f64> = series.map(|moment| moment["bytes_per_second"].as_f64().unwrap() * 8e-6).collect();
    let mean = |from: usize, to: usize| rates[from..to].iter().sum::<f64>() / (to - from) as f64;
    // Frames of 1514 bytes: at the rate of the link, and one for each 20 us and 200 us of the driver domain's CPU.
    let (full, in_turn) = (1514.0 * 8.0 / 123.04, 1514.0 * 8.0 / 220.0);
    let [before, between, after] = [mean(5, 8), mean(10, 16), mean(22, 26)];
    let near = |got: f64, wanted: f64| (got / wanted - 1.0).abs() < 0.02;
    assert!(near(before, full) && near(between, in_turn) && near(after, full), "{before} {between} {after}");
    let cpus: Vec<&str> = result["cpus"].as_array().unwrap().iter().map(|cpu| cpu["of"].as_str().unwrap()).collect();
    assert_eq!(cpus, ["driver domain", "VM reader", "VM sender"]);
}

#[test]
fn an_invalid_seed_is_rejected_with_the_valid_range() {
    let place = Place::new();
    let file = place.write("s.toml", SMALL);
    for seed in ["x", "-1", "1.5", "9223372036854775808"] {
        let refused = run(sluice().args(["sim", "run", "--seed", seed]).arg(&file));
        assert_eq!(refused.code(), Some(2), "{seed}");
        assert!(refused.stderr.contains("write a whole number from 0 to 9223372036854775807"), "{}", refused.stderr);
    }
}
