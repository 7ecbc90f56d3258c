//! A packet socket on an interface of the host that the host itself does not use.
//!
//! The kernel takes the VLAN tag out of received frames and tells it apart; it is put back here, so that a NIC gets the
//! frames that were on the wire.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::iovec;
use sluice_net::drop::Drop as Reason;
use sluice_net::header::OffloadHeader;

use super::{Access, Link, LinkError, Read, Received, interface};

/// Length of the header before each frame of a packet socket.
const SHORT_HEADER_LEN: usize = 10;
/// Bytes of two addresses, after which a VLAN tag stands.
const TAG_AT: usize = 12;
/// Length of a VLAN tag.
const TAG_LEN: usize = 4;
/// Bytes that the kernel keeps of frames that the uplink's thread has not read yet.
const RECEIVE_BUFFER: i32 = 8 << 20;

const PACKET_AUXDATA: i32 = 8;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AuxData {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// Opens a packet socket on an interface, switches the interface on, and keeps the host's network stack off it.
///
/// # Errors
/// [`LinkError::InUse`] if the interface has an address or belongs to a bridge or bond; other [`LinkError`]s.
pub fn open(name: &str) -> Result<Link, LinkError> {
    interface::check_unused(name)?;
    let index = interface::index(name)?;
    interface::silence_host(name)?;
    interface::set_up(name)?;
    open_at(index)
        .map(|fd| Link { fd, access: Access::PacketSocket(index), name: name.to_owned() })
        .map_err(LinkError::io(format!("Cannot open a packet socket on {name}")))
}

fn open_at(index: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // Bound to no protocol first, so that no frame of another interface arrives before it is bound to this one.
    // SAFETY: the call takes numbers; the descriptor that it returns has no other owner.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_PACKET, kind, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    set(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)?;
    set(&fd, libc::SOL_PACKET, PACKET_AUXDATA, &1i32)?;
    set(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
    // More than the host allows others, if the daemon may.
    if set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER).is_err() {
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER)?;
    }
    // SAFETY: all-zero bytes are a valid value of these structures of numbers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    // SAFETY: the call reads the structure of the stated length.
    let bound = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let mut membership: libc::packet_mreq = unsafe { zeroed() };
    membership.mr_ifindex = index;
    membership.mr_type = libc::PACKET_MR_PROMISC as u16;
    set(&fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
    Ok(fd)
}

/// Whether a packet socket still has its interface. It loses one that is removed or moved to another namespace.
pub(super) fn is_bound_to(fd: &OwnedFd, index: i32) -> bool {
    // SAFETY: all-zero bytes are a valid value of this structure of numbers.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the call writes at most the stated length to the structure.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut length) };
    result < 0 || address.sll_ifindex == index
}

fn set<T>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the call reads `length` bytes from the address.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Room for one control message with the auxiliary data, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 64]);

pub(super) fn receive(fd: &OwnedFd, room: &mut [u8]) -> io::Result<Read> {
    let mut header = [0; SHORT_HEADER_LEN];
    // Room for a tag is left before the frame. If there is one, only the addresses are moved.
    let frame = &mut room[TAG_LEN..];
    let mut control = Control([0; 64]);
    let mut parts = [
        iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
        iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
    ];
    // SAFETY: all-zero bytes are a valid value of this structure of numbers and pointers.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the message points to memory on the stack and in `room`, which outlives the call.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let length = (length as usize).saturating_sub(SHORT_HEADER_LEN);
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Ok(Read::Dropped(Reason::TooLong));
    }
    if length <= TAG_AT {
        return Ok(Read::Dropped(Reason::Short));
    }
    let mut whole = [0; sluice_net::header::HEADER_LEN];
    whole[..SHORT_HEADER_LEN].copy_from_slice(&header);
    let header = OffloadHeader::parse(&whole);
    let Some((protocol, tag)) = tag_of(&message) else {
        return Ok(Read::Frame(Received { header, start: TAG_LEN, length }));
    };
    room.copy_within(TAG_LEN..TAG_LEN + TAG_AT, 0);
    room[TAG_AT..TAG_AT + 2].copy_from_slice(&protocol.to_be_bytes());
    room[TAG_AT + 2..TAG_AT + TAG_LEN].copy_from_slice(&tag.to_be_bytes());
    Ok(Read::Frame(Received { header: behind_tag(header), start: 0, length: length + TAG_LEN }))
}

/// Returns the header of a frame before whose protocol a tag was put: what it states is that much further on.
fn behind_tag(header: OffloadHeader) -> OffloadHeader {
    let tag = TAG_LEN as u16;
    let moved = |place: u16| if place == 0 { 0 } else { place.saturating_add(tag) };
    OffloadHeader { header_len: moved(header.header_len), checksum_start: moved(header.checksum_start), ..header }
}

/// Returns protocol and contents of the VLAN tag that the kernel has taken out of a frame.
fn tag_of(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled the control buffer, whose length the message states.
    let data = unsafe {
        let first = libc::CMSG_FIRSTHDR(message).as_ref()?;
        if (first.cmsg_level, first.cmsg_type) != (libc::SOL_PACKET, PACKET_AUXDATA) {
            return None;
        }
        libc::CMSG_DATA(first).cast::<AuxData>().read_unaligned()
    };
    if data.status & TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let protocol = if data.status & TP_STATUS_VLAN_TPID_VALID != 0 { data.vlan_tpid } else { 0x8100 };
    Some((protocol, data.vlan_tci))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::uplink::link::FRAME_MAX;

    /// Any socket of datagrams shows what becomes of a frame that is longer than the room for it.
    #[test]
    fn a_frame_that_the_kernel_cut_was_delivered_as_a_shorter_one() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let (near, mut room) = (OwnedFd::from(near), vec![0; FRAME_MAX]);
        for (length, wanted) in
            [(1514, None), (FRAME_MAX + 1, Some(Reason::TooLong)), (8, Some(Reason::Short)), (60, None)]
        {
            far.send(&vec![0; SHORT_HEADER_LEN + length]).unwrap();
            match (receive(&near, &mut room).unwrap(), wanted) {
                (Read::Frame(frame), None) => assert_eq!((frame.start, frame.length), (TAG_LEN, length)),
                (Read::Dropped(reason), Some(wanted)) => assert_eq!(reason, wanted, "{length}"),
                (read, wanted) => panic!("{length}: {read:?} instead of {wanted:?}"),
            }
        }
    }
}
