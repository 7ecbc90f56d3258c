//! The differences between a host file and the one in force, and their effects on VMs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Value, json, to_value};
use sluice_api::change::{Effect, Plan};
use sluice_api::object::ObjectId;
use sluice_config::changes::Target;
use sluice_config::{Device, Host, Nic, Vm, Volume};
use sluice_observe::status;
use sluice_sched::Iops;

use super::describe::{describe_net, describe_nic, discard, words};
use crate::server::{is_same_nic, is_same_source, not_served};

/// Maximum number of log lines about one reload.
const LINES_MAX: usize = 10_000;

/// Returns the differences: devices, then VMs with their volumes, by name.
pub(super) fn plan(old: &Host, new: &Host) -> Vec<Effect> {
    let mut plan = Vec::new();
    for name in names(&old.devices, &new.devices) {
        let title = format!("device {name}");
        match (old.devices.get(name), new.devices.get(name)) {
            (Some(before), Some(after)) => device(&title, before, after, &mut plan),
            (None, Some(_)) => plan.push(whole(&title, false, "will be started")),
            (_, None) => plan.push(whole(&title, true, "will be stopped")),
        }
    }
    for name in names(&old.uplinks, &new.uplinks) {
        let title = format!("uplink {name}");
        match (old.uplinks.get(name), new.uplinks.get(name)) {
            (Some(before), Some(after)) => device(&title, &before.link, &after.link, &mut plan),
            (None, Some(_)) => plan.push(whole(&title, false, "will be started")),
            (_, None) => plan.push(whole(&title, true, "will be stopped")),
        }
    }
    for name in names(&old.vms, &new.vms) {
        let (before, after) = (old.vms.get(name), new.vms.get(name));
        if before != after {
            vm(name, before.map(|vm| &**vm), after.map(|vm| &**vm), &mut plan);
        }
    }
    plan
}

/// Returns the differences, the volumes that are held back, and what becomes of `overrides`, see
/// [`with_file`](crate::state::overrides::with_file).
pub(super) fn result<'a>(
    changes: &[Effect],
    held: impl Iterator<Item = (&'a ObjectId, &'a str)>,
    overrides: Plan,
    warnings: &[String],
) -> Plan {
    Plan { changes: changes.to_vec(), held_back: not_served(held), warnings: warnings.to_vec(), ..overrides }
}

/// Writes a line for each difference.
pub(super) fn log(plan: &[Effect], who: &str) {
    for Effect { name, key, before, after, effect } in plan.iter().take(LINES_MAX) {
        tracing::info!(who, name, key, before, after, effect, "Changed by the host file");
    }
    if plan.len() > LINES_MAX {
        tracing::info!(who, more = plan.len() - LINES_MAX, "Changed by the host file; further lines are suppressed");
    }
}

fn names<'a, T, U>(old: &'a BTreeMap<String, T>, new: &'a BTreeMap<String, U>) -> BTreeSet<&'a str> {
    old.keys().chain(new.keys()).map(String::as_str).collect()
}

fn whole(name: &str, was_there: bool, effect: &str) -> Effect {
    let (before, after) = if was_there { ("present", "-") } else { ("-", "present") };
    let [key, before, after] = ["", before, after].map(str::to_owned);
    Effect { name: name.to_owned(), key, before, after, effect: effect.to_owned() }
}

fn device(name: &str, before: &Device, after: &Device, plan: &mut Vec<Effect>) {
    let keys = |device: &Device| {
        let Device { paths, scheduler, depth, capacity, window, admission, latency, pool, .. } = device;
        json!({
            "path": paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            "scheduler": scheduler.name,
            "depth": depth,
            "capacity_iops": capacity.iops.map(Iops::as_f64),
            "bandwidth_bytes_per_second": capacity.bytes.map(|rate| rate.bytes_per_second()),
            "window_requests": window.requests,
            "window_bytes": window.bytes,
            "latency_us": latency.map(|latency| latency.as_micros() as u64),
            "meeting": pool.as_ref().map(|pool| pool.meeting.to_string()),
            "host": pool.as_ref().map(|pool| pool.host),
            "admission": admission,
        })
    };
    keyed(name, (&keys(before), &keys(after)), plan, |_, _, _| "its VMs are not paused".to_owned());
    if before.params != after.params {
        plan.push(whole(name, true, "parameters of its scheduler change"));
    }
}

fn vm(name: &str, before: Option<&Vm>, after: Option<&Vm>, plan: &mut Vec<Effect>) {
    match (before, after) {
        (Some(before), Some(after)) => {
            policy(name, &before.policy, &after.policy, plan);
            let cpu = |vm: &Vm| json!({ "cpu_limit": vm.cpu_limit.map(|limit| limit.to_string()) });
            keyed(name, (&cpu(before), &cpu(after)), plan, |_, _, _| {
                "its share of the daemon's CPU time changes".to_owned()
            });
        }
        (None, Some(_)) => plan.push(whole(name, false, "is new")),
        (_, None) => plan.push(whole(name, true, "is removed")),
    }
    let none = BTreeMap::new();
    let old = before.map_or(&none, |vm| &vm.volumes);
    let new = after.map_or(&none, |vm| &vm.volumes);
    for volume_name in names(old, new) {
        let title = format!("{name}/{volume_name}");
        match (old.get(volume_name), new.get(volume_name)) {
            (Some(before), Some(after)) => volume(&title, before, after, plan),
            (None, Some(_)) => plan.push(whole(&title, false, "will be served")),
            (_, None) => plan.push(whole(&title, true, "will be closed")),
        }
    }
    nics(name, before, after, plan);
}

/// The network half of a VM's policy, and its NICs.
fn nics(name: &str, before: Option<&Vm>, after: Option<&Vm>, plan: &mut Vec<Effect>) {
    if let (Some(before), Some(after)) = (before, after) {
        described(&format!("{name} net"), (&describe_net(&before.net), &describe_net(&after.net)), plan);
    }
    let none = BTreeMap::new();
    let (old, new) = (before.map_or(&none, |vm| &vm.nics), after.map_or(&none, |vm| &vm.nics));
    for nic in names(old, new) {
        let title = Target::nic(name, nic).to_string();
        match (old.get(nic), new.get(nic)) {
            (Some(before), Some(after)) => {
                described(&title, (&describe_net(&before.policy), &describe_net(&after.policy)), plan);
                let keys = |nic: &Nic| {
                    let mut keys = to_value(describe_nic(nic)).expect("its keys are strings");
                    keys.as_object_mut().expect("it is one").remove("policy");
                    keys
                };
                let is_reopened = !is_same_nic(before, after);
                keyed(&title, (&keys(before), &keys(after)), plan, |_, _, _| match is_reopened {
                    true => "will be closed and opened again".to_owned(),
                    false => "its guest stays connected".to_owned(),
                });
            }
            (None, Some(_)) => plan.push(whole(&title, false, "will be served")),
            (_, None) => plan.push(whole(&title, true, "will be closed")),
        }
    }
}

fn volume(name: &str, before: &Volume, after: &Volume, plan: &mut Vec<Effect>) {
    policy(name, &before.policy, &after.policy, plan);
    let keys = |volume: &Volume| {
        json!({
            "device": volume.device,
            "source": volume.source.stated(),
            "offset": volume.offset,
            "size": volume.size,
            "read_only": volume.read_only,
            "buffered": volume.buffered,
            "block_size": volume.block_size,
            "discard": discard(volume),
            "serial": volume.serial,
            "export_name": volume.export.name,
            "export": format!("{:?} at {}", volume.export.protocol, endpoint(volume)),
        })
    };
    let reopened = !is_same_source(before, after);
    keyed(name, (&keys(before), &keys(after)), plan, |key, _, _| match (reopened, key) {
        (true, _) => "will be closed and opened again".to_owned(),
        (false, "size") => "its guest sees the new size".to_owned(),
        (false, _) => "its socket is another".to_owned(),
    });
}

fn endpoint(volume: &Volume) -> String {
    match &volume.export.endpoint {
        sluice_config::ListenAddress::Unix { path, .. } => path.display().to_string(),
        sluice_config::ListenAddress::Tcp(address) => address.to_string(),
    }
}

fn policy(name: &str, before: &sluice_sched::Policy, after: &sluice_sched::Policy, plan: &mut Vec<Effect>) {
    if before == after {
        return;
    }
    described(name, (&status::policy(before), &status::policy(after)), plan);
}

/// Adds an effect for each field of two described policies that differs.
fn described<P: Serialize>(name: &str, (before, after): (&P, &P), plan: &mut Vec<Effect>) {
    let [before, after] = [before, after].map(|policy| to_value(policy).expect("its keys are strings"));
    keyed(name, (&before, &after), plan, |key, before, after| {
        let (old, new) = (before.as_f64().unwrap_or(0.0), after.as_f64().unwrap_or(0.0));
        let verb = if new < old { "loses" } else { "gains" };
        let by = (new - old).abs();
        match key {
            "reservation_iops" => format!("{verb} {by} iops of reservation"),
            "reservation_bytes_per_second" => format!("{verb} {by} bytes per second of reservation"),
            key if is_limit(key) && after.is_null() => "is not limited any more".to_owned(),
            key if is_limit(key) && (before.is_null() || new < old) => "is limited more tightly".to_owned(),
            key if is_limit(key) => "is limited less tightly".to_owned(),
            "weight" if new < old => "gets a smaller share".to_owned(),
            "weight" => "gets a larger share".to_owned(),
            _ => "its policy changes".to_owned(),
        }
    });
}

/// Whether a key of a described policy is a limit, also of reads or of writes.
fn is_limit(key: &str) -> bool {
    let limit = key.trim_start_matches("read_").trim_start_matches("write_");
    matches!(limit, "limit_iops" | "limit_bytes_per_second")
}

/// Adds an effect for each key that differs.
fn keyed(
    name: &str,
    (before, after): (&Value, &Value),
    plan: &mut Vec<Effect>,
    effect: impl Fn(&str, &Value, &Value) -> String,
) {
    for (key, new) in after.as_object().into_iter().flatten() {
        let old = &before[key];
        if old != new {
            let effect = effect(key, old, new);
            plan.push(Effect {
                name: name.to_owned(),
                key: key.clone(),
                before: words(old),
                after: words(new),
                effect,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(vms: &str) -> Host {
        let text = format!("[device.d]\nbackend = \"null\"\ncapacity = \"1000 iops\"\n{vms}");
        sluice_config::parse("a test's host file", &text).unwrap_or_else(|found| panic!("{found}"))
    }

    fn vm(name: &str, keys: &str) -> String {
        let volume = format!("device = \"d\"\nsize = \"1MiB\"\nexport.socket = \"/run/{name}\"\n");
        format!("[vm.{name}]\n{keys}\n[vm.{name}.volume.v]\n{volume}")
    }

    fn words_of(old: &str, new: &str) -> Vec<String> {
        let line = |effect: &Effect| {
            format!("{} {} {} -> {}: {}", effect.name, effect.key, effect.before, effect.after, effect.effect)
        };
        plan(&host(old), &host(new)).iter().map(line).collect()
    }

    #[test]
    fn a_plan_says_who_loses_what() {
        let old = vm("web", "reservation = \"800 iops\"") + &vm("db1", "");
        let new = vm("web", "reservation = \"500 iops\"");
        let expected = [
            "db1  present -> -: is removed",
            "db1/v  present -> -: will be closed",
            "web reservation_iops 800 -> 500: loses 300 iops of reservation",
        ];
        assert_eq!(words_of(&old, &new), expected);
        assert_eq!(words_of(&new, &new), [""; 0]);
        let limited = vm("web", "reservation = \"500 iops\"\nlimit = \"600 iops\"");
        assert_eq!(words_of(&new, &limited), ["web limit_iops - -> 600: is limited more tightly"]);
        let grown = new.replace("1MiB", "2MiB");
        assert_eq!(words_of(&new, &grown), ["web/v size 1048576 -> 2097152: its guest sees the new size"]);
        let other = new.replace("export.socket", "read_only = true\nexport.socket");
        assert_eq!(words_of(&new, &other), ["web/v read_only false -> true: will be closed and opened again"]);
    }
}
