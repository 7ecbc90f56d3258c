//! Regular runs: a device that keeps its capacity, truthful clients, and reservations that fit.
//!
//! The device serves one request at a time, for cost / C seconds each. So it also transfers at least B = C x
//! `request_bytes` of the bytes that count for a reservation. The sum of max(r/C, b/B) over all VMs, where r and b
//! are their reservations, is at most 1 - `weight_floor`. VMs are added, removed, paused and changed under every load
//! of the others.
//!
//! In every interval in which a VM always has requests queued it gets its reservation minus an allowance: what is due
//! to the others at the same instant, the requests in flight, and one request at each end of the interval.
//!
//! While a VM without a reservation always has requests queued and no limit holds it back, at least `weight_floor` of
//! the dispatched service is divided by weight.
//!
//! Example: C = 1000/s, depth 4, two VMs that reserve 450/s each, all costs 1. The allowance is 9 ms; in a second
//! each VM gets at least 450 - 4.05 - 2 requests.

use std::time::Duration;

use sluice_sched::admission::Capacity;
use sluice_sched::params::Value;
use sluice_sched::*;

use super::input::Input;
use super::model::cost_time;
use super::subject::Subject;
use super::world::{Event, Server, World};

const OPERATIONS_MAX: u32 = 150;
const ARRIVALS_MAX: u32 = 1000;
const VMS_MAX: usize = 12;
const LENGTH_MAX: u32 = 262_144;
const LENGTHS: [u32; 8] = [8192, 4096, 65_536, LENGTH_MAX, 512, 131_072, 0, 16_384];
/// Hundredths of a percent of the device.
const PARTS: [u64; 8] = [0, 1000, 500, 2500, 4700, 50, 9000, 9800];

/// The reserved rate of a VM, in requests or in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    /// Parts of a raw cost unit, or of a byte, per nanosecond.
    per_nano: i128,
    /// Number of parts in one unit.
    unit: i128,
    /// Service above this rate since the start of the interval, and its maximum.
    ahead: i128,
    ahead_max: i128,
    at: u64,
}

/// One VM of a run.
#[derive(Debug)]
struct Client {
    policy: Policy,
    is_on: bool,
    /// Its part of the device at its reservation, in hundredths of a percent.
    part: u64,
    rates: [Rate; 2],
    length: u32,
    kind: Kind,
    asked: u64,
}

struct Regular<'a> {
    world: World,
    input: Input<'a>,
    clients: Vec<Client>,
    capacity_milli: u64,
    request_bytes: u64,
    depth: u32,
    batch: u64,
    /// Minimum part of the service that is divided by weight, in hundredths of a percent.
    floor: i128,
    /// Service divided by weight above that minimum, in raw cost units times 10,000, and its maximum.
    above_floor: i128,
    above_floor_max: i128,
    has_stalled: bool,
}

/// Runs an input. Returns the events of the gate.
pub fn run(input: Input<'_>, is_printing: bool) -> Vec<Event> {
    let mut run = Regular::new(input, is_printing);
    for _ in 0..OPERATIONS_MAX {
        if run.input.is_empty() || run.world.ledger.next_token() > ARRIVALS_MAX {
            break;
        }
        run.operation();
    }
    run.world.log
}

impl Rate {
    fn restart(&mut self, now: u64) {
        (self.ahead, self.ahead_max, self.at) = (0, 0, now);
    }

    /// Advances the time. Returns the missing service above the allowance for `late` nanoseconds and for `amount`.
    fn pass(&mut self, now: u64, late: u64, amount: u64) -> i128 {
        self.ahead -= self.per_nano * i128::from(now - self.at);
        self.at = now;
        let allowed = self.per_nano * i128::from(late) + i128::from(amount) * self.unit;
        (self.ahead_max - self.ahead - allowed) / self.unit.max(1)
    }

    fn get(&mut self, amount: u64) {
        self.ahead += i128::from(amount) * self.unit;
        self.ahead_max = self.ahead_max.max(self.ahead);
    }
}

impl<'a> Regular<'a> {
    fn new(mut input: Input<'a>, is_printing: bool) -> Self {
        let mut subject = Subject::product();
        let batch = input.pick(&[0, 1, 2, 8]);
        let floor = input.pick(&[200, 0, 1, 1000, 5000]);
        subject.params.insert("batch".to_owned(), Value::Integer(batch));
        subject.params.insert("weight_floor".to_owned(), Value::Text(Percent::from_hundredths(floor).to_string()));
        let rotational = input.one_in(2);
        let depth = input.pick(&[4, 1, 2, 8, 32, 64]);
        let cost = match input.below(3) {
            1 => CostModel::per_request(),
            2 => CostModel { reference: Some(Bytes(4096)), knee: Bytes(16_384), ..CostModel::default() },
            _ => CostModel::default(),
        };
        let settings = GateSettings { depth, cost, ..GateSettings::default() };
        let capacity_milli = input.pick(&[1_000_000, 5_000_000, 2_000_000, 100_000_000]);
        let request_bytes = input.pick(&[8192, 1024, 65_536, 500_000]);
        let bandwidth = u128::from(request_bytes) * u128::from(capacity_milli) / 1000;
        let capacity = Capacity {
            iops: Some(Iops::from_milli(capacity_milli)),
            bytes: Some(ByteRate::per_second(u64::try_from(bandwidth).unwrap_or(u64::MAX))),
        };
        let mut server = Server::new(subject, settings, capacity, rotational);
        (server.model.is_serial, server.model.capacity_milli) = (true, Some(capacity_milli));
        let start = input.pick(&[0, 1 << 40]);
        let world = World::new(Instant::from_nanos(start), vec![server], is_printing);
        let batch = match (batch, rotational) {
            (0, true) => 8,
            (0, false) => 1,
            (stated, _) => stated as u64,
        };
        let server = &world.servers[0];
        world.say(format_args!("{}, {:?}, {capacity:?}, {rotational}", server.subject, server.gate.settings()));
        let (clients, floor) = (Vec::new(), i128::from(floor));
        let (above_floor, above_floor_max) = (0, 0);
        Regular {
            world,
            input,
            clients,
            capacity_milli,
            request_bytes,
            depth,
            batch,
            floor,
            above_floor,
            above_floor_max,
            has_stalled: false,
        }
    }

    fn operation(&mut self) {
        let code = self.input.byte();
        let client = self.input.below(self.clients.len().max(1));
        match code & 15 {
            0 | 1 => self.come(),
            2 => self.leave(client),
            3 => self.toggle(client),
            4 => self.cancel(client),
            5 => self.change(client),
            6 => self.ask_for_others(client),
            7 => self.stall(),
            _ => {}
        }
        self.pump();
        for _ in 0..1 + (code >> 4) {
            self.step();
        }
    }

    /// Handles the next completion or wake-up; then every active VM has requests queued again.
    fn step(&mut self) {
        let next = self.world.next();
        if let Some((at, server)) = next {
            let before = self.world.log.len();
            self.world.now = self.world.now.max(at);
            self.check();
            let is_floor_due = self.is_floor_due();
            self.world.happen(at, server);
            self.count(before);
            self.check_floor(before, is_floor_due);
        }
        self.pump();
    }

    /// Pumps, as a driver must after every call. Later requests are queued after others of the same VMs.
    fn pump(&mut self) {
        self.fill_all();
        let before = self.world.log.len();
        self.world.pump(0);
        self.count(before);
        self.fill_all();
    }

    fn fill_all(&mut self) {
        (0..self.clients.len()).for_each(|client| self.fill(client));
    }

    /// Queues requests for one pump, which dispatches at most as many as the device accepts.
    fn fill(&mut self, client: usize) {
        if !self.clients[client].is_on {
            return;
        }
        while self.waiting(client) <= u64::from(self.depth) {
            self.ask(client);
        }
    }

    fn waiting(&self, client: usize) -> u64 {
        let home = self.world.vms[client].homes[0];
        self.world.servers[0].homes[home].counts.waiting()
    }

    fn ask(&mut self, client: usize) {
        let Some(owner) = self.world.owner(client, 0) else { return };
        let was_empty = self.waiting(client) == 0;
        let Client { length, kind, asked, .. } = &mut self.clients[client];
        let (offset, kind) = (*asked * 4096 + ((client as u64) << 40), *kind);
        *asked += 1;
        let place = *asked as usize;
        let volumes = &self.world.home(client, 0).volumes;
        let (volume, _) = volumes[place % volumes.len()];
        let (flags, token) = (Flags::NONE, self.world.ledger.next_token());
        let arrival = Arrival { owner, volume, kind, flags, offset, length: *length, token, remote: None };
        assert!(self.world.ask(client, 0, arrival), "the queue has room");
        if was_empty {
            self.restart(client);
        }
    }

    /// Begins the interval of a VM.
    fn restart(&mut self, client: usize) {
        let now = self.world.now.as_nanos();
        self.clients[client].rates.iter_mut().for_each(|rate| rate.restart(now));
    }

    /// Returns the largest cost, in raw cost units.
    fn largest_cost(&self) -> u64 {
        let cost = self.world.servers[0].gate.settings().cost;
        let costs = [Kind::Read, Kind::Flush, Kind::Discard].map(|kind| u64::from(cost.cost(kind, LENGTH_MAX).raw()));
        costs.into_iter().max().expect("there are three")
    }

    /// Returns the maximum delay of a reservation, in nanoseconds.
    fn allowance(&self) -> u64 {
        let reserved = self.clients.iter().filter(|client| client.part > 0).count() as u64;
        let requests = (reserved + 1) * self.batch + u64::from(self.depth) + 2;
        cost_time(requests * self.largest_cost(), self.capacity_milli).as_nanos() as u64
    }

    /// Checks the reservation of every VM that always has requests queued.
    fn check(&mut self) {
        if self.has_stalled {
            return;
        }
        let (now, late, cost) = (self.world.now.as_nanos(), self.allowance(), self.largest_cost());
        let (batch, request_bytes) = (self.batch, self.request_bytes);
        for index in 0..self.clients.len() {
            let waiting = self.waiting(index);
            let client = &mut self.clients[index];
            let bytes = u64::from(LENGTH_MAX).max(cost * request_bytes >> Cost::SHIFT);
            for (rate, largest, what) in [(0, cost, "1/65,536 requests"), (1, bytes, "bytes")] {
                let missing = client.rates[rate].pass(now, late, (batch + 1) * largest);
                let is_due = client.rates[rate].per_nano > 0 && waiting > 0;
                assert!(
                    !is_due || missing <= 0,
                    "reservation: VM {index} with {:?} misses {missing} {what} beyond the allowance of {late} ns at {now}",
                    client.policy
                );
            }
        }
    }

    /// Counts the requests dispatched after this number of events in the log.
    fn count(&mut self, before: usize) {
        let cost = self.world.servers[0].gate.settings().cost;
        for event in &self.world.log[before..] {
            let Event::Submit { token, length, .. } = *event else { continue };
            let entry = self.world.ledger.entry(token);
            let of_request = cost.cost(entry.arrival.kind, length);
            let bytes = cost.bytes(entry.arrival.kind, length, of_request);
            let by_cost = u64::from(of_request.raw()) * self.request_bytes >> Cost::SHIFT;
            let client = &mut self.clients[self.world.servers[0].homes[entry.home].vm];
            client.rates[0].get(u64::from(of_request.raw()));
            client.rates[1].get(bytes.max(by_cost));
        }
    }

    /// Whether a VM without a reservation always has requests queued until the next pump, and no limit holds it back.
    fn is_floor_due(&self) -> bool {
        let due = |(index, client): (usize, &Client)| {
            let Policy { limit, read_limit, write_limit, .. } = client.policy;
            let free = !client.policy.is_reserved() && [limit, read_limit, write_limit] == [Limit::default(); 3];
            free && self.waiting(index) > u64::from(self.depth)
        };
        self.clients.iter().enumerate().any(due)
    }

    fn check_floor(&mut self, before: usize, is_due: bool) {
        if !is_due {
            (self.above_floor, self.above_floor_max) = (0, 0);
            return;
        }
        let cost = self.world.servers[0].gate.settings().cost;
        for event in &self.world.log[before..] {
            let Event::Submit { token, length, phase, .. } = *event else { continue };
            let of_request = i128::from(cost.cost(self.world.ledger.entry(token).arrival.kind, length).raw());
            self.above_floor += of_request * if phase == Phase::Weight { 10_000 - self.floor } else { -self.floor };
            self.above_floor_max = self.above_floor_max.max(self.above_floor);
        }
        // A batch of reserved requests, and one that is dispatched before the floor is due again.
        let allowed = 10_000 * i128::from(self.largest_cost()) * i128::from(2 * self.batch);
        let missing = self.above_floor_max - self.above_floor - allowed;
        let cost = missing / 10_000;
        assert!(missing <= 0, "floor: {cost}/65,536 requests less than {}/10,000 go by weight", self.floor);
    }

    /// Returns a policy with a reservation that still fits, and its part of the device.
    fn policy(&mut self, index: Option<usize>) -> (Policy, u64) {
        let others = self.clients.iter().enumerate().filter(|(other, _)| Some(*other) != index);
        let free = 10_000 - self.floor as u64 - others.map(|(_, client)| client.part).sum::<u64>();
        let part = self.input.pick(&PARTS).min(free);
        let how = self.input.byte();
        let mut policy = Policy {
            weight: Some(Weight::from_hundredths(self.input.pick(&[10_000, 1, 100, 1_000_000, 100_000_000]))),
            idle_credit: self.input.pick(&[1, 0, 256]),
            ..Policy::default()
        };
        let milli = self.capacity_milli * part / 10_000;
        let bytes = u128::from(self.capacity_milli) * u128::from(self.request_bytes) * u128::from(part) / 10_000_000;
        let bytes = u64::try_from(bytes).unwrap_or(0);
        // Rates below the smallest possible rate would be raised to it.
        if part > 0 && milli > 1 && bytes > 1024 {
            policy.reservation.iops = (how & 3 != 1).then(|| Iops::from_milli(milli));
            policy.reservation.bytes = (how & 1 == 1).then(|| ByteRate::per_second(bytes));
            policy.weight = policy.weight.filter(|_| how & 12 != 12);
        }
        if how & 48 == 48 && policy.is_reserved() {
            policy.limit.iops = policy.reservation.iops.map(|iops| Iops::from_milli(iops.milli() * 2));
        } else if how & 48 == 48 {
            policy.limit.iops = Some(Iops::from_milli(self.capacity_milli / 7));
        }
        if how & 128 == 128 {
            // The same for each direction: a VM asks for one of them at a time.
            (policy.read_limit, policy.write_limit) = (policy.limit, policy.limit);
            policy.limit = Limit::default();
        }
        if how & 64 == 64 {
            policy.class = policy::Class::Background;
        }
        let part = if policy.is_reserved() { part } else { 0 };
        (policy, part)
    }

    fn come(&mut self) {
        if self.clients.len() >= VMS_MAX {
            return;
        }
        let (policy, part) = self.policy(None);
        assert!(self.world.add_vm(policy), "a policy that agrees with itself");
        let length = self.input.pick(&LENGTHS);
        let kind = self.input.pick(&[Kind::Read, Kind::Write, Kind::Read, Kind::Flush, Kind::Discard]);
        let is_on = !self.input.one_in(4);
        let client = Client { policy, is_on, part, rates: Default::default(), length, kind, asked: 0 };
        self.clients.push(client);
        self.set_rates(self.clients.len() - 1);
        if self.input.one_in(4) {
            let (now, owner) = (self.world.now, self.world.owner(self.clients.len() - 1, 0).expect("it has just come"));
            let added = self.world.servers[0].gate.add_volume(now, owner, Policy::default());
            let volume = added.expect("a volume without a policy of its own");
            self.world.home(self.clients.len() - 1, 0).volumes.push((volume, Policy::default()));
        }
    }

    fn set_rates(&mut self, index: usize) {
        let Client { policy: Policy { reservation, .. }, rates, .. } = &mut self.clients[index];
        let milli = reservation.iops.map_or(0, |iops| iops.milli());
        rates[0].per_nano = i128::from(milli) * i128::from(Cost::ONE.raw());
        rates[0].unit = 1_000_000_000_000;
        rates[1].per_nano = i128::from(reservation.bytes.map_or(0, |rate| rate.bytes_per_second()));
        rates[1].unit = 1_000_000_000;
        self.restart(index);
    }

    fn is_here(&self, client: usize) -> bool {
        client < self.clients.len() && self.world.owner(client, 0).is_some()
    }

    fn leave(&mut self, client: usize) {
        if self.is_here(client) {
            self.world.remove_vm(client);
            let client = &mut self.clients[client];
            (client.is_on, client.part) = (false, 0);
        }
    }

    fn toggle(&mut self, client: usize) {
        if self.is_here(client) {
            self.clients[client].is_on ^= true;
            self.world.say(format_args!("VM {client} asks: {}", self.clients[client].is_on));
        }
    }

    fn cancel(&mut self, client: usize) {
        if let Some(owner) = self.world.owner(client, 0) {
            self.world.cancel(0, Scope::Owner(owner));
        }
    }

    fn change(&mut self, client: usize) {
        let Some(owner) = self.world.owner(client, 0) else { return };
        let (policy, part) = self.policy(Some(client));
        let now = self.world.now;
        self.world.servers[0].gate.set_owner(now, owner, policy).expect("a policy that agrees with itself");
        (self.clients[client].policy, self.clients[client].part) = (policy, part);
        self.set_rates(client);
        self.world.say(format_args!("VM {client} gets {policy:?}"));
    }

    /// Stalls the device. Catching up also serves others, so from now on only the floor is checked.
    fn stall(&mut self) {
        let millis = 20 * (1 + self.input.below(8) as u64);
        self.has_stalled = true;
        self.world.servers[0].model.stalled_until = self.world.now + Duration::from_millis(millis);
        self.world.say(format_args!("the device stalls for {millis} ms"));
    }

    /// Changes the sizes and kinds of requests.
    fn ask_for_others(&mut self, client: usize) {
        let (length, kind) = (self.input.pick(&LENGTHS), self.input.pick(&[Kind::Read, Kind::Write, Kind::Discard]));
        if self.is_here(client) {
            (self.clients[client].length, self.clients[client].kind) = (length, kind);
            self.world.say(format_args!("VM {client} asks for {kind:?} of {length}"));
        }
    }
}
