//! Counters of one NIC.

use crate::drop::Drops;

/// Counters of a NIC since the start of its uplink's thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NicTotals {
    /// Frames that it sent and that were not dropped; a segment of several frames is one.
    pub sent: u64,
    /// Their bytes on the wire.
    pub sent_bytes: u64,
    /// Frames that it received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that were dropped, by reason.
    pub drops: Drops,
}
