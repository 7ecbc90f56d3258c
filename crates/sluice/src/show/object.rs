//! One VM, volume or device with everything that is known of it.

use serde_json::{Map, Value};
use sluice_sched::Bytes;

use super::promise::{broken, cause, mark};
use super::{NOTHING, is_link, list, operations, percent, rate, text, throughput, time};
use crate::output;

/// Describes a VM on one device, or a volume.
pub(crate) fn vm(name: &str, object: &Value) -> String {
    let mut lines = vec![format!("{name} on {} {}", kind(object), text(&object["device"])), String::new()];
    let problems = broken(name, object);
    lines.push(match object["state"].as_str() {
        Some("broken") if problems.is_empty() => "Promises: BROKEN for a volume".to_owned(),
        Some("broken") => format!("Promises: BROKEN\n  {}", problems.join("\n  ")),
        _ => format!("Promises: {}", mark(&object["state"])),
    });
    lines.extend(failing(object));
    if let Some(held_by) = object["held_by"].as_str() {
        lines.push(format!("It does not get more because of: {}", cause(held_by)));
    }
    lines.extend([String::new(), "Policy".to_owned(), policy(&object["policy"])]);
    lines.extend(disk(object));
    lines.extend([String::new(), rates(&object["rates"])]);
    let parts = &object["parts"];
    lines.extend([
        String::new(),
        format!(
            "In the last 10 s requests were queued at the gate for {} of the time",
            percent(&parts["backlogged_percent"])
        ),
        format!(
            "Dispatched by reservation {}, by weight {}",
            percent(&parts["by_reservation_percent"]),
            percent(&parts["by_weight_percent"])
        ),
        format!("Waited for: {}", waits(&parts["waited_for_percent"])),
        format!("Outstanding requests {}, clients {}", object["outstanding"], object["clients"]),
    ]);
    lines.extend(object["cpu"].as_object().map(|_| cpu_time(&object["cpu"])));
    lines.extend(frames(&object["nic"]));
    lines.join("\n")
}

/// What fails now, of a volume or of the volumes of a VM.
pub(super) fn failing(object: &Value) -> Vec<String> {
    let of = |name: String, object: &Value| -> Vec<String> {
        list(&object["failing"]).iter().map(|one| format!("FAILING now{name}: {}", text(&one["text"]))).collect()
    };
    let volumes = list(&object["volumes"]).iter();
    let volumes = volumes.flat_map(|volume| of(format!(", volume {}", text(&volume["volume"])), volume));
    of(String::new(), object).into_iter().chain(volumes).collect()
}

/// The disk that the guest of a volume has.
fn disk(object: &Value) -> Option<String> {
    let block = Bytes(object["block_size_bytes"].as_u64()?);
    let source = object["source"].as_str().unwrap_or("none");
    let (serial, discard) = (text(&object["serial"]), text(&object["discard"]));
    Some(format!("\nSource {source}\nBlock size {block}, serial number {serial}, discard {discard}"))
}

/// CPU time of the daemon for a VM.
fn cpu_time(cpu: &Value) -> String {
    let used = percent(&cpu["used_percent"]);
    match cpu["limit_percent"].as_f64() {
        Some(limit) => format!(
            "CPU time of the daemon {used} of {limit} %, which held it back for {} of the time",
            percent(&cpu["held_percent"])
        ),
        None => format!("CPU time of the daemon {used}"),
    }
}

/// Describes a device.
pub(crate) fn device(object: &Value) -> String {
    let mut lines = vec![format!(
        "{} {}: {}",
        if is_link(object) { "Uplink" } else { "Device" },
        text(&object["device"]),
        text(&object["health"])
    )];
    lines.extend(list(&object["problems"]).iter().map(|problem| format!("  It {}", text(problem))));
    lines.extend([String::new(), super::devices::table(std::slice::from_ref(object), true), String::new()]);
    lines.push(rates(&object["rates"]));
    lines.push(String::new());
    let mut table = output::table(&["KIND", "DEVICE P50", "DEVICE P99"]);
    for times in list(&object["service_times"]) {
        table.add_row([text(&times["kind"]).to_owned(), time(&times["p50_us"]), time(&times["p99_us"])]);
    }
    lines.push(table.to_string());
    lines.join("\n")
}

/// The frames of a NIC, with those that were dropped by reason.
fn frames(nic: &Value) -> Option<String> {
    let dropped = nic["dropped_frames"].as_object()?;
    let dropped: Vec<String> = dropped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
    Some(format!("Frames sent {}, received {}, dropped {dropped}", nic["sent_frames"], nic["received_frames"]))
}

fn kind(object: &Value) -> &'static str {
    if is_link(object) { "uplink" } else { "device" }
}

fn policy(policy: &Value) -> String {
    let empty = Map::new();
    let set = policy.as_object().unwrap_or(&empty).iter().filter(|(_, value)| !value.is_null());
    let shown = set.map(|(key, value)| match value {
        Value::String(text) => format!("  {key} = {text}"),
        value => format!("  {key} = {value}"),
    });
    shown.collect::<Vec<_>>().join("\n")
}

fn rates(rates: &Value) -> String {
    let mut table = output::table(&["OVER", "IOPS", "NORMALISED", "READS", "WRITES", "MIB/S", "FAILED", "P50", "P99"]);
    for over in ["1s", "10s", "1m"] {
        let of = &rates[over];
        table.add_row([
            over.to_owned(),
            rate(&of["iops"]),
            operations(of),
            rate(&of["read_iops"]),
            rate(&of["write_iops"]),
            throughput(of),
            rate(&of["failed_per_second"]),
            time(&of["p50_us"]),
            time(&of["p99_us"]),
        ]);
    }
    table.to_string()
}

fn waits(waits: &Value) -> String {
    let names = [
        ("own_limit", "its limit"),
        ("share", "others"),
        ("device", "the device"),
        ("batch", "a batch"),
        ("anticipation", "anticipation"),
    ];
    let part = |(key, name): (&str, &str)| {
        let percent = waits[key].as_f64().filter(|percent| *percent > 0.0)?;
        Some(format!("{name} {percent:.0} %"))
    };
    let parts: Vec<String> = names.into_iter().filter_map(part).collect();
    if parts.is_empty() { NOTHING.to_owned() } else { parts.join(", ") }
}
