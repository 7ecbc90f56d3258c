//! dmClock from end to end: VMs whose clients count, over several servers that do not communicate.

use std::time::Duration;

use rand_pcg::Pcg32;
use rand_pcg::rand_core::{Rng, SeedableRng};
use sluice_sched::gate::{Slot, Submission};
use sluice_sched::scheduler::DeviceInfo;
use sluice_sched::tracker::{Form, Tracked};
use sluice_sched::*;

/// Time advances in such steps.
const STEP: Duration = Duration::from_micros(100);
/// A server completes a request every this many steps: 1000 per second.
const SERVICE: u64 = 10;
const STEPS_PER_SECOND: u64 = 10_000;

/// Takes one request at a time.
#[derive(Default)]
struct One {
    flight: Option<(Slot, Request)>,
    due: u64,
    step: u64,
}

impl Device for One {
    fn submit(&mut self, _now: Instant, submission: &Submission) {
        assert!(self.flight.is_none(), "the device takes one");
        self.flight = Some((submission.slot, submission.request));
        self.due = self.step + SERVICE;
    }
}

struct Server {
    gate: Gate,
    device: One,
}

struct Client {
    /// `None`: it reports nothing.
    tracker: Option<Tracked>,
    completed: u64,
    /// Number of requests of ten that go to the first server.
    first_of_ten: u64,
}

/// Servers with mClock in product mode, and VMs that keep 16 requests outstanding, spread over all of them.
struct Cloud {
    servers: Vec<Server>,
    clients: Vec<Client>,
    random: Pcg32,
    now: Instant,
    /// Dispatches: server, VM, phase, time.
    log: Vec<(usize, u32, Phase, Instant)>,
}

impl Cloud {
    fn new(servers: usize, vms: &[(Policy, u64)], counted: bool) -> Cloud {
        let server = || {
            let build = schedulers::find("mclock").expect("it is in the list").build;
            let scheduler =
                build(&DeviceInfo { depth: 1, ..DeviceInfo::default() }, &Default::default()).expect("its defaults");
            let cost = CostModel::per_request();
            let mut gate = Gate::new(scheduler, GateSettings { depth: 1, cost, ..GateSettings::default() });
            for (policy, _) in vms {
                let owner = gate.add_owner(Instant::ZERO, *policy).expect("a valid policy");
                gate.add_volume(Instant::ZERO, owner, Policy::default()).expect("the first");
            }
            Server { gate, device: One::default() }
        };
        let client = |first_of_ten: u64| Client {
            tracker: counted.then(|| Tracked::new(Form::Product)),
            completed: 0,
            first_of_ten,
        };
        let mut cloud = Cloud {
            servers: (0..servers).map(|_| server()).collect(),
            clients: vms.iter().map(|(_, first)| client(*first)).collect(),
            random: Pcg32::seed_from_u64(1),
            now: Instant::ZERO,
            log: Vec::new(),
        };
        for _ in 0..16 {
            (0..vms.len() as u32).for_each(|vm| cloud.ask(vm));
        }
        cloud
    }

    fn ask(&mut self, vm: u32) {
        let client = &mut self.clients[vm as usize];
        let others = self.servers.len() as u64 - 1;
        let first = others == 0 || self.random.next_u64() % 10 < client.first_of_ten;
        let server = if first { 0 } else { 1 + (self.random.next_u64() % others) as usize };
        let remote = client.tracker.as_mut().map(|tracker| {
            let (remote, heard) = tracker.ask(self.now, server as u32);
            tracker.answer(server as u32, heard, true);
            remote
        });
        let arrival = Arrival {
            owner: OwnerId(vm),
            volume: VolumeId(0),
            kind: Kind::Read,
            flags: Flags::SYNC,
            offset: 4096,
            length: 8192,
            token: vm,
            remote,
        };
        self.servers[server].gate.insert(self.now, &arrival).expect("the queue has room");
    }

    fn run(&mut self, seconds: u64) -> Vec<f64> {
        self.clients.iter_mut().for_each(|client| client.completed = 0);
        for _ in 0..seconds * STEPS_PER_SECOND {
            self.now = self.now + STEP;
            for index in 0..self.servers.len() {
                self.serve(index);
            }
        }
        self.clients.iter().map(|client| client.completed as f64 / seconds as f64).collect()
    }

    fn serve(&mut self, index: usize) {
        let Server { gate, device } = &mut self.servers[index];
        device.step += 1;
        let mut over = None;
        if device.step >= device.due
            && let Some((slot, request)) = device.flight.take()
        {
            over = gate.complete(self.now, slot, true).map(|finished| (request.owner, finished));
        }
        let _ = gate.pump(self.now, device);
        if let Some((_, request)) = device.flight.filter(|_| device.due == device.step + SERVICE) {
            self.log.push((index, request.owner.0, request.phase, self.now));
        }
        if let Some((owner, finished)) = over {
            let client = &mut self.clients[owner.index()];
            client.completed += 1;
            if let Some(tracker) = &mut client.tracker {
                tracker.client.completed(index as u32, &finished);
            }
            self.ask(owner.0);
        }
    }
}

/// A VM that keeps every server busy, next to those that are measured.
fn other() -> (Policy, u64) {
    (Policy::default(), 5)
}

// rule: mclock.client-counts, mclock.product-counts
#[test]
fn a_limit_holds_over_all_servers() {
    for (servers, first_of_ten) in [(2, 5), (2, 8), (4, 3)] {
        let vms = [(Policy::default().limited(120), first_of_ten), other()];
        let mut cloud = Cloud::new(servers, &vms, true);
        let rate = cloud.run(20)[0];
        assert!((rate - 120.0).abs() <= 6.0, "{servers} servers, {first_of_ten} of ten at the first: {rate} of 120");
        let uncounted = Cloud::new(servers, &vms, false).run(20)[0];
        assert!(uncounted > 130.0, "without counts: {uncounted} of 120");
    }
}

// rule: mclock.client-counts, mclock.reply-phase
#[test]
fn a_reservation_is_given_once_over_all_servers() {
    for (servers, first_of_ten) in [(2, 5), (2, 8), (4, 3)] {
        let vms = [(Policy { weight: None, ..Policy::default() }.reserving(200), first_of_ten), other()];
        let rate = Cloud::new(servers, &vms, true).run(20)[0];
        assert!((rate - 200.0).abs() <= 10.0, "{servers} servers, {first_of_ten} of ten at the first: {rate} of 200");
    }
}

// rule: mclock.client-counts, mclock.first-request
#[test]
fn with_one_server_a_counting_client_changes_nothing() {
    let vms = [
        (Policy::weighted(300).reserving(100), 10),
        (Policy::weighted(100).limited(150), 10),
        (Policy::weighted(200).reserving(300).limited(350), 10),
    ];
    let [mut counted, mut local] = [true, false].map(|counted| Cloud::new(1, &vms, counted));
    assert_eq!(counted.run(5), local.run(5));
    assert!(counted.log == local.log && counted.log.len() > 4_000, "{}", counted.log.len());
}

// rule: mclock.debt-cap
#[test]
fn a_vm_of_one_server_takes_no_spare_capacity_before_a_vm_of_several() {
    // By weight the first VM is due 100 of the first server's 1000, by its reservation 400; the other one always waits
    // there.
    let vms = [(Policy::weighted(100).reserving(400), 10), (Policy::weighted(900).reserving(1000), 5)];
    let mut cloud = Cloud::new(2, &vms, true);
    cloud.run(2);
    let before = cloud.log.len();
    let rate = cloud.run(20)[0];
    let left_over = cloud.log[before..].iter().filter(|(_, vm, phase, _)| *vm == 0 && *phase == Phase::Weight).count();
    assert!((rate - 400.0).abs() <= 1.0 && left_over == 0, "{rate} of 400, {left_over} by weight");
}

/// A volume is at one server. What the others serve its VM has nothing to do with its own limit.
// rule: mclock.client-counts
#[test]
fn service_elsewhere_does_not_count_against_the_limit_of_a_volume() {
    let mut cloud = Cloud::new(3, &[(Policy::default(), 1), other()], true);
    let limited = Policy::default().limited(20);
    cloud.servers[0].gate.set_volume(Instant::ZERO, OwnerId(0), VolumeId(0), limited).expect("a valid policy");
    cloud.run(5);
    let before = cloud.log.len();
    cloud.run(10);
    let at_first = cloud.log[before..].iter().filter(|(server, vm, ..)| (*server, *vm) == (0, 0)).count();
    assert!((195..=205).contains(&at_first), "{at_first} of 200 at the server of the volume");
}
