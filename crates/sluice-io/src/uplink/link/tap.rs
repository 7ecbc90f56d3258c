//! A TAP: an interface whose other end the daemon reads and writes.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use sluice_net::Mac;
use sluice_net::drop::Drop as Reason;
use sluice_net::header::{HEADER_LEN, OffloadHeader};

use super::interface::{self, Request};
use super::{Access, Link, LinkError, Read, Received};

const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUNGETDEVNETNS: libc::c_ulong = 0x54e3;

/// Offloads that the host's side may leave to the daemon: partial checksums, and large segments of TCP over IPv4 and IPv6.
const OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04;

/// Opens a TAP, which is created if it does not exist, and switches it on. `mac` becomes the address of the interface.
///
/// # Errors
/// [`LinkError`].
pub fn open(name: &str, mac: Option<Mac>, mtu: Option<u16>, offloads: bool) -> Result<Link, LinkError> {
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
    let mut request = Request::new(name, &flags.to_ne_bytes())?;
    let what = || format!("Cannot open TAP {name}");
    let file = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let fd = file.map_err(|error| LinkError::io("Cannot open /dev/net/tun")(error.into()))?;
    request.call(&fd, TUNSETIFF).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => LinkError::Busy(name.to_owned()),
        _ => LinkError::io(what())(error),
    })?;
    let link = adopt(fd, name, offloads)?;
    if let Some(mac) = mac {
        interface::set_address(name, mac)?;
    }
    if let Some(mtu) = mtu {
        interface::set_mtu(name, mtu)?;
    }
    interface::set_up(name)?;
    Ok(link)
}

/// Continues with a TAP of a former process of the daemon. It may have another name by now, in another namespace: then its MTU stays.
///
/// # Errors
/// [`LinkError`].
pub fn resume(fd: OwnedFd, name: &str, mac: Option<Mac>, mtu: Option<u16>, offloads: bool) -> Result<Link, LinkError> {
    configure(&fd, name, mac, mtu)?;
    adopt(fd, name, offloads)
}

/// Sets address and MTU of an open TAP. One that was renamed or moved, as happens to those of containers, keeps its MTU: that is set by the
/// name, which is that of another interface by now, or of none.
pub(super) fn configure(fd: &OwnedFd, name: &str, mac: Option<Mac>, mtu: Option<u16>) -> Result<(), LinkError> {
    let what = || format!("Cannot set up TAP {name}");
    // The kernel writes name and flags of the TAP, and refuses any other file.
    let mut request = Request::new(name, &[])?;
    request.call(fd, TUNGETIFF).map_err(LinkError::io(what()))?;
    let is_renamed = request.name() != name.as_bytes();
    if let Some(mac) = mac {
        let kind = libc::ARPHRD_ETHER.to_ne_bytes();
        let mut request = Request::new(name, &[&kind[..], &mac.0].concat())?;
        request.call(fd, libc::SIOCSIFHWADDR as _).map_err(LinkError::io(what()))?;
    }
    match mtu.filter(|_| !is_renamed && is_here(fd) && interface::mtu(name).is_ok()) {
        Some(mtu) => interface::set_mtu(name, mtu),
        None => Ok(()),
    }
}

/// Whether a TAP is in the network namespace of this thread. A kernel before Linux 5.2 does not say.
fn is_here(fd: &OwnedFd) -> bool {
    // SAFETY: the call takes no argument; the descriptor that it returns has no other owner.
    let namespace = unsafe {
        match libc::ioctl(fd.as_raw_fd(), TUNGETDEVNETNS as _) {
            namespace if namespace < 0 => return true,
            namespace => OwnedFd::from_raw_fd(namespace),
        }
    };
    let number = |of: rustix::io::Result<rustix::fs::Stat>| of.map(|stat| (stat.st_dev, stat.st_ino));
    number(rustix::fs::fstat(&namespace)) == number(rustix::fs::stat("/proc/thread-self/ns/net"))
}

/// Uses a TAP that another process has opened and handed over. It keeps its name and its namespace.
///
/// # Errors
/// [`LinkError`].
pub fn adopt(fd: OwnedFd, name: &str, offloads: bool) -> Result<Link, LinkError> {
    let length = HEADER_LEN as i32;
    // SAFETY: the call reads four bytes from the address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETVNETHDRSZ as _, &raw const length) };
    if result < 0 {
        return Err(LinkError::io(format!("Cannot set the header of TAP {name}"))(io::Error::last_os_error()));
    }
    set_offloads(&fd, name, offloads)?;
    Ok(Link { fd, access: Access::Tap, name: name.to_owned() })
}

/// Sets whether the host's side of a TAP may leave checksums and the cutting of segments to the daemon.
pub(super) fn set_offloads(fd: &OwnedFd, name: &str, offloads: bool) -> Result<(), LinkError> {
    // SAFETY: the call takes a number.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD as _, if offloads { OFFLOADS } else { 0 }) };
    let failed = || LinkError::io(format!("Cannot set the offloads of TAP {name}"))(io::Error::last_os_error());
    if result < 0 { Err(failed()) } else { Ok(()) }
}

/// Uses any non-blocking descriptor that passes one frame with its header per read and write, as a socket of datagrams does: an interface
/// for tests and fuzz targets, which needs no rights.
#[must_use]
pub fn of_socket(fd: OwnedFd) -> Link {
    Link { fd, access: Access::Tap, name: "test".to_owned() }
}

/// Creates a TAP as a port of a bridge.
///
/// # Errors
/// [`LinkError`].
pub fn open_bridge_port(bridge: &str, name: &str, isolated: bool) -> Result<Link, LinkError> {
    let mtu = interface::mtu(bridge)?;
    let link = open(name, None, u16::try_from(mtu).ok(), true)?;
    interface::add_to_bridge(bridge, name)?;
    interface::set_isolated(name, isolated)?;
    Ok(link)
}

/// Makes a TAP a port of its bridge again, after the bridge was removed or the port was taken out.
///
/// # Errors
/// [`LinkError`].
pub fn rejoin(bridge: &str, port: &str, isolated: bool) -> Result<(), LinkError> {
    interface::add_to_bridge(bridge, port)?;
    interface::set_isolated(port, isolated)
}

/// Whether a TAP was deleted while its descriptor is open.
pub(super) fn was_deleted(fd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// As [`resume`], for the port of a bridge.
///
/// # Errors
/// [`LinkError`].
pub fn resume_bridge_port(fd: OwnedFd, bridge: &str, name: &str, isolated: bool) -> Result<Link, LinkError> {
    let mtu = interface::mtu(bridge)?;
    let link = resume(fd, name, None, u16::try_from(mtu).ok(), true)?;
    interface::add_to_bridge(bridge, name)?;
    interface::set_isolated(name, isolated)?;
    Ok(link)
}

pub(super) fn receive(fd: &OwnedFd, room: &mut [u8]) -> io::Result<Read> {
    let mut header = [0; HEADER_LEN];
    let longest = room.len();
    let length = rustix::io::readv(fd, &mut [IoSliceMut::new(&mut header), IoSliceMut::new(room)])?;
    if length == 0 {
        return Ok(Read::Nothing);
    }
    Ok(match length.saturating_sub(HEADER_LEN) {
        0 => Read::Dropped(Reason::Short),
        // The kernel cuts a longer frame.
        length if length >= longest => Read::Dropped(Reason::TooLong),
        length => Read::Frame(Received { header: OffloadHeader::parse(&header), start: 0, length }),
    })
}

/// Whether the device that makes TAPs can be opened. It can without the right to make one: see [`super::lacking`].
///
/// # Errors
/// The error of opening the device.
pub fn is_available() -> io::Result<()> {
    File::options().read(true).write(true).open("/dev/net/tun").map(drop)
}
