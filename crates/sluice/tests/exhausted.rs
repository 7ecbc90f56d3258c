//! Tenants that use up all memory or all descriptors of the daemon: they are rejected, and other VMs are served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::raw::{Raw, WRITE, header};
use crate::common::{Daemon, MIB, Place, noise, run, sluice, tool, until};
use rustix::event::{EventfdFlags, eventfd};
use sluice_client::vhost::memory::{Memory, PAGE};
use sluice_client::vhost::session::Session;
use sluice_client::vhost::{ALL_FEATURES, ALL_PROTOCOL_FEATURES, Client, ClientError, ClientOptions};

const PATIENCE: Duration = Duration::from_secs(20);
/// Memory that the daemon may allocate in addition to its size when it is ready.
const ROOM: u64 = 48 * MIB;
const QUEUES: u16 = 64;
const ENOMEM: u32 = 12;

/// Serves VM `a` with a volume for each frontend, and VMs `b` and `c` with one of them each.
fn serve(place: &Place) -> Daemon {
    let image = |name: &str| place.image(name, 64 * MIB);
    let control = place.control_keys();
    let window = "window = { requests = 1024, bytes = \"1GiB\" }";
    let guest = |vm: &str, name: &str| {
        let volume = place.vhost_volume(vm, "guest", &image(name), "");
        volume.replace("\"vhost-user-blk\",", &format!("\"vhost-user-blk\", queues = {QUEUES},"))
    };
    let volumes = place.volume("a", "v", &image("a.img"), "")
        + &guest("a", "a-guest.img")
        + &place.volume("b", "v", &image("b.img"), "")
        + &guest("c", "c-guest.img");
    Daemon::serve(place, &(control + &place.device(window) + &volumes))
}

fn nbd(place: &Place, vm: &str) -> std::io::Result<Raw> {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v"))
}

fn guest_socket(place: &Place, vm: &str) -> PathBuf {
    place.volume_socket(vm, "guest")
}

/// VMs that must be served whatever a neighbour uses up.
struct Neighbours<'a> {
    place: &'a Place,
    b: Raw,
    c: Client,
    times: u64,
}

impl Neighbours<'_> {
    fn new(place: &Place) -> Neighbours<'_> {
        let c = Client::connect(&guest_socket(place, "c"), &ClientOptions::default()).unwrap();
        let mut neighbours = Neighbours { place, b: nbd(place, "b").unwrap(), c, times: 0 };
        neighbours.work();
        neighbours.assert_control_responds();
        neighbours
    }

    #[track_caller]
    fn work(&mut self) {
        self.times += 1;
        let data = noise(self.times, 64 << 10);
        assert_eq!(self.b.write(0, &data), Ok(()));
        assert!(self.b.read(0, 64 << 10).unwrap() == data);
        self.c.write(4096, &data).unwrap();
        let mut read = vec![0; data.len()];
        self.c.read(4096, &mut read).unwrap();
        assert!(read == data);
    }

    #[track_caller]
    fn assert_control_responds(&mut self) {
        let weight = format!("weight={}", 1 + self.times % 900);
        run(sluice().args(["set", "b", &weight, "--socket"]).arg(self.place.socket("control"))).ok();
    }
}

/// Sends as much as the daemon accepts.
fn send_what_goes(raw: &mut Raw, bytes: &[u8]) {
    raw.stream.set_nonblocking(true).unwrap();
    let _ = raw.stream.write_all(bytes);
    raw.stream.set_nonblocking(false).unwrap();
}

#[test]
fn connections_that_used_up_memory_ended_the_daemon() {
    let place = Place::new();
    let daemon = serve(&place);
    let mut neighbours = Neighbours::new(&place);
    let mut early = nbd(&place, "a").unwrap();
    daemon.limit("as", daemon.address_space_bytes() + ROOM);
    let mut all = Vec::new();
    while let Ok(raw) = nbd(&place, "a") {
        all.push(raw);
        assert!(all.len() < 900, "there is memory for all");
        neighbours.work();
    }
    neighbours.assert_control_responds();
    let data = vec![7; 32 * MIB as usize];
    assert_eq!(early.write(0, &data), Err(ENOMEM), "its client is told");
    neighbours.work();
    drop(all);
    until("memory is free again", || early.write(0, &data[..MIB as usize]) == Ok(()));
    assert!(nbd(&place, "a").is_ok());
    neighbours.work();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn half_sent_writes_that_used_up_memory_ended_the_daemon() {
    let place = Place::new();
    let daemon = serve(&place);
    let mut neighbours = Neighbours::new(&place);
    let mut all: Vec<Raw> = (0..64).map(|_| nbd(&place, "a").unwrap()).collect();
    daemon.limit("as", daemon.address_space_bytes() + ROOM);
    // Smaller requests use the memory that larger ones leave.
    for (number, raw) in all.iter_mut().enumerate() {
        let length = (32 * MIB) >> (number / 4).min(13);
        let bytes = header(WRITE, 0, 1, 0, length as u32);
        send_what_goes(raw, &[bytes, vec![7; length as usize / 2]].concat());
        neighbours.work();
    }
    neighbours.assert_control_responds();
    drop(all);
    until("memory is free again", || nbd(&place, "a").is_ok_and(|mut raw| raw.write(0, &[7; MIB as usize]) == Ok(())));
    neighbours.work();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn guest_memory_that_used_up_the_address_space_ended_the_daemon() {
    let place = Place::new();
    let daemon = serve(&place);
    let mut neighbours = Neighbours::new(&place);
    let mut hostile = Session::connect(&guest_socket(&place, "a"), PATIENCE).unwrap();
    // From the first reply on it may send descriptors.
    hostile.features().unwrap();
    hostile.set_protocol_features(ALL_PROTOCOL_FEATURES.bits()).unwrap();
    let memory = Memory::new((ROOM + 16 * MIB) as usize, 250).unwrap();
    daemon.limit("as", daemon.address_space_bytes() + ROOM);
    let mut refused = 0;
    for &region in memory.regions() {
        match hostile.add_region(&memory, region) {
            Ok(()) => {}
            Err(ClientError::Refused { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        if refused == 10 {
            break;
        }
        neighbours.work();
    }
    assert_eq!(refused, 10, "there is memory for all");
    neighbours.work();
    neighbours.assert_control_responds();
    assert!(nbd(&place, "b").is_err(), "nobody gets what is kept for the daemon");
    drop(hostile);
    until("memory is free again", || nbd(&place, "b").is_ok());
    neighbours.work();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn rings_that_started_together_used_up_the_descriptors_of_the_control_socket() {
    let place = Place::new();
    let daemon = serve(&place);
    let mut neighbours = Neighbours::new(&place);
    let limit = 256;
    daemon.limit("nofile", limit);
    let mut session = Session::connect(&guest_socket(&place, "a"), PATIENCE).unwrap();
    session.set_protocol_features(ALL_PROTOCOL_FEATURES.bits()).unwrap();
    session.set_features(ALL_FEATURES & session.features().unwrap()).unwrap();
    let memory = Memory::new(16 * PAGE, 1).unwrap();
    let places = [0, PAGE, 2 * PAGE].map(|offset| memory.user(offset));
    // Each ring has three descriptors, and all rings start when the memory table arrives.
    let rings = (limit * 3 / 4 - daemon.descriptors() - 8) / 3;
    for ring in 0..rings as u16 {
        session.set_ring_size(ring, 64).unwrap();
        session.set_ring_addresses(ring, places).unwrap();
        session.enable_ring(ring, true).unwrap();
        let [kick, call, error] = [(); 3].map(|()| eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        session.set_ring_call(ring, Some(call.as_fd())).unwrap();
        session.set_ring_error(ring, Some(error.as_fd())).unwrap();
        session.set_ring_kick(ring, Some(kick.as_fd())).unwrap();
    }
    let before = daemon.descriptors();
    session.set_memory_table(&memory).unwrap();
    assert!(daemon.descriptors() <= before, "{before} before, {} after", daemon.descriptors());
    let connections = std::iter::from_fn(|| nbd(&place, "a").ok()).take(500);
    let connections: Vec<Raw> = connections.collect();
    assert!(connections.len() < 500);
    neighbours.assert_control_responds();
    neighbours.work();
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn connections_that_were_allowed_took_the_descriptors_of_other_sockets() {
    let place = Place::new();
    let address = crate::common::free_address();
    let image = |name: &str| place.image(name, MIB);
    let (tcp, control) = (place.volume("t", "v", &image("t.img"), ""), place.socket("control"));
    let at = format!("socket = \"{}\"", place.volume_socket("t", "v").display());
    let host = place.control_keys()
        + "[nbd]\nconnections_max = 500\n"
        + &place.device("")
        + &place.volume("a", "v", &image("a.img"), "")
        + &place.volume("b", "v", &image("b.img"), "")
        + &tcp.replace(&at, &format!("listen = \"{address}\""));
    // Three quarters of them are for clients: 180, and the daemon needs 32 + 3 + 3 x (2 + 2) = 47.
    let limited = |command: &mut Command| {
        let mut prlimit = tool("prlimit", "util-linux");
        prlimit.arg("--nofile=240").arg(command.get_program()).args(command.get_args());
        prlimit
    };
    let daemon = Daemon::serve_by(&place, &host, limited);
    let said = daemon.stderr().up_to(&["Ready"]);
    let line = said.lines().find(|line| line.contains("limit of file descriptors is too low")).expect(&said);
    assert!(line.contains("allowed=133 wanted=500") && line.contains("raise LimitNOFILE to 803"), "{line}");
    assert_eq!(daemon.accounts().0["connections_max"], 133);

    let hostile: Vec<Raw> = std::iter::from_fn(|| nbd(&place, "a").ok()).take(500).collect();
    assert_eq!(hostile.len(), 133 - 2 * 2, "the rest is reserved for the others");
    let others = || -> Vec<Raw> { (0..2).map(|_| nbd(&place, "b").unwrap()).collect() };
    others().iter_mut().for_each(|raw| assert_eq!(raw.write(0, &noise(1, 4096)), Ok(())));
    let mut over_tcp: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for stream in &mut over_tcp {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    }
    run(sluice().args(["set", "b", "weight=7", "--socket"]).arg(&control)).ok();
    assert_eq!(daemon.terminate().code(), Some(0));
}
