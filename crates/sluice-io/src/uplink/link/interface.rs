//! Properties of network interfaces, by `ioctl` and sysfs, in the network namespace of the calling thread.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use sluice_net::Mac;

use super::LinkError;

/// Maximum length of a name, without the zero at its end.
const NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// Adds an interface to a bridge.
const SIOCBRADDIF: libc::c_ulong = 0x89a2;

/// The argument of most calls about interfaces: the name, and a value of up to 24 bytes.
#[repr(C)]
pub(super) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

impl Request {
    pub(super) fn new(name: &str, value: &[u8]) -> Result<Self, LinkError> {
        if !is_name(name) {
            return Err(LinkError::Name(name.to_owned()));
        }
        let mut request = Request { name: [0; libc::IFNAMSIZ], value: [0; 24] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request.value[..value.len()].copy_from_slice(value);
        Ok(request)
    }

    /// Makes the call on a descriptor that it applies to.
    pub(super) fn call(&mut self, fd: &OwnedFd, number: libc::c_ulong) -> io::Result<()> {
        // SAFETY: each of these calls reads and writes at most the 40 bytes of the request.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, std::ptr::from_mut(self)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the name, which a call may have changed.
    pub(super) fn name(&self) -> &[u8] {
        self.name.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn number(&self) -> i32 {
        i32::from_ne_bytes(self.value[..4].try_into().expect("four bytes"))
    }
}

/// Whether an interface can have this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let sound = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':');
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(sound) && name != "." && name != ".."
}

/// A socket for calls about interfaces, which any kind takes.
fn control() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn call(name: &str, number: libc::c_ulong, value: &[u8]) -> Result<Request, LinkError> {
    let mut request = Request::new(name, value)?;
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENODEV) => LinkError::Missing(name.to_owned()),
        _ => LinkError::io(format!("Cannot use interface {name}"))(error),
    };
    let socket = control().map_err(failed)?;
    request.call(&socket, number).map_err(failed)?;
    Ok(request)
}

/// Returns the number of an interface.
pub(super) fn index(name: &str) -> Result<i32, LinkError> {
    Ok(call(name, libc::SIOCGIFINDEX as _, &[])?.number())
}

/// Sets the largest packet, in bytes without the Ethernet header.
///
/// # Errors
/// [`LinkError`].
pub fn set_mtu(name: &str, mtu: u16) -> Result<(), LinkError> {
    call(name, libc::SIOCSIFMTU as _, &i32::from(mtu).to_ne_bytes()).map(drop)
}

/// Sets the address of an interface, which must be off.
pub(super) fn set_address(name: &str, mac: Mac) -> Result<(), LinkError> {
    let kind = libc::ARPHRD_ETHER.to_ne_bytes();
    call(name, libc::SIOCSIFHWADDR as _, &[&kind[..], &mac.0].concat()).map(drop)
}

/// Returns the largest packet, in bytes without the Ethernet header.
///
/// # Errors
/// [`LinkError`].
pub fn mtu(name: &str) -> Result<u32, LinkError> {
    Ok(call(name, libc::SIOCGIFMTU as _, &[])?.number().try_into().unwrap_or(0))
}

/// Sets flags of an interface.
pub(super) fn set_flags(name: &str, flags: i32) -> Result<(), LinkError> {
    let request = call(name, libc::SIOCGIFFLAGS as _, &[])?;
    let now = i16::from_ne_bytes([request.value[0], request.value[1]]);
    call(name, libc::SIOCSIFFLAGS as _, &(now | flags as i16).to_ne_bytes()).map(drop)
}

/// Switches an interface on.
///
/// # Errors
/// [`LinkError`].
pub fn set_up(name: &str) -> Result<(), LinkError> {
    set_flags(name, libc::IFF_UP)
}

/// Whether an interface is a bridge, which an uplink can be a port of.
///
/// # Errors
/// [`LinkError::Missing`] or [`LinkError::NotABridge`].
pub fn check_bridge(name: &str) -> Result<(), LinkError> {
    mtu(name)?;
    let is_bridge = sysfs(name).join("bridge").exists();
    is_bridge.then_some(()).ok_or_else(|| LinkError::NotABridge(name.to_owned()))
}

/// Whether the host leaves an interface to the daemon.
///
/// # Errors
/// [`LinkError::InUse`] if it has an address or belongs to a bridge or bond; [`LinkError::Missing`].
pub fn check_unused(name: &str) -> Result<(), LinkError> {
    match use_by_host(name)? {
        Some(why) => Err(LinkError::InUse { name: name.to_owned(), why }),
        None => Ok(()),
    }
}

/// Makes an interface a port of a bridge.
pub(super) fn add_to_bridge(bridge: &str, port: &str) -> Result<(), LinkError> {
    check_bridge(bridge)?;
    if master(port).as_deref() == Some(bridge) {
        return Ok(());
    }
    call(bridge, SIOCBRADDIF, &index(port)?.to_ne_bytes()).map(drop)
}

/// Keeps a port of a bridge from exchanging frames with the other ports that have this set.
pub(super) fn set_isolated(port: &str, isolated: bool) -> Result<(), LinkError> {
    let (file, value) = (sysfs(port).join("brport/isolated"), if isolated { "1" } else { "0" });
    // Only root may write it.
    if fs::read_to_string(&file).is_ok_and(|now| now.trim() == value) {
        return Ok(());
    }
    fs::write(&file, value).map_err(LinkError::io(format!("Cannot set {}", file.display())))
}

/// Returns the bridge or bond that an interface belongs to.
#[must_use]
pub fn master(name: &str) -> Option<String> {
    let target = fs::read_link(sysfs(name).join("master")).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Whether an interface is switched on and has a carrier: a cable to something, or whatever stands for one.
#[must_use]
pub fn has_carrier(name: &str) -> bool {
    // The file of an interface that is off cannot be read.
    fs::read_to_string(sysfs(name).join("carrier")).is_ok_and(|carrier| carrier.trim() == "1")
}

fn sysfs(name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(name)
}

/// Returns why the host uses an interface itself; `None` if it does not.
fn use_by_host(name: &str) -> Result<Option<String>, LinkError> {
    index(name)?;
    if let Some(master) = master(name) {
        return Ok(Some(format!("it belongs to {master}")));
    }
    let addresses = addresses(name).map_err(LinkError::io(format!("Cannot read the addresses of {name}")))?;
    Ok((!addresses.is_empty()).then(|| format!("it has the address {}", addresses.join(", "))))
}

/// Returns the IP addresses of an interface, without link-local ones of IPv6, which every interface gets by itself.
fn addresses(name: &str) -> io::Result<Vec<String>> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    let mut list = std::ptr::null_mut();
    // SAFETY: the call stores a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: the entries and what they point to are valid until the list is freed; the family of an address tells its type.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: as above.
        let (own, address) = unsafe { (std::ffi::CStr::from_ptr(entry.ifa_name), entry.ifa_addr.as_ref()) };
        let Some(address) = address.filter(|_| own.to_bytes() == name.as_bytes()) else { continue };
        match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: as above.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                found.push(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).to_string());
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
                if !address.is_unicast_link_local() {
                    found.push(address.to_string());
                }
            }
            _ => {}
        }
    }
    // SAFETY: the list comes from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Keeps the host's own network stack off an interface: no IPv6, no answers to ARP.
pub(super) fn silence_host(name: &str) -> Result<(), LinkError> {
    let file = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    // A kernel without IPv6 has no such file.
    if Path::new(&file).exists() {
        fs::write(&file, "1").map_err(LinkError::io(format!("Cannot set {file}")))?;
    }
    set_flags(name, libc::IFF_NOARP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_would_cut_or_read_as_a_path_are_refused() {
        for good in ["eth0", "tap-db1.0", "a", "fifteen-letters"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "sixteen-letters.", "a/b", "a b", "..", "a:1", "\u{e4}", "a\0b"] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(matches!(index("a/b"), Err(LinkError::Name(_))));
        assert!(matches!(index("no-such-if"), Err(LinkError::Missing(_))));
        assert!(matches!(add_to_bridge("lo", "lo"), Err(LinkError::NotABridge(_))));
        assert!(matches!(add_to_bridge("no-such-if", "lo"), Err(LinkError::Missing(_))));
    }

    #[test]
    fn an_interface_with_an_address_is_used_by_the_host() {
        // Every machine has it, and its address unless it is off.
        let used = use_by_host("lo").unwrap();
        assert!(used.is_none_or(|why| why.contains("127.0.0.1") || why.contains("::1")));
    }
}
