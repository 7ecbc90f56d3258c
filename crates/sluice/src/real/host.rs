//! The disks, the host file and the loads of a trial.

use std::io;
use std::sync::Arc;

use sluice_config::Host;
use sluice_io::backend::delay::{DeviceModel, ModelMaker};
use sluice_lab::LabError;
use sluice_lab::real::{Arrival, Device, Load, Trial, TrialVm};
use sluice_sched::gate::Slot;
use sluice_sched::{Instant, Request};
use sluice_sim::devices::{Job, Model};

use crate::testbed::folder::{Folder, quoted};
use crate::testbed::load::{LoadVm, Pattern};

/// Prefix of the temporary folder's name.
const PREFIX: &str = "sluice-real-";
/// Capacity that the host file states of a modelled drive, in requests per second. With admission "off" nothing depends on it.
const CAPACITY_OF_DRIVE: f64 = 1000.0;
/// Name of the device in the host file.
const DEVICE: &str = "disk";
/// Name of each VM's volume.
const VOLUME: &str = "root";
/// Digits of an address on the device that are the offset in its volume, for the holes of a file; the digits above are the number of the volume.
/// Where the file system states no holes an address is the offset in the file. The disks of a trial are holes of one file, side by
/// side, so that both lead to the same place.
const OFFSET_BITS: u32 = 44;
/// Window of a VM: more than any trial's number of outstanding requests.
const WINDOW: u32 = 256;

/// A protocol of the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Nbd,
    Vhost,
}

impl Protocol {
    pub(super) const ALL: [Protocol; 2] = [Protocol::Nbd, Protocol::Vhost];

    /// Name in the host file.
    pub(super) fn name(self) -> &'static str {
        match self {
            Protocol::Nbd => "nbd",
            Protocol::Vhost => "vhost-user-blk",
        }
    }
}

/// A temporary folder with a sparse file, in which the VMs' disks lie side by side. Dropping it removes the folder.
pub(super) struct Fixture(Folder);

impl Fixture {
    /// Creates the folder and the file.
    pub(super) fn set(trial: &Trial) -> io::Result<Self> {
        let folder = Folder::new(PREFIX)?;
        folder.make_disk(DEVICE, trial.vms.len() as u64 * trial.disk_len, 0)?;
        Ok(Fixture(folder))
    }

    /// Returns the host file of a trial. With a knee that no request comes near, every request costs the same, as in the
    /// simulation.
    pub(super) fn host_file(&self, trial: &Trial, protocol: Protocol, buffered: bool) -> String {
        let nanos = trial.service_time().map_or(0, |time| time.as_nanos());
        let time = match trial.device {
            Device::Constant(_) => format!("\"{nanos}ns\""),
            Device::Exponential(_) => format!("{{ mean = \"{nanos}ns\" }}"),
            // The model's completion times replace it.
            Device::Drive { .. } => "\"1ms\"".to_owned(),
        };
        let mut text = format!(
            "[device.{DEVICE}]\n\
             path = {path}\n\
             scheduler = \"{scheduler}\"\n\
             depth = {depth}\n\
             window = {{ requests = {WINDOW} }}\n\
             capacity = \"{capacity:.0} iops@8KiB\"\n\
             admission = \"off\"\n\
             rotational = {rotational}\n\
             merging = false\n\
             cost = {{ knee = \"1GB\" }}\n\
             delay = {{ time = {time} }}\n",
            path = quoted(&self.0.disk(DEVICE)),
            scheduler = trial.scheduler,
            depth = trial.depth,
            rotational = trial.rotational,
            capacity = trial.iops().unwrap_or(CAPACITY_OF_DRIVE) * f64::from(trial.speedup()),
        );
        if !trial.parameters.is_empty() {
            text += &format!("\n[device.{DEVICE}.{}]\n", trial.scheduler);
            for (name, value) in trial.parameters {
                let is_number = value.parse::<i64>().is_ok();
                let value = if is_number { (*value).to_owned() } else { format!("\"{value}\"") };
                text += &format!("{name} = {value}\n");
            }
        }
        let cache = if buffered { "buffered" } else { "direct" };
        for (number, vm) in trial.vms.iter().enumerate() {
            text += &format!(
                "\n[vm.{name}]\n\
                 {policy}\n\
                 [vm.{name}.volume.{VOLUME}]\n\
                 device = \"{DEVICE}\"\n\
                 source = {disk}\n\
                 offset = \"{offset}B\"\n\
                 size = \"{size}B\"\n\
                 cache = \"{cache}\"\n\
                 export = {{ type = \"{protocol}\", socket = {socket} }}\n",
                name = vm.name,
                policy = policy(vm, trial.speedup()),
                disk = quoted(&self.0.disk(DEVICE)),
                offset = number as u64 * trial.disk_len,
                size = trial.disk_len,
                protocol = protocol.name(),
                socket = quoted(&self.0.socket(vm.name)),
            );
        }
        text
    }
}

/// Returns the policy of a VM as lines of the host file.
fn policy(vm: &TrialVm, speedup: u32) -> String {
    let mut text = format!("weight = {}\n", vm.weight);
    let times = u64::from(speedup);
    for (key, rate) in [("reservation", vm.reservation), ("limit", vm.limit)] {
        if rate > 0 {
            text += &format!("{key} = \"{} iops@8KiB\"\n", rate * times);
        }
    }
    if vm.idle_credit != 1 {
        text += &format!("idle_credit = {}\n", vm.idle_credit);
    }
    if vm.latency_ms > 0 {
        text += &format!("latency = {{ p99 = \"{}ms\" }}\n", vm.latency_ms);
    }
    text
}

/// A model of the simulator as the device. The disks of the volumes lie side by side on it, in the order in which they were added.
struct OnModel {
    model: Box<dyn Model>,
    disk_len: u64,
}

impl DeviceModel for OnModel {
    fn submit(&mut self, now: Instant, slot: Slot, request: &Request) {
        let (volume, inside) = (request.offset >> OFFSET_BITS, request.offset & ((1 << OFFSET_BITS) - 1));
        let Request { kind, length, .. } = *request;
        self.model.submit(now, Job { slot, kind, offset: volume * self.disk_len + inside, length });
        self.model.settle(now);
    }

    fn next(&self) -> Option<Instant> {
        self.model.next()
    }

    fn take(&mut self, at: Instant) -> Option<Slot> {
        let slot = self.model.take(at);
        self.model.settle(at);
        slot
    }
}

/// Returns the model of a trial's device, if it has one, with the name of the device.
pub(super) fn model(trial: &Trial) -> Result<Option<(&'static str, ModelMaker)>, LabError> {
    let Device::Drive { .. } = trial.device else { return Ok(None) };
    // A model cannot be sent to the device's thread; that it can be made is checked here.
    drop(trial.model()?);
    let trial = trial.clone();
    let make = move || -> Box<dyn DeviceModel> {
        let model = trial.model().expect("it has been made before");
        Box::new(OnModel { model, disk_len: trial.disk_len })
    };
    Ok(Some((DEVICE, ModelMaker(Arc::new(make)))))
}

/// Returns the loads of all VMs. Every request counts as 1.
pub(super) fn loads(trial: &Trial, host: &Host) -> Vec<LoadVm> {
    let load = |vm: &TrialVm| {
        let Load { arrival, outstanding, length, random_percent } = vm.load;
        LoadVm {
            name: vm.name,
            export: host.vms[vm.name].volumes[VOLUME].export.clone(),
            outstanding,
            request_len: length,
            cost: 1.0,
            pattern: Pattern::Mixed { random_percent, range: trial.range },
            burst_every: match arrival {
                Arrival::Closed => None,
                Arrival::Bursts(every) => Some(trial.scaled(every)),
            },
            starts: vm.start == 0,
            // As DM in Fig. 3 where the reservations take everything.
            may_starve: true,
        }
    };
    trial.vms.iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_config::DelayTime;
    use sluice_sched::Kind;

    #[test]
    fn host_files_state_the_policies_and_the_device_of_the_simulation() {
        for trial in sluice_lab::real::ALL.iter().flat_map(|figure| (figure.trials)()) {
            let fixture = Fixture::set(&trial).unwrap();
            for (protocol, buffered) in [(Protocol::Nbd, false), (Protocol::Vhost, true)] {
                let text = fixture.host_file(&trial, protocol, buffered);
                let host = sluice_config::parse("trial.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                for vm in &trial.vms {
                    assert_eq!(host.vms[vm.name].policy, vm.policy(trial.speedup()), "{}: {}", trial.name, vm.name);
                    assert_eq!(host.vms[vm.name].volumes[VOLUME].buffered, buffered);
                }
                let device = &host.devices[DEVICE];
                let delay = device.delay.as_ref().unwrap();
                if let Some(due) = trial.service_time() {
                    let (DelayTime::Fixed(time) | DelayTime::Exponential(time)) = delay.time else {
                        panic!("it is uniform")
                    };
                    assert_eq!(time, due);
                }
                assert_eq!((delay.parallel, device.depth), (1, trial.depth));
                assert_eq!(model(&trial).unwrap().is_some(), trial.service_time().is_none());
                for size in [4 << 10, 16 << 10] {
                    assert!((device.cost.cost(Kind::Read, size).as_f64() - 1.0).abs() < 2e-5, "every request costs 1");
                }
                assert!(loads(&trial, &host).iter().all(|load| load.outstanding <= WINDOW));
            }
        }
    }
}
