//! Frames for drivers that cannot take what a sender has left to others: segments to be cut, and unfinished checksums.
//!
//! A sender on this host, or the interface of the uplink, leaves both to the receiver. A driver that has not negotiated them (firmware, an
//! old system, a NIC without offloads) would take such a frame for a damaged one (VIRTIO 1.3, 5.1.6.4.1).

use sluice_net::drop::Drop as Reason;
use sluice_net::header::{CHECKED, GSO_ECN, GSO_NONE, GSO_TCP4, GSO_TCP6, NEEDS_CHECKSUM, OffloadHeader};
use sluice_net::{PREFIX_LEN, checksum, parse, segments};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_ECN, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6,
};

use crate::uplink::nic::Incoming;
use crate::vhost_user::blk::has;

/// Whether a driver with these features takes a frame with this header.
pub(crate) fn is_accepted(features: u64, header: &OffloadHeader) -> bool {
    let needs_checksum = header.flags & (NEEDS_CHECKSUM | CHECKED) != 0;
    let is_cut = match header.gso_type & !GSO_ECN {
        GSO_NONE => true,
        GSO_TCP4 => has(features, VIRTIO_NET_F_GUEST_TSO4),
        GSO_TCP6 => has(features, VIRTIO_NET_F_GUEST_TSO6),
        _ => false,
    };
    let has_ecn = header.gso_type & GSO_ECN == 0 || has(features, VIRTIO_NET_F_GUEST_ECN);
    is_cut && has_ecn && (!needs_checksum || has(features, VIRTIO_NET_F_GUEST_CSUM))
}

/// Whether a driver with these features may leave the cutting of a frame with this header to the device.
pub(crate) fn is_negotiated(features: u64, header: &OffloadHeader) -> bool {
    let is_cut = match header.gso_type & !GSO_ECN {
        GSO_NONE => true,
        GSO_TCP4 => has(features, VIRTIO_NET_F_HOST_TSO4),
        GSO_TCP6 => has(features, VIRTIO_NET_F_HOST_TSO6),
        _ => false,
    };
    is_cut && (header.gso_type & GSO_ECN == 0 || has(features, VIRTIO_NET_F_HOST_ECN))
}

/// Returns the frames that a frame stands for, with finished checksums.
///
/// # Errors
/// Why it is dropped, if its header does not fit it.
pub(crate) fn plain(incoming: &Incoming) -> Result<Vec<Incoming>, Reason> {
    let bytes = &incoming.bytes;
    let prefix = &bytes[..bytes.len().min(PREFIX_LEN)];
    let length = bytes.len() as u32;
    let frame = parse(prefix, length)?;
    let parts = segments(&frame, &incoming.header, prefix, length, 0)?;
    parts
        .map(|part| {
            let payload = part.payload.start as usize..part.payload.end as usize;
            let mut whole = [part.headers(), &bytes[payload]].concat();
            checksum::finish(part.offload, &mut whole)?;
            Ok(Incoming { header: OffloadHeader::default(), bytes: whole.into() })
        })
        .collect()
}
