//! `sluice status`: whether every promise is kept, on one screen.

use sluice_api::event::DaemonEnd;
use sluice_api::status::{FailedAlert, Jail, LayerState, OverridesInForce, RealTime, RecordTrouble};
use sluice_api::summary::{BrokenPromise, CpuUse, CpuUser, Fault, Summary};

use super::devices;
use sluice_api::amount::{counted, percent};
use sluice_daemon::explain::promise::sentence;
use sluice_daemon::state::time::Time;

/// The summary for people.
pub(crate) fn table(summary: &Summary) -> String {
    let (promises, vms) = (&summary.promises, counted(summary.vms as u64, "VM", "VMs"));
    let mut lines = Vec::new();
    let all = promises.kept + promises.not_asked + promises.broken + promises.unknown;
    lines.push(match (all, promises.broken) {
        (0, _) => format!("{vms}; none has a reservation or a latency target"),
        (_, 0) => format!("No promise is broken: {} kept, {} without demand, {vms}", promises.kept, promises.not_asked),
        (1, _) => "The only promise is BROKEN:".to_owned(),
        (all, 1) => format!("1 of {all} promises is BROKEN:"),
        (all, count) => format!("{count} of {all} promises are BROKEN:"),
    });
    lines.extend(summary.broken.iter().map(broken));
    lines.extend(summary.faults.iter().flat_map(fault_lines));
    for one in &summary.failing {
        lines.push(format!("  {} is FAILING: {}", one.volume, one.failing.text));
    }
    for lost in &summary.daemon.lost_clients {
        lines.push(format!(
            "  {} has lost its client since {}: {}; restart its VM, or `sluice detach {}`",
            lost.volume,
            Time(lost.since),
            lost.reason,
            lost.volume
        ));
    }
    for system in summary.file_systems.iter().filter(|system| system.is_low) {
        lines.push(format!("  {}", system.text));
    }
    for held in &summary.held_back {
        lines.push(format!("  {} is held back: {}", held.volume, held.reason));
    }
    for known in &summary.overrides_set_aside {
        lines.push(format!(
            "  {} = {} is not in force: the host file does not allow it any more; see `sluice get overrides`",
            known.name, known.value
        ));
    }
    let interfaces = summary.interfaces_out_of_service.iter().map(|out| (&out.of, &out.reason));
    let volumes = summary.volumes_out_of_service.iter().map(|out| (&out.volume, &out.reason));
    for (name, reason) in interfaces.chain(volumes) {
        lines.push(format!("  {name} is out of service: {reason}; it is retried"));
    }
    lines.extend(of_daemon(summary));
    for device in &summary.devices {
        lines.extend(device.problems.iter().map(|problem| format!("  Device {} {problem}", device.device)));
    }
    lines.push(String::new());
    lines.push(devices::table(&summary.devices, false));
    lines.extend(cpu_lines(&summary.cpu));
    lines.join("\n")
}

/// What is to be known of the daemon itself.
fn of_daemon(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(refused) = &summary.daemon.refused_reload {
        let (time, error) = (Time(refused.time), refused.in_words());
        lines.push(format!("  The last reload was refused at {time}, and the file before it is in force: {error}"));
    }
    lines.extend(restarts(summary));
    lines.extend(overrides(&summary.daemon.overrides));
    lines.extend(summary.daemon.jail.as_ref().map(jail).unwrap_or_default());
    if summary.real_time == RealTime::Refused {
        lines.push("  Real-time priority is not allowed: see `sluice doctor`".to_owned());
    }
    if let Some(RecordTrouble { since, text }) = &summary.daemon.record {
        lines.push(format!("  Events and history are not kept since {}: {text}", Time(*since)));
    }
    if let Some(FailedAlert { class, recipient, time, error }) = &summary.daemon.failed_alert {
        let time = Time(*time);
        lines.push(format!(
            "  The last alert to {recipient} ([alert.{class}]) failed at {time}: {error}; test it with `sluice alert --test`"
        ));
    }
    lines
}

/// How the daemon is sealed, and what it was refused.
fn jail(jail: &Jail) -> Vec<String> {
    let (missing, left) = (jail.layers_that(LayerState::Missing), jail.layers_that(LayerState::LeftOut));
    let mut lines = vec![format!("  Sealed by {}", named(&jail.layers_that(LayerState::InForce)))];
    if !missing.is_empty() {
        lines.push(format!("  Missing in the seal: {}", missing.join("; ")));
    }
    if !left.is_empty() {
        lines.push(format!("  Left out of the seal: {}", left.join(", ")));
    }
    let refused: u64 = jail.refused.iter().map(|one| one.times).sum();
    if refused > 0 {
        let calls: Vec<&str> = jail.refused.iter().map(|one| one.call.as_str()).collect();
        lines.push(format!("  {} refused: {}", counted(refused, "system call", "system calls"), calls.join(", ")));
    }
    if let Some(lost) = jail.rings_lost.filter(|lost| *lost > 0) {
        let free = jail.rings_free.unwrap_or(0);
        lines.push(format!(
            "  {} lost, {free} left for further devices",
            counted(lost, "io_uring ring is", "io_uring rings are")
        ));
    }
    lines
}

/// Names in a sentence.
fn named(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// How often the daemon was restarted in the last hour.
fn restarts(summary: &Summary) -> Option<String> {
    let last = summary.daemon.restarts.last()?;
    let killed = summary.daemon.restarts.iter().filter(|restart| restart.ended_by == DaemonEnd::Killed).count();
    let killed = if killed > 0 { format!(" ({killed} after a kill or failure)") } else { String::new() };
    let restarts = counted(summary.daemon.restarts.len() as u64, "restart", "restarts");
    Some(format!("  {restarts} of the daemon in the last hour{killed}; it ended last at {}", Time(last.time)))
}

/// How many changes made at run time are in force.
fn overrides(OverridesInForce { count, next_end }: &OverridesInForce) -> Option<String> {
    let next = next_end
        .as_ref()
        .map_or_else(String::new, |end| format!("; {} = {} ends next, at {}", end.name, end.value, Time(end.time)));
    let changes = counted(*count as u64, "change", "changes");
    (*count > 0).then(|| format!("  {changes} made at run time in force{next}; see `sluice get overrides`"))
}

fn broken(BrokenPromise { vm, volume, promise, .. }: &BrokenPromise) -> String {
    let name = volume.as_ref().map_or_else(|| vm.clone(), |volume| format!("{vm}/{volume}"));
    format!("  {}", sentence(&name, promise))
}

/// Stopped queues and refused requests of a volume or NIC.
fn fault_lines(Fault { vm, volume, faults, .. }: &Fault) -> Vec<String> {
    let line = |count: u64, one: &str, several: &str, why: &Option<String>| {
        let why = why.as_deref().unwrap_or(super::NOTHING);
        (count > 0).then(|| format!("  {vm}/{volume}: {} ({why})", counted(count, one, several)))
    };
    let stopped = line(
        faults.stopped_queues.into(),
        "queue has stopped until its driver is reset",
        "queues have stopped until their driver is reset",
        &faults.stopped,
    );
    let refused = line(
        faults.refused,
        "request was refused since the start",
        "requests were refused since the start; the last one",
        &faults.refusal,
    );
    stopped.into_iter().chain(refused).collect()
}

fn cpu_lines(CpuUse { used_percent, users, most }: &CpuUse) -> Option<String> {
    let one = |CpuUser { vm, device, cpu }: &CpuUser| {
        let used = format!("{vm} on {device} {}", percent(cpu.used_percent));
        match cpu.held_percent {
            held if held > 0.0 => format!("{used} (held back by its cpu_limit for {held:.0} % of the time)"),
            _ => used,
        }
    };
    let mut shown: Vec<String> = most.iter().map(one).collect();
    shown.extend((*users > most.len()).then(|| format!("{} more", users - most.len())));
    let total = percent(*used_percent);
    (!most.is_empty()).then(|| format!("\nCPU time of the daemon for VMs: {total} of one CPU; {}", shown.join(", ")))
}

#[cfg(test)]
mod tests {
    use sluice_api::status::{ClientFaults, Cpu, Status, Vm, Volume};

    use super::*;

    fn vm(name: &str, used_percent: f64, held_percent: f64) -> Vm {
        let cpu = Cpu { limit_percent: None, used_percent, held_percent };
        Vm { vm: name.to_owned(), device: "ssd".to_owned(), cpu, ..Vm::default() }
    }

    fn summary(vms: Vec<Vm>) -> Summary {
        Status { vms, ..Status::default() }.into()
    }

    #[test]
    fn stopped_queues_and_refused_requests_are_named_with_the_reason() {
        let (refusal, stopped) = (Some("a range past the end".to_owned()), Some("memory".to_owned()));
        let faults = ClientFaults { refused: 12, refusal, stopped_queues: 1, stopped };
        let volume = |volume: &str, client_faults| {
            let (vm, volume) = ("a".to_owned(), volume.to_owned());
            Volume { vm, volume, client_faults, ..Volume::default() }
        };
        let volumes = vec![volume("root", faults), volume("data", ClientFaults::default())];
        let summary = summary(vec![Vm { volumes, ..vm("a", 0.0, 0.0) }]);
        assert_eq!(summary.faults.len(), 1);
        let table = table(&summary);
        let shown: Vec<&str> = table.lines().filter(|line| line.contains("a/root")).collect();
        let stopped = "  a/root: 1 queue has stopped until its driver is reset (memory)";
        let refused = "  a/root: 12 requests were refused since the start; the last one (a range past the end)";
        assert_eq!(shown, [stopped, refused]);
    }

    #[test]
    fn the_vms_that_cost_the_daemon_most_cpu_time_are_named_with_the_sum() {
        let names: Vec<String> = (0..7).map(|number| format!("vm{number}")).collect();
        let mut vms: Vec<Vm> = (0..).zip(&names).map(|(used, name)| vm(name, f64::from(used), 0.0)).collect();
        vms.push(vm("db", 30.5, 40.0));
        let all = summary(vms);
        assert_eq!((all.cpu.used_percent, all.cpu.users), (51.5, 7), "vm0 used none");
        assert_eq!((all.cpu.most[0].vm.as_str(), all.cpu.most.len()), ("db", 5));
        let expected = "CPU time of the daemon for VMs: 52 % of one CPU; db on ssd 30 % (held back by its cpu_limit for 40 % of the \
                        time), vm6 on ssd 6 %, vm5 on ssd 5 %, vm4 on ssd 4 %, vm3 on ssd 3 %, 2 more";
        assert_eq!(table(&all).lines().last(), Some(expected));
        let idle = summary(vec![vm("a", 0.0, 0.0)]);
        assert!(!table(&idle).contains("CPU"));
        assert_eq!(serde_json::to_value(&idle).unwrap()["cpu"]["used_percent"].to_string(), "0.0");
    }
}
