//! Ethernet frames of virtual NICs: everything that is decided about a frame, without I/O.
//!
//! The daemon takes a frame from a guest's transmit ring, a TAP or an uplink, and copies its virtio-net header and its first
//! [`PREFIX_LEN`] bytes once. From that copy this crate decides what the frame is, whether its NIC may send it, what it costs
//! on the wire and where it goes. The rest of the frame is never read, so a guest that changes it meanwhile changes no decision.
//!
//! The steps of a frame from a NIC, in order:
//!
//! | step | where |
//! |---|---|
//! | the offload header, without flags that only devices may set | [`OffloadHeader`] |
//! | Ethernet, VLAN, ARP, IP and the start of TCP, UDP, ICMPv6 | [`parse`] |
//! | whether its NIC may send it | [`Guard`] |
//! | what it costs on the wire, and whether its offloads are possible | [`wire()`] |
//! | frames or shorter offloaded frames that it is cut into | [`segments`] |
//! | where it goes | [`Switch`], with a cap on [`flood`]s |
//! | when a NIC gets what is for it, and in which of its queues | [`Receive`], [`flow()`] |
//!
//! A frame that fails a step is dropped with a [`Drop`], which is also the key of its counter.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod checksum;
pub mod drop;
pub mod flood;
pub mod flow;
pub mod frame;
pub mod guard;
pub mod header;
pub mod mac;
pub mod receive;
pub mod segment;
pub mod switch;
pub mod tag;
pub mod totals;
pub mod wire;

pub use drop::Drop;
pub use flow::flow;
pub use frame::{Frame, Network, PREFIX_LEN, Transport, parse};
pub use guard::Guard;
pub use header::{HEADER_LEN, OffloadHeader};
pub use mac::Mac;
pub use receive::Receive;
pub use segment::{Segment, segments};
pub use switch::{Port, Switch, Target};
pub use totals::{NicTotals, UplinkTotals};
pub use wire::{Wire, wire};
