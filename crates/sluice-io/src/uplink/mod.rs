//! An uplink: a network interface that VMs share, with one thread, one gate, and the NICs of the VMs.
//!
//! ```text
//!     guest --transmit queue--> [vhost_net] --.                          .--> TAP, packet socket, port of a bridge
//!     TAP   ----------read----> [taps] -------+--> [core] --> Gate --> [wire]
//!        ^                                    '--> switch --> receive queue of another NIC
//!        '------- receive queue of the NIC <--------- switch <--- read ---'
//! ```
//!
//! Frames that a NIC sends pass the gate; those that wait stay in the guest's ring. To the control plane an uplink is what a disk is: its VMs are
//! added, changed and looked at by the same messages, and a NIC stands where a volume does.

use std::io;

use crate::device::Device;

pub(crate) mod core;
mod deliver;
pub(crate) mod edit;
pub(crate) mod event_loop;
pub(crate) mod ids;
pub mod link;
pub(crate) mod nic;
pub(crate) mod pacer;
pub(crate) mod packet;
pub(crate) mod ports;
pub(crate) mod receive_buffers;
pub mod spec;
pub(crate) mod taps;
#[cfg(test)]
mod tests;
pub(crate) mod vhost_net;
pub(crate) mod wire;

pub use spec::{NicPlug, NicSpec, UplinkSpec};

/// Starts the thread of an uplink. `went_down` is called on it when it has failed permanently.
///
/// # Errors
/// The error of creating the ring, or of the scheduler's parameters.
pub fn start(spec: UplinkSpec, went_down: Box<dyn Fn() + Send + Sync>) -> io::Result<Device> {
    Device::spawn::<event_loop::UplinkLoop>(spec, went_down)
}
