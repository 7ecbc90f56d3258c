//! What code in the daemon would try in order to leave it.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::ptr;

use io_uring::{opcode, squeue, types};
use sluice_io::backend::ring::Ring;

/// What is around the daemon.
pub(crate) struct Around {
    /// A file that the host file does not name.
    pub(crate) secret: PathBuf,
    /// A program that makes `marker`, which the host file does not name.
    pub(crate) program: PathBuf,
    /// A port at which another process listens.
    pub(crate) port: u16,
    /// The socket of another process.
    pub(crate) socket: PathBuf,
    /// Another process of the same user.
    pub(crate) other: u32,
}

/// Tries something. It has succeeded if the daemon got out.
type Attempt = fn(&Around) -> io::Result<()>;

/// Attempts that fail, and after which the daemon goes on.
pub(crate) const REFUSED: &[(&str, Attempt)] = &[
    ("open a file outside", |around| File::open(&around.secret).map(drop)),
    ("write a file outside", |around| OpenOptions::new().append(true).open(&around.secret).map(drop)),
    ("make a file outside", |around| File::create(around.secret.with_extension("new")).map(drop)),
    ("remove a file outside", |around| std::fs::remove_file(&around.secret)),
    ("write a file of the kernel", |_| OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern").map(drop)),
    ("open it through procfs", |around| File::open(format!("/proc/self/root{}", around.secret.display())).map(drop)),
    ("open it through another process", |around| {
        File::open(format!("/proc/{}/root{}", around.other, around.secret.display())).map(drop)
    }),
    ("read the environment of another process", |around| read_of(around, "environ")),
    ("read the memory map of another process", |around| read_of(around, "maps")),
    ("read the memory of another process", |around| File::open(format!("/proc/{}/mem", around.other)).map(drop)),
    ("read the descriptors of another process", |around| {
        std::fs::read_dir(format!("/proc/{}/fd", around.other))?
            .next()
            .transpose()?
            .map(|fd| std::fs::read_link(fd.path()))
            .transpose()
            .map(drop)
    }),
    ("write the memory of another process", |around| {
        OpenOptions::new().write(true).open(format!("/proc/{}/mem", around.other)).map(drop)
    }),
    ("connect by TCP", |around| TcpStream::connect(("127.0.0.1", around.port)).map(drop)),
    ("connect to a socket of another process", |around| UnixStream::connect(&around.socket).map(drop)),
    ("make a datagram socket", |_| UnixDatagram::unbound().map(drop)),
    ("make a socket of AF_INET", |_| socket(libc::AF_INET, libc::SOCK_STREAM)),
    ("make a socket of AF_INET6", |_| socket(libc::AF_INET6, libc::SOCK_DGRAM)),
    ("make a socket of AF_PACKET", |_| socket(libc::AF_PACKET, libc::SOCK_RAW)),
    ("make a socket of AF_NETLINK", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW)),
    ("make a socket of AF_VSOCK", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM)),
    ("make a ring", |_| {
        let mut parameters = [0u8; 120];
        call(libc::SYS_io_uring_setup, [8, parameters.as_mut_ptr() as i64, 0, 0, 0, 0])
    }),
    ("open by a ring", |around| {
        let path = CString::new(around.secret.as_os_str().as_encoded_bytes()).unwrap();
        by_ring(opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build())
    }),
    ("make a socket by a ring", |_| by_ring(opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build())),
    ("rename by a ring", |around| {
        let path = CString::new(around.secret.as_os_str().as_encoded_bytes()).unwrap();
        let here = types::Fd(libc::AT_FDCWD);
        by_ring(opcode::RenameAt::new(here, path.as_ptr(), here, c"/tmp/renamed".as_ptr()).build())
    }),
    ("connect by a ring", |_| {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        by_ring(opcode::Connect::new(types::Fd(0), (&raw const address).cast(), size_of_val(&address) as u32).build())
    }),
    ("link operations of a ring", |_| by_ring(opcode::Fsync::new(types::Fd(0)).build().flags(squeue::Flags::IO_LINK))),
    ("register buffers with a ring", |_| register(0)),
    ("register files with a ring", |_| register(2)),
    ("probe a ring", |_| register(8)),
    ("map executable memory", |_| {
        // SAFETY: the kernel chooses the place, where nothing else is.
        let mapped = unsafe {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_EXEC, kind, -1, 0)
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }),
    ("make memory executable", |_| {
        let page = vec![0u8; 8192];
        let start = page.as_ptr().align_offset(4096);
        let start = page[start..].as_ptr() as i64;
        call(libc::SYS_mprotect, [start, 4096, i64::from(libc::PROT_READ | libc::PROT_EXEC), 0, 0, 0])
    }),
    ("start a process", |_| call(libc::SYS_fork, [0; 6])),
    ("start a process by clone", |_| call(libc::SYS_clone, [i64::from(libc::SIGCHLD), 0, 0, 0, 0, 0])),
    ("start a process by clone3", |_| {
        let mut arguments = [0u64; 11];
        arguments[4] = libc::SIGCHLD as u64;
        call(libc::SYS_clone3, [arguments.as_mut_ptr() as i64, 88, 0, 0, 0, 0])
    }),
    ("enter new namespaces", |_| {
        call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER | libc::CLONE_NEWNET), 0, 0, 0, 0, 0])
    }),
    ("signal another process", |around| call(libc::SYS_kill, [i64::from(around.other), 0, 0, 0, 0, 0])),
    ("signal a thread of another process", |around| {
        call(libc::SYS_tgkill, [i64::from(around.other), i64::from(around.other), 0, 0, 0, 0])
    }),
    ("open another process", |around| call(libc::SYS_pidfd_open, [i64::from(around.other), 0, 0, 0, 0, 0])),
    ("make a symbolic link", |around| std::os::unix::fs::symlink("/", around.secret.with_extension("link"))),
    ("make a device", |_| call(libc::SYS_mknodat, [-100, c"/tmp/node".as_ptr() as i64, 0o60600, 0, 0, 0])),
    ("type into a terminal", |_| call(libc::SYS_ioctl, [0, libc::TIOCSTI as i64, c"x".as_ptr() as i64, 0, 0, 0])),
    ("raise a limit", |_| {
        let limit = [1u64 << 20; 2];
        call(libc::SYS_prlimit64, [0, i64::from(libc::RLIMIT_CORE), limit.as_ptr() as i64, 0, 0, 0])
    }),
    ("dump core", |_| call(libc::SYS_prctl, [i64::from(libc::PR_SET_DUMPABLE), 1, 0, 0, 0, 0])),
    ("be traced", |_| call(libc::SYS_prctl, [i64::from(libc::PR_SET_PTRACER), -1, 0, 0, 0, 0])),
];

/// Attempts that end the process.
pub(crate) const DEADLY: &[(&str, Attempt)] = &[
    ("execve", |_| {
        let arguments: [*const libc::c_char; 2] = [c"/bin/true".as_ptr(), ptr::null()];
        call(libc::SYS_execve, [arguments[0] as i64, arguments.as_ptr() as i64, 0, 0, 0, 0])
    }),
    ("ptrace", |around| call(libc::SYS_ptrace, [i64::from(libc::PTRACE_ATTACH), i64::from(around.other), 0, 0, 0, 0])),
    ("process_vm_readv", |around| call(libc::SYS_process_vm_readv, [i64::from(around.other), 0, 0, 0, 0, 0])),
    ("mount", |_| call(libc::SYS_mount, [0, c"/mnt".as_ptr() as i64, c"tmpfs".as_ptr() as i64, 0, 0, 0])),
    ("bpf", |_| call(libc::SYS_bpf, [0; 6])),
    ("setns", |_| call(libc::SYS_setns, [0; 6])),
];

/// Sends orders to the launcher as the daemon would, for what the host file does not name.
pub(crate) fn deceive_launcher(around: &Around) -> io::Result<()> {
    let program = around.program.display();
    let socket = launcher()?;
    for order in [
        format!("{{\"Permit\":{{\"Program\":\"{program}\"}}}}"),
        "\"Begin\"".to_owned(),
        format!("{{\"Ask\":[900001,{{\"Program\":[\"{program}\",\"x\"]}}]}}"),
        format!("{{\"Ask\":[900002,{{\"Webhook\":[\"http://127.0.0.1:{}/\",\"x\"]}}]}}", around.port),
        format!("{{\"Ask\":[900003,{{\"Listens\":\"{}\"}}]}}", around.socket.display()),
        format!("{{\"Ask\":[900004,{{\"Meet\":{{\"File\":\"{}\"}}}}]}}", around.secret.display()),
    ] {
        rustix::net::send(&socket, order.as_bytes(), rustix::net::SendFlags::empty())?;
    }
    Ok(())
}

/// The daemon's socket of the launcher.
fn launcher() -> io::Result<OwnedFd> {
    for number in 3..1024 {
        // SAFETY: a number that is no open descriptor fails, and one that is stays open: only the copy is closed.
        let copy = unsafe { libc::dup(number) };
        if copy < 0 {
            continue;
        }
        // SAFETY: the copy is this function's own.
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        if rustix::net::sockopt::socket_type(&copy).is_ok_and(|kind| kind == rustix::net::SocketType::SEQPACKET) {
            return Ok(copy);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Reads a file that the kernel has of another process.
fn read_of(around: &Around, name: &str) -> io::Result<()> {
    let mut text = Vec::new();
    let read = File::open(format!("/proc/{}/{name}", around.other))?.read_to_end(&mut text)?;
    eprintln!("{name}: {read} bytes");
    if read == 0 { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
}

fn call(number: i64, arguments: [i64; 6]) -> io::Result<()> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: nothing is: it is what an attacker would call. What it succeeds in fails the test.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn socket(family: i32, kind: i32) -> io::Result<()> {
    call(libc::SYS_socket, [family.into(), kind.into(), 0, 0, 0, 0])
}

/// Has a ring of the pool carry out an operation.
fn by_ring(entry: squeue::Entry) -> io::Result<()> {
    let mut ring = Ring::new()?;
    let mut events = Vec::new();
    // SAFETY: the callers keep what the entry refers to until this returns.
    unsafe { ring.push(entry) };
    ring.submit_and_wait(None, &mut events)?;
    match events.first().map(|event| event.result) {
        Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
        _ => Ok(()),
    }
}

/// Calls `io_uring_register` for the ring of this thread.
fn register(operation: i64) -> io::Result<()> {
    let _ring = Ring::new()?;
    for number in 3..1024 {
        let name = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        if name.to_string_lossy().contains("[io_uring]") {
            let mut argument = [0u64; 512];
            call(libc::SYS_io_uring_register, [number, operation, argument.as_mut_ptr() as i64, 1, 0, 0])?;
        }
    }
    Err(io::ErrorKind::PermissionDenied.into())
}
