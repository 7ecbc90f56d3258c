//! What would help a VM, by the cause that holds it and the policies in force: no advice to give what it has, or what does not fit.

use std::time::Duration;

use sluice_api::amount::{bandwidth, bits, percent, rate};
use sluice_api::cause::Cause;
use sluice_api::event::{EventKind, Neighbour, Right};
use sluice_api::policy::{Class, Policy};
use sluice_api::status::{Capacity, Device, DeviceSettings, State, Vm};
use sluice_pool::Aim;
use sluice_sched::Iops;

use super::outstanding::Needed;

/// Part of what a device gives, in percent, from which on a part of a neighbour by reservation or by weight matters.
const MATTERS: f64 = 5.0;

/// The state of a VM on one device, which advice refers to.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) vm: &'a Vm,
    pub(super) device: &'a Device,
    /// All VMs, of all devices.
    pub(super) vms: &'a [Vm],
    /// Its largest neighbours.
    pub(super) neighbours: &'a [Neighbour],
}

/// A reservation or limit in both currencies.
#[derive(Clone, Copy, Default, PartialEq)]
struct Amount {
    iops: Option<f64>,
    bytes: Option<f64>,
}

impl Amount {
    fn new(iops: Option<f64>, bytes: Option<u64>) -> Amount {
        Amount { iops, bytes: bytes.map(|bytes| bytes as f64) }
    }

    fn reservation(policy: &Policy) -> Amount {
        Amount::new(policy.reservation_iops, policy.reservation_bytes_per_second)
    }

    /// The most that the limits of a policy leave to a reservation.
    fn limit(policy: &Policy) -> Amount {
        let iops = [policy.limit_iops, policy.read_limit_iops, policy.write_limit_iops];
        let bytes =
            [policy.limit_bytes_per_second, policy.read_limit_bytes_per_second, policy.write_limit_bytes_per_second];
        let least = iops.into_iter().flatten().min_by(f64::total_cmp);
        Amount::new(least, bytes.into_iter().flatten().min())
    }

    fn is_none(self) -> bool {
        self == Amount::default()
    }

    fn in_words(self, is_link: bool) -> String {
        let iops = self
            .iops
            .map(|iops| format!("{} iops", if iops < 9999.5 { format!("{}", iops.floor()) } else { rate(iops) }));
        let bytes = self.bytes.map(|bytes| if is_link { bits(8.0 * bytes) } else { bandwidth(bytes) });
        iops.into_iter().chain(bytes).collect::<Vec<_>>().join(" and ")
    }
}

/// Returns what would help against a cause. `known`: the VM is served from the device now.
pub(super) fn advice(cause: Cause, known: Option<Known<'_>>) -> String {
    let special = known.and_then(|known| match cause {
        Cause::OthersReservation | Cause::OthersWeight => Some(known.against_others(cause)),
        Cause::OwnLimit => known.raise_limits(),
        Cause::OwnCpuLimit => known.raise_cpu_limit(),
        Cause::OwnQueue => known.ask_for_more(),
        Cause::Batch => known.shorten_batches(),
        Cause::Device => known.correct_capacity(),
        Cause::Pool => known.against_other_hosts(),
        _ => None,
    });
    special.unwrap_or_else(|| cause.advice().to_owned())
}

impl Known<'_> {
    fn is_link(&self) -> bool {
        self.device.rates.are_of_link()
    }

    /// The most that it could reserve beside the others, in the currencies of its reservation; `None` if that is not known.
    fn fits(&self) -> Option<Amount> {
        let settings = self.device.settings.as_ref()?;
        let most = Amount::new(settings.reservable_iops, settings.reservable_bytes_per_second);
        let part = |own: Option<f64>, most: Option<f64>| own.zip(most).map_or(0.0, |(own, most)| own / most);
        let others = self.vms.iter().filter(|other| other.device == self.device.device && other.vm != self.vm.vm);
        let taken: f64 = others
            .map(|other| Amount::reservation(&other.policy))
            .map(|other| part(other.iops, most.iops).max(part(other.bytes, most.bytes)))
            .sum();
        let own = Amount::reservation(&self.vm.policy);
        // A part of a request that is lost in the division is not missing.
        let free = |most: f64| (most * (1.0 - taken) + 1e-6).max(0.0);
        let iops = most.iops.filter(|_| own.iops.is_some() || own.is_none());
        let bytes = most.bytes.filter(|_| own.bytes.is_some() || own.is_none() && iops.is_none());
        let fits = Amount { iops: iops.map(free), bytes: bytes.map(free) };
        (!fits.is_none()).then_some(fits)
    }

    /// A reservation that is not yet as large as it could be, a larger weight, or less for the others.
    fn against_others(&self, cause: Cause) -> String {
        let is_background = self.vm.policy.class == Class::Background;
        let lower = || {
            let largest = self.named(Right::Reservation);
            format!("Lower the reservations of its neighbours{largest}, or move one of them to another device.")
        };
        let of_weight = (cause == Cause::OthersWeight || is_background || !self.served_by(Right::Weight).is_empty())
            .then(|| self.more_by_weight());
        let of_reservation =
            (cause == Cause::OthersReservation || !self.served_by(Right::Reservation).is_empty()).then(lower);
        // What others no longer reserve is shared by weight, so a light VM gets little of it.
        let [first, second] = match cause {
            Cause::OthersReservation if !is_background && !self.is_light() => [of_reservation, of_weight],
            _ => [of_weight, of_reservation],
        };
        [Some(self.larger_reservation()), first, second].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Whether a neighbour that gets much by weight has a larger one.
    fn is_light(&self) -> bool {
        let heavier = self.served_by(Right::Weight);
        let own = self.vm.policy.weight;
        let mut others = self.vms.iter().filter(|other| other.device == self.device.device);
        others.any(|other| heavier.contains(&other.vm.as_str()) && other.policy.weight > own)
    }

    /// More of what the device gives by weight.
    fn more_by_weight(&self) -> String {
        if self.vm.policy.class == Class::Background {
            return "Its class is background, so it gets next to nothing while other VMs have requests, whatever its weight: make its \
                    class foreground, or give it a reservation."
                .to_owned();
        }
        let weight = self.vm.policy.weight.map_or(String::new(), |weight| format!(" than {weight}"));
        format!("Give it a larger weight{weight}, or limit its neighbours{}.", self.named(Right::Weight))
    }

    /// The reservation that it has, and how much more it could have.
    fn larger_reservation(&self) -> String {
        let (own, is_link) = (Amount::reservation(&self.vm.policy), self.is_link());
        let limit = Amount::limit(&self.vm.policy);
        let least =
            |fits: Option<f64>, limit: Option<f64>| fits.map(|fits| limit.map_or(fits, |limit| fits.min(limit)));
        // A reservation above a limit is refused.
        let below_limit =
            |fits: Amount| Amount { iops: least(fits.iops, limit.iops), bytes: least(fits.bytes, limit.bytes) };
        let more = |fits: Amount| {
            let larger =
                |own: Option<f64>, fits: Option<f64>| fits.is_some_and(|fits| fits >= own.unwrap_or(0.0) * 1.01 + 1.0);
            larger(own.iops, fits.iops) || larger(own.bytes, fits.bytes)
        };
        let has = match own.is_none() {
            true => "It has no reservation".to_owned(),
            false => format!("Its reservation is {}", own.in_words(is_link)),
        };
        match self.fits().map(|fits| (fits, below_limit(fits))) {
            Some((_, allowed)) if more(allowed) => format!("{has}; up to {} fit.", allowed.in_words(is_link)),
            Some((fits, _)) if more(fits) => format!("{has}, and its limit allows no more."),
            Some(_) => format!("{has}, and no more fits on {}.", self.device.device),
            None if own.is_none() => "Give it a reservation.".to_owned(),
            None => format!("{has}."),
        }
    }

    /// The largest neighbours that get much by this right. One may get much by both.
    fn served_by(&self, right: Right) -> Vec<&str> {
        let gets_much = |one: &&Neighbour| {
            let own = self.vms.iter().find(|other| other.device == self.device.device && other.vm == one.vm);
            let part = own.and_then(|own| match right {
                Right::Reservation => own.parts.by_reservation_percent,
                Right::Weight => own.parts.by_weight_percent,
                Right::Other => None,
            });
            part.map_or(one.by == right, |part| one.percent * part / 100.0 >= MATTERS)
        };
        self.neighbours.iter().filter(gets_much).map(|one| one.vm.as_str()).collect()
    }

    fn named(&self, right: Right) -> String {
        let names = self.served_by(right);
        if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
    }

    /// The limits of the VM and its volumes.
    fn raise_limits(&self) -> Option<String> {
        let is_link = self.is_link();
        let of = |name: &str, policy: &Policy| {
            let all = [
                ("limit", Amount::new(policy.limit_iops, policy.limit_bytes_per_second)),
                ("limit of reads", Amount::new(policy.read_limit_iops, policy.read_limit_bytes_per_second)),
                ("limit of writes", Amount::new(policy.write_limit_iops, policy.write_limit_bytes_per_second)),
            ];
            let stated = all.into_iter().filter(|(_, amount)| !amount.is_none());
            stated
                .map(|(what, amount)| format!("the {what} of {name} ({})", amount.in_words(is_link)))
                .collect::<Vec<_>>()
        };
        let volumes = self.vm.volumes.iter().flat_map(|volume| of(&volume.id().to_string(), &volume.policy));
        let limits: Vec<String> = of(&self.vm.vm, &self.vm.policy).into_iter().chain(volumes).collect();
        (!limits.is_empty()).then(|| format!("Raise {}, or let the guest ask for less.", limits.join(" or ")))
    }

    fn raise_cpu_limit(&self) -> Option<String> {
        let cpu = &self.vm.cpu;
        let limit = cpu.limit_percent?;
        let held = percent(cpu.held_percent);
        Some(format!(
            "`cpu_limit` is {limit} %, and held it back for {held} of the time. {}",
            Cause::OwnCpuLimit.advice()
        ))
    }

    /// More outstanding requests; not for a VM whose requests are late because of their number.
    fn ask_for_more(&self) -> Option<String> {
        let is_late = |(_, promise): (_, &sluice_api::status::Promise)| {
            promise.kind == EventKind::Latency && promise.state == State::Broken
        };
        let detail = self.vm.held_by_detail.as_ref().filter(|_| !self.vm.all_promises().any(is_late))?;
        let needs = self.needed().map_or(String::new(), |needed| format!(" It {}.", needed.in_words()));
        Some(format!(
            "It asks for too little: {detail}. Let the guest keep more requests outstanding (queue depth, more jobs or read-ahead).{needs}"
        ))
    }

    /// What its reservation needs, if what is in flight at the device follows the time of requests.
    fn needed(&self) -> Option<Needed> {
        let latency = Duration::from_micros(self.device.window.as_ref()?.latency_us);
        let capacity = Iops::from_milli((self.device.capacity.stated_iops? * 1000.0) as u64);
        Some(Needed::new(&Aim::new(capacity, latency), self.vm.policy.reservation_iops?))
    }

    fn shorten_batches(&self) -> Option<String> {
        let settings = self.device.settings.as_ref()?;
        let batch = settings.batch.filter(|batch| *batch > 1)?;
        let (device, reported) = (&self.device.device, "the disk reports a rotating one, so batches are on");
        Some(match settings {
            DeviceSettings { batch_is_stated: true, .. } => {
                format!("`batch = {batch}` is stated for device {device}: make it smaller, or 1 for none.")
            }
            DeviceSettings { rotational: None, .. } => format!(
                "`rotational = false` for device {device} if it is an SSD: {reported}, up to {batch} requests each. On a rotating disk \
                 state a smaller `batch` than {batch}."
            ),
            DeviceSettings { disk_is_rotational, .. } => {
                let and =
                    if *disk_is_rotational { " and so does the disk" } else { "; the disk reports no rotating one" };
                format!(
                    "`rotational = true` is stated for device {device}{and}, so batches of up to {batch} requests are on: state a \
                     smaller `batch`, or `rotational = false` if it is an SSD."
                )
            }
        })
    }

    /// Less for the VMs of the host that uses most of the storage, or more for the VM if it gets what it was promised.
    fn against_other_hosts(&self) -> Option<String> {
        let pool = self.device.pool.as_ref()?;
        if !pool.knows_others() {
            let path = &pool.meeting;
            return Some(format!(
                "This host does not see what the others do, so its VMs get the part of one host: mend {path}, where the hosts meet \
                 (`sluice status`)."
            ));
        }
        let mut busiest = pool.busiest_in_words()?;
        busiest.replace_range(..1, "H");
        let is_broken = self.vm.all_promises().any(|(_, promise)| promise.state == State::Broken);
        let more =
            if is_broken { "" } else { " A larger reservation or weight of the VM counts in the whole pool too." };
        Some(format!(
            "{busiest}. Lower the reservations or weights of its VMs, limit them, or move one to other storage.{more}"
        ))
    }

    fn correct_capacity(&self) -> Option<String> {
        let Capacity { stated_iops, measured_iops, reserved_iops, .. } = self.device.capacity;
        let (stated, measured) = stated_iops.zip(measured_iops).filter(|(stated, measured)| measured < stated)?;
        let reserved = rate(reserved_iops);
        Some(format!(
            "Device {} gives {} iops while it is full; {} are stated, and {reserved} reserved. {}",
            self.device.device,
            rate(measured),
            rate(stated),
            Cause::Device.advice()
        ))
    }
}
