//! Replies to what is asked of the monitor. Their form is stable: `version` changes if a key changes its meaning or goes.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sluice_config::{Host, Vm};
use sluice_io::device::{ClientSnapshot, DeviceWatch};
use sluice_io::reactor::priority;
use sluice_observe::glance::VmGlance;
use sluice_observe::history::Point;
use sluice_observe::observer::Observer;
use sluice_observe::status::{DeviceStatus, PromiseStatus, State, Status, VmStatus, VolumeStatus};

use tokio::sync::oneshot;

use super::space::Space;
use super::{Served, name, policies};
use crate::control::describe::{PolicyFields, discard};
use crate::control::roles::Rights;
use crate::control::socket::Asked;
use crate::control::{Code, MetricsFormat, Reply, Request};
use crate::metrics;
use crate::server::{Blocks, Interface, VolumeName};
use crate::space::FileSystem;
use crate::state::overrides::Overrides;

/// Version of the form of replies.
const VERSION: u32 = 1;
/// Maximum time for a device to list its clients.
const CLIENTS_MAX: Duration = Duration::from_millis(300);

/// Answers a request; `None` if the client may ask and another thread answers: questions about events and clients, and for metrics.
pub(super) fn answer((observer, space): (&Observer, &Space), served: Option<&Served>, asked: &Asked) -> Option<Reply> {
    let Some(served) = served else {
        let error = "The daemon has not started yet; repeat the command in a moment";
        return Some(Reply::failed(Code::Refused, error));
    };
    let rights = Rights { roles: &served.roles, settings: &served.host.daemon, file: &served.file };
    if let Err(error) = rights.check(&asked.request, &asked.peer, &Overrides::default()) {
        return Some(Reply::failed(Code::Refused, error));
    }
    match &asked.request {
        Request::Events { .. } | Request::Metrics { .. } | Request::Clients => None,
        Request::Status => Some(status(&observer.status(), space, served)),
        Request::Names => Some(Reply::with(names(&served.host))),
        Request::Policies => Some(Reply::with(json!({ "version": VERSION, "policies": policies::rows(&served.host) }))),
        Request::History { vm, volume } => Some(history(observer, served, vm, volume.as_deref())),
        Request::Top => Some(top(observer, served)),
        Request::Details { vm, volume } => Some(details(observer, served, vm, volume.as_deref())),
        _ => unreachable!("the monitor gets no other requests"),
    }
}

/// Names of VMs with their volumes and NICs, and of devices and uplinks.
fn names(host: &Host) -> Value {
    let vm = |(vm, spec): (&String, &Arc<Vm>)| {
        let nics = spec.nics.keys().map(|nic| format!("nic/{nic}"));
        let volumes = spec.volumes.keys().cloned().chain(nics).map(|volume| json!({ "vm": vm, "volume": volume }));
        json!({ "vm": vm, "volumes": volumes.collect::<Vec<_>>() })
    };
    let devices = host.devices.keys().chain(host.uplinks.keys()).map(|device| json!({ "device": device }));
    json!({
        "version": VERSION,
        "vms": host.vms.iter().map(vm).collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
    })
}

/// The reply about the current state.
#[derive(Serialize)]
struct StatusFields<'a> {
    version: u32,
    time: u64,
    promises_broken: usize,
    real_time: &'static str,
    devices: &'a [DeviceStatus],
    out_of_service: Vec<String>,
    interfaces_out_of_service: Vec<Value>,
    volumes_out_of_service: Vec<Value>,
    held_back: Vec<Value>,
    overrides_set_aside: Vec<Value>,
    file_systems: Vec<Value>,
    bridged: Vec<Value>,
    vms: Vec<VmFields<'a>>,
}

fn status(status: &Status, space: &Space, served: &Served) -> Reply {
    Reply::written(&StatusFields {
        version: VERSION,
        time: status.time,
        promises_broken: status.vms.iter().filter(|vm| vm.is_broken()).count(),
        real_time: priority::of_threads().name(),
        devices: &status.devices,
        out_of_service: out_of_service(served),
        interfaces_out_of_service: outages(served),
        volumes_out_of_service: with_reasons(served.missing.iter().map(|(name, reason)| (name, reason.text()))),
        held_back: with_reasons(served.held.iter().map(|(name, reason)| (name, reason.as_str()))),
        overrides_set_aside: set_aside(served),
        file_systems: space.file_systems().map(file_system).collect(),
        bridged: bridged(served),
        vms: status.vms.iter().map(|vm| VmFields::new(vm, served)).collect(),
    })
}

/// Adds a part to a reply. In `json!` it would be copied, which takes longer than making it if it has all VMs.
fn with_part(mut reply: Value, key: &str, part: Value) -> Value {
    reply[key] = part;
    reply
}

fn out_of_service(served: &Served) -> Vec<String> {
    served.missing.keys().map(name).chain(served.outages.keys().map(Interface::to_string)).collect()
}

fn outages(served: &Served) -> Vec<Value> {
    let of = |(interface, reason): (&Interface, &String)| json!({ "of": interface.to_string(), "reason": reason });
    served.outages.iter().map(of).collect()
}

fn with_reasons<'a>(volumes: impl Iterator<Item = (&'a VolumeName, &'a str)>) -> Vec<Value> {
    volumes.map(|(volume, reason)| json!({ "volume": name(volume), "reason": reason })).collect()
}

fn set_aside(served: &Served) -> Vec<Value> {
    served.aside.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

fn bridged(served: &Served) -> Vec<Value> {
    let of = |(volume, blocks): (&VolumeName, &Blocks)| json!({ "volume": name(volume), "block_size": blocks.guest, "disk_block_size": blocks.disk });
    served.blocks.iter().filter(|(_, blocks)| blocks.is_bridged()).map(of).collect()
}

fn file_system(found: &FileSystem) -> Value {
    json!({
        "device": found.device,
        "folder": found.folder,
        "size_bytes": found.size_bytes,
        "free_bytes": found.free_bytes,
        "growth_bytes": found.growth_bytes,
        "is_overcommitted": found.is_overcommitted(),
        "is_low": found.reached().next().is_some(),
        "text": found.in_words(),
    })
}

/// The reply about the current state, in a compact form.
#[derive(Serialize)]
struct TopFields {
    version: u32,
    time: u64,
    devices: Vec<DeviceStatus>,
    vms: Vec<VmGlance>,
    out_of_service: Vec<String>,
    held_back: Vec<Value>,
}

fn top(observer: &Observer, served: &Served) -> Reply {
    Reply::written(&TopFields {
        version: VERSION,
        time: observer.time(),
        devices: observer.device_status(),
        vms: observer.glance().collect(),
        out_of_service: out_of_service(served),
        held_back: with_reasons(served.held.iter().map(|(name, reason)| (name, reason.as_str()))),
    })
}

/// A VM on each of its devices, or a volume, with the times of its requests.
fn details(observer: &Observer, served: &Served, vm_name: &str, volume_name: Option<&str>) -> Reply {
    let devices = match devices(served, vm_name, volume_name) {
        Ok(devices) => devices,
        Err(reply) => return reply,
    };
    let of = |device: &&str| {
        let details = observer.details(device, vm_name, volume_name)?;
        let object = match volume_name {
            None => serde_json::to_value(VmFields::new(&details.status, served)),
            Some(name) => {
                let volume = details.status.volumes.iter().find(|volume| volume.volume == name)?;
                serde_json::to_value(VolumeFields::new(volume, served))
            }
        };
        let mut object = object.expect("our own types have string keys");
        object["histograms"] = serde_json::to_value(&details.histograms).expect("our own types have string keys");
        Some(object)
    };
    Reply::with(with_part(json!({ "version": VERSION }), "objects", devices.iter().filter_map(of).collect()))
}

/// A VM on one device.
#[derive(Serialize)]
struct VmFields<'a> {
    #[serde(flatten)]
    status: &'a VmStatus,
    policy: PolicyFields,
    state: &'static str,
    volumes: Vec<VolumeFields<'a>>,
}

impl<'a> VmFields<'a> {
    fn new(vm: &'a VmStatus, served: &'a Served) -> Self {
        VmFields {
            status: vm,
            policy: (&vm.policy).into(),
            state: state(&vm.promises, vm.is_broken()),
            volumes: vm.volumes.iter().map(|volume| VolumeFields::new(volume, served)).collect(),
        }
    }
}

#[derive(Serialize)]
struct VolumeFields<'a> {
    #[serde(flatten)]
    status: &'a VolumeStatus,
    policy: PolicyFields,
    state: &'static str,
    #[serde(flatten)]
    disk: Option<DiskFields<'a>>,
}

impl<'a> VolumeFields<'a> {
    fn new(volume: &'a VolumeStatus, served: &'a Served) -> Self {
        VolumeFields {
            status: volume,
            policy: (&volume.policy).into(),
            state: state(&volume.promises, false),
            disk: DiskFields::of(volume, served),
        }
    }
}

/// The disk that a guest has; a NIC has none.
#[derive(Serialize)]
struct DiskFields<'a> {
    source: Option<&'a Path>,
    block_size_bytes: u32,
    disk_block_size_bytes: u32,
    serial: &'a str,
    discard: &'static str,
}

impl<'a> DiskFields<'a> {
    fn of(volume: &VolumeStatus, served: &'a Served) -> Option<DiskFields<'a>> {
        let blocks = served.blocks.get(&(volume.vm.clone(), volume.volume.clone()))?;
        let volume = served.host.vms.get(&volume.vm)?.volumes.get(&volume.volume)?;
        Some(DiskFields {
            source: volume.source.as_deref(),
            block_size_bytes: blocks.guest,
            disk_block_size_bytes: blocks.disk,
            serial: &volume.serial,
            discard: discard(volume),
        })
    }
}

/// The worst state of several promises; `none` without any.
fn state(promises: &[PromiseStatus], is_broken: bool) -> &'static str {
    if is_broken { State::Broken.name() } else { State::worst(promises).map_or("none", State::name) }
}

/// Makes the text on a thread of its own: on a large host it takes longer than a sample may wait. There are at most as many of
/// these threads as clients of the control socket.
pub(super) fn send_metrics(exported: metrics::Board, format: MetricsFormat, reply: oneshot::Sender<Reply>) {
    let make = move || drop(reply.send(Reply::with(metrics(&exported, format))));
    if let Err(error) = thread::Builder::new().name("metrics-reply".to_owned()).spawn(make) {
        tracing::warn!(%error, "Cannot start a thread for a reply with metrics");
    }
}

fn metrics(exported: &metrics::Board, format: MetricsFormat) -> Value {
    let text = exported.text();
    let text = match format {
        MetricsFormat::Prometheus => text.prometheus(),
        MetricsFormat::OpenMetrics => text.open_metrics(),
    };
    json!({ "version": VERSION, "text": str::from_utf8(&text).expect("it was made from a string") })
}

/// Lists the clients on a thread of its own, as [`send_metrics`] does: a device may take up to [`CLIENTS_MAX`] to reply.
pub(super) fn send_clients(devices: Vec<DeviceWatch>, reply: oneshot::Sender<Reply>) {
    let make = move || drop(reply.send(Reply::with(clients(&devices))));
    if let Err(error) = thread::Builder::new().name("clients-reply".to_owned()).spawn(make) {
        tracing::warn!(%error, "Cannot start a thread for a list of clients");
    }
}

fn clients(devices: &[DeviceWatch]) -> Value {
    let (mut clients, mut silent) = (Vec::new(), Vec::new());
    let replies = ask_all(devices, |device| device.clients(CLIENTS_MAX));
    for (device, found) in devices.iter().zip(replies) {
        match found {
            Some(found) => clients.extend(found.iter().map(|client| describe_client(device.name(), client))),
            None => silent.push(device.name().to_owned()),
        }
    }
    json!({ "version": VERSION, "clients": clients, "silent_devices": silent })
}

/// Asks all devices at the same time, so that those that do not reply are waited for once. Returns the replies in their order.
fn ask_all<D: Sync, R: Send>(devices: &[D], ask: impl Fn(&D) -> Option<R> + Sync) -> Vec<Option<R>> {
    thread::scope(|scope| {
        let ask = &ask;
        // A device for which there is no thread is as one that does not reply.
        let start = |device| thread::Builder::new().spawn_scoped(scope, move || ask(device)).ok();
        let asked: Vec<_> = devices.iter().map(start).collect();
        asked.into_iter().map(|asked| asked?.join().ok().flatten()).collect()
    })
}

fn describe_client(device: &str, client: &ClientSnapshot) -> Value {
    json!({
        "vm": client.vm,
        "volume": client.volume,
        "device": device,
        "protocol": client.protocol,
        "peer": client.peer,
        "queues": client.queues,
        "outstanding": client.outstanding,
    })
}

/// The devices of a VM, or of one of its volumes.
fn devices<'a>(served: &'a Served, vm: &str, volume: Option<&str>) -> Result<Vec<&'a str>, Reply> {
    let known = served.host.vms.get(vm);
    let nic = volume.and_then(|volume| volume.strip_prefix("nic/"));
    let has = |known: &sluice_config::Vm, volume| {
        known.volumes.contains_key(volume) || nic.is_some_and(|nic| known.nics.contains_key(nic))
    };
    let known = known.filter(|known| volume.is_none_or(|volume| has(known, volume)));
    let Some(known) = known else {
        let name = volume.map_or_else(|| vm.to_owned(), |volume| format!("{vm}/{volume}"));
        return Err(Reply::failed(Code::NotFound, format!("There is no {name}; `sluice get vms` lists the VMs")));
    };
    let volumes = known.volumes.values().filter(|known| volume.is_none_or(|volume| known.name == volume));
    let nics = known.nics.values().filter(|known| volume.is_none() || nic == Some(known.name.as_str()));
    let mut devices: Vec<&str> =
        volumes.map(|volume| volume.device.as_str()).chain(nics.map(|nic| nic.uplink.as_str())).collect();
    devices.sort_unstable();
    devices.dedup();
    Ok(devices)
}

fn history(observer: &Observer, served: &Served, vm: &str, volume: Option<&str>) -> Reply {
    let devices = match devices(served, vm, volume) {
        Ok(devices) => devices,
        Err(reply) => return reply,
    };
    let point = |point: &Point, is_link: bool| {
        let mut json = serde_json::to_value(point).expect("our own types have string keys");
        json["time"] = observer.time_of(u64::from(point.second)).into();
        if is_link {
            json["bits_per_second"] = (8.0 * f64::from(point.bytes_per_second)).round().into();
        }
        json
    };
    let of = |device: &&str| {
        let history = observer.history(device, vm, volume)?;
        let is_link = served.host.uplinks.contains_key(*device);
        let point = |of: &Point| point(of, is_link);
        let reply = with_part(json!({ "device": device }), "seconds", history.seconds().map(point).collect());
        Some(with_part(reply, "minutes", history.minutes().map(point).collect()))
    };
    let reply = json!({ "version": VERSION, "vm": vm, "volume": volume });
    Reply::with(with_part(reply, "history", devices.iter().filter_map(of).collect()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    #[test]
    fn silent_devices_were_waited_for_one_after_the_other() {
        let (asked, all_asked) = (Mutex::new(0), Condvar::new());
        // A device replies only when all have been asked.
        let replies = ask_all(&[1, 2, 3], |device| {
            let mut count = asked.lock().unwrap();
            *count += 1;
            all_asked.notify_all();
            let (count, _) = all_asked.wait_timeout_while(count, Duration::from_secs(60), |count| *count < 3).unwrap();
            (*count == 3 && *device != 2).then_some(device * 10)
        });
        assert_eq!(replies, [Some(10), None, Some(30)]);
    }
}
