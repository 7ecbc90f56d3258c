//! Host files from the configurations of other systems: one file per format.
//!
//! | format | input |
//! |---|---|
//! | [`libvirt`] | a domain as `virsh dumpxml` prints it |
//! | [`proxmox`] | a VM as `qm config` prints it, or its file in `/etc/pve/qemu-server` |
//!
//! Both throttle disks with QEMU's throttling, so they share [`throttle`], which turns it into policy fields; [`bandwidth`] does so
//! with the rates of NICs. [`render`] writes the host file. What has no counterpart is a warning, never dropped silently.

use thiserror::Error;

pub(crate) mod bandwidth;
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
    /// Lines of the volume's other keys.
    pub(crate) keys: Vec<String>,
    pub(crate) throttle: Throttle,
    /// Name of the group with which it shares the throttle.
    pub(crate) group: Option<String>,
    /// Comments for the reader of the host file.
    pub(crate) notes: Vec<String>,
}

/// Returns the name as the host file accepts it: other characters become `-`.
fn valid_name(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(valid).take(60).collect();
    if name.is_empty() { "vm".to_owned() } else { name }
}

/// Returns the line of a serial number, if the host file accepts it.
fn serial_line(disk: &str, serial: &str, warnings: &mut Vec<String>) -> Option<String> {
    let is_printable = |c: char| c.is_ascii_graphic() || c == ' ';
    if (1..=20).contains(&serial.len()) && serial.chars().all(is_printable) {
        return Some(format!("serial = {}", render::quoted(serial)));
    }
    warnings.push(format!(
        "{disk}: a serial number has 1 to 20 printable ASCII characters, and '{serial}' has not; it is left out"
    ));
    None
}

/// Returns the advice for an image that is not raw.
fn convert(disk: &str, format: &str, source: &str) -> String {
    let target = source.rsplit_once('.').map_or(source, |(stem, _)| stem);
    format!(
        "{disk}: the image is {format}, and only raw images are served; with the VM off: qemu-img convert -p -f {format} -O raw \
         '{source}' '{target}.raw'"
    )
}
