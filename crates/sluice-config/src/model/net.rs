//! Network side of a host: uplinks, and the NICs that share them.

use core::time::Duration;

use ipnet::IpNet;
use sluice_net::Mac;
use sluice_sched::{ByteRate, Policy, Weight};

use super::{Device, ListenAddress};

/// A network link that NICs share.
#[derive(Debug, Clone, PartialEq)]
pub struct Uplink {
    /// Its scheduler, and the properties that the scheduler assumes. `capacity.bytes` is the rate of the wire, in which each frame
    /// counts with [`CostModel::FRAME_OVERHEAD`](sluice_sched::CostModel::FRAME_OVERHEAD).
    pub link: Device,
    pub port: Port,
    /// Whether the bridge keeps the frames of this port from its other isolated ports.
    pub isolated: bool,
    /// Largest packet in bytes, without its Ethernet header.
    pub mtu: u16,
}

/// Where an uplink's frames leave the daemon, with the name of the host's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Port {
    /// A bridge of the host, of which a TAP of the daemon becomes a port.
    Bridge(String),
    /// A network interface that only the daemon uses.
    Nic(String),
    /// A TAP.
    Tap(String),
}

impl Port {
    /// Name of the interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        match self {
            Port::Bridge(name) | Port::Nic(name) | Port::Tap(name) => name,
        }
    }

    /// Its key in the host file.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Port::Bridge(_) => "bridge",
            Port::Nic(_) => "nic",
            Port::Tap(_) => "tap",
        }
    }
}

/// A virtual NIC.
#[derive(Debug, Clone, PartialEq)]
pub struct Nic {
    pub name: String,
    /// A name in [`Host::uplinks`](super::Host::uplinks).
    pub uplink: String,
    pub access: NicAccess,
    /// Address of the guest's interface.
    pub mac: Mac,
    /// Whether it may send from any MAC and IP address.
    pub spoof: bool,
    /// Addresses that it may send from; empty: any.
    pub addresses: Vec<IpNet>,
    /// Whether it may answer DHCP requests.
    pub dhcp_server: bool,
    /// Whether it may send IPv6 router advertisements.
    pub router_advertisement: bool,
    /// VLAN of its frames on the uplink; `None`: untagged.
    pub vlan: Option<u16>,
    /// Largest packet in bytes, without its Ethernet header; at most the uplink's.
    pub mtu: u16,
    /// Whether the guest may leave checksums and segmentation to the host.
    pub offloads: bool,
    /// The named policy that it holds.
    pub policy_name: Option<String>,
    /// Policy among the NICs of its VM on that uplink. `receive` is what applies to it: its own fields, or the VM's.
    pub policy: NetPolicy,
}

/// How the guest reaches its NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NicAccess {
    /// vhost-user-net.
    VhostUser {
        /// A Unix socket.
        endpoint: ListenAddress,
        /// Maximum number of pairs of virtqueues.
        queues: u16,
    },
    /// A TAP with this name.
    Tap(String),
}

/// Network half of a policy. It has nothing from the half for disks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NetPolicy {
    /// Policy for frames that the NIC sends. Rates are in bytes on the wire; `burst` is in full frames.
    pub transmit: Policy,
    /// The burst as stated: that long at the rate of the limit.
    pub burst: Option<Duration>,
    pub receive: Receive,
}

/// Policy for frames that a NIC receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Receive {
    /// Maximum in bytes on the wire; `None`: unlimited.
    pub limit: Option<ByteRate>,
    /// Share of the daemon's CPU time for frames that NICs receive; `None`: [`Weight::DEFAULT`].
    pub weight: Option<Weight>,
}
