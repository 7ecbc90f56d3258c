//! Broken, hostile or dead clients harm only themselves and their own VM.

use std::io::Write;
use std::net::Shutdown;

use crate::common::raw::{READ, Raw, WRITE, connect, greet, header, is_closed, option};
use crate::common::{Daemon, KIB, MIB, Place, fio, free_address, noise, start, tool, until};
use rustix::process::Signal;

/// Two VMs with a volume each; `window` is the device's window.
fn two_vms(place: &Place, window: &str, more: &str) -> Daemon {
    let (a, b) = (place.image("a.img", 64 * MIB), place.image("b.img", 64 * MIB));
    let volumes = place.volume("a", "v", &a, "") + &place.volume("b", "v", &b, "");
    Daemon::serve(place, &(place.device(&format!("window = {window}")) + &volumes + more))
}

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

fn assert_works(raw: &mut Raw, seed: u64) {
    let data = noise(seed, 64 << 10);
    assert_eq!(raw.write(128 * KIB, &data), Ok(()));
    assert!(raw.read(128 * KIB, 64 << 10).unwrap() == data);
}

/// Half of a write that fills the window shared by all volumes of the VM.
#[test]
fn a_half_sent_write_blocked_every_volume_of_its_vm() {
    let place = Place::new();
    let image = |name: &str| place.image(name, 4 * MIB);
    let (a, b) = (place.volume("a", "v", &image("v.img"), ""), place.volume("a", "w", &image("w.img"), ""));
    let window = "window = { requests = 64, bytes = \"256KiB\" }";
    let _daemon = Daemon::serve(&place, &(place.device(window) + &a + &b));
    let mut stuck = open(&place, "a");
    let mut other = Raw::open(&place.volume_socket("a", "w"), "a/w").unwrap();
    stuck.stream.write_all(&header(WRITE, 0, 1, 0, MIB as u32)).unwrap();
    stuck.stream.write_all(&noise(1, 300 << 10)).unwrap();
    // This client waits until the first one is closed, because the window is full.
    for seed in 0..3 {
        assert_works(&mut other, seed);
    }
    assert!(stuck.is_disconnected());
    assert_works(&mut other, 9);
}

#[test]
fn silent_connections_used_up_all_connections_until_their_timeout() {
    let place = Place::new();
    let _daemon = two_vms(&place, "{ requests = 64 }", "[nbd]\nconnections_max = 20\n");
    let _silent: Vec<_> = (0..60).map(|_| connect(&place.volume_socket("a", "v")).unwrap()).collect();
    assert_works(&mut open(&place, "a"), 1);
    assert_works(&mut open(&place, "b"), 2);
}

#[test]
fn a_client_that_reads_no_replies_fills_only_its_own_window() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64, bytes = \"8MiB\" }", "");
    let content = noise(1, MIB as usize);
    let (mut stuck, mut fine) = (open(&place, "a"), open(&place, "b"));
    stuck.write(0, &content).unwrap();
    assert_works(&mut fine, 2);
    let before = daemon.resident_bytes();
    // As many as the two socket buffers hold.
    stuck.stream.set_nonblocking(true).unwrap();
    let sent: Vec<u64> = std::iter::from_fn(|| stuck.send(READ, 0, 0, MIB as u32, &[]).ok()).take(10_000).collect();
    stuck.stream.set_nonblocking(false).unwrap();
    assert!(sent.len() > 100, "{} requests", sent.len());
    // The window limits bytes: it is full with the request that reaches 8 MiB.
    until("the window of a is full", || daemon.accounts().number("a", "outstanding") >= 8);
    for seed in 0..200 {
        assert_works(&mut fine, seed);
    }
    assert_eq!(daemon.accounts().number("a", "outstanding"), 8);
    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 8 * MIB + 4 * MIB, "grown by {grown} bytes for a window of 8 MiB");
    // The client was only slow, so it gets all its replies.
    for _ in 0..100 {
        let (answered, errno) = stuck.reply().unwrap();
        assert!(sent.contains(&answered) && errno == 0, "{answered}");
        assert!(stuck.data(MIB as u32).unwrap() == content);
    }
    stuck.close();
    until("the client of a has disconnected", || daemon.accounts().number("a", "outstanding") == 0);
    assert_works(&mut fine, 3);
}

#[test]
fn garbage_instead_of_a_handshake_closes_that_connection() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "");
    let mut fine = open(&place, "b");
    let socket = place.volume_socket("a", "v");
    let flags = 3_u32.to_be_bytes();
    let long = option(7, &vec![0; 70 << 10]);
    let mut openings: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0xff; 4],
        [flags.as_slice(), &[0; 64]].concat(),
        [flags.as_slice(), &long].concat(),
        [flags.as_slice(), &option(1, b"no such export")].concat(),
        [flags.as_slice(), &option(1, &[0xff; 5000])].concat(),
        [flags.as_slice(), &option(3, &[]).repeat(300)].concat(),
        [0_u32.to_be_bytes().as_slice(), &option(3, &[])].concat(),
    ];
    openings.extend((0..50).map(|seed| noise(seed, 1 + seed as usize * 40)));
    for bytes in &openings {
        let mut stream = connect(&socket).unwrap();
        // The daemon may close before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        assert!(is_closed(&mut stream), "{:?}", &bytes[..bytes.len().min(24)]);
        assert_eq!(fine.read(0, 512).map(|data| data.len()), Ok(512));
    }
    // An invalid option with a valid format gets an error reply, and the handshake continues.
    let mut stream = greet(&socket).unwrap();
    let go = |payload: &[u8]| option(7, payload);
    stream.write_all(&[go(&[]), go(&[0xff; 8]), option(5, &[]), option(99, b"?"), option(2, &[])].concat()).unwrap();
    assert!(is_closed(&mut stream));
    assert_works(&mut open(&place, "a"), 4);
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn garbage_instead_of_a_request_closes_that_connection_and_is_counted() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "");
    let mut fine = open(&place, "b");
    let endless = header(WRITE, 0, 1, 0, 200 << 20);
    let mut garbage: Vec<Vec<u8>> = vec![vec![0; 28], b"IHAVEOPT".repeat(10), endless];
    garbage.extend((0..20).map(|seed| noise(seed, 28 + seed as usize * 100)));
    for bytes in &garbage {
        let mut broken = open(&place, "a");
        let _ = broken.stream.write_all(bytes);
        assert!(broken.is_disconnected(), "{:?}", &bytes[..28]);
        assert_eq!(fine.read(0, 512).map(|data| data.len()), Ok(512));
    }
    let accounts = daemon.accounts();
    assert_eq!(accounts.number("a", "protocol_errors"), garbage.len() as u64);
    assert_eq!((accounts.number("a", "outstanding"), accounts.number("b", "protocol_errors")), (0, 0));
    assert_works(&mut open(&place, "a"), 5);
}

#[test]
fn a_client_that_stops_in_the_middle_delays_neither_others_nor_the_exit() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "");
    let socket = place.volume_socket("a", "v");
    let one_byte = {
        let mut stream = connect(&socket).unwrap();
        stream.write_all(&[0]).unwrap();
        stream
    };
    let mut half_option = greet(&socket).unwrap();
    half_option.write_all(&option(7, &[0; 100])[..50]).unwrap();
    let mut half_header = open(&place, "a");
    half_header.stream.write_all(&header(WRITE, 0, 1, 0, 4096)[..13]).unwrap();
    let mut half_data = open(&place, "a");
    half_data.stream.write_all(&header(WRITE, 0, 1, 0, 1 << 20)).unwrap();
    half_data.stream.write_all(&noise(1, 300_000)).unwrap();
    let mut half_refused = open(&place, "a");
    half_refused.stream.write_all(&header(WRITE, 0, 1, 64 * MIB, 1 << 20)).unwrap();
    half_refused.stream.write_all(&noise(1, 300_000)).unwrap();
    until("both halves are there", || daemon.accounts().number("a", "outstanding") == 2);
    let (mut same_vm, mut other_vm) = (open(&place, "a"), open(&place, "b"));
    for seed in 0..20 {
        assert_works(&mut same_vm, seed);
        assert_works(&mut other_vm, seed);
    }
    // One client dies: its resources are free again, and its incomplete request has no effect.
    half_data.close();
    until("its request has ended", || daemon.accounts().number("a", "outstanding") == 1);
    assert_eq!(same_vm.read(256 * KIB, 4096), Ok(vec![0; 4096]));
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stderr.contains("Drained") && !ended.stderr.contains("Drain timed out"), "{}", ended.stderr);
    drop((one_byte, half_option, half_header, half_refused));
}

#[test]
fn five_hundred_connections_are_served_and_freed() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 1024 }", "");
    let mut clients: Vec<Raw> = (0..500).map(|n| open(&place, ["a", "b"][n % 2])).collect();
    until("all are there", || daemon.accounts().connections() == 500);
    let cookies: Vec<u64> = clients
        .iter_mut()
        .enumerate()
        .map(|(n, client)| client.send(WRITE, 0, n as u64 * 4096, 4096, &noise(n as u64, 4096)).unwrap())
        .collect();
    for (client, cookie) in clients.iter_mut().zip(cookies) {
        assert_eq!(client.reply().unwrap(), (cookie, 0));
    }
    // Each client reads the data of the client two places further, on the same disk.
    for (n, client) in clients.iter_mut().enumerate() {
        let wrote = (n + 2) % 500;
        assert!(client.read(wrote as u64 * 4096, 4096).unwrap() == noise(wrote as u64, 4096), "{n}");
    }
    drop(clients);
    until("all have disconnected", || daemon.accounts().connections() == 0);
    assert_works(&mut open(&place, "a"), 1);
}

#[test]
fn a_connection_above_the_limit_is_rejected_until_another_closes() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "[nbd]\nconnections_max = 5\n");
    let mut clients: Vec<Raw> = (0..5).map(|n| open(&place, ["a", "b"][n % 2])).collect();
    until("all are there", || daemon.accounts().connections() == 5);
    let refused = Raw::open(&place.volume_socket("a", "v"), "a/v");
    assert!(refused.is_err(), "the sixth came in");
    daemon.stderr().up_to(&["Client rejected: the connection limit is reached"]);
    for client in &mut clients {
        assert_eq!(client.read(0, 512).map(|data| data.len()), Ok(512), "those inside do not notice");
    }
    clients.pop().unwrap().close();
    let mut entered = None;
    until("another client connects", || {
        entered = Raw::open(&place.volume_socket("a", "v"), "a/v").ok();
        entered.is_some()
    });
    assert_works(&mut entered.unwrap(), 1);
}

#[test]
fn a_vm_that_opens_all_its_connections_leaves_the_reserved_ones_to_others() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "[nbd]\nconnections_max = 8\n");
    let try_open = |vm| Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v"));
    let mut greedy: Vec<Raw> = std::iter::from_fn(|| try_open("a").ok()).take(100).collect();
    assert_eq!(greedy.len(), 6);
    daemon
        .stderr()
        .up_to(&["Client rejected: remaining connections are reserved for other sockets; raise nbd.connections_max"]);
    // One connection for the VM, and one for its migration target.
    let mut others = [open(&place, "b"), open(&place, "b")];
    assert!(try_open("b").is_err());
    for client in others.iter_mut().chain(&mut greedy) {
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]));
    }
}

/// Whether the kernel sends keep-alive probes on an idle connection to this loopback port.
fn is_kept_alive(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (local, state, timer) = (words[1], words[3], words[5]);
        local.ends_with(&format!(":{port:04X}")) && state == "01" && timer.starts_with("02:")
    })
}

#[test]
fn a_tcp_client_whose_host_died_is_noticed() {
    let (place, address) = (Place::new(), free_address());
    let _daemon = two_vms(&place, "{ requests = 64 }", &format!("[nbd]\nlisten = \"{address}\"\n"));
    let client = std::net::TcpStream::connect(&address).unwrap();
    let port = client.peer_addr().unwrap().port();
    until("its idle connection is watched", || is_kept_alive(port));
}

#[test]
fn queued_requests_of_a_dead_client_are_dropped_and_do_not_use_the_limit() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    // A window of 256 at 1 request per second: the next client would wait for longer than this test does.
    let policy = "[vm.a]\nlimit = \"1 iops@8KiB\"\nburst = 2\nallow_slow = true\n";
    let host = place.device("window = { requests = 256 }") + policy + &place.volume("a", "v", &image, "");
    let daemon = Daemon::serve(&place, &host);
    let (mut first, mut second) = (open(&place, "a"), open(&place, "a"));
    for n in 0..128 {
        first.send(WRITE, 0, n * 4096, 4096, &noise(1, 4096)).unwrap();
        second.send(WRITE, 0, (128 + n) * 4096, 4096, &noise(1, 4096)).unwrap();
    }
    // All requests except those of the burst.
    until("the requests are queued", || daemon.accounts().number("a", "outstanding") > 150);
    drop((first, second));
    until("nothing is queued", || daemon.accounts().number("a", "outstanding") == 0);
    assert!(open(&place, "a").read(0, 512).is_ok());
    let accounts = daemon.accounts();
    let written = accounts.vm("a")["completed"]["write"].as_u64().unwrap();
    assert_eq!(accounts.number("a", "cancelled") + written, 256);
    assert_eq!(daemon.terminate().code(), Some(0));
    let content = std::fs::read(&image).unwrap();
    let changed = content.chunks(4096).filter(|block| block.iter().any(|byte| *byte != 0)).count() as u64;
    assert!(changed <= written && written < 30, "{changed} blocks changed, {written} writes");
}

/// A client that prints each acknowledged write, without end.
const WRITER: &str = "
import sys
block = 0
while True:
    h.pwrite(block.to_bytes(4, 'big') * 1024, block % 4096 * 4096)
    print(block, flush=True)
    block += 1
";

#[test]
fn acknowledged_writes_of_a_killed_client_are_on_the_disk() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "");
    let uri = place.uri("a", "v");
    let jobs = format!(
        "[j]\nioengine=nbd\nuri={uri}\nrw=randwrite\nbs=64k\niodepth=32\noffset=32m\nsize=32m\ntime_based=1\nruntime=60\n"
    );
    let load = start(&mut fio::fio(&place, "killed", &jobs));
    until("fio writes", || daemon.accounts().vm("a")["completed"]["write"].as_u64() > Some(100));
    let mut nbdsh = tool("nbdsh", "python3-libnbd");
    let path = std::env::var("PATH").unwrap();
    nbdsh.env("PATH", format!("/usr/bin:{path}"));
    let writer = start(nbdsh.args(["-u", &uri, "-c", WRITER]));
    let acknowledged = writer.stdout.up_to(&["200"]);
    load.kill();
    writer.kill();
    let mut again = open(&place, "a");
    for line in acknowledged.lines() {
        let block: u32 = line.parse().unwrap();
        let expected = block.to_be_bytes().repeat(1024);
        assert!(again.read(u64::from(block) * 4096, 4096).unwrap() == expected, "block {block}");
    }
    assert_works(&mut again, 1);
    drop(again);
    until("the dead client's requests have ended", || {
        let accounts = daemon.accounts();
        (accounts.connections(), accounts.number("a", "outstanding")) == (0, 0)
    });
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn acknowledged_writes_of_a_killed_daemon_are_there_after_a_restart() {
    let place = Place::new();
    let daemon = two_vms(&place, "{ requests = 64 }", "");
    let mut nbdsh = tool("nbdsh", "python3-libnbd");
    let path = std::env::var("PATH").unwrap();
    nbdsh.env("PATH", format!("/usr/bin:{path}"));
    let writer = start(nbdsh.args(["-u", &place.uri("a", "v"), "-c", WRITER]));
    let acknowledged = writer.stdout.up_to(&["200"]);
    daemon.kill();
    writer.end().failed();
    assert!(place.volume_socket("a", "v").exists(), "a killed daemon leaves its sockets");
    let volumes = place.volume("a", "v", &place.file("a.img"), "") + &place.volume("b", "v", &place.file("b.img"), "");
    let daemon = Daemon::serve(&place, &(place.device("") + &volumes));
    let mut again = open(&place, "a");
    for line in acknowledged.lines() {
        let block: u32 = line.parse().unwrap();
        let expected = block.to_be_bytes().repeat(1024);
        assert!(again.read(u64::from(block) * 4096, 4096).unwrap() == expected, "block {block}");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
    assert!(!place.volume_socket("a", "v").exists());
}
