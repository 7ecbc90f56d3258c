//! One phase of a run in the words of the fluid model: who asks how much, and what each VM is due at least and at most.

use super::check::{Before, FLOOR, TOLERANCE};
use super::model::{CATCH_UP_MAX, Demand, Due, FluidVm, Slot, run as run_fluid};
use super::plan::{Cloud, Load, Plan, Use};
use super::run::{PhaseRun, VmRun};
use super::shape::{Rates, Shape, Turns};

/// Requests of the largest size that a share's debt is capped at: what a reservation took beyond it is forgotten.
const DEBT: f64 = 16.0;

/// Part of its limit that a VM gets at least where its part of the burst at each node is small.
///
/// Observed, not derived: the least seen was 245 of 261, with a burst of 30 over 8 nodes. What follows from the mechanism is much
/// less. A limiter that is full loses the time for which its VM then waits for a turn, up to the time at the device: of 3.6
/// requests for each of 8 nodes that lie 0.16 s away nothing follows but 3.6 / (3.6 / 261 + 0.16) = 20/s.
const SMALL_PART: f64 = 0.9;

/// Part of its lower bound that a VM with few requests outstanding gets at least. Observed, not derived: waiting times at random
/// are longer than the mean times that the bound sums.
const FEW: f64 = 0.95;

/// Requests that a VM needs at each node to have one there nearly always, in mean queues; see [`PhaseCheck::can_reach`]. Observed,
/// not derived.
const SELDOM_EMPTY: f64 = 8.0;

/// Part of the capacity of several nodes that a VM without a request at a node may leave to one other VM. Observed, not derived.
const LEFT_OVER: f64 = 0.05;

/// A variant of the model.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// What closed VMs got that do not always ask is spread evenly over the phase; those that are close to what they would get
    /// if they did are taken to do so.
    smooth: bool,
    /// A reservation that takes more than the weight's share, while the device is slow or others ask much, gives some of it
    /// back later: at most as much as the cap on a share's debt, and none where it is small beside the ups and downs of the
    /// device. Else the model has no memory.
    memory: Option<Memory>,
    /// A reservation makes up for what it missed in the phase before; needs a memory.
    owed: bool,
    /// See [`PhaseCheck::slots`].
    narrow: bool,
    /// Other VMs with a limit get what they got. What their limits let through may lie anywhere between the least and the most,
    /// and what a VM gets is not largest or smallest at an end: one that is late may let a third take more. Each of them is
    /// held to its own due.
    known: bool,
}

/// How many of their largest pieces VMs give back at most of what reservations gave them beyond their weights' shares: one VM, and
/// each of the others.
///
/// The cap on debts is [`DEBT`]. It is reached in ups and downs of the device that are shorter than a slot, and what is beyond is
/// forgotten each time: on average a VM gives back anything from nothing to all of that.
#[derive(Debug, Clone, Copy)]
struct Memory {
    own: f64,
    others: f64,
}

/// One phase under check. Vectors are by place in `members`.
pub struct PhaseCheck<'a> {
    pub plan: &'a Plan,
    pub number: usize,
    pub run: &'a PhaseRun,
    pub seconds: f64,
    /// The VMs that are there.
    pub members: Vec<usize>,
    pub uses: Vec<Use>,
    pub runs: Vec<&'a VmRun>,
    pub shapes: Vec<Shape>,
    pub rates: Vec<Rates>,
    /// Limits let through what they may at most.
    vms: Vec<FluidVm>,
    slots: Vec<Slot>,
    /// What the model says of `vms`.
    pub due: Vec<Due>,
    /// Which VMs have too few requests outstanding to get what they are due, and what they would get otherwise.
    slow: Vec<bool>,
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
        for place in 0..check.members.len() {
            let vm = check.members[place];
            let left = before.tokens[vm].filter(|_| check.has_same_policy(place));
            check.vms.push(check.fluid_vm(place, left, before.missed[vm]));
        }
        check.find_demands();
        check
    }

    /// Whether a VM was there with the same policy in the phase before.
    fn has_same_policy(&self, place: usize) -> bool {
        let before = self.number.checked_sub(1).and_then(|before| self.plan.phases[before].vms[self.members[place]]);
        before.is_some_and(|before| before.policy == self.uses[place].policy)
    }

    fn fluid_vm(&self, place: usize, tokens: Option<f64>, missed: f64) -> FluidVm {
        let (Use { policy, load }, rates) = (&self.uses[place], &self.rates[place]);
        FluidVm {
            weight: policy.weight.map_or(0.0, |weight| weight.as_f64()),
            min_rate: rates.min,
            max_rate: rates.max,
            reserved: policy.is_reserved(),
            burst: rates.burst,
            tokens: tokens.unwrap_or(rates.burst),
            backlog: self.runs[place].backlog,
            backlog_max: self.runs[place].backlog.max(f64::from(self.plan.cloud.window()) * self.mean_cost(place)),
            missed: missed.min(rates.min * CATCH_UP_MAX),
            debt_max: None,
            demand: match load {
                Load::Closed(_) => Demand::Always,
                _ => Demand::Arrivals(self.runs[place].arrivals.clone()),
            },
        }
    }

    /// What the devices can do in each slot. A node that nobody asks cannot help the others; with `narrow` neither can one that
    /// VMs with a limit alone ask. With `uneven` service times have their ups and downs.
    fn slots(&self, narrow: bool, uneven: bool) -> Vec<Slot> {
        let several = self.plan.cloud.nodes > 1;
        let slots = self.run.slots.iter().map(|slot| {
            let lost = match (several, narrow) {
                (false, _) => 0.0,
                (true, false) => slot.unasked,
                (true, true) => slot.limited,
            };
            let all = self.run.capacity * slot.seconds;
            let capacity = if uneven { slot.work + (slot.idle - lost) * all } else { (1.0 - lost) * all };
            Slot { seconds: slot.seconds, capacity: capacity.max(0.0) }
        });
        slots.collect()
    }

    /// Finds out which VMs cannot get what they are due because they have few requests outstanding: their demand is what they
    /// got.
    fn find_demands(&mut self) {
        self.due_always = vec![Vec::new(); self.vms.len()];
        self.slow = vec![false; self.vms.len()];
        loop {
            self.due = run_fluid(&self.slots, FLOOR, &self.vms);
            let slow = |place: &usize| !self.slow[*place] && self.wants_more(*place) && !self.can_reach(*place);
            let slow: Vec<usize> = (0..self.vms.len()).filter(slow).collect();
            if slow.is_empty() {
                return;
            }
            for place in slow {
                self.slow[place] = true;
                self.due_always[place] = self.due[place].by_slot.clone();
                self.vms[place].demand = Demand::Arrivals(self.runs[place].got.clone());
                (self.vms[place].backlog, self.vms[place].backlog_max) = (0.0, f64::INFINITY);
            }
        }
    }

    /// Whether a VM asks for more than it is due.
    fn wants_more(&self, place: usize) -> bool {
        let bursty = matches!(self.uses[place].load, Load::Bursty { .. });
        self.always_asks(place) || bursty || self.due[place].service < 0.98 * self.runs[place].offered()
    }

    /// What a VM's reservation has missed at the end of the phase, with what it had missed before: a device with random service
    /// times may be slower than stated for a while, and a small burst of a limit may be lost meanwhile. The scheduler makes up
    /// for as much as the reservation gives in [`CATCH_UP_MAX`].
    pub fn missed(&self, place: usize) -> f64 {
        let (rate, run) = (self.rates[place].min.min(self.rates[place].max), self.runs[place]);
        let minimum = rate * self.seconds + self.vms[place].missed;
        let asked = if matches!(self.uses[place].load, Load::Closed(_)) { minimum } else { run.offered() };
        (minimum.min(asked) - run.sums.got).clamp(0.0, rate * CATCH_UP_MAX)
    }

    /// The mean cost of a VM's requests, in normalised requests.
    fn mean_cost(&self, place: usize) -> f64 {
        let mix = &self.plan.vms[self.members[place]];
        mix.iter().map(|ask| self.plan.cloud.cost(*ask)).sum::<f64>() / mix.len() as f64
    }

    pub fn always_asks(&self, place: usize) -> bool {
        self.vms[place].demand == Demand::Always
    }

    /// Whether a VM with a certain number of requests outstanding can get what it is due.
    ///
    /// By Little's law it needs as many requests as its rate times the time that one is away at the device, behind others'
    /// pieces, and half as many again for the ups and downs.
    ///
    /// On several nodes it needs more, since it has many requests at one and none at another by chance, and there others have
    /// its turn. What it misses so it can get elsewhere only from VMs that have requests everywhere and get them by their
    /// weight: a VM gives nothing back of what its reservation says, and takes no more if it is at its limit. If those get a
    /// rate of A, a VM of rate x that goes first has a queue of x / A at each node, as in a queue with a load of x / (x + A).
    /// The queue is as long on average as that of Poisson arrivals with exponential service; where X come or go at once it is
    /// (1 + X) / 2 times as long (M^X/M/1). The pieces of a request do, and where constant servers work in step so do all that the
    /// VM has at them. Example: 26 servers in step, half of them the VM's: 13 at once, and a queue 7 times as long. How many such
    /// queues it takes to be seldom empty is [`SELDOM_EMPTY`].
    fn can_reach(&self, place: usize) -> bool {
        let Cloud { nodes, depth, .. } = self.plan.cloud;
        let most = self.pieces_of_request(place);
        let (pieces, away) = (self.pieces(place), self.away(place));
        if nodes == 1 {
            let enough = f64::from(self.outstanding(place)) >= f64::from(depth) + most + 1.0;
            // What it is due changes with what others ask: its requests bound its rate at any time, not the mean.
            let reach = ((pieces - most) / 1.5 - 1.0) / (self.shapes[place].pieces * self.device_seconds(place));
            let due = self.due[place].by_slot.iter().zip(&self.slots);
            let missed: f64 = due.map(|(due, slot)| (due - reach.max(0.0) * slot.seconds).max(0.0)).sum();
            return enough || missed <= 0.5 * TOLERANCE[0] * self.due[place].service;
        }
        let others = (0..self.vms.len()).filter(|other| *other != place && self.is_everywhere(*other));
        let gives =
            |other: usize| if self.rates[other].is_limited() { 0.0 } else { self.rate(other) - self.rates[other].min };
        let spare: f64 = others.map(|other| gives(other).max(0.0)).sum();
        let clump = (1.0 + self.most_pieces().max(self.in_step(place))) / 2.0;
        let queue = clump * (1.0 + self.rate(place) / spare.max(1e-9));
        pieces >= 2.0 * away + SELDOM_EMPTY * nodes as f64 * queue + most
    }

    /// Pieces of a VM that a node completes at the same instant: constant servers that begin together end together.
    fn in_step(&self, place: usize) -> f64 {
        let Cloud { servers, service, .. } = self.plan.cloud;
        let part = self.rate(place) * self.shapes[place].pieces * self.shapes[place].piece / self.run.capacity;
        if service.exponential { 1.0 } else { f64::from(servers) * part.min(1.0) }
    }

    /// What a VM with few requests outstanding gets at least on one device, in normalised requests: in each slot it waits for as
    /// long as its due rate there says, for one piece of each other VM, and for its request at the device, with all that it
    /// has outstanding.
    pub fn least_of_few(&self, place: usize) -> Option<f64> {
        if !self.slow[place] || self.plan.cloud.nodes > 1 || !matches!(self.uses[place].load, Load::Closed(_)) {
            return None;
        }
        let others: f64 = self.shapes.iter().map(|shape| shape.piece).sum();
        let away = self.device_seconds(place) + others / self.run.capacity;
        let at_device = away * self.shapes[place].pieces / self.pieces(place).min(self.pieces_at_random(place));
        let due = self.due_always[place].iter().zip(self.due_if_late(place)).map(|(always, late)| always.min(late));
        let least = due.zip(&self.slots).map(|(due, slot)| slot.seconds / (slot.seconds / due + at_device));
        Some(FEW * least.sum::<f64>())
    }

    /// Whether other VMs have too few requests outstanding. What they leave over follows the ups and downs of what they got.
    pub fn others_are_slow(&self, place: usize) -> bool {
        (0..self.slow.len()).any(|other| other != place && self.slow[other])
    }

    /// What a VM would be due if it asked always, and its limit let through only what it must.
    fn due_if_late(&self, place: usize) -> Vec<f64> {
        let mut vms = self.vms.clone();
        vms[place].demand = Demand::Always;
        if self.rates[place].is_limited() {
            (vms[place].tokens, vms[place].burst, vms[place].max_rate) = (0.0, 0.0, self.max_late(place));
        }
        run_fluid(&self.slots, FLOOR, &vms).swap_remove(place).by_slot
    }

    /// Whether a VM has requests at all nodes nearly always, even if not often enough to get what it is due.
    fn is_everywhere(&self, place: usize) -> bool {
        let closed = matches!(self.uses[place].load, Load::Closed(_));
        let much = closed || self.due[place].service < 0.9 * self.runs[place].offered();
        much && self.pieces(place) >= self.away(place) + 10.0 * self.plan.cloud.nodes as f64
    }

    /// What a VM is due while it asks, in normalised requests per second.
    fn rate(&self, place: usize) -> f64 {
        let part = match self.uses[place].load {
            Load::Bursty { on, off, .. } => on / (on + off),
            _ => 1.0,
        };
        self.due[place].service / self.seconds / part
    }

    /// What a VM that asks for more than it gets provably left unused on several nodes, in normalised requests: of what it is due
    /// while it always asks, what it did not get, but no more than belongs to the time for which it had nothing queued at a node.
    pub fn unused(&self, place: usize) -> f64 {
        if self.plan.cloud.nodes == 1 || !(self.slow[place] || self.always_asks(place)) {
            return 0.0;
        }
        let due = if self.slow[place] { self.due_always[place].iter().sum() } else { self.due[place].service };
        let VmRun { absent, sums, .. } = self.runs[place];
        (due - sums.got).clamp(0.0, absent * due)
    }

    /// What a VM gets at least if its requests wait at one of several nodes for a time, where `least` is what it gets otherwise, in
    /// normalised requests.
    ///
    /// Others have its turns where it has nothing queued, by their weight, which counts for no reservation. So they also get their
    /// reservations in full where it waits, but no node gives a reservation r more than r. Requests are placed round-robin, so each
    /// of the n nodes serves as much of a VM as any other: the VM gets at least what it would be due if reservations of others were
    /// n r over all nodes. That lasts no longer than it has nothing queued at some node, which is at most the sum over the nodes,
    /// and what it costs the VMs with a reservation have got beyond their due.
    ///
    /// Example: 1000/s on two nodes, 300 reserved, equal weights that are small beside the reservation's: 1000 - 2 x 300 = 400 of 700.
    pub fn least_at_one_node(&self, place: usize, least: f64) -> f64 {
        let nodes = self.plan.cloud.nodes as f64;
        let part = (nodes * self.runs[place].absent).min(1.0);
        let others = || (0..self.vms.len()).filter(|other| *other != place);
        let mut vms = self.vms.clone();
        others().for_each(|other| vms[other].min_rate *= nodes);
        let there = run_fluid(&self.slots, FLOOR, &vms)[place].service;
        let beyond = |other: usize| (self.runs[other].sums.got - self.due[other].service).max(0.0);
        let taken: f64 = others().filter(|other| self.rates[*other].min > 0.0).map(beyond).sum();
        least - (part * (least - there)).clamp(0.0, taken)
    }

    /// What all VMs together get on several nodes beyond what the model gives them, in normalised requests: whoever gets it, it is
    /// missed by nobody, and limits have their own check.
    ///
    /// The model sees the nodes as one device, and there what a VM leaves over comes less evenly: at a load of 93 % it leaves nothing
    /// for a while and then everything, of which a VM with a limit can use little. Of n nodes one is free while it has requests at
    /// another.
    ///
    /// Example: 7741/s on seven nodes, Poisson arrivals of 7206/s beside a VM with a limit of 1071/s: it gets 506, and would get 415
    /// on one device.
    pub fn beyond_the_model(&self) -> f64 {
        if self.plan.cloud.nodes == 1 {
            return 0.0;
        }
        let got: f64 = self.runs.iter().map(|run| run.sums.got).sum();
        (got - self.due.iter().map(|due| due.service).sum::<f64>()).max(0.0)
    }

    /// Requests that a VM has outstanding at most.
    fn outstanding(&self, place: usize) -> u32 {
        match self.uses[place].load {
            Load::Closed(outstanding) => outstanding,
            _ => self.plan.cloud.window(),
        }
    }

    /// Pieces that a VM has outstanding at most. A request comes back when its last piece does: half of its pieces are away
    /// until then.
    fn pieces(&self, place: usize) -> f64 {
        let mix = &self.plan.vms[self.members[place]];
        let mean = mix.iter().map(|ask| self.plan.cloud.pieces(*ask).count() as f64).sum::<f64>() / mix.len() as f64;
        f64::from(self.outstanding(place)) * (1.0 + mean) / 2.0
    }

    /// Pieces that a VM has outstanding on average where those of one request are served at the same time and take random
    /// times: the last of k exponential ones takes 1 + 1/2 + ... + 1/k times the mean.
    fn pieces_at_random(&self, place: usize) -> f64 {
        let Cloud { servers, service, .. } = self.plan.cloud;
        if !service.exponential {
            return f64::INFINITY;
        }
        let mix = &self.plan.vms[self.members[place]];
        let counts = || mix.iter().map(|ask| self.plan.cloud.pieces(*ask).count());
        let last = |pieces: usize| (1..=pieces.min(servers as usize)).map(|k| 1.0 / k as f64).sum::<f64>();
        let longest: f64 = counts().map(last).sum();
        f64::from(self.outstanding(place)) * counts().sum::<usize>() as f64 / longest
    }

    /// Pieces of a VM at the devices, if it gets what it is due.
    fn away(&self, place: usize) -> f64 {
        self.rate(place) * self.shapes[place].pieces * self.device_seconds(place)
    }

    /// How long a piece of a VM is at the device, if it is always full, with the rest of a piece that it has to wait for first.
    pub fn device_seconds(&self, place: usize) -> f64 {
        let Cloud { nodes, depth, servers, .. } = self.plan.cloud;
        let all: f64 = (0..self.due.len()).map(|place| self.due[place].service).sum();
        let all_pieces: f64 =
            (0..self.due.len()).map(|place| self.due[place].service * self.shapes[place].pieces).sum();
        let waits = f64::from(depth - servers) * all / all_pieces.max(1e-9) + self.largest_piece();
        (waits + f64::from(servers) * self.shapes[place].piece) * nodes as f64 / self.run.capacity
    }

    /// What a VM is due at least and at most, in normalised requests.
    ///
    /// How much of its burst a VM may use at the start depends on what was before, and what a limit lets through depends on
    /// when the device has places. At least: this VM gets little of its limit, and the others all of theirs. At most: the
    /// other way round.
    pub fn range(&self, place: usize) -> (f64, f64) {
        let mut range = (self.due[place].service, self.due[place].service);
        let slow = self.slow.contains(&true);
        let owing = self.vms.iter().any(|vm| vm.missed > 0.0);
        let sizes = [(0.0, 0.0), (0.0, DEBT), (DEBT, 0.0), (DEBT, DEBT)];
        let some = |owed| sizes.map(|(own, others)| (Some(Memory { own, others }), owed));
        let memories = || [(None, false)].into_iter().chain(some(false)).chain(some(true));
        let limited = (0..self.vms.len()).any(|other| other != place && self.rates[other].is_limited());
        let all = [false, true].into_iter().flat_map(|smooth| [false, true].map(|known| (smooth, known)));
        let possible = all.filter(|(smooth, known)| (slow || !smooth) && (limited || !known));
        for ((smooth, known), (memory, owed)) in possible.flat_map(|one| memories().map(move |memory| (one, memory))) {
            if owed && !owing {
                continue;
            }
            let [narrow, wide] = [true, false].map(|narrow| Case { smooth, memory, owed, narrow, known });
            let mut add = |case: Case, late: &dyn Fn(usize) -> bool| {
                let due = self.due_if(place, case, late)[place].service;
                range = (range.0.min(due), range.1.max(due));
            };
            add(narrow, &|other| other == place);
            add(wide, &|other| other != place);
        }
        // Whether a full window has room for a request depends on the moment.
        let VmRun { dropped, .. } = self.runs[place];
        let bursty = matches!(self.uses[place].load, Load::Bursty { .. });
        let lost = if bursty { dropped.min(0.1 * self.runs[place].offered()) } else { 0.0 };
        (range.0 - lost, range.1)
    }

    /// The model's result if the limits of some VMs let through only what they must; `own` is the VM that is looked at.
    fn due_if(&self, own: usize, case: Case, is_late: impl Fn(usize) -> bool) -> Vec<Due> {
        let mut vms = self.vms.clone();
        for (place, vm) in vms.iter_mut().enumerate() {
            if is_late(place) && self.rates[place].is_limited() {
                (vm.tokens, vm.burst, vm.max_rate) = (0.0, 0.0, self.max_late(place));
            } else if self.rates[place].is_limited() {
                // What was let through may still wait at the device.
                vm.burst += f64::from(self.plan.cloud.depth) * self.largest_piece();
                vm.tokens = vm.burst;
            }
            if !is_late(place) {
                vm.min_rate = self.rates[place].min_of_each;
            }
            let requests = case.memory.map(|memory| if place == own { memory.own } else { memory.others });
            vm.debt_max = requests.map(|requests| requests * self.shapes[place].piece);
            if !case.owed {
                vm.missed = 0.0;
            }
            if vm.demand != Demand::Always && !self.slow[place] {
                let (less, more) = self.room(place);
                vm.backlog_max = if is_late(place) { (vm.backlog_max - less).max(0.0) } else { vm.backlog_max + more };
            }
            if !is_late(place) && self.is_silent_at_times(place) {
                let nodes = self.plan.cloud.nodes as f64;
                (vm.weight, vm.min_rate, vm.max_rate) = (vm.weight * nodes, vm.min_rate * nodes, vm.max_rate * nodes);
            }
            if case.known && place != own && self.rates[place].is_limited() {
                vm.demand = Demand::Arrivals(self.runs[place].got.clone());
                (vm.backlog, vm.backlog_max) = (0.0, f64::INFINITY);
                (vm.tokens, vm.burst) = (f64::INFINITY, f64::INFINITY);
                continue;
            }
            let got = self.runs[place].sums.got;
            if case.smooth && self.slow[place] {
                let evenly = |slot: &Slot| got * slot.seconds / self.seconds;
                let always: f64 = self.due_always[place].iter().sum();
                // What it leaves over on several nodes may go to one other VM, and nothing of it to the rest.
                let left_over = self.unused(place).min(LEFT_OVER * self.run.capacity * self.seconds);
                let near = got > 0.95 * always || left_over > 0.0 && got + left_over >= always - 1e-6;
                let spread = || Demand::Arrivals(self.slots.iter().map(evenly).collect());
                vm.demand = if near { Demand::Always } else { spread() };
            }
        }
        let uneven = case.memory.is_some() && self.plan.cloud.service.exponential;
        run_fluid(&self.slots(case.narrow, uneven), FLOOR, &vms)
    }

    /// Whether a VM with requests at several nodes sends none for a while, or few, although many wait. Until it does again no
    /// node knows what the others did for it, and each gives it all that its policy says.
    fn is_silent_at_times(&self, place: usize) -> bool {
        let outstanding = f64::from(self.outstanding(place));
        let known = match self.uses[place].load {
            Load::Bursty { .. } | Load::Off => 0.0,
            Load::Closed(_) => outstanding,
            Load::Poisson(_) | Load::Periodic(_) => outstanding / 10.0,
        };
        self.plan.cloud.nodes > 1 && (known == 0.0 || self.runs[place].backlog > known * self.mean_cost(place))
    }

    /// By how much less and more of a VM's load may wait than its window holds on average, in normalised requests. What is at
    /// the device counts in the window and waits no more, and neither does what is done of a request of several pieces. Sizes
    /// come at random: three standard deviations of their sum.
    fn room(&self, place: usize) -> (f64, f64) {
        let Cloud { depth, .. } = self.plan.cloud;
        let mix = &self.plan.vms[self.members[place]];
        let (mean, costs) = (self.mean_cost(place), mix.iter().map(|ask| self.plan.cloud.cost(*ask)));
        let variance = costs.clone().map(|cost| (cost - mean).powi(2)).sum::<f64>() / mix.len() as f64;
        let by_chance = 3.0 * (f64::from(self.plan.cloud.window()) * variance).sqrt();
        let request = costs.fold(0.0, f64::max);
        (f64::from(depth) * self.shapes[place].piece + request + by_chance, by_chance)
    }

    /// What a VM that is silent at times may get without any node's knowing of the others, in normalised requests.
    pub fn unreported(&self, place: usize) -> f64 {
        if !self.is_silent_at_times(place) {
            return 0.0;
        }
        let cycles = match self.uses[place].load {
            Load::Bursty { on, off, .. } => (self.seconds / (on + off)).ceil(),
            _ => 0.0,
        };
        self.runs[place].backlog + cycles * f64::from(self.plan.cloud.window()) * self.mean_cost(place)
    }

    /// The largest piece of all VMs, in normalised requests.
    pub fn largest_piece(&self) -> f64 {
        self.shapes.iter().map(|shape| shape.piece).fold(1.0, f64::max)
    }

    /// Pieces of a VM's request with the most.
    pub fn pieces_of_request(&self, place: usize) -> f64 {
        let mix = &self.plan.vms[self.members[place]];
        mix.iter().map(|ask| self.plan.cloud.pieces(*ask).count() as f64).fold(1.0, f64::max)
    }

    /// Pieces of the request with the most, of all VMs.
    pub fn most_pieces(&self) -> f64 {
        (0..self.members.len()).map(|place| self.pieces_of_request(place)).fold(1.0, f64::max)
    }

    /// The largest request of all VMs, in normalised requests.
    fn largest_request(&self) -> f64 {
        let asks = self.members.iter().flat_map(|vm| &self.plan.vms[*vm]);
        asks.map(|ask| self.plan.cloud.cost(*ask)).fold(1.0, f64::max)
    }

    /// What limits let a VM get at least. On several nodes each has a part of its burst, and learns what the others did with a
    /// delay: a part that is small beside this delay costs some of the limit.
    fn max_late(&self, place: usize) -> f64 {
        let nodes = self.plan.cloud.nodes as f64;
        let mut free = self.vms.clone();
        free[place].max_rate = f64::INFINITY;
        let share = run_fluid(&self.slots, FLOOR, &free)[place].service / self.seconds;
        let open = |load: &Load| matches!(load, Load::Poisson(_) | Load::Bursty { .. });
        let random = self.plan.cloud.service.exponential || self.uses.iter().any(|used| open(&used.load));
        let batch = random.then(|| self.largest_request());
        let turns = Turns { late: self.late(place), share, batch };
        let rate = self.rates[place].max_late(self.plan, self.members[place], &self.uses[place], &turns);
        let few = self.plan.cloud.nodes > 1 && self.rates[place].seconds_of_burst(nodes) < self.device_seconds(place);
        if few { SMALL_PART * rate } else { rate }
    }

    /// How long a VM may wait for a place at the device when its limit lets it pass, in seconds: constant servers may work in
    /// step and give none for as long as the largest piece takes, random ones give one after the other. Then one piece of each
    /// other VM that a limit or a reservation has just let pass may go first, and reservations that become due until then.
    fn late(&self, place: usize) -> f64 {
        let Cloud { nodes, capacity, servers, service, .. } = self.plan.cloud;
        let largest = self.largest_piece();
        let step = if service.exponential { 1.0 } else { f64::from(servers) };
        let others = || (0..self.shapes.len()).filter(|other| *other != place);
        let timed = |other: &usize| self.rates[*other].is_limited() || self.rates[*other].min > 0.0;
        let pieces: f64 = others().filter(timed).map(|other| self.shapes[other].piece).sum();
        let minimums: f64 =
            others().map(|other| self.rates[other].min.min(self.due[other].service / self.seconds)).sum();
        let left = (1.0 - minimums / capacity).max(FLOOR);
        (step * largest + pieces) * nodes as f64 / capacity / left
    }
}
