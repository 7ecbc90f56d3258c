//! The system calls of a sealed daemon.
//!
//! Those of the allocator and of threads change with an update of the C library. So a call that is missing here is refused and counted, and ends
//! nothing.

/// System calls that are allowed for one reason.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    pub reason: &'static str,
    /// Names and numbers.
    pub calls: &'static [(&'static str, i64)],
    pub only: Only,
}

/// With which arguments calls are allowed. Arguments are counted from 0.
#[derive(Debug, Clone, Copy)]
pub enum Only {
    All,
    /// An argument is one of these values.
    One(u8, &'static [(&'static str, u64)]),
    /// These bits of an argument have this value, as the text says.
    Bits(u8, u64, u64, &'static str),
    /// An argument is the number of this process.
    Own(u8),
    Sockets(&'static [Socket]),
}

/// A kind of sockets that may be made, with the protocol 0.
#[derive(Debug, Clone, Copy)]
pub struct Socket {
    pub name: &'static str,
    pub family: i32,
    /// `SOCK_STREAM` or another; `None` for all.
    pub kind: Option<i32>,
    pub feature: Feature,
}

/// What the host file uses at the start of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    Always,
    /// A TCP port, of NBD or of metrics.
    Tcp,
    /// An uplink.
    Links,
}

/// Numbers of calls by their names in the library.
macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Values by their names in the library.
macro_rules! values {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name as u64)),*] };
}

const fn all(reason: &'static str, calls: &'static [(&'static str, i64)]) -> Group {
    Group { reason, calls, only: Only::All }
}

const fn only(reason: &'static str, calls: &'static [(&'static str, i64)], only: Only) -> Group {
    Group { reason, calls, only }
}

/// What a thread of this process is started with, and what would start another process or leave its namespaces.
const THREAD: u64 =
    (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD) as u64;
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;
/// A flag that connects a TCP socket.
const FAST_OPEN: u64 = libc::MSG_FASTOPEN as u64;
const NOT_FAST: &str = "without `MSG_FASTOPEN`";
const NOT_EXECUTABLE: Only = Only::Bits(2, libc::PROT_EXEC as u64, 0, "without `PROT_EXEC`");

/// Requests that the kernel's headers have and the library does not.
const DISKS: &[(&str, u64)] =
    &[("BLKGETSIZE64", 0x8008_1272), ("BLKSSZGET", 0x1268), ("BLKDISCARD", 0x1277), ("FS_IOC_FIEMAP", 0xc020_660b)];
const LINKS: &[(&str, u64)] = &[
    ("TUNSETIFF", 0x4004_54ca),
    ("TUNGETIFF", 0x8004_54d2),
    ("TUNSETOFFLOAD", 0x4004_54d0),
    ("TUNSETVNETHDRSZ", 0x4004_54d8),
    ("TUNGETDEVNETNS", 0x54e3),
    ("SIOCGIFFLAGS", 0x8913),
    ("SIOCSIFFLAGS", 0x8914),
    ("SIOCGIFMTU", 0x8921),
    ("SIOCSIFMTU", 0x8922),
    ("SIOCSIFHWADDR", 0x8924),
    ("SIOCGIFINDEX", 0x8933),
    ("SIOCBRADDIF", 0x89a2),
];

/// Kinds of sockets.
const SOCKETS: &[Socket] = &[
    Socket { name: "AF_UNIX stream", family: libc::AF_UNIX, kind: Some(libc::SOCK_STREAM), feature: Feature::Always },
    Socket { name: "AF_INET stream", family: libc::AF_INET, kind: Some(libc::SOCK_STREAM), feature: Feature::Tcp },
    Socket { name: "AF_INET6 stream", family: libc::AF_INET6, kind: Some(libc::SOCK_STREAM), feature: Feature::Tcp },
    Socket { name: "AF_PACKET", family: libc::AF_PACKET, kind: None, feature: Feature::Links },
    Socket { name: "AF_NETLINK", family: libc::AF_NETLINK, kind: None, feature: Feature::Links },
];

/// The system calls that are allowed.
pub const CALLS: &[Group] = &[
    all("rings that exist: requests of VMs", calls![SYS_io_uring_enter]),
    only(
        "rings: enable one of the pool, set its workers, ask whether a descriptor is an eventfd",
        calls![SYS_io_uring_register],
        Only::One(
            1,
            &[
                ("IORING_REGISTER_EVENTFD", 4),
                ("IORING_UNREGISTER_EVENTFD", 5),
                ("IORING_REGISTER_ENABLE_RINGS", 12),
                ("IORING_REGISTER_IOWQ_MAX_WORKERS", 19),
            ],
        ),
    ),
    all(
        "files that are open: control sockets, logs, state, database",
        calls![
            SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_lseek SYS_close
            SYS_fstat SYS_fsync SYS_fdatasync SYS_ftruncate SYS_fallocate SYS_flock SYS_dup
        ],
    ),
    all(
        "files of the folders that landlock allows",
        calls![
            SYS_openat SYS_openat2 SYS_newfstatat SYS_statx SYS_fstatfs SYS_statfs SYS_faccessat2 SYS_readlinkat
            SYS_getdents64 SYS_getcwd SYS_fchdir SYS_mkdirat SYS_unlinkat SYS_renameat SYS_renameat2 SYS_fchmod
            SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask SYS_getxattr SYS_fgetxattr
        ],
    ),
    #[cfg(target_arch = "x86_64")]
    all(
        "the same, as the C library and SQLite call them",
        calls![
            SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_mkdir SYS_rmdir SYS_unlink SYS_rename SYS_poll
            SYS_epoll_wait
        ],
    ),
    all("memory that a VMM shares, for requests in flight", calls![SYS_memfd_create]),
    only("memory", calls![SYS_mmap SYS_mprotect], NOT_EXECUTABLE),
    all("memory", calls![SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_membarrier]),
    only(
        "threads",
        calls![SYS_clone],
        Only::Bits(0, THREAD | NAMESPACES, THREAD, "threads alone, in the same namespaces"),
    ),
    only(
        "a folder of its own for a thread, where `/proc` is not mounted",
        calls![SYS_unshare],
        Only::One(0, values![CLONE_FS]),
    ),
    all(
        "threads",
        calls![
            SYS_exit SYS_exit_group SYS_futex SYS_set_robust_list SYS_rseq SYS_sched_yield SYS_sched_getaffinity
            SYS_sched_getscheduler SYS_gettid SYS_getpid SYS_getppid SYS_sigaltstack
            SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_restart_syscall
        ],
    ),
    only("real-time priority of this thread", calls![SYS_sched_setscheduler], Only::One(0, &[("0", 0)])),
    only(
        "locks, flags and copies of descriptors",
        calls![SYS_fcntl],
        Only::One(
            1,
            values![
                F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC F_GETLK F_SETLK F_OFD_GETLK F_OFD_SETLK F_ADD_SEALS F_GET_SEALS
            ],
        ),
    ),
    all("name of this host, for its pool", calls![SYS_uname]),
    only("its own end after a fault", calls![SYS_tgkill], Only::Own(0)),
    only(
        "names of threads and of memory, precision of timers",
        calls![SYS_prctl],
        Only::One(0, values![PR_SET_NAME PR_GET_NAME PR_SET_TIMERSLACK PR_SET_VMA]),
    ),
    all(
        "time, numbers of users and of this process, its capabilities, which are read and not set",
        calls![
            SYS_clock_gettime SYS_clock_nanosleep SYS_nanosleep SYS_getrandom SYS_getuid SYS_geteuid
            SYS_getgid SYS_getegid SYS_getgroups SYS_capget
        ],
    ),
    only("limits are read and not set", calls![SYS_prlimit64], Only::Bits(2, u64::MAX, 0, "reads alone")),
    all("waiting", calls![SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_ppoll SYS_eventfd2]),
    only("pairs of sockets in this process, for TLS", calls![SYS_socketpair], Only::One(0, values![AF_UNIX])),
    only("sockets that listen", calls![SYS_socket], Only::Sockets(SOCKETS)),
    only(
        "sockets that exist, which do not connect with the first data",
        calls![SYS_sendto],
        Only::Bits(3, FAST_OPEN, 0, NOT_FAST),
    ),
    only("sockets that exist", calls![SYS_sendmsg], Only::Bits(2, FAST_OPEN, 0, NOT_FAST)),
    all(
        "sockets that exist",
        calls![
            SYS_bind SYS_listen SYS_accept4 SYS_getsockname SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_shutdown
            SYS_recvfrom SYS_recvmsg
        ],
    ),
    only("disks, files and sockets", calls![SYS_ioctl], Only::One(1, DISKS)),
    only("sockets and terminals", calls![SYS_ioctl], Only::One(1, values![FIONBIO FIONREAD FIOCLEX TCGETS])),
    only("TAPs and interfaces", calls![SYS_ioctl], Only::One(1, LINKS)),
    all("answered with ENOSYS, so that `clone` is called, whose flags a filter sees", calls![SYS_clone3]),
];

/// System calls that the daemon never makes and that code in it would make to leave it. They end the process.
pub const DEADLY: &[(&str, i64)] = calls![
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_pidfd_getfd SYS_kcmp SYS_mount SYS_umount2
    SYS_move_mount SYS_open_tree SYS_fsopen SYS_fsmount SYS_mount_setattr SYS_pivot_root SYS_chroot SYS_setns SYS_bpf
    SYS_perf_event_open SYS_userfaultfd SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_reboot SYS_swapon
    SYS_keyctl SYS_add_key SYS_request_key SYS_open_by_handle_at SYS_setuid SYS_setgid SYS_setresuid SYS_setresgid SYS_capset
];

/// Name of a system call of one of the lists, or its number.
#[must_use]
pub fn name(number: i64) -> String {
    let listed = CALLS.iter().flat_map(|group| group.calls).chain(DEADLY);
    let found = listed.chain(OTHERS).find(|(_, other)| *other == number);
    found.map_or_else(|| number.to_string(), |(name, _)| plain(name).to_owned())
}

/// Names of calls that are not allowed, for messages.
const OTHERS: &[(&str, i64)] =
    calls![SYS_connect SYS_io_uring_setup SYS_kill SYS_symlinkat SYS_mknodat SYS_wait4 SYS_waitid];

/// The name of a call as its manual page has it.
#[must_use]
pub fn plain(name: &str) -> &str {
    name.strip_prefix("SYS_").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_call_is_allowed_or_deadly_and_not_both() {
        let allowed: BTreeSet<i64> = CALLS.iter().flat_map(|group| group.calls).map(|(_, number)| *number).collect();
        let both: Vec<_> = DEADLY.iter().chain(OTHERS).filter(|(_, number)| allowed.contains(number)).collect();
        assert!(both.is_empty(), "{both:?}");
        assert_eq!(
            (name(libc::SYS_read), name(libc::SYS_bpf), name(9999)),
            ("read".into(), "bpf".into(), "9999".into())
        );
    }
}
