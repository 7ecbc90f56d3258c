//! Names of users and groups on this host.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;

/// Length of the buffer for one entry; longer ones are not found.
const ENTRY_LEN: usize = 64 << 10;

/// Returns the number of a user, given by name or number.
#[must_use]
pub fn user(name: &str) -> Option<u32> {
    let number = name.parse().ok();
    number.or_else(|| {
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

/// Returns the number of a group, given by name or number.
#[must_use]
pub fn group(name: &str) -> Option<u32> {
    let number = name.parse().ok();
    number.or_else(|| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        assert_eq!(user("root"), Some(0));
        assert_eq!(group("root"), Some(0));
        assert_eq!(user("4711"), Some(4711));
        assert_eq!(user("nobody-has-this-name"), None);
        assert_eq!(group("nor this\0"), None);
    }
}
