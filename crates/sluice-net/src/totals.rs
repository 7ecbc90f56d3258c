//! Counters of NICs and uplinks.

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

/// Counters of an uplink since the start of its thread. Frames that are dropped for a NIC count there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UplinkTotals {
    /// Frames from the interface that were dropped before a NIC was found for them, by reason.
    pub drops: Drops,
    /// Number of times that the interface took no more frames for a moment.
    pub full: u64,
    /// Number of times that the interface went down or was removed.
    pub link_failures: u64,
    /// Whether it is down now.
    pub is_down: bool,
}
