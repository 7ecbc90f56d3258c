//! Converts types of the host file to types of the data plane.

use std::fs::File;
use std::sync::Arc;

use sluice_config::{Backend, Delay, DelayTime, VolumeSource};
use sluice_io::device::{DeviceSpec, SchedulerSpec, Window};
use sluice_io::endpoint::Endpoint;
use sluice_io::nbd::export::Export;
use sluice_io::source::Facts;
use sluice_io::store::delay::{DelaySpec, ServiceTime};
use sluice_io::volume::VolumeInfo;
use sluice_pool::dues::{Prices, raw};
use sluice_pool::exchange::Settings;
use sluice_sched::GateSettings;
use sluice_sched::policy::Reservation;

use crate::pool::{Promised, Stated};

/// Maximum length of a read or write, in bytes; the gate splits it.
const PAYLOAD_MAX: u32 = 32 << 20;
/// Block size of a volume without an alignment, in bytes.
const NULL_BLOCK: u32 = 512;

/// Returns the settings of a device thread.
pub(super) fn device(device: &sluice_config::Device, rotational: bool, delay_log: Option<File>) -> DeviceSpec {
    let scheduler = scheduler(device, rotational);
    let gate = GateSettings { queue_max: 1 << 20, ..device.gate_settings() };
    DeviceSpec {
        name: device.name.clone(),
        scheduler,
        gate,
        aim: device.aim(),
        delay: device.delay.as_ref().map(delay),
        delay_log: delay_log.map(Arc::new),
        model: None,
    }
}

pub(super) fn scheduler(device: &sluice_config::Device, rotational: bool) -> SchedulerSpec {
    SchedulerSpec { descriptor: device.scheduler, info: device.info(rotational), params: device.params.clone() }
}

fn delay(delay: &Delay) -> DelaySpec {
    let time = match delay.time {
        DelayTime::Fixed(time) => ServiceTime::Fixed(time),
        DelayTime::Exponential(mean) => ServiceTime::Exponential(mean),
        DelayTime::Uniform { min, max } => ServiceTime::Uniform(min, max),
    };
    DelaySpec { time, parallel: delay.parallel, bandwidth: delay.bandwidth, seed: delay.seed }
}

/// What a host file states of the pool that a device is a part of.
pub(super) fn pool(host: &sluice_config::Host, device: &sluice_config::Device) -> Option<Stated> {
    let number = device.pool.as_ref()?.host;
    let (capacity, request_bytes) = (device.capacity, device.reference.0);
    let settings = Settings { host: number, capacity, request_bytes, latency: device.latency? };
    let like = Reservation { iops: capacity.iops, bytes: None };
    let most = device.supply().free_each([], 1, &like).iops.map_or(0, raw);
    Some(Stated { settings, most, promised: Some(promised(host, device)) })
}

/// What the VMs on a device reserve.
pub(super) fn promised(host: &sluice_config::Host, device: &sluice_config::Device) -> Promised {
    let prices = Prices::new(device.capacity);
    let mut promised = Promised::default();
    let uses = |vm: &sluice_config::Vm| vm.volumes.values().any(|volume| volume.device == device.name);
    for vm in host.vms.values().filter(|vm| vm.policy.is_reserved() && uses(vm)) {
        promised.reserved = promised.reserved.saturating_add(prices.bounds(&vm.policy).reservation);
        promised.vms += 1;
    }
    promised
}

pub(super) fn window(device: &sluice_config::Device) -> Window {
    Window { requests: device.window.requests, bytes: device.window.bytes }
}

pub(super) fn endpoint(endpoint: &sluice_config::ListenAddress) -> Endpoint {
    match endpoint.clone() {
        sluice_config::ListenAddress::Unix { path, owner, group, mode } => Endpoint::Unix { path, owner, group, mode },
        sluice_config::ListenAddress::Tcp(address) => Endpoint::Tcp(address),
    }
}

/// Returns the size and the properties of a volume.
pub(super) fn volume_info(volume: &sluice_config::Volume, source: Option<&Facts>, rotational: bool) -> VolumeInfo {
    let (size_bytes, block_minimum, alignment, read_only) = match source {
        None => (volume.size.unwrap_or(0), volume.block_size.unwrap_or(NULL_BLOCK), NULL_BLOCK, volume.read_only),
        Some(source) => (source.size_bytes(), source.block_size(), source.alignment().offset, source.is_read_only()),
    };
    VolumeInfo {
        size_bytes,
        serial: volume.serial.clone(),
        read_only,
        flush: true,
        fua: true,
        trim: !read_only,
        write_zeroes: !read_only,
        fast_zero: !read_only,
        rotational,
        block_minimum,
        block_preferred: block_minimum.max(alignment).max(4096),
        block_maximum: PAYLOAD_MAX,
    }
}

/// Returns the NBD export of a volume. Names in a host file are short enough for the protocol.
pub(super) fn export(vm: &str, volume: &sluice_config::Volume, info: VolumeInfo) -> Export {
    let description = format!("volume {} of VM {vm}, serial number {}", volume.name, volume.serial);
    Export { name: volume.export.name.clone(), description, info }
}

/// Returns the changed setting of a device that cannot change at run time, if there is one.
pub(super) fn fixed_difference(old: &sluice_config::Device, new: &sluice_config::Device) -> Option<&'static str> {
    let backend = match (&old.backend, &new.backend) {
        (Backend::Nbd(_), Backend::Nbd(_)) => "path, resend, gateway or tls",
        (Backend::Rbd(_), Backend::Rbd(_)) => "path, ceph_conf or ceph_user",
        _ => "backend",
    };
    // Its helper is connected, and its claim stands there.
    let is_reached_otherwise = old
        .pool
        .iter()
        .zip(&new.pool)
        .any(|(old, new)| old.meeting != new.meeting && old.meeting.to_string() == new.meeting.to_string());
    let fixed = [
        (old.paths != new.paths && !new.may_grow(), "path"),
        (!keeps_disks(old, new), "path (it may only get more disks)"),
        (old.backend != new.backend, backend),
        (is_reached_otherwise, "ceph_conf or ceph_user"),
        (old.reference != new.reference || old.cost != new.cost, "cost model"),
        (old.rotational != new.rotational, "rotational flag"),
        (old.delay != new.delay, "delay"),
    ];
    fixed.into_iter().find_map(|(differs, what)| differs.then_some(what))
}

/// Whether a device has the paths that it had, or patterns that match them: it may have more.
fn keeps_disks(old: &sluice_config::Device, new: &sluice_config::Device) -> bool {
    old.paths.iter().all(|path| new.paths.iter().any(|kept| kept.covers(path.path())))
}

/// Whether requests of this device reach a disk of this host.
pub(super) fn has_disk(device: &sluice_config::Device) -> bool {
    device.backend == Backend::Direct
}

/// Whether a volume on this device has a source that is opened.
pub(super) fn is_opened(volume: &sluice_config::Volume, device: &sluice_config::Device) -> bool {
    volume.source != VolumeSource::Nothing && device.backend != Backend::Null
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_of_a_meeting_place_gave_the_claim_back() {
        let device = |user: &str, place: &str| {
            let text = format!(
                "[device.d]\npath = \"/dev/d\"\ncapacity = \"1000 iops\"\nlatency = \"8ms\"\nceph_user = \"{user}\"\n\
                 [device.d.pool]\nmeeting = \"{place}\"\nhost = 1\n"
            );
            sluice_config::parse("host.toml", &text).unwrap_or_else(|errors| panic!("{errors}")).devices["d"].clone()
        };
        let old = device("a", "rados:vms/sluice");
        assert_eq!(fixed_difference(&old, &device("b", "rados:vms/sluice")), Some("ceph_conf or ceph_user"));
        assert_eq!(fixed_difference(&old, &device("b", "rados:vms/other")), None, "it leaves one and enters the other");
    }
}
