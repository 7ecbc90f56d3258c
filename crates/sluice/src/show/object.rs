//! One VM, volume or device with everything that is known of it.

use sluice_api::policy::Policy;
use sluice_api::status::{Cpu, Disk, Intervals, Nic, State, WaitedFor};
use sluice_daemon::explain::failing;
use sluice_daemon::explain::promise::{broken, mark};
use sluice_sched::Bytes;

use super::{NOTHING, Served, operations, shown, throughput_of};
use crate::output;
use sluice_api::amount::{percent, rate, time};

/// Describes a VM on one device, or a volume.
pub(crate) fn vm(object: &Served<'_>) -> String {
    let kind = if object.rates.are_of_link() { "uplink" } else { "device" };
    let mut lines = vec![format!("{} on {kind} {}", object.name, object.device), String::new()];
    let problems = broken(&object.name, object.promises);
    lines.push(match object.state {
        State::Broken if problems.is_empty() => "Promises: BROKEN for a volume".to_owned(),
        State::Broken => format!("Promises: BROKEN\n  {}", problems.join("\n  ")),
        state => format!("Promises: {}", mark(state)),
    });
    lines.extend(failing(object.failing.iter().copied()));
    if let Some(held_by) = object.held_by {
        lines.push(format!("It does not get more because of: {}", held_by.in_words()));
    }
    lines.extend([String::new(), "Policy".to_owned(), policy(object.policy, object.scheduler)]);
    lines.extend(object.disk.map(disk));
    lines.extend([String::new(), rates(object.rates)]);
    let parts = object.parts;
    lines.extend([
        String::new(),
        format!(
            "In the last 10 s requests were queued at the gate for {} of the time",
            percent(parts.backlogged_percent)
        ),
        format!(
            "Dispatched by reservation {}, by weight {}",
            shown(parts.by_reservation_percent, percent),
            shown(parts.by_weight_percent, percent)
        ),
        format!("Waited for: {}", waits(&parts.waited_for_percent.unwrap_or_default())),
        format!("Outstanding requests {}, clients {}", object.outstanding, object.clients),
    ]);
    lines.extend(object.cpu.map(cpu_time));
    lines.extend(object.nic.map(frames));
    lines.join("\n")
}

/// The disk that the guest of a volume has.
fn disk(disk: &Disk) -> String {
    let source = disk.source.as_ref().map_or("none".to_owned(), |source| source.display().to_string());
    let (block, serial, discard) = (Bytes(disk.block_size_bytes.into()), &disk.serial, &disk.discard);
    format!("\nSource {source}\nBlock size {block}, serial number {serial}, discard {discard}")
}

/// CPU time of the daemon for a VM.
fn cpu_time(cpu: &Cpu) -> String {
    let used = percent(cpu.used_percent);
    match cpu.limit_percent {
        Some(limit) => format!(
            "CPU time of the daemon {used} of {limit} %, which held it back for {} of the time",
            percent(cpu.held_percent)
        ),
        None => format!("CPU time of the daemon {used}"),
    }
}

/// The frames of a NIC, with those that were dropped by reason.
fn frames(nic: &Nic) -> String {
    let dropped: Vec<String> = nic.dropped_frames.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let dropped = if dropped.is_empty() { "none".to_owned() } else { dropped.join(", ") };
    format!("Frames sent {}, received {}, dropped {dropped}", nic.sent_frames, nic.received_frames)
}

/// The fields of a policy that are set, without those that the scheduler of its device does not enforce. A target of latency is judged
/// whatever the scheduler does.
fn policy(policy: &Policy, scheduler: Option<&str>) -> String {
    let scheduler = scheduler.and_then(|name| sluice_papers::ALL.iter().find(|one| one.name == name));
    let enforced = |key: &str| {
        scheduler.is_none_or(|one| one.enforces.iter().any(|(field, _)| key.starts_with(field.name())))
            || key.starts_with("latency")
    };
    let set = sluice_api::fields(policy).into_iter().filter(|(key, value)| !value.is_null() && enforced(key));
    let shown = set.map(|(key, value)| super::field(key, &value)).map(|(key, value)| format!("  {key} = {value}"));
    shown.collect::<Vec<_>>().join("\n")
}

pub(super) fn rates(rates: &Intervals) -> String {
    let mut table = output::table(&["OVER", "IOPS", "NORMALISED", "READS", "WRITES", "MIB/S", "FAILED", "P50", "P99"]);
    for (over, of) in [("1s", &rates.second), ("10s", &rates.ten_seconds), ("1m", &rates.minute)] {
        table.add_row([
            over.to_owned(),
            rate(of.iops),
            operations(of),
            rate(of.read_iops),
            rate(of.write_iops),
            throughput_of(of),
            rate(of.failed_per_second),
            shown(of.p50_us, time),
            shown(of.p99_us, time),
        ]);
    }
    table.to_string()
}

fn waits(waits: &WaitedFor) -> String {
    let parts = [
        (waits.own_limit, "its limit"),
        (waits.share, "others"),
        (waits.device, "the device"),
        (waits.batch, "a batch"),
        (waits.anticipation, "anticipation"),
    ];
    let parts = parts.into_iter().filter(|(percent, _)| *percent > 0.0);
    let parts: Vec<String> = parts.map(|(percent, name)| format!("{name} {percent:.0} %")).collect();
    if parts.is_empty() { NOTHING.to_owned() } else { parts.join(", ") }
}
