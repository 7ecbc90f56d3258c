//! The connections of NICs to their VMs.

use crate::uplink::taps::Taps;
use crate::uplink::vhost_net::VhostNet;

/// The TAPs, and the sessions of VMMs.
pub(crate) struct Ports {
    pub(crate) taps: Taps,
    pub(crate) vhost: VhostNet,
}
