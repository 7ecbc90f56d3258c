//! How many connections are allowed: what the host file says, as far as the process has descriptors for them.
//!
//! The quotas of sockets ([`sluice_io::connection_limit`]) divide this number. Were it larger than what the descriptors suffice for,
//! one socket's clients could take the last descriptors without using up the number, and close the other sockets.
//!
//! Example: 1,024 descriptors, 256 of which are kept for the daemon; one device, 100 volumes and their NBD sockets need
//! 32 + 3 + 100 x (2 + 2) = 435. 1,024 - 256 - 435 = 333 connections are allowed.

use sluice_config::{Host, Protocol};
use sluice_io::connection_limit::RESERVED_PER_SOCKET;
use sluice_io::limits::{RESERVED, descriptors_for_clients};

use super::Plane;

/// Descriptors of a daemon without devices: standard streams, runtime, signals, control socket, and helper threads.
const BASE: u64 = 32;
/// Of a device: its ring, its mailbox, its log.
const PER_DEVICE: u64 = 3;
/// Of a volume: its file, twice while its size changes.
const PER_VOLUME: u64 = 2;
/// Of a socket: itself and its folder.
const PER_SOCKET: u64 = 2;
/// Of a VMM's session, beside its connection: back-end channel, the end of its memory, and a message that is being taken.
const PER_GUEST: u64 = 8;
/// Of a queue: kick, call, error, and a call that is being replaced.
const PER_QUEUE: u64 = 4;

/// Puts the number of connections for the plane's host file into force, and warns if it is another one than the file says.
pub(super) fn limit(plane: &Plane) {
    let (wanted, before) = (plane.host.nbd.connections_max, plane.connection_limit.max());
    let sockets = (plane.listeners.len() + plane.guests.len()) as u64;
    let own = needed(&plane.host, sockets);
    let allowed = allowed(wanted, descriptors_for_clients(), own, sockets);
    plane.connection_limit.set_max(allowed);
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

/// The number of connections that may be open at once. Each socket keeps its reserved part also where descriptors do not suffice
/// for that.
fn allowed(wanted: u32, descriptors: Option<u64>, own: u64, sockets: u64) -> u32 {
    let Some(descriptors) = descriptors else { return wanted };
    let kept = sockets.saturating_mul(u64::from(RESERVED_PER_SOCKET));
    let left = descriptors.saturating_sub(own).max(kept).max(1);
    wanted.min(u32::try_from(left).unwrap_or(u32::MAX))
}

/// The descriptors that a host file with so many sockets needs beside connections.
fn needed(host: &Host, sockets: u64) -> u64 {
    let exports = || host.vms.values().flat_map(|vm| vm.volumes.values()).map(|volume| &volume.export);
    let of_guests: u64 = exports()
        .map(|export| match export.protocol {
            Protocol::Nbd => 0,
            Protocol::VhostUserBlk { queues } => PER_GUEST + PER_QUEUE * u64::from(queues),
        })
        .sum();
    let (devices, volumes) = (host.devices.len() as u64, exports().count() as u64);
    BASE + PER_DEVICE * devices + PER_VOLUME * volumes + PER_SOCKET * sockets + of_guests
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
