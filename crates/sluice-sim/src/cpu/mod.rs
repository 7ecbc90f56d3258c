//! Physical CPUs that guests and the driver domain share.
//!
//! Requests need CPU time of the guest, and of the driver domain on its behalf. When that work waits for a CPU, the
//! CPU's scheduler affects I/O as much as the device's does.

pub mod credit1;
pub mod host;

pub use credit1::{Credit1, DomainId, VcpuId};
pub use host::{Class, Done, Host};
