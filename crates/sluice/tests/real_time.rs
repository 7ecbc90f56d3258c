//! Real-time priority of the daemon's threads.

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::common::stations::{Lab, Uplink};
use crate::common::{Daemon, Place, run, sluice, tool, until};
use sluice_client::net::traffic::Echo;

const REAL_TIME: &str = "real_time = \"auto\"\n";
/// Number of SCHED_RR.
const ROUND_ROBIN: &str = "2";

fn host(place: &Place) -> String {
    let socket = place.socket("a");
    format!(
        "{}{REAL_TIME}[device.disk]\nbackend = \"null\"\n[vm.a.volume.v]\ndevice = \"disk\"\nsize = \"1MiB\"\n\
         export = {{ socket = \"{}\" }}\n",
        place.control_keys(),
        socket.display()
    )
}

fn status(place: &Place) -> String {
    run(sluice().args(["status", "--socket"]).arg(place.socket("control"))).stdout
}

/// Names of the threads of a process, and the numbers of their scheduling policies.
fn policies(pid: u32) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        Some((name.to_owned(), rest.split_whitespace().nth(38)?.to_owned()))
    };
    tasks.filter_map(of).collect()
}

#[test]
fn device_threads_alone_have_real_time_priority_if_that_is_wanted() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let threads = policies(daemon.pid());
    let real_time: Vec<&str> =
        threads.iter().filter(|(_, policy)| policy == ROUND_ROBIN).map(|(name, _)| name.as_str()).collect();
    assert_eq!(real_time, ["dev-disk"], "{threads:?}");
    let answer = run(sluice().args(["-o", "json", "status", "--socket"]).arg(place.socket("control"))).stdout;
    assert!(answer.contains("\"real_time\":\"on\""), "{answer}");
}

#[test]
fn a_device_does_not_poll_all_the_time_at_real_time_priority() {
    let place = Place::new();
    let host = host(&place).replace("backend = \"null\"\n", "backend = \"null\"\nbusy_poll = true\n");
    let refusal = Daemon::refused(&place, &host);
    assert!(refusal.contains("Device disk: busy_poll needs a normal priority"), "{refusal}");
    Daemon::serve(&place, &host.replace(REAL_TIME, ""));
}

#[test]
fn a_reload_that_changes_the_priority_said_nothing_and_did_nothing() {
    let place = Place::new();
    let daemon = Daemon::serve(&place, &host(&place));
    let warning = "Restart the daemon to change real_time";
    assert!(!daemon.reload(&host(&place)).contains(warning));
    let log = daemon.reload(&host(&place).replace(REAL_TIME, ""));
    assert!(log.contains(warning) && log.contains("Reload applied"), "{log}");
}

#[test]
fn a_daemon_that_may_not_have_real_time_priority_says_so_and_serves() {
    let place = Place::new();
    let daemon = Daemon::serve_by(&place, &host(&place), |command| {
        let mut poor = tool("setpriv", "util-linux");
        poor.args(["--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "prlimit", "--rtprio=0:0"]);
        poor.arg(command.get_program()).args(command.get_args());
        poor
    });
    assert!(policies(daemon.pid()).iter().all(|(_, policy)| policy == "0"));
    // polls: the monitor answers after its first sample.
    until("status says so", || status(&place).contains("Real-time priority is not allowed"));
}

/// One test at a time has stations with real-time priority.
static STATIONS: Mutex<()> = Mutex::new(());

/// Processes that want all of the CPUs.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Busy {
        let count = 3 * std::thread::available_parallelism().map_or(1, usize::from);
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Busy((0..count).map(|_| shell.spawn().unwrap()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Bytes on the wire that the interface outside has received.
fn received(lab: &Lab) -> u64 {
    let of = |name: &str| -> u64 {
        let file = format!("/sys/class/net/eth0/statistics/{name}");
        run(&mut lab.outside.command(Command::new("cat").arg(file))).stdout.trim().parse().unwrap()
    };
    of("rx_bytes") + 24 * of("rx_packets")
}

/// Gives real-time priority to this thread and to the threads that it starts: the stations shall not be what is late.
fn prefer_this_thread() {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    run(tool("chrt", "util-linux").args(["--rr", "--pid", "1", &own])).ok();
}

/// How full it is is measured by `cargo xtask bench`.
#[test]
fn the_thread_of_an_uplink_has_real_time_priority_and_sends_beside_busy_processes() {
    let _alone = STATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = Lab::with_host(Uplink::Tap, "rate = \"100Mbit/s\"", &["", ""], &["", ""], |_| REAL_TIME.to_owned());
    let _sinks = [1, 2].map(|number| lab.sink(number));
    let _busy = Busy::start();
    prefer_this_thread();
    let _senders = [1, 2].map(|number| lab.send(number, 100));
    let first = received(&lab);
    // polls: a counter of the kernel
    until("traffic flows", || received(&lab) > first + 6_000_000);
    let real_time = policies(lab.daemon.pid()).into_iter().filter(|(_, policy)| policy == ROUND_ROBIN);
    let names: Vec<String> = real_time.map(|(name, _)| name).collect();
    assert!(matches!(names.as_slice(), [name] if name.starts_with("dev-")), "{names:?}");
    let before = received(&lab);
    until("the link carries on", || received(&lab) >= before + 62_500_000);
}

/// How long it waits is measured by `cargo xtask bench`; what the gate adds is tested in virtual time.
#[test]
fn a_light_vm_loses_nothing_beside_full_vms_and_busy_processes() {
    let _alone = STATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let policies = ["", "", ""];
    let lab = Lab::with_host(Uplink::Tap, "rate = \"100Mbit/s\"", &policies, &policies, |_| REAL_TIME.to_owned());
    let sinks = [1, 2].map(|number| lab.sink(number));
    let busy = Busy::start();
    prefer_this_thread();
    let _echo = Echo::start(&lab.outside, 7).unwrap();
    let mut light = lab.reach(3);
    let _senders = [lab.send(1, 120), lab.send(2, 60)];
    until("the link is full", || sinks.iter().map(|sink| sink.bytes()).sum::<u64>() > 6_000_000);
    let before = sinks.iter().map(|sink| sink.bytes()).sum::<u64>();
    let answered = (0..2000).filter(|_| light.ask().unwrap().is_some()).count();
    assert_eq!(answered, 2000, "some of its frames were lost");
    assert!(sinks.iter().map(|sink| sink.bytes()).sum::<u64>() > before, "the others sent meanwhile");
    drop(busy);
}
