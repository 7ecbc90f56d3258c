//! Network side of a host: uplinks, and the NICs that share them.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use core::time::Duration;

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
    pub addresses: Vec<IpNetwork>,
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

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The address of a NIC that states none: locally administered, and the same for the same names on every host and after
    /// every restart.
    #[must_use]
    pub fn of(vm: &str, nic: &str) -> Mac {
        // FNV-1a. A name contains no slash, so different pairs of names are different texts.
        let text = vm.bytes().chain(*b"/").chain(nic.bytes());
        let hash = text
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        // Its high bits depend on all bytes, unlike the low ones.
        let [first, rest @ ..] = hash.to_be_bytes();
        let [b, c, d, e, f, ..] = rest;
        Mac([first & 0xfc | 0x02, b, c, d, e, f])
    }

    /// Whether it can be the address of one interface: not a group's, and not zero.
    #[must_use]
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl FromStr for Mac {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(part.ok_or(())?, 16).map_err(|_| ())?;
        }
        if parts.next().is_some() { Err(()) } else { Ok(Mac(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// Addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    /// The first address: all bits after the prefix are 0.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
}

impl IpNetwork {
    /// The network of `prefix` bits that contains `address`; `None` if the address has fewer bits.
    #[must_use]
    pub fn around(address: IpAddr, prefix: u8) -> Option<IpNetwork> {
        let address = match address {
            IpAddr::V4(v4) => {
                let after = 32u32.checked_sub(prefix.into())?;
                IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(after).unwrap_or(0)).into())
            }
            IpAddr::V6(v6) => {
                let after = 128u32.checked_sub(prefix.into())?;
                IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(after).unwrap_or(0)).into())
            }
        };
        Some(IpNetwork { address, prefix })
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_address_is_stable_and_local_and_differs_between_names() {
        // Stated as a number, because guests keep it: it must be the same in every version.
        assert_eq!(Mac::of("db1", "eth0").to_string(), "4e:ba:3c:e4:4d:b8");
        let mut all: Vec<Mac> = (0..100)
            .flat_map(|vm| (0..100).map(move |nic| Mac::of(&format!("vm{vm}"), &format!("eth{nic}"))))
            .collect();
        assert!(all.iter().all(|mac| mac.is_unicast() && mac.0[0] & 2 == 2));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 10_000);
        assert_ne!(Mac::of("a", "b1"), Mac::of("ab", "1"));
    }

    #[test]
    fn addresses_are_parsed_as_they_are_formatted() {
        let mac: Mac = "02:Ab:00:00:00:0f".parse().unwrap();
        assert_eq!(mac.to_string(), "02:ab:00:00:00:0f");
        for wrong in ["", "02", "02:ab:00:00:00", "02:ab:00:00:00:0f:00", "02:ab:00:00:00:+f", "2:ab:00:00:00:0f"] {
            assert_eq!(wrong.parse::<Mac>(), Err(()), "{wrong}");
        }
        let around = |address: &str, prefix| IpNetwork::around(address.parse().unwrap(), prefix);
        for (address, prefix, network) in [
            ("10.1.2.3", 32, "10.1.2.3/32"),
            ("10.1.2.3", 8, "10.0.0.0/8"),
            ("10.1.2.3", 0, "0.0.0.0/0"),
            ("fd00::1:2", 64, "fd00::/64"),
            ("fd00::1:2", 128, "fd00::1:2/128"),
            ("fd00::1:2", 0, "::/0"),
        ] {
            assert_eq!(around(address, prefix).unwrap().to_string(), network);
        }
        assert_eq!((around("10.1.2.3", 33), around("::", 129)), (None, None));
    }
}
