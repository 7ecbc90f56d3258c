//! One writer per byte: a lock on the volume's range, held by the open file description that does the I/O.
//!
//! The lock is an "open file description" lock (Linux 3.15). It ends with the last reference to the description, and a
//! request in the kernel is such a reference. So if a daemon is killed while its writes are in flight, the lock stays
//! until the last of them has completed. A new daemon that has the lock knows that no old write can overwrite the ones
//! it replays. A classic POSIX lock ends with the process and gives no such guarantee.
//!
//! Locks are advisory and belong to the inode that was opened. They exclude all programs that check locks (our volumes,
//! other daemons, QEMU's image locks), but not a `dd`, and not a program that opens the same block device through a
//! second device node.
//!
//! Readers share their locks, so a new daemon would get its lock while reads of the dead one still write into the
//! memory of a guest. So a reader also locks a byte that stands for its name, far past the end of every volume. The
//! next reader of that name waits for that byte first ([`read_as`]).
//!
//! The same holds for a descriptor that leaks into a child process: the lock stays as long as the child lives. Our
//! descriptors are close-on-exec. Between fork and exec the lock can still outlive its owner for a moment, so code that
//! reopens a volume right after closing it should use a timeout above zero.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use super::error::SourceError;
use super::holder::{self, Holder};
use super::range::ByteRange;

/// The first pause between two attempts; each further one doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The longest pause: how late a freed lock may be noticed.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Locks `range` for reading or writing on this description, and waits for it at most `wait` in total.
///
/// With `Duration::ZERO` it tries once. Returns how long it waited, for the log. A range that this description has
/// locked already is granted immediately, so a grown volume locks its longer range in the same way. `path` is only for
/// the message. The wait sleeps, so it must not be called on a device thread.
///
/// # Errors
/// [`SourceError::Busy`] names the holder; [`SourceError::Lock`] means that this file cannot be locked (also: a write
/// lock on a description opened for reading, an empty range).
pub fn lock_within(
    fd: BorrowedFd<'_>,
    path: &Path,
    range: ByteRange,
    write: bool,
    wait: Duration,
) -> Result<Duration, SourceError> {
    let failed = |source| SourceError::Lock { path: path.to_path_buf(), range, source };
    let mut wanted = flock_of(range, write).map_err(failed)?;
    let taken = until(|| try_lock(fd, &mut wanted), wait, std::thread::sleep).map_err(failed)?;
    taken.ok_or_else(|| SourceError::Busy { path: path.to_path_buf(), range, holder: holder_of(fd, range, write) })
}

/// Releases the part of `range` that this description has locked.
///
/// # Errors
/// [`SourceError::Lock`].
pub fn unlock(fd: BorrowedFd<'_>, path: &Path, range: ByteRange) -> Result<(), SourceError> {
    let failed = |source| SourceError::Lock { path: path.to_path_buf(), range, source };
    let mut unwanted = flock_of(range, false).map_err(failed)?;
    unwanted.l_type = libc::F_UNLCK as libc::c_short;
    fcntl_lock(fd, libc::F_OFD_SETLK, &mut unwanted).map_err(failed)
}

/// Locks the byte that stands for `reader` on this description, which reads `range`. Before that it waits at most
/// `wait` in total until no other description has it locked; `None` does not wait. Returns how long it waited.
///
/// # Errors
/// As [`lock_within`].
pub fn read_as(
    fd: BorrowedFd<'_>,
    path: &Path,
    range: ByteRange,
    reader: &str,
    wait: Option<Duration>,
) -> Result<Duration, SourceError> {
    let failed = |source| SourceError::Lock { path: path.to_path_buf(), range, source };
    let byte = ByteRange::new(byte_of(reader), 1);
    let waited = match wait {
        Some(wait) => until(|| is_free(fd, byte), wait, std::thread::sleep).map_err(failed)?,
        None => Some(Duration::ZERO),
    };
    let busy = || SourceError::Busy { path: path.to_path_buf(), range, holder: holder_of(fd, byte, true) };
    let waited = waited.ok_or_else(busy)?;
    let mut wanted = flock_of(byte, false).map_err(failed)?;
    if try_lock(fd, &mut wanted).map_err(failed)? { Ok(waited) } else { Err(busy()) }
}

/// Returns the byte for a name: FNV-1a of it, so that every version of the daemon gets the same one. No volume reaches
/// 2^62 bytes, where these bytes start.
fn byte_of(reader: &str) -> u64 {
    let hash = reader
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    1 << 62 | hash >> 16
}

/// Whether no other description has a lock there. A description that is open only for reading can check this too.
fn is_free(fd: BorrowedFd<'_>, byte: ByteRange) -> io::Result<bool> {
    let mut asked = flock_of(byte, true)?;
    fcntl_lock(fd, libc::F_OFD_GETLK, &mut asked)?;
    Ok(asked.l_type == libc::F_UNLCK as libc::c_short)
}

/// Repeats attempts with pauses until one succeeds or the pauses add up to `wait`. Returns `None` if none succeeded.
fn until(
    mut attempt: impl FnMut() -> io::Result<bool>,
    wait: Duration,
    mut pause: impl FnMut(Duration),
) -> io::Result<Option<Duration>> {
    let mut waited = Duration::ZERO;
    let mut step = PAUSE_MIN;
    loop {
        if attempt()? {
            return Ok(Some(waited));
        }
        let next = step.min(wait.saturating_sub(waited));
        if next.is_zero() {
            return Ok(None);
        }
        pause(next);
        waited += next;
        step = (step * 2).min(PAUSE_MAX);
    }
}

fn flock_of(range: ByteRange, write: bool) -> io::Result<libc::flock> {
    let number = |bytes: u64| {
        i64::try_from(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "range beyond 2^63 bytes"))
    };
    // A length of 0 would mean "to the end of the file, even if it grows".
    if range.length == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "range of no bytes"));
    }
    // SAFETY: `flock` is a plain C struct of integers, for which all zeroes is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = if write { libc::F_WRLCK } else { libc::F_RDLCK } as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = number(range.offset)?;
    lock.l_len = number(range.length)?;
    Ok(lock)
}

fn try_lock(fd: BorrowedFd<'_>, wanted: &mut libc::flock) -> io::Result<bool> {
    match fcntl_lock(fd, libc::F_OFD_SETLK, wanted) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the holder of a conflicting lock. It may have ended since the refusal.
fn holder_of(fd: BorrowedFd<'_>, range: ByteRange, write: bool) -> Holder {
    let Ok(mut lock) = flock_of(range, write) else {
        return Holder::Unknown;
    };
    if fcntl_lock(fd, libc::F_OFD_GETLK, &mut lock).is_err() || lock.l_type == libc::F_UNLCK as libc::c_short {
        return Holder::Unknown;
    }
    match (u32::try_from(lock.l_pid), u64::try_from(lock.l_start)) {
        (Ok(pid), _) if pid > 0 => Holder::by_pid(pid),
        (_, Ok(start)) => Holder::find(fd, shown_file(fd), start),
        _ => Holder::Unknown,
    }
}

/// Returns the file of a descriptor as fdinfo shows it in a lock. For that a lock on a byte past all others is taken
/// and released.
fn shown_file(fd: BorrowedFd<'_>) -> Option<String> {
    let last = ByteRange::new(i64::MAX as u64 - 1, 1);
    let mut lock = flock_of(last, false).ok()?;
    try_lock(fd, &mut lock).ok()?.then_some(())?;
    let shown = holder::shown_file(fd, last.offset);
    unlock(fd, Path::new(""), last).ok()?;
    shown
}

fn fcntl_lock(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open while it is borrowed, and both commands read and write exactly one `flock`, to
    // which `lock` is an exclusive reference for the time of the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
    use tempfile::NamedTempFile;

    /// Long enough for any machine; the event comes first.
    const LONG: Duration = Duration::from_secs(60);

    fn image() -> NamedTempFile {
        let image = NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        image
    }

    /// Opens a separate description, as every volume has.
    fn open(image: &NamedTempFile) -> File {
        File::options().read(true).write(true).open(image.path()).unwrap()
    }

    fn lock(fd: &impl AsFd, offset: u64, length: u64, write: bool, wait: Duration) -> Result<Duration, SourceError> {
        lock_within(fd.as_fd(), Path::new("image"), ByteRange::new(offset, length), write, wait)
    }

    fn holder(result: Result<Duration, SourceError>) -> Holder {
        match result {
            Err(SourceError::Busy { holder, .. }) => holder,
            other => panic!("expected Busy, got {other:?}"),
        }
    }

    #[test]
    fn the_file_of_a_lock_is_shown_as_other_processes_see_it() {
        let image = image();
        let [first, second] = [open(&image), open(&image)];
        lock(&first, 0, 4096, true, Duration::ZERO).unwrap();
        let shown = shown_file(second.as_fd()).unwrap();
        assert_eq!(holder::shown_file(first.as_fd(), 0), Some(shown));
        assert_eq!(shown_file(second.as_fd()), holder::shown_file(first.as_fd(), 0));
        assert_eq!(holder::shown_file(second.as_fd(), i64::MAX as u64 - 1), None, "it is released");
    }

    #[test]
    fn writers_exclude_each_other_on_shared_bytes_only() {
        let image = image();
        let (first, second) = (open(&image), open(&image));
        lock(&first, 0, 4096, true, Duration::ZERO).unwrap();
        assert_eq!(holder(lock(&second, 4095, 1, true, Duration::ZERO)), Holder::ThisProcess);
        assert_eq!(holder(lock(&second, 0, 8192, false, Duration::ZERO)), Holder::ThisProcess);
        lock(&second, 4096, 4096, true, Duration::ZERO).unwrap();
        assert_eq!(holder(lock(&first, 0, 8192, true, Duration::ZERO)), Holder::ThisProcess, "growing into it");
    }

    #[test]
    fn readers_share_and_keep_writers_out() {
        let image = image();
        let (first, second, third) = (open(&image), open(&image), open(&image));
        lock(&first, 0, 4096, false, Duration::ZERO).unwrap();
        lock(&second, 0, 4096, false, Duration::ZERO).unwrap();
        holder(lock(&third, 0, 4096, true, Duration::ZERO));
    }

    #[test]
    fn the_lock_lives_as_long_as_any_duplicate() {
        let image = image();
        let (first, second) = (open(&image), open(&image));
        let duplicate = first.try_clone().unwrap();
        lock(&first, 0, 4096, true, Duration::ZERO).unwrap();
        drop(first);
        assert_eq!(holder(lock(&second, 0, 4096, true, Duration::ZERO)), Holder::ThisProcess);
        drop(duplicate);
        lock(&second, 0, 4096, true, LONG).unwrap();
    }

    #[test]
    fn a_child_with_the_description_keeps_the_lock_until_it_is_killed() {
        let image = image();
        let (first, second) = (open(&image), open(&image));
        lock(&first, 0, 4096, true, Duration::ZERO).unwrap();
        // `cat` waits for input that never arrives, with our description as its output.
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(first).spawn().unwrap();

        match holder(lock(&second, 0, 4096, true, Duration::ZERO)) {
            Holder::Process { pid, .. } => assert_eq!(pid, child.id()),
            other => panic!("expected the child, got {other:?}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        lock(&second, 0, 4096, true, LONG).unwrap();
    }

    #[test]
    fn a_conflicting_posix_lock_names_its_process() {
        let image = image();
        let (first, second) = (open(&image), open(&image));
        let mut posix = flock_of(ByteRange::new(0, 1), true).unwrap();
        fcntl_lock(first.as_fd(), libc::F_SETLK, &mut posix).unwrap();
        assert_eq!(holder(lock(&second, 0, 4096, true, Duration::ZERO)), Holder::ThisProcess);
    }

    #[test]
    fn a_reader_waits_only_for_the_previous_reader_of_its_name() {
        let image = image();
        let reader = || File::open(image.path()).unwrap();
        let read_as =
            |file: &File, name: &str, wait| read_as(file.as_fd(), image.path(), ByteRange::new(0, 4096), name, wait);
        let (first, second, other) = (reader(), reader(), reader());
        read_as(&first, "a/v", Some(Duration::ZERO)).unwrap();
        read_as(&other, "b/v", Some(Duration::ZERO)).unwrap();
        let refused = read_as(&second, "a/v", Some(Duration::ZERO));
        assert!(matches!(refused, Err(SourceError::Busy { .. })), "{refused:?}");
        read_as(&second, "a/v", None).unwrap();
        drop((first, second));
        read_as(&reader(), "a/v", Some(LONG)).unwrap();
        assert_eq!(byte_of(""), 1 << 62 | 0xcbf2_9ce4_8422_2325 >> 16);
    }

    #[test]
    fn a_file_that_cannot_be_locked_is_an_error() {
        let image = image();
        let reader = File::open(image.path()).unwrap();
        for result in [
            lock(&reader, 0, 4096, true, LONG),
            lock(&reader, 0, 0, false, LONG),
            lock(&reader, u64::MAX, 1, false, LONG),
        ] {
            assert!(matches!(result, Err(SourceError::Lock { .. })), "{result:?}");
        }
    }

    #[test]
    fn waiting_ends_with_the_holder() {
        let image = image();
        let (first, second) = (open(&image), open(&image));
        lock(&first, 0, 4096, true, Duration::ZERO).unwrap();
        let mut wanted = flock_of(ByteRange::new(0, 4096), true).unwrap();
        let mut first = Some(first);
        let waited = until(|| try_lock(second.as_fd(), &mut wanted), LONG, |_| drop(first.take())).unwrap();
        assert!(waited.is_some_and(|waited| waited >= PAUSE_MIN), "{waited:?}");
    }

    #[test]
    fn waiting_is_bounded_and_pauses_grow() {
        let mut pauses = Vec::new();
        let wait = Duration::from_millis(110);
        let result = until(|| Ok(false), wait, |pause| pauses.push(pause.as_millis())).unwrap();
        assert_eq!(result, None);
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 47]);

        let never = |_| panic!("zero means once");
        assert_eq!(until(|| Ok(false), Duration::ZERO, never).unwrap(), None);
        assert!(until(|| Err(io::Error::other("gone")), wait, never).is_err());
    }
}
