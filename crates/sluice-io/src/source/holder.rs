//! The holder of a lock on a volume's bytes, for the error message.
//!
//! A classic POSIX lock names its process. The lock of an open file description belongs to no process, so the kernel
//! names none. But `/proc/PID/fdinfo/FD` shows the locks of a description, so the process with such a descriptor can be
//! found. If no process has one, the lock belongs to a request in the kernel whose process has ended. This is concluded
//! only if every process that could have the descriptor was examined: none can be in another PID namespace or on
//! another host.
//!
//! All of it is best effort, and runs only after a lock was refused, because it reads the whole of /proc.

use std::fmt;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::outside;
use rustix::fs::{FileType, fstat, fstatfs, major, minor};
use rustix::thread::{CapabilitySet, capabilities};

/// `f_type` of file systems whose locks are held only on this host: ext2 to ext4, xfs, btrfs, tmpfs.
const LOCAL: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];
/// The namespace that contains all processes of the host. The inodes of the initial namespaces are the same on every
/// host.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";
/// The namespace in which root may inspect all processes.
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// The holder of a lock, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Another volume of this process.
    ThisProcess,
    /// Another process.
    Process {
        /// Its process id.
        pid: u32,
        /// Its command name; empty if it cannot be read.
        name: String,
    },
    /// No process: requests in the kernel of a process that has ended.
    Gone,
    /// No process that is visible from here.
    Unknown,
}

impl Holder {
    /// Returns the holder with this process id.
    pub(super) fn by_pid(pid: u32) -> Self {
        if pid == std::process::id() {
            return Self::ThisProcess;
        }
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self::Process { pid, name: name.trim_end().to_owned() }
    }

    /// Finds a process with a descriptor whose description locks the file of `fd` from byte `start`. `shown` is the
    /// file as fdinfo shows it. Without it, it is derived from `fstat`, which on btrfs reports another device.
    pub(super) fn find(fd: BorrowedFd<'_>, shown: Option<String>, start: u64) -> Self {
        let Ok(stat) = fstat(fd) else { return Self::Unknown };
        let is_block_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let is_local = is_block_device || fstatfs(fd).is_ok_and(|system| LOCAL.contains(&(system.f_type as u64)));
        let is_in =
            |kind: &str, id: &str| fs::read_link(format!("/proc/self/ns/{kind}")).is_ok_and(|own| own == Path::new(id));
        let is_visible = shown.is_some() && is_local && is_in("pid", INITIAL_PID_NAMESPACE);
        let by_stat = || format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
        let file = shown.unwrap_or_else(by_stat);
        if has_lock(Path::new("/proc/self/fdinfo"), &file, start).unwrap_or(false) {
            return Self::ThisProcess;
        }
        let seen = outside::get().map_or_else(|| look(&file, start), |outside| outside.holder(&file, start));
        match seen {
            Seen { pid: Some(pid), .. } => Self::by_pid(pid),
            Seen { is_all: true, .. } if is_visible => Self::Gone,
            Seen { .. } => Self::Unknown,
        }
    }

    /// Whether only the kernel can release the lock: no process has it, or one that was killed and waits for its
    /// requests.
    pub(super) fn is_dying(&self) -> bool {
        match self {
            Self::ThisProcess | Self::Unknown => false,
            Self::Gone => true,
            Self::Process { pid, .. } => is_dying(*pid),
        }
    }
}

/// What a look at all processes has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// A process with such a descriptor.
    pub pid: Option<u32>,
    /// Whether every process was examined.
    pub is_all: bool,
}

/// Looks at all processes for a descriptor whose description locks `file`, as fdinfo shows it, from byte `start`.
#[must_use]
pub fn look(file: &str, start: u64) -> Seen {
    let Ok(processes) = fs::read_dir("/proc") else { return Seen { pid: None, is_all: false } };
    let is_initial = fs::read_link("/proc/self/ns/user").is_ok_and(|own| own == Path::new(INITIAL_USER_NAMESPACE));
    // Daemons are closed to others, of whom one without this capability is root too.
    let sees_all = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_PTRACE));
    let is_root = rustix::process::geteuid().is_root() && is_initial && sees_all;
    // If /proc hides processes of other users, it hides the first one too.
    let (mut first_listed, mut is_all) = (false, true);
    for pid in processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        first_listed |= pid == 1;
        match has_lock(Path::new(&format!("/proc/{pid}/fdinfo")), file, start) {
            Ok(true) => return Seen { pid: Some(pid), is_all },
            Ok(false) => {}
            // The process has ended in the meantime, or is about to.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            // Processes that even root may not inspect are supervisors of the host, which have no disks open.
            Err(_) => is_all &= is_root,
        }
    }
    Seen { pid: None, is_all: is_all && first_listed }
}

/// Whether a process is ending: it is a zombie, all its threads are exiting, or it was sent SIGKILL.
fn is_dying(pid: u32) -> bool {
    /// Linux: the task is being shut down.
    const PF_EXITING: u64 = 4;
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).unwrap_or_default();
    let pending = |key| u64::from_str_radix(of(key), 16).unwrap_or(0);
    let killed = (pending("SigPnd:") | pending("ShdPnd:")) & SIGKILL != 0;
    let ended = matches!(of("State:").chars().next(), None | Some('Z' | 'X'));
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let exits = |stat: String| {
        // The name in parentheses may contain anything.
        let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
        flags.is_some_and(|flags| flags & PF_EXITING != 0)
    };
    let stats = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    killed || ended || stats.into_iter().all(exits)
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess => f.write_str("another volume of this daemon"),
            Self::Process { pid, name } if name.is_empty() => write!(f, "process {pid}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Gone => f.write_str("requests of a process that is gone"),
            Self::Unknown => {
                f.write_str("another process or volume (none to be seen: perhaps requests of a process that is gone)")
            }
        }
    }
}

/// Returns the file of the lock from byte `start` that our descriptor `fd` has, as fdinfo shows it.
pub(super) fn shown_file(fd: BorrowedFd<'_>, start: u64) -> Option<String> {
    use std::os::fd::AsRawFd;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    let file = |line: &str| line.split_whitespace().rev().nth(2).map(str::to_owned);
    text.lines().find_map(|line| file(line).filter(|file| is_lock(line, file, start)))
}

fn has_lock(fdinfo: &Path, file: &str, start: u64) -> std::io::Result<bool> {
    let texts = fs::read_dir(fdinfo)?.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok());
    Ok(texts.into_iter().any(|text| text.lines().any(|line| is_lock(line, file, start))))
}

/// Whether a line has the form `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:1234 0 4095` for this file and start.
fn is_lock(line: &str, file: &str, start: u64) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("lock:")
        && words.any(|word| word == "OFDLCK")
        && words.any(|word| word == file)
        && words.next().and_then(|word| word.parse().ok()) == Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_lines_are_matched_by_kind_file_and_start() {
        let file = "fe:00:1234";
        let cases = [
            ("lock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:1234 4096 8191", true),
            ("lock:\t2: OFDLCK  ADVISORY  READ -1 fe:00:1234 4096 EOF", true),
            ("lock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:1234 0 EOF", false),
            ("lock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:12345 4096 8191", false),
            ("lock:\t1: FLOCK  ADVISORY  WRITE 77 fe:00:1234 4096 EOF", false),
            ("flags:\t02100002", false),
            ("lock:", false),
        ];
        for (line, expected) in cases {
            assert_eq!(is_lock(line, file, 4096), expected, "{line}");
        }
    }

    #[test]
    fn a_live_holder_that_could_not_be_seen_was_taken_for_a_dead_one() {
        use std::os::fd::AsFd;
        let not_local = fs::File::open("/proc/version").unwrap();
        let file = Some("00:16:4026532000".to_owned());
        assert_eq!(Holder::find(not_local.as_fd(), file, 7), Holder::Unknown, "it may be on another host");
        let local = tempfile::tempfile().unwrap();
        assert_eq!(Holder::find(local.as_fd(), None, 7), Holder::Unknown, "its device may be shown as another");
    }

    #[test]
    fn a_killed_process_is_dying_and_a_running_one_is_not() {
        assert!(!Holder::by_pid(std::process::id()).is_dying());
        assert!(!is_dying(std::process::id()));
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(!is_dying(child.id()));
        child.kill().unwrap();
        assert!(is_dying(child.id()), "until it is waited for it is a zombie, or on its way there");
        child.wait().unwrap();
        assert!(Holder::Gone.is_dying() && !Holder::Unknown.is_dying());
    }

    #[test]
    fn holders_read_as_part_of_a_sentence() {
        assert_eq!(Holder::by_pid(std::process::id()).to_string(), "another volume of this daemon");
        let qemu = Holder::Process { pid: 7, name: "qemu".into() };
        assert_eq!(qemu.to_string(), "process 7 (qemu)");
        let nameless = Holder::Process { pid: 7, name: String::new() };
        assert_eq!(nameless.to_string(), "process 7");
    }
}
