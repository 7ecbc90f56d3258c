//! Users and groups: their names on this host, and the groups of a client.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::outside;

/// Length of the buffer for one entry; longer ones are not found.
const ENTRY_LEN: usize = 64 << 10;

/// Returns the number of a user, given by name or number.
#[must_use]
pub fn user(name: &str) -> Option<u32> {
    let number = name.parse().ok();
    number.or_else(|| {
        if let Some(outside) = outside::get() {
            return outside.user(name);
        }
        let name = CString::new(name).ok()?;
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut memory = vec![0 as c_char; ENTRY_LEN];
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and the length is that of the memory.
        let code = unsafe {
            libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), memory.as_mut_ptr(), memory.len(), &raw mut found)
        };
        // SAFETY: a found entry is `entry`, which the call has filled.
        (code == 0 && !found.is_null()).then(|| unsafe { (*found).pw_uid })
    })
}

/// Returns the name of a user.
#[must_use]
pub fn name_of(uid: u32) -> Option<String> {
    if let Some(outside) = outside::get() {
        return outside.name_of(uid);
    }
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut memory = vec![0 as c_char; ENTRY_LEN];
    let mut found = ptr::null_mut();
    // SAFETY: all pointers are valid for the call, and the length is that of the memory.
    let code = unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), memory.as_mut_ptr(), memory.len(), &raw mut found) };
    if code != 0 || found.is_null() {
        return None;
    }
    // SAFETY: a found entry is `entry`, which the call has filled, with a name in `memory` that ends with a zero.
    let name = unsafe { CStr::from_ptr((*found).pw_name) };
    name.to_str().ok().map(str::to_owned)
}

/// Returns the number of the user who had logged in when a process was made, if the kernel records that.
#[must_use]
pub fn login_of(pid: i32) -> Option<u32> {
    let number = std::fs::read_to_string(format!("/proc/{pid}/loginuid")).ok()?;
    // -1 stands for none.
    number.trim().parse().ok().filter(|uid| *uid != u32::MAX)
}

/// Returns the number of a group, given by name or number.
#[must_use]
pub fn group(name: &str) -> Option<u32> {
    let number = name.parse().ok();
    number.or_else(|| {
        if let Some(outside) = outside::get() {
            return outside.group(name);
        }
        let name = CString::new(name).ok()?;
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut memory = vec![0 as c_char; ENTRY_LEN];
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are valid for the call, and the length is that of the memory.
        let code = unsafe {
            libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), memory.as_mut_ptr(), memory.len(), &raw mut found)
        };
        // SAFETY: a found entry is `entry`, which the call has filled.
        (code == 0 && !found.is_null()).then(|| unsafe { (*found).gr_gid })
    })
}

/// Maximum number of groups of a process in Linux.
const GROUPS_MAX: usize = 65_536;

/// Returns the supplementary groups that the process at the other end of a Unix socket had when it connected.
///
/// # Errors
/// If `socket` is not a connected Unix socket.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0 as libc::gid_t; 32];
    loop {
        let mut len = size_of_val(groups.as_slice()) as libc::socklen_t;
        // SAFETY: the memory is valid for the call, and `len` is its length in bytes.
        let code = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = len as usize / size_of::<libc::gid_t>();
        if code == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        match io::Error::last_os_error() {
            // The kernel states the length that it needs.
            error if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < count && count <= GROUPS_MAX => {
                groups.resize(count, 0);
            }
            error => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        assert_eq!(user("root"), Some(0));
        assert_eq!(group("root"), Some(0));
        assert_eq!(user("4711"), Some(4711));
        assert_eq!(user("nobody-has-this-name"), None);
        assert_eq!((name_of(0).as_deref(), name_of(4_000_000_000)), (Some("root"), None));
        assert_eq!(group("nor this\0"), None);
    }

    #[test]
    fn the_groups_of_a_peer_are_those_of_its_process() {
        use std::os::fd::AsFd;
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let own: Vec<u32> = line.split_whitespace().map(|group| group.parse().unwrap()).collect();
        let (_theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(peer_groups(ours.as_fd()).unwrap(), own);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_groups(file.as_fd()).is_err());
    }
}
