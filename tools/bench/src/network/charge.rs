//! CPU time of the daemon's thread for one frame, one request or one kick: the units with which it divides its CPU time among VMs
//! (`sluice-io`, `cpu.rs`).
//!
//! One VM at a time causes one kind of work, as much as the daemon takes. The daemon states the CPU time of its thread for that VM, without
//! polling that found nothing, and the client counts. Frames go to one of a pair of virtual interfaces. The time of the kernel's part is in
//! it: the system call, and the other end of the pair, which runs on the same CPU.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use sluice_client::nbd;
use sluice_client::net::Namespace;
use sluice_client::vhost::net::{HEADER_LEN, NetOptions};
use sluice_client::vhost::{Client, ClientError, ClientOptions, Request};
use tempfile::TempDir;

use crate::server::{self, Server};

/// Frames and requests on their way.
const SLOTS: u16 = 64;
const WARM: Duration = Duration::from_millis(300);
/// Bytes of a read.
const READ: u32 = 4096;
/// Maximum age of the daemon's figures.
const SAMPLE_AGE: Duration = Duration::from_millis(1100);
/// Time between two kicks, in which the daemon's thread goes to sleep.
const KICK_PAUSE: Duration = Duration::from_micros(200);

/// A kind of work.
pub(super) struct Work {
    pub(super) name: &'static str,
    run: fn(&Daemon, Duration) -> Result<u64, String>,
}

pub(super) const ALL: &[Work] = &[
    Work { name: "frame of 64 bytes", run: |daemon, time| daemon.send(&datagram(64), time) },
    Work { name: "frame of 1,514 bytes", run: |daemon, time| daemon.send(&datagram(1514), time) },
    Work { name: "read of 4 KiB over vhost-user-blk, without a disk", run: Daemon::read_vhost },
    Work { name: "read of 4 KiB over NBD, without a disk", run: Daemon::read_nbd },
    Work { name: "kick without a request", run: Daemon::kick },
];

/// Returns the CPU time of the daemon's thread for one piece of this work, in nanoseconds.
pub(super) fn measure(work: &Work, time: Duration) -> Result<f64, String> {
    let daemon = Daemon::start().map_err(|error| error.to_string())?;
    (work.run)(&daemon, WARM)?;
    thread::sleep(SAMPLE_AGE);
    let before = daemon.cpu_seconds()?;
    let count = (work.run)(&daemon, time)?;
    thread::sleep(SAMPLE_AGE);
    Ok((daemon.cpu_seconds()? - before) * 1e9 / count as f64)
}

/// The header and the bytes of a frame.
type Frame = ([u8; HEADER_LEN], Vec<u8>);

/// An Ethernet and an IPv4 header.
fn headers(protocol: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 200, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    bytes.extend(((length - 14) as u16).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 100, 27, 88, 27, 89]);
    bytes
}

fn datagram(length: usize) -> Frame {
    let mut bytes = headers(17, length);
    bytes.extend(((length - 34) as u16).to_be_bytes());
    bytes.resize(length, 0);
    ([0; HEADER_LEN], bytes)
}

/// A daemon with one VM that has a NIC and a disk.
struct Daemon {
    _server: Server,
    folder: TempDir,
    _inside: Namespace,
}

impl Daemon {
    fn start() -> io::Result<Daemon> {
        let inside = Namespace::new("charge")?;
        inside.ip("link add up0 type veth peer name up1")?;
        inside.ip("link set up1 up")?;
        let folder = server::scratch(None).map_err(io::Error::other)?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let host = format!(
            "[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n[device.disk]\nbackend = \"null\"\n[uplink.lan]\nnic = \"up0\"\n\
             [vm.a.nic.eth0]\nuplink = \"lan\"\nmac = \"02:00:00:00:00:01\"\nsocket = \"{}\"\n\
             [vm.a.volume.v]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n\
             [vm.a.volume.n]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ socket = \"{}\" }}\n",
            path("control"),
            path("state"),
            path("nic"),
            path("disk"),
            path("nbd")
        );
        std::fs::write(path("host.toml"), host)?;
        let mut command = inside.command(Command::new(server::sluice_binary()).arg("serve").arg(path("host.toml")));
        // A connection to a VMM's socket would be in the way of the first client.
        let sockets = ["control", "nbd"].map(|name| folder.path().join(name));
        let server = Server::start(&mut command, sockets.to_vec()).map_err(io::Error::other)?;
        Ok(Daemon { _server: server, folder, _inside: inside })
    }

    /// Returns the CPU time of the threads of its uplink and its device for the VM.
    fn cpu_seconds(&self) -> Result<f64, String> {
        let mut command = Command::new(server::sluice_binary());
        let output = command.args(["metrics", "--socket"]).arg(self.folder.path().join("control")).output();
        let text = String::from_utf8_lossy(&output.map_err(|error| error.to_string())?.stdout).into_owned();
        let values = text.lines().filter(|line| line.starts_with("sluice_vm_cpu_seconds_total{"));
        let values = values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).collect::<Vec<_>>();
        if values.is_empty() { Err("The daemon has no metric of CPU time".to_owned()) } else { Ok(values.iter().sum()) }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn disk(&self, options: &ClientOptions) -> Result<Client, ClientError> {
        super::packets::patiently(|| Client::connect(&self.socket("disk"), options))
    }

    fn send(&self, frame: &Frame, time: Duration) -> Result<u64, String> {
        let options = NetOptions { queue_size: 2 * SLOTS, slots: SLOTS, buffers: 0, ..NetOptions::default() };
        let mut guest = super::packets::connect(&self.socket("nic"), &options).map_err(|error| error.to_string())?;
        let batch = [(&frame.0[..], &frame.1[..]); 16];
        let (begin, mut sent) = (Instant::now(), 0);
        while begin.elapsed() < time {
            guest.reclaim();
            sent += guest.send(&batch).map_err(|error| error.to_string())? as u64;
        }
        Ok(sent)
    }

    fn read_vhost(&self, time: Duration) -> Result<u64, String> {
        let run = || {
            let mut client = self.disk(&ClientOptions { slots: SLOTS, ..ClientOptions::default() })?;
            let submit = |client: &mut Client, slots: &mut dyn Iterator<Item = u16>| {
                let queue = client.queue(0);
                for slot in slots {
                    queue.submit(slot, Request::Read { offset: u64::from(slot) << 12, len: READ })?;
                }
                queue.publish()?;
                queue.kick()
            };
            submit(&mut client, &mut (0..SLOTS))?;
            let (begin, mut count) = (Instant::now(), 0);
            while begin.elapsed() < time {
                let answered = client.wait(0, 1)?;
                count += answered.len() as u64;
                submit(&mut client, &mut answered.iter().map(|completion| completion.slot))?;
            }
            Ok(count)
        };
        run().map_err(|error: ClientError| error.to_string())
    }

    fn read_nbd(&self, time: Duration) -> Result<u64, String> {
        let run = || {
            let mut client = nbd::Client::connect_unix(self.socket("nbd"), "a/n")?;
            let (begin, mut count) = (Instant::now(), 0);
            while begin.elapsed() < time {
                while client.in_flight() < usize::from(SLOTS) {
                    client.submit(0, nbd::Command::Read { offset: 0, len: READ })?;
                }
                count += client.receive(None, &mut |_| ())? as u64;
            }
            Ok(count)
        };
        run().map_err(|error: nbd::ClientError| error.to_string())
    }

    fn kick(&self, time: Duration) -> Result<u64, String> {
        let run = || {
            let mut client = self.disk(&ClientOptions::default())?;
            let (begin, mut count) = (Instant::now(), 0);
            while begin.elapsed() < time {
                rustix::io::write(client.queue(0).kick_descriptor(), &1u64.to_ne_bytes())
                    .map_err(|error| ClientError::Io(error.into()))?;
                count += 1;
                thread::sleep(KICK_PAUSE);
            }
            Ok(count)
        };
        run().map_err(|error: ClientError| error.to_string())
    }
}
