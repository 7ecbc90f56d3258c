//! `sluice status`: whether every promise is kept, on one screen.

use serde_json::{Value, json};

use super::promise::broken;
use super::{devices, list, percent, text};

/// Number of VMs whose CPU time is shown: those that use most.
const CPU_SHOWN: usize = 5;

/// Whether every promise is kept, every device serves every volume is in service, and no requests fail.
pub(crate) fn is_well(status: &Value) -> bool {
    let serves = |device: &Value| device["health"] == "serving";
    broken_promises(status).is_empty()
        && failing(status).is_empty()
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
        "cpu": cpu(list(&status["vms"])),
        "devices": status["devices"],
        "out_of_service": status["out_of_service"],
        "interfaces_out_of_service": status["interfaces_out_of_service"],
        "volumes_out_of_service": status["volumes_out_of_service"],
        "held_back": status["held_back"],
        "overrides_set_aside": status["overrides_set_aside"],
        "faults": list(&status["vms"]).iter().flat_map(volume_faults).collect::<Vec<_>>(),
        "failing": failing(status),
        "file_systems": status["file_systems"],
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
    lines.extend(list(&summary["faults"]).iter().flat_map(fault_lines));
    for one in failing(status) {
        lines.push(format!("  {} is FAILING: {}", text(&one["volume"]), text(&one["text"])));
    }
    for system in list(&status["file_systems"]).iter().filter(|system| system["is_low"] == true) {
        lines.push(format!("  {}", text(&system["text"])));
    }
    for volume in list(&status["held_back"]) {
        lines.push(format!("  {} is held back: {}", text(&volume["volume"]), text(&volume["reason"])));
    }
    for known in list(&status["overrides_set_aside"]) {
        let (name, value) = (text(&known["name"]), text(&known["value"]));
        lines.push(format!(
            "  {name} = {value} is not in force: the host file does not allow it any more; see `sluice get overrides`"
        ));
    }
    let interfaces = list(&status["interfaces_out_of_service"]).iter().map(|out| (&out["of"], &out["reason"]));
    let volumes = list(&status["volumes_out_of_service"]).iter().map(|out| (&out["volume"], &out["reason"]));
    for (name, reason) in interfaces.chain(volumes) {
        lines.push(format!("  {} is out of service: {}; it is retried", text(name), text(reason)));
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
    lines.extend(cpu_lines(&summary["cpu"]));
    lines.join("\n")
}

/// The volumes and NICs of a VM with stopped queues or refused requests.
fn volume_faults(vm: &Value) -> Vec<Value> {
    let is_at_fault = |volume: &&Value| {
        ["stopped_queues", "refused"]
            .iter()
            .any(|key| volume["client_faults"][key].as_u64().is_some_and(|count| count > 0))
    };
    let of = |volume: &Value| {
        let mut faults = volume["client_faults"].clone();
        (faults["vm"], faults["volume"], faults["device"]) =
            (vm["vm"].clone(), volume["volume"].clone(), vm["device"].clone());
        faults
    };
    list(&vm["volumes"]).iter().filter(is_at_fault).map(of).collect()
}

/// Stopped queues and refused requests of a volume or NIC.
fn fault_lines(faults: &Value) -> Vec<String> {
    let name = format!("{}/{}", text(&faults["vm"]), text(&faults["volume"]));
    let line = |key: &str, what: &str, why: &str| {
        let count = faults[key].as_u64().filter(|count| *count > 0)?;
        Some(format!("  {name}: {count} {what} ({})", text(&faults[why])))
    };
    let stopped = line("stopped_queues", "queues have stopped until their driver is reset", "stopped");
    let refused = line("refused", "requests were refused since the start; the last one", "refusal");
    stopped.into_iter().chain(refused).collect()
}

/// CPU time of the daemon for all VMs in the last ten seconds, in percent of one CPU, and the VMs that used most of it.
fn cpu(vms: &[Value]) -> Value {
    let used = |vm: &Value| vm["cpu"]["used_percent"].as_f64().unwrap_or(0.0);
    let mut users: Vec<&Value> = vms.iter().filter(|vm| used(vm) > 0.0).collect();
    // Stable, so that equal VMs keep their order.
    users.sort_by(|one, other| used(other).total_cmp(&used(one)));
    // The sum of no numbers is -0.0.
    let sum = users.iter().map(|vm| used(vm)).sum::<f64>() + 0.0;
    let shown = users.iter().take(CPU_SHOWN).map(|vm| {
        let mut shown = vm["cpu"].clone();
        (shown["vm"], shown["device"]) = (vm["vm"].clone(), vm["device"].clone());
        shown
    });
    json!({ "used_percent": (sum * 100.0).round() / 100.0, "users": users.len(), "most": shown.collect::<Vec<_>>() })
}

fn cpu_lines(cpu: &Value) -> Option<String> {
    let (most, users) = (list(&cpu["most"]), cpu["users"].as_u64().unwrap_or(0) as usize);
    let one = |vm: &Value| {
        let used = format!("{} on {} {}", text(&vm["vm"]), text(&vm["device"]), percent(&vm["used_percent"]));
        match vm["held_percent"].as_f64().filter(|held| *held > 0.0) {
            Some(held) => format!("{used} (held back by its cpu_limit for {held:.0} % of the time)"),
            None => used,
        }
    };
    let mut shown: Vec<String> = most.iter().map(one).collect();
    shown.extend((users > most.len()).then(|| format!("{} more", users - most.len())));
    let total = percent(&cpu["used_percent"]);
    (!most.is_empty()).then(|| format!("\nCPU time of the daemon for VMs: {total} of one CPU; {}", shown.join(", ")))
}

/// What fails now, with its volume as VM/VOLUME.
fn failing(status: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for vm in list(&status["vms"]) {
        for volume in list(&vm["volumes"]) {
            all.extend(list(&volume["failing"]).iter().map(|one| {
                let mut one = one.clone();
                one["volume"] = format!("{}/{}", text(&vm["vm"]), text(&volume["volume"])).into();
                one["device"] = vm["device"].clone();
                one
            }));
        }
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, used: f64, held: f64) -> Value {
        json!({ "vm": name, "device": "ssd", "cpu": { "limit_percent": null, "used_percent": used, "held_percent": held } })
    }

    #[test]
    fn stopped_queues_and_refused_requests_are_named_with_the_reason() {
        let faults =
            json!({ "refused": 12, "refusal": "a range past the end", "stopped_queues": 1, "stopped": "memory" });
        let none = json!({ "refused": 0, "refusal": null, "stopped_queues": 0, "stopped": null });
        let mut vm = vm("a", 0.0, 0.0);
        vm["volumes"] =
            json!([{ "volume": "root", "client_faults": faults }, { "volume": "data", "client_faults": none }]);
        let status = json!({ "vms": [vm], "devices": [] });
        assert_eq!(json(&status)["faults"].as_array().map(Vec::len), Some(1));
        let table = table(&status);
        let shown: Vec<&str> = table.lines().filter(|line| line.contains("a/root")).collect();
        let stopped = "  a/root: 1 queues have stopped until their driver is reset (memory)";
        let refused = "  a/root: 12 requests were refused since the start; the last one (a range past the end)";
        assert_eq!(shown, [stopped, refused]);
    }

    #[test]
    fn the_vms_that_cost_the_daemon_most_cpu_time_are_named_with_the_sum() {
        let names: Vec<String> = (0..7).map(|number| format!("vm{number}")).collect();
        let mut vms: Vec<Value> = (0..).zip(&names).map(|(used, name)| vm(name, f64::from(used), 0.0)).collect();
        vms.push(vm("db", 30.5, 40.0));
        let status = json!({ "vms": vms, "devices": [] });
        let json = json(&status);
        assert_eq!((&json["cpu"]["used_percent"], &json["cpu"]["users"]), (&json!(51.5), &json!(7)), "vm0 used none");
        assert_eq!(json["cpu"]["most"][0]["vm"], "db");
        assert_eq!(list(&json["cpu"]["most"]).len(), CPU_SHOWN);
        let expected = "CPU time of the daemon for VMs: 52 % of one CPU; db on ssd 30 % (held back by its cpu_limit for 40 % of the \
                        time), vm6 on ssd 6 %, vm5 on ssd 5 %, vm4 on ssd 4 %, vm3 on ssd 3 %, 2 more";
        assert_eq!(table(&status).lines().last(), Some(expected));
        let idle = json!({ "vms": [vm("a", 0.0, 0.0)], "devices": [] });
        assert!(!table(&idle).contains("CPU"));
        assert_eq!(super::json(&idle)["cpu"]["used_percent"].to_string(), "0.0");
    }
}
