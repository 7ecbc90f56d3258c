//! wrr: weighted round robin over virtual NICs, with a minimum rate, and nothing taken that cannot be sent.
//!
//! Idea: a round visits every NIC that has packets, and lets each send as much as its weight says. What makes that work is
//! that a packet is taken only when there is room for it downstream, so the queue in which packets wait is the one that
//! this scheduler orders, and none is lost on the way to the wire.
//!
//! Rules: at the beginning of its turn a NIC gets a quantum in proportion to its weight, the lightest one of those that
//! were there when the round began one packet (or one frame's bytes). It sends while the quantum and its rate credits
//! last. Who has no more packets forfeits the rest; who has no more credits leaves until its window ends, as in netback;
//! who comes has its first turn in the next round. A NIC that has sent less in its window than its minimum rate times the
//! time since the window's beginning goes before all others, in a round of its own.
//!
//! Parameters: see [`Params`].
//!
//! Example: weights 30 and 1, frames of one size, both backlogged: 30 frames of the first, one of the second, and so on;
//! of a link of 96 Mb/s they get 92.9 and 3.1. The weights are swapped: from the next turns on it is the other way round.
//!
//! Deviations: \[netback\] gives the quantum as the weight in packets. Here it is the weight over the lightest weight in the
//! round, so that weights of 3000 and 100 do not make bursts of 3000 packets; a fraction of a packet is kept for the next
//! turn. In `packets`, a minimum and a maximum rate still count bytes.
//!
//! Source: \[netback\] VII; the minimum rate is what it proposes there. In bytes: M. Shreedhar, G. Varghese: Efficient Fair
//! Queueing Using Deficit Round Robin, SIGCOMM 1995.

// What follows from the rules, and tests hold:
// rule: wrr.bound

use core::time::Duration;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::params::{self, ParamError, ParamTable, Parameter};
use crate::policy::{Field, Policy};
use crate::request::{Completion, Request, RequestId, Wait};
use crate::scheduler::{Change, ChangeError, Decision, Descriptor, Facts, Medium, OwnerState, Scheduler, Scope, State};
use crate::slots::{Arena, Fifo};
use crate::time::Instant;
use crate::tournament::Tournament;
use crate::units::{Percent, Weight};

use super::netback::credits::{Credits, Window};
use super::netback::{check_interval, check_tick};

mod members;
mod minimum;

use minimum::Minimum;

/// A quantum and a deficit are in 2^-40 of a packet or a byte: over the greatest weight, a packet is still thousands.
const FRACTION_BITS: u32 = 40;
/// The largest frame that may be stated: a segment of TCP offload.
const FRAME_MAX: u32 = 65_550;

/// Whether weights are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prioritize {
    /// By weight.
    #[default]
    On,
    /// All weights are equal.
    Off,
}

/// What a weight is a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes: deficit round robin.
    #[default]
    Bytes,
    /// Packets, whatever their size, as the paper has it.
    Packets,
}

/// The parameters in `[device.NAME.wrr]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
// rule: wrr.parameters
pub struct Params {
    /// Whether weights are looked at.
    pub prioritize: Prioritize,
    /// What a weight is a share of.
    pub unit: Unit,
    /// How long after its last packet a NIC is active.
    #[serde(with = "params::duration")]
    pub delay: Duration,
    /// Whether the turn of a NIC that is active and has no packets is held for it.
    pub hold: bool,
    /// Quantum of the lightest NIC where bytes are counted.
    pub frame: u32,
    /// The length of a window of rate credits and minimum rates.
    #[serde(with = "params::duration")]
    pub interval: Duration,
    /// The tick of the clock of rate credits; 0 is exact time.
    #[serde(with = "params::duration")]
    pub tick: Duration,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            prioritize: Prioritize::On,
            unit: Unit::Bytes,
            delay: Duration::from_millis(10),
            hold: false,
            frame: 1514,
            interval: Duration::from_millis(50),
            tick: Duration::ZERO,
        }
    }
}

/// What is known of it.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "wrr",
    summary: "shares of a link by weight, with minimum and maximum rates: weighted round robin",
    idea: "A round lets every virtual NIC that has packets send as much as its weight says, counted in bytes or, as the \
           paper has it, in packets. A packet is taken only when there is room for it downstream, so none is lost \
           before the wire. A NIC below its minimum rate goes before all others; maximum rates are credits per window, \
           as in netback. Weights act from the next turn on.",
    when: "To share a network interface by weight, when bursts of a heavy VM's whole turn do not matter to the others.",
    source: "B. Adamczyk, A. Chydzinski: On the Performance Isolation Across Virtual Network Adapters in Xen, CLOUD \
             COMPUTING 2011; M. Shreedhar, G. Varghese: Efficient Fair Queueing Using Deficit Round Robin, SIGCOMM 1995",
    enforces: &[
        (Field::Reservation, "bytes per second: below it in its window a VM goes before all others"),
        (Field::Limit, "bytes per second: credits per window; a limit in requests is not looked at"),
        (Field::Weight, "its quantum in a round; \"none\" is the smallest, 0.01"),
        (Field::Class, "background: the smallest weight, 0.01"),
    ],
    depends: &[(Field::Weight, "prioritize", &["on"]), (Field::Class, "prioritize", &["on"])],
    volumes: false,
    volumes_depend: None,
    medium: Medium::Network,
    merging: false,
    weight_floor: |_| Percent::ZERO,
    parameters: &[
        Parameter {
            name: "prioritize",
            kind: "\"on\" or \"off\"",
            default: "\"on\"",
            help: "Whether weights are looked at; off is round robin",
        },
        Parameter {
            name: "unit",
            kind: "\"bytes\" or \"packets\"",
            default: "\"bytes\"",
            help: "What a weight is a share of",
        },
        Parameter {
            name: "delay",
            kind: "time with unit",
            default: "\"10ms\"",
            help: "How long after its last packet a NIC is active; at most 1s",
        },
        Parameter {
            name: "hold",
            kind: "true or false",
            default: "false",
            help: "Whether the turn of an active NIC without packets is held for it, so that its share is lost to all",
        },
        Parameter {
            name: "frame",
            kind: "bytes, 64 to 65550",
            default: "1514",
            help: "Where bytes are counted: what the lightest NIC in the round may send in its turn",
        },
        Parameter {
            name: "interval",
            kind: "time with unit",
            default: "\"50ms\"",
            help: "Length of a window of rate credits and of minimum rates; 1ms to 10s",
        },
        Parameter {
            name: "tick",
            kind: "time with unit",
            default: "\"0s\"",
            help: "Tick of the clock that rate credits are measured by; 0s is exact time",
        },
    ],
    build,
};

fn build(_facts: &Facts, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::parse(table)?;
    check_interval(params.interval)?;
    check_tick(params.tick)?;
    params::within("frame", params.frame, 64, FRAME_MAX, "bytes")?;
    if params.delay > Duration::from_secs(1) {
        return Err(ParamError(format!("delay is {:?}; it must be at most 1s", params.delay)));
    }
    Ok(Box::new(Wrr::new(&params)))
}

/// Before all others, or with them.
const URGENT: usize = 0;
const ORDINARY: usize = 1;

/// A NIC's place in one of the two rounds.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    listed: bool,
    /// Number of the round in which it last had a turn, or joined.
    round: u64,
    deficit: u128,
}

/// One virtual NIC.
#[derive(Debug)]
// rule: wrr.state
struct Vif {
    fifo: Fifo,
    credits: Credits,
    minimum: Minimum,
    /// In hundredths.
    weight: u64,
    places: [Place; 2],
    last_activity: Instant,
    /// Its head has been held back by its rate.
    held: bool,
}

/// Those that may send, in the order in which they became so.
#[derive(Debug, Default)]
struct Round {
    line: VecDeque<u32>,
    /// The turn of the first has begun.
    open: bool,
    /// How many have begun.
    number: u64,
    /// What a turn is worth for each hundredth of a weight.
    per_weight: u64,
    /// All in the line, by weight.
    weights: Tournament,
}

/// What a round comes to.
enum Step {
    Packet(Request),
    /// The turn is held for a NIC until then.
    Hold(Instant),
    Nothing,
}

/// The scheduler.
#[derive(Debug)]
pub struct Wrr {
    params: Params,
    window: Window,
    arena: Arena,
    vifs: Vec<Option<Vif>>,
    rounds: [Round; 2],
    /// NICs that wait for credits, by when they have some.
    timers: Tournament,
    /// NICs that are not below their minimum, by when they will be.
    below: Tournament,
    in_flight: u64,
}

impl Wrr {
    /// Without NICs yet.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        Wrr {
            params: params.clone(),
            window: Window::new(params.interval, params.tick),
            arena: Arena::new(),
            vifs: Vec::new(),
            rounds: Default::default(),
            timers: Tournament::default(),
            below: Tournament::default(),
            in_flight: 0,
        }
    }

    fn vif(&self, owner: u32) -> &Vif {
        self.vifs[owner as usize].as_ref().expect("the gate adds an owner before it uses it")
    }

    fn vif_mut(&mut self, owner: u32) -> &mut Vif {
        self.vifs[owner as usize].as_mut().expect("the gate adds an owner before it uses it")
    }

    fn weight(&self, policy: &Policy) -> u64 {
        match self.params.prioritize {
            Prioritize::On => policy.effective_weight().unwrap_or(Weight::MIN).hundredths(),
            Prioritize::Off => Weight::DEFAULT.hundredths(),
        }
    }

    /// A packet, or the bytes of a frame.
    fn one(&self) -> u64 {
        match self.params.unit {
            Unit::Bytes => u64::from(self.params.frame) << FRACTION_BITS,
            Unit::Packets => 1 << FRACTION_BITS,
        }
    }

    /// Sets what turns are worth from now on, by the lightest in the round.
    // Rounded up, so that the lightest may send its packet, and once for all of them: each rounded by itself, shares would
    // be off by as much in every round, without end.
    fn measure(&mut self, round: usize) {
        let lightest = self.rounds[round].weights.peek().map_or(1, |(weight, _, _)| weight.max(1));
        self.rounds[round].per_weight = self.one().div_ceil(lightest);
    }

    /// What a turn is worth, by the weight that holds now.
    // rule: wrr.weights-at-turn, wrr.round
    fn quantum(&self, round: usize, owner: u32) -> u128 {
        u128::from(self.rounds[round].per_weight) * u128::from(self.vif(owner).weight)
    }

    fn cost(&self, request: &Request) -> u128 {
        match self.params.unit {
            Unit::Bytes => u128::from(request.length) << FRACTION_BITS,
            Unit::Packets => 1 << FRACTION_BITS,
        }
    }

    /// Puts a NIC at the end of a round, if it is not in it: its first turn is in the next one.
    fn join(&mut self, round: usize, owner: u32) {
        let vif = self.vifs[owner as usize].as_mut().expect("who joins is known");
        if !vif.places[round].listed {
            vif.places[round] = Place { listed: true, round: self.rounds[round].number, deficit: 0 };
            self.rounds[round].line.push_back(owner);
            self.rounds[round].weights.set(owner, vif.weight, RequestId(0));
        }
    }

    /// The first of a round leaves it, with its turn and its deficit.
    // rule: wrr.empty-forfeits, wrr.inactive
    fn leave(&mut self, round: usize) {
        let Some(owner) = self.rounds[round].line.pop_front() else { return };
        self.rounds[round].open = false;
        self.rounds[round].weights.remove(owner);
        self.vif_mut(owner).places[round] = Place::default();
    }

    /// A NIC may send again, or has something to send: it joins the round, and a time is set for its minimum.
    fn ready(&mut self, now: Instant, owner: u32) {
        let vif = self.vif(owner);
        if !vif.fifo.is_empty() && !vif.credits.is_armed() {
            self.join(ORDINARY, owner);
            self.watch(now, owner);
        }
    }

    /// Sets the time from which a NIC is below its minimum.
    // rule: wrr.min-rate
    fn watch(&mut self, now: Instant, owner: u32) {
        let vif = self.vifs[owner as usize].as_mut().expect("who is watched is known");
        let from = match vif.fifo.is_empty() || vif.credits.is_armed() || vif.places[URGENT].listed {
            true => None,
            false => vif.minimum.below_from(now),
        };
        match from {
            Some(from) => self.below.set(owner, from.as_nanos(), RequestId(0)),
            None => self.below.remove(owner),
        }
    }

    /// Everybody whose window has ended, and everybody who has fallen below a minimum.
    fn timers(&mut self, now: Instant) {
        while let Some((due, _, owner)) = self.timers.peek()
            && due <= now.as_nanos()
        {
            self.timers.remove(owner);
            let fifo = self.vif(owner).fifo;
            let head = self.arena.front(&fifo).map_or(0, |head| u64::from(head.length));
            self.vif_mut(owner).credits.fire(head);
            self.ready(now, owner);
        }
        while let Some((from, _, owner)) = self.below.peek()
            && from <= now.as_nanos()
        {
            self.below.remove(owner);
            match self.vif_mut(owner).minimum.is_below(now) {
                true => self.join(URGENT, owner),
                false => self.watch(now, owner),
            }
        }
    }

    /// Goes round until somebody sends.
    // rule: wrr.round, wrr.bound
    fn go_round(&mut self, now: Instant, round: usize) -> Step {
        let mut fruitless = 0;
        while let Some(owner) = self.rounds[round].line.front().copied() {
            let Some(head) = self.arena.front(&self.vif(owner).fifo).copied() else {
                match self.hold(now, round, owner) {
                    Some(until) => return Step::Hold(until),
                    None => continue,
                }
            };
            let served = round == URGENT && !self.vif_mut(owner).minimum.is_below(now);
            if self.vif(owner).credits.is_armed() || served {
                self.leave(round);
                self.watch(now, owner);
                continue;
            }
            self.open(round, owner);
            if self.cost(&head) > self.vif(owner).places[round].deficit {
                self.pass_on(round);
                fruitless += 1;
                if fruitless >= self.rounds[round].line.len() {
                    self.skip_rounds(round);
                    fruitless = 0;
                }
            } else if let Some(request) = self.send(now, round, &head) {
                return Step::Packet(request);
            }
        }
        Step::Nothing
    }

    /// The turn of the first begins, if it has not; and a round, if all who were there have had their turns.
    // All turns of a round are measured by one weight. Would each be measured by the lightest NIC that is there when it
    // begins, a light one that comes and goes would give long turns to one and short ones to another.
    // rule: wrr.round, wrr.bound
    fn open(&mut self, round: usize, owner: u32) {
        if std::mem::replace(&mut self.rounds[round].open, true) {
            return;
        }
        if self.vif(owner).places[round].round == self.rounds[round].number {
            self.rounds[round].number += 1;
            self.measure(round);
        }
        let (number, quantum) = (self.rounds[round].number, self.quantum(round, owner));
        let place = &mut self.vif_mut(owner).places[round];
        place.round = number;
        place.deficit = place.deficit.saturating_add(quantum);
    }

    fn pass_on(&mut self, round: usize) {
        self.rounds[round].open = false;
        self.rounds[round].line.rotate_left(1);
    }

    /// The first has no packets: it forfeits its turn, or its turn is held while it is active. Until when, if so.
    // rule: wrr.hold, wrr.active, wrr.inactive, wrr.empty-forfeits
    fn hold(&mut self, now: Instant, round: usize, owner: u32) -> Option<Instant> {
        let active_until = self.vif(owner).last_activity + self.params.delay;
        if round == URGENT || !self.params.hold || now > active_until {
            self.leave(round);
            return None;
        }
        self.open(round, owner);
        if self.vif(owner).places[round].deficit < u128::from(self.one()) {
            self.pass_on(round);
            return None;
        }
        Some(active_until + Duration::from_nanos(1))
    }

    /// A whole round went by and everybody's packet was too large: the rounds until the first one fits are given at once.
    fn skip_rounds(&mut self, round: usize) {
        let line = std::mem::take(&mut self.rounds[round].line);
        let missing = |owner: &u32| {
            let vif = self.vif(*owner);
            let cost = self.arena.front(&vif.fifo).map(|head| self.cost(head))?;
            Some(cost.saturating_sub(vif.places[round].deficit).div_ceil(self.quantum(round, *owner).max(1)))
        };
        // The last of them comes by itself.
        let rounds = line.iter().filter_map(missing).min().unwrap_or(0).saturating_sub(1);
        for owner in &line {
            let more = self.quantum(round, *owner).saturating_mul(rounds);
            let place = &mut self.vif_mut(*owner).places[round];
            place.deficit = place.deficit.saturating_add(more);
        }
        self.rounds[round].line = line;
    }

    /// The head goes, if its credits let it; else its NIC leaves the rounds.
    // rule: wrr.skipped, wrr.paper-constant
    fn send(&mut self, now: Instant, round: usize, head: &Request) -> Option<Request> {
        let (cost, window, owner) = (self.cost(head), self.window, head.owner.0);
        let vif = self.vif_mut(owner);
        if let Err(due) = vif.credits.poll(now, u64::from(head.length), &window) {
            vif.held = true;
            vif.places.iter_mut().for_each(|place| place.deficit = 0);
            self.timers.set(owner, due.as_nanos(), head.id);
            self.below.remove(owner);
            self.leave(round);
            return None;
        }
        vif.places[round].deficit -= cost;
        vif.last_activity = now;
        vif.minimum.sent(now, u64::from(head.length));
        let wait = if std::mem::take(&mut vif.held) { Wait::OwnLimit } else { head.wait };
        let vif = self.vifs[owner as usize].as_mut().expect("it sends");
        self.arena.pop(&mut vif.fifo);
        if vif.fifo.is_empty() && !self.params.hold {
            vif.places[ORDINARY].deficit = 0;
            self.leave(round);
        }
        self.watch(now, owner);
        Some(Request { wait, ..*head })
    }
}

impl Scheduler for Wrr {
    // rule: wrr.active
    fn insert(&mut self, now: Instant, request: Request) {
        let owner = request.owner.0;
        let vif = self.vifs[owner as usize].as_mut().expect("the gate adds an owner before it uses it");
        if vif.fifo.is_empty() {
            vif.minimum.begin(now);
        }
        vif.last_activity = now;
        self.arena.push(&mut vif.fifo, request);
        self.ready(now, owner);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        let fifo = self.vif(grown.owner.0).fifo;
        self.arena.find_mut(&fifo, grown.id).map(|queued| *queued = grown).is_some()
    }

    // rule: wrr.back-pressure
    // The gate asks only while the device has room, and its depth is no larger than what the device queues.
    fn dispatch(&mut self, now: Instant) -> Decision {
        self.timers(now);
        if self.arena.is_empty() {
            return Decision::Idle;
        }
        let mut wake = None;
        // rule: wrr.min-rate
        for round in [URGENT, ORDINARY] {
            match self.go_round(now, round) {
                Step::Packet(request) => {
                    self.in_flight += 1;
                    return Decision::Dispatch(request);
                }
                Step::Hold(until) => wake = Some(until),
                Step::Nothing => {}
            }
        }
        let due = self.timers.peek().map(|(due, _, _)| Instant::from_nanos(due));
        let below = self.below.peek().map(|(from, _, _)| Instant::from_nanos(from));
        let wake = [wake, due, below].into_iter().flatten().min();
        Decision::WaitUntil(wake.expect("who has packets and may not send waits for credits, or for another's turn"))
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => self.add(now, owner, &policy),
            Change::SetOwner { owner, policy } => self.set(now, owner.0, &policy),
            Change::RemoveOwner { owner } => self.remove(owner),
            Change::Depth(_) | Change::AddVolume { .. } | Change::SetVolume { .. } | Change::RemoveVolume { .. } => {}
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let owner = scope.owner();
        let Some(vif) = self.vifs.get_mut(owner.index()).and_then(Option::as_mut) else { return };
        self.arena.remove_if(&mut vif.fifo, removed, |request| scope.contains(request));
        // What it waited for may be gone.
        vif.credits.disarm();
        vif.held = false;
        self.timers.remove(owner.0);
        self.ready(now, owner.0);
        self.watch(now, owner.0);
    }

    fn inspect(&self, _now: Instant) -> State {
        let owners = self.vifs.iter().enumerate().filter_map(|(index, vif)| {
            let vif = vif.as_ref()?;
            let limit_passes_ns = vif.credits.due().map(Instant::as_nanos);
            Some((index as u32, OwnerState { queued: vif.fifo.len() as u64, limit_passes_ns, ..OwnerState::default() }))
        });
        let owners = owners.collect();
        State { queued: self.arena.len() as u64, in_flight: self.in_flight, virtual_time: None, owners }
    }
}
