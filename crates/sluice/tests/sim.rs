//! `sluice sim`: what is printed, that it repeats, and that wrong files are refused.

use std::path::{Path, PathBuf};

use common::{Ended, Place, run, sluice};
use serde_json::Value;

mod common;

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

#[test]
fn a_run_prints_what_it_promises() {
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
    assert_eq!(names, ["conservation", "little", "device-busy", "timeline"]);
    assert!(checks.iter().all(|check| check["ok"] == true));
    let iops = |vm: usize| vms[vm]["iops"].as_f64().unwrap();
    assert!(iops(0) >= 392.0 && (950.0..1050.0).contains(&(iops(0) + iops(1))), "{} and {}", iops(0), iops(1));
}

#[test]
fn the_division_of_the_paper_comes_out() {
    let result = json_of(&sim(&["run", "scenario-division.toml", "-o", "json"]));
    let iops: Vec<f64> = result["vms"].as_array().unwrap().iter().map(|vm| vm["iops"].as_f64().unwrap()).collect();
    for (got, paper) in iops.iter().zip([250.0, 380.0, 570.0]) {
        assert!((got - paper).abs() <= 0.02 * 1200.0, "{iops:?}");
    }
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
        assert!(sim(&["run", name]).stdout.contains("all checks hold"), "{name}");
    }
}

#[test]
fn check_says_what_follows() {
    let result = json_of(&sim(&["check", "scenario-aged-ssd.toml", "-o", "json"]));
    let device = &result["devices"][0];
    assert_eq!((device["reserved_iops"].as_f64(), device["capacity_iops"].as_f64()), (Some(500.0), Some(1000.0)));
    assert_eq!(device["facts"]["spare blocks of a plane"], "67, of which 3 are kept free");
    assert_eq!((result["runs"].as_u64(), result["vms"][1]["offset_bytes"].as_u64()), (Some(12), Some(3828 << 20)));
}

#[test]
fn a_scenario_that_promises_too_much_is_refused_unless_admission_is_off() {
    let place = Place::new();
    let text = SMALL.replace("400 iops", "600 iops");
    let file = place.write("s.toml", &text);
    let refused = run(sluice().args(["sim", "run"]).arg(file));
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("short by 100 iops@8KiB") && refused.stdout.is_empty(), "{}", refused.stderr);
    let file = place.write("s.toml", text.replace("warm_up", "admission = \"off\"\nwarm_up"));
    let run = run(sluice().args(["sim", "run"]).arg(&file));
    assert_eq!(run.code(), Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("warning: ") && run.stderr.contains("short by 100 iops@8KiB"), "{}", run.stderr);
}
