//! Stations in network namespaces: what VMs and the world outside are for an uplink, without a VM.
//!
//! A [`Namespace`] is removed with the value that made it. [`traffic`] sends, counts and probes from inside of one. Programs and
//! interfaces are made by `ip` (Debian's `iproute2`), which needs root.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use sluice_client::net::{Namespace, traffic::{Sender, Sink}};
//! let (vm, outside) = (Namespace::new("vm1")?, Namespace::new("outside")?);
//! vm.connect("eth0", &outside)?;
//! vm.up("eth0", "10.0.0.1/24")?;
//! outside.up("eth0", "10.0.0.100/24")?;
//! let sink = Sink::udp(&outside, 7001)?;
//! let sender = Sender::udp(&vm, "10.0.0.100:7001".parse().unwrap(), 1472, 8000)?;
//! while sink.bytes() < 1 << 20 {}
//! # Ok(())
//! # }
//! ```

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::programs;

pub mod frames;
pub mod traffic;

/// Address of the station outside of a switch; those of VMs have the numbers from 1 on.
pub const OUTSIDE: Ipv4Addr = address(100);
/// Bytes of a datagram that fills a frame, and of that frame on the wire.
pub const DATAGRAM: usize = 1472;
pub const FRAME: u64 = 1538;

/// Returns the address of a station by its number.
#[must_use]
pub const fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number)
}

/// Returns a port of the station outside.
#[must_use]
pub const fn outside(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(OUTSIDE), port)
}

/// A network namespace of this process. Dropping it removes it with its interfaces.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace with a loopback and without IPv6: the kernel would send neighbour solicitations of its own, which tests would
    /// count. Its name contains the number of this process.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn new(label: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-{}-{number}-{label}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        for which in ["all", "default"] {
            namespace.sysctl(&format!("ipv6/conf/{which}/disable_ipv6"), "1")?;
        }
        Ok(namespace)
    }

    /// Returns its name, as `ip netns` has it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` with these words in the namespace; returns its output.
    ///
    /// # Errors
    /// Its message.
    pub fn ip(&self, words: &str) -> io::Result<String> {
        run(Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()))
    }

    /// Runs a program with these words in the namespace; returns its output.
    ///
    /// # Errors
    /// Its message.
    pub fn run(&self, words: &str) -> io::Result<String> {
        run(Command::new("ip").args(["netns", "exec", &self.name]).args(words.split_whitespace()))
    }

    /// Gives an interface an address, and switches it on.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn up(&self, interface: &str, address: &str) -> io::Result<()> {
        self.ip(&format!("addr add {address} dev {interface}"))?;
        self.ip(&format!("link set {interface} up")).map(drop)
    }

    /// Makes an interface that is connected to the `eth0` of another namespace.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn connect(&self, interface: &str, other: &Namespace) -> io::Result<()> {
        self.ip(&format!("link add {interface} type veth peer name eth0 netns {}", other.name)).map(drop)
    }

    /// Makes the bridge `br0` with an interface.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn bridge(&self, interface: &str) -> io::Result<()> {
        self.ip("link add br0 type bridge")?;
        self.ip(&format!("link set {interface} master br0 up"))?;
        self.ip("link set br0 up").map(drop)
    }

    /// Moves an interface to another namespace under another name. It is switched off by that.
    ///
    /// # Errors
    /// The message of `ip`.
    pub fn move_to(&self, interface: &str, other: &Namespace, name: &str) -> io::Result<()> {
        self.ip(&format!("link set {interface} netns {} name {name}", other.name)).map(drop)
    }

    /// Sets a kernel setting below `/proc/sys/net` for the namespace.
    ///
    /// # Errors
    /// That of the write.
    pub fn sysctl(&self, path: &str, value: &str) -> io::Result<()> {
        self.enter(|| std::fs::write(format!("/proc/sys/net/{path}"), value))?
    }

    /// Returns a command that runs `command` in the namespace, as the same process.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name]).arg(command.get_program()).args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(key, value),
                None => inside.env_remove(key),
            };
        }
        inside
    }

    /// Calls a function on a thread in the namespace. Sockets that it makes stay in the namespace.
    ///
    /// # Errors
    /// The namespace is gone, or the process may not enter it.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = File::open(format!("/run/netns/{}", self.name))?;
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            inside.join().expect("the work does not panic")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(Command::new("ip").args(["netns", "delete", &self.name]));
    }
}

fn run(command: &mut Command) -> io::Result<String> {
    let output =
        command.env("PATH", programs::path()).stdin(Stdio::null()).output().map_err(|error| {
            io::Error::other(format!("{command:?}: {error}; install the packages iproute2 and iperf3"))
        })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(io::Error::other(format!("{command:?}: {}{}", text(&output.stderr), text(&output.stdout)))),
    }
}
