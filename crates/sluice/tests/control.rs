//! Changes over the control socket: attach, detach, resize and set, while clients work, all or nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::common::disk::Loop;
use crate::common::raw::{READ, Raw};
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, start, tool, until};
use serde_json::Value;
use sluice_client::vhost::{ClientOptions, Request};

fn host(place: &Place) -> String {
    let image = place.image("a.img", 4 * MIB);
    let control = place.control_keys();
    control
        + &place.device("capacity = \"1000 iops@8KiB\"")
        + "[vm.a]\nweight = 100\n"
        + &place.volume("a", "v", &image, "")
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn open(place: &Place, vm: &str, volume: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, volume), &format!("{vm}/{volume}")).unwrap()
}

fn json(ended: Ended) -> Value {
    serde_json::from_str(&ended.ok()).unwrap()
}

#[test]
fn a_limit_is_set_and_removed_while_a_client_works() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let mut client = open(&place, "a", "v");
    let mut seconds_for = |requests: u32| {
        let started = Instant::now();
        (0..requests).for_each(|_| drop(client.read(0, 4096).unwrap()));
        started.elapsed().as_secs_f64()
    };
    let set = json(ask(&place, &["set", "a", "limit=100 iops", "burst=1"]));
    assert_eq!(
        (&set["before"]["policy"]["limit_iops"], &set["after"]["policy"]["limit_iops"]),
        (&Value::Null, &100.0.into())
    );
    let burst = (&set["before"]["policy"]["burst"], &set["after"]["policy"]["burst"]);
    assert_eq!(burst, (&Value::Null, &1.into()), "whatever is set is seen");
    let limited = seconds_for(100);
    assert!(limited > 0.9, "100 requests at 100 per second in {limited} s");
    json(ask(&place, &["set", "a", "limit=unlimited"]));
    let free = seconds_for(1000);
    assert!(free < 9.0, "1000 requests without a limit in {free} s");
}

#[test]
fn one_change_with_thousands_of_keys_held_up_all_others() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let keys: Vec<String> = (0..4000).map(|number| format!("k{number}={number}")).collect();
    let words = |verb: &[&str], keys: &[String]| -> String {
        let words: Vec<&str> = verb.iter().copied().chain(keys.iter().map(String::as_str)).collect();
        ask(&place, &words).failed()
    };
    let refused = "the change has 4000 keys, but at most 256 are allowed; make several changes";
    assert!(words(&["set", "a"], &keys).contains(refused));
    assert!(words(&["attach", "a/w"], &keys).contains(refused));
    // Tables count with what is in them, and a change that is not too large is judged by its keys.
    let nested: Vec<String> = (0..128).map(|number| format!("t{number}.a.b=1")).collect();
    assert!(words(&["set", "a/v"], &nested).contains("the change has 384 keys"));
    assert!(!words(&["set", "a/v"], &keys[..256]).contains("at most 256"));
}

#[test]
fn a_reservation_and_a_latency_target_are_set_and_removed() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let after = |keys: &[&str]| json(ask(&place, &[&["set", "a"], keys].concat()))["after"]["policy"].clone();
    let keys = ["reservation=700 iops", "latency.p99=20ms", "allow_unenforced=true"];
    let set = after(&keys);
    assert_eq!((&set["reservation_iops"], set["latency_p99_us"].is_null()), (&700.0.into(), false), "{set}");
    let set = after(&["reservation=none", "latency=none"]);
    assert_eq!((&set["reservation_iops"], &set["latency_p99_us"]), (&Value::Null, &Value::Null), "{set}");
}

#[test]
fn an_error_of_a_change_reports_only_problems_of_that_change() {
    let place = Place::new();
    let (own, free) = (place.image("own.img", MIB), place.image("free.img", MIB));
    let host = host(&place) + "[vm.z]\nreservation = \"400 iops\"\n" + &place.volume("z", "v", &own, "");
    let _daemon = Daemon::serve(&place, &host);
    let short = ask(&place, &["set", "a", "reservation=700 iops"]).failed();
    assert!(short.contains("VM a reserves 700 iops@8KiB, 70% of the device by requests"), "{short}");
    assert!(short.contains("--> change of a:") && short.contains("lower it to at most 580 iops@8KiB"), "{short}");
    let attach = |source: &Path, socket: &str, more: &[&str]| {
        let keys =
            [("source", source.display().to_string()), ("export.socket", place.socket(socket).display().to_string())];
        let keys = keys.map(|(key, value)| format!("{key}={value}"));
        let verb = ["attach", "b/v", "device=disk", &keys[0], &keys[1]];
        ask(&place, &[&verb, more].concat()).failed()
    };
    let bytes = attach(&own, "new.sock", &[]);
    assert!(bytes.contains("Volume b/v: its bytes of ") && bytes.contains("overlap those of z/v"), "{bytes}");
    let socket = attach(&free, "z-v.sock", &[]);
    assert!(socket.contains("Volume b/v: ") && socket.contains("is already used by Volume z/v"), "{socket}");
    let name = attach(&free, "new.sock", &["export.name=z/v"]);
    assert!(name.contains("Volume b/v: the export name 'z/v' is already used by z/v"), "{name}");
}

#[test]
fn an_error_of_a_change_quoted_warnings_about_the_rest_of_the_files() {
    let place = Place::new();
    let host = host(&place) + "[vm.empty]\nweight = 5\n";
    let daemon = Daemon::serve(&place, &host);
    let refused = ask(&place, &["set", "a", "reservation=2000 iops"]).failed();
    assert!(refused.contains("VM a reserves 2000 iops") && !refused.contains("warning"), "{refused}");
    let file = place.write("host.toml", host.replace("weight = 100", "reservation = \"2000 iops\""));
    let refused = ask(&place, &["apply", file.to_str().unwrap()]).failed();
    assert!(refused.contains("VM a reserves 2000 iops") && !refused.contains("warning"), "{refused}");
    drop(daemon);
}

#[test]
fn a_reservation_that_holds_for_small_requests_alone_was_accepted_without_a_word() {
    let place = Place::new();
    let host = host(&place).replace("capacity", "bandwidth = \"100MiB/s\"\ncapacity");
    let daemon = Daemon::serve(&place, &host);
    let note = "Device disk: its bandwidth of 100MiB/s suffices for all reservations in requests only up to a \
                request size of 159232B; a request of 256KiB counts as 1.82 requests, but takes more of the \
                bandwidth.";
    let file = place.write("new.toml", host.replace("weight = 100", "reservation = \"980 iops\""));
    assert!(run(sluice().arg("check").arg(&file)).ok().contains(note));
    let warned = |verb: &[&str]| run(sluice().args(verb).arg("--socket").arg(place.socket("control"))).stderr;
    assert!(!warned(&["set", "a", "reservation=700 iops"]).contains("its bandwidth"), "requests of any size");
    let set = warned(&["set", "a", "reservation=980 iops"]);
    assert!(set.contains(note), "{set}");
    assert!(daemon.stderr().up_to(&["suffices for all"]).contains(note));
    assert!(!warned(&["set", "a", "weight=7"]).contains("its bandwidth"), "it is as before");
    let reset = json(ask(&place, &["set", "a", "reservation=none"]));
    assert!(reset["warnings"].is_null(), "{reset}");
    let set = json(ask(&place, &["set", "a", "reservation=980 iops"]));
    assert!(set["warnings"][0].as_str().unwrap().contains(note), "{set}");
    ask(&place, &["reset", "--all"]).ok();
    let host = std::fs::read(&file).unwrap();
    let file = place.write("host.toml", host);
    for dry_run in [&["--dry-run"][..], &[]] {
        let applied = warned(&[&["apply", file.to_str().unwrap()], dry_run].concat());
        assert!(applied.contains(note), "{dry_run:?}: {applied}");
    }
}

#[test]
fn attach_named_any_file_of_the_host() {
    let place = Place::new();
    let (inside, outside) = (place.file("vms"), place.image("outside.img", MIB));
    std::fs::create_dir(&inside).unwrap();
    let image = place.image("vms/b.img", MIB);
    let root = format!("[daemon]\nsource_root = \"{}\"\n", inside.display());
    let served = host(&place);
    let daemon = Daemon::serve(&place, &served.replace("[daemon]\n", &root));
    let attach = |source: &Path| {
        let keys = [("source", source), ("export.socket", &place.volume_socket("b", "v"))];
        let keys = keys.map(|(key, value)| format!("{key}={}", value.display()));
        ask(&place, &["attach", "b/v", "device=disk", &keys[0], &keys[1]])
    };
    for source in [&outside, &inside.join("../outside.img"), &inside] {
        let output = attach(source).failed();
        assert!(output.contains("Volume b/v: source: ") && output.contains("the source_root of [daemon]"), "{output}");
    }
    json(attach(&image));
    open(&place, "b", "v");
    // An attached source must also be in the folder that a later file states.
    let output = daemon.reload(&served.replace("[daemon]\n", "[daemon]\nsource_root = \"/srv/other\"\n"));
    assert!(
        output.contains("is not in /srv/other") && output.contains("the running configuration is unchanged"),
        "{output}"
    );
}

#[test]
fn clients_used_up_all_descriptors_and_the_control_socket_did_not_respond() {
    let place = Place::new();
    let file = place.write("host.toml", host(&place));
    let mut limited = tool("prlimit", "util-linux");
    let daemon = start(limited.arg("--nofile=128:128").arg(sluice().get_program()).arg("serve").arg(&file));
    daemon.stderr.up_to(&["Ready"]);
    let all: Vec<Raw> =
        std::iter::from_fn(|| Raw::open(&place.volume_socket("a", "v"), "a/v").ok()).take(200).collect();
    assert!((50..120).contains(&all.len()), "{} clients", all.len());
    json(ask(&place, &["set", "a", "weight=300"]));
    let more = place.image("more.img", MIB);
    let keys = [("source", more), ("export.socket", place.volume_socket("a", "w"))];
    let keys = keys.map(|(key, value)| format!("{key}={}", value.display()));
    json(ask(&place, &["attach", "a/w", "device=disk", &keys[0], &keys[1]]));
}

/// 600 of 1000 IOPS are reserved; at run time, reservations of 50 of 100 MiB/s were added.
#[test]
fn set_attach_and_reload_overcommitted_a_device() {
    let place = Place::new();
    let (own, free) = (place.image("own.img", MIB), place.image("free.img", MIB));
    let host = host(&place).replace("capacity", "bandwidth = \"100MiB/s\"\ncapacity")
        + "[vm.z]\nreservation = \"600 iops\"\n"
        + &place.volume("z", "v", &own, "")
        + "[vm.b]\nreservation = \"50MiB/s\"\n";
    let daemon = Daemon::serve(&place, &host);
    let sum =
        "by bytes (bandwidth = 100MiB/s); 1 VM already reserves 60%, with this one 110%; at most 98% can be reserved";
    let set = ask(&place, &["set", "a", "reservation=50MiB/s"]).failed();
    assert!(set.contains(sum) && set.contains("lower it to at most 38MiB/s"), "{set}");
    let keys = [("source", free), ("export.socket", place.volume_socket("b", "v"))];
    let keys = keys.map(|(key, value)| format!("{key}={}", value.display()));
    let attach = ["attach", "b/v", "device=disk", &keys[0], &keys[1]];
    let attached = ask(&place, &attach).failed();
    assert!(attached.contains("VM b reserves 50MiB/s, 50% of the device ") && attached.contains(sum), "{attached}");
    let output = daemon.reload(&host.replace("weight = 100", "reservation = \"50MiB/s\""));
    assert!(
        output.contains("the running configuration is unchanged") && output.contains("with this one 110%"),
        "{output}"
    );
    // The free part is admitted, and nothing above it.
    json(ask(&place, &["set", "a", "reservation=38MiB/s"]));
    let attached = ask(&place, &attach).failed();
    assert!(attached.contains(sum), "{attached}");
    json(ask(&place, &["set", "b", "reservation=none"]));
    json(ask(&place, &attach));
}

#[test]
fn an_inadmissible_reservation_is_rejected_with_the_message_of_check() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let refused = ask(&place, &["set", "a", "reservation=2000 iops"]);
    assert_eq!(refused.code(), Some(1));
    let output = refused.failed();
    assert!(output.contains("(capacity = 1000 iops@8KiB); at most 98% can be reserved"), "{output}");
    let cases: [(&[&str], i32, &str); 8] = [
        (&["set", "a", "wieght=3"], 1, "did you mean 'weight'?"),
        (&["set", "b", "weight=3"], 3, "There is no VM b; there are a"),
        (&["detach", "a/w"], 3, "VM a has no volume w; it has v"),
        (&["resize", "a", "5MiB"], 1, "a is a VM; name one of its volumes: v"),
        (&["resize", "a/v", "1MiB"], 4, "cannot shrink"),
        (&["resize", "a/v", "8000000TiB"], 4, "a.img 8796093022208000000 bytes long: choose a size"),
        (&["set", "a/v", "read_only=true"], 4, "detach it and attach it again"),
        (&["attach", "a/v", "device=disk"], 4, "a/v exists already"),
    ];
    for (verb, code, words) in cases {
        let ended = ask(&place, verb);
        assert_eq!(ended.code(), Some(code), "{verb:?}");
        let output = ended.failed();
        assert!(output.contains(words), "{verb:?}: {output}");
    }
    let nobody = run(sluice().args(["set", "a", "weight=3", "--socket"]).arg(place.socket("other")));
    assert_eq!(nobody.code(), Some(5));
    assert_eq!(daemon.accounts().vm("a")["vm"], "a");
    ask(&place, &["detach", "a/v"]).ok();
    let bare = ask(&place, &["detach", "a/v"]).failed();
    assert!(bare.contains("VM a has no volume v; it has no other"), "{bare}");
}

#[test]
fn volumes_are_attached_grown_and_detached_while_another_client_works() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let mut at_work = open(&place, "a", "v");
    at_work.write(0, &noise(1, 4096)).unwrap();
    let (image, socket) = (place.image("b.img", MIB), place.volume_socket("b", "new"));
    let source = format!("source={}", image.display());
    let export = format!("export.socket={}", socket.display());
    json(ask(&place, &["attach", "b/new", "device=disk", &source, &export, "vm.weight=300"]));
    let mut client = open(&place, "b", "new");
    client.write(0, &noise(2, 4096)).unwrap();

    let resized = json(ask(&place, &["resize", "b/new", "8MiB"]));
    assert_eq!(resized["after"]["size_bytes"], 8 * MIB);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8 * MIB);
    assert_eq!(client.read(0, 4096).unwrap(), noise(2, 4096), "its client stays");
    let size = run(tool("nbdinfo", "libnbd-bin").arg("--size").arg(place.uri("b", "new"))).ok();
    assert_eq!(size.trim(), (8 * MIB).to_string());
    let mut again = open(&place, "b", "new");
    again.write(7 * MIB, &noise(3, 4096)).unwrap();

    // A reload keeps the change.
    daemon.signal(rustix::process::Signal::HUP);
    daemon.stderr().up_to(&["Reload applied"]);
    assert_eq!(again.read(7 * MIB, 4096).unwrap(), noise(3, 4096));

    json(ask(&place, &["detach", "b", "--force", "b"]));
    assert!(Raw::open(&socket, "b/new").is_err());
    assert_eq!(at_work.read(0, 4096).unwrap(), noise(1, 4096));
    json(ask(&place, &["attach", "b/new", "device=disk", &source, &export]));
    let mut back = open(&place, "b", "new");
    assert_eq!(back.read(7 * MIB, 4096).unwrap(), noise(3, 4096));
}

#[test]
fn detaching_a_vm_without_clients_disturbs_no_other_vm() {
    let place = Place::new();
    let second = place.volume("b", "v", &place.image("b.img", MIB), "");
    let daemon = Daemon::serve(&place, &(host(&place) + &second));
    let mut at_work = open(&place, "a", "v");
    json(ask(&place, &["detach", "b"]));
    assert_eq!(at_work.read(0, 4096).unwrap().len(), 4096);
    assert_eq!(daemon.accounts().device()["restarts"], 0);
}

#[test]
fn a_volume_is_attached_again_while_its_last_requests_are_in_flight() {
    let place = Place::new();
    let slow = "[device.disk.delay]\ntime = \"300ms\"\nparallel = 8\n";
    let daemon = Daemon::serve(&place, &(host(&place) + slow));
    let mut client = open(&place, "a", "v");
    client.send(READ, 0, 0, 4096, &[]).unwrap();
    until("the request is in flight", || daemon.accounts().device()["in_flight"] == 1);
    json(ask(&place, &["detach", "a", "--force", "a"]));
    let source = format!("source={}", place.file("a.img").display());
    let export = format!("export.socket={}", place.volume_socket("a", "v").display());
    json(ask(&place, &["attach", "a/v", "device=disk", &source, &export]));
    daemon.stderr().up_to(&["Waited for in-flight requests of a detached volume"]);
    assert_eq!(open(&place, "a", "v").read(0, 4096).unwrap().len(), 4096);
}

#[test]
fn a_reload_adds_a_volume_again_while_its_last_requests_are_in_flight() {
    let place = Place::new();
    let slow = "[device.disk.delay]\ntime = \"300ms\"\nparallel = 8\n";
    let second = place.volume("b", "v", &place.image("b.img", MIB), "") + slow;
    let all = host(&place) + &second;
    let volume = place.volume("a", "v", &place.file("a.img"), "");
    let without = all.replace(&volume, "");
    assert_ne!(without, all);
    let daemon = Daemon::serve(&place, &all);
    let mut client = open(&place, "a", "v");
    client.send(READ, 0, 0, 4096, &[]).unwrap();
    until("the request is in flight", || daemon.accounts().device()["in_flight"] == 1);
    daemon.force(&place, &without);
    daemon.accept(&all);
    assert_eq!(open(&place, "a", "v").read(0, 4096).unwrap().len(), 4096);
}

#[test]
fn a_source_that_another_process_has_locked_is_rejected_immediately() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let taken = std::fs::File::options().write(true).open(place.image("b.img", MIB)).unwrap();
    rustix::fs::fcntl_lock(&taken, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let source = format!("source={}", place.file("b.img").display());
    let export = format!("export.socket={}", place.volume_socket("b", "v").display());
    let refused = ask(&place, &["attach", "b/v", "device=disk", &source, &export]);
    assert_eq!(refused.code(), Some(4));
    drop(daemon);
}

#[test]
fn a_rejected_resize_does_not_extend_the_file() {
    let place = Place::new();
    let host = host(&place);
    let second = place.volume("a", "w", &place.file("a.img"), "");
    let host = host + &second;
    let host = host.replace("[vm.a.volume.v]\n", "[vm.a.volume.v]\nsize = \"2MiB\"\n");
    let host = host.replace("[vm.a.volume.w]\n", "[vm.a.volume.w]\noffset = \"2MiB\"\nsize = \"2MiB\"\n");
    let _daemon = Daemon::serve(&place, &host);
    let refused = ask(&place, &["resize", "a/v", "8MiB"]).failed();
    assert!(refused.contains("its bytes"), "{refused}");
    assert_eq!(std::fs::metadata(place.file("a.img")).unwrap().len(), 4 * MIB);
    json(ask(&place, &["resize", "a/w", "3MiB"]));
    assert_eq!(std::fs::metadata(place.file("a.img")).unwrap().len(), 5 * MIB);
}

#[test]
fn a_volume_on_a_block_device_grows_up_to_the_size_of_the_device() {
    let place = Place::new();
    let device = Loop::new(&place.image("disk.img", 4 * MIB));
    let part = place.volume("b", "v", &device.path, "size = \"2MiB\"");
    let _daemon = Daemon::serve(&place, &(host(&place) + &part));
    let grown = json(ask(&place, &["resize", "b/v", "4MiB"]));
    assert_eq!(grown["after"]["size_bytes"], 4 * MIB);
    open(&place, "b", "v").write(3 * MIB, &noise(1, 4096)).unwrap();
    let refused = ask(&place, &["resize", "b/v", "5MiB"]).failed();
    assert!(refused.contains("5242880 bytes long"), "{refused}");
}

/// A read of the previous volume for a request that the VMM sends again must not overwrite the result of the next
/// volume.
#[test]
fn another_volume_on_a_socket_waits_for_the_last_requests_of_the_first() {
    let place = Place::new();
    let control = place.control_keys();
    let device = place.device("[device.disk.delay]\nparallel = 4\ntime = \"1s\"\n");
    let (first, second) = (place.write("a.img", noise(1, 4096)), place.write("b.img", noise(2, 4096)));
    let daemon = Daemon::serve(&place, &(control + &device + &place.vhost_volume("a", "v", &first, "")));
    let mut client = place.vhost("a", "v", &ClientOptions::default());
    client.queue(0).submit(0, Request::Read { offset: 0, len: 4096 }).unwrap();
    client.queue(0).publish().unwrap();
    let in_flight = || daemon.accounts().device()["in_flight"].as_u64().unwrap();
    until("the request is in flight", || in_flight() == 1);
    ask(&place, &["detach", "a/v", "--force", "a/v"]).ok();
    let (source, socket) = (format!("source={}", second.display()), place.volume_socket("a", "v"));
    let socket_key = format!("export.socket={}", socket.display());
    // Under another name as well: the VMM knows only the socket.
    let attach = ["attach", "a/w", "device=disk", &source, "export.type=vhost-user-blk", &socket_key];
    ask(&place, &attach).ok();
    assert_eq!(in_flight(), 0);
    client.reconnect(&socket).unwrap();
    let answers = client.wait(0, 1).unwrap();
    let mut bytes = [0; 4096];
    client.queue(0).read_data(0, &mut bytes);
    assert!(answers[0].status == 0 && bytes[..] == noise(2, 4096)[..]);
}

#[test]
fn what_is_no_http_gets_an_error() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    for nonsense in ["{}\r\n\r\n", "{\"verb\":\"reset\"}\n", "\u{7f}\n"] {
        let mut stream = UnixStream::connect(place.socket("control")).unwrap();
        stream.write_all(nonsense.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 400 "), "{nonsense:?}: {reply}");
    }
    let silent = UnixStream::connect(place.socket("control")).unwrap();
    json(ask(&place, &["set", "a", "weight=200"]));
    drop(silent);
}

#[test]
fn a_handshake_that_began_before_a_resize_named_the_old_size() {
    let place = Place::new();
    let volume = place.volume("a", "v", &place.image("a.img", 2 * MIB), "size = \"2MiB\"");
    let keys = place.control_keys();
    let _daemon = Daemon::serve(&place, &(keys + &place.device("") + &volume));
    let early = crate::common::raw::greet(&place.volume_socket("a", "v")).unwrap();
    json(ask(&place, &["resize", "a/v", "4MiB"]));
    let mut client = Raw::enter(early, "a/v").unwrap();
    assert_eq!(client.size_bytes, 4 * MIB);
    client.write(3 * MIB, &noise(1, 4096)).unwrap();
}
