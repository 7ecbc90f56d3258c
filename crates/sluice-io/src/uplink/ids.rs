//! Ids of the tables of an uplink's thread.

use crate::slab::ids;

ids! {
    /// A NIC. The gate's `VolumeId` identifies it within its VM.
    NicId;
    /// A frame that waits for the gate, at the gate, or on the wire.
    PacketId;
}
