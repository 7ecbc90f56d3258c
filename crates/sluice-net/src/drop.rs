//! Reasons for which a frame is dropped.

use core::fmt;

/// Defines [`Drop`]: each reason with the name of its counter and a sentence for people.
macro_rules! reasons {
    ($($reason:ident $name:literal $sentence:literal)*) => {
        /// Why a frame was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum Drop {
            $(#[doc = $sentence] $reason,)*
        }

        impl Drop {
            /// All reasons, in the order of their counters.
            pub const ALL: &[Drop] = &[$(Drop::$reason),*];

            /// Name in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Drop::$reason => $name,)* }
            }

            /// The reason as a sentence, with what to change where something can be changed.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Drop::$reason => $sentence,)* }
            }
        }
    };
}

reasons! {
    Short "short" "The frame is shorter than an Ethernet header."
    TooLong "too_long" "The frame is longer than the MTU allows; lower the MTU in the guest, or raise that of the NIC and of the interface."
    Offload "offload" "The offload header does not fit the frame, or asks for a kind of segmentation that the driver has not negotiated."
    Malformed "malformed" "The headers are truncated or contradict one another, so the frame cannot be checked."
    HiddenHeader "hidden_header" "Extension headers or a fragment hide the TCP, UDP or ICMPv6 header from the guards."
    SourceMac "source_mac" "The frame or its ARP message comes from a MAC address that the NIC does not have."
    SourceIp "source_ip" "The frame, its ARP message or its neighbour discovery names an IP address that the NIC does not have."
    EtherType "ether_type" "A NIC with a list of addresses sends ARP and IP only, and the frame is neither."
    Vlan "vlan" "The frame carries a VLAN tag; tags are put on outside of the guest, so set the VLAN of the NIC instead."
    DhcpServer "dhcp_server" "The NIC answers as a DHCP server, which its guard does not allow."
    RouterAdvertisement "router_advertisement" "The NIC advertises itself as a router, which its guard does not allow."
    LinkLocal "link_local" "The frame is for the next switch (spanning tree, LACP, LLDP, pause), and switches do not forward it."
    FloodRate "flood_rate" "The sender floods more frames per second than its cap."
    FloodTotal "flood_total" "All senders together flood more than the cap of the uplink; see which NICs drop by flood_rate."
    NoReceiver "no_receiver" "No other port has the destination address."
    QueueFull "queue_full" "The receive queue of the NIC is full."
    Waited "waited" "The frame waited too long, because its NIC sends more than its share."
    Refused "refused" "The interface refused the frame: its driver supports neither the offload nor the length."
    LinkDown "link_down" "The interface did not take the frame: it is down, or was removed."
    NoBuffers "no_buffers" "The guest has no receive buffers, or the VMM does not read its TAP."
}

impl Drop {
    /// Number of reasons.
    pub const COUNT: usize = Drop::ALL.len();
}

impl fmt::Display for Drop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl core::error::Error for Drop {}

/// Dropped frames by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drops([u64; Drop::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Drops([0; Drop::COUNT])
    }
}

impl Drops {
    /// Counts one frame.
    pub fn count(&mut self, reason: Drop) {
        self.0[reason as usize] += 1;
    }

    #[must_use]
    pub fn of(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// Dropped frames for all reasons together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Each reason with its count, also where that is 0.
    pub fn iter(&self) -> impl Iterator<Item = (Drop, u64)> {
        Drop::ALL.iter().copied().zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own_and_a_counter() {
        let mut drops = Drops::default();
        for (index, &reason) in Drop::ALL.iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert!(reason.name().bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{reason:?}");
            assert!(reason.sentence().ends_with('.'), "{reason:?}");
            assert_eq!(Drop::ALL.iter().filter(|other| other.name() == reason.name()).count(), 1);
            drops.count(reason);
            drops.count(Drop::Offload);
        }
        let total = 2 * Drop::COUNT as u64;
        assert_eq!((drops.total(), drops.of(Drop::Offload), drops.of(Drop::Short)), (total, total / 2 + 1, 1));
        assert_eq!(drops.iter().map(|(_, count)| count).sum::<u64>(), total);
    }
}
