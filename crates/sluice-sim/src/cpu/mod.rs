//! Physical CPUs that are shared, and what runs on them.
//!
//! Between a guest and its device there is work: of the guest, and of the driver domain on its behalf. Where that work has
//! to wait for a CPU, the CPU's scheduler decides over I/O as much as the device's does.

pub mod credit1;
pub mod host;

pub use credit1::{Credit1, DomainId, VcpuId};
pub use host::{Class, Done, Host};
