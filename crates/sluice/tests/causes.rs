//! Violations that are constructed on purpose, with other programs as clients: the daemon names the cause that was constructed.
//!
//! The device serves at most 400 requests per second: 4 concurrently, 10 ms each. A busy machine takes some of that, so less is stated
//! where the device is not to be the cause.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::disk::Hanging;
use crate::common::reads::End;
use crate::common::{Daemon, Ended, Place, Running, fio, run, sluice, start, tool, until};
use serde_json::Value;
use sluice_client::vhost::{ClientOptions, Request};

const ATTEMPTS: u32 = 4;

/// A VM with a volume over NBD, its policy, and what fio does there.
pub(crate) struct Vm {
    pub(crate) name: &'static str,
    pub(crate) policy: &'static str,
    /// Policy of the volume.
    pub(crate) volume: &'static str,
    /// Requests that fio keeps outstanding.
    pub(crate) depth: u32,
    /// Further lines of fio's job.
    pub(crate) job: &'static str,
}

pub(crate) const fn vm(name: &'static str, policy: &'static str, depth: u32) -> Vm {
    Vm { name, policy, volume: "", depth, job: "" }
}

/// A device of 400 requests per second.
pub(crate) const USUAL: &str = "scheduler = \"mclock\"\ndepth = 4\ndelay = { time = \"10ms\", parallel = 4 }\n";

fn host(place: &Place, capacity: u32, vms: &[Vm]) -> String {
    host_with(USUAL, place, capacity, vms)
}

pub(crate) fn host_with(keys: &str, place: &Place, capacity: u32, vms: &[Vm]) -> String {
    let mut host = place.control_keys();
    host += &format!("[device.disk]\nbackend = \"null\"\ncapacity = \"{capacity} iops@8KiB\"\n{keys}");
    for Vm { name, policy, volume, .. } in vms {
        let socket = place.volume_socket(name, "v");
        host += &format!("[vm.{name}]\nallow_unenforced = true\n{policy}\n[vm.{name}.volume.v]\ndevice = \"disk\"\n");
        host += &format!("size = \"1MiB\"\n{volume}\nexport = {{ socket = \"{}\" }}\n", socket.display());
    }
    host
}

/// fio reads at random in each of the VMs, until it is dropped.
pub(crate) fn load(place: &Place, vms: &[Vm]) -> Running {
    let job = |Vm { name, depth, job, .. }: &Vm| {
        let uri = place.uri(name, "v");
        format!(
            "[{name}]\nioengine=nbd\nuri={uri}\nrw=randread\nbs=8k\niodepth={depth}\nsize=1m\ntime_based=1\nruntime=600\n{job}\n"
        )
    };
    start(&mut fio::fio(place, "load", &vms.iter().map(job).collect::<String>()))
}

fn ask(place: &Place, verb: &[&str]) -> Ended {
    run(sluice().args(verb).arg("--socket").arg(place.socket("control")))
}

fn events(place: &Place, filter: &[&str]) -> Vec<Value> {
    let verb = ["-o", "json", "events"].iter().chain(filter).copied().collect::<Vec<_>>();
    let reply: Value = serde_json::from_str(ask(place, &verb).ok().lines().next().unwrap()).unwrap();
    reply["events"].as_array().unwrap().clone()
}

/// Waits until a promise of `vm` is broken. Returns the event.
pub(crate) fn broken(place: &Place, vm: &str, kind: &str) -> Value {
    let filter = ["--vm", vm, "--kind", kind];
    until("the promise is broken", || !events(place, &filter).is_empty());
    let first = events(place, &filter).remove(0);
    assert_eq!(first["phase"], "began", "{first}");
    first
}

/// Checks the cause of an event, and that `why` names it in words.
fn is_blamed(place: &Place, event: &Value, cause: &str, words: &str) {
    assert_eq!(event["cause"], cause, "{event}");
    let why = ask(place, &["why", event["vm"].as_str().unwrap()]).ok();
    assert!(why.contains(words), "{words}: {why}");
}

/// Constructs a violation, and checks its cause. On a busy machine the device gives less than stated, or the daemon has no CPU, and
/// then that is the cause: it fails an attempt, and a daemon that names a wrong cause fails all of them. `attempt` calls what it is
/// given with the event, and returns what that returns.
fn is_caused(
    cause: &str,
    words: &str,
    mut attempt: impl FnMut(&dyn Fn(&Place, Value) -> Option<Value>) -> Option<Value>,
) -> Value {
    for number in 1.. {
        let check = |place: &Place, event: Value| {
            let is_busy = event["cause"] == "device" || event["cause"] == "daemon_cpu";
            if event["cause"] != cause && is_busy && number < ATTEMPTS {
                return None;
            }
            is_blamed(place, &event, cause, words);
            Some(event)
        };
        if let Some(event) = attempt(&check) {
            return event;
        }
    }
    unreachable!("the last attempt returns or fails")
}

/// Checks that a promise of this kind to the first of these VMs is broken because of `cause`, while the first `loaded` of them read
/// from a device with these keys.
fn is_broken(keys: &str, kind: &str, capacity: u32, vms: &[Vm], loaded: usize, (cause, words): (&str, &str)) -> Value {
    is_caused(cause, words, |check| {
        let place = Place::new();
        let _daemon = Daemon::serve(&place, &host_with(keys, &place, capacity, vms));
        let _load = load(&place, &vms[..loaded]);
        check(&place, broken(&place, vms[0].name, kind))
    })
}

/// The same for a latency target, on a device of 400 requests per second.
fn is_missed(capacity: u32, vms: &[Vm], loaded: usize, blamed: (&str, &str)) -> Value {
    is_broken(USUAL, "latency", capacity, vms, loaded, blamed)
}

#[test]
fn a_limit_below_what_the_vm_asks_for_is_its_own_limit() {
    let vms = [vm("capped", "limit = \"50 iops\"\nlatency = { p99 = \"50ms\" }", 8), vm("idle", "", 1)];
    is_missed(200, &vms, 1, ("own_limit", "own limit"));
}

#[test]
fn a_limit_of_the_only_volume_is_its_own_limit() {
    let limited = Vm { volume: "limit = \"50 iops\"", ..vm("capped", "latency = { p99 = \"50ms\" }", 8) };
    is_missed(200, &[limited, vm("idle", "", 1)], 1, ("own_limit", "own limit"));
}

#[test]
fn more_requests_than_the_device_takes_in_the_target_are_its_own_queue() {
    let vms = [vm("deep", "latency = { p99 = \"50ms\" }", 64), vm("idle", "", 1)];
    is_missed(200, &vms, 1, ("own_queue", "own queue"));
}

#[test]
fn a_neighbour_of_a_hundred_times_the_weight_is_the_weight_of_others() {
    let vms = [vm("light", "weight = 10\nlatency = { p99 = \"50ms\" }", 2), vm("heavy", "weight = 1000", 64)];
    let event = is_missed(200, &vms, 2, ("others_weight", "heavy"));
    assert_eq!(event["neighbours"][0]["vm"], "heavy", "{event}");
}

#[test]
fn a_neighbour_with_most_of_the_device_reserved_is_the_reservation_of_others() {
    let vms = [vm("free", "latency = { p99 = \"50ms\" }", 8), vm("sold", "reservation = \"225 iops\"", 64)];
    let event = is_missed(250, &vms, 2, ("others_reservation", "sold"));
    assert_eq!(event["neighbours"][0]["vm"], "sold", "{event}");
}

#[test]
fn reservations_that_were_sold_twice_are_those_of_others() {
    // The device gives twice what is stated, and less than what is sold.
    let keys = format!("admission = \"off\"\n{USUAL}");
    let vms = [vm("first", "reservation = \"200 iops\"", 32), vm("second", "reservation = \"400 iops\"", 64)];
    let event = is_broken(&keys, "reservation", 200, &vms, 2, ("others_reservation", "second"));
    assert_eq!(event["neighbours"][0]["vm"], "second", "{event}");
}

#[test]
fn a_batch_of_adjacent_requests_of_a_neighbour_is_named() {
    let keys = "scheduler = \"mclock\"\nrotational = true\ndepth = 1\ndelay = { time = \"5ms\", parallel = 1 }\n\
                [device.disk.mclock]\nbatch = 64\n";
    let seldom = Vm { job: "thinktime=50ms", ..vm("seldom", "latency = { p99 = \"150ms\" }", 1) };
    let stream = Vm { job: "rw=read", ..vm("stream", "", 64) };
    let event = is_broken(keys, "latency", 150, &[seldom, stream], 2, ("batch", "a batch of another VM"));
    assert_eq!(event["neighbours"][0]["vm"], "stream", "{event}");
}

#[test]
fn a_scheduler_that_waits_for_a_neighbours_next_request_is_named() {
    let keys = "scheduler = \"anticipatory\"\nrotational = true\ndepth = 1\nadmission = \"off\"\n\
                delay = { time = \"5ms\", parallel = 1 }\n\
                [device.disk.anticipatory]\nantic_expire = \"50ms\"\nthink_time_max = \"50ms\"\n";
    let random = vm("random", "reservation = \"150 iops\"", 8);
    let stream = Vm { job: "rw=read\nthinktime=10ms", ..vm("stream", "", 1) };
    let event = is_broken(keys, "reservation", 180, &[random, stream], 2, ("anticipation", "anticipation"));
    assert_eq!(event["neighbours"][0]["vm"], "stream", "{event}");
}

#[test]
fn a_disk_that_completes_nothing_is_the_device() {
    is_caused("device", "Cause: the device", |check| {
        let place = Place::new();
        let disk = Hanging::new(&place, "hung");
        let device =
            format!("[device.disk]\npath = \"{}\"\ndepth = 4\ncapacity = \"200 iops@8KiB\"\n", disk.path().display());
        let policy = "[vm.db]\nreservation = \"100 iops\"\n";
        let host = place.control_keys() + &device + policy + &place.volume("db", "v", disk.path(), "size = \"1MiB\"");
        let daemon = Daemon::serve(&place, &host);
        let _load = load(&place, &[Vm { job: "rw=randwrite", ..vm("db", "", 16) }]);
        until("it is served", || daemon.accounts().vm("db")["completed"]["write"].as_u64() >= Some(200));
        disk.below.freeze();
        let found = check(&place, broken(&place, "db", "reservation"));
        let stalled = events(&place, &["--kind", "stalled"]);
        disk.below.thaw();
        assert_eq!((&stalled[0]["cause"], &stalled[0]["device"]), (&"device".into(), &"disk".into()), "{stalled:?}");
        found
    });
}

#[test]
fn a_device_that_gives_less_than_stated_is_the_device_for_a_front_end_over_vhost_user() {
    is_caused("device", "Cause: the device", |check| {
        let place = Place::new();
        // Sold twice over: 1,000 are stated.
        let mut text = host(&place, 1000, &[]);
        let socket = place.volume_socket("db", "v");
        text += "[vm.db]\nreservation = \"800 iops\"\n[vm.db.volume.v]\ndevice = \"disk\"\nsize = \"1MiB\"\n";
        text += &format!("export = {{ type = \"vhost-user-blk\", socket = \"{}\" }}\n", socket.display());
        let _daemon = Daemon::serve(&place, &text);
        let mut client = place.vhost("db", "v", &ClientOptions::default());
        let is_enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let guest = scope.spawn(|| {
                while !is_enough.load(Ordering::Relaxed) {
                    let queue = client.queue(0);
                    (0..16).for_each(|slot| queue.submit(slot, Request::Read { offset: 0, len: 8192 }).unwrap());
                    queue.publish().unwrap();
                    client.wait(0, 16).unwrap();
                }
            });
            let _end = End(&is_enough);
            let found = check(&place, broken(&place, "db", "reservation"));
            assert!(!guest.is_finished());
            found
        })
    });
}

/// A device that completes 32 requests together, 16 ms after it has got them.
const IN_ROUNDS: &str = "scheduler = \"mclock\"\ndepth = 32\ndelay = { time = \"16ms\", parallel = 32 }\n";

/// The present state of a VM in the answer of `why`.
fn now(place: &Place, vm: &str) -> Value {
    let reply: Value = serde_json::from_str(&ask(place, &["-o", "json", "why", vm]).ok()).unwrap();
    reply["now"][0].clone()
}

/// Checks that the first of these VMs, all of which read, is held by `cause` when it has been served for a while, and what `why` says
/// then. A client that gets a CPU late asks in another rhythm than was constructed: that fails an attempt, and a daemon that names a wrong
/// cause fails all of them.
fn is_held_by(keys: &str, capacity: u32, vms: &[Vm], cause: &str, words: &[&str]) {
    for number in 1.. {
        let place = Place::new();
        let daemon = Daemon::serve(&place, &host_with(keys, &place, capacity, vms));
        let _load = load(&place, vms);
        let name = vms[0].name;
        let served = || daemon.accounts().vm(name)["completed"]["read"].as_u64().unwrap();
        let begin = served();
        until("it is served for a while", || served() >= begin + 1000);
        let held_by = now(&place, name)["held_by"].clone();
        if held_by != cause && number < ATTEMPTS {
            continue;
        }
        let why = ask(&place, &["why", name]).ok();
        assert_eq!(held_by, cause, "{why}");
        for words in words {
            assert!(why.contains(words), "{words}: {why}");
        }
        return;
    }
}

#[test]
fn a_vm_in_lock_step_with_the_device_was_said_to_wait_for_reservations_of_others() {
    let vms =
        [vm("web", "reservation = \"700 iops\"", 16), vm("db", "reservation = \"800 iops\"", 32), vm("batch", "", 64)];
    let event = is_caused("own_queue", "own queue", |check| {
        let place = Place::new();
        let _daemon = Daemon::serve(&place, &host_with(IN_ROUNDS, &place, 2000, &vms));
        let _load = load(&place, &vms);
        check(&place, broken(&place, "web", "reservation"))
    });
    let detail = event["detail"].as_str().unwrap();
    assert!(detail.contains("requests outstanding on average") && detail.contains("700 iops need"), "{detail}");
}

#[test]
fn the_largest_neighbours_of_a_vm_in_lock_step_were_not_named() {
    let vms = [vm("web", "reservation = \"700 iops\"", 12), vm("db", "reservation = \"800 iops\"", 64)];
    is_held_by(IN_ROUNDS, 2000, &vms, "own_queue", &["Its largest neighbours: db", "It asks for too little: "]);
}

#[test]
fn a_share_that_needs_more_outstanding_was_said_to_be_the_weight_of_others() {
    let vms = [vm("web", "", 12), vm("batch", "", 64)];
    is_held_by(IN_ROUNDS, 2000, &vms, "own_queue", &["Its largest neighbours: batch", "(by weight)"]);
}

#[test]
fn a_vm_with_a_reservation_was_told_to_get_one() {
    let vms = [vm("web", "reservation = \"100 iops\"", 32), vm("batch", "", 64)];
    let words = ["Its reservation is 100 iops; up to 245 iops fit.", "limit its neighbours (batch)", "batch 5"];
    is_held_by(USUAL, 250, &vms, "others_weight", &words);
}

/// Starts busy programs beside the device thread, which gets the lowest priority, so that it gets a CPU late. They end when they
/// are dropped.
fn starve(daemon: &Daemon, device: &str) -> Vec<Running> {
    let mut threads =
        std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().map(|entry| entry.unwrap().path());
    let is_of_device = |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).unwrap().trim() == device;
    let thread = threads.find(is_of_device).expect("a device has a thread");
    let number: i32 = thread.file_name().unwrap().to_str().unwrap().parse().unwrap();
    rustix::process::setpriority_process(rustix::process::Pid::from_raw(number), 19).unwrap();
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    (0..2 * cpus).map(|_| start(tool("sh", "dash").args(["-c", "while :; do :; done"]))).collect()
}

#[test]
fn a_device_thread_without_a_cpu_was_said_to_wait_for_a_limit_or_the_device() {
    let vms = [vm("db", "reservation = \"300 iops\"\nlimit = \"350 iops\"", 16)];
    let event = is_caused("daemon_cpu", "CPU time of the daemon", |check| {
        let place = Place::new();
        let daemon = Daemon::serve(&place, &host(&place, 400, &vms));
        let _load = load(&place, &vms);
        let _busy = starve(&daemon, "dev-disk");
        check(&place, broken(&place, "db", "reservation"))
    });
    let text = event["text"].as_str().unwrap();
    assert!(text.contains("the device thread looked at its requests up to"), "{text}");
}

#[test]
fn kept_promises_under_changing_load_broke_none() {
    let place = Place::new();
    let vms = [
        vm("db", "reservation = \"150 iops\"\nlatency = { p99 = \"250ms\" }", 8),
        vm("web", "reservation = \"50 iops\"", 4),
        vm("backup", "limit = \"100 iops\"\nweight = 10", 32),
    ];
    let daemon = Daemon::serve(&place, &host(&place, 250, &vms));
    let served = |vm: &str| daemon.accounts().vm(vm)["completed"]["read"].as_u64().unwrap();
    for part in [&vms[..], &vms[..1], &vms[1..], &vms[..2]] {
        let begin = served(part[0].name);
        let load = load(&place, part);
        // Some seconds: what is judged is the last one and the last ten.
        until("it is served for a while", || served(part[0].name) >= begin + 10 * 50);
        drop(load);
    }
    assert!(events(&place, &[]).iter().all(|event| event["phase"] == "happened"));
}
