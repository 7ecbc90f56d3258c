//! No VM loses a disk by surprise: volumes in use are not closed or replaced, and a start serves what was served before.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::raw::{READ, Raw};
use crate::common::reads::End;
use crate::common::{Daemon, Ended, MIB, Place, noise, run, sluice, until};
use serde_json::Value;
use sluice_client::vhost::ClientOptions;

/// Returns a host file with the volumes a/v and b/v, and makes their images.
fn host(place: &Place) -> String {
    let (a, b) = (place.write("a.img", noise(1, MIB as usize)), place.write("b.img", noise(2, MIB as usize)));
    place.control_keys()
        + &place.device("capacity = \"1000 iops@8KiB\"")
        + &place.volume("a", "v", &a, "")
        + &place.volume("b", "v", &b, "")
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn apply(place: &Place, options: &[&str]) -> Ended {
    let file = place.file("host.toml");
    ask(place, &[&["apply", file.to_str().unwrap()], options].concat())
}

fn json(ended: Ended) -> Value {
    serde_json::from_str(&ended.ok()).unwrap()
}

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

/// Returns the first bytes of a volume.
fn start_of(place: &Place, vm: &str) -> Vec<u8> {
    open(place, vm).read(0, 4096).unwrap()
}

#[test]
fn a_reload_gave_a_running_guest_another_image() {
    let place = Place::new();
    let host = host(&place);
    let other = place.write("other.img", noise(3, MIB as usize));
    let guest = place.vhost_volume("g", "v", &place.image("g.img", MIB), "");
    let daemon = Daemon::serve(&place, &(host.clone() + &guest));
    let mut client = open(&place, "a");
    let vmm = place.vhost("g", "v", &ClientOptions::default());
    let swapped = host.replace("a.img", "other.img") + &guest.replace("g.img", "b2.img");
    place.image("b2.img", MIB);
    let log = daemon.reload(&swapped);
    let (old, new) = (place.file("a.img"), other);
    let wanted = format!("a/v would get {} in place of {}", new.display(), old.display());
    assert!(log.contains(&wanted) && log.contains("g/v would get"), "{log}");
    assert!(log.contains("--force a/v --force g/v") && log.contains("the running configuration is unchanged"), "{log}");
    assert!(client.read(0, 4096).unwrap() == noise(1, 4096));
    let refused = apply(&place, &["--force", "a"]);
    assert_eq!(refused.code(), Some(4));
    assert!(refused.failed().contains("g/v would get"));
    // The plan is no change.
    let plan = json(apply(&place, &["--dry-run", "--force", "a", "--force", "g/v"]));
    assert_eq!((&plan["changes"][0]["name"], &plan["changes"][0]["key"]), (&"a/v".into(), &"source".into()), "{plan}");
    assert_eq!(plan["changes"][0]["effect"], "will be closed and opened again");
    assert!(client.read(0, 4096).unwrap() == noise(1, 4096));
    json(apply(&place, &["--force", "a", "--force", "g/v"]));
    assert!(client.is_disconnected() && start_of(&place, "a") == noise(3, 4096)[..4096]);
    drop(vmm);
}

#[test]
fn a_volume_in_use_was_closed_by_a_reload_or_a_detach() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let client = open(&place, "b");
    let without = &host[..host.find("[vm.b.").unwrap()];
    let log = daemon.reload(without);
    assert!(log.contains("In use: b/v would be closed; stop their VMs first, or repeat with --force b/v"), "{log}");
    let refused = ask(&place, &["detach", "b"]);
    assert_eq!(refused.code(), Some(4));
    assert!(refused.failed().contains("In use: b/v would be closed"));
    drop(client);
    until("its client has gone", || daemon.accounts().connections() == 0);
    daemon.accept(without);
    assert!(!place.volume_socket("b", "v").exists());
    let _client = open(&place, "a");
    json(ask(&place, &["detach", "a", "--force", "a"]));
}

#[test]
fn an_empty_host_file_closed_everything() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let empty = place.control_keys() + &place.device("");
    for text in ["", &empty] {
        let log = daemon.reload(text);
        assert!(log.contains("The host file has no volume, and 2 were served until now (a/v, b/v)"), "{log}");
    }
    assert!(start_of(&place, "a") == noise(1, 4096));
    daemon.kill();
    let refused = Daemon::refused(&place, &empty);
    assert!(refused.contains("has no volume, and 2 were served until now"), "{refused}");
    let daemon = Daemon::serve(&place, &host);
    std::fs::write(place.file("host.toml"), &empty).unwrap();
    json(apply(&place, &["--force", "*"]));
    drop(daemon);
    let _daemon = Daemon::serve(&place, &empty);
}

#[test]
fn a_start_was_refused_because_what_had_been_attached_was_not_there() {
    let place = Place::new();
    let host = place.control_keys() + &place.device("");
    let source = format!("source={}", place.image("w.img", MIB).display());
    let export = format!("export.socket={}", place.volume_socket("c", "w").display());
    let try_attach = |more: &[&str]| ask(&place, &[&["attach", "c/w", "device=disk", &source, &export], more].concat());
    let attach = |more: &[&str]| json(try_attach(more));
    let daemon = Daemon::serve(&place, &host);
    attach(&["--until-restart"]);
    assert_eq!(daemon.terminate().code(), Some(0));
    let daemon = Daemon::serve(&place, &host);
    attach(&[]);
    assert_eq!(daemon.terminate().code(), Some(0));
    // It is set aside.
    let daemon = Daemon::serve(&place, &host.replace("device.disk", "device.ssd"));
    assert_eq!(daemon.accounts().0["held_back"][0]["volume"], "c/w");
    daemon.stderr().with("volumes=0 uplinks=0 nics=0 out_of_service=0 held_back=1");
    assert_eq!(daemon.terminate().code(), Some(0));
    // It is lost, but what it served is not.
    let state = place.file("state/state.json");
    let text = std::fs::read_to_string(&state).unwrap();
    assert!(text.contains("\"device\":\"disk\""), "{text}");
    std::fs::write(&state, text.replace("\"device\":\"disk\"", "\"device\":\"dusk\"")).unwrap();
    let daemon = Daemon::serve(&place, &host);
    daemon.stderr().with("A change made at run time is lost");
    attach(&[]);
    assert_eq!(daemon.terminate().code(), Some(0));
    // What it served is lost too, and no file names the volume.
    let text = std::fs::read_to_string(&state).unwrap().replace("\"device\":\"disk\"", "\"device\":\"dusk\"");
    std::fs::write(&state, text.replace("/w.img\",\"identity\"", "/w.imx\",\"identity\"")).unwrap();
    let _daemon = Daemon::serve(&place, &host);
    let refused = try_attach(&[]).failed();
    assert!(refused.contains("what it last served is not known") && refused.contains("--force c/w"), "{refused}");
    attach(&["--force", "c/w"]);
}

#[test]
fn a_start_served_another_file_as_the_disk_of_a_guest() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    daemon.kill();
    // A backup under the same name.
    std::fs::write(place.file("backup"), noise(4, MIB as usize)).unwrap();
    std::fs::rename(place.file("backup"), place.file("a.img")).unwrap();
    let check = |daemon: &Daemon| {
        let log = daemon.stderr().up_to(&["Volume held back: its source or offset differs"]);
        assert!(log.contains("vm=\"a\" volume=\"v\""), "{log}");
        assert!(Raw::open(&place.volume_socket("a", "v"), "a/v").is_err(), "its socket is closed");
        assert!(start_of(&place, "b") == noise(2, 4096), "the others are served");
        let held = &daemon.accounts().0["held_back"];
        assert_eq!(held[0]["volume"], "a/v");
        assert!(held[0]["reason"].as_str().unwrap().contains("sluice apply FILE --force a/v"), "{held}");
    };
    let daemon = Daemon::serve(&place, &host);
    check(&daemon);
    // Neither a change of another VM nor a reload nor a restart accepts it.
    json(ask(&place, &["set", "b", "weight=7", "--until-restart"]));
    let refused = ask(&place, &["set", "a/v", "weight=7"]).failed();
    assert!(refused.contains("a/v is held back: "), "{refused}");
    daemon.accept(&host);
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    check(&daemon);
    let applied = json(apply(&place, &["--force", "a/v"]));
    assert_eq!(applied["held_back"], serde_json::json!([]));
    assert!(start_of(&place, "a") == noise(4, 4096));
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert!(start_of(&place, "a") == noise(4, 4096), "it is what it serves now");
    drop(daemon);
}

#[test]
fn a_guest_saw_its_disk_shrink_after_a_restart() {
    let place = Place::new();
    let host = host(&place);
    Daemon::serve(&place, &host).kill();
    std::fs::File::options().write(true).open(place.file("a.img")).unwrap().set_len(MIB / 2).unwrap();
    // Longer is no loss.
    std::fs::File::options().write(true).open(place.file("b.img")).unwrap().set_len(2 * MIB).unwrap();
    let daemon = Daemon::serve(&place, &host);
    let held = &daemon.accounts().0["held_back"];
    assert!(held[0]["reason"].as_str().unwrap().contains("524288 bytes, and was 1048576 bytes before"), "{held}");
    assert_eq!(open(&place, "b").size_bytes, 2 * MIB);
    // With its length back it is served, without force.
    std::fs::File::options().write(true).open(place.file("a.img")).unwrap().set_len(MIB).unwrap();
    daemon.accept(&host);
    assert_eq!(open(&place, "a").size_bytes, MIB);
    // Another source line is no accident, and still another disk.
    daemon.kill();
    place.image("c.img", MIB);
    let daemon = Daemon::serve(&place, &host.replace("a.img", "c.img"));
    assert_eq!(daemon.accounts().0["held_back"][0]["volume"], "a/v");
    drop(daemon);
    let file = place.file("host.toml");
    let forced = crate::common::start(sluice().arg("serve").arg(&file).args(["--force", "a/v"]));
    forced.stderr.up_to(&["Ready"]);
    assert!(start_of(&place, "a").iter().all(|byte| *byte == 0));
}

#[test]
fn an_image_of_another_format_was_served_as_a_raw_disk() {
    let place = Place::new();
    let host = host(&place);
    let daemon = Daemon::serve(&place, &host);
    let mut qcow2 = vec![0; MIB as usize];
    qcow2[..4].copy_from_slice(b"QFI\xfb");
    let image = place.write("new.qcow2", &qcow2);
    let export = format!("export.socket={}", place.volume_socket("n", "v").display());
    let source = format!("source={}", image.display());
    let attach = ["attach", "n/v", "device=disk", &source, &export];
    let refused = ask(&place, &attach);
    assert_eq!(refused.code(), Some(4));
    let refused = refused.failed();
    let command = format!("qemu-img convert -f qcow2 -O raw {} {}.raw", image.display(), image.display());
    assert!(refused.contains(&command) && refused.contains("format = \\\"raw\\\""), "{refused}");
    json(ask(&place, &[&attach[..], &["format=raw"]].concat()));
    // Later such bytes are the guest's own.
    open(&place, "a").write(0, b"QFI\xfb\0\0\0\x03".repeat(64).as_slice()).unwrap();
    daemon.kill();
    let daemon = Daemon::serve(&place, &host);
    assert!(start_of(&place, "a").starts_with(b"QFI\xfb"));
    // Also after it was detached, or got another name.
    json(ask(&place, &["detach", "a/v", "--force", "a/v"]));
    json(ask(&place, &["reset", "a/v"]));
    assert!(start_of(&place, "a").starts_with(b"QFI\xfb"));
    json(ask(&place, &["detach", "n", "--force", "n"]));
    json(ask(&place, &attach));
    drop(daemon);
}

#[test]
fn a_plan_says_what_a_file_would_change_and_changes_nothing() {
    let place = Place::new();
    let host = host(&place) + "[vm.a]\nreservation = \"800 iops\"\n";
    let daemon = Daemon::serve(&place, &host);
    let candidate = place.write("candidate.toml", host.replace("800 iops", "500 iops"));
    let plan = run(sluice().args(["apply", "--dry-run", "--socket"]).arg(place.socket("control")).arg(&candidate)).ok();
    assert!(plan.contains("loses 300 iops of reservation"), "{plan}");
    let refused = ask(&place, &["apply", candidate.to_str().unwrap()]);
    assert_eq!(refused.code(), Some(4));
    assert!(refused.failed().contains("candidate.toml; change"));
    let none = json(apply(&place, &["--wait"]));
    assert_eq!(none["changes"], serde_json::json!([]));
    std::fs::write(place.file("host.toml"), host.replace("800 iops", "5000 iops")).unwrap();
    let wrong = apply(&place, &["--wait"]);
    assert_eq!(wrong.code(), Some(1));
    assert!(wrong.failed().contains("reserves 5000 iops@8KiB"));
    std::fs::write(place.file("host.toml"), host.replace("800 iops", "500 iops")).unwrap();
    let applied = json(apply(&place, &["--wait"]));
    assert_eq!(applied["changes"][0]["effect"], "loses 300 iops of reservation");
    let log = daemon.stderr().with("Changed by the host file who=\"uid ");
    assert!(log.contains("before=\"800\" after=\"500\""), "{log}");
}

/// Whether a read is answered.
fn is_served(client: &mut Raw) -> bool {
    let answered = client.send(READ, 0, 0, 512, &[]).and_then(|_| client.reply());
    matches!(answered, Ok((_, 0))) && client.data(512).is_ok()
}

#[test]
fn a_client_that_came_during_a_detach_lost_its_disk() {
    let place = Place::new();
    let _daemon = Daemon::serve(&place, &host(&place));
    let done = AtomicBool::new(false);
    let connect_often = || {
        let mut served = 0;
        while !done.load(Ordering::Relaxed) {
            let Ok(mut client) = Raw::open(&place.volume_socket("b", "v"), "b/v") else { continue };
            // With its first reply the volume is in use, so that a detach without force is refused from then on.
            if is_served(&mut client) {
                assert!((0..4).all(|_| is_served(&mut client)), "a detach without force closed a volume in use");
                served += 1;
            }
        }
        served
    };
    let (mut detached, mut refused) = (0, 0);
    let served: u32 = std::thread::scope(|scope| {
        let client = scope.spawn(connect_often);
        let end = End(&done);
        while !client.is_finished() && (detached < 10 || refused < 3) {
            let ended = ask(&place, &["detach", "b"]);
            match ended.status.success() {
                true => {
                    detached += 1;
                    json(ask(&place, &["reset", "b"]));
                }
                false => refused += 1,
            }
        }
        drop(end);
        client.join().unwrap()
    });
    assert!(served > 0, "detached {detached} times, refused {refused} times");
}
