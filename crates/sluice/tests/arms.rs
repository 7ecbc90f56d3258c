//! The same cases on a real and on a modelled device: the daemon with a `delay` device and NBD clients, and the
//! simulator with as many servers of the same service time. Both run the same gate and scheduler. Each VM's part of
//! the completed requests must agree within 2 % of the total.
//!
//! Parts are counted over a number of requests and not over a time, because a pause of the machine delays clients and
//! counting alike. Decisions that depend on a clock (limits, reservations) may be wrong after a pause, so each case
//! has three attempts.

#![allow(clippy::disallowed_macros, reason = "tests print for the developer")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::common::{Daemon, LONG, Place};
use sluice_client::nbd::{Client, Command};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::units::{Iops, Weight};
use sluice_sched::{Gate, GateSettings, Instant, Policy, schedulers};
use sluice_sim::checks::check;
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::Simulation;
use sluice_sim::random::stream;
use sluice_sim::workloads::{Address, Closed, Mix};

/// The device serves 2,000 requests per second.
const SERVICE: Duration = Duration::from_millis(4);
const SERVERS: u32 = 8;
const DEPTH: u32 = 32;
/// Requests in flight of each VM, and their size.
const OUTSTANDING: u32 = 32;
const BLOCK: u32 = 8192;
/// Numbers of requests before counting, and during it.
const WARM: u64 = 500;
const COUNTED: u64 = 2500;
const VOLUME: u64 = 64 << 20;

/// Policy of a VM, in both arms.
#[derive(Clone, Copy)]
struct Vm {
    weight: u32,
    reservation: Option<u64>,
    limit: Option<u64>,
}

const fn vm(weight: u32, reservation: Option<u64>, limit: Option<u64>) -> Vm {
    Vm { weight, reservation, limit }
}

/// Returns each VM's part of the counted requests.
fn parts(counts: &[u64], before: &[u64]) -> Vec<f64> {
    let counts: Vec<f64> = counts.iter().zip(before).map(|(count, before)| (count - before) as f64).collect();
    let all: f64 = counts.iter().sum();
    counts.iter().map(|count| count / all).collect()
}

/// A client with a constant number of requests in flight, which reports each completion.
fn ask(socket: PathBuf, export: String, vm: usize, over: Sender<usize>, stop: Arc<AtomicBool>) {
    let mut client = Client::connect_unix(&socket, &export).unwrap();
    let mut free: Vec<u64> = (0..u64::from(OUTSTANDING)).collect();
    let mut place = vm as u64;
    while !stop.load(Ordering::Relaxed) {
        for cookie in free.drain(..) {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (place >> 33) % (VOLUME / u64::from(BLOCK)) * u64::from(BLOCK);
            client.submit(cookie, Command::Read { offset, len: BLOCK }).unwrap();
        }
        client.flush_output().unwrap();
        client.receive(None, &mut |reply| free.push(reply.cookie)).unwrap();
        // The counting thread may have ended.
        for _ in &free {
            let _ = over.send(vm);
        }
    }
    while client.in_flight() > 0 {
        client.receive(None, &mut |_| ()).unwrap();
    }
    client.disconnect().unwrap();
}

fn real(vms: &[Vm]) -> Vec<f64> {
    let place = Place::new();
    let mut host = format!("[device.disk]\nbackend = \"null\"\ndepth = {DEPTH}\ncapacity = \"2000 iops@8KiB\"\n");
    host += &format!("[device.disk.delay]\ntime = \"{}ms\"\nparallel = {SERVERS}\n", SERVICE.as_millis());
    let rate =
        |name: &str, rate: Option<u64>| rate.map_or(String::new(), |rate| format!("{name} = \"{rate} iops@8KiB\"\n"));
    for (index, vm) in vms.iter().enumerate() {
        let socket = place.volume_socket(&format!("v{index}"), "v");
        let (reservation, limit) = (rate("reservation", vm.reservation), rate("limit", vm.limit));
        host += &format!("[vm.v{index}]\nweight = {}\n{reservation}{limit}", vm.weight);
        host += &format!("[vm.v{index}.volume.v]\ndevice = \"disk\"\nsize = \"64MiB\"\n");
        host += &format!("export = {{ socket = \"{}\" }}\n", socket.display());
    }
    let daemon = Daemon::serve(&place, &host);
    let (over, arrived) = channel();
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..vms.len())
        .map(|vm| {
            let (socket, export) = (place.volume_socket(&format!("v{vm}"), "v"), format!("v{vm}/v"));
            let (over, stop) = (over.clone(), stop.clone());
            thread::spawn(move || ask(socket, export, vm, over, stop))
        })
        .collect();
    let mut counts = vec![0; vms.len()];
    let mut before = counts.clone();
    for number in 0..WARM + COUNTED {
        if number == WARM {
            before = counts.clone();
        }
        counts[arrived.recv_timeout(LONG).expect("requests are answered")] += 1;
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(daemon.terminate().code(), Some(0));
    parts(&counts, &before)
}

fn modelled(vms: &[Vm]) -> Vec<f64> {
    let descriptor = schedulers::find("mclock").unwrap();
    let info = DeviceInfo { depth: DEPTH, ..DeviceInfo::default() };
    let scheduler = descriptor.build(&info, &Default::default()).unwrap();
    let gate = Gate::new(scheduler, GateSettings { depth: DEPTH, merging: false, ..GateSettings::default() });
    let device = Servers::new(SERVERS, ServiceTime::Fixed(SERVICE), stream(1, "service"));
    let mut simulation = Simulation::new(gate, Box::new(device), Duration::ZERO, Duration::from_secs(1));
    for (index, vm) in vms.iter().enumerate() {
        let mut policy = Policy { weight: Some(Weight::new(vm.weight)), ..Policy::default() };
        policy.reservation.iops = vm.reservation.map(Iops::per_second);
        policy.limit.iops = vm.limit.map(Iops::per_second);
        let mix = Mix { reads: 1.0, length: BLOCK, address: Address::random(0, VOLUME) };
        let random = stream(1, &format!("v{index}"));
        let workload = Closed::new(OUTSTANDING, Duration::ZERO, mix, Instant::ZERO, random);
        simulation.add_vm(policy, index as u64 * VOLUME, Box::new(workload)).unwrap();
    }
    let counts =
        |simulation: &Simulation| -> Vec<u64> { (0..vms.len()).map(|vm| simulation.record(vm).completed).collect() };
    let mut up_to = |requests: u64| {
        while counts(&simulation).iter().sum::<u64>() < requests {
            simulation.run_until(Instant::from_nanos(simulation.now().as_nanos() + 1_000_000));
        }
        counts(&simulation)
    };
    let before = up_to(WARM);
    let after = up_to(WARM + COUNTED);
    assert_eq!(check(&simulation), []);
    parts(&after, &before)
}

#[test]
fn a_modelled_device_divides_its_capacity_like_a_real_one() {
    let cases = [
        ("shares", [vm(1, None, None), vm(2, None, None), vm(3, None, None)]),
        ("a reservation", [vm(1, Some(500), None), vm(1000, None, None), vm(1000, None, None)]),
        ("a limit", [vm(100, None, Some(200)), vm(100, None, None), vm(200, None, None)]),
    ];
    for (name, vms) in cases {
        let model = modelled(&vms);
        let mut tries = (0..3).map(|_| real(&vms));
        let mut seen = Vec::new();
        let agrees = tries.any(|real| {
            let off = real.iter().zip(&model).map(|(real, model)| (real - model).abs()).fold(0.0, f64::max);
            seen.push(real);
            off <= 0.02
        });
        println!("{name}: modelled {model:.3?}, real {seen:.3?}");
        assert!(agrees, "{name}: modelled {model:.3?}, real {seen:.3?}");
    }
}
