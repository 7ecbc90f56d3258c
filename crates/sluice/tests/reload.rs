//! A changed host file is applied while clients work, all or nothing. Before the daemon exits, it answers the
//! requests that it has read.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Instant;

use crate::common::raw::{READ, Raw, WRITE, greet, greeted, header};
use crate::common::{Daemon, MIB, Place, noise, run, start, tool, until};
use rustix::process::{Pid, Signal, kill_process};
use sluice_client::vhost::{Client, ClientOptions, Request};

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

/// Returns a VM with these policy lines, and creates its image.
fn vm(place: &Place, name: &str, policy: &str) -> String {
    let image = place.file(&format!("{name}.img"));
    if !image.exists() {
        place.image(&format!("{name}.img"), 4 * MIB);
    }
    format!("[vm.{name}]\n{policy}\n") + &place.volume(name, "v", &image, "")
}

/// Sends requests one after another. Returns the time in seconds.
fn seconds_for(client: &mut Raw, requests: u32) -> f64 {
    let started = Instant::now();
    for _ in 0..requests {
        client.read(0, 4096).unwrap();
    }
    started.elapsed().as_secs_f64()
}

const LIMITED: &str = "limit = \"100 iops@8KiB\"\nburst = 1";

#[test]
fn removing_a_limit_speeds_up_a_working_client() {
    let place = Place::new();
    let host = |policy| place.device("") + &vm(&place, "a", policy) + &vm(&place, "b", "");
    let daemon = Daemon::serve(&place, &host(LIMITED));
    let (mut a, mut b) = (open(&place, "a"), open(&place, "b"));
    let limited = seconds_for(&mut a, 100);
    // A request of 4 KiB costs a little less than one of 8 KiB.
    assert!(limited > 0.9, "100 requests at 100 per second in {limited} s");
    daemon.accept(&host("limit = \"unlimited\""));
    let free = seconds_for(&mut a, 2000);
    assert!(free < 10.0, "2000 requests without a limit in {free} s");
    daemon.accept(&host(LIMITED));
    let limited = seconds_for(&mut a, 100);
    assert!(limited > 0.9, "100 requests at 100 per second in {limited} s");
    assert!(seconds_for(&mut b, 100) < 10.0);
}

#[test]
fn a_request_that_waits_for_a_limit_is_dispatched_when_the_limit_is_removed() {
    let place = Place::new();
    let host = |policy| place.device("") + &vm(&place, "a", policy);
    let daemon = Daemon::serve(&place, &host("limit = \"0.01 iops@8KiB\"\nburst = 1\nallow_slow = true"));
    let mut a = open(&place, "a");
    for _ in 0..4 {
        a.send(READ, 0, 0, 512, &[]).unwrap();
    }
    until("the requests are queued", || daemon.accounts().number("a", "outstanding") > 0);
    daemon.accept(&host(""));
    let mut answered: Vec<_> = (0..4).map(|_| (a.reply().unwrap(), a.data(512).unwrap().len()).0).collect();
    answered.sort_unstable();
    assert_eq!(answered, [(1, 0), (2, 0), (3, 0), (4, 0)]);
}

#[test]
fn vms_and_volumes_are_added_and_removed_while_clients_work() {
    let place = Place::new();
    let extra = place.image("extra.img", MIB);
    let (device, a, b) = (place.control_keys() + &place.device(""), vm(&place, "a", ""), vm(&place, "b", ""));
    let daemon = Daemon::serve(&place, &(device.clone() + &a));
    let mut in_a = open(&place, "a");
    in_a.write(0, &noise(1, 4096)).unwrap();

    daemon.accept(&(device.clone() + &a + &b + &place.volume("a", "extra", &extra, "")));
    let mut in_b = open(&place, "b");
    in_b.write(0, &noise(2, 4096)).unwrap();
    let mut in_extra = Raw::open(&place.volume_socket("a", "extra"), "a/extra").unwrap();
    in_extra.write(0, &noise(3, 4096)).unwrap();
    assert!(in_a.read(0, 4096).unwrap() == noise(1, 4096));

    daemon.force(&place, &(device.clone() + &a + &b));
    assert!(in_extra.is_disconnected());
    assert!(!place.volume_socket("a", "extra").exists());
    assert!(in_a.read(0, 4096).unwrap() == noise(1, 4096) && in_b.read(0, 4096).unwrap() == noise(2, 4096));

    daemon.force(&place, &(device.clone() + &b));
    assert!(in_a.is_disconnected());
    assert!(!place.volume_socket("a", "v").exists());
    assert!(in_b.read(0, 4096).unwrap() == noise(2, 4096));
    assert_eq!(daemon.accounts().device()["vms"].as_array().unwrap().len(), 1);

    // A removed volume is free for others, and can be added again with its data.
    let other = place.device("") + &place.volume("other", "v", &extra, "");
    assert_eq!(Daemon::serve_as(&place, "other.toml", &other).terminate().code(), Some(0));
    daemon.accept(&(device + &a + &b));
    assert!(open(&place, "a").read(0, 4096).unwrap() == noise(1, 4096));
    assert!(in_b.read(0, 4096).unwrap() == noise(2, 4096));
}

#[test]
fn a_device_is_added_and_removed() {
    let place = Place::new();
    let (device, a) = (place.control_keys() + &place.device(""), vm(&place, "a", ""));
    let null = format!(
        "[device.null]\nbackend = \"null\"\n[vm.n.volume.v]\ndevice = \"null\"\nsize = \"1GiB\"\nexport = {{ socket = \"{}\" }}\n",
        place.volume_socket("n", "v").display()
    );
    let daemon = Daemon::serve(&place, &(device.clone() + &a));
    let mut in_a = open(&place, "a");
    daemon.accept(&(device.clone() + &a + &null));
    let mut in_null = open(&place, "n");
    assert_eq!(in_null.read(512 * MIB, 4096), Ok(vec![0; 4096]));
    daemon.force(&place, &(device + &a));
    assert!(in_null.is_disconnected());
    assert_eq!(in_a.read(0, 512), Ok(vec![0; 512]));
    assert_eq!(daemon.accounts().0["devices"].as_array().unwrap().len(), 1);
}

/// Reloads an invalid file. Nothing may change, not even by its valid parts.
#[track_caller]
fn assert_refused_whole(place: &Place, daemon: &Daemon, client: &mut Raw, host: &str, expected: &[&str]) {
    let output = daemon.reload(host);
    assert!(output.contains("the running configuration is unchanged"), "{output}");
    for expected in expected {
        assert!(output.contains(expected), "no {expected:?} in: {output}");
    }
    assert!(!place.volume_socket("new", "v").exists(), "a socket of the refused file is there");
    let accounts = daemon.accounts();
    assert_eq!(accounts.device()["vms"].as_array().unwrap().len(), 1, "{}", accounts.0);
    let limited = seconds_for(client, 50);
    assert!(limited > 0.4, "the limit of the file in force holds: 50 requests in {limited} s");
}

#[test]
fn a_rejected_file_changes_nothing() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &(place.device("") + &vm(&place, "a", LIMITED)));
    let mut client = open(&place, "a");
    let (free, new) = (vm(&place, "a", ""), vm(&place, "new", ""));
    let mut refuse = |host: String, expected: &[&str]| {
        assert_refused_whole(&place, &daemon, &mut client, &host, expected);
    };
    // An invalid file: every error is reported with its position.
    let wrong = place.device("dept = 3") + &free + &new + "[vm.new]\n";
    refuse(wrong, &["error: Not TOML: duplicate key", "host.toml:", "1 error", "errors=1"]);
    let wrong = place.device("dept = 3\ncapacity = \"5\"") + &free + &new;
    refuse(wrong, &["unknown key 'dept'", "did you mean 'depth'?", "'5' has no unit", "2 errors", "errors=2"]);
    // A valid file whose source is missing, in use, or in the wrong place.
    let missing = place.volume("x", "v", &place.file("none"), "");
    refuse(place.device("") + &free + &new + &missing, &["VM x, volume v: Cannot open", "No such file"]);
    let again = place.volume("x", "v", &place.file("a.img"), "");
    refuse(place.device("") + &free + &new + &again, &["overlap those of a/v", "1 error"]);
    let alias = place.file("alias.img");
    std::os::unix::fs::symlink(place.file("a.img"), &alias).unwrap();
    let taken = place.volume("x", "v", &alias, "");
    refuse(place.device("") + &free + &new + &taken, &["VM x, volume v", "leads to the file or disk of volume a/v"]);
    let nobody = place.image("nobody.img", MIB);
    let socket = place.socket("nobody.sock");
    let nobody = format!(
        "[vm.x.volume.v]\ndevice = \"disk\"\nsource = \"{}\"\nexport = {{ socket = \"{}\", owner = \"nobody-has-this-name\" }}\n",
        nobody.display(),
        socket.display()
    );
    refuse(place.device("") + &free + &new + &nobody, &["user nobody-has-this-name does not exist on this host"]);
    assert!(!socket.exists());
    // Settings that cannot change at run time.
    let other_scheduler = place.device("scheduler = \"noop\"") + &vm(&place, "a", LIMITED) + &new;
    refuse(other_scheduler, &["limit is not enforced by noop"]);
    let cost = place.device("cost = { knee = \"1MB\" }") + &free + &new;
    refuse(cost, &["Device disk: its cost model cannot change while it runs"]);
    // Then a valid file.
    daemon.accept(&(place.device("") + &free + &new));
    assert!(seconds_for(&mut client, 2000) < 10.0);
    assert_eq!(open(&place, "new").read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn queued_requests_move_to_another_scheduler() {
    let place = Place::new();
    let slow = "limit = \"0.01 iops@8KiB\"\nburst = 1\nallow_slow = true";
    let daemon = Daemon::serve(&place, &(place.device("") + &vm(&place, "a", slow)));
    let mut client = open(&place, "a");
    let page = |number: u64| noise(number, 4096);
    for number in 0..32 {
        client.send(WRITE, 0, number * 4096, 4096, &page(number)).unwrap();
    }
    // The first request passes.
    until("the others are queued", || daemon.accounts().number("a", "outstanding") == 31);
    // The limit is not enforced any more, and no request is lost. Adjacent requests are merged.
    let host = |scheduler: &str, more: &str| {
        place.device(&format!("scheduler = \"{scheduler}\"{more}")) + &vm(&place, "a", "")
    };
    daemon.accept(&host("noop", ""));
    let mut answered: Vec<_> = (0..32).map(|_| client.reply().unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, (1..=32).map(|cookie| (cookie, 0)).collect::<Vec<_>>());
    // Then from one scheduler to the next, with reads in flight all the time.
    let chain = [
        ("deadline", ""),
        ("cfq", ""),
        ("cfq", "\ncfq = { mode = \"2.6.18\" }"),
        ("anticipatory", "\nmerging = false"),
        ("mcfq", ""),
        ("sfqd", ""),
        ("mclock", ""),
    ];
    for (scheduler, more) in chain {
        for number in 0..32 {
            client.send(READ, 0, number * 4096, 4096, &[]).unwrap();
        }
        daemon.accept(&host(scheduler, more));
        let mut seen = [false; 32];
        for _ in 0..32 {
            let (cookie, errno) = client.reply().unwrap();
            let number = (cookie - 1) % 32;
            let data = client.data(4096).unwrap();
            assert!(errno == 0 && data == page(number), "{scheduler}: page {number}");
            assert!(!std::mem::replace(&mut seen[number as usize], true), "{scheduler}: answered once");
        }
    }
    // Only the scheduler in use decides whether a limit is accepted.
    daemon.accept(&(place.device("") + &vm(&place, "a", LIMITED)));
    let limited = seconds_for(&mut client, 100);
    assert!(limited > 0.9, "100 requests at 100 per second in {limited} s");
}

#[test]
fn the_identity_of_a_served_volume_cannot_change() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &(place.control_keys() + &place.device("") + &vm(&place, "a", LIMITED)));
    let mut client = open(&place, "a");
    let image = place.file("a.img");
    let volume = |vm: &str, lines: &str| format!("[vm.{vm}]\n{LIMITED}\n") + &place.volume(vm, "v", &image, lines);
    let changed = "its bytes are currently served as volume a/v";
    for (host, key) in [
        (volume("a", "read_only = true"), "read_only"),
        (volume("a", "serial = \"x\"\ndiscard = \"ignore\""), "discard, serial"),
        (volume("renamed", ""), "its name"),
    ] {
        let differs = format!("from which it differs in {key}. ");
        let expected = [changed, &differs, "add it again"];
        assert_refused_whole(&place, &daemon, &mut client, &(place.device("") + &host), &expected);
    }
    let cut = "cannot shrink from 4194304 to 1048576 bytes while attached";
    let smaller = place.device("") + &volume("a", "size = \"1MiB\"");
    assert_refused_whole(&place, &daemon, &mut client, &smaller, &[cut]);
    // It can change in two steps.
    daemon.force(&place, &place.device(""));
    daemon.accept(&(place.device("") + &volume("renamed", "size = \"1MiB\"")));
    assert_eq!(open(&place, "renamed").read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn volumes_opened_for_a_rejected_file_are_closed() {
    let place = Place::new();
    let base = place.device("") + &vm(&place, "a", "");
    let daemon = Daemon::serve(&place, &base);
    let new = vm(&place, "new", "");
    let missing = place.volume("x", "v", &place.file("none"), "");
    let output = daemon.reload(&(base + &new + &missing));
    assert!(output.contains("the running configuration is unchanged"), "{output}");
    let second = Daemon::serve_as(&place, "second.toml", &(place.device("") + &new));
    assert_eq!(second.terminate().code(), Some(0));
}

#[test]
fn range_locks_for_a_rejected_file_are_released() {
    let place = Place::new();
    let image = place.image("a.img", 4 * MIB);
    let sized = |size: &str| place.device("") + &place.volume("a", "v", &image, &format!("size = \"{size}\""));
    let daemon = Daemon::serve(&place, &sized("1MiB"));
    let missing = place.volume("x", "v", &place.file("none"), "");
    for size in ["2MiB", "4MiB"] {
        let output = daemon.reload(&(sized(size) + &missing));
        assert!(
            output.contains("No such file") && output.contains("the running configuration is unchanged"),
            "{output}"
        );
    }
    let behind = place.volume("b", "v", &image, "offset = \"1MiB\"\nsize = \"1MiB\"");
    daemon.accept(&(sized("1MiB") + &behind));
    assert_eq!(open(&place, "b").read(0, 512), Ok(vec![0; 512]));
    // The existing range is locked as before.
    let output = Daemon::refused(&place, &sized("1MiB").replace("a-v.sock", "other.sock"));
    assert!(output.contains("is locked by process"), "{output}");
}

const REPLACED: &str = "Client disconnected: its volume was removed or replaced during the handshake";

#[test]
fn a_client_in_the_handshake_is_disconnected_when_its_volume_is_replaced() {
    let place = Place::new();
    let image = place.image("a.img", 4 * MIB);
    let shared = place.socket("shared.sock");
    let base = place.control_keys() + &place.device("") + &format!("[nbd]\nsocket = \"{}\"\n", shared.display());
    let sized = |size: u64| base.clone() + &place.volume("a", "v", &image, &format!("size = \"{size}MiB\""));
    let daemon = Daemon::serve(&place, &sized(2));
    let shaking = || greet(&shared).unwrap();
    let (grows, shrinks) = (shaking(), shaking());
    daemon.accept(&sized(4));
    let mut served = Raw::enter(grows, "a/v").unwrap();
    assert_eq!(served.size_bytes, 4 * MIB, "it is told the present size");
    assert_eq!(served.read(3 * MIB, 512), Ok(vec![0; 512]), "it has all that it was told of");
    daemon.force(&place, &base);
    daemon.accept(&sized(1));
    let mut told = Raw::enter(shrinks, "a/v").unwrap();
    assert_eq!(told.size_bytes, 2 * MIB);
    let _ = told.send(READ, 0, 0, 512, &[]);
    assert!(told.reply().is_err(), "nothing is read of a volume of 1 MiB");
    daemon.stderr().up_to(&[REPLACED]);
    assert_eq!(open(&place, "a").size_bytes, MIB);
}

#[test]
fn a_client_that_connected_before_its_disk_was_replaced_by_one_of_the_same_size_read_that_one() {
    let place = Place::new();
    let shared = place.socket("shared.sock");
    let base = place.control_keys() + &place.device("") + &format!("[nbd]\nsocket = \"{}\"\n", shared.display());
    let on = |image: &str| base.clone() + &place.volume("a", "v", &place.image(image, MIB), "");
    let daemon = Daemon::serve(&place, &on("old.img"));
    let (through_shared, through_own) = (greet(&shared).unwrap(), greet(&place.volume_socket("a", "v")).unwrap());
    daemon.force(&place, &base);
    daemon.accept(&on("new.img"));
    assert!(Raw::enter(through_own, "a/v").is_err(), "its handshake ended with its socket");
    let mut told = Raw::enter(through_shared, "a/v").unwrap();
    let _ = told.send(READ, 0, 0, 512, &[]);
    assert!(told.reply().is_err(), "nothing is read of the new disk");
    daemon.stderr().up_to(&[REPLACED]);
    assert_eq!(open(&place, "a").read(0, 512), Ok(vec![0; 512]));
}

#[test]
fn the_exit_waits_for_requests_in_flight_and_removes_the_sockets() {
    let place = Place::new();
    let slow = "[device.disk.delay]\ntime = \"300ms\"\nparallel = 2\n";
    let shared = place.socket("shared.sock");
    let host = place.device("depth = 2") + slow + &vm(&place, "a", "");
    let daemon = Daemon::serve(&place, &format!("{host}[nbd]\nsocket = \"{}\"\n", shared.display()));
    let (mut client, mut idle) = (open(&place, "a"), open(&place, "a"));
    assert!(shared.exists());
    for n in 0..4 {
        client.send(WRITE, 0, n * 4096, 4096, &noise(n, 4096)).unwrap();
    }
    until("all four requests are outstanding", || daemon.accounts().number("a", "outstanding") == 4);
    daemon.signal(Signal::TERM);
    let mut answered: Vec<_> = (0..4).map(|_| client.reply().unwrap()).collect();
    answered.sort_unstable();
    assert_eq!(answered, [(1, 0), (2, 0), (3, 0), (4, 0)]);
    assert!(client.is_disconnected() && idle.is_disconnected());
    let ended = daemon.end();
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stdout.lines().last().unwrap().contains("\"event\":\"accounts\""), "{}", ended.stdout);
    assert!(!shared.exists() && !place.volume_socket("a", "v").exists());
    let content = std::fs::read(place.file("a.img")).unwrap();
    assert!((0..4).all(|n| content[n as usize * 4096..][..4096] == noise(n, 4096)));
}

#[test]
fn the_exit_answers_earlier_requests_of_a_client_with_a_half_sent_write() {
    let place = Place::new();
    let slow = "[device.disk.delay]\ntime = \"300ms\"\nparallel = 2\n";
    let daemon = Daemon::serve(&place, &(place.device("") + slow + &vm(&place, "a", "")));
    let mut client = open(&place, "a");
    for n in 0..2 {
        client.send(WRITE, 0, n * 4096, 4096, &noise(n, 4096)).unwrap();
    }
    let half = [header(WRITE, 0, 9, 65536, 8192), noise(9, 4096)].concat();
    std::io::Write::write_all(&mut client.stream, &half).unwrap();
    until("all three requests are outstanding", || daemon.accounts().number("a", "outstanding") == 3);
    daemon.signal(Signal::TERM);
    let mut answered = [client.reply().unwrap(), client.reply().unwrap()];
    answered.sort_unstable();
    assert_eq!(answered, [(1, 0), (2, 0)]);
    assert!(client.is_disconnected());
    assert_eq!(daemon.end().code(), Some(0));
    let content = std::fs::read(place.file("a.img")).unwrap();
    assert!(content[65536..65536 + 8192] == [0; 8192], "half a write has not happened");
}

#[test]
fn a_reload_changes_the_connection_limit() {
    let place = Place::new();
    let host = |most| place.device("") + &vm(&place, "a", "") + &format!("[nbd]\nconnections_max = {most}\n");
    let daemon = Daemon::serve(&place, &host(1));
    let try_open = || Raw::open(&place.volume_socket("a", "v"), "a/v");
    let mut first = open(&place, "a");
    assert!(try_open().is_err());
    daemon.accept(&host(2));
    let mut second = open(&place, "a");
    assert!(try_open().is_err());
    daemon.accept(&host(1));
    for client in [&mut first, &mut second] {
        assert_eq!(client.read(0, 512), Ok(vec![0; 512]), "those inside stay");
    }
    second.close();
    until("it has disconnected", || daemon.accounts().connections() == 1);
    assert!(try_open().is_err(), "two were inside when one became the most");
    first.close();
    until("space is free again", || try_open().is_ok());
}

/// Connects as soon as the socket exists. From then on the daemon must serve the client.
fn connect_early(socket: &Path) -> UnixStream {
    loop {
        if let Ok(stream) = UnixStream::connect(socket) {
            break stream;
        }
        thread::yield_now();
    }
}

/// Sends what a VMM asks first, and returns the features of the device.
fn ask_features(mut stream: UnixStream) -> u64 {
    stream.write_all(&[1_u32, 1, 0].map(u32::to_ne_bytes).concat()).expect("the VMM may ask");
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).expect("a reply");
    u64::from_ne_bytes(reply[12..].try_into().unwrap())
}

#[test]
fn clients_that_connected_during_a_start_or_a_reload_were_rejected() {
    let place = Place::new();
    let names = |group: &str| (0..24).map(|n| format!("{group}{n}")).collect::<Vec<_>>();
    let host = |groups: &[&str]| {
        let vms = groups.iter().flat_map(|group| names(group)).enumerate().map(|(number, name)| {
            let kind = ["socket = ", "type = \"vhost-user-blk\", socket = "][number % 2];
            vm(&place, &name, "").replacen("socket = ", kind, 1)
        });
        place.device("") + &vms.collect::<String>()
    };
    let while_connecting = |group: &str, change: &mut dyn FnMut()| {
        let clients = names(group).into_iter().enumerate().map(|(number, name)| {
            let (socket, export) = (place.volume_socket(&name, "v"), format!("{name}/v"));
            thread::spawn(move || {
                let stream = connect_early(&socket);
                if number % 2 == 1 {
                    return assert_ne!(ask_features(stream), 0);
                }
                let mut client = Raw::enter(greeted(stream).expect("a greeting"), &export).expect("an export");
                client.read(0, 512).expect("data");
            })
        });
        let clients: Vec<_> = clients.collect();
        change();
        clients.into_iter().for_each(|client| client.join().expect("the client was served"));
    };
    let mut daemon = None;
    while_connecting("a", &mut || daemon = Some(Daemon::serve(&place, &host(&["a"]))));
    let daemon = daemon.expect("it was started");
    while_connecting("b", &mut || daemon.accept(&host(&["a", "b"])));
}

#[test]
fn the_final_statistics_include_drained_requests() {
    let place = Place::new();
    let slow = "[device.disk.delay]\ntime = \"200ms\"\nparallel = 4\n";
    let daemon = Daemon::serve(&place, &(place.device("") + slow + &vm(&place, "a", "")));
    let mut client = open(&place, "a");
    for n in 0..4 {
        client.send(WRITE, 0, n * 4096, 4096, &noise(n, 4096)).unwrap();
    }
    until("all four requests are outstanding", || daemon.accounts().number("a", "outstanding") == 4);
    let ended = daemon.terminate();
    let last: serde_json::Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last["devices"][0]["vms"][0]["completed"]["write"], 4, "{last}");
}

#[test]
fn requests_that_do_not_drain_in_time_are_dropped() {
    let place = Place::new();
    let slow = "[device.disk.delay]\ntime = \"30s\"\nparallel = 1\n";
    let host = place.device("depth = 1") + slow + &vm(&place, "a", "") + "[daemon]\ndrain_timeout = \"100ms\"\n";
    let daemon = Daemon::serve(&place, &host);
    let mut client = open(&place, "a");
    for _ in 0..3 {
        client.send(READ, 0, 0, 4096, &[]).unwrap();
    }
    until("the requests are outstanding", || daemon.accounts().number("a", "outstanding") == 3);
    let ended = daemon.terminate();
    assert_eq!(ended.code(), Some(0));
    assert!(ended.stderr.contains("Drain timed out: queued requests are dropped"), "{}", ended.stderr);
    assert!(client.is_disconnected());
    assert!(!place.volume_socket("a", "v").exists());
}

#[test]
fn a_socket_moved_between_volumes_in_one_reload_was_taken_for_that_of_another_process() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &(place.control_keys() + &place.device("") + &vm(&place, "a", "")));
    let [old, new] = ["a", "b"].map(|vm| format!("socket = \"{}\"", place.volume_socket(vm, "v").display()));
    let after = place.control_keys()
        + &place.device("")
        + &vm(&place, "b", "").replace(&new, &format!("type = \"vhost-user-blk\", {old}"));
    let mut before = open(&place, "a");
    // If the change is rejected for another reason, the socket is kept.
    let missing = place.volume("c", "v", &place.file("missing.img"), "");
    assert!(daemon.apply(&place, &(after.clone() + &missing)).failed().contains("missing.img"));
    let log = place.file("nowhere/log");
    let late = format!(
        "{after}[device.late]\nbackend = \"null\"\n[device.late.delay]\ntime = \"1ms\"\nlog = \"{}\"\n",
        log.display()
    );
    assert!(daemon.apply(&place, &late).failed().contains("Device late"));
    before.write(0, &noise(1, 4096)).unwrap();
    open(&place, "a").write(0, &noise(1, 4096)).unwrap();
    daemon.force(&place, &after);
    assert!(before.is_disconnected());
    let mut guest = Client::connect(&place.volume_socket("a", "v"), &ClientOptions::default()).unwrap();
    guest.perform(0, Request::Read { offset: 0, len: 4096 }).unwrap();
    // And back: the NBD volume has the socket again.
    daemon.force(&place, &(place.control_keys() + &place.device("") + &vm(&place, "a", "")));
    open(&place, "a").write(0, &noise(2, 4096)).unwrap();
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(!place.volume_socket("a", "v").exists());
}

#[test]
fn sockets_have_the_owner_and_mode_of_the_file() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let place = Place::new();
    let image = place.image("a.img", MIB);
    let host = |mode: &str| {
        let (source, socket) = (image.display(), place.socket("a.sock"));
        let export =
            format!("{{ socket = \"{}\", owner = \"nobody\", group = \"0\", mode = \"{mode}\" }}", socket.display());
        place.device("") + &format!("[vm.a.volume.v]\ndevice = \"disk\"\nsource = \"{source}\"\nexport = {export}\n")
    };
    let daemon = Daemon::serve(&place, &host("0600"));
    let found = std::fs::metadata(place.socket("a.sock")).unwrap();
    let nobody = run(tool("id", "coreutils").args(["-u", "nobody"])).ok();
    assert_eq!(
        (found.permissions().mode() & 0o777, found.uid().to_string().as_str(), found.gid()),
        (0o600, nobody.trim(), 0)
    );
    let output = daemon.reload(&host("0660"));
    assert!(output.contains("its owner, group and mode cannot change while it is served"), "{output}");
    assert_eq!(std::fs::metadata(place.socket("a.sock")).unwrap().permissions().mode() & 0o777, 0o600);
}

/// The threads of a process, by their names.
fn threads(pid: i32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

#[test]
fn a_signal_right_after_the_start_ended_the_daemon() {
    let place = Place::new();
    let file = place.write("host.toml", place.device("") + &vm(&place, "a", ""));
    // Delays the runtime, without which no handler is there.
    let mut strace = tool("strace", "strace");
    strace.args(["-qq", "-o", "/dev/null", "-e", "inject=epoll_create1:delay_enter=1s"]);
    let running = start(
        strace.arg(env!("CARGO_BIN_EXE_sluice")).args(["-o", "json", "--log-format", "text", "serve"]).arg(&file),
    );
    let mut daemon = None;
    until("its log has a thread", || {
        let tracer = running.pid();
        let children = std::fs::read_to_string(format!("/proc/{tracer}/task/{tracer}/children")).unwrap_or_default();
        daemon = children.split_whitespace().next().map(|pid| pid.parse().unwrap());
        daemon.is_some_and(|pid| threads(pid).iter().any(|name| name == "stdout"))
    });
    let daemon = Pid::from_raw(daemon.unwrap()).unwrap();
    for signal in [Signal::USR1, Signal::HUP] {
        kill_process(daemon, signal).unwrap();
    }
    running.stdout.up_to(&["\"event\":\"accounts\""]);
    running.stderr.up_to(&["Reload applied"]);
    kill_process(daemon, Signal::TERM).unwrap();
    assert_eq!(running.end().code(), Some(0));
}
