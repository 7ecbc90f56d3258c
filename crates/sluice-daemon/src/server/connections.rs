//! The maximum number of connections: that of the host file, if the process has enough file descriptors.
//!
//! The quotas of sockets ([`sluice_io::shared_limit`]) divide this number. If it were larger than the number of
//! available descriptors, clients of one socket could use up the descriptors without reaching the number, and so
//! block the other sockets.
//!
//! Example: there are 1,024 descriptors, of which 256 are reserved for the daemon. One device and 100 volumes with an
//! NBD socket each need 32 + 3 + 100 x (2 + 2) = 435. So 1,024 - 256 - 435 = 333 connections are allowed.

use std::collections::BTreeSet;

use sluice_config::{Host, NicAccess, Protocol, VolumeSource};
use sluice_io::limits::{RESERVED, descriptors_for_clients};
use sluice_io::shared_limit::CONNECTIONS_PER_SOCKET;

use super::Server;
use super::objects::{name_of, nic_socket, nics};

/// Descriptors of a daemon without devices: standard streams, runtime, signals, control socket, and helper threads.
const BASE: u64 = 32;
/// Descriptors of a device: its ring, its mailbox, its log.
const PER_DEVICE: u64 = 3;
/// Descriptors of a volume: its file, twice while its size changes.
const PER_VOLUME: u64 = 2;
/// Further descriptors of an image: those of its VM's connection to the cluster, with a few OSDs.
const PER_IMAGE: u64 = 32;
/// Descriptors of a connection with TLS beyond those of another one: the two ends between it and the data path.
const PER_TLS: u64 = 2;
/// Descriptors of a socket: the socket and its folder.
const PER_SOCKET: u64 = 2;
/// Descriptors of a VMM's session in addition to its connection: back-end channel, memory guard, and a message that
/// is being received.
const PER_GUEST: u64 = 8;
/// Descriptors of a queue: kick, call, error, and a call that is being replaced.
const PER_QUEUE: u64 = 4;

/// Sets the maximum number of connections for the server's host file, and warns if it differs from the file.
pub(super) fn limit(server: &Server) {
    let (wanted, before) = (server.host.nbd.connections_max, server.connection_limit.max());
    let sockets = server.sockets.len() as u64;
    let own = needed(&server.host, sockets);
    let allowed = allowed(wanted, descriptors_for_clients(), own, sockets);
    server.connection_limit.set_max(allowed);
    if allowed < wanted && allowed != before {
        let descriptors = u64::from(wanted) + own + RESERVED;
        tracing::warn!(
            allowed,
            wanted,
            "Fewer connections are allowed than nbd.connections_max, because the limit of file descriptors is too low: raise \
             LimitNOFILE to {descriptors}, or lower nbd.connections_max"
        );
    }
}

/// Returns why a daemon with this host file would allow fewer connections than it states, if it would.
pub fn shortage(host: &Host) -> Option<String> {
    let endpoints = host.vms.values().flat_map(|vm| vm.volumes.values()).map(|volume| &volume.export.endpoint);
    let of_nics = nics(host).filter_map(|(_, nic)| nic_socket(nic));
    let sockets: BTreeSet<String> = endpoints.chain(of_nics).chain(&host.nbd.endpoints).map(name_of).collect();
    let (wanted, sockets) = (host.nbd.connections_max, sockets.len() as u64);
    let own = needed(host, sockets);
    let allowed = allowed(wanted, descriptors_for_clients(), own, sockets);
    let descriptors = u64::from(wanted) + own + RESERVED;
    (allowed < wanted).then(|| {
        format!(
            "nbd.connections_max is {wanted}, but only {allowed} connections would be allowed, because the limit \
             of file descriptors is too low: raise it to {descriptors}, or lower nbd.connections_max"
        )
    })
}

/// Returns the maximum number of open connections. Each socket keeps its reserved connections even if there are too
/// few descriptors.
fn allowed(wanted: u32, descriptors: Option<u64>, own: u64, sockets: u64) -> u32 {
    let Some(descriptors) = descriptors else { return wanted };
    let kept = sockets.saturating_mul(u64::from(CONNECTIONS_PER_SOCKET));
    let left = descriptors.saturating_sub(own).max(kept).max(1);
    wanted.min(u32::try_from(left).unwrap_or(u32::MAX))
}

/// Returns the number of descriptors that a host file with this number of sockets needs, apart from connections.
fn needed(host: &Host, sockets: u64) -> u64 {
    let exports = || host.vms.values().flat_map(|vm| vm.volumes.values()).map(|volume| &volume.export);
    let of_guests: u64 = exports()
        .map(|export| match export.protocol {
            Protocol::Nbd => 0,
            Protocol::VhostUserBlk { queues } => PER_GUEST + PER_QUEUE * u64::from(queues),
        })
        .sum();
    let of_nics: u64 = nics(host)
        .map(|(_, nic)| match nic.access {
            NicAccess::VhostUser { queues, .. } => PER_GUEST + 2 * PER_QUEUE * u64::from(queues),
            NicAccess::Tap(_) => 1,
        })
        .sum();
    let (devices, volumes) = ((host.devices.len() + host.uplinks.len()) as u64, exports().count() as u64);
    let of_tls = host.nbd.tls.as_ref().map_or(0, |_| PER_TLS * u64::from(host.nbd.connections_max));
    let images = host.vms.values().flat_map(|vm| vm.volumes.values());
    let images = images.filter(|volume| matches!(volume.source, VolumeSource::Rbd(_))).count() as u64;
    let of_sources = PER_VOLUME * volumes + PER_IMAGE * images;
    BASE + PER_DEVICE * devices + of_sources + PER_SOCKET * sockets + of_guests + of_nics + of_tls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_allowed_as_far_as_descriptors_suffice() {
        let allowed_of = |wanted, descriptors| allowed(wanted, descriptors, 435, 100);
        assert_eq!(allowed_of(1024, None), 1024);
        assert_eq!(allowed_of(1024, Some(65_536 - 256)), 1024);
        assert_eq!(allowed_of(1024, Some(1024 - 256)), 333, "the example of above");
        assert_eq!(allowed_of(1024, Some(64)), 200, "two for each socket");
        assert_eq!(allowed_of(7, Some(64)), 7);
        assert_eq!(allowed(1024, Some(1), 32, 0), 1);
    }

    #[test]
    fn the_needs_of_a_host_file_are_counted() {
        let socket = |name: &str, kind: &str| format!("export = {{ {kind}socket = \"/run/{name}.sock\" }}");
        let volume =
            |vm: &str, export: &str| format!("[vm.{vm}.volume.v]\ndevice = \"null\"\nsize = \"1MiB\"\n{export}\n");
        let guest = socket("b", "type = \"vhost-user-blk\", queues = 4, ");
        let text =
            "[device.null]\nbackend = \"null\"\n".to_owned() + &volume("a", &socket("a", "")) + &volume("b", &guest);
        let host = sluice_config::parse("a test's host file", &text).unwrap_or_else(|found| panic!("{found}"));
        assert_eq!(needed(&host, 2), 32 + 3 + 2 * 2 + 2 * 2 + 8 + 4 * 4);
    }
}
