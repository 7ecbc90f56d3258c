//! Volumes that are RBD images of a real cluster, which `cargo xtask test --only ceph` starts (`ceph/cluster.sh`).
//!
//! `SLUICE_CRASHES=100` is the long form: the daemon is killed 100 times, an OSD 5 times, and monitors are away for a minute.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_client::vhost::{Client, ClientOptions, Request};

use crate::common::journal::Journal;
use crate::common::raw::{EIO, Raw};
use crate::common::reads::End;
use crate::common::{Daemon, Ended, KIB, MIB, Place, noise, run, sluice, tool, until};

mod pool;
mod trouble;

/// Written while a part of the cluster is out of order, so that no other test waits for it.
static OSDS: RwLock<()> = RwLock::new(());

/// Whether this is the long form.
fn is_long() -> bool {
    std::env::var_os("SLUICE_CRASHES").is_some()
}

fn folder() -> PathBuf {
    std::env::var_os("SLUICE_CEPH").map(PathBuf::from).expect(
        "SLUICE_CEPH names the folder of a cluster that crates/sluice/tests/ceph/cluster.sh has started; `cargo xtask test --only ceph` starts one",
    )
}

fn conf() -> PathBuf {
    folder().join("ceph.conf")
}

fn ceph(program: &str, arguments: &[&str]) -> Ended {
    run(tool(program, "ceph-common").env("CEPH_CONF", conf()).args(arguments))
}

/// An image of a test, whose first half has data. It goes with the cluster.
struct Image(String);

impl Image {
    fn new() -> Image {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let image = Image(format!("i{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        ceph("rbd", &["create", &image.path(), "--size", "32M"]).ok();
        let fill =
            ["bench", "--io-type", "write", "--io-size", "1M", "--io-total", "16M", "--io-threads", "1", &image.path()];
        ceph("rbd", &fill).ok();
        image
    }

    fn path(&self) -> String {
        format!("vms/{}", self.0)
    }

    fn rbd(&self, verb: &str) -> Ended {
        ceph("rbd", &[verb, &self.path()])
    }

    /// What the image has, read by Ceph's own program.
    fn content(&self, place: &Place) -> Vec<u8> {
        let file = place.file("exported");
        let _ = std::fs::remove_file(&file);
        ceph("rbd", &["export", "--no-progress", &self.path(), file.to_str().unwrap()]).ok();
        std::fs::read(file).unwrap()
    }
}

const DEVICE: &str = "[device.ceph]\npath = \"rbd:vms\"\nceph_user = \"sluice\"\n";

/// A host with these volumes: VM, image, further lines.
fn host(place: &Place, volumes: &[(&str, &Image, &str)]) -> String {
    let mut host = place.control_keys();
    host += &format!("{DEVICE}ceph_conf = \"{}\"\n", conf().display());
    for (vm, image, lines) in volumes {
        let socket = place.volume_socket(vm, "v");
        host += &format!("[vm.{vm}.volume.v]\ndevice = \"ceph\"\nsource = \"rbd:{}\"\n{lines}\n", image.path());
        if !lines.contains("export") {
            host += &format!("export = {{ socket = \"{}\" }}\n", socket.display());
        }
    }
    host
}

fn over_vhost(place: &Place, vm: &str) -> String {
    format!("export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}", place.volume_socket(vm, "v").display())
}

fn open(place: &Place, vm: &str) -> Raw {
    Raw::open(&place.volume_socket(vm, "v"), &format!("{vm}/v")).unwrap()
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(["-o", "json"]).args(verb).arg("--socket").arg(place.socket("control")))
}

fn takeover(place: &Place, more: &[&str]) -> Ended {
    ask(place, &[&["takeover", "a/v"], more].concat())
}

/// Address of the client that has the image.
fn owner(place: &Place) -> String {
    let told: Value = serde_json::from_str(&takeover(place, &[]).ok()).unwrap();
    assert!(told["host"].is_string() && told["since"].is_u64() && told["taken"] == false, "{told}");
    told["address"].as_str().unwrap().to_owned()
}

/// A VM with a client that knows what it has written and what was confirmed.
struct Verified {
    place: Place,
    image: Image,
    host: String,
    running: Daemon,
    client: Client,
    journal: Journal,
}

impl Verified {
    const APPENDERS: usize = 8;

    fn start() -> Verified {
        let (place, image) = (Place::new(), Image::new());
        ceph("rbd", &["resize", "--no-progress", "--allow-shrink", "--size", "0", &image.path()]).ok();
        ceph("rbd", &["resize", "--no-progress", "--size", "8M", &image.path()]).ok();
        let host = host(&place, &[("a", &image, &over_vhost(&place, "a"))]);
        let running = Daemon::serve(&place, &host);
        // A request may wait until the cluster has noticed that an OSD is down.
        let options =
            ClientOptions { queues: 1, slots: 24, timeout: Duration::from_secs(120), ..ClientOptions::default() };
        let client = place.vhost("a", "v", &options);
        let journal = Journal::new(Verified::APPENDERS, 1, client.config().block_size, 0x5eed);
        Verified { place, image, host, running, client, journal }
    }

    /// Bytes of the image that are used.
    fn len() -> usize {
        Journal::len_bytes(Verified::APPENDERS) as usize
    }

    /// Writes until so much is confirmed.
    fn work(&mut self, answers: u64) {
        self.journal.work(&mut self.client, answers);
    }

    /// Ends, and checks that what was confirmed is in the image.
    fn finish(mut self) {
        self.journal.finish(&mut self.client);
        assert_eq!(self.running.terminate().code(), Some(0));
        self.journal.check(&self.image.content(&self.place)[..Verified::len()]);
    }
}

#[test]
fn an_image_holds_what_is_written_and_its_holes_are_told() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let (place, image) = (Place::new(), Image::new());
    let daemon = Daemon::serve(&place, &host(&place, &[("a", &image, "")]));
    let mut raw = open(&place, "a");
    assert_eq!(raw.size_bytes, 32 * MIB);
    let before = image.content(&place);
    let mut expected = before.clone();
    for (number, length) in [(1, 512), (2, 4 * KIB), (3, 300 * KIB), (20, MIB)] {
        let data = noise(number, length as usize);
        raw.write(number * MIB, &data).unwrap();
        expected[(number * MIB) as usize..][..data.len()].copy_from_slice(&data);
        assert_eq!(raw.read(number * MIB, length as u32).unwrap(), data, "{length}");
    }
    // FUA; zeroes in both forms; a discard of a whole object.
    let data = noise(9, 4096);
    raw.ask(1, 1, 5 * MIB, 4096, &data).unwrap();
    expected[5 * MIB as usize..][..4096].copy_from_slice(&data);
    for (flags, offset) in [(0, 6 * MIB + 512), (2, 7 * MIB)] {
        raw.ask(6, flags, offset, 64 << 10, &[]).unwrap();
        expected[offset as usize..][..64 << 10].fill(0);
    }
    raw.ask(4, 0, 12 * MIB, 4 << 20, &[]).unwrap();
    raw.flush().unwrap();
    let now = image.content(&place);
    let discarded = 12 * MIB as usize..16 * MIB as usize;
    assert!(now[discarded.clone()].iter().all(|byte| *byte == 0), "a whole object is removed");
    expected[discarded].fill(0);
    assert!(now == expected, "what Ceph's own client reads is what was written");
    // The image grows with the volume, and by another client.
    ask(&place, &["resize", "a/v", "40MiB"]).ok();
    assert_eq!(open(&place, "a").size_bytes, 40 * MIB);
    assert!(image.rbd("info").ok().contains("40 MiB"));
    ceph("rbd", &["resize", "--no-progress", "--size", "48M", &image.path()]).ok();
    ask(&place, &["resize", "a/v", "48MiB"]).ok();
    let mut grown = open(&place, "a");
    grown.write(47 * MIB, &noise(4, 4096)).unwrap();
    assert_eq!(grown.read(47 * MIB, 4096).unwrap(), noise(4, 4096));
    // A client that asks for one part at a time gets no data as a hole.
    let ask = "h.block_status(48 << 20, 0, lambda context, offset, entries, error: parts.extend(entries), nbd.CMD_FLAG_REQ_ONE)";
    let uri = place.uri("a", "v");
    let script =
        format!("h.add_meta_context('base:allocation')\nh.connect_uri('{uri}')\nparts = []\n{ask}\nprint(parts)");
    let told = crate::common::nbdsh(&script);
    let first: Vec<u64> =
        told.trim().trim_matches(['[', ']']).split(", ").map(|number| number.parse().unwrap()).collect();
    assert!(first.len() == 2 && first[0] <= 12 * MIB && first[1] == 0, "what begins with data: {told}");
    // A part that was never written.
    let map = run(tool("nbdinfo", "libnbd-bin").args(["--json", "--map", &place.uri("a", "v")])).ok();
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let number = |part: &Value, key: &str| part[key].as_u64().unwrap();
    let is_hole = |part: &&Value| part["type"] == 3 && number(part, "offset") <= 24 * MIB;
    assert!(
        map.iter().filter(is_hole).any(|part| number(part, "offset") + number(part, "length") > 40 * MIB),
        "{map:?}"
    );
    assert_eq!(daemon.terminate().code(), Some(0));
    assert!(image.rbd("status").ok().contains("Watchers: none"), "it was closed");
}

/// A guest's data goes from its memory to the cluster, in several segments. The guest may change it meanwhile: then the image has either, and
/// nothing else suffers.
#[test]
fn a_guest_that_changes_what_it_writes_harms_nobody() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let (place, images) = (Place::new(), [Image::new(), Image::new()]);
    let lines = over_vhost(&place, "a");
    let _daemon = Daemon::serve(&place, &host(&place, &[("a", &images[0], &lines), ("b", &images[1], "")]));
    let mut client = place.vhost("a", "v", &ClientOptions { slots: 8, ..ClientOptions::default() });
    let memory = std::sync::Arc::clone(client.memory());
    let data: Vec<usize> = (0..8).map(|slot| client.queue(0).data(slot)).collect();
    let is_enough = AtomicBool::new(false);
    let mut other = open(&place, "b");
    std::thread::scope(|scope| {
        let _end = End(&is_enough);
        let changer = scope.spawn(|| {
            let mut byte = 0_u8;
            while !is_enough.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                data.iter().for_each(|at| memory.write(*at, &[byte; 4096]));
            }
        });
        for round in 0..200_u64 {
            let queue = client.queue(0);
            let write = |slot: u16| Request::Write { offset: (round * 8 + u64::from(slot)) % 64 * 65536, len: 65536 };
            (0..8).for_each(|slot| queue.submit(slot, write(slot)).unwrap());
            queue.publish().unwrap();
            let mut left = 8;
            while left > 0 {
                let answers = client.wait(0, 1).unwrap();
                assert!(answers.iter().all(|answer| answer.status == 0), "{answers:?}");
                left -= answers.len();
            }
            let data = noise(round, 4096);
            other.write(round * 4096, &data).unwrap();
            assert_eq!(other.read(round * 4096, 4096).unwrap(), data);
        }
        is_enough.store(true, Ordering::Relaxed);
        changer.join().unwrap();
    });
}

#[test]
fn no_acknowledged_write_is_lost_or_torn_when_the_daemon_is_killed() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let kills = std::env::var("SLUICE_CRASHES").map_or(3, |wanted| wanted.parse().expect("SLUICE_CRASHES is a number"));
    let Verified { place, image, host, mut running, mut client, mut journal } = Verified::start();
    for _ in 0..kills {
        let enough = 20 + journal.random(200);
        journal.work(&mut client, enough);
        running.kill();
        journal.reap(&mut client);
        running = Daemon::serve(&place, &host);
        assert_eq!(running.accounts().0["out_of_service"], json!([]), "it takes its own lock back at once");
        journal.check(&image.content(&place)[..Verified::len()]);
        client.reconnect(&place.volume_socket("a", "v")).unwrap();
    }
    assert_eq!(running.terminate().code(), Some(0));
}

/// Whether all threads of a process are stopped.
fn stands_still(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| task.unwrap().path().join("stat")).all(|stat| {
        let text = std::fs::read_to_string(stat).unwrap_or_default();
        text.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
    })
}

#[test]
fn another_host_has_to_take_an_image_over_and_the_frozen_owner_writes_nothing_any_more() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let image = Image::new();
    let neighbour = Image::new();
    let (mut first, mut second) = (Place::new(), Place::new());
    let mut owner_daemon = Daemon::serve(&first, &host(&first, &[("a", &image, ""), ("b", &neighbour, "")]));
    let rounds = if is_long() { 20 } else { 2 };
    for round in 0..rounds {
        let mut old = open(&first, "a");
        old.write(0, &noise(round, 4096)).unwrap();
        let taker = Daemon::serve(&second, &host(&second, &[("a", &image, "")]));
        assert_eq!(taker.accounts().0["out_of_service"], json!(["a/v"]));
        let address = owner(&second);
        assert!(takeover(&second, &["--from", "1.2.3.4:0/5"]).failed().contains(&address), "it is another one's");
        assert!(takeover(&first, &[]).failed().contains("No other client"), "it serves the volume");
        owner_daemon.signal(Signal::STOP);
        until("it stands still", || stands_still(owner_daemon.pid()));
        // What was on its way when the owner stood still is sent when it goes on.
        let sent = old.send(1, 0, 8192, 4096, &noise(99, 4096)).unwrap();
        let taken: Value = serde_json::from_str(&takeover(&second, &["--from", &address]).ok()).unwrap();
        assert_eq!(taken["taken"], true);
        let mut new = open(&second, "a");
        let data = noise(1000 + round, 16 << 10);
        new.write(0, &data).unwrap();
        new.flush().unwrap();
        owner_daemon.signal(Signal::CONT);
        assert_eq!(old.reply().unwrap(), (sent, EIO));
        assert_eq!(old.write(0, &noise(98, 4096)), Err(EIO));
        assert_eq!(old.read(0, 4096), Err(EIO));
        assert_eq!(new.read(0, 16 << 10).unwrap(), data, "none of its writes has landed");
        if round == 0 {
            let failing = || ask(&first, &["describe", "a/v"]).stdout;
            until("the reason is told", || failing().contains("taken_over"));
            open(&first, "b").write(0, &noise(3, 4096)).unwrap();
            until("it is recorded", || ask(&second, &["events", "--kind", "taken_over"]).stdout.contains("taken_over"));
        }
        owner_daemon.kill();
        (owner_daemon, first, second) = (taker, second, Place::new());
    }
}

#[test]
fn the_state_of_another_host_takes_no_lock() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let (image, first, second) = (Image::new(), Place::new(), Place::new());
    let owner_daemon = Daemon::serve(&first, &host(&first, &[("a", &image, "")]));
    let copied = run(Command::new("cp").arg("-r").arg(first.file("state")).arg(second.file("state")));
    assert_eq!(copied.code(), Some(0));
    let taker = Daemon::serve(&second, &host(&second, &[("a", &image, "")]));
    assert_eq!(taker.accounts().0["out_of_service"], json!(["a/v"]));
    open(&first, "a").write(0, &noise(1, 4096)).unwrap();
    // The owner leaves in peace, and the other one has it then.
    assert_eq!(owner_daemon.terminate().code(), Some(0));
    until("it is served", || taker.accounts().0["out_of_service"] == json!([]));
}

#[test]
fn another_client_cannot_write_while_the_daemon_has_the_lock_and_the_daemon_not_while_it_has() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let (place, image) = (Place::new(), Image::new());
    let daemon = Daemon::serve(&place, &host(&place, &[("a", &image, "")]));
    let uri = format!("rbd:{}:conf={}", image.path(), conf().display());
    let written = run(tool("qemu-io", "qemu-utils").args(["-f", "raw", "-c", "write 0 4k", &uri]));
    assert!(written.code() != Some(0) && written.stderr.contains("Read-only"), "{} {}", written.stdout, written.stderr);
    assert_eq!(daemon.terminate().code(), Some(0));
    let mut fio = crate::common::fio::fio(
        &place,
        "other",
        &format!(
            "[other]\nioengine=rbd\npool=vms\nrbdname={}\nclientname=admin\nrw=randwrite\nbs=4k\ntime_based=1\nruntime=600\n",
            image.0
        ),
    );
    let other = crate::common::start(fio.env("CEPH_CONF", conf()));
    let lock = || ceph("rbd", &["lock", "ls", &image.path()]).stdout;
    until("it has the lock", || lock().contains("client."));
    let daemon = Daemon::serve(&place, &host(&place, &[("a", &image, "")]));
    assert_eq!(daemon.accounts().0["out_of_service"], json!(["a/v"]));
    assert!(takeover(&place, &[]).ok().contains("\"taken\":false"));
    drop(other);
    let told: Value = serde_json::from_str(&takeover(&place, &[]).ok()).unwrap();
    assert_eq!(told["host"], Value::Null, "it is no daemon");
    takeover(&place, &["--from", told["address"].as_str().unwrap()]).ok();
    open(&place, "a").write(0, &noise(1, 4096)).unwrap();
}

#[test]
fn what_is_wrong_with_an_image_or_the_cluster_is_said_with_what_to_do() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let (place, image) = (Place::new(), Image::new());
    let good = host(&place, &[("a", &image, "")]);
    let checked = |host: &str| run(sluice().args(["check", "--host"]).arg(place.write("checked.toml", host))).stdout;
    let with = |host: &str| good.replace("ceph_user = \"sluice\"", host);
    assert!(!checked(&good).contains("would be out of service"));
    for (wrong, words) in [
        (good.replace(&image.path(), "vms/none"), "there is no image vms/none"),
        (good.replace("rbd:vms", "rbd:nopool"), "the pool nopool"),
        (with("ceph_user = \"nobody\""), "there is no key of client.nobody"),
        (good.replace(&*conf().to_string_lossy(), "/none/ceph.conf"), "/none/ceph.conf cannot be read"),
    ] {
        let told = checked(&wrong);
        assert!(told.contains(words), "{words}: {told}");
    }
    // A key that the cluster does not know.
    let keyring = place.write("wrong.keyring", "[client.sluice]\nkey = AQBZ0lxnAAAAABAAq0EWxGbVIrWbQNGDW0A1Og==\n");
    let text = std::fs::read_to_string(conf()).unwrap();
    let line = text.lines().find(|line| line.starts_with("keyring")).unwrap();
    let wrong = place.write("wrong.conf", text.replace(line, &format!("keyring = {}", keyring.display())));
    let told = checked(&good.replace(&*conf().to_string_lossy(), &wrong.to_string_lossy()));
    assert!(told.contains("the cluster does not accept it"), "{told}");
    // Caches and limits that the image brings.
    ceph("rbd", &["config", "image", "set", &image.path(), "rbd_qos_iops_limit", "100"]).ok();
    assert!(checked(&good).contains("rbd_qos_iops_limit = 100"), "{}", checked(&good));
    ceph("rbd", &["config", "image", "set", &image.path(), "rbd_cache", "true"]).ok();
    let told = checked(&good);
    assert!(
        told.contains("rbd_cache = true, with which it cannot be served")
            && told.contains(&format!("rbd config image rm {}", image.path())),
        "{told}"
    );
    ceph("rbd", &["config", "image", "rm", &image.path(), "rbd_cache"]).ok();
    ceph("rbd", &["feature", "disable", &image.path(), "object-map", "fast-diff", "exclusive-lock"]).ok();
    let daemon = Daemon::serve(&place, &good);
    assert_eq!(daemon.accounts().0["out_of_service"], json!(["a/v"]));
    let told = daemon.stderr().up_to(&["exclusive-lock"]);
    assert!(told.contains(&format!("rbd feature enable {} exclusive-lock", image.path())), "{told}");
    ceph("rbd", &["feature", "enable", &image.path(), "exclusive-lock"]).ok();
    until("it is served", || daemon.accounts().0["out_of_service"] == json!([]));
}

/// Libraries with these names, without most of what the real ones have.
fn old_libraries(place: &Place) -> PathBuf {
    let folder = place.file("old");
    std::fs::create_dir(&folder).unwrap();
    let source = place.write("old.c", "int rados_create(void **cluster, const char *id) { return -1; }\n");
    for name in ["librados.so.2", "librbd.so.1"] {
        let built = run(tool("cc", "gcc").args(["-shared", "-o"]).arg(folder.join(name)).arg(&source));
        assert_eq!(built.code(), Some(0), "{}", built.stderr);
    }
    folder
}

#[test]
fn a_library_that_lacks_a_function_is_named_with_its_package_and_other_vms_are_served() {
    let (place, image) = (Place::new(), Image::new());
    let file = place.image("b.img", MIB);
    let host = host(&place, &[("a", &image, "")]) + &place.device("") + &place.volume("b", "v", &file, "");
    let libraries = old_libraries(&place);
    let daemon = Daemon::serve_by(&place, &host, |command| {
        let mut by = Command::new("env");
        by.arg(format!("LD_LIBRARY_PATH={}", libraries.display())).arg(command.get_program()).args(command.get_args());
        by
    });
    assert_eq!(daemon.accounts().0["out_of_service"], json!(["a/v"]));
    let told = daemon.stderr().up_to(&["has no function"]);
    assert!(
        told.contains("librados.so.2 has no function rados_conf_read_file: install the package librados2"),
        "{told}"
    );
    Raw::open(&place.volume_socket("b", "v"), "b/v").unwrap().write(0, &noise(1, 4096)).unwrap();
}

#[test]
fn the_seal_does_without_what_librbd_needs_and_says_so() {
    let _shared = OSDS.read().unwrap_or_else(PoisonError::into_inner);
    let (place, image) = (Place::new(), Image::new());
    let good = host(&place, &[("a", &image, "")]);
    let required = good.replace("state = ", "jail = \"required\"\nstate = ");
    let refused = run(sluice().arg("check").arg(place.write("required.toml", required)));
    assert!(refused.failed().contains("librbd does what the seal forbids"));
    let without = place.control_keys() + &place.device("");
    let daemon = Daemon::serve(&place, &without);
    let refused = daemon.reload(&good);
    assert!(refused.contains("the pool rbd:vms") && refused.contains("Restart the daemon"), "{refused}");
    assert_eq!(daemon.terminate().code(), Some(0));
    let daemon = Daemon::serve(&place, &good);
    daemon.stderr().up_to(&["Layers of the seal are left out: librbd"]);
    open(&place, "a").write(0, &noise(1, 4096)).unwrap();
}

#[test]
fn an_image_that_is_shrunk_fails_requests_past_its_end_and_gives_no_wrong_data() {
    let _alone = OSDS.write().unwrap_or_else(PoisonError::into_inner);
    let (place, image) = (Place::new(), Image::new());
    let daemon = Daemon::serve(&place, &host(&place, &[("a", &image, "")]));
    let mut raw = open(&place, "a");
    raw.write(20 * MIB, &noise(1, 4096)).unwrap();
    // The owner of the lock is asked to do it, and does: it is an operator's order.
    ceph("rbd", &["resize", "--no-progress", "--allow-shrink", "--size", "16M", &image.path()]).ok();
    assert_eq!(raw.read(20 * MIB, 4096), Err(EIO));
    assert_eq!(raw.write(20 * MIB, &noise(2, 4096)), Err(EIO));
    until("a write that the library cuts off fails", || raw.write(16 * MIB - 2048, &noise(5, 4096)) == Err(EIO));
    assert_eq!(raw.read(16 * MIB - 2048, 4096), Err(EIO), "only a part is there");
    raw.write(MIB, &noise(3, 4096)).unwrap();
    assert_eq!(raw.read(MIB, 4096).unwrap(), noise(3, 4096));
    assert_eq!(daemon.terminate().code(), Some(0));
}

#[test]
fn the_cluster_is_that_of_the_script() {
    assert!(conf().is_file());
    assert!(ceph("ceph", &["auth", "get", "client.sluice"]).ok().contains("profile rbd"));
}
