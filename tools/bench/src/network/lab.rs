//! The stations, and the three that connect them to the link.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sluice_client::net::traffic::{Echo, Probe, Sender, Sink};
use sluice_client::net::{self, DATAGRAM, FRAME, Namespace, OUTSIDE, outside};
use tempfile::TempDir;

use super::forwarder::Forwarder;
use crate::server::{self, Server};

/// Bytes of a segment of TCP with timestamps that fills a frame.
const SEGMENT: usize = 1448;
/// Bytes of a plain queue at the link, and of each queue of HTB.
const QUEUE: usize = 128 << 10;
/// Maximum time until the daemon has made its TAPs.
const TAP_MAX: Duration = Duration::from_secs(10);
/// Pause between two questions of the light VM.
const PAUSE: Duration = Duration::from_millis(10);

/// What connects the VMs to the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// A Linux bridge, and one queue at the link.
    Plain,
    /// A Linux bridge, and HTB at the link.
    Htb,
    /// The daemon, with TAPs and a packet socket.
    Daemon,
    /// A plain forwarder between TAPs and a packet socket.
    Forwarder,
}

impl Mode {
    /// Those that divide a link.
    pub(super) const ALL: [Mode; 3] = [Mode::Plain, Mode::Htb, Mode::Daemon];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Plain => "one queue",
            Mode::Htb => "HTB",
            Mode::Daemon => "sluice",
            Mode::Forwarder => "forwarder",
        }
    }
}

/// What a VM sends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    /// Datagrams of full frames: Mbit/s of each sender, and their number.
    Udp { mbit: u64, senders: usize },
    /// Connections that send as much as they can.
    Tcp { connections: usize },
}

/// A VM. Rates are in Mbit/s, 0 for none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vm {
    pub(super) weight: u32,
    pub(super) reservation: u32,
    pub(super) limit: u32,
    pub(super) load: Load,
}

/// Running stations.
pub(super) struct Lab {
    mode: Mode,
    vms: Vec<Vm>,
    senders: Vec<Sender>,
    sinks: Vec<Sink>,
    echo: Option<Echo>,
    daemon: Option<Server>,
    forwarder: Option<Forwarder>,
    stations: Vec<Namespace>,
    switch: Namespace,
    outside: Namespace,
    folder: TempDir,
}

impl Lab {
    /// Connects `vms` and a further one to a link of `link` Mbit/s, and lets them send.
    pub(super) fn start(mode: Mode, link: Option<f64>, vms: &[Vm]) -> io::Result<Lab> {
        Lab::start_by(mode, link, vms, "")
    }

    /// Starts a lab with the daemon, whose host file has more: `FOLDER` there is the folder of [`Lab::file`].
    pub(super) fn start_with(link: f64, vms: &[Vm], more: &str) -> io::Result<Lab> {
        Lab::start_by(Mode::Daemon, Some(link), vms, more)
    }

    fn start_by(mode: Mode, link: Option<f64>, vms: &[Vm], more: &str) -> io::Result<Lab> {
        let (switch, outside) = (Namespace::new("switch")?, Namespace::new("outside")?);
        switch.connect("up0", &outside)?;
        switch.ip("link set up0 up")?;
        outside.up("eth0", &format!("{OUTSIDE}/24"))?;
        let stations =
            (0..=vms.len()).map(|vm| Namespace::new(&format!("vm{}", vm + 1))).collect::<io::Result<Vec<_>>>()?;
        let folder = server::scratch(None).map_err(io::Error::other)?;
        let mut lab = Lab {
            mode,
            vms: vms.to_vec(),
            senders: Vec::new(),
            sinks: Vec::new(),
            echo: None,
            daemon: None,
            forwarder: None,
            stations,
            switch,
            outside,
            folder,
        };
        match mode {
            Mode::Daemon => lab.start_daemon(link, more)?,
            Mode::Forwarder => {
                let taps: Vec<String> = (0..lab.stations.len()).map(|number| format!("v{number}")).collect();
                lab.forwarder = Some(Forwarder::start(&lab.switch, "up0", &taps)?);
                lab.take_taps()?;
            }
            Mode::Plain | Mode::Htb => lab.build_bridge()?,
        }
        for (number, station) in lab.stations.iter().enumerate() {
            station.up("eth0", &format!("{}/24", net::address(number as u8 + 1)))?;
        }
        // On a link of a stated rate the stations shall not be what is late. They use little of the CPUs.
        if link.is_some() {
            at_real_time(|| lab.start_traffic())?;
        } else {
            lab.start_traffic()?;
        }
        lab.shape(link)?;
        Ok(lab)
    }

    fn build_bridge(&self) -> io::Result<()> {
        self.switch.bridge("up0")?;
        for (number, station) in self.stations.iter().enumerate() {
            self.switch.connect(&format!("v{number}"), station)?;
            self.switch.ip(&format!("link set v{number} master br0 up"))?;
        }
        Ok(())
    }

    fn start_daemon(&mut self, link: Option<f64>, more: &str) -> io::Result<()> {
        let control = self.file("control");
        let rate = link.map_or_else(String::new, |rate| format!("rate = \"{rate}Mbit/s\"\n"));
        let state = self.folder.path().join("state");
        let real_time = if link.is_some() { "real_time = \"auto\"\n" } else { "" };
        let mut host = format!(
            "[daemon]\ncontrol = \"{}\"\nstate = \"{}\"\n{real_time}[uplink.lan]\nnic = \"up0\"\n{rate}",
            control.display(),
            state.display()
        );
        for (number, vm) in self.all_vms().enumerate() {
            host += &format!("[vm.v{number}.net]\nweight = {}\n", vm.weight * 100);
            for (key, rate) in [("reservation", vm.reservation), ("limit", vm.limit)] {
                host += &if rate == 0 { String::new() } else { format!("{key} = \"{rate}Mbit/s\"\n") };
            }
            host += &format!("[vm.v{number}.nic.eth0]\nuplink = \"lan\"\ntap = \"v{number}\"\n");
        }
        host += &more.replace("FOLDER", &self.folder.path().display().to_string());
        let file = self.folder.path().join("host.toml");
        std::fs::write(&file, host)?;
        let mut command = self.switch.command(Command::new(server::sluice_binary()).arg("serve").arg(&file));
        self.daemon = Some(Server::start(&mut command, vec![control]).map_err(io::Error::other)?);
        self.take_taps()
    }

    /// Gives each station its TAP.
    fn take_taps(&self) -> io::Result<()> {
        for (number, station) in self.stations.iter().enumerate() {
            // The control socket answers before the TAPs are made.
            let (tap, begin) = (format!("v{number}"), Instant::now());
            while self.switch.ip(&format!("link show {tap}")).is_err() && begin.elapsed() < TAP_MAX {
                thread::sleep(PAUSE);
            }
            self.switch.move_to(&tap, station, "eth0")?;
        }
        Ok(())
    }

    /// The VMs, and the light one.
    fn all_vms(&self) -> impl Iterator<Item = Vm> {
        let light = Vm { weight: 1, reservation: 0, limit: 0, load: Load::Tcp { connections: 0 } };
        self.vms.iter().copied().chain([light])
    }

    /// Returns the path of a file of the lab.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn stop_senders(&mut self) {
        self.senders.clear();
    }

    fn start_traffic(&mut self) -> io::Result<()> {
        self.echo = Some(Echo::start(&self.outside, 7)?);
        // Connections are made before the link is full: their first segments would be lost for seconds in a full queue.
        for (number, vm) in self.vms.iter().enumerate() {
            let port = 7001 + number as u16;
            let to = outside(port);
            let station = &self.stations[number];
            match vm.load {
                Load::Udp { mbit, senders } => {
                    self.sinks.push(Sink::udp(&self.outside, port)?);
                    let rate = mbit * 125_000 / FRAME;
                    for _ in 0..senders {
                        self.senders.push(Sender::udp(station, to, DATAGRAM, rate)?);
                    }
                }
                Load::Tcp { connections } => {
                    self.sinks.push(Sink::tcp(&self.outside, port)?);
                    for _ in 0..connections {
                        self.senders.push(Sender::tcp(station, to)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives the link its rate, if the daemon does not.
    fn shape(&self, link: Option<f64>) -> io::Result<()> {
        match (self.mode, link) {
            (Mode::Plain, Some(rate)) => {
                self.tc(&format!("qdisc replace dev up0 root tbf rate {rate}mbit burst 16kb limit {QUEUE}"))
            }
            (Mode::Htb, Some(rate)) => self.build_htb(rate),
            _ => Ok(()),
        }
    }

    fn build_htb(&self, rate: f64) -> io::Result<()> {
        self.tc("qdisc replace dev up0 root handle 1: htb default 10")?;
        self.tc(&format!(
            "class add dev up0 parent 1: classid 1:1 htb rate {rate}mbit ceil {rate}mbit burst 16kb cburst 16kb"
        ))?;
        for (number, vm) in self.all_vms().enumerate() {
            self.htb_class("add", number, &vm)?;
            let class = 10 + number;
            self.tc(&format!("qdisc add dev up0 parent 1:{class} bfifo limit {}", QUEUE / 2))?;
            let match_source = format!("u32 match ip src {} flowid 1:{class}", net::address(number as u8 + 1));
            self.tc(&format!("filter add dev up0 parent 1: protocol ip prio 1 {match_source}"))?;
        }
        Ok(())
    }

    /// Makes a class of HTB. It must have a rate; what is left is divided by quantum.
    fn htb_class(&self, verb: &str, number: usize, vm: &Vm) -> io::Result<()> {
        let (rate, ceil) = (vm.reservation.max(1), if vm.limit == 0 { 100 } else { vm.limit });
        let (class, quantum) = (10 + number, 1514 * vm.weight);
        self.tc(&format!(
            "class {verb} dev up0 parent 1:1 classid 1:{class} htb rate {rate}mbit ceil {ceil}mbit burst 4kb cburst 4kb quantum {quantum}"
        ))
    }

    fn tc(&self, words: &str) -> io::Result<()> {
        self.switch.run(&format!("tc {words}")).map(drop)
    }

    /// Sets the weights of the VMs while they send.
    pub(super) fn set_weights(&mut self, weights: &[u32]) -> Result<(), String> {
        for (number, weight) in weights.iter().enumerate() {
            self.vms[number].weight = *weight;
            match self.mode {
                Mode::Plain | Mode::Forwarder => {}
                Mode::Htb => {
                    self.htb_class("change", number, &self.vms[number]).map_err(|error| error.to_string())?;
                }
                Mode::Daemon => {
                    let mut command = Command::new(server::sluice_binary());
                    command.args(["set", &format!("v{number}"), &format!("net.weight={}", weight * 100), "--socket"]);
                    let output = command.arg(self.file("control")).output().map_err(|error| error.to_string())?;
                    if !output.status.success() {
                        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns what has arrived of each VM, in Mbit of the wire.
    pub(super) fn arrived_mbit(&self) -> Vec<f64> {
        let payload = |vm: &Vm| match vm.load {
            Load::Udp { .. } => DATAGRAM,
            Load::Tcp { .. } => SEGMENT,
        };
        let all = self.sinks.iter().zip(&self.vms);
        all.map(|(sink, vm)| sink.bytes() as f64 * FRAME as f64 / payload(vm) as f64 * 8.0 / 1e6).collect()
    }

    /// Returns the CPU time of the daemon or the forwarder, in seconds.
    pub(super) fn cpu_seconds(&self) -> Option<f64> {
        let daemon = self.daemon.as_ref().map(Server::cpu_seconds);
        daemon.or_else(|| self.forwarder.as_ref().map(Forwarder::cpu_seconds))
    }

    /// Lets the light VM ask questions.
    pub(super) fn light_vm(&self) -> io::Result<LightVm> {
        let probe = Probe::new(self.stations.last().expect("there is the light VM"), outside(7))?;
        at_real_time(|| Ok(LightVm::start(probe)))
    }
}

/// Gives real-time priority to the threads that `start` starts.
fn at_real_time<T>(start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    set_priority(&["--rr", "--pid", "1"])?;
    let started = start();
    set_priority(&["--other", "--pid", "0"])?;
    started
}

/// Sets the priority of this thread.
fn set_priority(options: &[&str]) -> io::Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let status = Command::new("chrt").args(options).arg(thread).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("chrt cannot set the priority of a thread")) }
}

/// Processes at normal priority that want all of the CPUs, three for each.
pub(super) struct Busy(Vec<Child>);

impl Busy {
    pub(super) fn start() -> io::Result<Busy> {
        let count = 3 * thread::available_parallelism()?.get();
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        (0..count).map(|_| shell.spawn()).collect::<io::Result<_>>().map(Busy)
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

/// A VM that only asks one question after the other.
pub(super) struct LightVm {
    ends: Arc<AtomicBool>,
    forgets: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Option<Duration>>>,
}

impl LightVm {
    fn start(mut probe: Probe) -> LightVm {
        let (ends, forgets) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (end, forget) = (Arc::clone(&ends), Arc::clone(&forgets));
        let thread = thread::spawn(move || {
            let mut trips = Vec::new();
            while !end.load(Ordering::Relaxed) {
                let trip = probe.ask().ok().flatten();
                if forget.swap(false, Ordering::Relaxed) {
                    trips.clear();
                }
                trips.push(trip);
                thread::sleep(PAUSE);
            }
            trips
        });
        LightVm { ends, forgets, thread }
    }

    /// Forgets the answers so far.
    pub(super) fn restart(&self) {
        self.forgets.store(true, Ordering::Relaxed);
    }

    pub(super) fn finish(self) -> Trips {
        self.ends.store(true, Ordering::Relaxed);
        Trips(self.thread.join().expect("asking does not panic"))
    }
}

/// Round trips; `None` for lost questions.
pub(super) struct Trips(Vec<Option<Duration>>);

impl Trips {
    pub(super) fn percentile_ms(&self, percent: f64) -> f64 {
        let mut answered: Vec<Duration> = self.0.iter().copied().flatten().collect();
        answered.sort_unstable();
        let index = (answered.len() as f64 * percent / 100.0) as usize;
        answered.get(index.min(answered.len().saturating_sub(1))).map_or(f64::NAN, |trip| trip.as_secs_f64() * 1000.0)
    }

    pub(super) fn lost_percent(&self) -> f64 {
        let lost = self.0.iter().filter(|trip| trip.is_none()).count();
        lost as f64 / self.0.len() as f64 * 100.0
    }
}
