//! The operator's view: status, get, describe, events, why, and alerts, of a daemon under load.
//!
//! The device serves 400 requests per second, independent of the machine: 4 concurrently, 10 ms each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::common::{Daemon, Ended, Place, held, run, script, sluice, start, until};
use serde_json::Value;
use sluice_client::nbd::{Client, Command};

/// Requests that a load keeps outstanding.
const DEPTH: u64 = 16;

/// A client that reads as fast as it can, until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn start(place: &Place, vm: &str) -> Load {
        let (socket, export) = (place.volume_socket(vm, "v"), format!("{vm}/v"));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut client = Client::connect_unix(&socket, &export).unwrap();
            let mut cookie = 0;
            // Its daemon may be stopped first.
            while !stopped.load(Ordering::Relaxed) && read_on(&mut client, &mut cookie).is_ok() {}
        });
        Load { stop, thread: Some(thread) }
    }
}

/// Fills the queue and takes what has been answered.
fn read_on(client: &mut Client, cookie: &mut u64) -> Result<(), sluice_client::nbd::ClientError> {
    while (client.in_flight() as u64) < DEPTH {
        *cookie += 1;
        client.submit(*cookie, Command::Read { offset: (*cookie % 64) * 8192, len: 8192 })?;
    }
    client.receive(None, &mut |_| {})?;
    Ok(())
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()));
    }
}

fn host(place: &Place, capacity: u32, vms: &[(&str, &str)]) -> String {
    let mut host = place.control_keys();
    host += &format!("[device.disk]\nbackend = \"null\"\ncapacity = \"{capacity} iops@8KiB\"\ndepth = 4\n");
    host += "delay = { time = \"10ms\", parallel = 4 }\n";
    for (vm, policy) in vms {
        let socket = place.volume_socket(vm, "v");
        host += &format!("[vm.{vm}]\n{policy}\n[vm.{vm}.volume.v]\ndevice = \"disk\"\nsize = \"1MiB\"\n");
        host += &format!("export = {{ socket = \"{}\" }}\n", socket.display());
    }
    host
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

/// Returns the JSON that a verb prints, whatever its exit code.
fn json(place: &Place, verb: &[&str]) -> Value {
    let ended = run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")));
    serde_json::from_str(ended.stdout.lines().next().unwrap_or("null")).unwrap()
}

fn vm(place: &Place, name: &str) -> Value {
    json(place, &["get", "vms", name])["vms"][0].clone()
}

const ATTEMPTS: u32 = 4;

/// Loads a device that gives half of what is stated and sold, until the reservation of `db` is broken. On a busy machine the daemon has
/// no CPU, and that is the cause: then it is another attempt.
fn broken_by_the_device() -> (Place, Daemon, Load) {
    for number in 1.. {
        let place = Place::new();
        let daemon = Daemon::serve(&place, &host(&place, 1000, &[("db", "reservation = \"800 iops\""), ("web", "")]));
        let before = ask(&place, &["status"]);
        assert_eq!(before.code(), Some(0), "{}", before.stderr);
        let load = Load::start(&place, "db");
        until("the reservation is broken", || json(&place, &["status"])["promises"]["broken"] == 1);
        let events = json(&place, &["events", "--vm", "db", "--kind", "reservation"]);
        if events["events"][0]["cause"] != "daemon_cpu" || number == ATTEMPTS {
            return (place, daemon, load);
        }
    }
    unreachable!("the last attempt returns")
}

#[test]
fn one_look_tells_that_a_reservation_is_broken_and_why() {
    let (place, daemon, load) = broken_by_the_device();
    let status = ask(&place, &["status"]);
    assert_eq!(status.code(), Some(6));
    let line =
        status.stdout.lines().find(|line| line.contains("db: gets")).unwrap_or_else(|| panic!("{}", status.stdout));
    assert!(line.contains("that it has reserved and asks for") && line.ends_with("cause: the device"), "{line}");
    // What it gets is what the device gives: 400 per second, minus what this machine takes.
    until("a rate over ten seconds", || vm(&place, "db")["rates"]["10s"]["iops"].as_f64() > Some(0.0));
    let db = vm(&place, "db");
    let iops = db["rates"]["1s"]["iops"].as_f64().unwrap();
    assert!((1.0..440.0).contains(&iops), "{db}");
    assert_eq!(
        (&db["state"], &db["clients"], &db["policy"]["reservation_iops"]),
        (&"broken".into(), &1.into(), &800.0.into())
    );
    assert!(db["rates"]["1s"]["p99_us"].as_f64() > Some(10_000.0), "no request is faster than the device: {db}");
    until("what the device gives is known", || {
        json(&place, &["get", "devices"])["devices"][0]["capacity"]["verdict"] == "too_high"
    });
    // An event began, and ends when the load does. It is known after a restart.
    let of_db =
        || json(&place, &["events", "--vm", "db", "--kind", "reservation"])["events"].as_array().unwrap().clone();
    let began = of_db();
    assert_eq!((&began[0]["phase"], &began[0]["cause"]), (&"began".into(), &"device".into()));
    // Of the second in which the load began, the part with a queue counts.
    let wanted = began[0]["wanted"].as_f64().unwrap();
    assert!(wanted > 40.0 && wanted <= 800.0, "{wanted}");
    drop(load);
    until("it ends", || of_db().len() == 2);
    let why = ask(&place, &["why", "db"]).ok();
    for part in ["its reservation was broken once", "Cause: the device", "lower the stated capacity"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert_eq!(daemon.terminate().code(), Some(0));
    let _daemon = Daemon::serve(&place, &host(&place, 1000, &[("db", "reservation = \"300 iops\""), ("web", "")]));
    assert_eq!(of_db()[1]["phase"], "ended", "events outlast the daemon");
}

#[test]
fn kept_promises_are_shown_as_kept_with_what_holds_a_vm_back() {
    let place = Place::new();
    let vms = [("db", "reservation = \"100 iops\""), ("web", "limit = \"50 iops\"\nallow_slow = true")];
    let _daemon = Daemon::serve(&place, &host(&place, 400, &vms));
    let _loads = [Load::start(&place, "db"), Load::start(&place, "web")];
    until("both are served", || {
        let state = |name| vm(&place, name)["rates"]["10s"]["iops"].as_f64() > Some(10.0);
        state("db") && state("web")
    });
    until("web waits for its limit", || vm(&place, "web")["held_by"] == "own_limit");
    assert_eq!(vm(&place, "db")["state"], "kept");
    let described = ask(&place, &["describe", "web/v"]).ok();
    assert!(described.contains("web/v on device disk") && described.contains("Waited for: its limit"), "{described}");
    assert!(ask(&place, &["why", "web"]).ok().contains("because of: its own limit"));
    assert_eq!(held(&json(&place, &["events"])), [] as [Value; 0], "nothing is broken");
    let clients = json(&place, &["get", "clients"]);
    let peer = format!("process {} of user", std::process::id());
    assert_eq!(clients["clients"].as_array().map(Vec::len), Some(2));
    assert!(clients["clients"][0]["peer"].as_str().unwrap().starts_with(&peer), "{clients}");
    until("there is a past", || {
        let history = json(&place, &["get", "history", "db"]);
        history["history"]
            .as_array()
            .is_some_and(|points| points.iter().any(|point| point["iops"].as_f64() > Some(10.0)))
    });
    let csv = ask(&place, &["get", "vms", "-o", "csv"]).ok();
    let rows: Vec<&str> = csv.lines().collect();
    assert!(rows.len() == 3 && rows[0].starts_with("vm,device,") && rows[1].starts_with("db,disk,"), "{csv}");
    for (verb, code) in [(["get", "vms", "nobody"], 3), (["describe", "nobody", "-q"], 3), (["why", "nobody", "-q"], 3)]
    {
        assert_eq!(ask(&place, &verb).code(), Some(code), "{verb:?}");
    }
    assert_eq!(run(sluice().args(["-o", "csv", "check", "x.toml"])).code(), Some(2), "a command without rows");
}

#[test]
fn a_program_is_told_of_a_broken_promise_and_followers_see_it() {
    let place = Place::new();
    let (program, told) = (place.file("alert"), place.file("told.json"));
    script(&program, &format!("#!/bin/sh\ncat >> {}\necho >> {}\n", told.display(), told.display()));
    let mut text = host(&place, 1000, &[("db", "reservation = \"800 iops\"")]);
    text += &format!("[alert.reservation]\ncommand = \"{}\"\n", program.display());
    let _daemon = Daemon::serve(&place, &text);
    let follower = start(sluice().args(["-o", "jsonl", "events", "--follow", "--socket"]).arg(place.socket("control")));
    let _load = Load::start(&place, "db");
    follower.stdout.up_to(&["\"reservation\""]);
    until("the program was told", || std::fs::read_to_string(&told).is_ok_and(|text| text.ends_with('\n')));
    let told: Value = serde_json::from_str(std::fs::read_to_string(&told).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!((&told["vm"], &told["kind"], &told["phase"]), (&"db".into(), &"reservation".into(), &"began".into()));
    assert!(told["text"].as_str().unwrap().contains("that it has reserved"), "{told}");
}
