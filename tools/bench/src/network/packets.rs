//! Frames of 64 bytes that a guest sends over vhost-user-net, per second: what the daemon's loop does for each frame.
//!
//! The uplink's interface is missing in one row: its frames take the whole way through guard, switch, gate and pacer, and end where the kernel
//! would be called. In the other they are written to one of a pair of virtual interfaces, a system call for each.

use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use sluice_client::net::Namespace;
use sluice_client::vhost::net::{HEADER_LEN, NetClient, NetOptions};

use crate::server::{self, Server};

/// Frames on their way.
const SLOTS: u16 = 512;
/// Length of a frame.
const FRAME: usize = 64;
const WARM: Duration = Duration::from_millis(300);
/// Maximum time until a guest is connected, and the time between two attempts.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// A datagram from the NIC's address to a station outside.
fn frame() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 200, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend([0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 100, 27, 88, 27, 89, 0, 30]);
    frame.resize(FRAME, 0);
    frame
}

/// Connects a guest to the socket of a NIC.
pub(super) fn connect(socket: &Path, options: &NetOptions) -> io::Result<NetClient> {
    patiently(|| NetClient::connect(socket, options)).map_err(io::Error::other)
}

/// Connects to a daemon that starts. A socket may not be there yet, and that of a VMM may still have the connection by which
/// the daemon was waited for: it takes one at a time.
pub(super) fn patiently<T, E>(mut connect: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match connect() {
            Err(_) if begin.elapsed() < CONNECT_MAX => thread::sleep(CONNECT_PAUSE),
            connected => return connected,
        }
    }
}

/// Returns frames per second in `time`, and the CPU time of the daemon, in parts of a CPU.
pub(super) fn measure(has_interface: bool, time: Duration) -> io::Result<(f64, f64)> {
    let inside = Namespace::new("packets")?;
    if has_interface {
        inside.ip("link add up0 type veth peer name up1")?;
        inside.ip("link set up1 up")?;
    }
    let folder = server::scratch(None).map_err(io::Error::other)?;
    let [control, socket, file] = ["control", "nic", "host.toml"].map(|name| folder.path().join(name));
    let host = format!(
        "[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n[uplink.lan]\nnic = \"up0\"\n[vm.a.nic.eth0]\nuplink = \"lan\"\n\
         mac = \"02:00:00:00:00:01\"\nsocket = \"{}\"\n",
        control.display(),
        folder.path().join("state").display(),
        socket.display()
    );
    std::fs::write(&file, host)?;
    let mut command = inside.command(Command::new(server::sluice_binary()).arg("serve").arg(&file));
    let daemon = Server::start(&mut command, vec![control, socket.clone()]).map_err(io::Error::other)?;
    let options = NetOptions { queue_size: 2 * SLOTS, slots: SLOTS, buffers: 0, ..NetOptions::default() };
    let mut guest = connect(&socket, &options)?;
    let (header, frame) = ([0; HEADER_LEN], frame());
    let batch = [(&header[..], &frame[..]); 32];
    let mut send_for = |time: Duration| -> io::Result<u64> {
        let (begin, mut sent) = (Instant::now(), 0);
        while begin.elapsed() < time {
            guest.reclaim();
            sent += guest.send(&batch).map_err(io::Error::other)? as u64;
        }
        Ok(sent)
    };
    send_for(WARM)?;
    let (begin, used) = (Instant::now(), daemon.cpu_seconds());
    let sent = send_for(time)?;
    let time = begin.elapsed().as_secs_f64();
    Ok((sent as f64 / time, (daemon.cpu_seconds() - used) / time))
}
