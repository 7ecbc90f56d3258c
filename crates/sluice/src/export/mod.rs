//! VMM configuration for the volumes and NICs of a VM: one file per format.
//!
//! | format | VMM | reaches volumes over | reaches NICs over |
//! |---|---|---|---|
//! | [`qemu`] | QEMU | vhost-user-blk, NBD | vhost-user-net, TAP |
//! | [`libvirt`] | QEMU under libvirt | vhost-user-blk, NBD | vhost-user-net, TAP |
//! | [`qmp`] | a running QEMU | vhost-user-blk, NBD | vhost-user-net, TAP |
//! | [`cloud_hypervisor`] | Cloud Hypervisor | vhost-user-blk | vhost-user-net, TAP |
//! | [`firecracker`] | Firecracker | vhost-user-blk | TAP |
//! | [`nbd_uri`] | any client of NBD | NBD | |
//!
//! A volume, NIC or path that the VMM cannot use is an error, so the output works without changes.

use std::path::Path;

use serde_json::Value;
use sluice_config::changes::Target;
use sluice_config::{Host, ListenAddress, Nic, NicAccess, Protocol, Vm, Volume};
use sluice_net::Mac;
use sluice_sched::Bytes;
use thiserror::Error;

pub(crate) mod cloud_hypervisor;
pub(crate) mod firecracker;
pub(crate) mod libvirt;
pub(crate) mod nbd_uri;
pub(crate) mod qemu;
pub(crate) mod qmp;

/// Physical block size that a disk with a stated logical block size has at least, in bytes, as the daemon states it.
const PHYSICAL_BLOCK_MIN: u32 = 4096;

/// A volume as its VM's VMM sees it.
pub(crate) struct Disk<'a> {
    pub(crate) volume: &'a str,
    /// Position among the volumes of its VM, which determines its names in the VMM.
    pub(crate) number: usize,
    /// `VM/VOLUME`, for messages.
    pub(crate) title: String,
    pub(crate) reach: Reach<'a>,
    /// ListenAddress and export name, if a shared socket also serves the volume over NBD.
    pub(crate) shared: Option<(&'a ListenAddress, &'a str)>,
    pub(crate) read_only: bool,
    pub(crate) unmaps: bool,
    /// Over vhost-user the daemon states it itself.
    pub(crate) serial: &'a str,
    /// Whether TCP addresses need TLS.
    pub(crate) tls: bool,
    /// Block size in bytes; `None`: it is not stated and that of QEMU. Over NBD, QEMU does not take it from the daemon.
    pub(crate) block_size: Option<u32>,
}

/// Its address for the VMM.
#[derive(Clone, Copy)]
pub(crate) enum Reach<'a> {
    VhostUser { socket: &'a str, queues: u16 },
    Nbd { endpoint: &'a ListenAddress, name: &'a str },
}

/// A NIC as its VM's VMM sees it.
pub(crate) struct Card<'a> {
    /// `VM/nic/NIC`
    pub(crate) title: String,
    /// Position among the NICs of its VM, which determines its names in the VMM.
    pub(crate) number: usize,
    pub(crate) link: CardLink<'a>,
    pub(crate) mac: Mac,
    /// Largest packet, if it is not the usual one of 1500 bytes.
    pub(crate) mtu: Option<u16>,
}

/// Its other end for the VMM.
#[derive(Clone, Copy)]
pub(crate) enum CardLink<'a> {
    VhostUser {
        socket: &'a str,
        /// Maximum number of pairs of queues.
        queues: u16,
    },
    Tap(&'a str),
}

/// What a VMM gets.
pub(crate) struct Parts<'a> {
    pub(crate) disks: Vec<Disk<'a>>,
    pub(crate) cards: Vec<Card<'a>>,
}

/// Properties of the VM that are not in the host file.
pub(crate) struct Machine<'a> {
    /// Size of its memory, which a vhost-user volume shares with the daemon.
    pub(crate) memory: Option<Bytes>,
    /// Number of vCPUs. A disk gets one queue for each, up to the number of queues of its volume.
    pub(crate) processors: Option<u16>,
    /// The boot volume.
    pub(crate) root: Option<&'a str>,
    /// Major and minor version of libvirt.
    pub(crate) libvirt: Option<(u32, u32)>,
    /// Bus of the VM on which a disk is plugged in.
    pub(crate) bus: Option<&'a str>,
}

/// Output of a format: text for people and shells, and JSON fields.
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) fields: Vec<(&'static str, Value)>,
}

/// Why a VM's volumes or NICs cannot be exported to a VMM.
#[derive(Debug, Error)]
pub(crate) enum ExportError {
    #[error("VM {vm} has neither volumes nor NICs; add [vm.{vm}.volume.NAME] or [vm.{vm}.nic.NAME] to the host file")]
    Nothing { vm: String },
    #[error("Nothing to export: this format is only for volumes, and none is selected; choose another format")]
    NoVolumes,
    #[error(
        "NIC {title} is served over vhost-user-net, and {vmm} uses only TAPs; write tap = \"NAME\" instead of socket for it"
    )]
    NoVhostUserNet { vmm: &'static str, title: String },
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
        "A vhost-user volume or NIC shares the memory of its VM, and {vmm} needs the size of that memory; add --memory \
         with the VM's memory size, for example --memory 4GiB"
    )]
    MemoryNeeded { vmm: &'static str },
    #[error("A memory of {memory} is not a whole number of MiB; write for example --memory 4GiB")]
    MemoryNotWhole { memory: Bytes },
    #[error("{vmm} cannot use '{path}', because it separates options with '{character}'; use another path or name")]
    Unquotable { vmm: &'static str, path: String, character: char },
}

/// Returns the volumes and NICs of a VM in the order of their names.
pub(crate) fn parts<'a>(host: &'a Host, vm: &'a Vm) -> Result<Parts<'a>, ExportError> {
    if vm.volumes.is_empty() && vm.nics.is_empty() {
        return Err(ExportError::Nothing { vm: vm.name.clone() });
    }
    let disks = vm.volumes.values().enumerate().map(|(number, volume)| Disk::new(host, vm, volume, number));
    let cards = vm.nics.values().enumerate().map(|(number, nic)| Card::new(vm, nic, number));
    Ok(Parts { disks: disks.collect(), cards: cards.collect() })
}

impl<'a> Card<'a> {
    fn new(vm: &Vm, nic: &'a Nic, number: usize) -> Self {
        let link = match &nic.access {
            NicAccess::VhostUser { endpoint, queues } => {
                let socket = endpoint.socket().expect("vhost-user has a Unix socket");
                CardLink::VhostUser { socket: text(socket), queues: *queues }
            }
            NicAccess::Tap(name) => CardLink::Tap(name),
        };
        let mtu = (nic.mtu != 1500).then_some(nic.mtu);
        Card { title: Target::nic(&vm.name, &nic.name).to_string(), number, link, mac: nic.mac, mtu }
    }

    /// Its name in the VMM.
    fn id(&self) -> String {
        format!("sluice-nic{}", self.number)
    }
}

impl Parts<'_> {
    /// Whether one of them shares the VM's memory.
    fn share_memory(&self) -> bool {
        let disks = self.disks.iter().any(|disk| matches!(disk.reach, Reach::VhostUser { .. }));
        disks || self.cards.iter().any(|card| matches!(card.link, CardLink::VhostUser { .. }))
    }
}

impl<'a> Disk<'a> {
    fn new(host: &'a Host, vm: &'a Vm, volume: &'a Volume, number: usize) -> Self {
        let export = &volume.export;
        let reach = match (export.protocol, &export.endpoint) {
            (Protocol::VhostUserBlk { queues }, ListenAddress::Unix { path, .. }) => {
                Reach::VhostUser { socket: text(path), queues }
            }
            (_, endpoint) => Reach::Nbd { endpoint, name: &export.name },
        };
        let title = format!("{}/{}", vm.name, volume.name);
        let shared = host.nbd.endpoints.first().map(|endpoint| (endpoint, export.name.as_str()));
        let Volume { name, read_only, unmaps, serial, block_size, .. } = volume;
        let (read_only, unmaps, block_size) = (*read_only, *unmaps, *block_size);
        let tls = host.nbd.tls.is_some();
        Disk { volume: name, number, title, reach, shared, read_only, unmaps, serial, tls, block_size }
    }

    /// Whether a client needs TLS at one of its addresses.
    fn needs_tls(&self, endpoint: &ListenAddress) -> bool {
        self.tls && matches!(endpoint, ListenAddress::Tcp(_))
    }

    /// Returns the value of QEMU's option `discard`.
    fn discard(&self) -> &'static str {
        if self.unmaps { "unmap" } else { "ignore" }
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

/// Returns a path of a host file as text. It is UTF-8 because the file is.
fn text(path: &Path) -> &str {
    path.to_str().expect("a host file is UTF-8")
}
