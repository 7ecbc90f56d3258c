//! What is in flight follows the time of requests at the device (`latency`).

use crate::common::{Daemon, Ended, Place, Running, fio, run, sluice, start, until};
use serde_json::Value;

/// A device, `db`, which reserves 200 and keeps one request outstanding, and four VMs that keep 32.
fn host(place: &Place, device: &str) -> String {
    let mut host = place.control_keys() + "[device.disk]\nbackend = \"null\"\n" + device + "\n";
    for vm in ["db", "a", "b", "c", "d"] {
        let (socket, policy) =
            (place.volume_socket(vm, "v"), if vm == "db" { "reservation = \"200 iops\"" } else { "" });
        host += &format!("[vm.{vm}]\n{policy}\n[vm.{vm}.volume.v]\ndevice = \"disk\"\nsize = \"1MiB\"\n");
        host += &format!("export = {{ socket = \"{}\" }}\n", socket.display());
    }
    host
}

fn job(place: &Place, vm: &str, depth: u32) -> String {
    let uri = place.uri(vm, "v");
    format!(
        "[{vm}]\nioengine=nbd\nuri={uri}\nrw=randread\nbs=8k\niodepth={depth}\nsize=1m\ntime_based=1\nruntime=600\n"
    )
}

fn load(place: &Place) -> Running {
    let jobs = job(place, "db", 1) + &["a", "b", "c", "d"].map(|vm| job(place, vm, 32)).concat();
    start(&mut fio::fio(place, "load", &jobs))
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn json(place: &Place, verb: &[&str]) -> Value {
    let verb: Vec<&str> = ["-o", "json"].iter().chain(verb).copied().collect();
    serde_json::from_str(&ask(place, &verb).stdout).unwrap()
}

fn window(place: &Place) -> Value {
    json(place, &["get", "devices"])["devices"][0]["window"].clone()
}

/// One request at a time, a millisecond each.
const SERIAL: &str = "capacity = \"1000 iops\"\ndelay = { time = \"1ms\", parallel = 1 }\n";

/// Requests of `db` while all VMs together completed 3,000.
fn of_db(daemon: &Daemon) -> u64 {
    let served = |vm: &str| daemon.accounts().vm(vm)["completed"]["read"].as_u64().unwrap();
    let all = || ["db", "a", "b", "c", "d"].map(served).iter().sum::<u64>();
    until("all are served", || ["db", "a", "b", "c", "d"].iter().all(|vm| served(vm) > 0));
    let (before, begin) = (all(), served("db"));
    until("3,000 requests are served", || all() >= before + 3000);
    served("db") - begin
}

#[test]
fn a_vm_with_one_request_outstanding_waited_behind_all_that_was_in_flight() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place, SERIAL));
    let _load = load(&place);
    let without = of_db(&daemon);
    assert_eq!(window(&place), Value::Null);
    let log = daemon.reload(&host(&place, &format!("{SERIAL}latency = \"2ms\"")));
    assert!(!log.contains("ERROR"), "{log}");
    until("what is in flight is less", || window(&place)["requests"].as_f64().is_some_and(|requests| requests < 4.0));
    let with = of_db(&daemon);
    assert!(with > 2 * without, "{with} of 3,000 requests with latency, {without} without");
    let described = ask(&place, &["describe", "disk"]).ok();
    assert!(described.contains("2.0 ms stated"), "{described}");
}

#[test]
fn a_latency_below_the_devices_own_took_throughput_in_silence() {
    let place = Place::new();
    let device =
        "capacity = \"2000 iops\"\ndepth = 64\ndelay = { time = \"16ms\", parallel = 32 }\nlatency = \"8ms\"\n";
    let _daemon = Daemon::serve(&place, &host(&place, device));
    let _load = load(&place);
    let began = |kind: &str| json(&place, &["events", "--kind", kind])["events"].as_array().unwrap().first().cloned();
    until("it is found", || began("latency_too_low").is_some());
    let event = began("latency_too_low").unwrap();
    assert_eq!((&event["device"], &event["phase"]), (&"disk".into(), &"began".into()), "{event}");
    let text = event["text"].as_str().unwrap();
    assert!(text.contains("latency = 8ms is below the ") && text.contains("for one request; at least "), "{text}");
    assert!(ask(&place, &["status"]).stdout.contains("latency = 8ms is below the"));
    let window = window(&place);
    assert!(window["own_time_us"].as_u64() > window["latency_us"].as_u64(), "{window}");
}

#[test]
fn what_a_reservation_needs_is_said_before_it_is_missed() {
    let place = Place::new();
    let file = place.write("host.toml", host(&place, &format!("{SERIAL}latency = \"8ms\"")));
    let said = run(sluice().arg("check").arg(&file)).ok();
    assert!(
        said.contains("db needs 1.9 requests outstanding on average for its 200 iops, and 3 to have them"),
        "{said}"
    );
    assert!(said.contains("latency = \"3.7ms\" all of them"), "{said}");
    let found: Value = serde_json::from_str(&run(sluice().args(["-o", "json", "check"]).arg(&file)).ok()).unwrap();
    assert_eq!(found["devices"][0]["outstanding_needed"]["db"]["every_second"], 3);
}

#[test]
fn a_latency_that_makes_no_sense_is_refused() {
    let place = Place::new();
    for (device, says) in [
        ("latency = \"8ms\"", "capacity is missing, which latency needs"),
        ("capacity = \"1000 iops\"\nlatency = \"50us\"", "50us is out of range"),
        ("capacity = \"1000 iops\"\nlatency = \"2s\"", "2s is out of range"),
    ] {
        let file = place.write("bad.toml", host(&place, device));
        let refused = run(sluice().arg("check").arg(&file));
        assert!(refused.stderr.contains(says), "{says}: {}", refused.stderr);
    }
}
