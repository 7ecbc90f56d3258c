//! Performance isolation of virtual NICs in Xen: guests that send through a driver domain to a link of 100 Mb/s.
//!
//! Random numbers favour no guest: seeds shift the starts of flows and vary their intervals alike. Differences result
//! from windows, queues, weights and CPUs.

use std::time::Duration;

use sluice_sched::{ByteRate, Instant, Limit, Policy, Reservation};
use sluice_sim::cpu::credit1::Params;
use sluice_sim::cpu::{Class, Host as Processors, VcpuId};
use sluice_sim::devices::link::{CompletesWhen, Link, LinkParams};
use sluice_sim::devices::servers::{Servers, ServiceTime};
use sluice_sim::engine::{Placement, Simulation, Thread};
use sluice_sim::workloads::datagrams::frames_of;
use sluice_sim::workloads::{DatagramParams, Datagrams};

use crate::band::BandPoint;
use crate::device::{DeviceFile, LinkFile};
use crate::figure::LabError;
use crate::setup::{self, Host, at, closed, random_reads, refused};

pub(crate) mod activity;
pub(super) mod disk;
pub(crate) mod minimum;
pub(crate) mod priorities;
pub(crate) mod rates;
pub(crate) mod real;
pub(crate) mod two_rates;
pub(crate) mod unlimited;

/// Device of all figures.
const DEVICE: &str = "netback-link";
/// Payload of a datagram of one full frame.
pub(crate) const PAYLOAD: u32 = 1472;

/// Back end that takes packets from the guests' rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backend {
    /// Xen's: credits and turns of one packet; packets are dropped when the interface's queue is full.
    Netback,
    /// Turns of one packet; none is taken without room downstream.
    RoundRobin,
    /// The paper's proposal: turns by weight in packets; none is taken without room downstream.
    Packets,
    /// The same in bytes.
    Bytes,
}

impl Backend {
    const ALL: [Backend; 4] = [Backend::Netback, Backend::RoundRobin, Backend::Packets, Backend::Bytes];

    fn name(self) -> &'static str {
        match self {
            Backend::Netback => "netback",
            Backend::RoundRobin => "round robin that waits for room",
            Backend::Packets => "WRR in packets",
            Backend::Bytes => "WRR in bytes",
        }
    }

    fn host(self, link: &LinkFile) -> Host {
        let tick = format!("{}us", link.tick_us);
        let weighted = Host::new("wrr", 16).text("rounds", "published").text("tick", &tick);
        match self {
            Backend::Netback => Host::new("netback", 256).text("tick", &tick),
            Backend::RoundRobin => weighted.text("unit", "packets").text("prioritize", "off"),
            Backend::Packets => weighted.text("unit", "packets"),
            Backend::Bytes => weighted.text("unit", "bytes"),
        }
    }

    fn params(self, link: &LinkFile) -> LinkParams {
        // Netback passes a copy to the bridge, which completes the packet; the others wait until it is on the wire.
        let completes_when = if self == Backend::Netback { CompletesWhen::Queued } else { CompletesWhen::Sent };
        LinkParams { completes_when, ..link.params() }
    }
}

/// CPUs of the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guests {
    /// One CPU for both.
    Together,
    /// One CPU for both; they loop until the next datagram is due instead of sleeping.
    Looping,
    /// One CPU each.
    Apart,
}

/// The testbed: a link, a driver domain on a separate CPU, and guests.
struct Bench {
    simulation: Simulation,
    link: LinkFile,
    point: BandPoint,
    /// Payload of a datagram in bytes.
    payload: u32,
    /// Whether generators pace by absolute times.
    absolute: bool,
}

/// The device at a point of the range.
fn link(point: &BandPoint) -> Result<LinkFile, LabError> {
    DeviceFile::load(DEVICE)?.link(point)
}

/// Four CPUs; the driver domain is on the first, guests on those named.
fn processors(guests: &[u32]) -> (Processors<sluice_sim::engine::Task>, VcpuId, Vec<VcpuId>) {
    let mut host = Processors::new(Params::XEN_4_0, 4);
    let mut vcpu = |cpu: u32| {
        let domain = host.add_domain(256, 0);
        host.add_vcpu(domain, 1 << cpu)
    };
    let driver = vcpu(0);
    let guests = guests.iter().map(|cpu| vcpu(*cpu)).collect();
    (host, driver, guests)
}

fn micros(us: f64) -> Duration {
    Duration::from_secs_f64(us * 1e-6)
}

impl Bench {
    /// Guests with these policies and no flows.
    fn new(
        backend: Backend,
        link: LinkFile,
        guests: Guests,
        policies: &[Policy],
        point: &BandPoint,
    ) -> Result<Self, LabError> {
        Self::scheduled(&backend.host(&link), backend, link, guests, policies, point)
    }

    /// The same with a scheduler that has other parameters than the back end's.
    fn scheduled(
        host: &Host,
        backend: Backend,
        link: LinkFile,
        guests: Guests,
        policies: &[Policy],
        point: &BandPoint,
    ) -> Result<Self, LabError> {
        let model = Box::new(Link::new(backend.params(&link)));
        let mut simulation = Simulation::new(host.gate()?, model, Duration::ZERO, Duration::from_secs(1));
        let cpu = |guest: u32| if guests == Guests::Apart { 1 + guest % 3 } else { 1 };
        let cpus: Vec<_> = (0..policies.len() as u32).map(cpu).collect();
        let (mut host, driver, vcpus) = processors(&cpus);
        if guests == Guests::Looping {
            vcpus.iter().for_each(|vcpu| host.set_busy(Instant::ZERO, *vcpu, true));
        }
        simulation.set_cpus(host);
        simulation.backend_on(0, driver, Class::Net, micros(link.packet_us));
        for (policy, vcpu) in policies.iter().zip(vcpus) {
            let vm = simulation.add_vm_at(Placement::Pinned(0), *policy).map_err(refused)?;
            simulation.guest_on(vm, vcpu, micros(link.guest_us));
        }
        Ok(Bench { simulation, link, point: *point, payload: PAYLOAD, absolute: false })
    }

    /// A guest that sends and one that reads from a disk of the same driver domain, each on a separate CPU; the latter
    /// is paused.
    fn with_disk(backend: Backend, link: LinkFile, point: &BandPoint) -> Result<Self, LabError> {
        let model = Box::new(Link::new(backend.params(&link)));
        let mut simulation =
            Simulation::new(backend.host(&link).gate()?, model, Duration::ZERO, Duration::from_secs(1));
        let disk = Servers::new(1, ServiceTime::Fixed(micros(link.disk_us)), point.stream("disk"));
        let disk = simulation.add_node(Host::new("noop", 32).gate()?, Box::new(disk));
        let (host, driver, vcpus) = processors(&[1, 2]);
        simulation.set_cpus(host);
        simulation.backend_on(0, driver, Class::Net, micros(link.packet_us));
        simulation.backend_on(disk, driver, Class::Block, micros(link.packet_us * link.request_per_packet));
        for (node, vcpu) in [0, disk].into_iter().zip(vcpus) {
            let vm = simulation.add_vm_at(Placement::Pinned(node), Policy::default()).map_err(refused)?;
            simulation.guest_on(vm, vcpu, micros(link.guest_us));
        }
        let load = closed(32, random_reads(4096, 1 << 30), point, "fio");
        simulation.add_thread(1, Thread::new(load)).map_err(refused)?;
        simulation.start_paused(1);
        Ok(Bench { simulation, link, point: *point, payload: PAYLOAD, absolute: false })
    }

    /// Sets the payload of datagrams.
    fn payload(mut self, payload: u32) -> Self {
        self.payload = payload;
        self
    }

    /// Makes the generators of flows that are added pace by absolute times.
    fn paced_absolutely(mut self) -> Self {
        self.absolute = true;
        self
    }

    /// Adds a flow of a VM at the full rate of the link, from `start` on; its random numbers are those of `name`.
    fn flow(&mut self, vm: usize, start: Instant, name: &str) -> Result<(), LabError> {
        self.flow_at(vm, self.link.bits_per_second, start, name)
    }

    /// Adds a flow with this data rate in bits per second.
    fn flow_at(&mut self, vm: usize, bits_per_second: u64, start: Instant, name: &str) -> Result<(), LabError> {
        let LinkFile { buffer, jitter, .. } = self.link;
        let params = DatagramParams { payload: self.payload, bits_per_second, jitter, buffer };
        let mut flow = Datagrams::new(params, start, self.point.stream(name));
        if self.absolute {
            flow = flow.paced_absolutely();
        }
        self.simulation.add_thread(vm, Thread::new(Box::new(flow))).map_err(refused)?;
        Ok(())
    }

    fn run(&mut self, seconds: u64, what: &str) -> Result<(), LabError> {
        setup::run(&mut self.simulation, seconds, what)
    }

    /// Fraction of data in the frames, if no fragment is lost.
    fn data(&self) -> f64 {
        f64::from(self.payload) / frames_of(self.payload).iter().sum::<u32>() as f64
    }

    /// Data rate of the full link in Mb/s.
    fn full(&self) -> f64 {
        let params = self.link.params();
        let time: Duration = frames_of(self.payload).iter().map(|frame| params.time(*frame)).sum();
        f64::from(self.payload) * 8e-6 / time.as_secs_f64()
    }

    /// Data rate of a VM in Mb/s in each second from `from` to `to`.
    fn rates(&self, vm: usize, from: usize, to: usize) -> Vec<f64> {
        let series = self.simulation.record(vm).series();
        let bytes = |second: usize| series.get(second).map_or(0, |window| window.bytes);
        (from..to).map(|second| bytes(second) as f64 * 8e-6 * self.data()).collect()
    }

    fn mean(&self, vm: usize, from: usize, to: usize) -> f64 {
        self.rates(vm, from, to).iter().sum::<f64>() / (to - from) as f64
    }

    /// The rates over time, for a chart.
    fn points(&self, vm: usize, to: usize) -> Vec<(f64, f64)> {
        timed(&self.rates(vm, 0, to))
    }

    /// Frames of a VM that were dropped at a full queue.
    fn dropped(&self, vm: usize) -> u64 {
        self.simulation.record(vm).dropped
    }
}

/// One value per second.
fn timed(values: &[f64]) -> Vec<(f64, f64)> {
    values.iter().enumerate().map(|(second, value)| (second as f64, *value)).collect()
}

/// Minimum and maximum.
fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(*value), most.max(*value)))
}

/// A maximum rate in Mb/s of frames, as in the toolstack.
fn at_most(megabits: u64) -> Policy {
    let bytes = Some(ByteRate::per_second(megabits * 125_000));
    Policy { limit: Limit { iops: None, bytes }, ..Policy::default() }
}

/// A minimum rate, in Mb/s of frames.
fn at_least(megabits: u64) -> Policy {
    let bytes = Some(ByteRate::per_second(megabits * 125_000));
    Policy { reservation: Reservation { iops: None, bytes }, ..Policy::default() }
}
