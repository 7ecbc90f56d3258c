//! Replies to what is asked of the monitor. Their form is stable: `version` changes if a key changes its meaning or goes.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sluice_api::VERSION;
use sluice_api::list::{self, Step};
use sluice_api::object::ObjectId;
use sluice_api::status::{self, DaemonState, Details, InterfaceOutage, RealTime, SetAside, Status, Volume};
use sluice_api::top::Top;
use sluice_config::{Host, Vm};
use sluice_io::device::{ClientSnapshot, DeviceWatch};
use sluice_io::reactor::priority;
use sluice_observe::history::Point;
use sluice_observe::observer::Observer;
use tokio::sync::oneshot;

use super::{Known, Served, devices, policies};
use crate::control::describe::discard;
use crate::control::roles::Rights;
use crate::control::socket::Asked;
use crate::control::{Code, MetricsFormat, Reply, Request};
use crate::jail;
use crate::metrics;
use crate::server::{Blocks, not_served, volume_of};
use crate::space::FileSystem;
use crate::state::overrides::Overrides;

/// Maximum time for a device to list its clients.
const CLIENTS_MAX: Duration = Duration::from_millis(300);

/// Answers a request; `None` if the client may ask and another thread answers: questions about events, the past and clients, and for metrics
/// and tests of alerts.
pub(super) fn answer(known: &Known<'_>, served: Option<&Served>, asked: &Asked) -> Option<Reply> {
    let observer = known.observer;
    let Some(served) = served else {
        let error = "The daemon has not started yet; repeat the command in a moment";
        return Some(Reply::failed(Code::Refused, error));
    };
    let rights = Rights { roles: &served.roles, settings: &served.host.daemon, file: &served.file };
    if let Err(error) = rights.check(&asked.request, &asked.peer, &Overrides::default()) {
        return Some(Reply::failed(Code::Forbidden, error));
    }
    match &asked.request {
        Request::Events { .. } | Request::Metrics { .. } | Request::Clients | Request::History { .. } => None,
        Request::TestAlert { .. } => None,
        Request::Status => Some(Reply::with(&status(known, served))),
        Request::Names => Some(Reply::with(&names(&served.host))),
        Request::Policies => {
            Some(Reply::with(&list::Policies { version: VERSION, policies: policies::rows(&served.host) }))
        }
        Request::Top => Some(Reply::with(&top(observer, served))),
        Request::Details { vm, volume } => Some(details(observer, served, vm, volume.as_deref())),
        // The thread of HTTP answers it from several of these.
        Request::Why { .. } => Some(Reply::failed(Code::Invalid, "It is answered over HTTP, at /v1/why")),
        _ => unreachable!("the monitor gets no other requests"),
    }
}

/// Names of VMs with their volumes and NICs, and of devices and uplinks.
fn names(host: &Host) -> list::Names {
    let vm = |(vm, spec): (&String, &Arc<Vm>)| {
        let nics = spec.nics.keys().map(|nic| ObjectId::nic(vm, nic));
        let all = spec.volumes.keys().map(|volume| ObjectId::volume(vm, volume)).chain(nics);
        let volumes = all.map(|id| list::VolumeName { vm: vm.clone(), volume: id.parts().1.into_owned() });
        list::VmNames { vm: vm.clone(), volumes: volumes.collect() }
    };
    let devices = host.devices.keys().chain(host.uplinks.keys());
    list::Names {
        version: VERSION,
        vms: host.vms.iter().map(vm).collect(),
        devices: devices.map(|device| list::DeviceName { device: device.clone() }).collect(),
    }
}

/// Adds to what is observed what is known of the host.
fn status(known: &Known<'_>, served: &Served) -> Status {
    let (observed, hour_ago) = (known.observer.status(), known.observer.time().saturating_sub(3600));
    let mut status = Status {
        version: VERSION,
        promises_broken: observed.vms.iter().filter(|vm| vm.is_broken()).count(),
        real_time: RealTime::named(priority::of_threads().name()),
        out_of_service: out_of_service(served),
        interfaces_out_of_service: interfaces(served),
        volumes_out_of_service: not_served(served.absent.out_of_service()),
        held_back: not_served(served.absent.held_back()),
        overrides_set_aside: set_aside(served),
        daemon: DaemonState {
            overrides: served.overrides.clone(),
            refused_reload: served.refused_reload.clone(),
            restarts: known.restarts.iter().filter(|restart| restart.time >= hour_ago).copied().collect(),
            lost_clients: known.clients.lost().collect(),
            failed_alert: known.events.outbox.last_failed(),
            record: known.events.trouble(),
            jail: jail::status(),
        },
        file_systems: known.space.file_systems().map(file_system).collect(),
        bridged: bridged(served),
        ..observed
    };
    status.vms.iter_mut().flat_map(|vm| &mut vm.volumes).for_each(|volume| add_disk(volume, served));
    for device in &mut status.devices {
        device.settings = devices::settings(served, &device.device);
    }
    status
}

fn out_of_service(served: &Served) -> Vec<ObjectId> {
    served.absent.faulty().cloned().collect()
}

fn interfaces(served: &Served) -> Vec<InterfaceOutage> {
    let of = |(name, reason): (&ObjectId, &str)| InterfaceOutage { of: name.clone(), reason: reason.to_owned() };
    served.absent.interfaces().map(of).collect()
}

fn set_aside(served: &Served) -> Vec<SetAside> {
    served.aside.iter().map(|(name, value)| SetAside { name: name.clone(), value: value.clone() }).collect()
}

fn bridged(served: &Served) -> Vec<status::Bridged> {
    let of = |(volume, blocks): (&ObjectId, &Blocks)| status::Bridged {
        volume: volume.clone(),
        block_size: blocks.guest,
        disk_block_size: blocks.disk,
    };
    served.blocks.iter().filter(|(_, blocks)| blocks.is_bridged()).map(of).collect()
}

fn file_system(found: &FileSystem) -> status::FileSystem {
    status::FileSystem {
        device: found.device.clone(),
        folder: found.folder.clone(),
        size_bytes: found.size_bytes,
        free_bytes: found.free_bytes,
        growth_bytes: found.growth_bytes,
        is_overcommitted: found.is_overcommitted(),
        is_low: found.reached().next().is_some(),
        text: found.in_words(),
    }
}

/// Adds the disk that the guest of a volume has; a NIC has none.
fn add_disk(volume: &mut Volume, served: &Served) {
    let id = volume.id();
    let (blocks, known) = (served.blocks.get(&id), volume_of(&served.host, &id));
    volume.disk = blocks.zip(known).map(|(blocks, known)| status::Disk {
        source: known.source.stated(),
        block_size_bytes: blocks.guest,
        disk_block_size_bytes: blocks.disk,
        serial: known.serial.clone(),
        discard: discard(known).to_owned(),
    });
}

fn top(observer: &Observer, served: &Served) -> Top {
    Top {
        version: VERSION,
        time: observer.time(),
        devices: observer.device_status(),
        vms: observer.glance().collect(),
        out_of_service: out_of_service(served),
        held_back: not_served(served.absent.held_back()),
    }
}

/// A VM on each of its devices, or a volume, with the times of its requests.
fn details(observer: &Observer, served: &Served, vm_name: &str, volume_name: Option<&str>) -> Reply {
    let devices = match devices(served, vm_name, volume_name) {
        Ok(devices) => devices,
        Err(reply) => return reply,
    };
    let found = devices.iter().filter_map(|device| observer.details(device, vm_name, volume_name));
    let found = found.map(|(mut vm, histograms)| {
        vm.volumes.iter_mut().for_each(|volume| add_disk(volume, served));
        (vm, histograms)
    });
    let Some(name) = volume_name else {
        let objects = found.map(|(vm, histograms)| status::Vm { histograms, ..vm });
        return Reply::with(&Details { version: VERSION, objects: objects.collect() });
    };
    let volume = |(vm, histograms): (status::Vm, _)| {
        let volume = vm.volumes.into_iter().find(|volume| volume.volume == name)?;
        Some(Volume { histograms, ..volume })
    };
    Reply::with(&Details { version: VERSION, objects: found.filter_map(volume).collect() })
}

/// Makes the text on a thread of its own: on a large host it takes longer than a sample may wait. There are at most as many of
/// these threads as clients of the control socket.
pub(super) fn send_metrics(exported: metrics::Board, format: MetricsFormat, reply: oneshot::Sender<Reply>) {
    let make = move || drop(reply.send(Reply::with(&metrics(&exported, format))));
    if let Err(error) = thread::Builder::new().name("metrics-reply".to_owned()).spawn(make) {
        tracing::warn!(%error, "Cannot start a thread for a reply with metrics");
    }
}

fn metrics(exported: &metrics::Board, format: MetricsFormat) -> list::Metrics {
    let text = exported.text();
    let text = match format {
        MetricsFormat::Prometheus => text.prometheus(),
        MetricsFormat::OpenMetrics => text.open_metrics(),
    };
    let text = str::from_utf8(&text).expect("it was made from a string").to_owned();
    list::Metrics { version: VERSION, text: Some(text) }
}

/// Lists the clients on a thread of its own, as [`send_metrics`] does: a device may take up to [`CLIENTS_MAX`] to reply.
pub(super) fn send_clients(devices: Vec<DeviceWatch>, reply: oneshot::Sender<Reply>) {
    let make = move || drop(reply.send(Reply::with(&clients(&devices))));
    if let Err(error) = thread::Builder::new().name("clients-reply".to_owned()).spawn(make) {
        tracing::warn!(%error, "Cannot start a thread for a list of clients");
    }
}

fn clients(devices: &[DeviceWatch]) -> list::Clients {
    let (mut clients, mut silent) = (Vec::new(), Vec::new());
    let replies = ask_all(devices, |device| device.clients(CLIENTS_MAX));
    for (device, found) in devices.iter().zip(replies) {
        match found {
            Some(found) => clients.extend(found.iter().map(|client| describe_client(device.name(), client))),
            None => silent.push(device.name().to_owned()),
        }
    }
    list::Clients { version: VERSION, clients, silent_devices: silent }
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

fn describe_client(device: &str, client: &ClientSnapshot) -> list::Client {
    list::Client {
        vm: client.vm.clone(),
        volume: client.volume.clone(),
        device: device.to_owned(),
        protocol: client.protocol.to_owned(),
        peer: client.peer.clone(),
        queues: client.queues,
        outstanding: client.outstanding,
    }
}

/// The devices of a VM, or of one of its volumes.
fn devices<'a>(served: &'a Served, vm: &str, volume: Option<&str>) -> Result<Vec<&'a str>, Reply> {
    let object = volume.map(|volume| ObjectId::of_vm(vm, volume));
    let spec = served.host.vms.get(vm);
    let mut devices: Vec<&str> = match (&object, spec) {
        (None, Some(spec)) => {
            let nics = spec.nics.values().map(|nic| nic.uplink.as_str());
            spec.volumes.values().map(|volume| volume.device.as_str()).chain(nics).collect()
        }
        (Some(ObjectId::Nic { nic, .. }), Some(spec)) => {
            spec.nics.get(nic).map(|nic| nic.uplink.as_str()).into_iter().collect()
        }
        (Some(id), _) => volume_of(&served.host, id).map(|volume| volume.device.as_str()).into_iter().collect(),
        (None, None) => Vec::new(),
    };
    if spec.is_none() || object.is_some() && devices.is_empty() {
        let name = object.map_or_else(|| vm.to_owned(), |object| object.to_string());
        return Err(Reply::failed(
            Code::NotFound,
            format!("There is no VM, volume or NIC {name}; `sluice get vms` and `sluice get volumes` list them"),
        ));
    }
    devices.sort_unstable();
    devices.dedup();
    Ok(devices)
}

/// The seconds of a VM or volume, or the error.
pub(super) fn seconds(observer: &Observer, served: Option<&Served>, request: &Request) -> Result<list::History, Reply> {
    let Request::History { vm, volume, step, since, until } = request else {
        unreachable!("it gets no other requests")
    };
    let served = served.expect("the right to ask was checked with it");
    let devices = devices(served, vm, volume.as_deref())?;
    let of = |device: &&str| {
        let history = observer.history(device, vm, volume.as_deref())?;
        let is_link = served.host.uplinks.contains_key(*device);
        let point = |point: &Point| point.at(observer.time_of(u64::from(point.second)), is_link);
        let is_asked = |point: &list::Point| (since.unwrap_or(0)..=until.unwrap_or(u64::MAX)).contains(&point.time);
        let all = history.seconds().map(point).filter(is_asked);
        let seconds = if matches!(step, None | Some(Step::Second)) { all.collect() } else { Vec::new() };
        Some(list::DeviceHistory { device: (*device).to_owned(), seconds, ..list::DeviceHistory::default() })
    };
    Ok(list::History {
        version: VERSION,
        vm: vm.clone(),
        volume: volume.clone(),
        history: devices.iter().filter_map(of).collect(),
    })
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
