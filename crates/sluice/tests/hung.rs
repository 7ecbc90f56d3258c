//! A disk that does not respond: the daemon exits all the same, and the next one serves volumes on other disks.

use std::io::{ErrorKind, Read};

use crate::common::disk::{FileSystem, Hanging};
use crate::common::raw::{Raw, WRITE, connect, greeted};
use crate::common::{Daemon, MIB, Place, Running, held, noise, run, sluice, start, tool, until};
use rustix::process::Signal;
use sluice_client::vhost::{ClientOptions, Request};

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

fn daemon_keys(place: &Place) -> String {
    place.control_keys() + "drain_timeout = \"1s\"\n"
}

#[test]
fn a_hung_disk_kept_the_daemon_from_exiting() {
    let place = Place::new();
    let disk = Hanging::new(&place, "hung");
    let volumes =
        place.volume("stuck", "v", disk.path(), "") + &place.volume("fine", "v", &place.image("fine.img", MIB), "");
    let daemon = Daemon::serve(&place, &(daemon_keys(&place) + &place.device("") + &volumes));
    let (mut stuck, mut fine) = (open(&place, "stuck"), open(&place, "fine"));
    disk.below.freeze();
    stuck.send(WRITE, 0, 0, 4096, &noise(1, 4096)).unwrap();
    until("the write is in flight", || daemon.accounts().device()["in_flight"] == 1);
    fine.write(0, &noise(2, 4096)).unwrap();
    daemon.signal(Signal::TERM);
    let ended = daemon.end();
    let output = &ended.stderr;
    assert_eq!(ended.code(), Some(0), "{output}");
    assert!(output.contains("Drain timed out"), "{output}");
    let line = output.lines().find(|line| line.contains("the disk has not completed them")).expect(output);
    assert!(line.contains("in_flight=1") && line.contains("vms=\"stuck\""), "{line}");
    let last = ended.stdout.lines().last().unwrap();
    let accounts: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(accounts["devices"][0]["in_flight"], 1, "{last}");
    disk.below.thaw();
}

#[test]
fn a_socket_in_a_hung_folder_kept_the_devices_from_draining() {
    let place = Place::new();
    let below = FileSystem::new(&place.image("sockets.img", 64 * MIB), place.file("sockets"));
    let socket = below.folder.join("a.sock");
    let export = format!("export = {{ socket = \"{}\" }}", socket.display());
    let volume = format!("[vm.a.volume.v]\ndevice = \"null\"\nsize = \"1MiB\"\n{export}\n");
    let device = "[daemon]\ndrain_timeout = \"1h\"\n[device.null]\nbackend = \"null\"\n";
    let daemon = Daemon::serve(&place, &(device.to_owned() + &volume));
    let mut client = Raw::open(&socket, "a/v").unwrap();
    client.read(0, 4096).unwrap();
    below.freeze();
    daemon.signal(Signal::TERM);
    daemon.stderr().up_to(&["Drained"]);
    below.thaw();
    assert_eq!(daemon.end().code(), Some(0));
}

#[test]
fn volumes_on_a_hung_disk_kept_the_others_from_starting() {
    let place = Place::new();
    let disk = Hanging::new(&place, "hung");
    let part = |number: u64| format!("offset = \"{number}MiB\"\nsize = \"1MiB\"");
    let volumes = place.volume("stuck", "v", disk.path(), &part(0))
        + &place.vhost_volume("guest", "v", disk.path(), &part(1))
        + &place.volume("fine", "v", &place.image("fine.img", MIB), "");
    let host = daemon_keys(&place) + &place.device("") + &volumes;
    let daemon = Daemon::serve(&place, &host);
    let mut stuck = open(&place, "stuck");
    let mut guest = place.vhost("guest", "v", &ClientOptions::default());
    disk.below.freeze();
    let data = noise(1, 4096);
    stuck.send(WRITE, 0, 0, 4096, &data).unwrap();
    let queue = guest.queue(0);
    queue.submit(0, Request::Write { offset: 0, len: 4096 }).unwrap();
    queue.publish().unwrap();
    // Not what the daemon counts: a worker of the kernel passes the writes on, and a write that it has not begun ends with its
    // process, so that nothing would hold the bytes.
    until("the writes are at the device", || disk.writes_in_flight() == 2);
    daemon.kill();

    let daemon = Daemon::serve(&place, &host);
    let output = daemon.stderr().up_to(&["Ready"]);
    for vm in ["stuck", "guest"] {
        let line = output.lines().find(|line| line.contains("out of service") && line.contains(vm)).expect(&output);
        assert!(line.contains("requests of a process that is gone"), "{line}");
    }
    assert_eq!(daemon.accounts().0["out_of_service"], serde_json::json!(["guest/v", "stuck/v"]));
    let mut fine = open(&place, "fine");
    fine.write(0, &data).unwrap();
    // A client waits there until the volume is served.
    let waiting = connect(&place.volume_socket("stuck", "v")).unwrap();
    // A reload that changes something else is applied meanwhile.
    daemon.accept(&host.replace("[vm.fine.volume.v]", "[vm.fine]\nweight = 200\n[vm.fine.volume.v]"));
    disk.below.thaw();
    let mut back = String::new();
    let is_back = |back: &str, vm| back.lines().any(|line| line.contains("in service again") && line.contains(vm));
    while !(is_back(&back, "stuck") && is_back(&back, "guest")) {
        back += &daemon.stderr().up_to(&["Volume is in service again"]);
    }
    let mut waited = Raw::enter(greeted(waiting).unwrap(), "stuck/v").unwrap();
    assert!(waited.read(0, 4096).unwrap() == data, "what was on its way has landed");
    let mut guest = place.vhost("guest", "v", &ClientOptions::default());
    guest.perform(0, Request::Read { offset: 0, len: 4096 }).unwrap();
    assert_eq!(daemon.accounts().0["out_of_service"], serde_json::json!([]));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn a_daemon_kept_running_after_its_last_device_went_down() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &(place.device("") + &place.volume("a", "v", &place.image("a.img", MIB), "")));
    let mut client = open(&place, "a");
    client.write(0, &noise(1, 4096)).unwrap();
    // From now on its kernel refuses io_uring.
    let calls = "inject=io_uring_enter,io_uring_setup:error=EPERM";
    let mut strace = tool("strace", "strace");
    strace.args(["-qq", "-f", "-o", "/dev/null", "-e", calls, "-p"]).arg(daemon.pid().to_string());
    let tracing = start(&mut strace);
    until("its threads are traced", || is_traced(daemon.pid()));
    // Only the device thread notices; it fails in its next iteration.
    let _ = client.send(WRITE, 0, 0, 4096, &noise(2, 4096));
    let ended = daemon.end();
    let output = &ended.stderr;
    assert_eq!(ended.code(), Some(1), "{output}");
    let lines = [
        "Device thread failed",
        "Cannot restart the device thread",
        "Device is down: restart the daemon to serve its VMs",
    ];
    for line in lines {
        assert!(output.contains(line), "{line}: {output}");
    }
    assert!(output.trim_end().ends_with("nothing is served; see the log, and restart the daemon"), "{output}");
    let accounts = ended.stdout.lines().find(|line| line.contains("\"event\":\"accounts\"")).expect(&ended.stdout);
    let accounts: serde_json::Value = serde_json::from_str(accounts).unwrap();
    assert_eq!(accounts["devices"][0]["health"], "down", "{accounts}");
    assert!(client.is_disconnected());
    drop(tracing);
}

/// Hangs the thread of a device at its next wait for events, until what is returned is dropped.
fn hang_thread(daemon: &Daemon, device: &str) -> Running {
    let (tracing, _) = trace_thread(daemon, device, "io_uring_enter:delay_enter=3600s");
    until("the thread hangs", || health(daemon, device) == "silent");
    tracing
}

/// Delays system calls of the thread of a device, until the first result is dropped. The second one is the thread's number.
fn trace_thread(daemon: &Daemon, device: &str, inject: &str) -> (Running, String) {
    let name = format!("dev-{device}\n");
    let mut tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
    let is_it = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap() == name;
    let task = tasks.find(is_it).expect("the device has a thread").file_name();
    let mut strace = tool("strace", "strace");
    let task = task.into_string().unwrap();
    strace.args(["-qq", "-o", "/dev/null", "-e", &format!("inject={inject}"), "-p", &task]);
    (start(&mut strace), task)
}

#[test]
fn a_thread_that_was_late_for_half_a_second_was_reported_down() {
    let place = Place::new();
    let host = daemon_keys(&place) + "[device.disk]\nbackend = \"null\"\n";
    let daemon = Daemon::serve(&place, &host);
    let ask = |verb: &[&str]| -> serde_json::Value {
        let ended = run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")));
        serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap()
    };
    // What wakes the thread reaches it half a second late, as on a host without a free CPU.
    let (tracing, task) = trace_thread(&daemon, "disk", "io_uring_enter:delay_exit=500ms");
    let status = format!("/proc/{}/task/{task}/status", daemon.pid());
    until("the thread is traced", || !std::fs::read_to_string(&status).unwrap().contains("TracerPid:\t0"));
    let time = || ask(&["status"])["time"].as_u64().unwrap();
    let begin = time();
    until("five samples", || time() >= begin + 5);
    assert_eq!(held(&ask(&["events"])), [] as [serde_json::Value; 0]);
    assert_eq!(ask(&["get", "devices"])["devices"][0]["health"], "serving");
    drop(tracing);
    let hung = hang_thread(&daemon, "disk");
    until("it is down", || held(&ask(&["events"])).first().is_some_and(|event| event["kind"] == "down"));
    drop(hung);
}

fn health(daemon: &Daemon, device: &str) -> String {
    let accounts = daemon.accounts();
    let devices = accounts.0["devices"].as_array().unwrap();
    let it = devices.iter().find(|of| of["device"] == device).unwrap();
    it["health"].as_str().unwrap().to_owned()
}

#[test]
fn changes_of_a_device_that_hung_held_up_those_of_another_one() {
    let place = Place::new();
    let null = |vm: &str| {
        let export = format!("export = {{ socket = \"{}\" }}", place.volume_socket(vm, "v").display());
        format!("[vm.{vm}.volume.v]\ndevice = \"stuck\"\nsize = \"1MiB\"\n{export}\n")
    };
    let volumes = null("a") + &null("b") + &place.volume("fine", "v", &place.image("fine.img", MIB), "");
    let host = daemon_keys(&place) + &place.device("") + "[device.stuck]\nbackend = \"null\"\n" + &volumes;
    let daemon = Daemon::serve(&place, &host);
    let mut client = open(&place, "b");
    client.read(0, 4096).unwrap();
    let hung = hang_thread(&daemon, "stuck");
    let verb = |words: &[&str]| {
        let mut command = sluice();
        command.args(words).arg("--socket").arg(place.socket("control"));
        command
    };
    // More of them than the harness waits for, if each is waited for alone.
    let changes: Vec<_> =
        (0..24).map(|number| start(&mut verb(&["set", "a", &format!("weight={}", 1 + number)]))).collect();
    run(&mut verb(&["set", "fine", "weight=7"])).ok();
    for change in changes {
        let said = change.end().failed();
        assert!(said.contains("Device stuck does not respond: it applies its part of the change"), "{said}");
    }
    let said = run(&mut verb(&["detach", "b", "--force", "b"])).failed();
    assert!(said.contains("Device stuck does not respond: it applies its part of the change"), "{said}");
    client.stream.set_nonblocking(true).unwrap();
    let read = client.stream.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(read, Err(ErrorKind::WouldBlock), "its client is still connected, as the answer says");
    client.stream.set_nonblocking(false).unwrap();

    drop(hung);
    assert!(client.is_disconnected(), "it is disconnected when the device responds");
    until("the device responds", || health(&daemon, "stuck") == "serving");
    run(&mut verb(&["set", "a", "weight=7"])).ok();
    assert_eq!(daemon.terminate().code(), Some(0));
}

/// Whether another process traces all of its threads.
fn is_traced(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let status = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
    tasks.map(status).all(|status| !status.contains("TracerPid:\t0"))
}

#[test]
fn a_hung_folder_of_the_metrics_socket_kept_every_vm_from_its_disk() {
    let place = Place::new();
    let below = FileSystem::new(&place.image("sockets.img", 64 * MIB), place.file("sockets"));
    below.freeze();
    let metrics = format!("[daemon]\nmetrics = \"{}\"\n", below.folder.join("metrics").display());
    let volume = place.volume("a", "v", &place.image("a.img", MIB), "");
    let file = place.write("host.toml", metrics + &place.device("") + &volume);
    let daemon = start(sluice().arg("serve").arg(file));
    let log = daemon.stderr.up_to(&["Ready", "has not responded for 5 s"]);
    let read = Raw::open(&place.volume_socket("a", "v"), "a/v").map(|mut client| client.read(0, 4096));
    // Before anything fails: a daemon that waits for it cannot be ended.
    below.thaw();
    assert!(log.contains("Metrics are not served"), "{log}");
    assert_eq!(read.unwrap(), Ok(vec![0; 4096]));
}
