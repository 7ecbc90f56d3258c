//! Types that the control plane exchanges with an uplink's thread.

use std::sync::Arc;
use std::time::Duration;

use sluice_net::guard::Guard;
use sluice_sched::admission::Capacity;
use sluice_sched::params::ParamTable;
use sluice_sched::scheduler::{DeviceClass, DeviceInfo};
use sluice_sched::{ByteRate, Bytes, CostModel, Descriptor, GateSettings, Percent, Policy, Weight};

use crate::reactor::spec::SchedulerSpec;
use crate::uplink::link::Link;
use crate::volume::VolumeGeneration;

/// Specification of an uplink, which has one thread, one ring and one gate.
#[derive(Debug, Clone)]
pub struct UplinkSpec {
    /// Name in the host file.
    pub name: String,
    /// The scheduler at the start.
    pub scheduler: SchedulerSpec,
    /// Cost model, and the number of frames on the way; see [`depth_for`].
    pub gate: GateSettings,
    /// Bytes per second of the wire, with the 24 bytes around each frame; `None` if the interface itself holds frames back.
    pub rate: Option<ByteRate>,
    /// The open interface. It stays open over restarts of the thread.
    pub link: Arc<Link>,
    /// Longest time that one frame may occupy the wire; larger segments are cut into frames before they are scheduled.
    pub frame_time_max: Duration,
}

impl UplinkSpec {
    /// Returns an uplink without VMs, with the default parameters of a scheduler for links.
    #[must_use]
    pub fn new(name: &str, descriptor: &'static Descriptor, rate: Option<ByteRate>, link: Arc<Link>) -> Self {
        let gate = gate_for(rate);
        let info = DeviceInfo::of(&gate, false, &Capacity::default());
        let scheduler = SchedulerSpec { descriptor, info, params: ParamTable::default() };
        UplinkSpec { name: name.to_owned(), scheduler, gate, rate, link, frame_time_max: FRAME_TIME_MAX }
    }
}

/// Largest charge of a frame that the gate takes as one request: more than the longest segment costs, in its most and shortest
/// frames with the longest headers (about 500 kB). The gate would divide a larger one, and each part would be sent as the frame.
const CHARGE_MAX: Bytes = Bytes::mib(1);

/// Returns the settings of the gate of an uplink.
#[must_use]
pub fn gate_for(rate: Option<ByteRate>) -> GateSettings {
    let cost = CostModel::frames();
    GateSettings {
        depth: depth_for(rate),
        cost,
        request_bytes: cost.reference_size(),
        transfer_max: CHARGE_MAX,
        device_class: DeviceClass::Network,
        ..GateSettings::default()
    }
}

/// Longest time that one frame may occupy the wire if no VM has a shorter latency target.
///
/// Example: at 100 Mbit/s segments are cut into single frames, at 1 Gbit/s into groups of 25 kB, at 10 Gbit/s not at all.
pub const FRAME_TIME_MAX: Duration = Duration::from_micros(200);

/// Returns how many frames the gate lets through before the first has left the wire: those of 200 us, at least 2.
///
/// Example: 2 at 100 Mbit/s, 16 at 1 Gbit/s. A frame of a VM that sends little waits for them.
#[must_use]
pub fn depth_for(rate: Option<ByteRate>) -> u32 {
    const FULL_FRAME: u64 = 1538;
    let Some(rate) = rate else { return 64 };
    let frames = rate.bytes_per_second() / 5000 / FULL_FRAME;
    frames.clamp(2, 128) as u32
}

/// The connection of a NIC to its VM.
#[derive(Debug, Clone)]
pub enum NicPlug {
    /// A TAP, open.
    Tap(Arc<Link>),
    /// A vhost-user socket.
    VhostUser,
}

/// A NIC.
#[derive(Debug, Clone)]
pub struct NicSpec {
    /// Name in the host file.
    pub name: String,
    pub generation: VolumeGeneration,
    /// Policy of the NIC, inside that of its VM, for what it sends.
    pub policy: Policy,
    /// Addresses and protocols that the NIC may send.
    pub guard: Guard,
    /// Whether its frames are put into this VLAN on the uplink.
    pub vlan: Option<u16>,
    /// Largest packet, in bytes without the Ethernet header.
    pub mtu: u16,
    /// Limit of what it receives, in bytes on the wire.
    pub receive_limit: Option<ByteRate>,
    /// Its share of the thread's CPU time for received frames.
    pub receive_weight: Weight,
    pub plug: NicPlug,
}

/// A change of an uplink. A list of changes is applied between two iterations of the loop. The VM and the NIC of a change exist,
/// except those that it adds.
#[derive(Debug, Clone)]
pub enum Edit {
    /// Adds a VM without NICs, with its policy on this uplink.
    AddVm { vm: String, policy: Policy },
    /// Changes the policies of a VM, and of some of its NICs, together.
    SetPolicies { vm: String, policy: Policy, nics: Vec<(String, Policy)> },
    /// Changes how much CPU time of the thread a VM may use; `None`: any.
    SetCpu { vm: String, limit: Option<Percent> },
    /// Removes a VM and its NICs.
    RemoveVm { vm: String },
    /// Adds a NIC.
    AddNic { vm: String, nic: Box<NicSpec> },
    /// Changes what a NIC may send and receive. Its VMM stays connected.
    SetNic { vm: String, nic: Box<NicSpec> },
    /// Removes a NIC: its VMM is disconnected, and frames that were not sent are dropped.
    RemoveNic { vm: String, nic: String },
    /// Changes what is known of the interface; see [`gate_for`].
    SetDevice {
        /// Number of frames on the way.
        depth: u32,
        /// Bytes of a request of cost 1, see [`GateSettings::request_bytes`].
        request_bytes: Bytes,
    },
    /// Changes the rate of the wire, in bytes per second with what surrounds each frame, and the longest time that one frame may
    /// occupy it.
    SetWire { rate: Option<ByteRate>, frame_time_max: Duration },
    /// Replaces the open interface of the uplink, or that of a NIC by VM and NIC.
    SetLink { nic: Option<(String, String)>, link: Arc<Link> },
    /// Replaces the scheduler, or its parameters. Queued frames stay queued.
    SetScheduler {
        scheduler: SchedulerSpec,
        /// Whether adjacent requests are merged before it.
        merging: bool,
    },
}
