//! MCFQ: a manager of time slices for VMs that share an SSD.

pub(super) mod aged;
mod sharing;
pub(crate) mod windows;
pub(super) mod workloads;
