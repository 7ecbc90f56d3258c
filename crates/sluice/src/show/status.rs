//! `sluice status`: whether every promise is kept, on one screen.

use serde_json::{Value, json};

use super::promise::broken;
use super::{devices, list, text};

/// Whether every promise is kept, every device serves and every volume is in service.
pub(crate) fn is_well(status: &Value) -> bool {
    let serves = |device: &Value| device["health"] == "serving";
    broken_promises(status).is_empty()
        && list(&status["devices"]).iter().all(serves)
        && list(&status["out_of_service"]).is_empty()
        && list(&status["held_back"]).is_empty()
}

/// The summary for programs: without the figures of each VM, which `get vms` has.
pub(crate) fn json(status: &Value) -> Value {
    let named = |promise: &Value, vm: &Value, volume: &Value| {
        let mut promise = promise.clone();
        (promise["vm"], promise["volume"], promise["device"]) =
            (vm["vm"].clone(), volume["volume"].clone(), vm["device"].clone());
        promise
    };
    let mut all = Vec::new();
    for vm in list(&status["vms"]) {
        all.extend(list(&vm["promises"]).iter().map(|promise| named(promise, vm, &Value::Null)));
        for volume in list(&vm["volumes"]) {
            all.extend(list(&volume["promises"]).iter().map(|promise| named(promise, vm, volume)));
        }
    }
    let count = |state: &str| all.iter().filter(|promise| promise["state"] == state).count();
    json!({
        "version": status["version"],
        "ok": is_well(status),
        "time": status["time"],
        "vms": list(&status["vms"]).len(),
        "promises": {
            "kept": count("kept"), "not_asked": count("not_asked"), "broken": count("broken"), "unknown": count("unknown"),
        },
        "broken": all.iter().filter(|promise| promise["state"] == "broken").collect::<Vec<_>>(),
        "real_time": status["real_time"],
        "devices": status["devices"],
        "out_of_service": status["out_of_service"],
        "interfaces_out_of_service": status["interfaces_out_of_service"],
        "held_back": status["held_back"],
    })
}

/// The summary for people.
pub(crate) fn table(status: &Value) -> String {
    let summary = json(status);
    let promises = &summary["promises"];
    let number = |key: &str| promises[key].as_u64().unwrap_or(0);
    let (vms, broken) = (list(&status["vms"]).len(), broken_promises(status));
    let mut lines = Vec::new();
    let all: u64 = ["kept", "not_asked", "broken", "unknown"].iter().map(|key| number(key)).sum();
    lines.push(match (all, broken.len()) {
        (0, _) => format!("{vms} VMs; none has a reservation or a latency target"),
        (_, 0) => {
            format!("No promise is broken: {} kept, {} without demand, {vms} VMs", number("kept"), number("not_asked"))
        }
        (all, count) => format!("{count} of {all} promises are BROKEN:"),
    });
    lines.extend(broken.into_iter().map(|line| format!("  {line}")));
    for volume in list(&status["held_back"]) {
        lines.push(format!("  {} is held back: {}", text(&volume["volume"]), text(&volume["reason"])));
    }
    let interfaces = list(&status["interfaces_out_of_service"]);
    for interface in interfaces {
        lines.push(format!(
            "  {} is out of service: {}; it is retried",
            text(&interface["of"]),
            text(&interface["reason"])
        ));
    }
    let is_volume = |name: &&Value| interfaces.iter().all(|interface| interface["of"] != **name);
    for volume in list(&status["out_of_service"]).iter().filter(is_volume) {
        lines.push(format!("  {} is out of service: its path or its device hangs; it is retried", text(volume)));
    }
    if status["real_time"] == "refused" {
        lines.push("  Real-time priority is not allowed: see `sluice doctor`".to_owned());
    }
    for device in list(&status["devices"]) {
        let problems = list(&device["problems"]).iter();
        lines.extend(problems.map(|problem| format!("  Device {} {}", text(&device["device"]), text(problem))));
    }
    lines.push(String::new());
    lines.push(devices::table(list(&status["devices"]), false));
    lines.join("\n")
}

fn broken_promises(status: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for vm in list(&status["vms"]) {
        let name = text(&vm["vm"]);
        lines.extend(broken(name, vm));
        for volume in list(&vm["volumes"]) {
            lines.extend(broken(&format!("{name}/{}", text(&volume["volume"])), volume));
        }
    }
    lines
}
