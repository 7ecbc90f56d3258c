//! Features and configuration space of a virtio network device (VIRTIO 1.3, 5.1.3 and 5.1.4).
//!
//! The control queue stays with the VMM, which tells of its commands by enabling and disabling queues. Features of a migration are not
//! offered, so that a VMM refuses to migrate: frames that arrive meanwhile would be lost without a word.

use std::mem::{offset_of, size_of};

use sluice_net::Mac;
use vhost::vhost_user::message::{
    VHOST_USER_CONFIG_OFFSET, VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4,
    VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC,
    VIRTIO_NET_F_MQ, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
    virtio_net_config as Layout,
};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use super::device_kind::{DeviceKind, Driver};

/// Protocol features that are offered.
const PROTOCOL: Protocol = Protocol::MQ
    .union(Protocol::CONFIG)
    .union(Protocol::REPLY_ACK)
    .union(Protocol::MTU)
    .union(Protocol::CONFIGURE_MEM_SLOTS)
    .union(Protocol::RESET_DEVICE);

/// A virtio network device.
#[derive(Debug, Clone, PartialEq)]
pub struct Net {
    /// Address of the NIC.
    pub mac: Mac,
    /// Largest packet, in bytes without the Ethernet header.
    pub mtu: u16,
    /// Number of pairs of a receive and a transmit queue, 1 to 128.
    pub pairs: u16,
    /// Whether checksums and the division of large segments may be left to the device.
    pub offloads: bool,
}

impl DeviceKind for Net {
    type Written = ();

    fn features(&self) -> u64 {
        let always = [
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_NET_F_MRG_RXBUF,
            VIRTIO_NET_F_MAC,
            VIRTIO_NET_F_MTU,
            VIRTIO_NET_F_STATUS,
        ];
        let offloads = [
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
            VIRTIO_NET_F_HOST_ECN,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
            VIRTIO_NET_F_GUEST_ECN,
        ];
        let offloads = if self.offloads { &offloads[..] } else { &[] };
        let several = if self.pairs > 1 { &[VIRTIO_NET_F_MQ][..] } else { &[] };
        let bits = always.iter().chain(offloads).chain(several).fold(0, |bits, bit| bits | 1u64 << bit);
        bits | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> Protocol {
        PROTOCOL
    }

    fn queues(&self) -> u16 {
        2 * self.pairs
    }

    fn driver(&self, features: u64, (): ()) -> Driver {
        Driver { features, write_back: false }
    }

    fn read_config(&self, _features: u64, (): (), offset: u32, len: u32) -> Option<Vec<u8>> {
        let start = offset.checked_sub(VHOST_USER_CONFIG_OFFSET).unwrap_or(offset) as usize;
        let end = start.checked_add(len as usize)?;
        let mut space = [0; 256];
        space[..size_of::<Layout>()].copy_from_slice(&self.space());
        space.get(start..end).filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
    }

    fn write_config(&self, _features: u64, _offset: u32, _bytes: &[u8]) -> Option<()> {
        None
    }

    fn accepts_mtu(&self, mtu: u64) -> bool {
        mtu <= self.mtu.into()
    }
}

impl Net {
    fn space(&self) -> [u8; size_of::<Layout>()] {
        let mut space = [0; size_of::<Layout>()];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(Layout, mac), &self.mac.0);
        put(offset_of!(Layout, status), &(VIRTIO_NET_S_LINK_UP as u16).to_le_bytes());
        put(offset_of!(Layout, max_virtqueue_pairs), &self.pairs.to_le_bytes());
        put(offset_of!(Layout, mtu), &self.mtu.to_le_bytes());
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: Net = Net { mac: Mac([2, 0, 0, 0, 0, 7]), mtu: 1500, pairs: 1, offloads: true };

    #[test]
    fn features_are_those_that_the_uplink_serves() {
        // Checksums 0 and 1, MTU 3, MAC 5, segments 7 to 9 and 11 to 13, mergeable buffers 15, status 16, rings 28 and 29.
        let bits = [0, 1, 3, 5, 7, 8, 9, 11, 12, 13, 15, 16, 28, 29, 30, 32];
        assert_eq!(NIC.features(), bits.iter().fold(0, |all, bit| all | 1u64 << bit));
        let plain = Net { offloads: false, pairs: 4, ..NIC };
        let bits = [3, 5, 15, 16, 22, 28, 29, 30, 32];
        assert_eq!(plain.features(), bits.iter().fold(0, |all, bit| all | 1u64 << bit));
        assert_eq!((NIC.queues(), plain.queues()), (2, 8));
    }

    #[test]
    fn the_configuration_space_has_address_status_pairs_and_mtu() {
        let space = NIC.read_config(0, (), 0, 12).unwrap();
        assert_eq!(space, [2, 0, 0, 0, 0, 7, 1, 0, 1, 0, 0xdc, 5]);
        assert_eq!(NIC.read_config(0, (), 0x100, 6).unwrap(), space[..6]);
        assert!(NIC.read_config(0, (), 250, 7).is_none() && NIC.read_config(0, (), 0, 0).is_none());
        assert!(NIC.write_config(0, 0, &[1]).is_none());
        assert!(NIC.accepts_mtu(1500) && NIC.accepts_mtu(68) && !NIC.accepts_mtu(1501));
    }
}
