//! Why a valid host file cannot be put into force.

use std::io;
use std::path::PathBuf;

use sluice_api::object::ObjectId;
use sluice_io::device::EditError;
use sluice_io::endpoint::ListenError;
use sluice_io::source::SourceError;
use sluice_io::uplink::link::LinkError;
use sluice_io::volume::VolumeInfoError;

use super::objects::pair;
use super::tolerance::Fault;
use crate::failure::Failure;

/// A path of the file is missing or in use, or a setting cannot change at run time.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// All reasons why a start fails.
    #[error("{}", .0.join("; "))]
    Several(Vec<String>),
    /// The disk of a device cannot be found.
    #[error("Device {device}: its path cannot be resolved to a disk")]
    Disk {
        device: String,
        #[source]
        source: SourceError,
    },
    /// A device of several disks would run without some of them.
    #[error("Device {device}: {reason}; its other disks are served")]
    LacksDisks { device: String, reason: String },
    /// Two devices are on one disk, which can have only one gate.
    #[error(
        "Devices {first} and {second} are on the same disk ({disks}), which can have only one gate; combine them into one device"
    )]
    OneDisk {
        first: String,
        second: String,
        /// The shared disks.
        disks: String,
    },
    /// The log of a device cannot be opened.
    #[error("Device {device}: cannot write its log {path}: {error}; choose another path", path = .path.display())]
    Log { device: String, path: PathBuf, error: io::Error },
    /// The place where hosts meet cannot be used.
    #[error(
        "Device {device}: cannot meet the other hosts of its pool at {path}: {error}; its VMs are served with the part of one host, and \
         nothing more can be reserved", path = .path.display()
    )]
    Meeting { device: String, path: PathBuf, error: io::Error },
    /// A device thread cannot be started.
    #[error("Cannot start device {device}")]
    Device {
        device: String,
        #[source]
        source: io::Error,
    },
    /// A thread that never sleeps would let nothing else run on its CPU.
    #[error(
        "Device {0}: busy_poll needs a normal priority, and the daemon runs at a real-time one; set busy_poll = false, or \
         real_time = \"off\" in [daemon], or start the daemon without the real-time priority"
    )]
    BusyPollAtRealTime(String),
    /// A new volume on a device that could not be started.
    #[error("Device {0} is out of service (see `sluice status`); retry when it is in service again")]
    OutOfService(String),
    /// A setting of a device cannot change while VMs use it.
    #[error(
        "Device {device}: its {what} cannot change while it runs; restart the daemon, or use another name for the new device"
    )]
    DeviceChanged {
        device: String,
        /// The changed setting.
        what: &'static str,
    },
    /// A setting of an uplink cannot change while VMs use it.
    #[error(
        "Uplink {uplink}: its {what} cannot change while it runs; restart the daemon, or use another name for the new uplink"
    )]
    UplinkChanged {
        uplink: String,
        /// The changed setting.
        what: &'static str,
    },
    /// The interface of an uplink cannot be used.
    #[error("Uplink {uplink}")]
    Link {
        uplink: String,
        #[source]
        source: LinkError,
    },
    /// The TAP of a NIC cannot be opened.
    #[error("NIC {nic}")]
    Tap {
        nic: String,
        #[source]
        source: LinkError,
    },
    /// A volume cannot be opened.
    #[error("VM {vm}, volume {volume}")]
    Volume {
        vm: String,
        volume: String,
        #[source]
        source: SourceError,
    },
    /// A helper thread was abandoned at a path.
    #[error("{path} has not responded for {seconds} s: its disk or file system hangs", path = .path.display())]
    Hangs {
        path: PathBuf,
        /// Time that the helper waited, in seconds.
        seconds: u64,
    },
    /// The bytes of a volume are served under another identity.
    #[error(
        "VM {vm}, volume {volume}: its bytes are currently served as volume {old}, from which it differs in {differs}. This cannot change \
         while a volume is served; detach it and attach it again, or remove it, reload, and add it again"
    )]
    VolumeChanged {
        vm: String,
        volume: String,
        /// VM and volume that have the bytes now.
        old: String,
        /// Keys in which they differ.
        differs: String,
    },
    /// Volumes with clients would be closed or get another source.
    #[error(
        "In use: {what}; stop their VMs first, or repeat with {force} (a reload by SIGHUP cannot force: use `sluice apply`)"
    )]
    InUse {
        /// Volumes, and what would become of them.
        what: String,
        /// The options that force it.
        force: String,
        volumes: Vec<ObjectId>,
    },
    /// The previous volume on the same socket still has requests in flight.
    #[error(
        "VM {vm}, volume {volume}: the previous volume on this socket still has requests in flight; retry when they complete"
    )]
    RemovedVolume { vm: String, volume: String },
    /// A volume cannot shrink, because its guest may have data there.
    #[error(
        "VM {vm}, volume {volume}: cannot shrink from {from} to {to} bytes while attached; detach it, then attach it with \
         the new size"
    )]
    Shrunk {
        vm: String,
        volume: String,
        /// Current size, in bytes.
        from: u64,
        /// Requested size, in bytes.
        to: u64,
    },
    /// A volume is on another disk than its device.
    #[error(
        "VM {vm}, volume {volume}: its source is on {found}, but its device {device} is {expected}; use the device that contains the source"
    )]
    OtherDisk {
        vm: String,
        volume: String,
        device: String,
        /// The disk of its source.
        found: String,
        /// The disk of its device.
        expected: String,
    },
    /// The size or the block sizes of a volume are not valid.
    #[error("VM {vm}, volume {volume}")]
    VolumeInfo {
        vm: String,
        volume: String,
        #[source]
        source: VolumeInfoError,
    },
    /// A socket cannot be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Owner, group or mode of a served socket cannot change.
    #[error(
        "Socket {0}: its owner, group and mode cannot change while it is served; remove it, reload, and add it again"
    )]
    EndpointChanged(String),
    /// A device that is down cannot be changed.
    #[error(
        "Device {0} is down because its thread has failed too often; restart the daemon. Until then it accepts only detach"
    )]
    Down(String),
    /// A device has not confirmed its part of a change.
    #[error("Device {0} does not respond: it applies its part of the change when it responds again")]
    Silent(String),
    /// A device failed while other devices applied their parts of a change.
    #[error(
        "Device {0} failed during the change and has not applied its part: its new volumes are out of service; see the log"
    )]
    Stopped(String),
    /// A device rejects an edit.
    #[error("Device {device}")]
    Edit {
        device: String,
        #[source]
        source: EditError,
    },
}

impl ServerError {
    /// Returns the error of a volume whose source cannot be used.
    pub(super) fn volume(name: &ObjectId, source: SourceError) -> ServerError {
        let (vm, volume) = pair(name);
        ServerError::Volume { vm, volume, source }
    }

    /// Returns it as the result of a verb, in which each reason is an error.
    pub fn into_failure(self) -> Failure {
        match self {
            ServerError::Several(errors) => Failure::Several(errors),
            other => other.into(),
        }
    }

    /// Returns the device that has lost or rejected its part of a change.
    pub(super) fn lost_device(&self) -> Option<&str> {
        match self {
            ServerError::Stopped(device) => Some(device),
            _ => self.failed_device(),
        }
    }

    /// Returns the device that has rejected its part of a change.
    pub(super) fn failed_device(&self) -> Option<&str> {
        match self {
            ServerError::Edit { device, .. } => Some(device),
            _ => None,
        }
    }

    /// Whether a start may go on without what it concerns: not if the thread of a device or an uplink cannot be started.
    pub(super) fn concerns_one(&self) -> bool {
        !matches!(self, ServerError::Device { .. })
    }

    /// Whether the source of a volume is another volume's.
    pub(super) fn is_claimed(&self) -> bool {
        matches!(self, ServerError::Volume { source: SourceError::Claimed { .. }, .. })
    }

    /// Whether another process holds the bytes or the socket of a volume at the moment.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            ServerError::Volume { source: SourceError::Busy { .. } | SourceError::Closing { .. }, .. }
                | ServerError::RemovedVolume { .. }
        )
    }
}

impl Fault for ServerError {
    fn is_no_response(&self) -> bool {
        match self {
            ServerError::Volume { source, .. } | ServerError::Disk { source, .. } => source.is_no_response(),
            ServerError::Listen(source) => source.is_no_response(),
            ServerError::Meeting { error, .. } => error.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }
}
