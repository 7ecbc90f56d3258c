//! Frames as they arrive in a namespace.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};

use super::Namespace;

/// Ethernet type of ARP.
pub const ARP: u16 = 0x0806;
/// Ethernet type of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethernet type of IPv6.
pub const IPV6: u16 = 0x86dd;

/// Bytes that the kernel keeps of frames that were not read yet.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Receives every frame of one Ethernet type that arrives at any interface of a namespace. Frames that the namespace sends are not
/// among them.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Starts to receive.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn start(at: &Namespace, ether_type: u16) -> io::Result<Self> {
        let protocol = NonZeroU32::new(u32::from(ether_type.to_be())).map(Protocol::from_raw);
        let open = || socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol);
        let socket = at.enter(open)??;
        sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)?;
        Ok(Listener { socket })
    }

    /// Returns the frames that have arrived since the last call, as far as `wanted` is true for them.
    pub fn arrived(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let mut room = vec![0; 1 << 16];
        let next =
            || recv(&self.socket, &mut room[..], RecvFlags::DONTWAIT).ok().map(|(_, length)| room[..length].to_vec());
        std::iter::from_fn(next).filter(|frame| wanted(frame)).collect()
    }
}

/// Whether a frame is an ARP reply of the station with this IPv4 address.
#[must_use]
pub fn is_arp_reply(frame: &[u8], address: [u8; 4]) -> bool {
    frame.len() >= 32 && frame[20..22] == [0, 2] && frame[28..32] == address
}
