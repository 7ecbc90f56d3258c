//! Up to which size of requests the reservations in requests on a device hold.
//!
//! A reservation of requests per second is promised for requests that the bandwidth of the device can carry at that rate. Example:
//! of 1,000 iops and 100 MiB/s, 980 iops are reserved. Requests of 256 KiB count as 1.82 each, and 980 of them per second are
//! 134 MiB/s; up to 155 KiB they fit.

use std::collections::BTreeMap;

use sluice_config::{Device, Host};
use sluice_sched::{Bytes, Kind, Policy};

/// The largest request with which all reservations in requests on a device are met; `None` if that is any, or not known.
pub fn request_max(host: &Host, device: &Device) -> Option<Bytes> {
    device.request_max(policies(host, device))
}

/// Policies of the VMs with volumes on a device.
fn policies<'a>(host: &'a Host, device: &Device) -> impl Iterator<Item = &'a Policy> + use<'a> {
    let name = device.name.clone();
    let here = move |vm: &&std::sync::Arc<sluice_config::Vm>| vm.volumes.values().any(|volume| volume.device == name);
    host.vms.values().filter(here).map(|vm| &vm.policy)
}

/// Up to which size of requests the reservations in requests hold, and why.
pub fn note(device: &Device, size: Bytes) -> String {
    let bandwidth = device.capacity.bytes.map_or_else(String::new, |bandwidth| bandwidth.to_string());
    let largest = device.gate_settings().transfer_max;
    let cost = device.cost.cost(Kind::Read, u32::try_from(largest.0).unwrap_or(u32::MAX)).as_f64();
    format!(
        "Device {}: its bandwidth of {bandwidth} suffices for all reservations in requests only up to a request \
         size of {size}; a request of {largest} counts as {cost:.2} requests, but takes more of the bandwidth. For \
         VMs with larger requests, reserve bytes.",
        device.name
    )
}

/// The notes of devices on which reservations hold for smaller requests only than before a change.
pub fn narrowed(before: &Host, after: &Host) -> Vec<String> {
    let sizes = |host: &Host| -> BTreeMap<String, Bytes> {
        let devices = host.devices.values();
        devices.filter_map(|device| Some((device.name.clone(), request_max(host, device)?))).collect()
    };
    let (before, sizes) = (sizes(before), sizes(after));
    let is_new = |(name, size): &(&String, &Bytes)| before.get(*name).is_none_or(|before| *size < before);
    sizes.iter().filter(is_new).filter_map(|(name, size)| Some(note(after.devices.get(name)?, *size))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of 1,000 iops and 100 MiB/s, of which `reserved` are promised.
    fn host(reserved: &str) -> Host {
        let text = format!(
            "[device.d]\nbackend = \"null\"\ncapacity = \"1000 iops@8KiB\"\nbandwidth = \"100MiB/s\"\n[vm.a]\nreservation = \
             \"{reserved}\"\n[vm.a.volume.v]\ndevice = \"d\"\nsize = \"1MiB\"\nexport = {{ socket = \"/run/a.sock\" }}\n"
        );
        sluice_config::parse("host.toml", &text).unwrap_or_else(|found| panic!("{found}"))
    }

    #[test]
    fn only_a_change_that_narrows_the_promise_is_noted() {
        let size = |reserved: &str| {
            let host = host(reserved);
            request_max(&host, &host.devices["d"])
        };
        assert!(size("980 iops") < size("900 iops") && size("980 iops").is_some(), "{:?}", size("980 iops"));
        let notes = |before: &str, after: &str| narrowed(&host(before), &host(after)).len();
        assert_eq!((notes("10MiB/s", "980 iops"), notes("900 iops", "980 iops")), (1, 1));
        assert_eq!((notes("980 iops", "980 iops"), notes("980 iops", "900 iops")), (0, 0));
    }
}
