//! Interfaces of uplinks and of TAPs that are out of service: one that is missing at the start, or that vanishes later.
//!
//! The uplink runs without it: its NICs reach each other, and what they send to the interface is lost and counted. Each second the
//! thread that makes changes looks whether each interface still exists, and opens those that do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_api::object::ObjectId;
use sluice_config::{Host, Port, Uplink};
use sluice_io::device::Health;
use sluice_io::uplink::Edit;
use sluice_io::uplink::link::{Link, LinkError, interface, tap};

use super::absence::Absence;
use super::fd_store::FdStore;
use super::tolerance::Tolerance;
use super::{Edits, Running, Server, nic_of, nics, pair};
use crate::failure::chain;

/// Opens an interface, or stands in for one that is not there and whose fault is tolerated.
pub(super) fn open_or_stand_in(
    name: &str,
    interface: ObjectId,
    opened: Result<Link, LinkError>,
    tolerance: Tolerance,
    absent: &mut BTreeMap<ObjectId, Absence>,
) -> Result<Link, LinkError> {
    match opened {
        Err(error) if tolerance.covers(&error) => {
            absent.insert(interface, Absence::NoInterface(chain(&error)));
            Link::missing(name)
        }
        opened => opened,
    }
}

impl Server {
    /// Whether there are interfaces to look at.
    pub fn has_links(&self) -> bool {
        !self.host.uplinks.is_empty()
    }

    /// Opens interfaces that have vanished.
    pub fn look_at_links(&mut self) {
        let host = Arc::clone(&self.host);
        let mut out = BTreeMap::new();
        for (name, uplink) in &host.uplinks {
            let reason =
                self.devices.get_mut(name).and_then(|running| look_at_uplink(running, uplink, &self.fd_store).err());
            out.extend(reason.map(|reason| (ObjectId::Uplink(name.clone()), Absence::NoInterface(reason))));
        }
        let gone: Vec<ObjectId> =
            self.taps.iter().filter(|(_, link)| !link.exists()).map(|(name, _)| name.clone()).collect();
        for name in gone {
            let reason = self.look_at_tap(&host, &name).err();
            out.extend(reason.map(|reason| (name, Absence::NoInterface(reason))));
        }
        self.absent.set_interfaces(out);
    }

    /// Opens the TAP of a NIC again. The error is the reason why that fails.
    fn look_at_tap(&mut self, host: &Host, name: &ObjectId) -> Result<(), String> {
        let Some(nic) = nic_of(host, name) else { return Ok(()) };
        let Some(running) = self.devices.get(&nic.uplink) else { return Ok(()) };
        let link = &self.taps[name];
        // The daemon does not make what a VMM opens: it would be held by the wrong process.
        let is_there = link.is_foreign().then(|| interface::mtu(link.name())).transpose();
        let opened =
            is_there.and_then(|_| nics::open_tap(link.name(), nic, &self.fd_store)).map_err(|error| chain(&error))?;
        let opened = Arc::new(opened);
        set_link(running, Some(name.clone()), &opened)?;
        self.taps.insert(name.clone(), opened);
        Ok(())
    }
}

/// Opens the interface of an uplink again if it has vanished. The error is the reason why that fails.
fn look_at_uplink(running: &mut Running, uplink: &Uplink, store: &FdStore) -> Result<(), String> {
    let Some(link) = &running.link else { return Ok(()) };
    let failed = |error: LinkError| chain(&error);
    if link.exists() {
        return match &uplink.port {
            Port::Bridge(bridge) => look_at_port(link.name(), bridge, uplink.isolated),
            // The kernel takes frames for it, and drops them without a word.
            Port::Nic(name) if !interface::has_carrier(name) => {
                Err(format!("{name} has no carrier: it is off (`ip link set {name} up`), or its cable or its peer is"))
            }
            Port::Nic(_) | Port::Tap(_) => Ok(()),
        };
    }
    let opened = nics::open(uplink, store);
    if opened.is_err() && link.is_stand_in() {
        return opened.map(drop).map_err(failed);
    }
    // Until it is there again, the thread has no interface that fails each time it is read.
    let reason = opened.as_ref().err().map(|error| chain(error));
    let link = opened.or_else(|_| Link::missing(&uplink.link.name)).map_err(failed)?;
    let link = Arc::new(link);
    set_link(running, None, &link)?;
    running.link = Some(link);
    reason.map_or(Ok(()), Err)
}

/// Puts a port back into its bridge if it was taken out. One that is in another bridge stays there: the bridge was renamed, or the port was moved by hand.
fn look_at_port(port: &str, bridge: &str, isolated: bool) -> Result<(), String> {
    match interface::master(port) {
        Some(now) if now == bridge => Ok(()),
        Some(now) => Err(format!(
            "Its port {port} is in {now} and not in {bridge}, and frames pass there; rename the bridge, move the port with \
             `ip link set {port} master {bridge}`, or correct the host file and restart the daemon"
        )),
        None => tap::rejoin(bridge, port, isolated).map_err(|error| chain(&error)),
    }
}

/// Gives a thread the open interface. A thread that does not respond takes it later.
fn set_link(running: &Running, nic: Option<ObjectId>, link: &Arc<Link>) -> Result<(), String> {
    if running.device.health() != Health::Serving {
        return Err("the thread of the uplink does not serve".to_owned());
    }
    match running.edit(Edits::Uplink(vec![Edit::SetLink { nic: nic.as_ref().map(pair), link: Arc::clone(link) }])) {
        Ok(()) | Err(sluice_io::device::EditError::Silent(_)) => Ok(()),
        Err(error) => Err(chain(&error)),
    }
}
