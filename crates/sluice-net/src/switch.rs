//! Where a frame goes: a learning switch for the NICs that share an uplink.
//!
//! The switch knows which port has an address, from the source of frames (*learned*) or because the address is *locked* to a NIC. Locking
//! is the usual case: then only this port sends from the address, and it is never learned elsewhere. Learned addresses are forgotten
//! after [`Limits::age`]. A port remembers a bounded number, so a VM that sends from random addresses pushes out its own and
//! nobody else's.
//!
//! A frame to a group goes to all ports of its VLAN. A frame to an unknown address can only be for the uplink or for a port
//! without a locked address, so it is not copied to the others. Both are flooding, and capped per sender ([`crate::flood`]).
//!
//! A VLAN is a switch of its own: ports of different VLANs do not see one another. The guest sends and gets frames without a tag. The
//! daemon puts the tag of [`Switch::vlan`] on towards the uplink, and takes an 802.1Q tag off towards a NIC ([`crate::tag`]).
//!
//! Example: ports 1 and 2 are locked to A and B, and port 3 is not locked. 1 sends to B: port 2. 1 sends to X: the uplink and
//! port 3. X answers from the uplink: from then on frames to X go to the uplink alone.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use sluice_sched::Instant;

use crate::flood::{CopyCap, CopyLimit, FloodCap, FloodLimit, Spent};
use crate::{Drop, Frame, Mac};

/// Number of a port, given by the caller and below [`Limits::ports`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Port(pub u32);

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    Port(Port),
    Uplink,
    /// The ports of [`Switch::flooded`], and the uplink unless the frame came from there.
    Flood,
    /// It is dropped.
    Nowhere(Drop),
}

/// Bounds of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Port numbers are below this.
    pub ports: u32,
    /// Addresses learned per port. A further one replaces one that was not seen for long.
    pub addresses_per_port: u32,
    /// Addresses learned from the uplink.
    pub addresses_of_uplink: u32,
    /// Time after which an address that was not seen is forgotten.
    pub age: Duration,
    /// Flooded frames of each port.
    pub port_flood: FloodLimit,
    /// Flooded frames of the uplink.
    pub uplink_flood: FloodLimit,
    /// Copies of flooded frames for ports, of all senders together.
    pub copies: CopyLimit,
}

/// A port that cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    #[error("Port {port} does not exist: the switch has {ports} ports")]
    PortRange { port: u32, ports: u32 },
    #[error("Port {0}: it is in use; remove it first")]
    PortTaken(u32),
    #[error("Port {port}: VLAN {vlan} does not exist; use 1 to 4094")]
    Vlan { port: u32, vlan: u16 },
    #[error("Port {port}: {mac} is not the address of one station; its first byte must be even, and not all bytes 0")]
    Mac { port: u32, mac: Mac },
    #[error("Port {port}: {mac} already belongs to port {owner} in the same VLAN; give each NIC its own address")]
    MacTaken { port: u32, mac: Mac, owner: u32 },
}

/// VLAN of frames without a tag.
const UNTAGGED: u16 = 0;
const VLAN_MAX: u16 = 4094;
/// Learned addresses that are compared to find an old one.
const COMPARED: usize = 4;

/// A learning switch.
#[derive(Debug)]
pub struct Switch {
    limits: Limits,
    ports: Vec<Option<PortState>>,
    /// Number of ports without a locked address, by VLAN.
    unlocked: BTreeMap<u16, u32>,
    /// Number of ports, by VLAN.
    members: BTreeMap<u16, u32>,
    uplink: Sender,
    /// Cap on the flooded copies of all senders together.
    copies: CopyCap,
    /// Only looked up, never iterated over, so its order decides nothing.
    addresses: HashMap<Key, Entry>,
}

#[derive(Debug)]
struct PortState {
    vlan: u16,
    locked: Option<Mac>,
    sender: Sender,
}

/// What is kept of a port or the uplink as a sender.
#[derive(Debug)]
struct Sender {
    flood: FloodCap,
    /// Copies of its frames that the total bound has let pass for neighbours to be found.
    spent: Spent,
    /// Addresses learned from it. Their entries have the index in this list.
    learned: Vec<Key>,
    learned_max: usize,
    /// Where the next comparison for an old address begins.
    hand: usize,
}

/// VLAN and address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
struct Key(u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Port(Port),
    Uplink,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    learned: Learned,
}

#[derive(Clone, Copy, Debug)]
enum Learned {
    Locked,
    Seen { at: Instant, index: usize },
}

impl Key {
    fn new(vlan: u16, mac: Mac) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        let [high, low] = vlan.to_be_bytes();
        Key(u64::from_be_bytes([high, low, a, b, c, d, e, f]))
    }
}

impl Sender {
    fn new(now: Instant, flood: FloodLimit, learned_max: u32) -> Self {
        let (flood, spent) = (FloodCap::new(now, flood), Spent::default());
        Sender { flood, spent, learned: Vec::new(), learned_max: learned_max as usize, hand: 0 }
    }
}

impl Switch {
    #[must_use]
    pub fn new(now: Instant, limits: Limits) -> Self {
        let uplink = Sender::new(now, limits.uplink_flood, limits.addresses_of_uplink);
        Switch {
            limits,
            ports: Vec::new(),
            unlocked: BTreeMap::new(),
            members: BTreeMap::new(),
            uplink,
            copies: CopyCap::new(now, limits.copies),
            addresses: HashMap::new(),
        }
    }

    /// Adds a port. `locked` is the only address that it sends from and gets frames for; without it, addresses are learned. `vlan` is 1 to 4094, or
    /// `None` for frames without a tag.
    ///
    /// # Errors
    /// If number, VLAN or address are not free or not possible. Nothing is changed then.
    pub fn add(&mut self, now: Instant, port: Port, locked: Option<Mac>, vlan: Option<u16>) -> Result<(), SwitchError> {
        let number = port.0;
        if number >= self.limits.ports {
            return Err(SwitchError::PortRange { port: number, ports: self.limits.ports });
        }
        if self.port(port).is_some() {
            return Err(SwitchError::PortTaken(number));
        }
        if let Some(vlan) = vlan.filter(|vlan| !(1..=VLAN_MAX).contains(vlan)) {
            return Err(SwitchError::Vlan { port: number, vlan });
        }
        let vlan = vlan.unwrap_or(UNTAGGED);
        match locked {
            Some(mac) => self.lock(port, Key::new(vlan, mac), mac)?,
            None => *self.unlocked.entry(vlan).or_default() += 1,
        }
        *self.members.entry(vlan).or_default() += 1;
        if self.ports.len() <= number as usize {
            self.ports.resize_with(number as usize + 1, || None);
        }
        let sender = Sender::new(now, self.limits.port_flood, self.limits.addresses_per_port);
        self.ports[number as usize] = Some(PortState { vlan, locked, sender });
        Ok(())
    }

    /// Removes a port and its addresses. A port that is not there is ignored.
    pub fn remove(&mut self, port: Port) {
        let Some(state) = self.ports.get_mut(port.0 as usize).and_then(Option::take) else { return };
        for key in state.sender.learned {
            self.addresses.remove(&key);
        }
        self.members.entry(state.vlan).and_modify(|count| *count -= 1);
        match state.locked {
            Some(mac) => drop(self.addresses.remove(&Key::new(state.vlan, mac))),
            None => {
                let count = self.unlocked(state.vlan) - 1;
                self.unlocked.insert(state.vlan, count);
            }
        }
    }

    /// The tag that a frame of the port gets on its way to the uplink.
    #[must_use]
    pub fn vlan(&self, port: Port) -> Option<u16> {
        self.port(port).map(|state| state.vlan).filter(|&vlan| vlan != UNTAGGED)
    }

    /// Decides about a frame that a NIC sends. The guard has let it pass, but the switch relies only on its own checks.
    pub fn from_port(&mut self, now: Instant, port: Port, frame: &Frame) -> Target {
        let Some(state) = self.port(port) else { return Target::Nowhere(Drop::NoReceiver) };
        let (vlan, locked) = (state.vlan, state.locked);
        if frame.tags > 0 {
            return Target::Nowhere(Drop::Vlan);
        }
        let is_own = match locked {
            Some(mac) => mac == frame.source,
            None => frame.source.is_station() && self.learn(now, Key::new(vlan, frame.source), Place::Port(port)),
        };
        if !is_own {
            return Target::Nowhere(Drop::SourceMac);
        }
        if frame.destination.is_link_local() {
            return Target::Nowhere(Drop::LinkLocal);
        }
        match self.find(now, vlan, frame.destination) {
            Some(Place::Port(found)) if found == port => Target::Nowhere(Drop::NoReceiver),
            Some(Place::Port(found)) => Target::Port(found),
            Some(Place::Uplink) => Target::Uplink,
            None if !frame.destination.is_multicast() && self.unlocked(vlan) == u32::from(locked.is_none()) => {
                Target::Uplink
            }
            None => self.flood(now, Place::Port(port), vlan, frame),
        }
    }

    /// Decides about a frame from the uplink.
    pub fn from_uplink(&mut self, now: Instant, frame: &Frame) -> Target {
        let Some(vlan) = vlan_of(frame) else { return Target::Nowhere(Drop::Vlan) };
        // An address that is locked to a port comes from the uplink when a loop returns the NIC's own frame.
        if !frame.source.is_station() || !self.learn(now, Key::new(vlan, frame.source), Place::Uplink) {
            return Target::Nowhere(Drop::SourceMac);
        }
        if frame.destination.is_link_local() {
            return Target::Nowhere(Drop::LinkLocal);
        }
        match self.find(now, vlan, frame.destination) {
            Some(Place::Port(found)) => Target::Port(found),
            Some(Place::Uplink) => Target::Nowhere(Drop::NoReceiver),
            None if self.unlocked(vlan) == 0 && !frame.destination.is_multicast() => Target::Nowhere(Drop::NoReceiver),
            None => self.flood(now, Place::Uplink, vlan, frame),
        }
    }

    /// The ports that get a flooded frame, in the order of their numbers. `from` is the port that sent it; `None` is the uplink.
    pub fn flooded(&self, from: Option<Port>, frame: &Frame) -> impl Iterator<Item = Port> {
        let vlan = match from {
            Some(port) => self.port(port).map(|state| state.vlan),
            None => vlan_of(frame),
        };
        let is_group = frame.destination.is_multicast();
        let ports = (0u32..).zip(&self.ports).filter_map(|(number, state)| Some((Port(number), state.as_ref()?)));
        ports
            .filter(move |(port, state)| Some(*port) != from && Some(state.vlan) == vlan)
            .filter(move |(_, state)| is_group || state.locked.is_none())
            .map(|(port, _)| port)
    }

    fn flood(&mut self, now: Instant, from: Place, vlan: u16, frame: &Frame) -> Target {
        // A copy for the uplink counts like one for a port.
        let count = |counts: &BTreeMap<u16, u32>| counts.get(&vlan).copied().unwrap_or(0).max(1);
        let receivers = if frame.destination.is_multicast() { count(&self.members) } else { count(&self.unlocked) };
        let ports = self.members.values().sum::<u32>().max(1);
        let mut total = self.copies;
        let Some(sender) = self.sender(from) else { return Target::Nowhere(Drop::NoReceiver) };
        if !sender.flood.passes(now, frame) {
            return Target::Nowhere(Drop::FloodRate);
        }
        let passes = total.passes(now, &mut sender.spent, (from == Place::Uplink, ports), receivers, frame);
        self.copies = total;
        if passes { Target::Flood } else { Target::Nowhere(Drop::FloodTotal) }
    }

    fn port(&self, port: Port) -> Option<&PortState> {
        self.ports.get(port.0 as usize)?.as_ref()
    }

    fn sender(&mut self, place: Place) -> Option<&mut Sender> {
        match place {
            Place::Uplink => Some(&mut self.uplink),
            Place::Port(port) => self.ports.get_mut(port.0 as usize)?.as_mut().map(|state| &mut state.sender),
        }
    }

    fn unlocked(&self, vlan: u16) -> u32 {
        self.unlocked.get(&vlan).copied().unwrap_or(0)
    }

    /// Where an address is, if it was seen lately.
    fn find(&self, now: Instant, vlan: u16, mac: Mac) -> Option<Place> {
        let entry = self.addresses.get(&Key::new(vlan, mac))?;
        match entry.learned {
            Learned::Seen { at, .. } if now.since(at) > self.limits.age => None,
            Learned::Seen { .. } | Learned::Locked => Some(entry.place),
        }
    }

    fn lock(&mut self, port: Port, key: Key, mac: Mac) -> Result<(), SwitchError> {
        if !mac.is_station() {
            return Err(SwitchError::Mac { port: port.0, mac });
        }
        match self.addresses.get(&key) {
            Some(Entry { place: Place::Port(Port(owner)), learned: Learned::Locked }) => {
                return Err(SwitchError::MacTaken { port: port.0, mac, owner: *owner });
            }
            Some(_) => self.forget(key),
            None => {}
        }
        self.addresses.insert(key, Entry { place: Place::Port(port), learned: Learned::Locked });
        Ok(())
    }

    /// Notes that an address was seen as a source at `place`. Returns false if it is locked elsewhere.
    fn learn(&mut self, now: Instant, key: Key, place: Place) -> bool {
        if let Some(entry) = self.addresses.get_mut(&key) {
            match &mut entry.learned {
                Learned::Locked => return entry.place == place,
                Learned::Seen { at, .. } if entry.place == place => {
                    *at = now;
                    return true;
                }
                // It has moved.
                Learned::Seen { .. } => self.forget(key),
            }
        }
        self.make_room(place);
        let Some(sender) = self.sender(place).filter(|sender| sender.learned.len() < sender.learned_max) else {
            return true;
        };
        let index = sender.learned.len();
        sender.learned.push(key);
        self.addresses.insert(key, Entry { place, learned: Learned::Seen { at: now, index } });
        true
    }

    /// Forgets an address of a sender that remembers as many as it may: of some, the one that was not seen for the longest time.
    fn make_room(&mut self, place: Place) {
        let Some(sender) = self.sender(place).filter(|sender| sender.learned.len() >= sender.learned_max) else {
            return;
        };
        let count = sender.learned.len();
        if count == 0 {
            return;
        }
        let first = sender.hand % count;
        sender.hand = (first + COMPARED) % count;
        let compared: [Key; COMPARED] = core::array::from_fn(|step| sender.learned[(first + step) % count]);
        let seen = |key: &Key| match self.addresses[key].learned {
            Learned::Seen { at, .. } => at,
            Learned::Locked => Instant::MAX,
        };
        let oldest = compared.into_iter().min_by_key(seen);
        self.forget(oldest.expect("some were compared"));
    }

    /// Removes a learned address from the table and from the list of its sender.
    fn forget(&mut self, key: Key) {
        let Some(Entry { place, learned: Learned::Seen { index, .. } }) = self.addresses.remove(&key) else { return };
        let Some(sender) = self.sender(place) else { return };
        sender.learned.swap_remove(index);
        let Some(&moved) = sender.learned.get(index) else { return };
        if let Some(Entry { learned: Learned::Seen { index: at, .. }, .. }) = self.addresses.get_mut(&moved) {
            *at = index;
        }
    }
}

/// The VLAN of a frame from the uplink. A tag of VLAN 0 states only a priority. `None` for tags that no port has.
fn vlan_of(frame: &Frame) -> Option<u16> {
    match frame.vlan {
        None if frame.tags == 0 => Some(UNTAGGED),
        None => None,
        Some(vlan) => Some(vlan).filter(|&vlan| vlan <= VLAN_MAX),
    }
}

#[cfg(test)]
#[path = "switch/tests.rs"]
mod tests;
