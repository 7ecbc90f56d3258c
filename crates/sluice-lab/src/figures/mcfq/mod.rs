//! MCFQ: a manager of time slices for VMs that share an SSD.

pub(super) mod aged;
mod sharing;
pub(super) mod windows;
pub(super) mod workloads;
