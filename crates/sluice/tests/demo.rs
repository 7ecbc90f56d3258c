//! `sluice demo` as a new user runs it: the real binary, to its end and interrupted.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Returns the demo, with its temporary files in `folder`.
fn demo(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["--output", "json", "demo", "--seconds", "4"]).env("TMPDIR", folder).env_remove("RUST_LOG");
    command
}

fn is_empty(folder: &Path) -> bool {
    folder.read_dir().unwrap().next().is_none()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Returns the number at a path in the object.
fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {path} of {value}"))
}

#[test]
fn noop_violates_the_reservation_and_mclock_keeps_every_guarantee() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(stdout.lines().count(), 1, "one object and nothing else: {stdout}\n{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();

    assert_eq!(keys(&report), ["capacity_iops", "link_mbit", "link_phases", "ok", "phases", "promises"], "{report}");
    assert_eq!(number(&report, "/capacity_iops"), 2000.0);
    for (phase, scheduler) in ["noop", "mclock"].into_iter().enumerate() {
        let phase = &report["phases"][phase];
        assert_eq!(keys(phase), ["scheduler", "vms"]);
        assert_eq!(phase["scheduler"], scheduler);
        let names: Vec<_> = phase["vms"].as_array().unwrap().iter().map(|vm| vm["vm"].as_str().unwrap()).collect();
        assert_eq!(names, ["oltp", "web", "backup"]);
        for vm in phase["vms"].as_array().unwrap() {
            assert_eq!(keys(vm), ["iops", "limit_iops", "p50_us", "p99_us", "reservation_iops", "vm", "weight"]);
            assert!(number(vm, "/iops") > 0.0 && number(vm, "/p50_us") <= number(vm, "/p99_us"), "{vm}");
        }
    }
    let promises = report["promises"].as_array().unwrap();
    assert!(promises.iter().all(|promise| keys(promise) == ["expected", "kept", "measured", "promise"]), "{report}");

    let reserved = number(&report, "/phases/0/vms/0/reservation_iops");
    let limit = number(&report, "/phases/0/vms/2/limit_iops");
    assert!(number(&report, "/phases/0/vms/0/iops") < 0.6 * reserved, "noop breaks it by far: {report}");
    assert!(number(&report, "/phases/0/vms/2/iops") > 1.5 * limit, "{report}");
    assert!(promises.iter().all(|promise| promise["kept"] != false), "{report}\n{stderr}");
    // Those that the machine was too busy to judge are null.
    let is_judged = promises.iter().all(|promise| promise["kept"] == true);
    assert_eq!((&report["ok"], output.status.code()), (&Value::Bool(is_judged), Some(i32::from(!is_judged))));
    if is_judged {
        assert!(number(&report, "/phases/1/vms/0/iops") >= 0.99 * reserved);
        assert!(number(&report, "/phases/1/vms/2/iops") <= 1.02 * limit);
    }

    for (phase, scheduler) in ["noop", "mclock"].into_iter().enumerate() {
        assert_eq!(report["link_phases"][phase]["scheduler"], scheduler);
    }
    let mbit = |phase: usize, vm: usize| number(&report, &format!("/link_phases/{phase}/vms/{vm}/mbit"));
    assert!(mbit(0, 0) < 40.0 && mbit(0, 2) > 25.0, "noop divides the link by the number of NICs: {report}");
    assert!(!is_judged || mbit(1, 0) >= 49.5 && mbit(1, 2) <= 15.3, "{report}");
    assert!(stderr.contains("noop:") && stderr.contains("mclock:"), "it shows what happens: {stderr}");
    assert!(is_empty(folder.path()));
}

#[test]
fn an_interrupt_removes_the_temporary_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut progress = BufReader::new(child.stderr.take().unwrap()).lines();
    let running = progress.find(|line| line.as_ref().unwrap().contains("noop:"));
    assert!(running.is_some());
    assert!(!is_empty(folder.path()));
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let rest: Vec<String> = progress.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(rest.iter().any(|line| line.contains("Interrupted")), "{rest:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ok"], false);
    assert!(is_empty(folder.path()));
}

#[test]
fn quiet_prints_no_progress() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = demo(&folder.path().join("is-not-there"));
    let output = command.arg("--quiet").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: Cannot make temporary disks in"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
