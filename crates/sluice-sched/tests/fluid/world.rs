//! Nodes with gates and devices, VMs and their clients, in virtual time.
//!
//! Events are processed in order of time, and at equal times in the order in which they were scheduled. After each event the
//! affected gates are pumped. A VM on several nodes counts completions with a [`Tracker`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sluice_sched::gate::Submission;
use sluice_sched::params::ParamTable;
use sluice_sched::tracker::{Form, Tracked};
use sluice_sched::{
    Arrival, Device, Flags, Gate, Instant, Limit, OwnerId, Phase, Policy, VolumeId, gate::Slot, schedulers,
};

use super::chance::Chance;
use super::plan::{Ask, Cloud, Load, Placement};
use super::station::{SECOND, Station};

/// Sums over dispatched pieces since the source was added. Costs are in 1/65,536 of a normalised request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Cost of the generated requests, including those dropped at a full window.
    pub offered_raw: u64,
    /// Cost of the requests that gates accepted.
    pub arrived_raw: u64,
    /// Cost of the requests that were cancelled.
    pub cancelled_raw: u64,
    pub got_raw: u64,
    /// The same in the reservation phase.
    pub by_reservation_raw: u64,
    pub pieces: u64,
    /// Transferred bytes; see `CostModel::bytes`.
    pub bytes: u64,
    /// Bytes counted against a reservation in bytes.
    pub reserved_bytes: u64,
}

impl Totals {
    /// Queued normalised requests.
    pub fn backlog(&self) -> f64 {
        (self.arrived_raw - self.cancelled_raw - self.got_raw) as f64 / 65_536.0
    }

    pub fn got(&self) -> f64 {
        self.got_raw as f64 / 65_536.0
    }

    pub fn arrived(&self) -> f64 {
        self.arrived_raw as f64 / 65_536.0
    }

    pub fn offered(&self) -> f64 {
        self.offered_raw as f64 / 65_536.0
    }
}

/// One dispatch.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    pub at: u64,
    pub source: usize,
    pub cost: f64,
    /// Nanoseconds in the queue.
    pub waited: u64,
}

struct Node {
    gate: Gate,
    station: Station,
    wake: Option<u64>,
    /// Idle time of the servers.
    idle: Idle,
    /// The same while nothing is queued.
    unqueued: Idle,
    /// The same while nothing is queued except requests of VMs with a limit.
    limited: Idle,
    /// Queued pieces of VMs without a limit.
    unlimited: u32,
}

/// Accumulated idle time of servers.
#[derive(Debug, Clone, Copy)]
struct Idle {
    nanos: u64,
    servers: u32,
    since: u64,
}

impl Idle {
    fn nanos(&self, now: u64) -> u64 {
        self.nanos + u64::from(self.servers) * (now - self.since)
    }

    fn set(&mut self, now: u64, servers: u32) {
        *self = Idle { nanos: self.nanos(now), servers, since: now };
    }
}

struct Vm {
    /// Its owner and volumes at each node.
    owners: Vec<(OwnerId, Vec<VolumeId>)>,
    tracker: Option<Tracked>,
    present: bool,
    limited: bool,
    /// Its queued pieces at each node.
    queued: Vec<Queued>,
}

/// Queued pieces of one VM at one node.
#[derive(Debug, Clone, Copy, Default)]
struct Queued {
    pieces: u32,
    /// Time without queued pieces up to `since`.
    absent_ns: u64,
    since: u64,
}

impl Queued {
    fn absent_ns(&self, now: u64) -> u64 {
        self.absent_ns + if self.pieces == 0 { now - self.since } else { 0 }
    }

    fn set(&mut self, now: u64, pieces: u32) {
        *self = Queued { pieces, absent_ns: self.absent_ns(now), since: now };
    }
}

fn is_limited(policy: &Policy) -> bool {
    policy.limit != Limit::default()
}

/// One stream of requests to one volume of a VM.
pub struct Source {
    vm: usize,
    volume: usize,
    mix: Vec<Ask>,
    /// Mean cost of the mix, in normalised requests.
    mean_cost: f64,
    pub load: Load,
    load_since: u64,
    /// Scheduled arrivals of another generation are ignored.
    generation: u32,
    /// Changes when the source is attached to another VM; completions of the previous VM's requests are ignored.
    incarnation: u32,
    outstanding: u32,
    next_node: usize,
    chance: Chance,
    pub totals: Totals,
}

impl Source {
    fn next_ask(&mut self) -> Ask {
        if self.mix.len() == 1 { self.mix[0] } else { self.chance.pick(&self.mix) }
    }

    /// Drops a request because the window is full.
    fn drop_request(&mut self, cloud: &Cloud) {
        self.totals.offered_raw += cloud.raw_cost(self.next_ask());
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Complete { node: u32, slot: u32 },
    Arrive { source: u32, generation: u32 },
}

pub struct World {
    pub cloud: Cloud,
    pub now: u64,
    nodes: Vec<Node>,
    vms: Vec<Vm>,
    pub sources: Vec<Source>,
    /// All dispatches, if the test enables it.
    pub log: Option<Vec<Record>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned: u64,
    /// Nodes whose gates must be pumped.
    touched: Vec<usize>,
    chance: Chance,
}

/// The device's side of a pump.
struct Feed<'a> {
    cloud: &'a Cloud,
    station: &'a mut Station,
    sources: &'a mut [Source],
    vms: &'a mut [Vm],
    index: usize,
    unlimited: &'a mut u32,
    log: &'a mut Option<Vec<Record>>,
}

impl Device for Feed<'_> {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        self.station.take(submission);
        let request = &submission.request;
        let source = (submission.token & 0xffff) as usize;
        let vm = &mut self.vms[self.sources[source].vm];
        let queued = &mut vm.queued[self.index];
        queued.set(now.as_nanos(), queued.pieces - 1);
        *self.unlimited -= u32::from(!vm.limited);
        let totals = &mut self.sources[source].totals;
        let raw = u64::from(request.cost.raw());
        let bytes = self.cloud.cost.bytes(request.kind, request.length, request.cost);
        totals.got_raw += raw;
        totals.pieces += 1;
        totals.bytes += bytes;
        totals.reserved_bytes += self.cloud.reserved_bytes(bytes, request.cost);
        if request.phase == Phase::Reservation {
            totals.by_reservation_raw += raw;
        }
        if let Some(log) = self.log {
            let waited = now.nanos_since(request.arrival);
            log.push(Record { at: now.as_nanos(), source, cost: request.cost.as_f64(), waited });
        }
    }
}

impl World {
    /// Nodes without VMs, each with a scheduler of this name.
    pub fn new(cloud: &Cloud, scheduler: &str, seed: u64) -> World {
        let build = schedulers::find(scheduler).expect("a scheduler of the list").build;
        let mut chance = Chance::new(seed);
        let idle = Idle { nanos: 0, servers: cloud.servers, since: 0 };
        let mut node = || {
            let scheduler = build(&cloud.info(), &ParamTable::new()).expect("its defaults");
            Node {
                gate: Gate::new(scheduler, cloud.settings()),
                station: Station::new(cloud, Chance::new(chance.below(1 << 60) as u64)),
                wake: None,
                idle,
                unqueued: idle,
                limited: idle,
                unlimited: 0,
            }
        };
        World {
            cloud: *cloud,
            now: 0,
            nodes: (0..cloud.nodes).map(|_| node()).collect(),
            vms: Vec::new(),
            sources: Vec::new(),
            log: None,
            events: BinaryHeap::new(),
            planned: 0,
            touched: Vec::new(),
            chance,
        }
    }

    fn instant(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// A VM with a volume for each of `volumes`, at all nodes.
    pub fn add_vm(&mut self, policy: Policy, volumes: &[Policy]) -> usize {
        let now = self.instant();
        let mut owners = Vec::new();
        for node in &mut self.nodes {
            let owner = node.gate.add_owner(now, policy).expect("the plan's policies are valid");
            let volumes = volumes.iter().map(|policy| node.gate.add_volume(now, owner, *policy).expect("the same"));
            let volumes = volumes.collect();
            owners.push((owner, volumes));
        }
        let tracker = (self.nodes.len() > 1).then(|| Tracked::new(Form::Product));
        let queued = vec![Queued { since: self.now, ..Queued::default() }; self.nodes.len()];
        self.vms.push(Vm { owners, tracker, present: true, limited: is_limited(&policy), queued });
        self.vms.len() - 1
    }

    /// Sets the policy of a VM at all nodes.
    pub fn set_policy(&mut self, vm: usize, policy: Policy) {
        for index in 0..self.nodes.len() {
            let owner = self.vms[vm].owners[index].0;
            let now = self.instant();
            self.nodes[index].gate.set_owner(now, owner, policy).expect("the plan's policies are valid");
            self.touch(index);
        }
        self.vms[vm].limited = is_limited(&policy);
        self.count_unlimited();
        self.pump();
    }

    /// Sets the policies of a VM and of all its volumes at all nodes.
    pub fn set_policies(&mut self, vm: usize, policy: Policy, volumes: &[Policy]) {
        for index in 0..self.nodes.len() {
            let (owner, ids) = &self.vms[vm].owners[index];
            let changed: Vec<(VolumeId, Policy)> = ids.iter().copied().zip(volumes.iter().copied()).collect();
            let (owner, now) = (*owner, self.instant());
            self.nodes[index].gate.set_policies(now, owner, policy, &changed).expect("the plan's policies are valid");
            self.touch(index);
        }
        self.vms[vm].limited = is_limited(&policy);
        self.count_unlimited();
        self.pump();
    }

    /// Sets the policy of the volume of a source at all nodes.
    pub fn set_volume_policy(&mut self, source: usize, policy: Policy) {
        let Source { vm, volume, .. } = self.sources[source];
        for index in 0..self.nodes.len() {
            let (owner, volumes) = &self.vms[vm].owners[index];
            let (owner, volume, now) = (*owner, volumes[volume], self.instant());
            self.nodes[index].gate.set_volume(now, owner, volume, policy).expect("the plan's policies are valid");
            self.touch(index);
        }
        self.pump();
    }

    /// Builds the scheduler of this name again at all nodes.
    pub fn replace_scheduler(&mut self, name: &str) {
        let build = schedulers::find(name).expect("a scheduler of the list").build;
        for index in 0..self.nodes.len() {
            let scheduler = build(&self.cloud.info(), &ParamTable::new()).expect("its defaults");
            let now = self.instant();
            self.nodes[index].gate.replace_scheduler(now, scheduler, false).expect("the plan's policies are valid");
            self.touch(index);
        }
        self.pump();
    }

    /// Removes a VM from all nodes, and cancels its queued requests.
    pub fn remove_vm(&mut self, vm: usize) {
        let mut finished = Vec::new();
        for index in 0..self.nodes.len() {
            let now = self.instant();
            self.nodes[index]
                .gate
                .remove_owner(now, self.vms[vm].owners[index].0, &mut finished)
                .expect("a present owner");
            self.touch(index);
        }
        self.vms[vm].present = false;
        let now = self.now;
        self.vms[vm].queued.iter_mut().for_each(|queued| queued.set(now, 0));
        self.count_unlimited();
        for source in self.sources.iter_mut().filter(|source| source.vm == vm) {
            let totals = &mut source.totals;
            totals.cancelled_raw = totals.arrived_raw - totals.got_raw;
            source.load = Load::Off;
            source.generation += 1;
        }
        self.pump();
    }

    fn count_unlimited(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.unlimited = self.vms.iter().filter(|vm| !vm.limited).map(|vm| vm.queued[index].pieces).sum();
        }
    }

    /// Adds a stream of requests to a volume of a VM, with no load.
    pub fn add_source(&mut self, vm: usize, volume: usize, mix: &[Ask]) -> usize {
        let costs: f64 = mix.iter().map(|ask| self.cloud.cost(*ask)).sum();
        let number = self.sources.len();
        self.sources.push(Source {
            vm,
            volume,
            mix: mix.to_vec(),
            mean_cost: costs / mix.len() as f64,
            load: Load::Off,
            load_since: 0,
            generation: 0,
            incarnation: 0,
            outstanding: 0,
            next_node: number % self.nodes.len(),
            chance: Chance::new(self.chance.below(1 << 60) as u64),
            totals: Totals::default(),
        });
        number
    }

    /// Adds a VM with one volume and one stream, with no load. Returns the index of the source, not of the VM.
    pub fn vm(&mut self, policy: Policy, mix: &[Ask]) -> usize {
        let vm = self.add_vm(policy, &[Policy::default()]);
        self.add_source(vm, 0, mix)
    }

    /// The VM of a source.
    pub fn vm_of(&self, source: usize) -> usize {
        self.sources[source].vm
    }

    /// Attaches a source, whose VM was removed, to the first volume of another VM.
    pub fn attach(&mut self, source: usize, vm: usize) {
        assert!(!self.vms[self.sources[source].vm].present, "a source has one VM");
        let source = &mut self.sources[source];
        (source.vm, source.volume, source.outstanding) = (vm, 0, 0);
        source.incarnation += 1;
    }

    /// Sets the load of a source.
    pub fn set_load(&mut self, index: usize, load: Load) {
        let source = &mut self.sources[index];
        source.load = load;
        source.load_since = self.now;
        source.generation += 1;
        match load {
            Load::Off => {}
            Load::Closed(_) => self.top_up(index),
            Load::Periodic(_) => self.plan_arrival(index, self.now),
            Load::Poisson(_) | Load::Bursty { .. } => self.plan_next(index),
        }
        self.pump();
    }

    /// Stalls all devices until an instant.
    pub fn stall_until(&mut self, until: u64) {
        self.nodes.iter_mut().for_each(|node| node.station.stalled_until = until);
    }

    /// Started service of all devices: normalised requests, and nanoseconds of servers.
    pub fn work(&self) -> (f64, f64) {
        let raw: u64 = self.nodes.iter().map(|node| node.station.work_raw).sum();
        let nanos: u64 = self.nodes.iter().map(|node| node.station.work_ns).sum();
        (raw as f64 / 65_536.0, nanos as f64)
    }

    /// Idle time of the servers in nanoseconds: all of it; that at nodes with nothing queued; that at nodes with nothing queued
    /// except requests of VMs with a limit.
    pub fn idle_ns(&self) -> [f64; 3] {
        let sum = |of: fn(&Node) -> &Idle| self.nodes.iter().map(|node| of(node).nanos(self.now)).sum::<u64>() as f64;
        [sum(|node| &node.idle), sum(|node| &node.unqueued), sum(|node| &node.limited)]
    }

    /// Time in which the VM of a source had nothing queued, in nanoseconds, summed over all nodes.
    pub fn absent_ns(&self, source: usize) -> f64 {
        let queued = &self.vms[self.sources[source].vm].queued;
        queued.iter().map(|queued| queued.absent_ns(self.now)).sum::<u64>() as f64
    }

    /// Processes all events until `end`, inclusive.
    pub fn run_until(&mut self, end: u64) {
        loop {
            let event = self.events.peek().map(|Reverse((at, _, _))| *at);
            let wake = self.nodes.iter().filter_map(|node| node.wake).min();
            let Some(next) = event.into_iter().chain(wake).min().filter(|next| *next <= end) else { break };
            assert!(next >= self.now, "time never decreases");
            self.now = next;
            if event == Some(next) {
                let Reverse((_, _, event)) = self.events.pop().expect("just seen");
                self.process(event);
            } else {
                let woken: Vec<usize> = (0..self.nodes.len()).filter(|i| self.nodes[*i].wake == Some(next)).collect();
                woken.into_iter().for_each(|index| self.touch(index));
            }
            self.pump();
        }
        self.now = self.now.max(end);
    }

    pub fn run_for(&mut self, seconds: f64) {
        self.run_until(self.now + (seconds * SECOND as f64).round() as u64);
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    fn touch(&mut self, node: usize) {
        if !self.touched.contains(&node) {
            self.touched.push(node);
        }
    }

    fn process(&mut self, event: Event) {
        match event {
            Event::Complete { node, slot } => self.complete(node as usize, slot),
            Event::Arrive { source, generation } => {
                let index = source as usize;
                if self.sources[index].generation == generation {
                    let window = self.cloud.window();
                    if self.sources[index].outstanding < window {
                        self.submit(index);
                    } else {
                        self.sources[index].drop_request(&self.cloud);
                    }
                    self.plan_next(index);
                }
            }
        }
    }

    fn complete(&mut self, index: usize, slot: u32) {
        let (now, node) = (self.instant(), &mut self.nodes[index]);
        if node.station.stalled_until > self.now {
            let until = node.station.stalled_until;
            return self.plan(until, Event::Complete { node: index as u32, slot });
        }
        node.station.complete();
        let finished = node.gate.complete(now, Slot(slot), true);
        self.touch(index);
        let Some(finished) = finished else { return };
        let number = (finished.token & 0xffff) as usize;
        let source = &mut self.sources[number];
        if source.incarnation != finished.token >> 16 {
            return;
        }
        source.outstanding -= 1;
        if let Some(tracker) = &mut self.vms[source.vm].tracker {
            tracker.client.completed(index as u32, &finished);
        }
        self.top_up(number);
    }

    fn top_up(&mut self, index: usize) {
        while let Load::Closed(outstanding) = self.sources[index].load
            && self.sources[index].outstanding < outstanding
            && self.submit(index)
        {}
    }

    /// Submits one request of a source. Returns whether the gate accepted it.
    fn submit(&mut self, index: usize) -> bool {
        let (now, nodes) = (self.instant(), self.nodes.len());
        let source = &mut self.sources[index];
        let vm = &mut self.vms[source.vm];
        if !vm.present {
            return false;
        }
        let ask = source.next_ask();
        let raw = self.cloud.raw_cost(ask);
        source.totals.offered_raw += raw;
        let node = match self.cloud.placement {
            Placement::RoundRobin => source.next_node,
            Placement::Random => source.chance.below(nodes),
        };
        source.next_node = (source.next_node + 1) % nodes;
        let told = vm.tracker.as_mut().map(|tracker| tracker.ask(now, node as u32));
        let (owner, volumes) = &vm.owners[node];
        let arrival = Arrival {
            owner: *owner,
            volume: volumes[source.volume],
            kind: ask.kind,
            flags: Flags::NONE,
            offset: source.totals.arrived_raw & 0xffff_f000,
            length: ask.length,
            token: index as u32 | source.incarnation << 16,
            remote: told.map(|(remote, _)| remote),
        };
        let accepted = self.nodes[node].gate.insert(now, &arrival).is_ok();
        if let (Some(tracker), Some((_, heard))) = (&mut vm.tracker, told) {
            tracker.answer(node as u32, heard, accepted);
        }
        if accepted {
            let pieces = self.cloud.pieces(ask).count() as u32;
            let queued = &mut vm.queued[node];
            queued.set(self.now, queued.pieces + pieces);
            self.nodes[node].unlimited += if vm.limited { 0 } else { pieces };
            source.totals.arrived_raw += raw;
            source.outstanding += 1;
            self.touch(node);
        }
        accepted
    }

    fn plan_arrival(&mut self, index: usize, at: u64) {
        let generation = self.sources[index].generation;
        self.plan(at, Event::Arrive { source: index as u32, generation });
    }

    /// Schedules the next arrival of an open source.
    fn plan_next(&mut self, index: usize) {
        let now = self.now;
        let source = &mut self.sources[index];
        let gap = |source: &mut Source, rate: f64| source.chance.exponential() * source.mean_cost / rate;
        let nanos = |seconds: f64| (seconds * SECOND as f64) as u64;
        let at = match source.load {
            Load::Off | Load::Closed(_) => return,
            Load::Periodic(every) => now + nanos(every),
            Load::Poisson(rate) => now + nanos(gap(source, rate)),
            Load::Bursty { rate, on, off } => {
                let passed = (now - source.load_since) as f64 / SECOND as f64;
                let (cycle, within) = ((passed / (on + off)).floor(), passed % (on + off));
                // The arrival process advances only while the load is on.
                let active = cycle * on + within.min(on) + gap(source, rate);
                let cycles = (active / on).floor();
                source.load_since + nanos(cycles * (on + off) + (active - cycles * on))
            }
        };
        self.plan_arrival(index, at.max(now));
    }

    fn pump(&mut self) {
        while let Some(index) = self.touched.pop() {
            let now = self.instant();
            let node = &mut self.nodes[index];
            let mut feed = Feed {
                cloud: &self.cloud,
                station: &mut node.station,
                sources: &mut self.sources,
                vms: &mut self.vms,
                index,
                unlimited: &mut node.unlimited,
                log: &mut self.log,
            };
            node.wake = node.gate.pump(now, &mut feed).map(Instant::as_nanos);
            while let Some((slot, at)) = self.nodes[index].station.begin(self.now) {
                self.plan(at, Event::Complete { node: index as u32, slot });
            }
            let node = &mut self.nodes[index];
            let idle = node.station.idle();
            node.idle.set(self.now, idle);
            node.unqueued.set(self.now, if node.gate.queued() == 0 { idle } else { 0 });
            node.limited.set(self.now, if node.unlimited == 0 { idle } else { 0 });
        }
    }
}
