//! VMMs of a real daemon: every request, changes at run time, and VMMs that violate the protocol.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Daemon, LONG, MIB, Place, noise, run, sluice, start, tool, until};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::Signal;
use sluice_client::vhost::memory::{Memory, PAGE};
use sluice_client::vhost::ring::{Descriptor, NEXT, Ring, WRITE};
use sluice_client::vhost::session::{Inflight, Session};
use sluice_client::vhost::{ALL_FEATURES, ALL_PROTOCOL_FEATURES, Client, ClientError, ClientOptions, Request};

const SIZE: u64 = 8 * MIB;
/// Type of a request, as its header has it.
const FLUSH: u32 = 4;
const EVENT_IDX: u64 = 1 << 29;
const INDIRECT: u64 = 1 << 28;

/// VMs `a` and `b` with a volume each, and a control socket.
fn host(place: &Place) -> String {
    let control = place.control_keys();
    let volume = |vm: &str| {
        let image = place.write(&format!("{vm}.img"), noise(1, SIZE as usize));
        place.vhost_volume(vm, "v", &image, "")
    };
    control + &place.device("") + &volume("a") + &volume("b")
}

fn ask(place: &Place, verb: &[&str]) {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).ok();
}

fn vm(place: &Place, name: &str) -> Client {
    place.vhost(name, "v", &ClientOptions::default())
}

#[track_caller]
fn works(client: &mut Client) {
    let mut bytes = vec![0; 8192];
    client.read(0, &mut bytes).unwrap();
    assert!(bytes == noise(1, SIZE as usize)[..8192]);
}

#[test]
fn a_silent_vmm_held_its_volume_for_ever() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let socket = place.volume_socket("a", "v");
    let mut silent = UnixStream::connect(&socket).unwrap();
    let mut connected = None;
    until("another VMM is connected", || {
        connected = Client::connect(&socket, &ClientOptions::default()).ok();
        connected.is_some()
    });
    works(&mut connected.unwrap());
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "it was disconnected");
}

#[test]
fn every_request_completes_with_every_feature_set() {
    for (features, regions) in [
        (ALL_FEATURES, 1),
        (ALL_FEATURES & !EVENT_IDX, 1),
        (ALL_FEATURES & !INDIRECT, 1),
        (ALL_FEATURES & !INDIRECT & !EVENT_IDX, 5),
    ] {
        let place = Place::new();
        let _daemon = Daemon::serve(&place, &host(&place));
        let mut client = place.vhost("a", "v", &ClientOptions { features, regions, queues: 4, ..Default::default() });
        assert_eq!((client.config().size_bytes(), client.config().queues), (SIZE, 16));
        works(&mut client);
        let new = noise(2, 64 << 10);
        client.write(MIB, &new).unwrap();
        for queue in 0..4 {
            client.perform(queue, Request::Flush).unwrap();
        }
        client.perform(1, Request::WriteZeroes { offset: MIB + 4096, len: 8192, unmap: true }).unwrap();
        client.perform(2, Request::WriteZeroes { offset: MIB + 16384, len: 4096, unmap: false }).unwrap();
        client.perform(3, Request::Discard { offset: 2 * MIB, len: 4096 }).unwrap();
        let mut bytes = vec![0; new.len()];
        client.read(MIB, &mut bytes).unwrap();
        let mut expected = new.clone();
        expected[4096..12288].fill(0);
        expected[16384..20480].fill(0);
        assert!(bytes == expected);
        assert_eq!(client.perform(0, Request::GetId).unwrap().status, 0);
        let beyond = client.perform(0, Request::Read { offset: SIZE, len: 512 });
        assert!(matches!(beyond, Err(ClientError::Status { status: 1 })), "{beyond:?}");
        let unknown = client.perform(0, Request::Other { kind: 77, sector: 0, to_device: 0, from_device: 0 });
        assert!(matches!(unknown, Err(ClientError::Status { status: 2 })), "{unknown:?}");
        let on_disk = std::fs::read(place.file("a.img")).unwrap();
        assert!(on_disk[MIB as usize..][..expected.len()] == expected);
    }
}

#[test]
fn a_volume_is_attached_grown_and_detached_while_a_guest_uses_it() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let mut at_work = vm(&place, "a");
    let image = place.image("new.img", MIB);
    let socket = place.volume_socket("c", "v");
    ask(
        &place,
        &[
            "attach",
            "c/v",
            "device=disk",
            &format!("source={}", image.display()),
            "export.type=vhost-user-blk",
            &format!("export.socket={}", socket.display()),
            "vm.weight=300",
        ],
    );
    let mut client = vm(&place, "c");
    client.write(0, &noise(3, 4096)).unwrap();
    let beyond = client.perform(0, Request::Read { offset: 2 * MIB, len: 512 });
    assert!(matches!(beyond, Err(ClientError::Status { status: 1 })), "{beyond:?}");

    ask(&place, &["resize", "c/v", "4MiB"]);
    assert!(client.session().unwrap().config_changed(Duration::from_secs(30)).unwrap());
    assert_eq!(client.read_config().unwrap().size_bytes(), 4 * MIB);
    client.write(3 * MIB, &noise(4, 4096)).unwrap();
    let mut bytes = vec![0; 4096];
    client.read(0, &mut bytes).unwrap();
    assert!(bytes == noise(3, 4096));

    ask(&place, &["set", "c", "limit=1000 iops"]);
    client.read(3 * MIB, &mut bytes).unwrap();
    assert!(bytes == noise(4, 4096));

    ask(&place, &["detach", "c", "--force", "c"]);
    until("the session ends", || client.session().and_then(|session| session.features()).is_err());
    assert!(!socket.exists());
    works(&mut at_work);
}

#[test]
fn memory_changes_and_queues_stop_and_resume_under_load() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let mut client = place.vhost("a", "v", &ClientOptions { queues: 2, regions: 3, ..Default::default() });
    for round in 0..200u64 {
        for slot in 0..16 {
            client.queue(0).submit(slot, Request::Read { offset: u64::from(slot) * 4096, len: 4096 }).unwrap();
        }
        client.queue(0).publish().unwrap();
        match round % 4 {
            0 => {
                let memory = client.memory();
                client.session().unwrap().set_memory_table(memory).unwrap();
            }
            1 => {
                client.session().unwrap().enable_ring(0, false).unwrap();
                client.session().unwrap().enable_ring(0, true).unwrap();
            }
            _ => {}
        }
        let answers = client.wait(0, 16).unwrap();
        assert!(answers.iter().all(|answer| answer.status == 0));
    }
    let base = client.stop_queue(0).unwrap();
    assert_eq!(base, 3200);
    client.start_queue(0, base).unwrap();
    works(&mut client);
}

/// With every scheduler: requests returned to the ring when a queue stops are done once after it starts again, and
/// completed requests are not repeated.
#[test]
fn a_queue_that_stops_under_load_loses_and_repeats_nothing() {
    for scheduler in ["mclock", "noop", "deadline", "cfq"] {
        let place = Place::new();
        let slow = format!(
            "scheduler = \"{scheduler}\"\ndepth = 2\n[device.disk.delay]\nparallel = 2\n\
             time = {{ min = \"100us\", max = \"2ms\" }}\n"
        );
        let image = place.image("a.img", SIZE);
        let daemon = Daemon::serve(&place, &(place.device(&slow) + &place.vhost_volume("a", "v", &image, "")));
        let mut client = place.vhost("a", "v", &ClientOptions { queues: 2, ..Default::default() });
        let mut put_back = 0;
        for round in 0..30u64 {
            for slot in 0..16u16 {
                // Far apart, back and forth, and some of them adjacent so that they can be merged.
                let offset = (u64::from(slot) * 37 + round) % 64 * 4096;
                let block = noise(round * 16 + u64::from(slot), 4096);
                client.queue(0).write_data(slot, &block);
                client.queue(0).submit(slot, Request::Write { offset, len: 4096 }).unwrap();
            }
            client.queue(0).publish().unwrap();
            let mut answers = client.wait(0, (round % 5) as usize).unwrap();
            let base = client.stop_queue(0).unwrap();
            let taken = u64::from(base) - round * 16;
            put_back += 16 - taken;
            answers.extend(client.wait(0, taken as usize - answers.len()).unwrap());
            client.start_queue(0, base).unwrap();
            answers.extend(client.wait(0, 16 - answers.len()).unwrap());
            assert!(answers.len() == 16 && answers.iter().all(|answer| answer.status == 0), "{scheduler}");
            assert_eq!(client.queue(0).in_flight(), 0);
            for slot in 0..16u16 {
                let offset = (u64::from(slot) * 37 + round) % 64 * 4096;
                let mut bytes = vec![0; 4096];
                let read = client.perform(1, Request::Read { offset, len: 4096 }).unwrap();
                client.queue(1).read_data(read.slot, &mut bytes);
                assert!(bytes == noise(round * 16 + u64::from(slot), 4096), "{scheduler}, round {round}, slot {slot}");
            }
        }
        assert!(put_back > 0, "{scheduler}: nothing ever waited");
        let accounts = daemon.accounts();
        assert_eq!((accounts.number("a", "failed"), accounts.number("a", "outstanding")), (0, 0));
    }
}

#[test]
fn the_exit_completes_requests_of_guests() {
    let place = Place::new();
    let host = host(&place) + "[vm.a]\nlimit = \"200 iops\"\nburst = 1\n";
    let daemon = Daemon::serve(&place, &host);
    let mut client = vm(&place, "a");
    for slot in 0..20 {
        client.queue(0).submit(slot, Request::Read { offset: 0, len: 4096 }).unwrap();
    }
    client.queue(0).publish().unwrap();
    until("the requests have arrived", || daemon.accounts().number("a", "outstanding") > 0);
    let ended = daemon.terminate();
    assert!(ended.status.success(), "{}", ended.stderr);
    let answers = client.wait(0, 20).unwrap();
    assert!(answers.len() == 20 && answers.iter().all(|answer| answer.status == 0));
}

/// Adds a head to the available ring, valid or not.
fn offer(client: &mut Client, head: u16) {
    client.queue(0).push_head(head);
    client.queue(0).publish().unwrap();
}

#[test]
fn a_guest_that_breaks_its_rings_harms_only_itself() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let mut good = vm(&place, "b");
    type Case = (&'static str, fn(&mut Client));
    let cases: [Case; 5] = [
        ("a loop", |client| {
            client.queue(0).ring().write_descriptor(0, Descriptor { address: 0, len: 16, flags: NEXT, next: 0 });
            offer(client, 0);
        }),
        ("outside of memory", |client| {
            let address = u64::MAX - 4;
            client.queue(0).ring().write_descriptor(0, Descriptor { address, len: 16, flags: 0, next: 0 });
            offer(client, 0);
        }),
        ("a head beyond the table", |client| offer(client, u16::MAX)),
        ("an index that jumps", |client| client.queue(0).ring().set_available_index(40_000)),
        ("half a message", |client| client.session().unwrap().link().send_bytes(&[1], &[]).unwrap()),
    ];
    for (number, (what, break_it)) in cases.into_iter().enumerate() {
        let mut bad = vm(&place, "a");
        works(&mut bad);
        break_it(&mut bad);
        let _ = bad.queue(0).kick();
        if number < 4 {
            until(what, || daemon.accounts().number("a", "protocol_errors") == number as u64 + 1);
        }
        works(&mut good);
        drop(bad);
        until("it has disconnected", || daemon.accounts().connections() == 1);
    }
    assert_eq!(daemon.accounts().number("b", "protocol_errors"), 0);
    works(&mut vm(&place, "a"));
}

#[test]
fn a_second_vmm_is_rejected_until_the_first_session_ends() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let mut first = vm(&place, "a");
    assert!(Client::connect(&place.volume_socket("a", "v"), &ClientOptions::default()).is_err());
    works(&mut first);
    drop(first);
    let mut second = None;
    until("the first session has ended", || {
        second = Client::connect(&place.volume_socket("a", "v"), &ClientOptions::default()).ok();
        second.is_some()
    });
    works(&mut second.unwrap());
    daemon.signal(Signal::HUP);
    daemon.stderr().up_to(&["Reload applied"]);
}

#[test]
fn guests_are_served_without_proc() {
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let file = place.write("host.toml", place.device("") + &place.vhost_volume("a", "v", &image, ""));
    let mut command = tool("unshare", "util-linux");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
    let daemon =
        start(command.arg(sluice().get_program()).args(["-o", "json", "--log-format", "text", "serve"]).arg(file));
    daemon.stdout.up_to(&["ready"]);
    let mut client = place.vhost("a", "v", &ClientOptions::default());
    let (data, mut bytes) = (noise(1, 4096), vec![0; 4096]);
    client.write(8192, &data).unwrap();
    client.read(8192, &mut bytes).unwrap();
    assert!(bytes == data);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().code(), Some(0));
}

/// The daemon's own log is sealed; a VMM may come with one that is not.
#[test]
fn an_in_flight_log_that_is_truncated_ends_the_session_of_its_vmm_alone() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let mut neighbour = vm(&place, "b");
    let mut hostile = Session::connect(&place.volume_socket("a", "v"), LONG).unwrap();
    hostile.set_protocol_features(ALL_PROTOCOL_FEATURES.bits()).unwrap();
    hostile.set_features(ALL_FEATURES & hostile.features().unwrap()).unwrap();
    let memory = Arc::new(Memory::new(16 * PAGE, 1).unwrap());
    hostile.set_memory_table(&memory).unwrap();
    let made = hostile.inflight(1, 64).unwrap();
    let file = memfd_create("unsealed", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, made.len).unwrap();
    hostile.set_inflight(&Inflight { file: file.try_clone().unwrap(), offset: 0, ..made }).unwrap();
    let ring = Ring::new(Arc::clone(&memory), 0, 64);
    hostile.set_ring_size(0, 64).unwrap();
    hostile.set_ring_addresses(0, ring.parts().map(|offset| memory.user(offset))).unwrap();
    hostile.enable_ring(0, true).unwrap();
    let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    hostile.set_ring_kick(0, Some(kick.as_fd())).unwrap();

    ftruncate(&file, 0).unwrap();
    // The daemon notes each request in the log before it starts it.
    memory.write(8 * PAGE, &FLUSH.to_le_bytes());
    ring.write_descriptor(0, Descriptor { address: memory.guest(8 * PAGE), len: 16, flags: NEXT, next: 1 });
    ring.write_descriptor(1, Descriptor { address: memory.guest(9 * PAGE), len: 1, flags: WRITE, next: 0 });
    ring.write_available(0, 0);
    ring.set_available_index(1);
    rustix::io::write(&kick, &1_u64.to_ne_bytes()).unwrap();
    until("its session has ended", || hostile.features().is_err());
    let accounts = daemon.accounts().0;
    let sockets = accounts["guest_sockets"].as_array().unwrap();
    let faults = |vm: &str| sockets.iter().find(|socket| socket["vm"] == vm).unwrap()["faults"].as_u64();
    assert_eq!((faults("a"), faults("b")), (Some(1), Some(0)));
    works(&mut neighbour);
    works(&mut vm(&place, "a"));
    assert_eq!(daemon.terminate().code(), Some(0));
}
