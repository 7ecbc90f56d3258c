//! A daemon that is killed while a guest sends frames.
//!
//! `SLUICE_CRASHES=50` is the long form: 50 kills.

use std::collections::BTreeMap;
use std::process::Command;

use sluice_client::net::Namespace;
use sluice_client::net::frames::Listener;
use sluice_client::vhost::net::{HEADER_LEN, NetClient, NetOptions};

use crate::common::{Daemon, Place, until};

/// Frames between a start and the next kill.
const FRAMES: u64 = 2000;
/// An Ethernet type for experiments.
const TYPE: u16 = 0x88b5;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A frame whose bytes follow from its number.
fn frame(number: u64) -> Vec<u8> {
    let mut frame = [&[2, 0, 0, 0, 0, 100], &MAC[..], &TYPE.to_be_bytes(), &number.to_be_bytes()].concat();
    let length = 60 + (number as usize * 97) % 1400;
    frame.extend((frame.len()..length).map(|at| (number as u8).wrapping_mul(31).wrapping_add(at as u8)));
    frame
}

fn serve(place: &Place, host: &str, inside: &Namespace) -> Daemon {
    Daemon::serve_by(place, host, |command| {
        let mut given = Command::new(command.get_program());
        given.args(command.get_args());
        inside.command(&given)
    })
}

/// Lost is a frame that the device has returned to the guest and that did not arrive. Those on their way at a kill the next daemon sends
/// again, so that one may arrive twice; no other may.
#[test]
fn no_frame_of_a_guest_is_lost_or_torn_when_the_daemon_is_killed() {
    let kills = std::env::var("SLUICE_CRASHES").map_or(3, |wanted| wanted.parse().expect("SLUICE_CRASHES is a number"));
    let place = Place::new();
    let [inside, outside] = ["switch", "outside"].map(|name| Namespace::new(name).unwrap());
    inside.connect("up0", &outside).unwrap();
    inside.ip("link set up0 up").unwrap();
    outside.ip("link set eth0 up").unwrap();
    let listener = Listener::start(&outside, TYPE).unwrap();
    let socket = place.socket("nic");
    let host = format!(
        "{}[uplink.lan]\nnic = \"up0\"\n[vm.a.nic.eth0]\nuplink = \"lan\"\nmac = \"02:00:00:00:00:01\"\nsocket = \"{}\"\n",
        place.control_keys(),
        socket.display()
    );
    let mut daemon = serve(&place, &host, &inside);
    let options = NetOptions { buffers: 0, ..NetOptions::default() };
    let mut guest = NetClient::connect(&socket, &options).unwrap();
    let (mut arrived, mut sent, mut on_their_way) = (BTreeMap::<u64, u32>::new(), 0, Vec::new());
    let take = |arrived: &mut BTreeMap<u64, u32>| {
        for bytes in listener.arrived(|_| true) {
            let number = u64::from_be_bytes(bytes[14..22].try_into().unwrap());
            assert_eq!(bytes, frame(number), "frame {number} is torn");
            *arrived.entry(number).or_default() += 1;
        }
    };
    for kill in 0..=kills {
        let enough = sent + FRAMES;
        let mut send = |is_enough: &dyn Fn(u64) -> bool| {
            while !is_enough(sent) {
                guest.reclaim();
                sent += guest.send(&[(&[0; HEADER_LEN], &frame(sent))]).unwrap() as u64;
                take(&mut arrived);
            }
        };
        send(&|sent| sent >= enough);
        if kill == kills {
            break;
        }
        std::thread::scope(|scope| {
            let killer = scope.spawn(|| daemon.kill());
            send(&|_| killer.is_finished());
        });
        let (used, available) = guest.transmit_indices();
        let left = u64::from(available.wrapping_sub(used));
        on_their_way.push(sent - left..sent);
        take(&mut arrived);
        let lost = (0..sent - left).filter(|number| !arrived.contains_key(number)).count();
        assert_eq!(lost, 0, "kill {kill}: of {} that were returned", sent - left);
        daemon = serve(&place, &host, &inside);
        guest.reconnect(&socket).unwrap();
    }
    until("all frames have arrived", || {
        take(&mut arrived);
        arrived.len() as u64 == sent
    });
    check_twice(&arrived, &on_their_way);
}

/// Checks that only frames on their way at a kill have arrived twice.
fn check_twice(arrived: &BTreeMap<u64, u32>, on_their_way: &[std::ops::Range<u64>]) {
    let double: Vec<u64> = arrived.iter().filter(|(_, times)| **times > 1).map(|(number, _)| *number).collect();
    let unexplained = double.iter().filter(|number| !on_their_way.iter().any(|range| range.contains(number)));
    assert_eq!(unexplained.count(), 0, "{double:?}, on their way {on_their_way:?}");
    assert!(arrived.values().all(|times| *times <= 2));
}
