//! Cost of an attacker for its neighbour, by work that never reaches the device, as ratios to the neighbour alone, and as what the
//! attacker gets: answers and memory. A fast machine hides the first from a test, but not the others.
//!
//! The victim reserves 1,000 requests per second and sends 500, the attacker is limited to 100. The device takes 8 ms for each
//! request, so a device thread that is kept busy for milliseconds shows, and a test that waits for its CPU does not.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::reads::End;
use crate::common::{Daemon, Place};
use sluice_client::hostile::{Attack, RINGS};
use sluice_client::vhost::{Client, ClientOptions, Request};

/// Pause between two reads of the victim.
const EVERY: Duration = Duration::from_millis(2);
/// Length of a measurement.
const TIME: Duration = Duration::from_millis(1000);
const ROUNDS: usize = 3;
/// Maximum of the memory that the daemon takes meanwhile, in bytes. Each header announces twice as much.
const MEMORY_MAX: u64 = 16 << 20;

fn host(place: &Place) -> String {
    let socket = |name: &str| place.socket(name).display().to_string();
    format!(
        "[device.disk]\nbackend = \"null\"\ndepth = 64\ncapacity = \"4000 iops@8KiB\"\n\
         [device.disk.delay]\ntime = \"8ms\"\nparallel = 32\n\
         [vm.victim]\nreservation = \"1000 iops@8KiB\"\n\
         [vm.victim.volume.disk]\ndevice = \"disk\"\nsize = \"1GiB\"\n\
         export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n\
         [vm.attacker]\nlimit = \"100 iops@8KiB\"\nallow_slow = true\n\
         [vm.attacker.volume.guest]\ndevice = \"disk\"\nsize = \"1GiB\"\n\
         export = {{ type = \"vhost-user-blk\", socket = \"{}\", queues = {RINGS} }}\n\
         [vm.attacker.volume.nbd]\ndevice = \"disk\"\nsize = \"1GiB\"\nexport = {{ socket = \"{}\" }}\n",
        socket("victim"),
        socket("guest"),
        socket("client")
    )
}

/// The victim's requests in one measurement, and the latency that 99 % of them do not exceed.
struct Measured {
    requests: usize,
    p99: Duration,
}

/// Sends a read every [`EVERY`], while others are outstanding.
fn measure(place: &Place) -> Measured {
    let options = ClientOptions { slots: 64, ..ClientOptions::default() };
    let mut client = Client::connect(&place.socket("victim"), &options).unwrap();
    let queue = client.queue(0);
    let mut free: Vec<u16> = (0..64).collect();
    let mut sent = [None; 64];
    let (mut latencies, mut completed) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    let mut next = begin;
    while begin.elapsed() < TIME {
        while next <= Instant::now() {
            next += EVERY;
            let Some(slot) = free.pop() else { continue };
            sent[usize::from(slot)] = Some(Instant::now());
            queue.submit(slot, Request::Read { offset: u64::from(slot) << 12, len: 4096 }).unwrap();
            queue.publish().unwrap();
            queue.kick().unwrap();
        }
        // polls: completions, between two reads of the victim
        thread::sleep(next.saturating_duration_since(Instant::now()));
        queue.reap(&mut completed).unwrap();
        for completion in completed.drain(..) {
            latencies.push(sent[usize::from(completion.slot)].take().expect("it was sent").elapsed());
            free.push(completion.slot);
        }
    }
    latencies.sort();
    Measured { requests: latencies.len(), p99: latencies[latencies.len() * 99 / 100] }
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

#[test]
fn an_attacker_below_its_limit_took_its_neighbours_device_thread() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    for attack in Attack::ALL {
        let (mut rates, mut delays) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let alone = measure(&place);
            daemon.forget_peak();
            let resident = daemon.peak_bytes();
            let stop = AtomicBool::new(false);
            let (beside, answered) = thread::scope(|scope| {
                let attacker =
                    scope.spawn(|| attack.run(&place.socket("guest"), &place.socket("client"), "attacker/nbd", &stop));
                let end = End(&stop);
                let beside = measure(&place);
                drop(end);
                // An attacker whose connection the daemon closes has achieved what it can.
                (beside, attacker.join().unwrap().unwrap_or_default())
            });
            let grown = daemon.peak_bytes().saturating_sub(resident);
            let name = attack.name();
            // Its limit is a fifth of the victim's rate.
            assert!(answered <= beside.requests as u64, "{name}: {answered} answers beside {}", beside.requests);
            assert!(grown < MEMORY_MAX, "{name}: the daemon took {grown} bytes");
            rates.push(beside.requests as f64 / alone.requests as f64);
            delays.push(beside.p99.as_secs_f64() / alone.p99.as_secs_f64());
        }
        let (rate, delay) = (median(rates.clone()), median(delays.clone()));
        assert!(rate >= 0.95, "{}: the victim kept {rate:.2} of its rate: {rates:?}", attack.name());
        assert!(delay <= 2.0, "{}: the victim's p99 was {delay:.2} times as long: {delays:?}", attack.name());
    }
}
