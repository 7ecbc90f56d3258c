//! What a host file lets the daemon reach: files, disks, programs and addresses. From it follow the drop-in of `sluice check --unit` and the
//! rules of a sealed daemon. It is read from the host file alone, without a look at the host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sluice_config::{AlertTo, Backend, Control, Host, ListenAddress, Meeting, NicAccess, Port};

/// What a host file lets the daemon reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Folders in which files are changed or made.
    pub folders: BTreeSet<PathBuf>,
    /// Images and disks of volumes, and whether they are only read.
    pub sources: BTreeMap<PathBuf, bool>,
    /// Paths of devices, some of which are patterns.
    pub disks: BTreeSet<PathBuf>,
    /// Folders with sockets of VMs.
    pub sockets: BTreeSet<PathBuf>,
    pub programs: BTreeSet<PathBuf>,
    pub webhooks: BTreeSet<String>,
    /// Where hosts meet.
    pub places: BTreeSet<Meeting>,
    /// Files of keys and certificates.
    pub keys: BTreeSet<PathBuf>,
    /// Other NBD servers.
    pub nodes: BTreeSet<String>,
    /// Pools of Ceph clusters.
    pub pools: BTreeSet<String>,
    /// Addresses at which it listens.
    pub addresses: BTreeSet<SocketAddr>,
    /// Whether TAPs are opened.
    pub taps: bool,
    /// Whether it has interfaces of the host.
    pub links: bool,
}

impl Reach {
    /// What a host file names.
    #[must_use]
    pub fn of(host: &Host) -> Reach {
        let mut reach = Reach::default();
        for volume in host.vms.values().flat_map(|vm| vm.volumes.values()) {
            reach.add_endpoint(&volume.export.endpoint);
            if let Some(source) = volume.source.file() {
                let is_read = reach.sources.entry(source.to_owned()).or_insert(true);
                *is_read &= volume.read_only;
            }
        }
        for nic in host.vms.values().flat_map(|vm| vm.nics.values()) {
            match &nic.access {
                NicAccess::VhostUser { endpoint, .. } => reach.add_endpoint(endpoint),
                NicAccess::Tap(_) => reach.taps = true,
            }
        }
        reach.taps |= host.uplinks.values().any(|uplink| !matches!(uplink.port, Port::Nic(_)));
        reach.links = !host.uplinks.is_empty();
        for device in host.devices.values() {
            device.delay.iter().filter_map(|delay| delay.log.as_ref()).for_each(|log| reach.add_folder_of(log));
            reach.disks.extend(device.paths.iter().map(|path| path.path().to_owned()));
            reach.add_backend(&device.backend);
            reach.places.extend(device.pool.iter().map(|pool| pool.meeting.clone()));
        }
        let daemon = &host.daemon;
        host.nbd.endpoints.iter().chain(&daemon.metrics).for_each(|endpoint| reach.add_endpoint(endpoint));
        for alert in &daemon.alerts {
            match &alert.to {
                AlertTo::Command(program) => drop(reach.programs.insert(program.clone())),
                AlertTo::Webhook(url) => drop(reach.webhooks.insert(url.clone())),
            }
        }
        if let Some(tls) = &host.nbd.tls {
            reach.keys.extend([&tls.certificate, &tls.key].into_iter().chain(&tls.client_ca).cloned());
        }
        reach.keys.extend(host.nbd.gateways.values().map(|gateway| gateway.key_file.clone()));
        reach.folders.extend(daemon.source_root.clone());
        if !daemon.access.attach.is_empty() {
            reach.sockets.insert(daemon.access.socket_root.clone());
        }
        if let Control::At(path) = &daemon.control {
            reach.sockets.extend(path.parent().map(Path::to_owned));
        }
        reach
    }

    /// Whether anything is reached over a network.
    #[must_use]
    pub fn has_network(&self) -> bool {
        let is_remote = |node: &String| !node.starts_with("nbd+unix:");
        let has_others = self.nodes.iter().any(is_remote)
            || !self.pools.is_empty()
            || self.places.iter().any(|place| place.file().is_none());
        self.links || !self.addresses.is_empty() || !self.webhooks.is_empty() || has_others
    }

    /// Folders in which images are.
    pub(crate) fn source_folders(&self) -> BTreeSet<PathBuf> {
        let parents = self.sources.keys().filter_map(|source| source.parent());
        parents.map(Path::to_owned).chain(self.folders.iter().cloned()).collect()
    }

    pub(crate) fn add_folder_of(&mut self, path: &Path) {
        self.folders.extend(path.parent().map(Path::to_owned));
    }

    fn add_backend(&mut self, backend: &Backend) {
        match backend {
            Backend::Nbd(node) => {
                self.nodes.insert(node.address.to_string());
                self.keys.extend(node.gateway.iter().map(|gateway| gateway.key_file.clone()));
                if let Some(tls) = &node.tls {
                    let own = tls.own.iter().flat_map(|(certificate, key)| [certificate, key]);
                    self.keys.extend(own.chain([&tls.ca]).cloned());
                }
            }
            Backend::Rbd(ceph) => drop(self.pools.insert(ceph.pool.to_string())),
            Backend::Direct | Backend::Null => {}
        }
    }

    fn add_endpoint(&mut self, endpoint: &ListenAddress) {
        match endpoint {
            ListenAddress::Unix { path, .. } => self.sockets.extend(path.parent().map(Path::to_owned)),
            ListenAddress::Tcp(address) => drop(self.addresses.insert(*address)),
        }
    }
}

/// Whether a path is a block device, or will be one.
#[must_use]
pub fn is_disk(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).map_or(path.starts_with("/dev"), |metadata| metadata.file_type().is_block_device())
}

/// Mount points of this process.
#[must_use]
pub fn mount_points() -> BTreeSet<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped).collect()
}

/// A path of the kernel's list of mounts, in which a byte that would end a word is a number of three digits.
fn unescaped(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.extend(code);
        path.extend(part.as_bytes().get(3..).unwrap_or_default());
    }
    PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(path))
}

/// The folder by which `folder` is reached, whatever is mounted there later: its parent, if it is a mount point.
#[must_use]
pub fn through_mount<'a>(folder: &'a Path, mounts: &BTreeSet<PathBuf>) -> &'a Path {
    match folder.parent() {
        // The root as a whole would be too much.
        Some(parent) if parent != Path::new("/") && mounts.contains(folder) => parent,
        _ => folder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_reached_by_its_parent() {
        let mounts: BTreeSet<PathBuf> = ["/", "/srv/vm\\0401", "/data"].map(unescaped).into();
        let folder = |path: &'static str| through_mount(Path::new(path), &mounts).to_str().unwrap();
        assert_eq!(folder("/srv/vm 1"), "/srv");
        assert_eq!(folder("/srv/vm 1/a"), "/srv/vm 1/a");
        assert_eq!(folder("/data"), "/data", "its parent is the root");
    }
}
