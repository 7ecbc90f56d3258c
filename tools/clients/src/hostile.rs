//! Clients that attack a daemon with work that never reaches the device, for benchmarks and tests of what that costs a
//! neighbour on the same device.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::nbd;
use crate::vhost::{Client, ClientError, ClientOptions, Request};

/// Rings of an attacker over vhost-user: its volume needs as many queues.
pub const RINGS: u16 = 64;
/// Their entries.
const ENTRIES: u16 = 1024;
/// Length of the writes of which an attacker sends only the header, in bytes.
const WRITE: usize = 32 << 20;
/// Pause between two of its connections.
const CONNECT_EVERY: Duration = Duration::from_millis(20);

/// An attack by one VM on its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// Fills all rings with requests that the device does not support.
    RefusedRequests,
    /// Starts a ring again and again that holds writes which must be copied.
    RingStarts,
    /// Connects, sends the header of a large write over NBD, and connects again.
    WriteHeaders,
}

impl Attack {
    /// All attacks.
    pub const ALL: [Attack; 3] = [Attack::RefusedRequests, Attack::RingStarts, Attack::WriteHeaders];

    /// The attack in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Attack::RefusedRequests => "64 rings of 1,024 refused requests each",
            Attack::RingStarts => "starts of a ring that holds 48 writes of 1 MiB",
            Attack::WriteHeaders => "50 connections a second, each with the header of a write of 32 MiB",
        }
    }

    /// Attacks until `stop` is set, and returns the number of requests that the daemon has answered: `guest` is the vhost-user socket of one volume of at least 48 MiB with [`RINGS`] queues,
    /// `client` the NBD socket of another one that is called `export`.
    ///
    /// # Errors
    /// [`ClientError`], if the daemon closes the attacker's connection.
    pub fn run(self, guest: &Path, client: &Path, export: &str, stop: &AtomicBool) -> Result<u64, ClientError> {
        match self {
            Attack::RefusedRequests => refused_requests(guest, stop),
            Attack::RingStarts => ring_starts(guest, stop).map(|()| 0),
            Attack::WriteHeaders => {
                write_headers(client, export, stop);
                Ok(0)
            }
        }
    }
}

fn refused_requests(socket: &Path, stop: &AtomicBool) -> Result<u64, ClientError> {
    let options =
        ClientOptions { queues: RINGS, queue_size: ENTRIES, slots: 256, data_len_max: 512, ..ClientOptions::default() };
    let mut client = Client::connect(socket, &options)?;
    let (mut completed, mut answered) = (Vec::new(), 0);
    let mut free: Vec<Vec<u16>> = (0..RINGS).map(|_| (0..256).collect()).collect();
    while !stop.load(Ordering::Relaxed) {
        for ring in 0..RINGS {
            let queue = client.queue(ring);
            for slot in free[usize::from(ring)].drain(..) {
                queue.submit(slot, Request::Other { kind: 77, sector: 0, to_device: 0, from_device: 0 })?;
            }
            queue.publish()?;
            queue.kick()?;
            completed.clear();
            queue.reap(&mut completed)?;
            answered += completed.len() as u64;
            free[usize::from(ring)].extend(completed.iter().map(|completion| completion.slot));
        }
    }
    Ok(answered)
}

fn ring_starts(socket: &Path, stop: &AtomicBool) -> Result<(), ClientError> {
    let slots = 48;
    let options = ClientOptions { slots, data_len_max: 1 << 20, ..ClientOptions::default() };
    let mut client = Client::connect(socket, &options)?;
    let queue = client.queue(0);
    for slot in 0..slots {
        queue.submit(slot, Request::Write { offset: u64::from(slot) << 20, len: 1 << 20 })?;
    }
    queue.publish()?;
    queue.kick()?;
    let kick = client.queue(0).kick_descriptor().try_clone_to_owned().expect("a descriptor is free");
    while !stop.load(Ordering::Relaxed) {
        client.session()?.set_ring_kick(0, Some(kick.as_fd()))?;
    }
    Ok(())
}

fn write_headers(socket: &Path, export: &str, stop: &AtomicBool) {
    let data = vec![0; WRITE];
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let connected = UnixStream::connect(socket).map_err(|error| error.to_string()).and_then(|stream| {
            let options = nbd::ClientOptions::default();
            nbd::Client::from_unix(stream, export, &options).map_err(|error| error.to_string())
        });
        if let Ok(mut client) = connected {
            let write = nbd::Command::Write { offset: 0, data: &data, fua: false };
            let _ = client.submit(1, write).and_then(|()| client.flush_output().map(drop));
            open.push(client);
        }
        if open.len() > 16 {
            open.remove(0);
        }
        thread::sleep(CONNECT_EVERY);
    }
}
