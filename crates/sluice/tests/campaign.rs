//! A campaign of faults: whatever breaks, nothing acknowledged is lost, other devices go on without an error, and the
//! daemon ends when it is told to.
//!
//! Each round has a daemon with two devices and four clients, one over NBD (libnbd) and one over vhost-user-blk on each
//! device; `campaign/client.py` shares no code with the daemon. The device `bad` is a disk with a volatile cache (nbdkit
//! behind FUSE) that can fail, hang, and lose its cache; the clients on `good` are witnesses, which may see no error. All
//! write, a fault of the round's kind happens, the daemon ends, and a new one serves the same volumes: every client reads
//! all it ever wrote, writes again, and reads again.
//!
//! `SLUICE_CAMPAIGN_ROUNDS=500` is the long form: so many rounds, the kinds in turn. `SLUICE_CAMPAIGN_SEED` is a number that
//! decides what is left to chance (when a fault comes, and how a round ends), and `SLUICE_CAMPAIGN_STALL` the seconds for which
//! a disk hangs.
#![allow(clippy::disallowed_macros, reason = "tests speak to whoever runs them")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::raw::{Raw, WRITE, greet, header};
use common::{Daemon, Ended, Lines, MIB, Place, Running, run, sluice, start, tool, until};
use rustix::process::Signal;
use serde_json::Value;

mod common;

const CLIENT: &str = include_str!("campaign/client.py");
const SIZE: u64 = MIB;

/// A number from the environment.
fn setting(name: &str, usually: u64) -> u64 {
    std::env::var(name).map_or(usually, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// kill -9 of the daemon.
    Kill,
    /// The disk forgets what it has not been told to flush, and the daemon is gone with it.
    PowerCut,
    /// The same after writes that were forced, and that no flush has covered.
    PowerCutForced,
    /// Writes fail.
    Eio,
    /// The disk's cache takes writes and cannot get rid of them, so flushes fail.
    EioAtFlush,
    Enospc,
    /// The disk answers nothing.
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

/// A disk with a volatile cache: nbdkit's, whose memory dies with it, in front of a file, behind FUSE.
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

    /// Begins to serve what is in the file.
    fn plug(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(&self.mounted);
        let server = start(tool("nbdkit", "nbdkit").args(["-f", "-U"]).arg(&self.socket).args(&self.arguments));
        until("the disk has its socket", || self.socket.exists());
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

    /// Its cache is gone, and what is asked of it fails.
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

/// What a client counted from its start.
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

    /// Everything up to the line with this word.
    #[track_caller]
    fn hear(&self, word: &str) -> String {
        let lines = self.lines.up_to(&[word, "gone"]);
        let as_wanted = lines.lines().last().is_some_and(|line| line.starts_with(word));
        assert!(as_wanted, "{} waits for {word}:\n{lines}{}", self.vm, self.stderr.said());
        lines
    }

    /// Has something acknowledged from now on.
    #[track_caller]
    fn goes_on(&mut self) {
        self.tell("mark");
        self.hear("marked");
        self.hear("acked");
    }

    /// Reads all and compares.
    #[track_caller]
    fn check(&mut self, command: &str) {
        self.tell(command);
        let lines = self.hear("checked");
        let counts = lines.lines().last().and_then(|line| line.strip_prefix("checked ")).expect("it was heard");
        let counts: Value = serde_json::from_str(counts).unwrap();
        let number = |name: &str| counts[name].as_u64().unwrap();
        let [acknowledged, forced, flushed] = ["acknowledged", "forced", "flushed"].map(number);
        self.report = Report { acknowledged, forced, flushed, refused: number("refused"), lost: number("lost") };
        assert_eq!(self.report.lost, 0, "{} has lost blocks:\n{}", self.vm, self.stderr.said());
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
    let daemon = format!("drain_timeout = \"1s\"\ncontrol = \"{}\"", place.socket("control").display());
    let devices = format!(
        "[daemon]\n{daemon}\n[device.bad]\npath = \"{}\"\n[device.good]\npath = \"{}\"\n",
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
        // Of a log that takes nothing nothing can be read, so the other rounds look for panics.
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

    fn witnesses_go_on(&mut self) {
        self.witnesses().for_each(Client::goes_on);
    }

    fn all_go_on(&mut self) {
        self.clients.iter_mut().for_each(Client::goes_on);
    }

    /// Lets all write, for a while that the seed decides.
    fn work(&mut self) {
        self.clients.iter_mut().for_each(|client| client.tell("go"));
        for _ in 0..=self.random(4) {
            self.all_go_on();
        }
    }

    fn kill(&mut self) {
        self.daemon.take().expect("it runs").kill();
        self.all_are_gone();
    }

    /// Ends the witnesses before the daemon, so that they see no error.
    fn stop_witnesses(&mut self) {
        for client in self.witnesses() {
            client.tell("stop");
            client.hear("stopped");
        }
    }

    /// The daemon ends when it is told.
    fn terminate(&mut self) {
        self.stop_witnesses();
        let accounts = self.daemon().accounts();
        for device in accounts.0["devices"].as_array().unwrap() {
            assert_eq!(device["restarts"], 0, "{device}");
        }
        let ended = self.daemon.take().expect("it runs").terminate();
        assert_ended(&ended);
        self.all_are_gone();
    }

    fn all_are_gone(&self) {
        self.clients.iter().for_each(|client| drop(client.hear("gone")));
    }

    fn check(&mut self) {
        let is_cut = matches!(self.kind, Kind::PowerCut | Kind::PowerCutForced);
        let victims = if is_cut { "check-cut" } else { "check" };
        self.victims().for_each(|client| client.check(victims));
        self.witnesses().for_each(|client| client.check("check"));
    }

    /// Connections to a VM of its own that says only wrong things.
    fn be_rude(&self, times: usize) {
        let socket = self.place.volume_socket("rude", "v");
        for _ in 0..times {
            let mut broken = Raw::open(&socket, "rude/v").unwrap();
            let _ = broken.stream.write_all(&[0; 28]);
            assert!(broken.is_shown_out());
            let _ = greet(&socket).unwrap().write_all(b"no option at all");
        }
    }

    fn control_answers(&mut self) {
        let weight = format!("weight={}", 1 + self.random(900));
        run(sluice().args(["set", "rude", &weight, "--socket"]).arg(self.place.socket("control"))).ok();
    }

    /// Has the victims flush no more, and NBD's force what they write.
    fn force(&mut self) {
        self.victims().for_each(|client| client.tell("force"));
        // Twice as many as are in flight.
        (0..2).for_each(|_| self.all_go_on());
    }

    fn power_cut(&mut self) {
        self.disk.cut();
        self.kill();
        self.disk.unmount();
        self.disk.plug();
    }

    fn writes_fail(&mut self) {
        self.disk.fail();
        self.victims().for_each(|client| drop(client.hear("refused")));
        self.witnesses_go_on();
        self.disk.mend();
    }

    fn stall(&mut self) {
        self.disk.signal(Signal::STOP);
        let until = Instant::now() + Duration::from_secs(setting("SLUICE_CAMPAIGN_STALL", 0));
        loop {
            self.witnesses_go_on();
            self.control_answers();
            if Instant::now() >= until {
                break;
            }
        }
        // The kernel lets no process die before a request that a FUSE server has taken is answered, so what must come while the
        // disk hangs is that the daemon has given it up.
        match self.random(3) {
            0 => {
                self.stop_witnesses();
                self.daemon().signal(Signal::TERM);
                self.daemon().stderr().up_to(&["Drain timed out"]);
                self.disk.signal(Signal::CONT);
                assert_ended(&self.daemon.take().expect("it runs").end());
                self.all_are_gone();
            }
            1 => {
                self.daemon().signal(Signal::KILL);
                self.disk.signal(Signal::CONT);
                self.kill();
            }
            _ => {
                self.disk.signal(Signal::CONT);
                self.all_go_on();
            }
        }
    }

    fn take_descriptors(&mut self) {
        let open = self.daemon().descriptors();
        self.daemon().limit("nofile", 2 * open + 32);
        let socket = self.place.volume_socket("rude", "v");
        let all: Vec<Raw> = std::iter::from_fn(|| Raw::open(&socket, "rude/v").ok()).take(500).collect();
        assert!((1..500).contains(&all.len()), "{} connections", all.len());
        self.control_answers();
        self.all_go_on();
    }

    /// Buffers of the largest requests, all half sent, on more connections than there is memory for.
    fn take_memory(&mut self) {
        let limit = self.daemon().address_space_bytes() + 24 * MIB;
        self.daemon().limit("as", limit);
        let socket = self.place.volume_socket("rude", "v");
        let mut all = Vec::new();
        for cookie in 0..64 {
            let Ok(mut raw) = Raw::open(&socket, "rude/v") else { continue };
            // What finds no room stays in the socket, and what finds none there is not sent.
            raw.stream.set_nonblocking(true).unwrap();
            let _ = raw.stream.write_all(&header(WRITE, 0, cookie, 0, SIZE as u32));
            let _ = raw.stream.write_all(&vec![7; SIZE as usize / 2]);
            all.push(raw);
        }
        // 16 MiB are kept from clients.
        until("clients find no memory", || self.daemon().address_space_bytes() + 18 * MIB > limit);
        self.all_go_on();
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
                self.be_rude(30);
                self.all_go_on();
                self.control_answers();
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
        // What was on its way when the old daemon ended must not come over what is new.
        for client in &mut self.clients {
            client.tell("stop");
            client.hear("stopped");
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
fn nothing_acknowledged_is_lost_and_other_devices_go_on_whatever_breaks() {
    let rounds = setting("SLUICE_CAMPAIGN_ROUNDS", KINDS.len() as u64);
    let seed = setting("SLUICE_CAMPAIGN_SEED", 1);
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
