//! Paths that lead to an open file or folder, whatever becomes of its name.
//!
//! Some calls take a path and no descriptor: the address of a socket, the extended attributes of a file that is opened
//! with `O_PATH`. A path of the host may lead elsewhere by then.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::UnshareFlags;

/// Open files of this process, if /proc is mounted.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Returns the kernel's name of an open file, which renames do not change.
pub(crate) fn in_proc(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("{DESCRIPTORS}/{}", file.as_raw_fd()))
}

/// Calls `call` with a path of `name` in `folder`, which is `in_proc`. If /proc is not mounted, a thread changes to the
/// folder and makes the call with the name alone.
pub(crate) fn with_path<T: Send>(
    in_proc: &Path,
    folder: &OwnedFd,
    name: &OsStr,
    call: impl FnOnce(&Path) -> Result<T, Errno> + Send,
) -> Result<T, Errno> {
    if rustix::fs::stat(DESCRIPTORS).is_ok() {
        return call(in_proc);
    }
    let there = || {
        // SAFETY: the thread gets a separate working folder; descriptors and memory stay shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
        rustix::process::fchdir(folder)?;
        call(Path::new(name))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, there).map_err(|_| Errno::AGAIN)?;
        thread.join().expect("the calls do not panic")
    })
}
