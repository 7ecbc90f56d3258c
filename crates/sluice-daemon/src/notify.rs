//! Messages to the service manager, by a socket that is made before the daemon seals itself: a sealed daemon makes and connects none.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};
use sd_notify::NotifyState;

static SOCKET: OnceLock<Option<(UnixDatagram, SocketAddrUnix)>> = OnceLock::new();

/// Sends a message to the service manager, if there is one, with descriptors. The first call makes the socket.
///
/// # Errors
/// The message cannot be sent.
pub fn notify(states: &[NotifyState<'_>], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let Some((socket, manager)) = SOCKET.get_or_init(open) else { return Ok(()) };
    let text = states.iter().fold(String::new(), |text, state| format!("{text}{state}\n"));
    if text.is_empty() {
        return Ok(());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let parts = [IoSlice::new(text.as_bytes())];
    sendmsg_addr(socket.as_fd(), manager, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn open() -> Option<(UnixDatagram, SocketAddrUnix)> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name),
        path => SocketAddrUnix::new(path),
    };
    Some((UnixDatagram::unbound().ok()?, address.ok()?))
}
