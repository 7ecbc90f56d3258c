//! What the host file says of a device or uplink, for those who look at it.

use sluice_api::status::DeviceSettings;
use sluice_config::{Device, Port};
use sluice_sched::params::Value;
use sluice_sched::policy::Reservation;
use sluice_sched::schedulers::mclock::{BATCH, batch_on};
use sluice_sched::{ByteRate, Iops};

use super::Served;

/// Returns the settings of a device or uplink; `None` if the host file has none of this name.
pub(super) fn settings(served: &Served, name: &str) -> Option<DeviceSettings> {
    let host = &served.host;
    let disk = host.devices.get(name).map(|device| DeviceSettings {
        paths: device.paths.iter().filter(|_| device.paths.len() > 1).map(|path| path.path().to_owned()).collect(),
        disks: served.disks.get(name).cloned().unwrap_or_default(),
        ..of_device(device, served.rotational.contains(name))
    });
    disk.or_else(|| {
        let uplink = host.uplinks.get(name)?;
        let (Port::Bridge(interface) | Port::Nic(interface) | Port::Tap(interface)) = &uplink.port;
        Some(DeviceSettings { path: Some(interface.into()), ..of_device(&uplink.link, false) })
    })
}

fn of_device(device: &Device, disk_is_rotational: bool) -> DeviceSettings {
    let (iops, bytes) = (Iops::per_second(1), ByteRate::per_second(1));
    let supply = device.supply();
    let like = Reservation { iops: supply.capacity.iops.map(|_| iops), bytes: supply.capacity.bytes.map(|_| bytes) };
    let free = supply.free_each([], 1, &like);
    let has_batches = device.scheduler.parameters.iter().any(|parameter| parameter.name == BATCH.name);
    let stated = match device.params.get(BATCH.name) {
        Some(Value::Integer(stated)) => u32::try_from(*stated).ok().filter(|stated| *stated > 0),
        _ => None,
    };
    DeviceSettings {
        path: device.paths.first().map(|path| path.path().to_owned()),
        paths: Vec::new(),
        disks: Vec::new(),
        scheduler: device.scheduler.name.to_owned(),
        reservable_iops: free.iops.map(Iops::as_f64),
        reservable_bytes_per_second: free.bytes.map(ByteRate::bytes_per_second),
        rotational: device.rotational,
        disk_is_rotational,
        batch: has_batches.then(|| batch_on(stated.unwrap_or(0), &device.info(disk_is_rotational))),
        batch_is_stated: stated.is_some(),
    }
}
