//! `cargo xtask bench hostile`: what a VM costs its neighbour by work that never reaches the device.
//!
//! A victim reserves 1,000 requests a second on a device that completes at once, and reads 500 a second, one at a time. An
//! attacker on the same device is limited to 100 a second. Measured is the victim's rate and its latency, alone and under
//! each attack in turn. With `--beside`, another build alternates with this one.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluice_client::nbd;
use sluice_client::vhost::{Client, ClientError, ClientOptions, Request};

use super::report::{Bound, Cell, Report, Table};
use super::server::{Server, build_sluice, sluice_binary};
use super::stats::Samples;

/// Pause between two reads of the victim.
const EVERY: Duration = Duration::from_millis(2);
/// Rings of an attacker, and their entries.
const RINGS: u16 = 64;
const ENTRIES: u16 = 1024;
/// Length of the writes of which an attacker sends only the header, and pause between two connections.
const WRITE: usize = 32 << 20;
const CONNECT_EVERY: Duration = Duration::from_millis(20);

/// Options of the benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Another build of the daemon, which alternates with this one.
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
    /// Number of rounds.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

/// What the attacker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Attack {
    None,
    RefusedRequests,
    RingStarts,
    WriteHeaders,
}

const ATTACKS: [Attack; 4] = [Attack::None, Attack::RefusedRequests, Attack::RingStarts, Attack::WriteHeaders];

impl Attack {
    fn name(self) -> &'static str {
        match self {
            Attack::None => "none",
            Attack::RefusedRequests => "64 rings of 1,024 refused requests each",
            Attack::RingStarts => "starts of a ring that holds 48 writes of 1 MiB",
            Attack::WriteHeaders => "50 connections a second, each with the header of a write of 32 MiB",
        }
    }

    /// Attacks until `stop` is set.
    fn run(self, sockets: &Sockets, stop: &AtomicBool) -> Result<(), ClientError> {
        match self {
            Attack::None => Ok(()),
            Attack::RefusedRequests => refused_requests(&sockets.guest, stop),
            Attack::RingStarts => ring_starts(&sockets.guest, stop),
            Attack::WriteHeaders => {
                write_headers(&sockets.client, stop);
                Ok(())
            }
        }
    }
}

struct Sockets {
    victim: PathBuf,
    /// Of the attacker, over vhost-user and over NBD.
    guest: PathBuf,
    client: PathBuf,
}

/// The victim's measurements under one attack.
#[derive(Default)]
struct Measured {
    rate: Samples,
    p50: Samples,
    p99: Samples,
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    build_sluice()?;
    let (rounds, time) = if quick { (1, Duration::from_millis(300)) } else { (options.rounds, Duration::from_secs(3)) };
    let mut builds = vec![("this build", sluice_binary(), BTreeMap::<Attack, Measured>::new())];
    builds.extend(options.beside.clone().map(|program| ("beside", program, BTreeMap::new())));
    for round in 0..rounds {
        for (name, program, measured) in &mut builds {
            eprintln!("hostile: {name}, round {} of {rounds}", round + 1);
            for attack in ATTACKS {
                let (rate, latencies) = measure(program, attack, time)?;
                let measured = measured.entry(attack).or_default();
                measured.rate.push(rate);
                measured.p50.push(latencies[latencies.len() / 2]);
                measured.p99.push(latencies[latencies.len() * 99 / 100]);
            }
        }
    }
    let mut report = Report::new("hostile");
    let columns = ["build", "attack", "victim's reads per second", "p50 [us]", "p99 [us]"];
    let mut table = Table::new("A VM that reads 500 times a second, beside an attacker limited to 100 IOPS", &columns);
    for (name, _, measured) in &builds {
        for (attack, measured) in measured {
            table.row(vec![
                Cell::text(*name),
                Cell::text(attack.name()),
                Cell::spread(&measured.rate, 0),
                Cell::spread(&measured.p50, 0),
                Cell::spread(&measured.p99, 0),
            ]);
        }
    }
    report.table(table);
    let own = &builds[0].2;
    for attack in &ATTACKS[1..] {
        let kept = own[attack].rate.ratio(&own[&Attack::None].rate).median();
        report.target(format!("victim's rate / alone: {}", attack.name()), Bound::AtLeast(0.95), kept);
        let p99 = own[attack].p99.median();
        report.target(format!("victim's p99 [us]: {}", attack.name()), Bound::AtMost(2000.0), p99);
    }
    Ok(report)
}

/// Returns the victim's reads per second, and their latencies in us, sorted.
fn measure(program: &Path, attack: Attack, time: Duration) -> Result<(f64, Vec<f64>), String> {
    let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
    let path = |name: &str| folder.path().join(name);
    let sockets = Sockets { victim: path("victim"), guest: path("guest"), client: path("client") };
    let waited = vec![sockets.victim.clone(), sockets.guest.clone(), sockets.client.clone()];
    let host = host_file(&sockets);
    let daemon = Server::build_of_sluice(program, folder.path(), "hostile", &host, waited)?;
    let stop = AtomicBool::new(false);
    let measured = thread::scope(|scope| {
        let attacker = scope.spawn(|| attack.run(&sockets, &stop));
        let measured = victim(&sockets.victim, time);
        stop.store(true, Ordering::Relaxed);
        // An attacker whose connection is closed has achieved what it can.
        let _ = attacker.join();
        measured
    });
    drop(daemon);
    measured.map_err(|error| format!("The victim failed under {}: {error}", attack.name()))
}

fn victim(socket: &Path, time: Duration) -> Result<(f64, Vec<f64>), ClientError> {
    let mut client = Client::connect(socket, &ClientOptions::default())?;
    let mut latencies = Vec::new();
    let begin = Instant::now();
    let mut next = begin;
    while begin.elapsed() < time {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        client.read(0, &mut [0; 4096])?;
        latencies.push(sent.elapsed().as_secs_f64() * 1e6);
        next = (next + EVERY).max(sent);
    }
    let rate = latencies.len() as f64 / begin.elapsed().as_secs_f64();
    latencies.sort_by(f64::total_cmp);
    Ok((rate, latencies))
}

fn refused_requests(socket: &Path, stop: &AtomicBool) -> Result<(), ClientError> {
    let options =
        ClientOptions { queues: RINGS, queue_size: ENTRIES, slots: 256, data_len_max: 512, ..ClientOptions::default() };
    let mut client = Client::connect(socket, &options)?;
    let mut completed = Vec::new();
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
            free[usize::from(ring)].extend(completed.iter().map(|completion| completion.slot));
        }
    }
    Ok(())
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

fn write_headers(socket: &Path, stop: &AtomicBool) {
    let data = vec![0; WRITE];
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let connected = UnixStream::connect(socket).map_err(|error| error.to_string()).and_then(|stream| {
            let options = nbd::ClientOptions::default();
            nbd::Client::from_unix(stream, "attacker/nbd", &options).map_err(|error| error.to_string())
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

fn host_file(sockets: &Sockets) -> String {
    let Sockets { victim, guest, client } = sockets;
    format!(
        "[device.disk]\nbackend = \"null\"\ncapacity = \"100000 iops@8KiB\"\n\
         [vm.victim]\nreservation = \"1000 iops\"\n\
         [vm.victim.volume.disk]\ndevice = \"disk\"\nsize = \"1GiB\"\n\
         export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n\
         [vm.attacker]\nlimit = \"100 iops\"\nallow_slow = true\n\
         [vm.attacker.volume.guest]\ndevice = \"disk\"\nsize = \"1GiB\"\n\
         export = {{ type = \"vhost-user-blk\", socket = \"{}\", queues = {RINGS} }}\n\
         [vm.attacker.volume.nbd]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ socket = \"{}\" }}\n",
        victim.display(),
        guest.display(),
        client.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_file_is_valid() {
        let path = |name: &str| PathBuf::from(format!("/run/sluice/{name}"));
        let sockets = Sockets { victim: path("victim"), guest: path("guest"), client: path("client") };
        sluice_config::parse("hostile", &host_file(&sockets)).unwrap();
    }
}
