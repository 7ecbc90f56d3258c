//! Why a host file cannot be put into force although it is right in itself.

use std::io;
use std::path::PathBuf;

use sluice_io::device::EditError;
use sluice_io::listener::ListenError;
use sluice_io::nbd::export::ExportError;
use sluice_io::source::SourceError;

/// Something that the file names is not there, is in use, or cannot change while it runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaneError {
    /// Its disk cannot be found.
    #[error("Device {device}: its path cannot be resolved to a disk")]
    Disk {
        /// Which device.
        device: String,
        /// Why.
        #[source]
        source: SourceError,
    },
    /// Two gates in front of one disk guarantee nothing.
    #[error(
        "Devices {first} and {second} lie on one disk ({disks}): one disk can have only one gate; combine them into one device"
    )]
    OneDisk {
        /// The one.
        first: String,
        /// The other.
        second: String,
        /// What they share.
        disks: String,
    },
    /// Its thread cannot be started.
    #[error("Device {device} cannot be started")]
    Device {
        /// Which device.
        device: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A new volume on a device whose path hung at the start.
    #[error("Device {0} is out of service: its path does not respond; retry when its volumes are in service again")]
    OutOfService(String),
    /// Another disk, scheduler or delay under running VMs.
    #[error(
        "Device {device}: its {what} cannot change while it runs; restart the daemon, or use another name for the new device"
    )]
    DeviceChanged {
        /// Which device.
        device: String,
        /// What is different.
        what: &'static str,
    },
    /// A volume cannot be opened.
    #[error("VM {vm}, volume {volume}")]
    Volume {
        /// Whose.
        vm: String,
        /// Which.
        volume: String,
        /// Why.
        #[source]
        source: SourceError,
    },
    /// A path at which a helper thread was given up.
    #[error("{path} does not respond for {seconds} s: its disk or file system hangs", path = .path.display())]
    Hangs {
        /// The path.
        path: PathBuf,
        /// How long it was waited for, in seconds.
        seconds: u64,
    },
    /// Its bytes are being served in another way.
    #[error(
        "VM {vm}, volume {volume}: its bytes are currently served as volume {old}, and the identity of a volume (source, range, name, \
         VM, device, cache, read_only, type and queues of its export) cannot change while it is served; detach it and attach \
         it again, or remove it, reload, and add it again"
    )]
    VolumeChanged {
        /// Whose.
        vm: String,
        /// Which.
        volume: String,
        /// VM and volume that have the bytes now.
        old: String,
    },
    /// The volume that was at its socket before is not over.
    #[error(
        "VM {vm}, volume {volume}: the previous volume on this socket still has requests in flight; retry when they complete"
    )]
    Leaving {
        /// Whose.
        vm: String,
        /// Which.
        volume: String,
    },
    /// Its guest may have data there.
    #[error(
        "VM {vm}, volume {volume}: cannot shrink from {from} to {to} bytes while attached; detach it, then attach it with \
         the new size"
    )]
    Shrunk {
        /// Whose.
        vm: String,
        /// Which.
        volume: String,
        /// Its size, in bytes.
        from: u64,
        /// The size wanted, in bytes.
        to: u64,
    },
    /// A volume lies somewhere else than it says.
    #[error(
        "VM {vm}, volume {volume}: its source is on {found}, but its device {device} is {expected}; use the device that contains the source"
    )]
    OtherDisk {
        /// Whose.
        vm: String,
        /// Which.
        volume: String,
        /// The device that it names.
        device: String,
        /// Where it lies.
        found: String,
        /// What the device is.
        expected: String,
    },
    /// What would be exported is impossible.
    #[error("VM {vm}, volume {volume}")]
    Export {
        /// Whose.
        vm: String,
        /// Which.
        volume: String,
        /// Why.
        #[source]
        source: ExportError,
    },
    /// A socket cannot be made.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A socket's owner or permissions.
    #[error(
        "Socket {0}: its owner, group and mode cannot change while it is served; remove it, reload, and add it again"
    )]
    EndpointChanged(String),
    /// A change for a device that does not serve.
    #[error(
        "Device {0} is down, its thread has failed too often: restart the daemon; until then the device only accepts detach"
    )]
    Down(String),
    /// A device has been sent its part of a change and has not confirmed it.
    #[error("Device {0} does not respond: it applies its part of the change when it responds again")]
    Silent(String),
    /// A device failed while other devices applied their parts of a change.
    #[error(
        "Device {0} failed during the change and has not applied its part: its new volumes are out of service; see the log"
    )]
    Stopped(String),
    /// A device refuses an edit.
    #[error("Device {device}")]
    Edit {
        /// Which.
        device: String,
        /// Why.
        #[source]
        source: EditError,
    },
}

impl PlaneError {
    /// The device that has lost its part of a change.
    pub(crate) fn stopped_device(&self) -> Option<&str> {
        match self {
            PlaneError::Stopped(device) => Some(device),
            _ => None,
        }
    }

    /// Whether somebody else holds the bytes or the socket of a volume at the moment.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, PlaneError::Volume { source: SourceError::Busy { .. }, .. } | PlaneError::Leaving { .. })
    }
}
