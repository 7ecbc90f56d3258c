//! What version 0.2.0 wrote is read into these types, and written again as it was.
//!
//! `documents/` has what a daemon with disks and NICs under load replied, and what `sluice -o json` printed. The files are made once and
//! never changed: a field that is renamed or lost makes a document differ from its file.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_api::change::{ChangeResult, Override, PlanResult};
use sluice_api::event::{Event, Events};
use sluice_api::list::{Client, Clients, History, NamedPolicy, Names, Point};
use sluice_api::printed::Line;
use sluice_api::request::Reply;
use sluice_api::status::{Details, Device, Status, Vm, Volume};
use sluice_api::summary::Summary;
use sluice_api::top::{self, Top};
use sluice_api::why::Why;

fn document(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/documents/{name}.json"));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Checks that a value is the same after it was read and written.
fn check<T: DeserializeOwned + Serialize>(name: &str, before: &Value) {
    let read: T = serde_json::from_value(before.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let after = serde_json::to_value(read).unwrap();
    if let Some(place) = difference("", before, &after) {
        panic!("{name}: {place}");
    }
}

/// Returns the first place at which two values differ.
fn difference(place: &str, before: &Value, after: &Value) -> Option<String> {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.into_iter().find_map(|key| match (old.get(key), new.get(key)) {
                (Some(old), Some(new)) => difference(&format!("{place}.{key}"), old, new),
                (None, Some(_)) => Some(format!("{place}.{key} was not there")),
                (_, None) => Some(format!("{place}.{key} is lost")),
            })
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            let both = old.iter().zip(new).enumerate();
            both.into_iter().find_map(|(index, (old, new))| difference(&format!("{place}[{index}]"), old, new))
        }
        _ => (before != after).then(|| format!("{place} was {before} and is {after}")),
    }
}

/// Checks the rows of a listing. There must be some.
fn check_rows<T: DeserializeOwned + Serialize>(name: &str, key: &str) {
    let document = document(name);
    let rows = document[key].as_array().unwrap();
    assert!(!rows.is_empty(), "{name}");
    rows.iter().for_each(|row| check::<T>(name, row));
}

#[test]
fn replies_of_the_daemon_are_the_same() {
    fn reply<T: DeserializeOwned + Serialize>(name: &str) {
        let document = document(name);
        check::<T>(name, &document["result"]);
        check::<Reply<T>>(name, &document);
    }
    reply::<Status>("raw-status");
    reply::<Events>("raw-events");
    reply::<History>("raw-history");
    reply::<Clients>("raw-clients");
    reply::<Names>("names");
    reply::<Details<Vm>>("details-vm");
    reply::<Details<Volume>>("details-volume");
    reply::<()>("failed");
}

/// The daemon of version 0.2.0 left out of this reply what was not set, which `sluice top` printed as null.
#[test]
fn the_compact_state_is_read() {
    let top: Top = serde_json::from_value(document("raw-top")["result"].clone()).unwrap();
    let vm = top.vms.iter().find(|vm| vm.vm == "web").unwrap();
    let rates = vm.now.rates.unwrap();
    assert!(rates.iops > 0.0 && rates.p99_us.is_some() && vm.now.limit.iops.is_some(), "{vm:?}");
    assert!(top.vms.iter().flat_map(|vm| &vm.volumes).any(|volume| !volume.failing.is_empty()));
}

#[test]
fn documents_of_questions_are_the_same() {
    check::<Summary>("status", &document("status"));
    for name in ["why-db", "why-full", "why-moved"] {
        check::<Why>(name, &document(name));
    }
    check_rows::<Vm>("vms", "vms");
    check_rows::<Volume>("volumes", "volumes");
    check_rows::<Device>("devices", "devices");
    check_rows::<Client>("clients", "clients");
    check_rows::<NamedPolicy>("policies", "policies");
    check_rows::<Point>("history", "history");
    check_rows::<Point>("history-nic", "history");
    check_rows::<Override>("overrides", "overrides");
    check_rows::<Event>("events", "events");
    check_rows::<Vm>("describe-vm", "objects");
    check_rows::<Volume>("describe-volume", "objects");
    check_rows::<Volume>("describe-nic", "objects");
    check_rows::<Device>("describe-device", "objects");
    check_rows::<Device>("describe-uplink", "objects");
    check_rows::<top::Vm>("top", "vms");
    check_rows::<Device>("top", "devices");
}

/// Made by a daemon that shares storage with three others.
#[test]
fn a_device_in_a_pool_is_the_same() {
    check_rows::<Device>("describe-device-in-a-pool", "objects");
    let outside = serde_json::to_value(Device::default()).unwrap();
    assert!(outside.get("pool").is_none(), "{outside}");
}

#[test]
fn documents_of_changes_are_the_same() {
    let names = [
        "attach",
        "attach-nic",
        "detach",
        "reset",
        "resize",
        "set",
        "set-limit",
        "set-nic",
        "set-pattern",
        "set-policy",
    ];
    for name in names {
        check::<ChangeResult>(name, &document(name));
    }
    for name in ["apply", "apply-dry"] {
        check::<PlanResult>(name, &document(name));
    }
}

#[test]
fn lines_of_the_daemon_are_the_same() {
    for name in ["ready", "accounts"] {
        check::<Line>(name, &document(name));
    }
}

#[test]
fn a_summary_is_that_of_its_status() {
    let status: Status = serde_json::from_value(document("raw-status")["result"].clone()).unwrap();
    let (vms, broken) = (status.vms.len(), status.promises_broken);
    let summary = Summary::from(status);
    assert_eq!((summary.vms, summary.ok), (vms, false));
    assert!(broken > 0 && summary.promises.broken >= broken);
}

#[test]
fn a_daemon_that_knows_less_or_more_is_read() {
    let older: Status = serde_json::from_str(r#"{"vms":[{"vm":"a","volumes":[{"volume":"v"}]}]}"#).unwrap();
    assert_eq!((older.vms[0].volumes[0].volume.as_str(), older.devices.len()), ("v", 0));
    let newer = r#"{"time":7,"kind":"hot","cause":"the_moon","phase":"began","more":1}"#;
    let newer: Event = serde_json::from_str(newer).unwrap();
    assert_eq!((newer.time, newer.kind.name(), newer.cause.name()), (7, "unknown", "unknown"));
}
