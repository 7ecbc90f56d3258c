//! Limits of CPU time of the daemon: a VM above its limit is held back, and its neighbour gets what it gets alone.

use std::time::{Duration, Instant};

use crate::common::reads::while_reading;
use crate::common::{Daemon, Place, run, sluice, until};
use serde_json::Value;

/// Outstanding requests of a VM.
const OUTSTANDING: u16 = 16;

fn host(place: &Place) -> String {
    let vm = |name: &str, keys: &str| {
        format!(
            "[vm.{name}]\n{keys}\n[vm.{name}.volume.disk]\ndevice = \"disk\"\nsize = \"1GiB\"\n\
             export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n",
            place.socket(name).display()
        )
    };
    let device = "[device.disk]\nbackend = \"null\"\ndepth = 64\n[policy.small]\ncpu_limit = \"5%\"\n";
    format!("{}{device}{}{}", place.control_keys(), vm("a", "policy = \"small\""), vm("b", ""))
}

fn ask(place: &Place, verb: &[&str]) -> String {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).ok()
}

fn json(place: &Place, verb: &[&str]) -> Value {
    serde_json::from_str(&ask(place, &[verb, &["-o", "json"]].concat())).unwrap()
}

/// CPU time of the daemon for a VM, in seconds.
fn cpu_seconds(place: &Place, vm: &str) -> f64 {
    let metrics = ask(place, &["metrics"]);
    let start = format!("sluice_vm_cpu_seconds_total{{device=\"disk\",vm=\"{vm}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&start)).and_then(|value| value.parse().ok()).unwrap()
}

/// Waits until the last VM gets this many answers. Returns how long that took.
fn wait<const N: usize>(answered: &dyn Fn() -> [u64; N], requests: u64) -> Duration {
    let (began, first) = (Instant::now(), answered()[N - 1]);
    // polls: a counter of a client
    until("requests are answered", || answered()[N - 1] >= first + requests);
    began.elapsed()
}

/// Waits until the second VM gets this many answers more. Returns how many the first one gets meanwhile.
fn beside(answered: &dyn Fn() -> [u64; 2], requests: u64) -> u64 {
    let [first, second] = answered();
    // polls: a counter of a client
    until("requests are answered", || answered()[1] >= second + requests);
    answered()[0] - first
}

/// Part of a CPU that is used for a VM, from a sample of the monitor to the fourth after it.
fn used(place: &Place, vm: &str) -> f64 {
    let next = |last: f64| {
        // polls: the monitor looks once a second.
        until("a sample is taken", || cpu_seconds(place, vm) > last);
        (cpu_seconds(place, vm), Instant::now())
    };
    let first = next(cpu_seconds(place, vm));
    let last = (0..4).fold(first, |(seconds, _), _| next(seconds));
    (last.0 - first.0) / (last.1 - first.1).as_secs_f64()
}

#[test]
fn a_vm_over_its_limit_of_cpu_time_leaves_its_neighbour_what_it_gets_alone() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let pair = || {
        let alone = while_reading(&place, ["b"], OUTSTANDING, |answered| wait(answered, 20_000));
        let beside = while_reading(&place, ["a", "b"], OUTSTANDING, |answered| wait(answered, 20_000));
        beside.as_secs_f64() / alone.as_secs_f64()
    };
    // All clients, the daemon and other programs share the CPUs of this machine, and may disturb some of the pairs.
    let mut ratios = Vec::new();
    while ratios.iter().all(|ratio| *ratio >= 1.4) {
        assert!(ratios.len() < 7, "time beside a VM with a limit, of the time alone: {ratios:?}");
        ratios.push(pair());
    }
    while_reading(&place, ["a", "b"], OUTSTANDING, |answered| {
        // polls: the monitor looks once a second.
        until("the cause is named", || json(&place, &["why", "a"])["causes"][0] == "own_cpu_limit");
        let used = used(&place, "a");
        assert!(used > 0.0 && used < 0.1, "{used} of a CPU");
        assert!(ask(&place, &["why", "a"]).contains("its own limit of CPU time"));
        assert!(ask(&place, &["describe", "a"]).contains("of 5 %, which held it back"));
        let limited = beside(answered, 20_000);
        let set = json(&place, &["set", "a", "cpu_limit=unlimited"]);
        assert_eq!(
            (&set["before"]["cpu_limit_percent"], &set["after"]["cpu_limit_percent"]),
            (&5.0.into(), &Value::Null)
        );
        let free = beside(answered, 20_000);
        assert!(
            free > 5_000 && limited < free / 2,
            "{limited} requests with a limit and {free} without, beside 20,000"
        );
    });
}
