//! The sentence of the overview: how many promises are broken, which one for longest, and why.

use sluice_api::amount::{percent, rate, span};
use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Unit};
use sluice_api::status::{Device, Promise, Verdict};
use sluice_api::top::{Top, Vm};

use crate::text::part;

/// A part of a sentence, which may lead to a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) href: Option<String>,
}

/// A broken promise to a VM or volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Broken<'a> {
    pub(crate) vm: &'a Vm,
    pub(crate) volume: Option<&'a str>,
    pub(crate) promise: &'a Promise,
}

/// A VM with its part of the service of a device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Taker<'a> {
    pub(crate) vm: &'a Vm,
    /// Of all that the device gives now.
    pub(crate) percent: f64,
}

fn text(text: impl Into<String>) -> Part {
    Part { text: text.into(), href: None }
}

pub(crate) fn vm_link(name: &str) -> Part {
    Part { text: name.to_owned(), href: Some(format!("/vms/{}", part(name))) }
}

pub(crate) fn device_link(name: &str) -> Part {
    Part { text: name.to_owned(), href: Some(format!("/devices/{}", part(name))) }
}

/// Returns all broken promises, that for longest first.
pub(crate) fn broken(top: &Top) -> Vec<Broken<'_>> {
    let of_vm = |vm| move |promise| Broken { vm, volume: None, promise };
    let mut all: Vec<Broken<'_>> = Vec::new();
    for vm in &top.vms {
        all.extend(vm.now.promises.iter().map(of_vm(vm)));
        for volume in &vm.volumes {
            let name = Some(volume.volume.as_str());
            all.extend(volume.now.promises.iter().map(|promise| Broken { vm, volume: name, promise }));
        }
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.promise.for_seconds));
    all
}

/// Returns the VMs that a device serves now, largest first.
pub(crate) fn takers<'a>(top: &'a Top, device: &str) -> Vec<Taker<'a>> {
    let served = |vm: &Vm| vm.now.rates.map_or(0.0, |rates| rates.bits_per_second.unwrap_or(rates.iops));
    let all: Vec<&Vm> = top.vms.iter().filter(|vm| vm.device == device && served(vm) > 0.0).collect();
    let total: f64 = all.iter().map(|vm| served(vm)).sum();
    let mut takers: Vec<Taker<'_>> =
        all.into_iter().map(|vm| Taker { vm, percent: 100.0 * served(vm) / total }).collect();
    takers.sort_by(|one, other| other.percent.total_cmp(&one.percent));
    takers
}

impl Broken<'_> {
    /// The VM, or VM/VOLUME.
    pub(crate) fn name(&self) -> String {
        self.volume.map_or_else(|| self.vm.vm.clone(), |volume| format!("{}/{volume}", self.vm.vm))
    }

    /// What it gets of what it was promised: `gets 637 of 756 iops`.
    pub(crate) fn gets(&self) -> String {
        let unit = self.promise.unit.unwrap_or(Unit::Unknown);
        let (wanted, got) = (self.promise.wanted.unwrap_or(0.0), self.promise.got.unwrap_or(0.0));
        match (self.promise.kind, unit) {
            (EventKind::Latency, _) => {
                format!(
                    "has {} of its requests above its latency target ({} allowed)",
                    unit.show(got),
                    unit.show(wanted)
                )
            }
            (_, Unit::Iops) => format!("gets {} of {}", rate_or_whole(got), unit.show(wanted)),
            _ => format!("gets {} of {}", unit.show(got), unit.show(wanted)),
        }
    }

    /// Since when.
    pub(crate) fn since(&self) -> String {
        self.promise.for_seconds.map_or(String::new(), |seconds| format!(" since {}", span(seconds)))
    }

    /// The other VM that takes most, if the cause is what others take.
    pub(crate) fn culprit<'a>(&self, top: &'a Top) -> Option<Taker<'a>> {
        let cause = self.promise.cause.unwrap_or_default();
        let is_others = matches!(cause, Cause::OthersReservation | Cause::OthersWeight | Cause::Batch);
        let takers = takers(top, &self.vm.device).into_iter().filter(|_| is_others);
        takers.into_iter().find(|taker| taker.vm.vm != self.vm.vm)
    }

    /// Why, with links to what is to blame.
    pub(crate) fn because(&self, top: &Top) -> Vec<Part> {
        let cause = self.promise.cause.unwrap_or_default();
        let name = &self.vm.device;
        match (cause, self.culprit(top)) {
            (Cause::Device, _) => of_device(name, top.devices.iter().find(|device| device.device == *name)),
            (cause, Some(first)) => {
                let why = match cause {
                    Cause::OthersReservation => " by its reservation",
                    Cause::OthersWeight => " by its weight",
                    _ => " in batches",
                };
                let takes = format!(" takes {} of ", percent(first.percent));
                vec![text("because "), vm_link(&first.vm.vm), text(takes), device_link(name), text(why)]
            }
            (Cause::OwnLimit, _) => vec![text("because of its own "), limit_link(&self.vm.vm)],
            (Cause::Unknown, _) => vec![text("on "), device_link(name)],
            (cause, _) => vec![text(format!("because of {}, on ", cause.in_words())), device_link(name)],
        }
    }
}

fn limit_link(vm: &str) -> Part {
    Part { text: "limit".to_owned(), href: Some(format!("/vms/{}#change", part(vm))) }
}

/// Whole numbers, so that both numbers of a promise have the same form.
fn rate_or_whole(value: f64) -> String {
    if value < 9999.5 { format!("{:.0}", value.abs()) } else { rate(value) }
}

/// `because disk nvme0 gives 992 of its stated 2000`.
fn of_device(name: &str, device: Option<&Device>) -> Vec<Part> {
    let because = |rest: String| vec![text("because device "), device_link(name), text(rest)];
    let Some(device) = device else { return because(" does not give more".to_owned()) };
    let held = &device.capacity;
    match (held.verdict, held.measured_iops, held.stated_iops) {
        (Verdict::TooHigh, Some(measured), Some(stated)) => {
            because(format!(" gives {} of its stated {}", rate_or_whole(measured), rate_or_whole(stated)))
        }
        _ => match device.problems.first() {
            Some(problem) => because(format!(" {problem}")),
            None => because(" is slow".to_owned()),
        },
    }
}

/// Returns the sentence. `total`: number of all promises, if it is known.
pub(crate) fn sentence(top: &Top, total: Option<usize>) -> Vec<Part> {
    let all = broken(top);
    let Some(first) = all.first() else {
        return vec![text(match total {
            Some(0) => "No VM has a reservation or a latency target.".to_owned(),
            Some(1) => "The only promise is not broken.".to_owned(),
            Some(total) => format!("None of {total} promises is broken."),
            None => "No promise is broken.".to_owned(),
        })];
    };
    let count = all.len();
    let begin = match (total, count) {
        (Some(1), 1) => "The only promise is broken. ".to_owned(),
        (Some(total), 1) => format!("1 of {total} promises is broken. "),
        (Some(total), _) => format!("{count} of {total} promises are broken. "),
        (None, 1) => "1 promise is broken. ".to_owned(),
        (None, _) => format!("{count} promises are broken. "),
    };
    let name = Part { text: first.name(), ..vm_link(&first.vm.vm) };
    let gets = text(format!(" {}{}, ", first.gets(), first.since()));
    let mut parts = vec![text(begin), name, gets];
    parts.extend(first.because(top));
    parts.push(text("."));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::status::{Capacity, State};
    use sluice_api::top::{Figures, Rates};

    fn words(parts: &[Part]) -> String {
        parts.iter().map(|part| part.text.as_str()).collect()
    }

    fn promise(cause: Cause, for_seconds: u64) -> Promise {
        let (wanted, got, unit) = (Some(756.0), Some(637.4), Some(Unit::Iops));
        let kind = EventKind::Reservation;
        Promise { kind, state: State::Broken, for_seconds: Some(for_seconds), wanted, got, unit, cause: Some(cause) }
    }

    fn vm(name: &str, iops: f64, promises: Vec<Promise>) -> Vm {
        let now = Figures { rates: Some(Rates { iops, ..Rates::default() }), promises, ..Figures::default() };
        Vm { vm: name.to_owned(), device: "nvme0".to_owned(), now, ..Vm::default() }
    }

    fn top(vms: Vec<Vm>) -> Top {
        let (verdict, measured_iops, stated_iops) = (Verdict::TooHigh, Some(992.0), Some(2000.0));
        let capacity = Capacity { verdict, measured_iops, stated_iops, ..Capacity::default() };
        let device = Device { device: "nvme0".to_owned(), capacity, ..Device::default() };
        Top { devices: vec![device], vms, ..Top::default() }
    }

    #[test]
    fn the_sentence_names_what_is_broken_for_longest_and_why() {
        let db2 = vm("db2", 10.0, vec![promise(Cause::OthersWeight, 5)]);
        let now = top(vec![db2.clone(), vm("db1", 637.0, vec![promise(Cause::Device, 720)])]);
        let parts = sentence(&now, Some(14));
        assert_eq!(
            words(&parts),
            "2 of 14 promises are broken. db1 gets 637 of 756 iops since 12 min, because device nvme0 gives 992 of its stated 2000."
        );
        let links: Vec<&str> = parts.iter().filter_map(|part| part.href.as_deref()).collect();
        assert_eq!(links, ["/vms/db1", "/devices/nvme0"]);
        let culprit = sentence(&top(vec![db2, vm("batch", 30.0, Vec::new())]), Some(2));
        assert_eq!(
            words(&culprit),
            "1 of 2 promises is broken. db2 gets 637 of 756 iops since 5 s, because batch takes 75 % of nvme0 by its weight."
        );
        assert!(culprit.iter().any(|part| part.href.as_deref() == Some("/vms/batch")), "{culprit:?}");
    }

    #[test]
    fn the_sentence_says_that_all_is_well() {
        let of = |total| words(&sentence(&top(vec![vm("a", 1.0, Vec::new())]), total));
        assert_eq!(of(Some(14)), "None of 14 promises is broken.");
        assert_eq!(of(Some(0)), "No VM has a reservation or a latency target.");
        assert_eq!(of(None), "No promise is broken.");
    }

    #[test]
    fn an_own_limit_leads_to_the_form() {
        let now = top(vec![vm("a b", 1.0, vec![promise(Cause::OwnLimit, 1)])]);
        let parts = sentence(&now, None);
        assert!(parts.iter().any(|part| part.href.as_deref() == Some("/vms/a%20b#change")), "{parts:?}");
    }
}
