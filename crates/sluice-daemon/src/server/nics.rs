//! Uplinks and NICs: opening their interfaces, and what a change of the host file is for an uplink's thread.
//!
//! An uplink is a device whose VMs have NICs instead of volumes. Its handle is among those of the devices, so output, probes
//! and the end of the daemon treat both alike. Opening an interface waits for no disk and no file system.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::thread::CapabilitySet;
use sluice_api::object::ObjectId;
use sluice_config::{Host, Nic, NicAccess, Port, Uplink, Vm};
use sluice_io::device::{SchedulerSpec, VolumeGeneration};
use sluice_io::uplink::link::{self, Link, LinkError, interface, packet_socket, tap};
use sluice_io::uplink::spec::{FRAME_TIME_MAX, gate_for};
use sluice_io::uplink::{self, Edit, NicPlug, NicSpec, UplinkSpec};
use sluice_net::Mac;
use sluice_net::guard::Guard;
use sluice_sched::Weight;
use sluice_sched::scheduler::DeviceInfo;

use super::absence::Absence;
use super::change::{Change, Changed};
use super::fd_store::FdStore;
use super::links::open_or_stand_in;
use super::objects::{nic_of, nic_socket, nic_stays, nics, pair};
use super::tolerance::Fault;
use super::{Plane, Running, Server, ServerError};
use crate::failure::chain;

/// Open TAPs of NICs, by VM and NIC.
pub(super) type Taps = BTreeMap<ObjectId, Arc<Link>>;

/// Keeps the TAPs of new NICs, because their change is in force.
pub(super) fn keep(server: &mut Server, new: Taps) {
    new.iter().for_each(|(name, link)| configure(&server.host, name, link));
    server.taps.extend(new);
}

/// Gives a TAP the address and the MTU of its NIC: it may be that of the NIC before the change.
fn configure(host: &Host, name: &ObjectId, link: &Link) {
    let Some(nic) = nic_of(host, name) else { return };
    if let Err(error) = link.configure(Some(nic.mac), Some(nic.mtu), nic.offloads) {
        let ((vm, nic), error) = (name.parts(), chain(&error));
        tracing::warn!(
            vm,
            nic = &*nic,
            error,
            "Cannot set the address, MTU or offloads of the TAP: it keeps the previous ones"
        );
    }
}

/// Maximum length of an interface's name.
const INTERFACE_LENGTH_MAX: usize = 15;

/// Name of a NIC in the data plane: `nic/NIC`.
fn name(vm: &str, nic: &str) -> String {
    pair(&ObjectId::nic(vm, nic)).1
}

/// Returns the setting of an uplink that cannot change at run time and differs, if there is one.
pub(super) fn fixed_difference(old: &Uplink, new: &Uplink) -> Option<&'static str> {
    let fixed =
        [(old.port != new.port, "interface"), (old.isolated != new.isolated, "isolation"), (old.mtu != new.mtu, "mtu")];
    fixed.into_iter().find_map(|(differs, what)| differs.then_some(what))
}

/// Starts new uplinks, and opens TAPs of new NICs.
pub(super) fn stage(
    server: &Server,
    change: &Change,
    (devices, taps): (&mut BTreeMap<String, Running>, &mut Taps),
    absent: &mut BTreeMap<ObjectId, Absence>,
) -> Result<(), ServerError> {
    let (host, tolerance) = (&change.host, change.tolerance);
    for (uplink, spec) in host.uplinks.iter().filter(|(uplink, _)| !server.devices.contains_key(*uplink)) {
        let failed = |source| ServerError::Link { uplink: uplink.clone(), source };
        let interface = ObjectId::Uplink(uplink.clone());
        let opened = open_or_stand_in(uplink, interface, open(spec, &server.fd_store), tolerance, absent);
        let link = Arc::new(opened.map_err(failed)?);
        let down = Arc::clone(&server.down);
        let went_down = Box::new(move || down.notify_one());
        let started = uplink::Uplink::start(uplink_spec(host, spec, Arc::clone(&link)), went_down);
        let device = started.map_err(|source| ServerError::Device { device: uplink.clone(), source })?;
        devices.insert(uplink.clone(), Running { link: Some(link), ..Running::new(Plane::Uplink(device), None) });
    }
    for (vm, spec) in change.vms.of(host) {
        let before = server.host.vms.get(vm);
        for (nic, spec) in &spec.nics {
            let known = before.and_then(|vm| vm.nics.get(nic));
            let NicAccess::Tap(tap) = &spec.access else { continue };
            if nic_stays(known, spec) {
                continue;
            }
            // It may be that of the NIC that this one replaces, which no other process can open.
            let open = server.taps.values().find(|link| link.name() == tap).cloned();
            let key = ObjectId::nic(vm, nic);
            let mut open_new = || {
                let (interface, opened) = (key.clone(), open_tap(tap, spec, &server.fd_store));
                open_or_stand_in(tap, interface, opened, tolerance, absent).map(Arc::new)
            };
            let link = open.map_or_else(&mut open_new, Ok);
            let link = link.map_err(|source| ServerError::Tap { nic: key.to_string(), source })?;
            taps.insert(key, link);
        }
    }
    Ok(())
}

/// Returns why uplinks of a host file cannot be started here, without opening them: the name of each, and the reason.
///
/// The flag says whether a strict start serves the others without it: its interface is missing.
pub(super) fn problems(host: &Host) -> Vec<(String, String, bool)> {
    let mut problems = Vec::new();
    for (uplink, spec) in &host.uplinks {
        let is_usable = match &spec.port {
            Port::Tap(_) => Ok(()),
            Port::Bridge(name) => interface::check_bridge(name),
            Port::Nic(name) => interface::check_unused(name),
        };
        if let Err(source) = is_usable {
            let may_pass = source.may_pass();
            let error = ServerError::Link { uplink: uplink.clone(), source };
            problems.push((format!("uplink {uplink}"), chain(&error), may_pass));
        }
    }
    let makes = |port: &Port| !matches!(port, Port::Nic(_));
    let taps =
        nics(host).any(|(_, nic)| nic_socket(nic).is_none()) || host.uplinks.values().any(|spec| makes(&spec.port));
    if let Some(error) = tap::is_available().err().filter(|_| taps) {
        let text = format!("Cannot open /dev/net/tun: {error}; TAPs need it: load the module tun");
        problems.push(("taps".to_owned(), text, false));
    }
    if host.uplinks.is_empty() {
        return problems;
    }
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |own| own.effective);
    let lacking = link::lacking(held, host.uplinks.values().any(|spec| !makes(&spec.port)));
    if !lacking.is_empty() {
        let text = format!(
            "The daemon would lack {}, which uplinks and NICs need: install contrib/systemd/network.conf as a drop-in of its unit",
            lacking.join(" and ")
        );
        problems.push(("uplinks".to_owned(), text, false));
    }
    problems
}

pub(super) fn open(uplink: &Uplink, store: &FdStore) -> Result<Link, LinkError> {
    let isolated = uplink.isolated;
    match &uplink.port {
        Port::Nic(nic) => packet_socket::open(nic),
        Port::Tap(name) => {
            let settings = (None, uplink.mtu, true);
            resume_own_tap(name, settings, store)?.map_or_else(|| make_own_tap(name, settings, store), Ok)
        }
        Port::Bridge(bridge) => {
            let name = port_name(&uplink.link.name);
            let resumed = resume(store, &name, |fd| tap::resume_bridge_port(fd, bridge, &name, isolated))?;
            let open = || tap::open_bridge_port(bridge, &name, isolated);
            resumed.map_or_else(|| make(store, &name, open), Ok)
        }
    }
}

/// Continues with a TAP of the daemon from before a restart.
fn resume_own_tap(
    name: &str,
    (mac, mtu, offloads): (Option<Mac>, u16, bool),
    store: &FdStore,
) -> Result<Option<Link>, LinkError> {
    resume(store, name, |fd| tap::resume(fd, name, mac, Some(mtu), offloads))
}

fn make_own_tap(
    name: &str,
    (mac, mtu, offloads): (Option<Mac>, u16, bool),
    store: &FdStore,
) -> Result<Link, LinkError> {
    make(store, name, || tap::open(name, mac, Some(mtu), offloads))
}

/// Continues with a TAP of the store; `None` if the store has none that can be used. One that cannot be used yet stays in the store: nothing
/// else could open it meanwhile.
fn resume(
    store: &FdStore,
    name: &str,
    open: impl FnOnce(OwnedFd) -> Result<Link, LinkError>,
) -> Result<Option<Link>, LinkError> {
    let Some(fd) = store.take(name) else { return Ok(None) };
    let copy = fd.try_clone().map_err(LinkError::io("Cannot copy a descriptor"))?;
    match open(copy) {
        Ok(link) => return Ok(Some(link)),
        Err(error) if error.may_pass() => {
            store.rest(name, fd);
            return Err(error);
        }
        Err(error) => tracing::warn!(tap = name, %error, "Cannot reuse the TAP from before the restart"),
    }
    drop(fd);
    store.forget(name);
    Ok(None)
}

/// Opens a TAP and keeps it in the store.
fn make(store: &FdStore, name: &str, open: impl FnOnce() -> Result<Link, LinkError>) -> Result<Link, LinkError> {
    store.wait_for_end(name);
    let link = open()?;
    store.keep(&link);
    Ok(link)
}

/// Removes TAPs from the store that the host file does not name any more.
fn forget_taps(server: &Server) {
    let host = &server.host;
    let ports: Vec<String> = host
        .uplinks
        .values()
        .filter_map(|uplink| match &uplink.port {
            Port::Tap(name) => Some(name.clone()),
            Port::Bridge(_) => Some(port_name(&uplink.link.name)),
            Port::Nic(_) => None,
        })
        .collect();
    let taps = nics(host).filter_map(|(_, nic)| match &nic.access {
        NicAccess::Tap(name) => Some(name.as_str()),
        NicAccess::VhostUser { .. } => None,
    });
    server.fd_store.forget_others(&taps.chain(ports.iter().map(String::as_str)).collect());
}

/// Opens the TAP of a NIC. One that exists is that of a VMM, which reads and writes it: the daemon is on the host's side of it.
/// Otherwise the daemon makes it, for a namespace or a container.
pub(super) fn open_tap(name: &str, nic: &Nic, store: &FdStore) -> Result<Link, LinkError> {
    let settings = (Some(nic.mac), nic.mtu, nic.offloads);
    if let Some(link) = resume_own_tap(name, settings, store)? {
        return Ok(link);
    }
    store.wait_for_end(name);
    // Also if the store had one: that was deleted, and a VMM may have made another one of this name.
    if interface::mtu(name).is_ok() {
        return packet_socket::open(name);
    }
    make_own_tap(name, settings, store)
}

/// Name of the TAP that is the port of a bridge: that of the uplink as far as it fits, and otherwise a part of it and its checksum.
fn port_name(uplink: &str) -> String {
    let whole = format!("sl-{uplink}");
    if whole.len() <= INTERFACE_LENGTH_MAX {
        return whole;
    }
    format!("sl-{}-{:08x}", &uplink[..3], sluice_config::serial::checksum(uplink))
}

fn uplink_spec(host: &Host, uplink: &Uplink, link: Arc<Link>) -> UplinkSpec {
    let rate = uplink.link.capacity.bytes;
    UplinkSpec {
        name: uplink.link.name.clone(),
        scheduler: scheduler(uplink),
        gate: gate_for(rate),
        rate,
        link,
        frame_time_max: frame_time_max(host, &uplink.link.name),
    }
}

fn scheduler(uplink: &Uplink) -> SchedulerSpec {
    let link = &uplink.link;
    let info = DeviceInfo::of(&gate_for(link.capacity.bytes), false, &link.capacity);
    SchedulerSpec { descriptor: link.scheduler, info, params: link.params.clone() }
}

/// Longest time of one frame on the wire: the shortest latency target of the VMs on the uplink and of their NICs.
fn frame_time_max(host: &Host, uplink: &str) -> Duration {
    let vms = host.vms.values().filter(|vm| is_on(vm, uplink));
    let policies = vms.flat_map(|vm| {
        let nics = vm.nics.values().filter(|nic| nic.uplink == uplink).map(|nic| &nic.policy.transmit);
        nics.chain([&vm.net.transmit])
    });
    policies.filter_map(|policy| policy.latency).map(|target| target.p99).fold(FRAME_TIME_MAX, Duration::min)
}

/// Whether a VM has NICs on an uplink.
fn is_on(vm: &Vm, uplink: &str) -> bool {
    vm.nics.values().any(|nic| nic.uplink == uplink)
}

/// Returns what an uplink has to change, in the order of [`super::commit`].
pub(super) fn edits(
    (old, new): (&Host, &Host),
    vms: &Changed,
    uplink: &str,
    generations: &BTreeMap<ObjectId, VolumeGeneration>,
    taps: &Taps,
) -> Vec<Edit> {
    let mut list = Vec::new();
    let on = |host: &'_ Host, vm: &str| host.vms.get(vm).filter(|vm| is_on(vm, uplink)).cloned();
    for (vm, before) in vms.of(old).filter(|(_, vm)| is_on(vm, uplink)) {
        let Some(after) = on(new, vm) else {
            list.push(Edit::RemoveVm { vm: vm.clone() });
            continue;
        };
        let gone = here(before, uplink)
            .filter(|(nic, spec)| !after.nics.get(*nic).is_some_and(|now| nic_stays(Some(spec), now)));
        list.extend(gone.map(|(nic, _)| Edit::RemoveNic { vm: vm.clone(), nic: name(vm, nic) }));
    }
    rescheduling(old, new, uplink, &mut list);
    for (vm, after) in vms.of(new).filter(|(_, vm)| is_on(vm, uplink)) {
        let before = on(old, vm);
        match &before {
            None => {
                list.push(Edit::AddVm { vm: vm.clone(), policy: after.net.transmit });
                list.extend(after.cpu_limit.map(|limit| Edit::SetCpu { vm: vm.clone(), limit: Some(limit) }));
            }
            Some(before) => changing(vm, before, after, uplink, &mut list),
        }
        for (nic, spec) in here(after, uplink) {
            let key = ObjectId::nic(vm, nic);
            let Some(generation) = generations.get(&key) else { continue };
            let nic = Box::new(nic_spec(&key.parts().1, spec, *generation, taps.get(&key)));
            list.push(Edit::AddNic { vm: vm.clone(), nic });
        }
    }
    list
}

impl Fault for LinkError {
    fn is_no_response(&self) -> bool {
        self.may_pass()
    }
}

/// The NICs of a VM on an uplink.
fn here<'a>(vm: &'a Vm, uplink: &str) -> impl Iterator<Item = (&'a String, &'a Nic)> {
    vm.nics.iter().filter(move |(_, nic)| nic.uplink == uplink)
}

/// Changes of the uplink itself.
fn rescheduling(old: &Host, new: &Host, uplink: &str, list: &mut Vec<Edit>) {
    let (Some(before), Some(after)) = (old.uplinks.get(uplink), new.uplinks.get(uplink)) else { return };
    let of = |uplink: &Uplink| (uplink.link.scheduler.name, uplink.link.params.clone());
    let rates = [before, after].map(|uplink| uplink.link.capacity.bytes);
    if of(before) != of(after) || rates[0] != rates[1] {
        list.push(Edit::SetScheduler { scheduler: scheduler(after), merging: false });
    }
    let times = [old, new].map(|host| frame_time_max(host, uplink));
    if rates[0] != rates[1] || times[0] != times[1] {
        let gate = gate_for(rates[1]);
        list.push(Edit::SetDevice { depth: gate.depth, request_bytes: gate.request_bytes });
        list.push(Edit::SetWire { rate: rates[1], frame_time_max: times[1] });
    }
}

/// Changes of a VM that stays, and of its NICs that stay.
fn changing(vm: &str, before: &Vm, after: &Vm, uplink: &str, list: &mut Vec<Edit>) {
    let staying: Vec<(&String, &Nic, &Nic)> = here(after, uplink)
        .filter_map(|(nic, now)| Some((nic, before.nics.get(nic)?, now)))
        .filter(|(_, known, now)| nic_stays(Some(known), now))
        .collect();
    let policies = staying.iter().filter(|(_, known, now)| known.policy.transmit != now.policy.transmit);
    let nics: Vec<_> = policies.map(|(nic, _, now)| (name(vm, nic), now.policy.transmit)).collect();
    if before.net.transmit != after.net.transmit || !nics.is_empty() {
        let policy = after.net.transmit;
        list.push(Edit::SetPolicies { vm: vm.to_owned(), policy, nics });
    }
    if before.cpu_limit != after.cpu_limit {
        list.push(Edit::SetCpu { vm: vm.to_owned(), limit: after.cpu_limit });
    }
    for (nic, known, now) in staying {
        // The policy was changed above, and the uplink keeps generation and interface.
        let of = |spec: &Nic| {
            let Nic { spoof, dhcp_server, router_advertisement, vlan, .. } = *spec;
            (spec.addresses.clone(), spec.policy.receive, (spoof, dhcp_server, router_advertisement, vlan))
        };
        if of(known) != of(now) {
            let nic = Box::new(nic_spec(&name(vm, nic), now, VolumeGeneration::default(), None));
            list.push(Edit::SetNic { vm: vm.to_owned(), nic });
        }
    }
}

fn nic_spec(name: &str, nic: &Nic, generation: VolumeGeneration, tap: Option<&Arc<Link>>) -> NicSpec {
    NicSpec {
        name: name.to_owned(),
        generation,
        policy: nic.policy.transmit,
        guard: Guard {
            mac: (!nic.spoof).then_some(nic.mac),
            addresses: nic.addresses.clone(),
            dhcp_server: nic.dhcp_server,
            router_advertisement: nic.router_advertisement,
        },
        vlan: nic.vlan,
        mtu: nic.mtu,
        receive_limit: nic.policy.receive.limit,
        receive_weight: nic.policy.receive.weight.unwrap_or(Weight::DEFAULT),
        plug: tap.map_or(NicPlug::VhostUser, |link| NicPlug::Tap(Arc::clone(link))),
    }
}

/// Returns the NICs of a file that are new or served again, each with its generation.
pub(super) fn generations(old: &Host, new: &Host, vms: &Changed) -> BTreeMap<ObjectId, VolumeGeneration> {
    let mut generations = BTreeMap::new();
    for (vm, spec) in vms.of(new) {
        let before = old.vms.get(vm);
        let new = spec.nics.iter().filter(|(nic, spec)| !nic_stays(before.and_then(|vm| vm.nics.get(*nic)), spec));
        generations.extend(new.map(|(nic, _)| (ObjectId::nic(vm, nic), VolumeGeneration::next())));
    }
    generations
}

/// Returns the names of the NICs of changed VMs, before and after the change.
pub(super) fn changed(old: &Host, new: &Host, vms: &Changed) -> BTreeSet<ObjectId> {
    let of = |(vm, spec): (&String, &Vm)| spec.nics.keys().map(|nic| ObjectId::nic(vm, nic)).collect::<Vec<_>>();
    vms.of(old).flat_map(of).chain(vms.of(new).flat_map(of)).collect()
}

/// Closes TAPs that the file does not name any more, and forgets NICs of these that it does not have.
pub(super) fn forget(server: &mut Server, changed: &BTreeSet<ObjectId>) {
    let host = &server.host;
    server.taps.retain(|name, _| nic_of(host, name).is_some_and(|nic| matches!(nic.access, NicAccess::Tap(_))));
    server.generations.retain(|name, _| !changed.contains(name) || nic_of(host, name).is_some());
    forget_taps(server);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_bridge_has_a_name_that_fits() {
        assert_eq!((port_name("lan"), port_name("twelve-chars")), ("sl-lan".to_owned(), "sl-twelve-chars".to_owned()));
        let [one, other] = ["storage-network-a", "storage-network-b"].map(port_name);
        assert!(one != other && one.len() <= INTERFACE_LENGTH_MAX && one.starts_with("sl-sto-"), "{one} {other}");
    }
}
