//! Promises to NICs that are broken on purpose: events and `why` name the cause that was constructed, with rates in bits.

use crate::common::stations::{Lab, Uplink};
use crate::common::{run, sluice, tool, until};
use serde_json::Value;

const ATTEMPTS: u32 = 4;

fn events(lab: &Lab, vm: &str, kind: &str) -> Vec<Value> {
    let reply = lab.ask(&["events", "--vm", vm, "--kind", kind]).ok();
    let reply: Value = serde_json::from_str(reply.lines().next().unwrap()).unwrap();
    reply["events"].as_array().unwrap().clone()
}

/// Breaks a promise to the first VM with `load` in a new laboratory, and checks that it is broken by `cause`, in the events and in
/// words. On a busy machine the daemon has no CPU, and that is the cause: it fails an attempt, and a daemon that names a wrong cause
/// fails the test.
#[track_caller]
fn is_blamed_on<T>((kind, cause, words): (&str, &str, &str), new: impl Fn() -> Lab, load: impl Fn(&Lab) -> T) -> Value {
    for number in 1.. {
        let lab = new();
        let _load = load(&lab);
        let event = broken(&lab, kind);
        if event["cause"] == "daemon_cpu" && number < ATTEMPTS {
            continue;
        }
        assert_eq!((&event["phase"], &event["cause"]), (&"began".into(), &cause.into()), "{event}");
        let why = run(sluice().args(["why", "vm1", "--socket"]).arg(lab.place.socket("control"))).ok();
        assert!(why.contains(words), "{words}: {why}");
        return event;
    }
    unreachable!("the last attempt returns or fails")
}

/// Waits until a promise to the first VM is broken. Returns the event.
fn broken(lab: &Lab, kind: &str) -> Value {
    until("the promise is broken", || !events(lab, "vm1", kind).is_empty());
    events(lab, "vm1", kind).remove(0)
}

#[test]
fn an_interface_slower_than_stated_is_the_device() {
    let new = || {
        let lab = Lab::new(Uplink::Nic, "100Mbit/s", &["reservation = \"60Mbit/s\"", ""]);
        for words in [
            "qdisc add dev up0 root handle 1: htb default 1",
            "class add dev up0 parent 1: classid 1:1 htb rate 20mbit",
        ] {
            run(&mut lab.switch.command(tool("tc", "iproute2").args(words.split(' ')))).ok();
        }
        lab
    };
    let load = |lab: &Lab| ([lab.sink(1), lab.sink(2)], [lab.send(1, 80), lab.send(2, 80)]);
    let event = is_blamed_on(("reservation", "device", "Cause: the device"), new, load);
    let (wanted, got) = (event["wanted"].as_f64().unwrap(), event["got"].as_f64().unwrap());
    // The first second of the load may have begun before it.
    assert!(wanted <= 60e6 && got < 0.5 * wanted && event["unit"] == "bits_per_second", "{event}");
}

#[test]
fn a_nic_that_sends_more_than_its_limit_waits_for_its_own_limit() {
    let new = || Lab::new(Uplink::Tap, "100Mbit/s", &["limit = \"10Mbit/s\"\nlatency = { p99 = \"2ms\" }"]);
    is_blamed_on(("latency", "own_limit", "own limit"), new, |lab| (lab.sink(1), lab.send(1, 30)));
}

#[test]
fn a_nic_beside_one_of_a_hundred_times_its_weight_waits_for_the_weight_of_others() {
    let policies = ["weight = 10\nlatency = { p99 = \"2ms\" }", "weight = 1000"];
    let new = || Lab::new(Uplink::Tap, "100Mbit/s", &policies);
    let load = |lab: &Lab| ([lab.sink(1), lab.sink(2)], [lab.send(1, 20), lab.send(2, 150)]);
    let event = is_blamed_on(("latency", "others_weight", "vm2"), new, load);
    assert_eq!(event["neighbours"][0]["vm"], "vm2", "{event}");
}
