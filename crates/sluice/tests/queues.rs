//! Several queues and clients of a volume: one limit, changes, detachment, reports.

use std::time::Instant;

use crate::common::raw::Raw;
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, until};
use sluice_client::vhost::{Client, ClientOptions, Request};

const QUEUES: u16 = 4;

fn served(lines: &str) -> (Place, Daemon) {
    let place = Place::new();
    let guest = place.vhost_volume("a", "v", &place.image("a.img", 4 * MIB), "");
    let client = place.volume("b", "v", &place.image("b.img", 4 * MIB), "");
    let device = place.device(lines);
    let host = place.control_keys() + &device + "[vm.a]\nweight = 100\n" + &guest + "[vm.b]\nweight = 100\n" + &client;
    let daemon = Daemon::serve(&place, &host);
    (place, daemon)
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn guest(place: &Place) -> Client {
    place.vhost("a", "v", &ClientOptions { queues: QUEUES, ..ClientOptions::default() })
}

/// Submits `count` reads to each queue, and waits for all. Returns the time in seconds.
fn seconds_for(guest: &mut Client, count: u16) -> f64 {
    let started = Instant::now();
    for queue in 0..QUEUES {
        for number in 0..count {
            guest.queue(queue).submit(number, Request::Read { offset: u64::from(number) * 4096, len: 4096 }).unwrap();
        }
        guest.queue(queue).publish().unwrap();
    }
    (0..QUEUES).for_each(|queue| drop(guest.wait(queue, count as usize).unwrap()));
    started.elapsed().as_secs_f64()
}

#[test]
fn queues_of_a_vm_have_one_limit_which_is_changed_while_they_work() {
    let (place, daemon) = served("");
    let mut guest = guest(&place);
    let bytes = noise(1, 64 << 10);
    guest.write(MIB / 2, &bytes).unwrap();
    let mut read = vec![0; bytes.len()];
    guest.read(MIB / 2, &mut read).unwrap();
    assert!(read == bytes && guest.perform(1, Request::Flush).unwrap().status == 0);
    ask(&place, &["set", "a", "limit=200 iops", "burst=1"]).ok();
    let limited = seconds_for(&mut guest, 25);
    assert!((0.4..5.0).contains(&limited), "100 requests at 200 per second in {limited} s");
    ask(&place, &["set", "a", "limit=unlimited"]).ok();
    let free = seconds_for(&mut guest, 50);
    assert!(free < 9.0, "200 requests without a limit in {free} s");
    let account = daemon.accounts().vm("a")["outstanding"].as_u64();
    assert_eq!((account, daemon.accounts().connections()), (Some(0), 1), "a VMM with several queues is one client");
    for verb in ["status", "get vms -o wide", "describe a", "why a", "get devices"] {
        ask(&place, &verb.split(' ').collect::<Vec<_>>()).ok();
    }
}

#[test]
fn a_queue_is_stopped_and_started_again_while_others_work() {
    let (place, _daemon) = served("merging = false");
    ask(&place, &["set", "a", "limit=100 iops", "burst=1"]).ok();
    let mut guest = guest(&place);
    for queue in 0..QUEUES {
        for number in 0..20u16 {
            guest.queue(queue).submit(number, Request::Read { offset: u64::from(number) * 4096, len: 4096 }).unwrap();
        }
        guest.queue(queue).publish().unwrap();
    }
    guest.wait(1, 1).unwrap();
    let base = guest.stop_queue(1).unwrap();
    assert!((1..20).contains(&base), "requests that wait for the limit were put back: {base}");
    guest.start_queue(1, base).unwrap();
    ask(&place, &["set", "a", "limit=unlimited"]).ok();
    for queue in 0..QUEUES {
        guest.wait(queue, if queue == 1 { 19 } else { 20 }).unwrap();
    }
}

#[test]
fn a_volume_is_detached_and_attached_while_it_has_several_clients() {
    let (place, daemon) = served("");
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::open(&place.volume_socket("b", "v"), "b/v").unwrap()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write(number as u64 * 4096, &[number as u8; 4096]).unwrap();
        client.flush().unwrap();
    }
    assert!(ask(&place, &["detach", "b/v"]).failed().contains("--force"), "it is in use");
    clients.iter_mut().for_each(|client| assert_eq!(client.read(0, 512), Ok(vec![0; 512])));
    ask(&place, &["detach", "b/v", "--force", "b/v"]).ok();
    assert!(clients.iter_mut().all(Raw::is_disconnected));
    let (source, socket) = (place.file("b.img"), place.volume_socket("b", "v"));
    let keys = [format!("source={}", source.display()), format!("export={{socket = \"{}\"}}", socket.display())];
    ask(&place, &["attach", "b/v", "device=disk", &keys[0], &keys[1]]).ok();
    let mut again = Raw::open(&socket, "b/v").unwrap();
    assert_eq!(again.read(3 * 4096, 4096), Ok(vec![3; 4096]));
    drop(again);
    until("its client has gone", || daemon.accounts().connections() == 0);
}
