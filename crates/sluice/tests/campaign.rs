//! A campaign of faults. Whatever breaks, no acknowledged write is lost, other devices continue without errors, and
//! the daemon exits on SIGTERM.
//!
//! Each round has a daemon with two devices and four clients: one over NBD (libnbd) and one over vhost-user-blk on
//! each device. `campaign/client.py` shares no code with the daemon. The device `bad` is a disk with a volatile cache
//! (nbdkit behind FUSE) that can fail, hang, and lose its cache. The clients on `good` are witnesses, which must see
//! no error. All clients write, a fault of the round's kind occurs, the daemon ends, and a new one serves the same
//! volumes. Then every client reads everything it ever wrote, writes again, and reads again.
//!
//! `SLUICE_CAMPAIGN_ROUNDS=500` is the long form: 500 rounds, which cycle through the kinds. `SLUICE_CAMPAIGN_SEED`
//! seeds the random choices (the time of a fault, and the end of a round). `SLUICE_CAMPAIGN_STALL` is the number of
//! seconds for which a disk hangs.

#![allow(clippy::disallowed_macros, reason = "tests print for the developer")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::raw::{Raw, WRITE, greet, header};
use crate::common::{Daemon, Ended, Lines, MIB, Place, Running, run, sluice, start, tool, until};
use rustix::process::Signal;
use serde_json::Value;

const CLIENT: &str = include_str!("campaign/client.py");
const SIZE: u64 = MIB;

/// Returns a number from the environment.
fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The daemon is killed with SIGKILL.
    Kill,
    /// The disk loses writes that were not flushed, and the daemon dies at the same time.
    PowerCut,
    /// The same after writes that were forced, and that no flush has covered.
    PowerCutForced,
    /// Writes fail.
    Eio,
    /// The disk's cache accepts writes but cannot write them back, so flushes fail.
    EioAtFlush,
    Enospc,
    /// The disk does not respond.
    Stall,
    LogFull,
    NoDescriptors,
    NoMemory,
}

const KINDS: [Kind; 10] = [
    Kind::Kill,
    Kind::PowerCut,
    Kind::PowerCutForced,
    Kind::Eio,
    Kind::EioAtFlush,
    Kind::Enospc,
    Kind::Stall,
    Kind::LogFull,
    Kind::NoDescriptors,
    Kind::NoMemory,
];

/// A disk with a volatile cache: nbdkit's memory in front of a file, behind FUSE.
struct Disk {
    folder: PathBuf,
    failing: PathBuf,
    socket: PathBuf,
    mounted: PathBuf,
    arguments: Vec<String>,
    running: Option<(Running, Running)>,
}

impl Disk {
    fn new(place: &Place, kind: Kind) -> Disk {
        let [folder, failing, mounted] = ["bad", "failing", "bad.pid"].map(|name| place.file(name));
        std::fs::create_dir(&folder).unwrap();
        let below = place.image("bad.img", 2 * SIZE);
        let filters = match kind {
            Kind::EioAtFlush => ["--filter=cache", "--filter=error"],
            _ => ["--filter=error", "--filter=cache"],
        };
        let error = if kind == Kind::Enospc { "error-pwrite=ENOSPC" } else { "error-pwrite=EIO" };
        let words = ["file", "cache=writeback", "error-pwrite-rate=1", error];
        let mut arguments: Vec<String> = filters.iter().chain(&words).map(|&word| word.to_owned()).collect();
        arguments.push(format!("file={}", below.display()));
        arguments.push(format!("error-file={}", failing.display()));
        let mut disk = Disk { folder, failing, socket: place.socket("disk"), mounted, arguments, running: None };
        disk.plug();
        disk
    }

    /// Starts the disk.
    fn plug(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(&self.mounted);
        let server = start(tool("nbdkit", "nbdkit").args(["-f", "-U"]).arg(&self.socket).args(&self.arguments));
        until("the disk's socket exists", || self.socket.exists());
        let mut fuse = tool("nbdfuse", "libnbd-bin");
        fuse.arg("-P").arg(&self.mounted).arg(self.path()).arg("--unix").arg(&self.socket);
        let fuse = start(&mut fuse);
        until("it is mounted", || self.mounted.exists());
        self.running = Some((server, fuse));
    }

    fn path(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn signal(&self, signal: Signal) {
        self.running.as_ref().expect("it is plugged in").0.signal(signal);
    }

    fn fail(&self) {
        std::fs::write(&self.failing, "").unwrap();
    }

    fn mend(&self) {
        std::fs::remove_file(&self.failing).unwrap();
    }

    /// The cache is lost, and requests fail.
    fn cut(&mut self) {
        let (server, fuse) = self.running.take().expect("it is plugged in");
        server.kill();
        fuse.kill();
    }

    fn unmount(&self) {
        run(tool("umount", "mount").arg("--lazy").arg(&self.folder)).ok();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.cut();
            let _ = run(tool("umount", "mount").arg("--lazy").arg(&self.folder));
        }
    }
}

/// `campaign/client.py` on one volume.
struct Client {
    vm: String,
    child: Child,
    lines: Lines,
    stderr: Lines,
    report: Report,
}

/// Counters of a client since its start.
#[derive(Debug, Clone, Copy, Default)]
struct Report {
    acknowledged: u64,
    forced: u64,
    flushed: u64,
    refused: u64,
    lost: u64,
}

impl Report {
    fn add(&mut self, other: &Report) {
        self.acknowledged += other.acknowledged;
        self.forced += other.forced;
        self.flushed += other.flushed;
        self.refused += other.refused;
        self.lost += other.lost;
    }
}

impl Client {
    fn new(place: &Place, vm: &str, seed: u64) -> Client {
        let mut command = Command::new("/usr/bin/python3");
        let frontend = vm.split('-').nth(1).expect("a VM is named after its front end");
        command.args(["-c", CLIENT, frontend]).arg(place.volume_socket(vm, "v"));
        command.args([&format!("{vm}/v"), &SIZE.to_string(), &seed.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("python3-libnbd brings Python");
        let lines = Lines::of(child.stdout.take().expect("it is piped"));
        let stderr = Lines::of(child.stderr.take().expect("it is piped"));
        Client { vm: vm.to_owned(), child, lines, stderr, report: Report::default() }
    }

    fn is_witness(&self) -> bool {
        self.vm.starts_with("witness")
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().expect("it is piped"), "{command}").unwrap();
    }

    /// Returns all output up to the line with this word.
    #[track_caller]
    fn wait_for(&self, word: &str) -> String {
        let lines = self.lines.up_to(&[word, "gone"]);
        let as_wanted = lines.lines().last().is_some_and(|line| line.starts_with(word));
        assert!(as_wanted, "{} waits for {word}:\n{lines}{}", self.vm, self.stderr.so_far());
        lines
    }

    /// Waits until a new write is acknowledged.
    #[track_caller]
    fn assert_progress(&mut self) {
        self.tell("mark");
        self.wait_for("marked");
        self.wait_for("acked");
    }

    /// Reads and compares everything.
    #[track_caller]
    fn check(&mut self, command: &str) {
        self.tell(command);
        let lines = self.wait_for("checked");
        let counts = lines.lines().last().and_then(|line| line.strip_prefix("checked ")).expect("it was heard");
        let counts: Value = serde_json::from_str(counts).unwrap();
        let number = |name: &str| counts[name].as_u64().unwrap();
        let [acknowledged, forced, flushed] = ["acknowledged", "forced", "flushed"].map(number);
        self.report = Report { acknowledged, forced, flushed, refused: number("refused"), lost: number("lost") };
        assert_eq!(self.report.lost, 0, "{} has lost blocks:\n{}", self.vm, self.stderr.so_far());
        assert!(!self.is_witness() || self.report.refused == 0, "{} saw errors: {counts}", self.vm);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Round {
    kind: Kind,
    random: u64,
    clients: Vec<Client>,
    daemon: Option<Daemon>,
    disk: Disk,
    host: String,
    place: Place,
}

fn volume(place: &Place, vm: &str, device: &str, source: &Path, offset: u64) -> String {
    let kind = if vm.ends_with("vhost") { "vhost-user-blk" } else { "nbd" };
    format!(
        "[vm.{vm}.volume.v]\ndevice = \"{device}\"\nsource = \"{}\"\noffset = \"{offset} B\"\nsize = \"{SIZE} B\"\n\
         export = {{ type = \"{kind}\", socket = \"{}\" }}\n",
        source.display(),
        place.volume_socket(vm, "v").display()
    )
}

fn host(place: &Place, disk: &Disk) -> String {
    let (good, bad) = (place.image("good.img", 3 * SIZE), disk.path());
    let devices = format!(
        "{}drain_timeout = \"1s\"\n[device.bad]\npath = \"{}\"\n[device.good]\npath = \"{}\"\n",
        place.control_keys(),
        disk.folder.display(),
        place.folder().display()
    );
    devices
        + &volume(place, "victim-nbd", "bad", &bad, 0)
        + &volume(place, "victim-vhost", "bad", &bad, SIZE)
        + &volume(place, "witness-nbd", "good", &good, 0)
        + &volume(place, "witness-vhost", "good", &good, SIZE)
        + &volume(place, "rude", "good", &good, 2 * SIZE)
}

impl Round {
    fn new(kind: Kind, seed: u64) -> Round {
        let place = Place::new();
        let disk = Disk::new(&place, kind);
        let host = host(&place, &disk);
        let names = ["victim-nbd", "victim-vhost", "witness-nbd", "witness-vhost"];
        let clients = names.iter().zip(1..).map(|(vm, number)| Client::new(&place, vm, seed * 8 + number)).collect();
        let mut round = Round { kind, random: seed, clients, daemon: None, disk, host, place };
        round.serve();
        round
    }

    fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % bound
    }

    fn serve(&mut self) {
        // A full log cannot be read, so only the other rounds look for panics.
        let daemon = if self.kind == Kind::LogFull {
            let full = File::options().write(true).open("/dev/full").unwrap();
            Daemon::serve_into(&self.place, "host.toml", &self.host, full.into())
        } else {
            Daemon::serve(&self.place, &self.host)
        };
        self.daemon = Some(daemon);
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("it runs")
    }

    fn witnesses(&mut self) -> impl Iterator<Item = &mut Client> {
        self.clients.iter_mut().filter(|client| client.is_witness())
    }

    fn victims(&mut self) -> impl Iterator<Item = &mut Client> {
        self.clients.iter_mut().filter(|client| !client.is_witness())
    }

    fn assert_witnesses_progress(&mut self) {
        self.witnesses().for_each(Client::assert_progress);
    }

    fn assert_all_progress(&mut self) {
        self.clients.iter_mut().for_each(Client::assert_progress);
    }

    /// Lets all clients write for a time that the seed decides.
    fn work(&mut self) {
        self.clients.iter_mut().for_each(|client| client.tell("go"));
        for _ in 0..=self.random(4) {
            self.assert_all_progress();
        }
    }

    fn kill(&mut self) {
        self.daemon.take().expect("it runs").kill();
        self.wait_for_all_to_exit();
    }

    /// Stops the witnesses before the daemon, so that they see no error.
    fn stop_witnesses(&mut self) {
        for client in self.witnesses() {
            client.tell("stop");
            client.wait_for("stopped");
        }
    }

    /// Terminates the daemon; it must exit by itself.
    fn terminate(&mut self) {
        self.stop_witnesses();
        let accounts = self.daemon().accounts();
        for device in accounts.0["devices"].as_array().unwrap() {
            assert_eq!(device["restarts"], 0, "{device}");
        }
        let ended = self.daemon.take().expect("it runs").terminate();
        assert_ended(&ended);
        self.wait_for_all_to_exit();
    }

    fn wait_for_all_to_exit(&self) {
        self.clients.iter().for_each(|client| drop(client.wait_for("gone")));
    }

    fn check(&mut self) {
        let is_cut = matches!(self.kind, Kind::PowerCut | Kind::PowerCutForced);
        let victims = if is_cut { "check-cut" } else { "check" };
        self.victims().for_each(|client| client.check(victims));
        self.witnesses().for_each(|client| client.check("check"));
    }

    /// Connects to a separate VM and sends invalid data.
    fn send_garbage(&self, times: usize) {
        let socket = self.place.volume_socket("rude", "v");
        for _ in 0..times {
            let mut broken = Raw::open(&socket, "rude/v").unwrap();
            let _ = broken.stream.write_all(&[0; 28]);
            assert!(broken.is_disconnected());
            let _ = greet(&socket).unwrap().write_all(b"no option at all");
        }
    }

    fn assert_control_responds(&mut self) {
        let weight = format!("weight={}", 1 + self.random(900));
        run(sluice().args(["set", "rude", &weight, "--socket"]).arg(self.place.socket("control"))).ok();
    }

    /// Has the victims flush no more, and NBD's force what they write.
    fn force(&mut self) {
        self.victims().for_each(|client| client.tell("force"));
        // Twice as many as are in flight.
        (0..2).for_each(|_| self.assert_all_progress());
    }

    fn power_cut(&mut self) {
        self.disk.cut();
        self.kill();
        self.disk.unmount();
        self.disk.plug();
    }

    fn writes_fail(&mut self) {
        self.disk.fail();
        self.victims().for_each(|client| drop(client.wait_for("refused")));
        self.assert_witnesses_progress();
        self.disk.mend();
    }

    fn stall(&mut self) {
        self.disk.signal(Signal::STOP);
        let until = Instant::now() + Duration::from_secs(from_environment("SLUICE_CAMPAIGN_STALL", 0));
        loop {
            self.assert_witnesses_progress();
            self.assert_control_responds();
            if Instant::now() >= until {
                break;
            }
        }
        // The kernel lets no process exit before a request that a FUSE server has taken is answered. So while the
        // disk hangs, the test waits for the log line that the daemon has given up.
        match self.random(3) {
            0 => {
                self.stop_witnesses();
                self.daemon().signal(Signal::TERM);
                self.daemon().stderr().up_to(&["Drain timed out"]);
                self.disk.signal(Signal::CONT);
                assert_ended(&self.daemon.take().expect("it runs").end());
                self.wait_for_all_to_exit();
            }
            1 => {
                self.daemon().signal(Signal::KILL);
                self.disk.signal(Signal::CONT);
                self.kill();
            }
            _ => {
                self.disk.signal(Signal::CONT);
                self.assert_all_progress();
            }
        }
    }

    fn take_descriptors(&mut self) {
        let open = self.daemon().descriptors();
        self.daemon().limit("nofile", 2 * open + 32);
        let socket = self.place.volume_socket("rude", "v");
        let all: Vec<Raw> = std::iter::from_fn(|| Raw::open(&socket, "rude/v").ok()).take(500).collect();
        assert!((1..500).contains(&all.len()), "{} connections", all.len());
        self.assert_control_responds();
        self.assert_all_progress();
    }

    /// Sends half of the largest requests, on more connections than fit into memory.
    fn take_memory(&mut self) {
        let limit = self.daemon().address_space_bytes() + 24 * MIB;
        self.daemon().limit("as", limit);
        let socket = self.place.volume_socket("rude", "v");
        let mut all = Vec::new();
        for cookie in 0..64 {
            let Ok(mut raw) = Raw::open(&socket, "rude/v") else { continue };
            // Bytes without a buffer stay in the socket; bytes that do not fit there are not sent.
            raw.stream.set_nonblocking(true).unwrap();
            let _ = raw.stream.write_all(&header(WRITE, 0, cookie, 0, SIZE as u32));
            let _ = raw.stream.write_all(&vec![7; SIZE as usize / 2]);
            all.push(raw);
        }
        // 16 MiB are reserved.
        until("clients find no memory", || self.daemon().address_space_bytes() + 18 * MIB > limit);
        self.assert_all_progress();
    }

    fn run(mut self) -> Vec<Report> {
        self.work();
        match self.kind {
            Kind::Kill => self.kill(),
            Kind::PowerCut => self.power_cut(),
            Kind::PowerCutForced => {
                self.force();
                self.power_cut();
            }
            Kind::Eio | Kind::EioAtFlush | Kind::Enospc => self.writes_fail(),
            Kind::Stall => self.stall(),
            Kind::LogFull => {
                self.send_garbage(30);
                self.assert_all_progress();
                self.assert_control_responds();
            }
            Kind::NoDescriptors => self.take_descriptors(),
            Kind::NoMemory => self.take_memory(),
        }
        if self.daemon.is_some() {
            self.terminate();
        }
        self.serve();
        self.check();
        self.work();
        // Requests in flight when the old daemon ended must not overwrite newer data.
        for client in &mut self.clients {
            client.tell("stop");
            client.wait_for("stopped");
            client.check("check");
        }
        assert_ended(&self.daemon.take().expect("it runs").terminate());
        self.clients.iter().map(|client| client.report).collect()
    }
}

fn assert_ended(ended: &Ended) {
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn no_fault_loses_acknowledged_writes_or_disturbs_other_devices() {
    let rounds = from_environment("SLUICE_CAMPAIGN_ROUNDS", KINDS.len() as u64);
    let seed = from_environment("SLUICE_CAMPAIGN_SEED", 1);
    let mut counts: BTreeMap<Kind, (u64, Report)> = BTreeMap::new();
    for round in 0..rounds {
        let kind = KINDS[(round % KINDS.len() as u64) as usize];
        eprintln!("round {round}, seed {}: {kind:?}", seed + round);
        let reports = Round::new(kind, seed + round).run();
        let (rounds, sum) = counts.entry(kind).or_default();
        *rounds += 1;
        reports.iter().for_each(|report| sum.add(report));
        eprintln!("{sum:?} after {rounds} of this kind");
    }
    for (kind, (rounds, sum)) in counts {
        eprintln!("{kind:?}: {rounds} rounds, {sum:?}");
    }
}
