//! A station's front end over vhost-user-net: what the station sends to its interface goes into a virtqueue, and the other way round.
//!
//! It takes a frame of the station only when the virtqueue has room, as a guest's driver does; what waits is the queue of the station's
//! interface.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::priority;
use rustix::io::{read, writev};
use sluice_client::net::Namespace;
use sluice_client::vhost::ClientError;
use sluice_client::vhost::net::{HEADER_LEN, NetClient, NetOptions};
use sluice_io::uplink::link::{Link, tap};

/// Frames of a VM on their way.
const SLOTS: u16 = 128;
/// Pause when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(200);
/// Room for a frame with its header.
const ROOM: usize = HEADER_LEN + 2000;

/// A running front end, which ends when this is dropped.
pub(super) struct Relay {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ClientError>>>,
}

impl Relay {
    /// Makes `eth0` of a station, and connects it to a NIC.
    pub(super) fn start(station: &Namespace, mac: &str, socket: &Path) -> io::Result<Relay> {
        let tap = station.enter(|| tap::open("eth0", None, None, false))?.map_err(io::Error::other)?;
        station.ip(&format!("link set eth0 address {mac}"))?;
        let options = NetOptions { slots: SLOTS, ..NetOptions::default() };
        let mut guest = NetClient::connect(socket, &options).map_err(io::Error::other)?;
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = thread::Builder::new().name("nic-relay".to_owned()).spawn(move || {
            priority::raise();
            while !end.load(Ordering::Relaxed) {
                if pass(&tap, &mut guest)? == 0 {
                    thread::sleep(PAUSE);
                }
            }
            Ok(())
        })?;
        Ok(Relay { ends, thread: Some(thread) })
    }

    /// Ends it.
    ///
    /// # Errors
    /// It had ended before: what arrived since then says nothing of the scheduler.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.join().map_err(io::Error::other)
    }

    fn join(&mut self) -> Result<(), ClientError> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map_or(Ok(()), |thread| thread.join().expect("passing frames does not panic"))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// Passes the frames that there are; returns their number.
fn pass(tap: &Link, guest: &mut NetClient) -> Result<usize, ClientError> {
    let mut passed = 0;
    while let Some(received) = guest.receive(true)? {
        let _ = writev(tap, &[IoSlice::new(&received.header), IoSlice::new(&received.frame)]);
        passed += 1;
    }
    guest.reclaim();
    let mut room = [0; ROOM];
    while has_room(guest) {
        // The header before a frame of a TAP is that of virtio.
        let Ok(length) = read(tap, &mut room) else { break };
        guest.send(&[(&[], &room[..length])])?;
        passed += 1;
    }
    Ok(passed)
}

/// Whether the virtqueue takes another frame.
fn has_room(guest: &NetClient) -> bool {
    let (used, next) = guest.transmit_indices();
    next.wrapping_sub(used) < SLOTS
}
