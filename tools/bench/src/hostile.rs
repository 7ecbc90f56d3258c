//! `cargo xtask bench hostile`: what a VM costs its neighbour by work that never reaches the device.
//!
//! A victim reserves 1,000 requests a second on a device that completes at once, and reads 500 a second, one at a time. An
//! attacker on the same device is limited to 100 a second. Measured is the victim's rate and its latency, alone and under
//! each attack in turn. With `--beside`, another build alternates with this one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluice_client::hostile::{Attack, RINGS};
use sluice_client::vhost::{Client, ClientError, ClientOptions};

use super::report::{Bound, Cell, Report, Table};
use super::server::{Server, build_sluice, sluice_binary};
use super::stats::Samples;

/// Pause between two reads of the victim.
const EVERY: Duration = Duration::from_millis(2);
/// The attacker's volume over NBD.
const EXPORT: &str = "attacker/nbd";
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

/// Work of the attacker; `None`: there is none.
type Attacker = Option<Attack>;

fn name_of(attacker: Attacker) -> &'static str {
    attacker.map_or("none", Attack::name)
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

fn attackers() -> impl Iterator<Item = Attacker> {
    std::iter::once(None).chain(Attack::ALL.map(Some))
}

pub(super) fn run(options: &Options, quick: bool) -> Result<Report, String> {
    build_sluice()?;
    let (rounds, time) = if quick { (1, Duration::from_millis(300)) } else { (options.rounds, Duration::from_secs(3)) };
    let mut builds = vec![("this build", sluice_binary(), BTreeMap::<Attacker, Measured>::new())];
    builds.extend(options.beside.clone().map(|program| ("beside", program, BTreeMap::new())));
    for round in 0..rounds {
        for (name, program, measured) in &mut builds {
            eprintln!("hostile: {name}, round {} of {rounds}", round + 1);
            for attack in attackers() {
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
                Cell::text(name_of(*attack)),
                Cell::spread(&measured.rate, 0),
                Cell::spread(&measured.p50, 0),
                Cell::spread(&measured.p99, 0),
            ]);
        }
    }
    report.table(table);
    let own = &builds[0].2;
    for attack in Attack::ALL {
        let attacker = &own[&Some(attack)];
        let kept = attacker.rate.ratio(&own[&None].rate).median();
        report.target(format!("victim's rate / alone: {}", attack.name()), Bound::AtLeast(0.95), kept);
        let p99 = attacker.p99.median();
        report.target(format!("victim's p99 [us]: {}", attack.name()), Bound::AtMost(2000.0), p99);
    }
    Ok(report)
}

/// Returns the victim's reads per second, and their latencies in us, sorted.
fn measure(program: &Path, attack: Attacker, time: Duration) -> Result<(f64, Vec<f64>), String> {
    let folder = tempfile::tempdir().map_err(|error| format!("Cannot make a folder for sockets: {error}"))?;
    let path = |name: &str| folder.path().join(name);
    let sockets = Sockets { victim: path("victim"), guest: path("guest"), client: path("client") };
    let waited = vec![sockets.victim.clone(), sockets.guest.clone(), sockets.client.clone()];
    let host = host_file(&sockets);
    let daemon = Server::build_of_sluice(program, folder.path(), "hostile", &host, waited)?;
    let stop = AtomicBool::new(false);
    let measured = thread::scope(|scope| {
        let attacker = scope.spawn(|| attack.map(|attack| attack.run(&sockets.guest, &sockets.client, EXPORT, &stop)));
        let measured = victim(&sockets.victim, time);
        stop.store(true, Ordering::Relaxed);
        // An attacker whose connection is closed has achieved what it can.
        let _ = attacker.join();
        measured
    });
    drop(daemon);
    measured.map_err(|error| format!("The victim failed under {}: {error}", name_of(attack)))
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
