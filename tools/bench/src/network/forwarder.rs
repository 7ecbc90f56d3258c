//! A plain forwarder: it reads frames from TAPs and writes them to a packet socket, and the other way round.
//!
//! It does what the daemon must do at least, on one thread: no guard, no charge, no scheduler, no queue. What the interface does not take is lost.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{readv, writev};
use sluice_client::net::Namespace;
use sluice_io::uplink::link::{Link, LinkError, packet_socket, tap};
use sluice_net::Mac;

/// Room for the longest frame.
const FRAME_MAX: usize = 66_000;
/// Length of the header before a frame of a TAP, and before one of a packet socket.
const TAP_HEADER: usize = 12;
const SOCKET_HEADER: usize = 10;
/// Length of an address, with which a frame begins.
const MAC: usize = 6;
/// Frames that are read from an interface before the next one.
const BATCH: usize = 32;
/// Time between two looks at whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A running forwarder.
pub(super) struct Forwarder {
    ends: Arc<AtomicBool>,
    cpu_nanos: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Makes TAPs and forwards between them and an interface of the namespace.
    pub(super) fn start(inside: &Namespace, interface: &str, taps: &[String]) -> io::Result<Forwarder> {
        let opened = inside.enter(|| {
            let open = |(number, name): (u8, &String)| tap::open(name, Some(Mac([2, 0, 0, 0, 0, number])), None, true);
            let taps: Result<Vec<Link>, LinkError> = (0..).zip(taps).map(open).collect();
            Ok((packet_socket::open(interface)?, taps?))
        })?;
        let (socket, taps) = opened.map_err(|error: LinkError| io::Error::other(error))?;
        let (ends, cpu_nanos) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (end, cpu) = (Arc::clone(&ends), Arc::clone(&cpu_nanos));
        let thread = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                forward(&socket, &taps);
                let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                cpu.store(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64, Ordering::Relaxed);
            }
        });
        Ok(Forwarder { ends, cpu_nanos, thread: Some(thread) })
    }

    /// Returns the CPU time of its thread.
    pub(super) fn cpu_seconds(&self) -> f64 {
        self.cpu_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for frames, and forwards a batch of each interface that has some.
fn forward(socket: &Link, taps: &[Link]) {
    let mut polled: Vec<PollFd<'_>> =
        std::iter::once(socket).chain(taps).map(|link| PollFd::new(link, PollFlags::IN)).collect();
    if poll(&mut polled, Some(&LOOK)).is_err() {
        return;
    }
    let is_ready: Vec<bool> = polled.iter().map(|polled| polled.revents().contains(PollFlags::IN)).collect();
    let mut frame = vec![0; FRAME_MAX];
    for (tap, _) in taps.iter().zip(&is_ready[1..]).filter(|(_, is_ready)| **is_ready) {
        for _ in 0..BATCH {
            let mut header = [0; TAP_HEADER];
            let Some(length) = read(tap, &mut header, &mut frame) else { break };
            let parts = [IoSlice::new(&header[..SOCKET_HEADER]), IoSlice::new(&frame[..length])];
            let _ = writev(socket, &parts);
        }
    }
    for _ in 0..if is_ready[0] { BATCH } else { 0 } {
        let mut header = [0; TAP_HEADER];
        let Some(length) = read(socket, &mut header[..SOCKET_HEADER], &mut frame) else { return };
        let to = |tap: &Link| {
            let _ = writev(tap, &[IoSlice::new(&header), IoSlice::new(&frame[..length])]);
        };
        // The last byte of a TAP's address is its number.
        let number = usize::from(frame[MAC - 1]);
        if frame[0] & 1 == 1 || number >= taps.len() { taps.iter().for_each(to) } else { to(&taps[number]) }
    }
}

/// Reads a header and a frame. Returns the length of the frame, if there is one.
fn read(link: &Link, header: &mut [u8], frame: &mut [u8]) -> Option<usize> {
    let size = header.len();
    let length = readv(link, &mut [IoSliceMut::new(header), IoSliceMut::new(frame)]).ok()?;
    length.checked_sub(size).filter(|length| *length > MAC)
}
