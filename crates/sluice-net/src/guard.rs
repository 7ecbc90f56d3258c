//! What a NIC may send: guards against strange addresses, DHCP servers and routers.
//!
//! A VM that sends from another VM's address takes its traffic, and one that answers as a DHCP server or router takes that of all.
//! The guard sees each frame before the switch does. It checks the source of the frame, of the IP packet and of the ARP message, what
//! a neighbour advertisement announces, and what only servers and routers send.
//!
//! A guest chooses all bytes, so it may try to hide a header:
//!
//! | form | decision | reason |
//! |---|---|---|
//! | VLAN tag | dropped | the daemon puts tags on; a guest's tag would lead into another VLAN, and a tag of VLAN 0 hides the packet |
//! | LLC/SNAP | checked as IP | some receivers accept it |
//! | IPv6 extension headers | followed | they end within the first 128 bytes in practice |
//! | a chain of headers beyond that, or truncated | dropped | the header behind it is not known ([`Drop::HiddenHeader`]) |
//! | first fragment | checked | it contains the whole chain (RFC 7112), and the ports; otherwise it is dropped |
//! | later fragment | passes | it is useless without the first one, which is checked, and cannot replace its bytes (RFC 5722; in IPv4 its offset is at least 8) |
//! | another protocol than ARP and IP | dropped if the NIC has a list of addresses | it has no source to check |
//!
//! Example: a NIC with the MAC `52:54:00:00:00:01` and the addresses `10.0.0.5/32` and `fd00::5/128` may send from these, from any
//! `fe80::` address (guests choose it at random), a DHCP discover from 0.0.0.0, and the probes by which a station looks whether its new
//! address is free.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::frame::{Arp, NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION, ROUTER_ADVERTISEMENT, ROUTER_SOLICITATION};
use crate::{Drop, Frame, Mac, Network, Transport};

/// ICMPv6 type with which a router sends a station to another one.
const REDIRECT: u8 = 137;
/// ICMPv6 types of multicast listener reports, which a station without an address sends (RFC 3590).
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];

const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
const DHCPV6_CLIENT: u16 = 546;
const DHCPV6_SERVER: u16 = 547;

/// What a NIC may send. The default allows any source, and neither servers of DHCP nor routers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// The only source address. `None`: any address of one station.
    pub mac: Option<Mac>,
    /// IP addresses that it may send from, and announce. Empty: any.
    pub addresses: Vec<IpNet>,
    /// Whether it may answer as a DHCP server.
    pub dhcp_server: bool,
    /// Whether it may advertise itself as a router, and redirect stations.
    pub router_advertisement: bool,
}

impl Guard {
    /// Checks a frame that the NIC sends.
    ///
    /// # Errors
    /// The first reason to drop it.
    pub fn check(&self, frame: &Frame) -> Result<(), Drop> {
        if frame.tags > 0 {
            return Err(Drop::Vlan);
        }
        if !frame.source.is_station() || self.mac.is_some_and(|mac| mac != frame.source) {
            return Err(Drop::SourceMac);
        }
        match frame.network {
            Network::Arp(arp) => self.check_arp(arp),
            Network::Ipv4 { source, .. } => {
                self.check_ipv4(source, frame.transport)?;
                self.check_hidden(frame.transport)
            }
            Network::Ipv6 { source, .. } => {
                self.check_ipv6(source, frame.transport)?;
                self.check_hidden(frame.transport)
            }
            Network::Other if self.addresses.is_empty() => Ok(()),
            Network::Other => Err(Drop::EtherType),
            Network::Malformed if self.allows_everything() => Ok(()),
            Network::Malformed => Err(Drop::Malformed),
        }
    }

    fn allows_everything(&self) -> bool {
        self.mac.is_none() && self.allows_any_transport()
    }

    fn allows_any_transport(&self) -> bool {
        self.addresses.is_empty() && self.dhcp_server && self.router_advertisement
    }

    fn check_hidden(&self, transport: Transport) -> Result<(), Drop> {
        match transport {
            Transport::Hidden if !self.allows_any_transport() => Err(Drop::HiddenHeader),
            _ => Ok(()),
        }
    }

    /// Also gratuitous ARP and replies: the sender is what neighbours remember. A probe (RFC 5227) has no sender address.
    fn check_arp(&self, arp: Arp) -> Result<(), Drop> {
        if self.mac.is_some_and(|mac| mac != arp.sender) {
            return Err(Drop::SourceMac);
        }
        if arp.sender_ip.is_unspecified() || self.has(arp.sender_ip) { Ok(()) } else { Err(Drop::SourceIp) }
    }

    fn check_ipv4(&self, source: Ipv4Addr, transport: Transport) -> Result<(), Drop> {
        let is_discover = transport == Transport::Udp { source: DHCP_CLIENT, destination: DHCP_SERVER };
        if !(self.has(source) || source.is_unspecified() && is_discover) {
            return Err(Drop::SourceIp);
        }
        // A client takes a reply by its own port, wherever it came from.
        match transport {
            Transport::Udp { source: DHCP_SERVER, .. } | Transport::Udp { destination: DHCP_CLIENT, .. }
                if !self.dhcp_server =>
            {
                Err(Drop::DhcpServer)
            }
            _ => Ok(()),
        }
    }

    fn check_ipv6(&self, source: Ipv6Addr, transport: Transport) -> Result<(), Drop> {
        let is_own = |address: Ipv6Addr| address.is_unicast_link_local() || self.has(address);
        let is_without_address = source.is_unspecified() && may_lack_address(transport);
        if !(is_own(source) || is_without_address) {
            return Err(Drop::SourceIp);
        }
        match transport {
            Transport::Udp { source: DHCPV6_SERVER, .. } | Transport::Udp { destination: DHCPV6_CLIENT, .. }
                if !self.dhcp_server =>
            {
                Err(Drop::DhcpServer)
            }
            Transport::Icmpv6 { kind: ROUTER_ADVERTISEMENT | REDIRECT, .. } if !self.router_advertisement => {
                Err(Drop::RouterAdvertisement)
            }
            // An advertisement announces its target. So does the probe for a free address, which others answer by giving up.
            Transport::Icmpv6 { kind, target: Some(target) }
                if (kind == NEIGHBOUR_ADVERTISEMENT || source.is_unspecified()) && !is_own(target) =>
            {
                Err(Drop::SourceIp)
            }
            _ => Ok(()),
        }
    }

    fn has(&self, address: impl Into<IpAddr>) -> bool {
        let address = address.into();
        self.addresses.is_empty() || self.addresses.iter().any(|network| network.contains(&address))
    }
}

/// Whether a station sends this before it has an address.
fn may_lack_address(transport: Transport) -> bool {
    match transport {
        Transport::Icmpv6 { kind, .. } => {
            kind == ROUTER_SOLICITATION || kind == NEIGHBOUR_SOLICITATION || LISTENER_REPORTS.contains(&kind)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
