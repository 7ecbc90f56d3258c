//! VMM configuration for the volumes of a VM: one file per format.
//!
//! | format | VMM | reaches volumes over |
//! |---|---|---|
//! | [`qemu`] | QEMU | vhost-user-blk, NBD |
//! | [`libvirt`] | QEMU under libvirt | vhost-user-blk, NBD |
//! | [`cloud_hypervisor`] | Cloud Hypervisor | vhost-user-blk |
//! | [`firecracker`] | Firecracker | vhost-user-blk |
//! | [`nbd_uri`] | any client of NBD | NBD |
//!
//! A volume or a path that the VMM cannot use is an error, so the output works without changes.

use std::path::Path;

use serde_json::Value;
use sluice_config::{Endpoint, Host, Protocol, Vm, Volume};
use sluice_sched::Bytes;
use thiserror::Error;

pub(crate) mod cloud_hypervisor;
pub(crate) mod firecracker;
pub(crate) mod libvirt;
pub(crate) mod nbd_uri;
pub(crate) mod qemu;
mod shell;

/// A volume as its VM's VMM sees it.
pub(crate) struct Disk<'a> {
    pub(crate) volume: &'a str,
    /// `VM/VOLUME`, for messages.
    pub(crate) title: String,
    pub(crate) reach: Reach<'a>,
    /// Endpoint and export name, if a shared socket also serves the volume over NBD.
    pub(crate) shared: Option<(&'a Endpoint, &'a str)>,
    pub(crate) read_only: bool,
}

/// How the VMM reaches it.
#[derive(Clone, Copy)]
pub(crate) enum Reach<'a> {
    VhostUser { socket: &'a str, queues: u16 },
    Nbd { endpoint: &'a Endpoint, name: &'a str },
}

/// Properties of the VM that are not in the host file.
pub(crate) struct Machine<'a> {
    /// Size of its memory, which a vhost-user volume shares with the daemon.
    pub(crate) memory: Option<Bytes>,
    /// Number of vCPUs. A disk gets one queue for each, up to the number of queues of its volume.
    pub(crate) processors: Option<u16>,
    /// The boot volume.
    pub(crate) root: Option<&'a str>,
}

/// Output of a format: text for people and shells, and JSON fields.
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) fields: Vec<(&'static str, Value)>,
}

/// Why a VM's volumes cannot be exported to a VMM.
#[derive(Debug, Error)]
pub(crate) enum ExportError {
    #[error("VM {vm} has no volumes; add [vm.{vm}.volume.NAME] to the host file")]
    NoVolumes { vm: String },
    #[error(
        "Volume {title} is served over NBD, and {vmm} has no NBD client; write export = {{ type = \"vhost-user-blk\", \
         socket = \"/run/sluice/NAME.sock\" }} for it"
    )]
    NoNbd { vmm: &'static str, title: String },
    #[error(
        "Volume {title} is served only over vhost-user-blk; write export = {{ type = \"nbd\", … }} for it, or add \
         [nbd] to the host file"
    )]
    NotNbd { title: String },
    #[error(
        "A vhost-user volume shares the memory of its VM, and {vmm} needs the size of that memory; add --memory \
         with the VM's memory size, for example --memory 4GiB"
    )]
    MemoryNeeded { vmm: &'static str },
    #[error("A memory of {memory} is not a whole number of MiB; write for example --memory 4GiB")]
    MemoryNotWhole { memory: Bytes },
    #[error("{vmm} cannot use the path '{path}', because it separates options with '{character}'; use another path")]
    Unquotable { vmm: &'static str, path: String, character: char },
}

/// Returns the volumes of a VM in the order of their names.
pub(crate) fn disks<'a>(host: &'a Host, vm: &'a Vm) -> Result<Vec<Disk<'a>>, ExportError> {
    if vm.volumes.is_empty() {
        return Err(ExportError::NoVolumes { vm: vm.name.clone() });
    }
    Ok(vm.volumes.values().map(|volume| Disk::new(host, vm, volume)).collect())
}

impl<'a> Disk<'a> {
    fn new(host: &'a Host, vm: &'a Vm, volume: &'a Volume) -> Self {
        let export = &volume.export;
        let reach = match (export.protocol, &export.endpoint) {
            (Protocol::VhostUserBlk { queues }, Endpoint::Unix { path, .. }) => {
                Reach::VhostUser { socket: text(path), queues }
            }
            (_, endpoint) => Reach::Nbd { endpoint, name: &export.name },
        };
        let title = format!("{}/{}", vm.name, volume.name);
        let shared = host.nbd.endpoints.first().map(|endpoint| (endpoint, export.name.as_str()));
        Disk { volume: &volume.name, title, reach, shared, read_only: volume.read_only }
    }

    /// Returns socket and number of queues, for a VMM that supports only vhost-user.
    fn vhost_user(&self, vmm: &'static str) -> Result<(&'a str, u16), ExportError> {
        match self.reach {
            Reach::VhostUser { socket, queues } => Ok((socket, queues)),
            Reach::Nbd { .. } => Err(ExportError::NoNbd { vmm, title: self.title.clone() }),
        }
    }
}

impl Machine<'_> {
    /// Returns the number of queues of a disk with at most `most`, or `None` if the VMM chooses.
    fn queues(&self, most: u16) -> Option<u16> {
        self.processors.map(|processors| processors.min(most))
    }

    /// Returns the memory size in MiB.
    fn memory_mib(&self, vmm: &'static str) -> Result<u64, ExportError> {
        const MIB: u64 = 1 << 20;
        let memory = self.memory.ok_or(ExportError::MemoryNeeded { vmm })?;
        let whole = memory.0 > 0 && memory.0.is_multiple_of(MIB);
        if whole { Ok(memory.0 / MIB) } else { Err(ExportError::MemoryNotWhole { memory }) }
    }
}

/// Whether one of the disks shares the VM's memory.
fn share_memory(disks: &[Disk<'_>]) -> bool {
    disks.iter().any(|disk| matches!(disk.reach, Reach::VhostUser { .. }))
}

/// Returns a path of a host file as text. It is UTF-8 because the file is.
fn text(path: &Path) -> &str {
    path.to_str().expect("a host file is UTF-8")
}
