//! `sluice reproduce --real` with figures of NICs: what it measures, and that no namespace stays behind.
//!
//! Rates on a busy machine are not tested. Without root or iperf the run says so, and that is what is tested then.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Place, run_within, sluice, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Maximum time of a figure, on a busy machine.
const FIGURE_MAX: Duration = Duration::from_secs(300);

fn figure(place: &Place) -> Command {
    let mut command = sluice();
    let out = place.file("out");
    command.args(["-o", "json", "reproduce", "--real", "N7", "--quick", "--out"]).arg(out);
    command
}

/// Namespaces of a process.
fn namespaces(pid: u32) -> usize {
    let folder = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let prefix = format!("sluice-{pid}-");
    folder.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

#[test]
fn a_figure_runs_on_real_nics_over_both_plugs_or_says_what_is_missing() {
    let place = Place::new();
    let ended = run_within(&mut figure(&place), FIGURE_MAX);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    assert_eq!(ended.code(), Some(if answer["ok"] == true { 0 } else { 1 }), "{}", ended.stderr);
    let page = std::fs::read_to_string(place.file("out").join("real.html")).unwrap();
    if let Some(reason) = answer["no_nics"].as_str() {
        assert!(ended.stderr.contains(&format!("Figures of NICs do not run: {reason}")), "{}", ended.stderr);
        assert!(
            page.contains("Figures of NICs did not run on this machine") && answer["figures"] == Value::Array(vec![])
        );
        return;
    }
    let figure = &answer["figures"][0];
    assert_eq!((&figure["id"], &figure["figure"]), (&"netback-minimum".into(), &"Section VII".into()));
    let trial = &figure["trials"][0];
    assert_eq!((&trial["scheduler"], &trial["queue_frames"]), (&"wrr".into(), &Value::Null), "{trial}");
    let values = trial["values"].as_array().unwrap();
    assert_eq!(values.len(), 3);
    for value in values {
        assert_eq!((&value["unit"], &value["seconds"][0]), (&"Mb/s".into(), &1.into()), "{value}");
        for plug in ["tap", "vhost-user-net"] {
            let real = value["real"][plug].as_f64().unwrap();
            assert!(real > 1.0 && real < 96.0, "{value}");
        }
    }
    assert!(page.contains("vhost-user-net") && page.contains("netback Fig. 8"), "the page says what is not there");
}

#[test]
fn a_run_that_is_interrupted_removes_its_namespaces() {
    let place = Place::new();
    let child = figure(&place).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap();
    let mut began = false;
    until("it has namespaces, or ends without any", || {
        began = namespaces(child.id()) > 3;
        began || child.try_wait().unwrap().is_some()
    });
    if began {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    }
    let ended = child.wait().unwrap();
    assert!(!began || !ended.success(), "{ended}");
    assert_eq!(namespaces(child.id()), 0);
}
