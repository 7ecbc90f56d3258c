//! Tests of an uplink without a network interface: NICs and the uplink are socket pairs that keep the borders of frames, and time is an
//! argument.

mod cpu;
mod hostile;
mod vhost;

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use sluice_net::Mac;
use sluice_net::drop::Drop as Reason;
use sluice_net::guard::Guard;
use sluice_net::header::{GSO_TCP4, HEADER_LEN, NEEDS_CHECKSUM, OffloadHeader};
use sluice_papers::find;
use sluice_sched::{ByteRate, Instant, Limit, Policy, Reservation, Weight};

use crate::backend::ring::Event;
use crate::backend::tag::Tag;
use crate::reactor::actor::Actor as _;
use crate::reactor::event_loop::Reactor;
use crate::reactor::mailbox::mailbox;
use crate::reactor::message::{Call, Message};
use crate::reactor::spec::SchedulerSpec;
use crate::uplink::Uplink;
use crate::uplink::actor::{LINK, LinkState, UplinkActor};
use crate::uplink::link::{Link, tap};
use crate::uplink::spec::{Edit, NicPlug, NicSpec, UplinkSpec};
use crate::volume::VolumeGeneration;

/// The far end of a link: what the network or the VM sees.
struct Far(UnixDatagram);

fn link() -> (Arc<Link>, Far) {
    let (near, far) = UnixDatagram::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    (Arc::new(tap::of_socket(OwnedFd::from(near))), Far(far))
}

impl Far {
    fn send(&self, header: OffloadHeader, frame: &[u8]) {
        self.0.send(&[&header.to_bytes()[..], frame].concat()).unwrap();
    }

    fn receive(&self) -> Option<(OffloadHeader, Vec<u8>)> {
        let mut room = vec![0; 70_000];
        match self.0.recv(&mut room) {
            Ok(length) => {
                let header = OffloadHeader::parse(room[..HEADER_LEN].try_into().unwrap());
                Some((header, room[HEADER_LEN..length].to_vec()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn all(&self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.receive()).map(|(_, frame)| frame).collect()
    }
}

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

/// A UDP datagram over IPv4 in a frame of `length` bytes.
fn frame(from: u8, to: Mac, length: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &mac(from).0, &[8, 0, 0x45, 0]].concat();
    frame.extend(((length - 14) as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 99, 0, 7, 0, 9]);
    frame.extend(((length - 34) as u16).to_be_bytes());
    frame.resize(length, from);
    frame
}

fn policy(weight: u32) -> Policy {
    Policy { weight: Some(Weight::new(weight)), ..Policy::default() }
}

fn uplink(rate: Option<u64>) -> (UplinkSpec, Far) {
    let (link, far) = link();
    let rate = rate.map(ByteRate::per_second);
    let spec = UplinkSpec::new("lan", find("mclock").unwrap(), rate, link);
    (spec, far)
}

fn nic(number: u8, plug: NicPlug) -> NicSpec {
    NicSpec {
        name: "eth0".to_owned(),
        generation: VolumeGeneration::next(),
        policy: Policy::default(),
        guard: Guard { mac: Some(mac(number)), ..Guard::default() },
        vlan: None,
        mtu: 1500,
        receive_limit: None,
        receive_weight: Weight::DEFAULT,
        plug,
    }
}

fn add(vm: &str, policy: Policy, nic: NicSpec) -> Vec<Edit> {
    vec![Edit::AddVm { vm: vm.to_owned(), policy }, Edit::AddNic { vm: vm.to_owned(), nic: Box::new(nic) }]
}

impl Reactor<UplinkActor> {
    /// Makes an iteration without waiting.
    fn step(&mut self, now: Instant) {
        // Twice: the first iteration asks the kernel what there is.
        for _ in 0..2 {
            self.take_events(now);
            self.actor.work(now);
        }
        // An iteration gives up deliveries after some time of this machine.
        while self.actor.core.receive.next_due().is_some_and(|due| due <= now) {
            self.actor.work(now);
        }
    }

    /// Handles the events that there are. Returns their number.
    fn take_events(&mut self, now: Instant) -> usize {
        let mut events = Vec::new();
        self.actor.core.ring.submit_and_wait(Some(Duration::ZERO), &mut events).unwrap();
        let count = events.len();
        self.handle(now, events);
        count
    }

    fn handle(&mut self, now: Instant, mut events: Vec<Event>) {
        self.events(now, &mut events, &mut mailbox().unwrap().1);
    }
}

/// An uplink whose time is an argument.
struct Lab {
    state: Reactor<UplinkActor>,
    far: Far,
    nics: Vec<Far>,
    now: Instant,
}

impl Lab {
    fn new(rate: Option<u64>) -> Self {
        let (spec, far) = uplink(rate);
        let state = Reactor::build(&spec, &mailbox().unwrap().0, 0).unwrap().0;
        Lab { state, far, nics: Vec::new(), now: Instant::from_millis(1000) }
    }

    /// Adds a VM, whose number is that of its NIC's address.
    fn vm(&mut self, policy: Policy) {
        let (link, far) = link();
        self.nics.push(far);
        let number = self.nics.len() as u8;
        let edits = add(&format!("vm{number}"), policy, nic(number, NicPlug::Tap(link)));
        self.state.actor.edit(self.now, edits).unwrap();
    }

    fn step(&mut self, time: Duration) {
        self.now = self.now + time;
        self.state.step(self.now);
    }

    /// Lets the VMs send what they want, and returns the frames that arrived of each in `time`.
    fn run(&mut self, time: Duration, mut offer: impl FnMut(&Far, u8)) -> Vec<u64> {
        let mut counts = vec![0; self.nics.len() + 1];
        let end = self.now + time;
        while self.now < end {
            self.nics.iter().zip(1..).for_each(|(nic, number)| offer(nic, number));
            self.step(Duration::from_micros(100));
            self.far.all().into_iter().for_each(|frame| counts[usize::from(frame[11])] += frame.len() as u64 + 24);
        }
        counts
    }

    fn drops(&mut self, vm: &str) -> sluice_net::drop::Drops {
        let snapshot = self.state.snapshot();
        let vm = snapshot.vms.into_iter().find(|known| known.vm == vm).unwrap();
        vm.volumes[0].nic.clone().unwrap().drops
    }
}

/// Keeps a NIC full of frames.
fn greedy(nic: &Far, number: u8) {
    for _ in 0..4 {
        let sent = nic.0.send(&[&[0; HEADER_LEN][..], &frame(number, mac(200), 1514)].concat());
        if sent.is_err() {
            return;
        }
    }
}

#[test]
fn frames_reach_the_uplink_another_nic_and_back() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    lab.vm(Policy::default());
    let out = frame(1, mac(200), 100);
    lab.nics[0].send(OffloadHeader::default(), &out);
    lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(2), 1514));
    lab.step(Duration::from_micros(10));
    assert_eq!(lab.far.all(), [out], "the other frame is for a NIC of this host");
    assert_eq!(lab.nics[1].all(), [frame(1, mac(2), 1514)]);
    lab.far.send(OffloadHeader { flags: NEEDS_CHECKSUM, ..OffloadHeader::default() }, &frame(200, mac(1), 700));
    lab.far.send(OffloadHeader::default(), &frame(200, Mac([0xff; 6]), 60));
    lab.far.send(OffloadHeader::default(), &frame(200, mac(77), 60));
    lab.step(Duration::from_micros(10));
    let (header, first) = lab.nics[0].receive().unwrap();
    assert_eq!((header.flags, first), (NEEDS_CHECKSUM, frame(200, mac(1), 700)));
    assert_eq!(lab.nics[0].all(), [frame(200, Mac([0xff; 6]), 60)]);
    assert_eq!(lab.nics[1].all(), [frame(200, Mac([0xff; 6]), 60)], "of the other frames none is for it");
}

#[test]
fn weights_divide_the_wire_and_a_minimum_is_kept() {
    let rate = 12_500_000;
    for (policies, wanted) in [
        (vec![policy(3), policy(1)], vec![0.75, 0.25]),
        (vec![policy(30), policy(1)], vec![30.0 / 31.0, 1.0 / 31.0]),
        (
            vec![
                Policy {
                    reservation: Reservation { bytes: Some(ByteRate::per_second(rate * 6 / 10)), iops: None },
                    ..policy(1)
                },
                policy(1),
                policy(1),
            ],
            vec![0.6, 0.2, 0.2],
        ),
        (
            vec![
                Policy { limit: Limit { bytes: Some(ByteRate::per_second(rate / 4)), iops: None }, ..policy(1) },
                policy(1),
            ],
            vec![0.25, 0.75],
        ),
    ] {
        let mut lab = Lab::new(Some(rate));
        policies.into_iter().for_each(|policy| lab.vm(policy));
        lab.run(Duration::from_millis(50), greedy);
        let got = lab.run(Duration::from_millis(500), greedy);
        for (vm, wanted) in wanted.iter().enumerate() {
            let share = 2.0 * got[vm + 1] as f64 / rate as f64;
            assert!((share - wanted).abs() <= 0.01, "VM {} of {wanted}: {got:?}", vm + 1);
        }
    }
}

/// The VM had two frames at the gate, as many as leave at once. So it looked idle whenever they had left, and lost what it was owed for the
/// time that a late thread makes up for: with wake-ups each 5 ms it got a third of the wire, as without a reservation.
#[test]
fn a_late_thread_costs_no_reservation() {
    let rate = 12_500_000;
    let mut lab = Lab::new(Some(rate));
    let reserved = Reservation { bytes: Some(ByteRate::per_second(rate * 6 / 10)), iops: None };
    lab.vm(Policy { reservation: reserved, ..policy(1) });
    [policy(1), policy(1)].into_iter().for_each(|policy| lab.vm(policy));
    let late = |lab: &mut Lab, wakeups: u32| {
        let mut counts = vec![0; 4];
        for _ in 0..wakeups {
            lab.nics.iter().zip(1..).for_each(|(nic, number)| (0..20).for_each(|_| greedy(nic, number)));
            lab.step(Duration::from_millis(5));
            lab.far.all().into_iter().for_each(|frame| counts[usize::from(frame[11])] += frame.len() as u64 + 24);
        }
        counts
    };
    late(&mut lab, 20);
    let got = late(&mut lab, 100);
    let share = 2.0 * got[1] as f64 / rate as f64;
    assert!((share - 0.6).abs() < 0.01, "{share:.3} of the wire: {got:?}");
}

/// Each change made the reserved NIC due again and let the limited one send its burst.
#[test]
fn a_change_of_the_scheduler_moved_limits_and_minimums_of_an_uplink() {
    let rate = 12_500_000;
    // wrr starts the order of shares again, which is a frame of each NIC.
    for (names, millis) in [(["mclock", "mclock"], 1), (["mclock", "wrr"], 20), (["netback", "wrr"], 20)] {
        let mut lab = Lab::new(Some(rate));
        let reservation = Reservation { bytes: Some(ByteRate::per_second(rate * 6 / 10)), iops: None };
        let limit = Limit { bytes: Some(ByteRate::per_second(rate / 10)), iops: None };
        // netback knows no minimum.
        let has_minimum = !names.contains(&"netback");
        lab.vm(if has_minimum { Policy { reservation, ..policy(1) } } else { policy(1) });
        lab.vm(Policy { limit, ..policy(1) });
        lab.vm(policy(1));
        let scheduler = uplink(None).0.scheduler;
        let of = |name: &str| SchedulerSpec { descriptor: find(name).unwrap(), ..scheduler.clone() };
        let mut got = [0; 4];
        for turn in 0..600 / millis {
            let edit = Edit::SetScheduler { scheduler: of(names[turn % 2]), merging: false };
            lab.state.actor.edit(lab.now, vec![edit]).unwrap();
            let counts = lab.run(Duration::from_millis(millis as u64), greedy);
            // The first window of credits is a burst.
            got.iter_mut().zip(counts).filter(|_| turn * millis >= 100).for_each(|(sum, count)| *sum += count);
        }
        let share = |vm: usize| 2.0 * got[vm] as f64 / rate as f64;
        assert!(share(2) <= 0.1 + 0.005, "{names:?}: a limit of 0.1, {got:?}");
        // mclock takes 2 ms of what windows of 50 ms have left, and such a window grants nothing before its end.
        let is_mixed = names.contains(&"mclock") && names.contains(&"wrr");
        assert!(is_mixed || share(2) >= 0.095, "{names:?}: a limit of 0.1, {got:?}");
        assert!(!has_minimum || (share(1) - 0.6).abs() <= 0.01, "{names:?}: a minimum of 0.6, {got:?}");
    }
}

#[test]
fn a_large_segment_is_cut_where_it_would_occupy_the_wire_for_long() {
    let header = OffloadHeader {
        flags: NEEDS_CHECKSUM,
        gso_type: GSO_TCP4,
        header_len: 54,
        gso_size: 1460,
        checksum_start: 34,
        checksum_offset: 16,
        buffers: 0,
    };
    let mut large = frame(1, mac(200), 54 + 1460 * 10 + 100);
    large[23] = 6;
    large[46] = 0x50;
    for (rate, frames) in [(Some(12_500_000), 11), (None, 1)] {
        let mut lab = Lab::new(rate);
        lab.vm(Policy::default());
        lab.nics[0].send(header, &large);
        let got = lab.run(Duration::from_millis(5), |_, _| ());
        assert_eq!(got[1] - 24 * frames, 54 * frames + 1460 * 10 + 100, "{frames} frames");
        assert_eq!(lab.drops("vm1").total(), 0);
    }
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    lab.nics[0].send(OffloadHeader { gso_size: 0, ..header }, &large);
    lab.step(Duration::from_millis(1));
    assert_eq!((lab.drops("vm1").of(Reason::Offload), lab.far.all().len()), (1, 0));
}

/// Returns the times from a quiet VM's frame until it is written, while the VMs with `policies` send without pause on a link of 100 Mbit/s.
/// Sorted.
fn waits_of_a_quiet_vm(policies: &[Policy]) -> Vec<Duration> {
    let mut lab = Lab::new(Some(12_500_000));
    policies.iter().for_each(|policy| lab.vm(*policy));
    lab.vm(policy(1));
    let quiet = policies.len() as u8 + 1;
    let fill = |lab: &Lab| (1..quiet).for_each(|number| greedy(&lab.nics[usize::from(number) - 1], number));
    let wait = |round: u64| {
        for _ in 0..30 {
            fill(&lab);
            // Frames of the quiet VM arrive at different times of a frame on the wire.
            lab.step(Duration::from_micros(97 + round % 10));
            lab.far.all();
        }
        lab.nics[usize::from(quiet) - 1].send(OffloadHeader::default(), &frame(quiet, mac(200), 64));
        let sent = lab.now;
        while lab.far.all().iter().all(|frame| frame[11] != quiet) {
            fill(&lab);
            lab.step(Duration::from_micros(10));
        }
        lab.now.since(sent)
    };
    let mut waits: Vec<_> = (0..200).map(wait).collect();
    waits.sort();
    waits
}

#[test]
fn a_frame_of_a_quiet_vm_waits_for_one_frame_or_two_beside_a_reservation() {
    let reservation = Reservation { bytes: Some(ByteRate::per_second(7_500_000)), iops: None };
    let reserved = Policy { reservation, ..policy(1) };
    let micros = |policies: &[Policy]| {
        let waits = waits_of_a_quiet_vm(policies);
        [100, 199].map(|at| waits[at].as_micros())
    };
    // A frame takes 123 us. Three VMs or one make no difference.
    for policies in [&[policy(1)][..], &[policy(1); 3]] {
        assert!(micros(policies).iter().zip([80, 140]).all(|(wait, most)| *wait <= most), "{:?}", micros(policies));
    }
    for policies in [&[reserved][..], &[reserved, policy(1), policy(1)]] {
        let waits = micros(policies);
        assert!(waits.iter().zip([100, 260]).all(|(wait, most)| *wait <= most), "{waits:?}: 365 at most before");
    }
}

/// Sixteen frames may be on the way at 1 Gbit/s, which were those of 200 us until large segments came, of 200 us each.
#[test]
fn a_frame_of_a_quiet_vm_does_not_wait_for_sixteen_large_segments() {
    let header = OffloadHeader {
        flags: NEEDS_CHECKSUM,
        gso_type: GSO_TCP4,
        header_len: 54,
        gso_size: 1460,
        checksum_start: 34,
        checksum_offset: 16,
        buffers: 0,
    };
    let mut large = frame(1, mac(200), 54 + 1460 * 40);
    large[23] = 6;
    large[46] = 0x50;
    let mut lab = Lab::new(Some(125_000_000));
    [policy(1), policy(1)].into_iter().for_each(|policy| lab.vm(policy));
    let fill = |lab: &Lab| while lab.nics[0].0.send(&[&header.to_bytes()[..], &large].concat()).is_ok() {};
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        for _ in 0..50 {
            fill(&lab);
            lab.step(Duration::from_micros(50));
            lab.far.all();
        }
        lab.nics[1].send(OffloadHeader::default(), &frame(2, mac(200), 64));
        let sent = lab.now;
        while lab.far.all().iter().all(|frame| frame[11] != 2) {
            fill(&lab);
            lab.step(Duration::from_micros(20));
        }
        longest = longest.max(lab.state.actor.core.wire.pacer.free_at().since(sent));
    }
    assert!(longest <= Duration::from_micros(650), "{longest:?} until the frame has left the wire");
}

#[test]
fn frames_of_a_tap_that_waited_too_long_are_dropped_and_the_others_stay_young() {
    let mut lab = Lab::new(Some(1_250_000));
    lab.vm(Policy::default());
    let got = lab.run(Duration::from_secs(1), greedy);
    assert!(got[1].abs_diff(1_250_000) < 5000, "{got:?}");
    let drops = lab.drops("vm1");
    assert!(drops.of(Reason::Waited) > 0, "{drops:?}");
    lab.run(Duration::from_millis(30), |_, _| ());
    let rest = lab.run(Duration::from_millis(200), |_, _| ());
    assert_eq!(rest[1], 0, "nothing is left that was sent 30 ms ago");
}

#[test]
fn a_removed_nic_gets_and_sends_nothing_and_the_thread_ends() {
    let (spec, far) = uplink(None);
    let device = Uplink::start(spec, Box::new(|| ())).unwrap();
    let (near, vm) = link();
    device.edit(add("vm1", Policy::default(), nic(1, NicPlug::Tap(near)))).unwrap();
    vm.0.set_nonblocking(false).unwrap();
    far.0.set_nonblocking(false).unwrap();
    vm.send(OffloadHeader::default(), &frame(1, mac(200), 60));
    assert_eq!(far.receive().unwrap().1, frame(1, mac(200), 60));
    far.send(OffloadHeader::default(), &frame(200, mac(1), 60));
    assert_eq!(vm.receive().unwrap().1, frame(200, mac(1), 60));
    assert_eq!(counted(&device), (1, 1));
    device.edit(vec![Edit::RemoveNic { vm: "vm1".to_owned(), nic: "eth0".to_owned() }]).unwrap();
    device.edit(vec![Edit::RemoveVm { vm: "vm1".to_owned() }]).unwrap();
    assert!(device.snapshot().unwrap().vms.is_empty());
    assert!(device.stop().is_some());
}

/// Two VMs in their own VLANs, with the same address: the first change would join a VLAN that still has it.
#[test]
fn nics_of_one_address_could_not_exchange_their_vlans() {
    let mut lab = Lab::new(None);
    let spec = |vlan: u16| NicSpec { vlan: Some(vlan), ..nic(1, NicPlug::VhostUser) };
    let set = |vm: &str, vlan: u16| Edit::SetNic { vm: vm.to_owned(), nic: Box::new(spec(vlan)) };
    for (vm, vlan) in [("a", 20), ("b", 30)] {
        let (link, far) = link();
        lab.nics.push(far);
        let nic = NicSpec { plug: NicPlug::Tap(link), ..spec(vlan) };
        lab.state.actor.edit(lab.now, add(vm, Policy::default(), nic)).unwrap();
    }
    let tags = |lab: &mut Lab| {
        lab.nics.iter().for_each(|nic| nic.send(OffloadHeader::default(), &frame(1, mac(99), 100)));
        lab.step(Duration::from_millis(1));
        let mut tags: Vec<u16> = lab.far.all().iter().map(|frame| u16::from_be_bytes([frame[14], frame[15]])).collect();
        tags.sort_unstable();
        tags
    };
    assert_eq!(tags(&mut lab), [20, 30]);
    lab.state.actor.edit(lab.now, vec![set("a", 30), set("b", 20)]).unwrap();
    assert_eq!(tags(&mut lab), [20, 30]);
    let failing = Edit::SetNic { vm: "missing".to_owned(), nic: Box::new(spec(40)) };
    assert!(lab.state.actor.edit(lab.now, vec![failing, set("a", 40)]).is_err());
    assert_eq!(tags(&mut lab), [20, 30], "a NIC that a failed change did not reach stays");
    assert!(lab.state.actor.edit(lab.now, vec![set("a", 20)]).is_err(), "the VLAN has the address");
    assert_eq!(tags(&mut lab), [20, 30]);
}

fn counted(device: &Uplink) -> (u64, u64) {
    let snapshot = device.snapshot().unwrap();
    let nic = snapshot.vms[0].volumes[0].nic.clone().unwrap();
    (nic.sent, nic.received)
}

#[test]
fn a_frame_that_was_cut_on_its_way_from_a_tap_is_dropped_and_counted() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    lab.nics[0].send(OffloadHeader::default(), &vec![0; crate::uplink::link::FRAME_MAX + 1]);
    lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60));
    lab.step(Duration::ZERO);
    assert_eq!((lab.far.all(), lab.drops("vm1").of(Reason::TooLong)), (vec![frame(1, mac(200), 60)], 1));
}

#[test]
fn an_interface_that_comes_later_takes_frames_and_is_kept_over_a_restart() {
    let (mut spec, far) = uplink(None);
    let link = std::mem::replace(&mut spec.link, Arc::new(Link::missing("up0").unwrap()));
    let state = Reactor::build(&spec, &mailbox().unwrap().0, 0).unwrap().0;
    let mut lab = Lab { state, far, nics: Vec::new(), now: Instant::from_millis(1000) };
    (0..2).for_each(|_| lab.vm(Policy::default()));
    lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60));
    lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(2), 60));
    lab.step(Duration::ZERO);
    assert_eq!(lab.nics[1].all(), [frame(1, mac(2), 60)], "NICs reach each other without it");
    assert_eq!(lab.drops("vm1").of(Reason::LinkDown), 1);
    let snapshot = lab.state.snapshot();
    let failed: Vec<_> =
        snapshot.vms.iter().flat_map(|vm| &vm.volumes[0].faults.failures).map(|one| (one.errno, one.count)).collect();
    assert_eq!(failed, [(libc::ENETDOWN, 1)], "it is told as a failure of the NIC that sent it");
    lab.state.actor.edit(lab.now, vec![Edit::SetLink { nic: None, link }]).unwrap();
    let exchange = |lab: &mut Lab| {
        lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(201), 60));
        lab.far.send(OffloadHeader::default(), &frame(201, mac(2), 60));
        (0..3).for_each(|_| lab.step(Duration::ZERO));
        assert_eq!(lab.far.all(), [frame(1, mac(201), 60)]);
        assert_eq!(lab.nics[1].all().last(), Some(&frame(201, mac(2), 60)));
    };
    exchange(&mut lab);
    let kept = lab.state.kept();
    lab.state = Reactor::build(&spec, &mailbox().unwrap().0, 1).unwrap().0;
    lab.state.take_over(&kept).unwrap();
    exchange(&mut lab);
}

#[test]
fn the_tap_of_a_nic_is_replaced_while_its_frames_are_awaited() {
    let mut lab = Lab::new(None);
    lab.vm(Policy::default());
    lab.step(Duration::ZERO);
    let (link, far) = link();
    lab.state.actor.edit(lab.now, vec![Edit::SetLink { nic: Some(("vm1".into(), "eth0".into())), link }]).unwrap();
    let old = std::mem::replace(&mut lab.nics[0], far);
    lab.nics[0].send(OffloadHeader::default(), &frame(1, mac(200), 60));
    (0..3).for_each(|_| lab.step(Duration::ZERO));
    assert_eq!(lab.far.all(), [frame(1, mac(200), 60)]);
    lab.far.send(OffloadHeader::default(), &frame(200, mac(1), 60));
    (0..3).for_each(|_| lab.step(Duration::ZERO));
    assert_eq!((lab.nics[0].all(), old.all()), (vec![frame(200, mac(1), 60)], Vec::new()));
}

#[test]
fn many_messages_kept_the_thread_of_an_uplink_from_frames_until_all_were_handled() {
    let (spec, _far) = uplink(None);
    let device = Uplink::start(spec, Box::new(|| ())).unwrap();
    let answers: Vec<_> = (0..100)
        .map(|_| {
            let (reply, answer) = std::sync::mpsc::channel();
            device.mailbox.leave(Message::Call(Call::Snapshot(reply)));
            answer
        })
        .collect();
    device.mailbox.wake();
    let at: Vec<u64> = answers.into_iter().map(|answer| answer.recv().unwrap().iterations).collect();
    assert!(at.is_sorted() && at[99] - at[0] >= 12, "8 in each iteration: {at:?}");
}

#[test]
fn an_interrupted_operation_of_an_uplink_was_submitted_again_without_a_pause() {
    let mut lab = Lab::new(None);
    lab.step(Duration::ZERO);
    assert_eq!(lab.state.actor.link, LinkState::Watched);
    let interrupted = Event { user_data: Tag::Frontend(LINK, 0, 0).pack(), result: -libc::EINTR };
    lab.state.handle(lab.now, vec![interrupted]);
    assert_eq!(lab.state.wait_timeout(lab.now), Some(Duration::from_millis(10)));
    for (millis, expected) in [(0, LinkState::Watched), (9, LinkState::Watched), (10, LinkState::Ready)] {
        lab.state.handle(lab.now + Duration::from_millis(millis), Vec::new());
        assert_eq!(lab.state.actor.link, expected, "after {millis} ms");
    }
}
