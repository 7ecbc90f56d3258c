//! Limits of CPU time of the daemon: a VM above its limit is held back, and its neighbour gets what it gets alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Daemon, Place, run, sluice, until};
use serde_json::Value;
use sluice_client::vhost::{Client, ClientOptions, Request};

mod common;

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

/// Keeps reads outstanding until the end, and counts what is answered.
fn load(place: &Place, vm: &str, stop: &AtomicBool, answered: &AtomicU64) {
    let mut client =
        Client::connect(&place.socket(vm), &ClientOptions { slots: OUTSTANDING, ..ClientOptions::default() }).unwrap();
    let submit = |client: &mut Client, slot: u16| {
        let queue = client.queue(0);
        queue.submit(slot, Request::Read { offset: u64::from(slot) << 12, len: 4096 }).unwrap();
        queue.publish().unwrap();
        queue.kick().unwrap();
    };
    (0..OUTSTANDING).for_each(|slot| submit(&mut client, slot));
    while !stop.load(Ordering::Relaxed) {
        for completion in client.wait(0, 1).unwrap() {
            answered.fetch_add(1, Ordering::Relaxed);
            submit(&mut client, completion.slot);
        }
    }
}

/// Runs `look` while VM `b` sends, and VM `a` too if it is `beside`.
fn loaded<T>(place: &Place, beside: bool, look: impl FnOnce(&AtomicU64, &AtomicU64) -> T) -> T {
    let (stop, a, b) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| load(place, "b", &stop, &b));
        if beside {
            scope.spawn(|| load(place, "a", &stop, &a));
        }
        let result = look(&a, &b);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Waits for requests of VM `b`. Returns how long they took.
fn wait(b: &AtomicU64, requests: u64) -> Duration {
    let (began, first) = (Instant::now(), b.load(Ordering::Relaxed));
    // polls: a counter of a client
    until("requests are answered", || b.load(Ordering::Relaxed) >= first + requests);
    began.elapsed()
}

#[test]
fn a_vm_over_its_limit_of_cpu_time_leaves_its_neighbour_what_it_gets_alone() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let mut ratios = Vec::new();
    for _ in 0..3 {
        let alone = loaded(&place, false, |_, b| wait(b, 20_000));
        let beside = loaded(&place, true, |_, b| wait(b, 20_000));
        ratios.push(beside.as_secs_f64() / alone.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    // Both clients and the daemon share the CPUs of this machine.
    assert!(ratios[1] < 1.4, "time beside a VM with a limit, of the time alone: {ratios:?}");
    loaded(&place, true, |a, b| {
        let (began, before) = (Instant::now(), cpu_seconds(&place, "a"));
        // polls: the monitor looks once a second.
        until("the cause is named", || json(&place, &["why", "a"])["causes"][0] == "own_cpu_limit");
        let used = (cpu_seconds(&place, "a") - before) / began.elapsed().as_secs_f64();
        // The counters are those of the last sample.
        assert!(used > 0.0 && used < 0.1, "{used} of a CPU");
        assert!(ask(&place, &["why", "a"]).contains("its own limit of CPU time"));
        assert!(ask(&place, &["describe", "a"]).contains("of 5 %, which held it back"));
        let limited = a.load(Ordering::Relaxed);
        let set = json(&place, &["set", "a", "cpu_limit=unlimited"]);
        assert_eq!(
            (&set["before"]["cpu_limit_percent"], &set["after"]["cpu_limit_percent"]),
            (&5.0.into(), &Value::Null)
        );
        wait(b, 20_000);
        let (free, first) = (a.load(Ordering::Relaxed), limited);
        assert!(free - first > 5_000, "{} requests beside 20,000", free - first);
    });
}
