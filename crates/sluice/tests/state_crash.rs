//! A daemon that is killed while changes are made: what was answered is in force after the restart, and what was on its way is
//! there or not.
//!
//! `SLUICE_CRASHES=300` is the long form: 300 kills.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{Daemon, MIB, Place, run, sluice};
use serde_json::{Value, json};
use sluice_api::http::{self, Failed};

/// Clients that make changes, each of its own VM.
const WORKERS: usize = 3;

/// Changes of one worker: keys of VM `wN`, its volume `v`, and the volume `x` that it attaches and detaches.
#[derive(Debug, Clone, PartialEq)]
struct Model {
    limit: u64,
    weight: u64,
    size: u64,
    attached: bool,
}

/// The answered state, and the one that a change on its way leads to.
struct Known {
    answered: Model,
    under_way: Option<Model>,
    step: u64,
}

fn host(place: &Place) -> String {
    let mut text = place.control_keys() + &place.device("");
    for worker in 0..WORKERS {
        let image = place.image(&format!("w{worker}.img"), MIB);
        text += &format!("[vm.w{worker}]\nweight = 1\n");
        text += &place.volume(&format!("w{worker}"), "v", &image, "size = \"1MiB\"");
        place.image(&format!("x{worker}.img"), MIB);
    }
    text
}

/// Sends a request and returns its result; `None` if the daemon dies first.
fn ask(place: &Place, request: &Value) -> Option<Value> {
    let known = serde_json::from_value(request.clone()).unwrap();
    match http::ask::<Value>(&place.socket("control"), &known) {
        Ok(reply) => Some(reply.result.unwrap_or_default()),
        Err(Failed::Refused(problem)) => panic!("{request}: {problem:?}"),
        Err(_) => None,
    }
}

/// Makes the next change of a worker. Returns whether it was answered.
fn change(place: &Place, worker: usize, known: &mut Known) -> bool {
    known.step += 1;
    let step = known.step;
    let target = |volume: &str| format!("w{worker}{volume}");
    let mut next = known.answered.clone();
    let request = match step % 5 {
        0 | 1 => {
            next.limit = 1000 + step;
            json!({"verb": "set", "target": target(""), "keys": {"limit": format!("{} iops", next.limit)}})
        }
        2 => {
            next.weight = 2 + step % 900;
            let how = json!({"term": "persist"});
            json!({"verb": "set", "target": target(""), "keys": {"weight": next.weight}, "how": how})
        }
        3 => {
            next.size += 4096;
            json!({"verb": "resize", "target": target("/v"), "size": format!("{}KiB", next.size / 1024)})
        }
        _ if next.attached => {
            next.attached = false;
            json!({"verb": "detach", "target": target("/x")})
        }
        _ => {
            next.attached = true;
            let socket = place.volume_socket(&format!("w{worker}"), "x");
            let source = place.file(&format!("x{worker}.img"));
            let keys = json!({"device": "disk", "source": source, "export": {"socket": socket}});
            json!({"verb": "attach", "target": target("/x"), "keys": keys, "vm": {}})
        }
    };
    known.under_way = Some(next);
    if ask(place, &request).is_none() {
        return false;
    }
    known.answered = known.under_way.take().expect("it was set");
    true
}

/// Returns what is in force for a worker.
fn in_force(place: &Place, worker: usize) -> Model {
    let overrides = ask(place, &json!({"verb": "get-overrides"})).unwrap()["overrides"].clone();
    let overrides = overrides.as_array().unwrap().iter();
    let overrides: BTreeMap<&str, &Value> =
        overrides.map(|one| (one["name"].as_str().unwrap(), &one["value"])).collect();
    let number = |key: &str, unit: &str, default: u64| {
        let value = overrides.get(&*format!("w{worker}/{key}")).and_then(|value| value.as_str());
        value.map_or(default, |value| value.strip_suffix(unit).unwrap().parse().unwrap())
    };
    let dropin = std::fs::read_to_string(place.file("host.d/zz-sluice.toml")).unwrap_or_default();
    let dropin: toml::Table = dropin.parse().expect("a drop-in is whole");
    let weight = dropin.get("vm").and_then(|vms| vms.get(format!("w{worker}"))?.get("weight")?.as_integer());
    Model {
        limit: number("limit", " iops", 0),
        weight: weight.map_or(1, |weight| weight as u64),
        size: number("v/size", "KiB", 1024) * 1024,
        attached: overrides.contains_key(&*format!("w{worker}/x")),
    }
}

#[test]
fn a_change_that_was_answered_was_lost_by_a_crash() {
    let crashes: u64 = std::env::var("SLUICE_CRASHES").map_or(12, |wanted| wanted.parse().unwrap());
    let place = Place::new();
    let host = host(&place);
    let first = Model { limit: 0, weight: 1, size: MIB, attached: false };
    let mut known: Vec<Known> =
        (0..WORKERS).map(|_| Known { answered: first.clone(), under_way: None, step: 0 }).collect();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for crash in 0..crashes {
        let daemon = Daemon::serve(&place, &host);
        for (worker, known) in known.iter_mut().enumerate() {
            let now = in_force(&place, worker);
            let is_right = now == known.answered || known.under_way.take().as_ref() == Some(&now);
            assert!(is_right, "after crash {crash}: {now:?}, and was answered: {:?}", known.answered);
            known.answered = now;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let pause = Duration::from_micros((random >> 33) % 60_000);
        let (dead, death) = channel::<()>();
        std::thread::scope(|scope| {
            for (worker, known) in known.iter_mut().enumerate() {
                let place = &place;
                let dead = dead.clone();
                scope.spawn(move || {
                    while change(place, worker, known) {}
                    drop(dead);
                });
            }
            drop(dead);
            // The kill comes at any point of a change.
            assert_eq!(death.recv_timeout(pause), Err(RecvTimeoutError::Timeout));
            daemon.kill();
        });
    }
    let answered: u64 = known.iter().map(|known| known.step).sum();
    assert!(answered > crashes, "{answered} changes were made");
    run(sluice().args(["check", "--host"]).arg(place.file("host.toml"))).ok();
}
