//! One phase of a run as input of the fluid model: the demand of each VM, and the minimum and maximum service that it is
//! due.

use super::check::{Before, FLOOR, TOLERANCE};
use super::model::{CATCH_UP_MAX, Demand, Due, FluidVm, Slot, run as run_fluid};
use super::plan::{Cloud, Load, Plan, Use};
use super::run::{PhaseRun, VmRun};
use super::shape::{Rates, Shape, Turns};

/// Debt cap of a share, in requests of the largest size. Service by a reservation above it is not a debt.
const DEBT: f64 = 16.0;

/// Minimum fraction of its limit that a VM gets if its part of the burst at each node is small.
///
/// Observed, not derived: the smallest observed rate was 245 of 261, with a burst of 30 on 8 nodes. The bound that follows
/// from the mechanism is much smaller. A full limiter loses the time that its VM then waits for service, up to the time at the
/// device: for a burst of 3.6 requests at each of 8 nodes and 0.16 s at the device it is 3.6 / (3.6 / 261 + 0.16) = 20/s.
const SMALL_PART: f64 = 0.9;

/// Minimum fraction of its lower bound that a VM with few outstanding requests gets. Observed, not derived: random waiting
/// times are longer than the mean times that the bound adds up.
const FEW: f64 = 0.95;

/// Number of mean queue lengths that a VM needs at each node so that its queue there is rarely empty; see
/// [`PhaseCheck::can_reach`]. Observed, not derived.
const SELDOM_EMPTY: f64 = 8.0;

/// Fraction of the capacity of several nodes that one other VM may get from a VM without a request at a node. Observed, not
/// derived.
const LEFT_OVER: f64 = 0.05;

/// A variant of the model.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// The service of closed VMs that are not always backlogged is spread evenly over the phase. Those that get nearly as much
    /// as a VM that is always backlogged are treated as such.
    smooth: bool,
    /// Debts and missed service are counted: a reservation that gets more than the share of its weight, while the device is
    /// slow or the demand of others is high, gets less later, by at most the debt cap, and by nothing if the debt is small
    /// compared with the variation of the device.
    memory: Option<Memory>,
    /// A reservation catches up on what it missed in the previous phase; requires a memory.
    owed: bool,
    /// See [`PhaseCheck::slots`].
    narrow: bool,
    /// Other VMs with a limit get what they got in the run. Their limits may allow any amount between the minimum and the
    /// maximum, and the service of this VM has its extremes between these: if one VM is late, a third one may get more. Each
    /// of them is checked separately.
    known: bool,
}

/// Maximum debt of the checked VM and of each of the others, in their largest pieces.
///
/// The debt cap is [`DEBT`]. Variations of the device that are shorter than a slot reach it, and drop the rest each time. So
/// the mean debt of a VM is anything from nothing to the cap.
#[derive(Debug, Clone, Copy)]
struct Memory {
    own: f64,
    others: f64,
}

/// One phase under check. Vectors are by index in `members`.
pub struct PhaseCheck<'a> {
    pub plan: &'a Plan,
    pub number: usize,
    pub run: &'a PhaseRun,
    pub seconds: f64,
    /// The VMs that are present.
    pub members: Vec<usize>,
    pub uses: Vec<Use>,
    pub runs: Vec<&'a VmRun>,
    pub shapes: Vec<Shape>,
    pub rates: Vec<Rates>,
    /// With the maximum that limits may allow.
    vms: Vec<FluidVm>,
    slots: Vec<Slot>,
    /// Result of the model for `vms`.
    pub due: Vec<Due>,
    /// Whether a VM has too few outstanding requests to get what it is due.
    slow: Vec<bool>,
    /// By slot, what such a VM would be due with more outstanding requests.
    due_always: Vec<Vec<f64>>,
}

impl<'a> PhaseCheck<'a> {
    pub fn new(plan: &'a Plan, number: usize, run: &'a PhaseRun, before: &Before) -> Self {
        let there = |vm: &usize| run.vms[*vm].is_some();
        let members: Vec<usize> = (0..plan.vms.len()).filter(there).collect();
        let uses: Vec<Use> = members.iter().map(|vm| plan.phases[number].vms[*vm].expect("a present owner")).collect();
        let runs: Vec<&VmRun> = members.iter().map(|vm| run.vms[*vm].as_ref().expect("a present owner")).collect();
        let shapes: Vec<Shape> = members.iter().zip(&runs).map(|(vm, run)| Shape::of(plan, *vm, run)).collect();
        let mixes = members.iter().map(|vm| plan.vms[*vm].as_slice());
        let policies = uses.iter().zip(&shapes).zip(mixes);
        let rates = policies.map(|((used, shape), mix)| Rates::of(&plan.cloud, used, shape, mix)).collect();
        let seconds = run.slots.iter().map(|slot| slot.seconds).sum();
        let (vms, slots, due, slow, due_always) = Default::default();
        let mut check = PhaseCheck {
            plan,
            number,
            run,
            seconds,
            members,
            uses,
            runs,
            shapes,
            rates,
            vms,
            slots,
            due,
            slow,
            due_always,
        };
        check.slots = check.slots(false, false);
        for member in 0..check.members.len() {
            let vm = check.members[member];
            let left = before.tokens[vm].filter(|_| check.has_same_policy(member));
            check.vms.push(check.fluid_vm(member, left, before.missed[vm]));
        }
        check.find_demands();
        check
    }

    /// Whether a VM was present with the same policy in the previous phase.
    fn has_same_policy(&self, member: usize) -> bool {
        let before = self.number.checked_sub(1).and_then(|before| self.plan.phases[before].vms[self.members[member]]);
        before.is_some_and(|before| before.policy == self.uses[member].policy)
    }

    fn fluid_vm(&self, member: usize, tokens: Option<f64>, missed: f64) -> FluidVm {
        let (Use { policy, load }, rates) = (&self.uses[member], &self.rates[member]);
        FluidVm {
            weight: policy.weight.map_or(0.0, |weight| weight.as_f64()),
            min_rate: rates.min,
            max_rate: rates.max,
            reserved: policy.is_reserved(),
            burst: rates.burst,
            tokens: tokens.unwrap_or(rates.burst),
            backlog: self.runs[member].backlog,
            backlog_max: self.runs[member].backlog.max(f64::from(self.plan.cloud.window()) * self.mean_cost(member)),
            missed: missed.min(rates.min * CATCH_UP_MAX),
            debt_max: None,
            demand: match load {
                Load::Closed(_) => Demand::Always,
                _ => Demand::Arrivals(self.runs[member].arrivals.clone()),
            },
        }
    }

    /// Capacity of the devices in each slot. A node with nothing queued cannot serve requests of others. With `narrow` the same
    /// applies to a node at which only VMs with a limit have requests queued. With `uneven` service times vary.
    fn slots(&self, narrow: bool, uneven: bool) -> Vec<Slot> {
        let several = self.plan.cloud.nodes > 1;
        let slots = self.run.slots.iter().map(|slot| {
            let lost = match (several, narrow) {
                (false, _) => 0.0,
                (true, false) => slot.unqueued,
                (true, true) => slot.limited,
            };
            let all = self.run.capacity * slot.seconds;
            let capacity = if uneven { slot.work + (slot.idle - lost) * all } else { (1.0 - lost) * all };
            Slot { seconds: slot.seconds, capacity: capacity.max(0.0) }
        });
        slots.collect()
    }

    /// Determines the VMs that cannot get what they are due, because they have few outstanding requests. Their demand is the
    /// service that they got.
    fn find_demands(&mut self) {
        self.due_always = vec![Vec::new(); self.vms.len()];
        self.slow = vec![false; self.vms.len()];
        loop {
            self.due = run_fluid(&self.slots, FLOOR, &self.vms);
            let slow = |member: &usize| !self.slow[*member] && self.demands_more(*member) && !self.can_reach(*member);
            let slow: Vec<usize> = (0..self.vms.len()).filter(slow).collect();
            if slow.is_empty() {
                return;
            }
            for member in slow {
                self.slow[member] = true;
                self.due_always[member] = self.due[member].by_slot.clone();
                self.vms[member].demand = Demand::Arrivals(self.runs[member].got.clone());
                (self.vms[member].backlog, self.vms[member].backlog_max) = (0.0, f64::INFINITY);
            }
        }
    }

    /// Whether the demand of a VM exceeds what it is due.
    fn demands_more(&self, member: usize) -> bool {
        let bursty = matches!(self.uses[member].load, Load::Bursty { .. });
        self.always_asks(member) || bursty || self.due[member].service < 0.98 * self.runs[member].offered()
    }

    /// Missed part of a VM's reservation at the end of the phase, including earlier phases. A device with random service times
    /// may be slower than stated for some time, and a small burst of a limit may be lost in it. The scheduler catches up on at
    /// most [`CATCH_UP_MAX`] seconds of the reservation.
    pub fn missed(&self, member: usize) -> f64 {
        let (rate, run) = (self.rates[member].min.min(self.rates[member].max), self.runs[member]);
        let minimum = rate * self.seconds + self.vms[member].missed;
        let asked = if matches!(self.uses[member].load, Load::Closed(_)) { minimum } else { run.offered() };
        (minimum.min(asked) - run.sums.got).clamp(0.0, rate * CATCH_UP_MAX)
    }

    /// The mean cost of a VM's requests, in normalised requests.
    fn mean_cost(&self, member: usize) -> f64 {
        let mix = &self.plan.vms[self.members[member]];
        mix.iter().map(|ask| self.plan.cloud.cost(*ask)).sum::<f64>() / mix.len() as f64
    }

    pub fn always_asks(&self, member: usize) -> bool {
        self.vms[member].demand == Demand::Always
    }

    /// Whether a VM with its number of outstanding requests can get what it is due.
    ///
    /// By Little's law it needs its rate times the time that a piece spends at the device, after pieces of other VMs. Half of
    /// that is added for variation.
    ///
    /// On several nodes it needs more: by chance it has many requests at one node and none at another, where other VMs are
    /// served instead. It can get the missed service at other nodes only from VMs that have requests at all nodes and are
    /// served by weight: a VM's reservation is not reduced, and a VM at its limit gets no more. If these VMs get a rate of A, a
    /// VM of rate x that is served first has a queue of x / A at each node, as in a queue with a load of x / (x + A). The mean
    /// length is that for Poisson arrivals and exponential service; with X simultaneous arrivals or completions it is
    /// (1 + X) / 2 times as long (M^X/M/1). The pieces of a request are simultaneous; so are all pieces of the VM at constant
    /// servers that run in step. Example: 26 servers in step, half of which serve the VM: 13 simultaneous pieces, and a queue
    /// 7 times as long. [`SELDOM_EMPTY`] such queues are rarely empty.
    fn can_reach(&self, member: usize) -> bool {
        let Cloud { nodes, depth, .. } = self.plan.cloud;
        let most = self.pieces_of_request(member);
        let (pieces, away) = (self.pieces(member), self.at_devices(member));
        if nodes == 1 {
            let enough = f64::from(self.outstanding(member)) >= f64::from(depth) + most + 1.0;
            // What it is due depends on the demand of others, and its requests bound its rate at any time, not only the mean.
            let reach = ((pieces - most) / 1.5 - 1.0) / (self.shapes[member].pieces * self.device_seconds(member));
            let due = self.due[member].by_slot.iter().zip(&self.slots);
            let missed: f64 = due.map(|(due, slot)| (due - reach.max(0.0) * slot.seconds).max(0.0)).sum();
            return enough || missed <= 0.5 * TOLERANCE[0] * self.due[member].service;
        }
        let others = (0..self.vms.len()).filter(|other| *other != member && self.is_everywhere(*other));
        let available =
            |other: usize| if self.rates[other].is_limited() { 0.0 } else { self.rate(other) - self.rates[other].min };
        let spare: f64 = others.map(|other| available(other).max(0.0)).sum();
        let clump = (1.0 + self.most_pieces().max(self.in_step(member))) / 2.0;
        let queue = clump * (1.0 + self.rate(member) / spare.max(1e-9));
        pieces >= 2.0 * away + SELDOM_EMPTY * nodes as f64 * queue + most
    }

    /// Pieces of a VM that a node completes at the same instant: constant servers that start together complete together.
    fn in_step(&self, member: usize) -> f64 {
        let Cloud { servers, service, .. } = self.plan.cloud;
        let part = self.rate(member) * self.shapes[member].pieces * self.shapes[member].piece / self.run.capacity;
        if service.exponential { 1.0 } else { f64::from(servers) * part.min(1.0) }
    }

    /// Minimum service of a VM with few outstanding requests on one device, in normalised requests. In each slot a request
    /// waits for the interval of the VM's due rate, for one piece of each other VM, and for its own service at the device.
    pub fn least_of_few(&self, member: usize) -> Option<f64> {
        if !self.slow[member] || self.plan.cloud.nodes > 1 || !matches!(self.uses[member].load, Load::Closed(_)) {
            return None;
        }
        let others: f64 = self.shapes.iter().map(|shape| shape.piece).sum();
        let away = self.device_seconds(member) + others / self.run.capacity;
        let at_device = away * self.shapes[member].pieces / self.pieces(member).min(self.pieces_at_random(member));
        let due = self.due_always[member].iter().zip(self.due_if_late(member)).map(|(always, late)| always.min(late));
        let least = due.zip(&self.slots).map(|(due, slot)| slot.seconds / (slot.seconds / due + at_device));
        Some(FEW * least.sum::<f64>())
    }

    /// Whether other VMs have too few outstanding requests. The capacity that they leave unused varies with their service.
    pub fn others_are_slow(&self, member: usize) -> bool {
        (0..self.slow.len()).any(|other| other != member && self.slow[other])
    }

    /// Service by slot that a VM would be due if it were always backlogged and its limit allowed only its minimum.
    fn due_if_late(&self, member: usize) -> Vec<f64> {
        let mut vms = self.vms.clone();
        vms[member].demand = Demand::Always;
        if self.rates[member].is_limited() {
            (vms[member].tokens, vms[member].burst, vms[member].max_rate) = (0.0, 0.0, self.max_late(member));
        }
        run_fluid(&self.slots, FLOOR, &vms).swap_remove(member).by_slot
    }

    /// Whether a VM has requests at all nodes nearly always, even if too rarely to get what it is due.
    fn is_everywhere(&self, member: usize) -> bool {
        let closed = matches!(self.uses[member].load, Load::Closed(_));
        let is_busy = closed || self.due[member].service < 0.9 * self.runs[member].offered();
        is_busy && self.pieces(member) >= self.at_devices(member) + 10.0 * self.plan.cloud.nodes as f64
    }

    /// Service that a VM is due while its load is on, in normalised requests per second.
    fn rate(&self, member: usize) -> f64 {
        let part = match self.uses[member].load {
            Load::Bursty { on, off, .. } => on / (on + off),
            _ => 1.0,
        };
        self.due[member].service / self.seconds / part
    }

    /// Service that a VM with a demand above its service provably left unused on several nodes, in normalised requests: what it
    /// is due while it is always backlogged minus what it got, but at most the part for the time without a queued request at
    /// a node.
    pub fn unused(&self, member: usize) -> f64 {
        if self.plan.cloud.nodes == 1 || !(self.slow[member] || self.always_asks(member)) {
            return 0.0;
        }
        let due = if self.slow[member] { self.due_always[member].iter().sum() } else { self.due[member].service };
        let VmRun { absent, sums, .. } = self.runs[member];
        (due - sums.got).clamp(0.0, absent * due)
    }

    /// Minimum service of a VM whose requests are queued at only one of several nodes for some time, in normalised requests.
    /// `least` is the minimum otherwise.
    ///
    /// At the nodes where it has nothing queued, other VMs are served instead by weight, which counts for no reservation. So
    /// they get their full reservations at the node where it is queued too, but a node gives a reservation r at most r.
    /// Requests are placed round-robin, so each of the n nodes serves the same amount of a VM. The VM gets at least what it is
    /// due if the reservations of others are n r over all nodes. This lasts at most as long as it has nothing queued at some
    /// node, which is at most the sum over the nodes. The VMs with a reservation get what the VM loses.
    ///
    /// Example: 1000/s on two nodes, 300 reserved, equal weights that are small compared with that of the reservation: the VM
    /// gets 1000 - 2 x 300 = 400 instead of 700.
    pub fn least_at_one_node(&self, member: usize, least: f64) -> f64 {
        let nodes = self.plan.cloud.nodes as f64;
        let part = (nodes * self.runs[member].absent).min(1.0);
        let others = || (0..self.vms.len()).filter(|other| *other != member);
        let mut vms = self.vms.clone();
        others().for_each(|other| vms[other].min_rate *= nodes);
        let there = run_fluid(&self.slots, FLOOR, &vms)[member].service;
        let beyond = |other: usize| (self.runs[other].sums.got - self.due[other].service).max(0.0);
        let taken: f64 = others().filter(|other| self.rates[*other].min > 0.0).map(beyond).sum();
        least - (part * (least - there)).clamp(0.0, taken)
    }

    /// Service of all VMs on several nodes above that of the model, in normalised requests. No VM misses it, whichever VM gets
    /// it; limits are checked separately.
    ///
    /// The model treats the nodes as one device, whose unused capacity is less evenly distributed: at a load of 93 % a VM
    /// leaves nothing for some time and then everything, and a VM with a limit can use little of that. Of n nodes, one may be
    /// free while the VM has requests at another.
    ///
    /// Example: 7741/s on seven nodes, Poisson arrivals of 7206/s next to a VM with a limit of 1071/s. The VM gets 506/s, and
    /// would get 415/s on one device.
    pub fn beyond_the_model(&self) -> f64 {
        if self.plan.cloud.nodes == 1 {
            return 0.0;
        }
        let got: f64 = self.runs.iter().map(|run| run.sums.got).sum();
        (got - self.due.iter().map(|due| due.service).sum::<f64>()).max(0.0)
    }

    /// Maximum number of outstanding requests of a VM.
    fn outstanding(&self, member: usize) -> u32 {
        match self.uses[member].load {
            Load::Closed(outstanding) => outstanding,
            _ => self.plan.cloud.window(),
        }
    }

    /// Maximum number of outstanding pieces of a VM. A request completes with its last piece; on average half of its pieces are
    /// outstanding until then.
    fn pieces(&self, member: usize) -> f64 {
        let mix = &self.plan.vms[self.members[member]];
        let mean = mix.iter().map(|ask| self.plan.cloud.pieces(*ask).count() as f64).sum::<f64>() / mix.len() as f64;
        f64::from(self.outstanding(member)) * (1.0 + mean) / 2.0
    }

    /// Mean number of outstanding pieces of a VM if those of a request are served concurrently with random times: the last of k
    /// exponential ones takes 1 + 1/2 + ... + 1/k times the mean. Example: 3 pieces take 1.83 times the mean.
    fn pieces_at_random(&self, member: usize) -> f64 {
        let Cloud { servers, service, .. } = self.plan.cloud;
        if !service.exponential {
            return f64::INFINITY;
        }
        let mix = &self.plan.vms[self.members[member]];
        let counts = || mix.iter().map(|ask| self.plan.cloud.pieces(*ask).count());
        let last = |pieces: usize| (1..=pieces.min(servers as usize)).map(|k| 1.0 / k as f64).sum::<f64>();
        let longest: f64 = counts().map(last).sum();
        f64::from(self.outstanding(member)) * counts().sum::<usize>() as f64 / longest
    }

    /// Mean number of pieces of a VM at the devices if it gets what it is due.
    fn at_devices(&self, member: usize) -> f64 {
        self.rate(member) * self.shapes[member].pieces * self.device_seconds(member)
    }

    /// Time of a piece of a VM at a device that is always full, including the rest of the piece in service.
    pub fn device_seconds(&self, member: usize) -> f64 {
        let Cloud { nodes, depth, servers, .. } = self.plan.cloud;
        let all: f64 = (0..self.due.len()).map(|member| self.due[member].service).sum();
        let all_pieces: f64 =
            (0..self.due.len()).map(|member| self.due[member].service * self.shapes[member].pieces).sum();
        let waits = f64::from(depth - servers) * all / all_pieces.max(1e-9) + self.largest_piece();
        (waits + f64::from(servers) * self.shapes[member].piece) * nodes as f64 / self.run.capacity
    }

    /// Minimum and maximum service that a VM is due, in normalised requests.
    ///
    /// The available part of the burst at the start depends on the previous phase, and what a limit allows depends on when the
    /// device has free slots. For the minimum this VM gets as little as its limit may allow, and the others get all of theirs;
    /// for the maximum it is the other way round.
    pub fn range(&self, member: usize) -> (f64, f64) {
        let mut range = (self.due[member].service, self.due[member].service);
        let slow = self.slow.contains(&true);
        let owing = self.vms.iter().any(|vm| vm.missed > 0.0);
        let sizes = [(0.0, 0.0), (0.0, DEBT), (DEBT, 0.0), (DEBT, DEBT)];
        let some = |owed| sizes.map(|(own, others)| (Some(Memory { own, others }), owed));
        let memories = || [(None, false)].into_iter().chain(some(false)).chain(some(true));
        let limited = (0..self.vms.len()).any(|other| other != member && self.rates[other].is_limited());
        let all = [false, true].into_iter().flat_map(|smooth| [false, true].map(|known| (smooth, known)));
        let possible = all.filter(|(smooth, known)| (slow || !smooth) && (limited || !known));
        for ((smooth, known), (memory, owed)) in possible.flat_map(|one| memories().map(move |memory| (one, memory))) {
            if owed && !owing {
                continue;
            }
            let [narrow, wide] = [true, false].map(|narrow| Case { smooth, memory, owed, narrow, known });
            let mut add = |case: Case, late: &dyn Fn(usize) -> bool| {
                let due = self.due_if(member, case, late)[member].service;
                range = (range.0.min(due), range.1.max(due));
            };
            add(narrow, &|other| other == member);
            add(wide, &|other| other != member);
        }
        // Whether a full window accepts a request depends on the instant.
        let VmRun { dropped, .. } = self.runs[member];
        let bursty = matches!(self.uses[member].load, Load::Bursty { .. });
        let lost = if bursty { dropped.min(0.1 * self.runs[member].offered()) } else { 0.0 };
        (range.0 - lost, range.1)
    }

    /// Result of the model if the limits of some VMs allow only their minimum; `own` is the checked VM.
    fn due_if(&self, own: usize, case: Case, is_late: impl Fn(usize) -> bool) -> Vec<Due> {
        let mut vms = self.vms.clone();
        for (member, vm) in vms.iter_mut().enumerate() {
            if is_late(member) && self.rates[member].is_limited() {
                (vm.tokens, vm.burst, vm.max_rate) = (0.0, 0.0, self.max_late(member));
            } else if self.rates[member].is_limited() {
                // Requests that the limit has allowed may still be queued at the device.
                vm.burst += f64::from(self.plan.cloud.depth) * self.largest_piece();
                vm.tokens = vm.burst;
            }
            if !is_late(member) {
                vm.min_rate = self.rates[member].min_of_each;
            }
            let requests = case.memory.map(|memory| if member == own { memory.own } else { memory.others });
            vm.debt_max = requests.map(|requests| requests * self.shapes[member].piece);
            if !case.owed {
                vm.missed = 0.0;
            }
            if vm.demand != Demand::Always && !self.slow[member] {
                let (less, more) = self.room(member);
                vm.backlog_max = if is_late(member) { (vm.backlog_max - less).max(0.0) } else { vm.backlog_max + more };
            }
            if !is_late(member) && self.is_silent_at_times(member) {
                let nodes = self.plan.cloud.nodes as f64;
                (vm.weight, vm.min_rate, vm.max_rate) = (vm.weight * nodes, vm.min_rate * nodes, vm.max_rate * nodes);
            }
            if case.known && member != own && self.rates[member].is_limited() {
                vm.demand = Demand::Arrivals(self.runs[member].got.clone());
                (vm.backlog, vm.backlog_max) = (0.0, f64::INFINITY);
                (vm.tokens, vm.burst) = (f64::INFINITY, f64::INFINITY);
                continue;
            }
            let got = self.runs[member].sums.got;
            if case.smooth && self.slow[member] {
                let evenly = |slot: &Slot| got * slot.seconds / self.seconds;
                let always: f64 = self.due_always[member].iter().sum();
                // On several nodes one other VM may get all the capacity that it leaves unused.
                let left_over = self.unused(member).min(LEFT_OVER * self.run.capacity * self.seconds);
                let near = got > 0.95 * always || left_over > 0.0 && got + left_over >= always - 1e-6;
                let spread = || Demand::Arrivals(self.slots.iter().map(evenly).collect());
                vm.demand = if near { Demand::Always } else { spread() };
            }
        }
        let uneven = case.memory.is_some() && self.plan.cloud.service.exponential;
        run_fluid(&self.slots(case.narrow, uneven), FLOOR, &vms)
    }

    /// Whether a VM sends no or few requests for some time although it has many queued at several nodes. Until it sends again,
    /// no node knows of the service at the others, and each serves it as if it were the only node.
    fn is_silent_at_times(&self, member: usize) -> bool {
        let outstanding = f64::from(self.outstanding(member));
        let known = match self.uses[member].load {
            Load::Bursty { .. } | Load::Off => 0.0,
            Load::Closed(_) => outstanding,
            Load::Poisson(_) | Load::Periodic(_) => outstanding / 10.0,
        };
        self.plan.cloud.nodes > 1 && (known == 0.0 || self.runs[member].backlog > known * self.mean_cost(member))
    }

    /// By how much the backlog of a VM may be smaller and larger than its mean window, in normalised requests. Requests at the
    /// device, and completed pieces of a request, count in the window but are not backlog. Sizes are random: three standard
    /// deviations of their sum.
    fn room(&self, member: usize) -> (f64, f64) {
        let Cloud { depth, .. } = self.plan.cloud;
        let mix = &self.plan.vms[self.members[member]];
        let (mean, costs) = (self.mean_cost(member), mix.iter().map(|ask| self.plan.cloud.cost(*ask)));
        let variance = costs.clone().map(|cost| (cost - mean).powi(2)).sum::<f64>() / mix.len() as f64;
        let by_chance = 3.0 * (f64::from(self.plan.cloud.window()) * variance).sqrt();
        let request = costs.fold(0.0, f64::max);
        (f64::from(depth) * self.shapes[member].piece + request + by_chance, by_chance)
    }

    /// Service that a VM that is silent at times may get before the nodes learn of each other, in normalised requests.
    pub fn unreported(&self, member: usize) -> f64 {
        if !self.is_silent_at_times(member) {
            return 0.0;
        }
        let cycles = match self.uses[member].load {
            Load::Bursty { on, off, .. } => (self.seconds / (on + off)).ceil(),
            _ => 0.0,
        };
        self.runs[member].backlog + cycles * f64::from(self.plan.cloud.window()) * self.mean_cost(member)
    }

    /// The largest piece of all VMs, in normalised requests.
    pub fn largest_piece(&self) -> f64 {
        self.shapes.iter().map(|shape| shape.piece).fold(1.0, f64::max)
    }

    /// Maximum number of pieces of a VM's request.
    pub fn pieces_of_request(&self, member: usize) -> f64 {
        let mix = &self.plan.vms[self.members[member]];
        mix.iter().map(|ask| self.plan.cloud.pieces(*ask).count() as f64).fold(1.0, f64::max)
    }

    /// Maximum number of pieces of a request, over all VMs.
    pub fn most_pieces(&self) -> f64 {
        (0..self.members.len()).map(|member| self.pieces_of_request(member)).fold(1.0, f64::max)
    }

    /// The largest request of all VMs, in normalised requests.
    fn largest_request(&self) -> f64 {
        let asks = self.members.iter().flat_map(|vm| &self.plan.vms[*vm]);
        asks.map(|ask| self.plan.cloud.cost(*ask)).fold(1.0, f64::max)
    }

    /// Minimum rate that limits allow a VM. On several nodes each has a part of the burst, and learns of service at the others
    /// with a delay. If that part lasts for less than this delay, a part of the limit is lost.
    fn max_late(&self, member: usize) -> f64 {
        let nodes = self.plan.cloud.nodes as f64;
        let mut free = self.vms.clone();
        free[member].max_rate = f64::INFINITY;
        let share = run_fluid(&self.slots, FLOOR, &free)[member].service / self.seconds;
        let open = |load: &Load| matches!(load, Load::Poisson(_) | Load::Bursty { .. });
        let random = self.plan.cloud.service.exponential || self.uses.iter().any(|used| open(&used.load));
        let batch = random.then(|| self.largest_request());
        let turns = Turns { late: self.late(member), share, batch };
        let rate = self.rates[member].max_late(self.plan, self.members[member], &self.uses[member], &turns);
        let few = self.plan.cloud.nodes > 1 && self.rates[member].seconds_of_burst(nodes) < self.device_seconds(member);
        if few { SMALL_PART * rate } else { rate }
    }

    /// Maximum time that a VM waits for a free slot after its limit allows a request, in seconds. Constant servers may run in
    /// step and free no slot while the largest piece is served; random servers free them one by one. Then one piece of each
    /// other VM with a limit or a reservation may be first, and reservations that become due until then.
    fn late(&self, member: usize) -> f64 {
        let Cloud { nodes, capacity, servers, service, .. } = self.plan.cloud;
        let largest = self.largest_piece();
        let step = if service.exponential { 1.0 } else { f64::from(servers) };
        let others = || (0..self.shapes.len()).filter(|other| *other != member);
        let timed = |other: &usize| self.rates[*other].is_limited() || self.rates[*other].min > 0.0;
        let pieces: f64 = others().filter(timed).map(|other| self.shapes[other].piece).sum();
        let minimums: f64 =
            others().map(|other| self.rates[other].min.min(self.due[other].service / self.seconds)).sum();
        let left = (1.0 - minimums / capacity).max(FLOOR);
        (step * largest + pieces) * nodes as f64 / capacity / left
    }
}
