//! The device queue behind a gate: takes submissions and reports completed operations.
//!
//! [`Backend`](super::disk::Backend) is the disk. [`Delay`](super::delay::Delay) is a wrapper that makes any queue slower.
//! The core uses both through [`DeviceQueue`], with static dispatch.

use sluice_sched::gate::Slot;
use sluice_sched::{Device, Instant};

/// Index of an operation in the table of the disk.
///
/// Gate slot `n` has index `2n`. Odd indices are for parts of merged submissions, which share one slot of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpIndex(pub(crate) u32);

/// A queue of submissions, with their completions.
pub(crate) trait DeviceQueue: Device {
    /// Returns an operation that has completed. Call it until it returns `None`.
    fn next_completed(&mut self, now: Instant) -> Option<OpIndex>;

    /// Returns the time at which the next operation completes without an event of the ring.
    fn next_wakeup(&self) -> Option<Instant>;

    /// Returns the slot of the gate to which an operation belongs.
    fn slot_of(&self, index: OpIndex) -> Slot;

    /// Whether the request with this token occupies the device. A refused or abandoned request completes without I/O.
    fn occupies_device(&self, token: u32) -> bool;
}
