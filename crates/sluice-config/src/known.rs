//! The tables whose names VMs, volumes and NICs use in their keys.

use std::collections::BTreeMap;

use sluice_sched::Percent;

use crate::device::DeviceDraft;
use crate::net_policy::NetPart;
use crate::policy::Part;
use crate::uplink::UplinkDraft;

/// The tables that VMs refer to by name.
pub(crate) struct Known<'a> {
    pub(crate) devices: &'a BTreeMap<String, DeviceDraft>,
    pub(crate) uplinks: &'a BTreeMap<String, UplinkDraft>,
    pub(crate) policies: &'a BTreeMap<String, Part>,
    /// Network halves of the policies.
    pub(crate) nets: &'a BTreeMap<String, NetPart>,
    /// CPU time that the policies allow.
    pub(crate) cpu_limits: &'a BTreeMap<String, Option<Percent>>,
}
