//! What a change would do, for those who ask before they make it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use sluice_api::amount::{percent, rate};
use sluice_api::change::{PartChange, Preview};
use sluice_config::{Host, Vm};
use sluice_sched::policy::Class;
use sluice_sched::{Iops, Policy};

use super::plan;

/// Returns the differences, and the VMs whose part of a device would be another one.
pub(super) fn preview(old: &Host, new: &Host, warnings: &[String]) -> Preview {
    let (before, after) = (parts(old), parts(new));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
    let changed = keys.into_iter().filter_map(|(device, vm)| {
        let key = (device, vm);
        let [was, is] = [&before, &after].map(|parts| parts.get(&key).copied().unwrap_or_default());
        (was != is).then(|| part_change(key, was, is))
    });
    let mut parts: Vec<PartChange> = changed.collect();
    parts.sort_by(by_loss);
    Preview { changes: plan::plan(old, new), parts, warnings: warnings.to_vec() }
}

/// What a VM may count on of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Part {
    reserved_percent: Option<f64>,
    spare_iops: Option<f64>,
}

/// The parts of all VMs, by device and VM.
type Parts = BTreeMap<(String, String), Part>;

/// Orders those that lose of their reservation first, then those that lose of the spare capacity.
fn by_loss(one: &PartChange, other: &PartChange) -> Ordering {
    let gain = |before: Option<f64>, after: Option<f64>| after.unwrap_or(0.0) - before.unwrap_or(0.0);
    let reserved = |part: &PartChange| gain(part.reserved_percent_before, part.reserved_percent_after);
    let spare = |part: &PartChange| gain(part.spare_iops_before, part.spare_iops_after);
    reserved(one).total_cmp(&reserved(other)).then(spare(one).total_cmp(&spare(other)))
}

fn part_change((device, vm): (String, String), was: Part, is: Part) -> PartChange {
    let shown = |value: Option<f64>, words: fn(f64) -> String| value.map_or_else(|| "nothing".to_owned(), words);
    let mut text = Vec::new();
    if was.reserved_percent != is.reserved_percent {
        let [was, is] = [was, is].map(|part| shown(part.reserved_percent, percent));
        text.push(format!("{vm} reserves {is} of {device}, was {was}"));
    }
    if was.spare_iops != is.spare_iops {
        let [was, is] = [was, is].map(|part| shown(part.spare_iops, rate));
        text.push(format!("spare for {vm} on {device}: {is} iops, was {was}"));
    }
    PartChange {
        reserved_percent_before: was.reserved_percent,
        reserved_percent_after: is.reserved_percent,
        spare_iops_before: was.spare_iops,
        spare_iops_after: is.spare_iops,
        text: text.join("; "),
        vm,
        device,
    }
}

fn parts(host: &Host) -> Parts {
    let disks = host.devices.values().map(|device| {
        let uses = move |vm: &Vm| vm.volumes.values().any(|volume| volume.device == device.name);
        let own = host.vms.values().filter(|vm| uses(vm)).map(|vm| (&vm.name, &vm.policy));
        of_device(device, own.collect(), true)
    });
    let uplinks = host.uplinks.iter().map(|(name, uplink)| {
        let uses = move |vm: &Vm| vm.nics.values().any(|nic| nic.uplink == *name);
        let own = host.vms.values().filter(|vm| uses(vm)).map(|vm| (&vm.name, &vm.net.transmit));
        of_device(&uplink.link, own.collect(), false)
    });
    disks.chain(uplinks).flatten().collect()
}

fn of_device(
    device: &sluice_config::Device,
    vms: Vec<(&String, &Policy)>,
    is_disk: bool,
) -> Vec<((String, String), Part)> {
    let supply = device.supply();
    let in_percent = |part: sluice_sched::admission::Part| part.0 as f64 / 100.0;
    let reserved = supply.reserved(vms.iter().map(|(_, policy)| *policy)).map(in_percent);
    // What other hosts leave of a pool is not in the host file.
    let is_known = is_disk && device.pool.is_none();
    let spare = reserved.zip(supply.capacity.iops).filter(|_| is_known).map(|(reserved, capacity)| {
        let spare = capacity.as_f64() * (100.0 - reserved).max(0.0) / 100.0;
        shares(spare, vms.iter().map(|(_, policy)| *policy))
    });
    let part = |(at, (vm, policy)): (usize, (&String, &Policy))| {
        let spare_iops = spare.as_ref().map(|spare| spare[at].round());
        let part = Part { reserved_percent: supply.reserved([policy]).map(in_percent), spare_iops };
        ((device.name.clone(), vm.clone()), part)
    };
    vms.into_iter().enumerate().map(part).collect()
}

/// Divides the spare capacity by weight, to each VM at most what its limit leaves: what one cannot take goes to the others.
fn shares<'a>(spare: f64, policies: impl Iterator<Item = &'a Policy>) -> Vec<f64> {
    let asks = |policy: &Policy| {
        let is_foreground = policy.class == Class::Foreground;
        let weight = policy.weight.filter(|_| is_foreground).map_or(0.0, |weight| weight.as_f64());
        let reserved = policy.reservation.iops.map_or(0.0, Iops::as_f64);
        let most = policy.limit.iops.map_or(f64::INFINITY, |limit| (limit.as_f64() - reserved).max(0.0));
        (weight, most)
    };
    let asked: Vec<(f64, f64)> = policies.map(asks).collect();
    let mut order: Vec<usize> = (0..asked.len()).filter(|at| asked[*at].0 > 0.0).collect();
    order.sort_by(|one, other| (asked[*one].1 / asked[*one].0).total_cmp(&(asked[*other].1 / asked[*other].0)));
    let (mut left, mut weights) = (spare, order.iter().map(|at| asked[*at].0).sum::<f64>());
    let mut shares = vec![0.0; asked.len()];
    for at in order {
        let (weight, most) = asked[at];
        shares[at] = (left * weight / weights).min(most);
        left -= shares[at];
        weights -= weight;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(db: &str, web: &str) -> Host {
        let volume =
            |vm: &str| format!("[vm.{vm}.volume.v]\ndevice = \"d\"\nsize = \"1MiB\"\nexport.socket = \"/run/{vm}\"\n");
        let vms = format!("[vm.db]\n{db}\n{}[vm.web]\n{web}\n{}", volume("db"), volume("web"));
        let text = format!("[device.d]\nbackend = \"null\"\ncapacity = \"1000 iops\"\n{vms}");
        sluice_config::parse("a test's host file", &text).unwrap_or_else(|found| panic!("{found}"))
    }

    fn texts(old: (&str, &str), new: (&str, &str)) -> Vec<String> {
        let preview = preview(&host(old.0, old.1), &host(new.0, new.1), &[]);
        preview.parts.into_iter().map(|part| part.text).collect()
    }

    #[test]
    fn a_preview_says_what_no_one_else_may_count_on_any_more() {
        let told = texts(("reservation = \"200 iops\"", ""), ("reservation = \"600 iops\"", ""));
        let expected = [
            "spare for web on d: 200 iops, was 400",
            "db reserves 60 % of d, was 20 %; spare for db on d: 200 iops, was 400",
        ];
        assert_eq!(told, expected);
        assert_eq!(texts(("weight = 100", "limit = \"100 iops\""), ("weight = 300", "limit = \"100 iops\"")), [""; 0]);
        assert_eq!(
            texts(("", ""), ("limit = \"100 iops\"", "")),
            ["spare for db on d: 100 iops, was 500", "spare for web on d: 900 iops, was 500"]
        );
        assert_eq!(texts(("", ""), ("class = \"background\"", "")).len(), 2);
    }
}
