//! Host files from the configurations of other systems: one file per format.
//!
//! | format | input |
//! |---|---|
//! | [`libvirt`] | a domain as `virsh dumpxml` prints it |
//! | [`proxmox`] | a VM as `qm config` prints it, or its file in `/etc/pve/qemu-server` |
//!
//! Both throttle disks with QEMU's throttling, so they share [`throttle`], which turns it into policy fields; [`bandwidth`] does so
//! with the rates of NICs. [`known`] says of each property whether it is converted. [`render`] writes the host file. What has a key
//! is written with it; what has none is a warning, never dropped silently; what would damage data is refused.

use std::collections::BTreeSet;

use sluice_config::serial::{self, SERIAL_MAX};
use sluice_sched::Bytes;
use thiserror::Error;

pub(crate) mod bandwidth;
pub(crate) mod known;
pub(crate) mod libvirt;
pub(crate) mod proxmox;
pub(crate) mod render;
pub(crate) mod throttle;

use throttle::Throttle;

/// Why a file cannot be imported. The message continues the name of the file.
#[derive(Debug, Error)]
pub(crate) enum ImportError {
    #[error("not XML: {0}; give it the output of `virsh dumpxml VM`")]
    Xml(#[from] roxmltree::Error),
    #[error("the root element is <{0}>, not <domain>; give it the output of `virsh dumpxml VM`")]
    NoDomain(String),
    #[error("line {line}: '{text}' is not KEY: VALUE; give it the output of `qm config VMID`")]
    NotProxmox { line: usize, text: String },
    #[error("{disk}: {key} is '{value}', which is not a number from 0 to 2^53; correct it there first")]
    NoNumber { disk: String, key: String, value: String },
    #[error("{disk}: {shown}: {why}; take the disk out of the file to import the others")]
    Refused { disk: String, shown: String, why: String },
    #[error("it is a template, whose disks are the base of other VMs; make a full clone of it and import that")]
    Template,
    #[error("it has no disk that can be served; add disks by hand, see docs/host-file.md")]
    NoDisks,
}

/// A VM of the other system.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) disks: Vec<Disk>,
    /// NICs with a rate.
    pub(crate) nics: Vec<bandwidth::Nic>,
    /// Weight among VMs, if stated.
    pub(crate) weight: Option<u32>,
    pub(crate) access: Access,
    /// Settings without a counterpart, each with its remedy.
    pub(crate) warnings: Vec<String>,
}

/// Access of the VM to its volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Over vhost-user-blk, with sockets for libvirt's user.
    Libvirt,
    /// Over NBD, with sockets of root.
    Nbd,
}

/// A disk of the VM.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Its name in the other system, such as `vda` or `scsi0`.
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) is_block: bool,
    pub(crate) read_only: bool,
    /// Throttles of its own and of its groups. All of them apply.
    pub(crate) limits: Vec<Limit>,
    /// Further keys of the volume, as lines of the host file.
    pub(crate) keys: Vec<String>,
    /// Number of virtqueues, if stated.
    pub(crate) queues: Option<u8>,
    /// Comments for the reader of the host file.
    pub(crate) notes: Vec<String>,
}

/// A throttle of a disk.
#[derive(Debug)]
pub(crate) struct Limit {
    /// The group that shares it.
    pub(crate) group: Option<String>,
    pub(crate) throttle: Throttle,
}

/// Returns the keys for what the guest sees of a disk, as lines of a host file: its block size in bytes and its serial number, if
/// they are stated, and whether its discards free space.
fn guest_keys(
    disk: &str,
    (block_size, serial): (Option<&str>, Option<&str>),
    unmaps: bool,
    warnings: &mut Vec<String>,
) -> Vec<String> {
    let mut keys = Vec::new();
    if let Some(stated) = block_size {
        let is_valid = |size: &u64| size.is_power_of_two() && (512..=64 << 10).contains(size);
        match stated.parse().ok().filter(is_valid) {
            Some(size) => keys.push(format!("block_size = \"{}\"", Bytes(size))),
            None => warnings.push(format!(
                "{disk}: a block size is a power of two from 512 to 65536 here, not {stated}; it is left out"
            )),
        }
    }
    if !unmaps {
        keys.push("discard = \"ignore\"".to_owned());
    }
    if let Some(serial) = serial {
        if serial::is_valid(serial) {
            keys.push(format!("serial = {}", render::quoted(serial)));
        } else {
            warnings.push(format!(
                "{disk}: a serial number has 1 to {SERIAL_MAX} printable ASCII characters, unlike '{serial}'; it is left out"
            ));
        }
    }
    keys
}

/// Leaves out serial numbers that another disk of the VM has, since the guest could not tell them apart.
fn drop_equal_serials(machine: &mut Machine) {
    let defaults: Vec<String> = machine.disks.iter().map(|disk| serial::default_of(&disk.name)).collect();
    let mut used: BTreeSet<String> = BTreeSet::new();
    for (index, disk) in machine.disks.iter_mut().enumerate() {
        let is_other = |serial: &str| {
            defaults
                .iter()
                .enumerate()
                .any(|(other, name)| other != index && serial == format!("serial = {}", render::quoted(name)))
        };
        disk.keys.retain(|key| {
            let is_kept = !key.starts_with("serial = ") || !is_other(key) && used.insert(key.clone());
            if !is_kept {
                machine.warnings.push(format!("{}: {key}: another disk of the VM has it; it is left out", disk.name));
            }
            is_kept
        });
    }
}

/// Returns the number of queues, or `None` with a warning if a host file does not allow it.
fn queues(name: &str, stated: &str, warnings: &mut Vec<String>) -> Option<u8> {
    let queues = stated.parse().ok().filter(|queues| (1..=64).contains(queues));
    if queues.is_none() {
        warnings.push(format!("{name}: queues={stated} is not a number from 1 to 64; it is left out"));
    }
    queues
}

/// Returns the MTU, or `None` with a warning if a host file does not allow it.
fn mtu(name: &str, stated: &str, warnings: &mut Vec<String>) -> Option<u16> {
    let mtu = stated.parse().ok().filter(|mtu| *mtu >= 68);
    if mtu.is_none() {
        warnings.push(format!("{name}: an MTU of {stated} is not a number from 68 to 65535; it is left out"));
    }
    mtu
}

/// Formats of images that the daemon recognises, and refuses, when it first opens them.
const RECOGNISED: [&str; 7] = ["qcow", "qcow2", "vmdk", "vdi", "vhdx", "qed", "parallels"];

/// Handles an image that is not raw: advice if the daemon recognises the format, otherwise an error.
fn not_raw(disk: &str, format: &str, source: &str, warnings: &mut Vec<String>) -> Result<String, ImportError> {
    let advice = convert(disk, format, source);
    if !RECOGNISED.contains(&format) {
        return Err(known::refused(disk, format, &format!("its guest would see and overwrite the format; {advice}")));
    }
    warnings.push(advice.clone());
    Ok(advice)
}

/// Returns the name as the host file accepts it: other characters become `-`.
fn valid_name(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(valid).take(60).collect();
    if name.is_empty() { "vm".to_owned() } else { name }
}

/// Returns the advice for an image that is not raw.
fn convert(disk: &str, format: &str, source: &str) -> String {
    let target = source.rsplit_once('.').map_or(source, |(stem, _)| stem);
    format!(
        "{disk}: the image is {format}, and only raw images are served; with the VM off: qemu-img convert -p -f {format} -O raw \
         '{source}' '{target}.raw'"
    )
}
