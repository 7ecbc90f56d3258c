//! SFQ(D): start-time fair queueing with up to D requests outstanding.
//!
//! Idea: every VM has a clock that its service advances, more slowly the larger its weight. The VM with the smallest
//! clock is served next. A VM that was idle starts at the clock of the others: it has saved nothing and owes nothing.
//!
//! Rules: a request's start tag is the larger of virtual time and its VM's last finish tag. Its finish tag is
//! cost/weight later. The smallest start tag is dispatched, ties by arrival, and virtual time becomes that tag. At most
//! D requests are outstanding. When nothing is queued or outstanding, all clocks restart.
//!
//! The queued requests of a VM follow each other without a gap: while it has any, its last finish tag is not before
//! virtual time. So one tag per VM is enough, that of its head, which advances by the head's cost at dispatch. After a
//! change of weight, the distance from virtual time is converted, so that a queued head has the tag of the new weight.
//!
//! Parameters: see [`Params`].
//!
//! Example: weights 100 and 300, both always backlogged, every cost 1: of four consecutive requests one is of the first
//! VM and three are of the second, however long the device takes for them.
//!
//! Deviations: none. `class = "background"` is a weight of 0.01.
//!
//! Source: \[sfq\] P. Goyal, H. Vin, H. Cheng: Start-time Fair Queuing, SIGCOMM 1996; W. Jin, J. Chase, J. Kaur:
//! Interposed Proportional Sharing for a Storage Service Utility, SIGMETRICS 2004, section 3.2. The baseline of
//! \[mclock\] 5.

// Consequences that tests assert:
// rule: sfqd.bound-dispatched, sfqd.bound-completed, sfqd.bound-share, sfqd.dilutes, sfqd.queues-behind

use serde::Deserialize;

use sluice_sched::cost::Cost;
use sluice_sched::guarantees::{Guarantees, Order, Shares, Waits};
use sluice_sched::params::{self, ParamError, ParamTable, Parameter, Range};
use sluice_sched::policy::{Field, Policy};
use sluice_sched::request::{Completion, OwnerId, Request};
use sluice_sched::request_arena::{Arena, Fifo};
use sluice_sched::scheduler::{
    Advice, Change, ChangeError, Decision, Descriptor, DeviceInfo, OwnerState, Scheduler, Scope, State,
};
use sluice_sched::tag::{ShareTag, Spacing};
use sluice_sched::time::Instant;
use sluice_sched::tournament::Tournament;

/// Virtual time at which it is rebased: far above one request of the largest cost at the smallest weight, 1.7 * 10^16.
const VIRTUAL_MAX: ShareTag = 1 << 62;
/// The furthest that a tag is ahead: one request of the largest cost at the smallest weight.
const AHEAD_MAX: ShareTag = 1 << 54;

/// Cost of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Charge {
    /// Its size, in normalised requests.
    Size,
    /// 1 per request, as in the comparison of \[mclock\] 5.
    Request,
}

/// The parameters in `[device.NAME.sfqd]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// D, in requests; 0 is the device's depth.
    pub depth: u32,
    /// Cost of a request.
    pub charge: Charge,
}

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "sfqd",
    summary: "shares by weight only: start-time fair queueing with D requests in flight (SIGMETRICS 2004)",
    idea: "Every VM has a tag in virtual time that advances with the service that it gets; the larger the weight, the \
           slower. The VM with the smallest tag is served next, and at most D requests are in flight. The service \
           dispatched for two backlogged VMs, each divided by its weight, never differs by more than one request of \
           each. There are no reservations: the rate of a VM falls as VMs are added, and a VM that rarely submits \
           waits behind the D requests of others.",
    when: "When VMs share a device by weight and no VM needs a guaranteed rate or latency. A small D reduces latency; \
           a large D keeps the device busy.",
    source: "P. Goyal, H. Vin, H. Cheng: Start-time Fair Queuing, SIGCOMM 1996; W. Jin, J. Chase, J. Kaur: Interposed \
             Proportional Sharing for a Storage Service Utility, SIGMETRICS 2004",
    enforces: &[
        (
            Field::Weight,
            "the speed of its tag: the device is shared in proportion; \"none\" means the smallest weight, 0.01",
        ),
        (Field::Class, "background: the smallest weight, 0.01"),
    ],
    guarantees,
    advice: Advice { rank_for_several: 2, ..Advice::BASE },
    parameters: &[
        Parameter {
            name: "depth",
            kind: "requests",
            range: Range::Number(0, 65_536),
            default: "0",
            help: "D, the maximum number of requests in flight at the device; 0 means the device's depth",
        },
        Parameter {
            name: "charge",
            kind: "word",
            range: Range::Words(&["size", "request"]),
            default: "\"size\"",
            help: "Cost of a request: size in normalised requests, or 1 for each request",
        },
    ],
    build,
    ..Descriptor::BASE
};

fn guarantees(_facts: &DeviceInfo, table: &ParamTable) -> Guarantees {
    let Ok(Params { depth, charge }) = params::read(DESCRIPTOR.parameters, table) else { return Guarantees::BASE };
    let shares = Shares { batch: 1, by_request: charge == Charge::Request, with_credit: false };
    Guarantees { order: Order::Volume, waits: Waits::InFlight(depth), shares: Some(shares), ..Guarantees::BASE }
}

fn build(info: &DeviceInfo, table: &ParamTable) -> Result<Box<dyn Scheduler>, ParamError> {
    let params: Params = params::read(DESCRIPTOR.parameters, table)?;
    Ok(Box::new(Sfqd::new(info, &params)))
}

/// One flow.
#[derive(Debug)]
struct Owner {
    fifo: Fifo,
    /// The start tag of its head; while nothing is queued, the finish tag of its last request.
    start: ShareTag,
    /// Virtual time per cost.
    spacing: Spacing,
    /// The run that `start` belongs to. A run ends when nothing is queued or outstanding.
    generation: u32,
}

/// The scheduler.
#[derive(Debug)]
pub struct Sfqd {
    params: Params,
    depth: u64,
    arena: Arena,
    owners: Vec<Option<Owner>>,
    run_queue: Tournament,
    virtual_time: ShareTag,
    generation: u32,
    in_flight: u64,
}

fn spacing(policy: &Policy) -> Spacing {
    Spacing::of_weight(policy.effective_weight().or(Some(sluice_sched::units::Weight::MIN)))
}

impl Sfqd {
    /// Makes a scheduler for a device.
    #[must_use]
    pub fn new(info: &DeviceInfo, params: &Params) -> Self {
        let mut sfqd = Sfqd {
            params: params.clone(),
            depth: 0,
            arena: Arena::new(),
            owners: Vec::new(),
            run_queue: Tournament::default(),
            virtual_time: 0,
            generation: 0,
            in_flight: 0,
        };
        sfqd.set_depth(info.depth);
        sfqd
    }

    fn set_depth(&mut self, device: u32) {
        let stated = Some(self.params.depth).filter(|depth| *depth > 0);
        self.depth = u64::from(stated.unwrap_or(device).max(1));
    }

    fn owner_mut(&mut self, owner: OwnerId) -> &mut Owner {
        self.owners[owner.index()].as_mut().expect("the gate adds an owner before it uses it")
    }

    /// Inserts an owner into the run queue by the tag of its head, or removes it.
    fn enqueue(&mut self, owner: OwnerId) {
        let Some(state) = &self.owners[owner.index()] else { return };
        match self.arena.front(&state.fifo) {
            Some(head) => self.run_queue.set(owner.0, state.start, head.id),
            None => self.run_queue.remove(owner.0),
        }
    }

    // rule: sfqd.reset
    fn reset_if_idle(&mut self) {
        if self.in_flight == 0 && self.arena.is_empty() {
            self.virtual_time = 0;
            self.generation = self.generation.wrapping_add(1);
        }
    }

    // rule: sfqd.integers
    fn rebase(&mut self) {
        let by = self.virtual_time;
        self.virtual_time = 0;
        self.owners.iter_mut().flatten().for_each(|owner| owner.start = owner.start.saturating_sub(by));
        self.run_queue.lower(by);
    }

    fn set_policy(&mut self, owner: OwnerId, policy: &Policy) {
        let (virtual_time, generation) = (self.virtual_time, self.generation);
        let state = self.owner_mut(owner);
        if state.generation != generation {
            (state.generation, state.start) = (generation, 0);
        }
        let (old, new) = (state.spacing, spacing(policy));
        // rule: sfqd.weight-change
        // The distance ahead stays the same amount of service, whether or not a head is queued.
        let ahead = state.start.saturating_sub(virtual_time);
        state.start = virtual_time.saturating_add(old.convert(ahead, new).min(AHEAD_MAX));
        state.spacing = new;
        self.enqueue(owner);
    }
}

impl Scheduler for Sfqd {
    fn insert(&mut self, _now: Instant, request: Request) {
        let (virtual_time, generation) = (self.virtual_time, self.generation);
        let state = self.owners[request.owner.index()].as_mut().expect("the gate adds an owner before it uses it");
        let wakes = state.fifo.is_empty();
        self.arena.push(&mut state.fifo, request);
        if wakes {
            if state.generation != generation {
                (state.generation, state.start) = (generation, 0);
            }
            // rule: sfqd.tags, sfqd.idle-flow
            // [sfq] eq. (4): S = max(v, F of the flow's previous request), regardless of how long ago that was.
            state.start = state.start.max(virtual_time);
            self.run_queue.set(request.owner.0, state.start, request.id);
        }
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        self.arena.grow(&grown)
    }

    fn dispatch(&mut self, _now: Instant) -> Decision {
        let Some((_, _, first)) = self.run_queue.peek() else { return Decision::Idle };
        // rule: sfqd.depth, sfqd.work-conserving
        if self.in_flight >= self.depth {
            return Decision::WaitCompletion;
        }
        // rule: sfqd.dispatch
        let owner = OwnerId(first);
        let state = self.owners[owner.index()].as_mut().expect("a queued owner is known");
        let request = self.arena.pop(&mut state.fifo).expect("a queued owner has a request");
        debug_assert!(state.start >= self.virtual_time, "the smallest tag never decreases");
        self.virtual_time = state.start;
        // rule: sfqd.cost
        let cost = if self.params.charge == Charge::Request { Cost::ONE } else { request.cost };
        // [sfq] eq. (5): F = S + cost/weight, from which the next request starts.
        state.start = state.start.saturating_add(state.spacing.of(u64::from(cost.raw())));
        self.enqueue(owner);
        self.in_flight += 1;
        if self.virtual_time > VIRTUAL_MAX {
            self.rebase();
        }
        Decision::Dispatch(request)
    }

    // rule: sfqd.complete
    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        self.reset_if_idle();
    }

    fn configure(&mut self, _now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, policy } => {
                if owner.index() >= self.owners.len() {
                    self.owners.resize_with(owner.index() + 1, || None);
                }
                let (spacing, start, generation) = (spacing(&policy), self.virtual_time, self.generation);
                self.owners[owner.index()] = Some(Owner { fifo: Fifo::default(), start, spacing, generation });
            }
            Change::SetOwner { owner, policy } => self.set_policy(owner, &policy),
            Change::RemoveOwner { owner } => {
                self.run_queue.remove(owner.0);
                self.owners[owner.index()] = None;
            }
            Change::Device { depth, .. } => self.set_depth(depth),
            Change::AddVolume { .. } | Change::SetVolume { .. } | Change::RemoveVolume { .. } => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let Some(state) = self.owners.get_mut(scope.owner().index()).and_then(Option::as_mut) else { return };
        self.arena.remove_if(&mut state.fifo, removed, |request| scope.contains(request));
        self.enqueue(scope.owner());
        self.reset_if_idle();
    }

    fn inspect(&self, _now: Instant) -> State {
        let owners = self.owners.iter().enumerate().filter_map(|(index, owner)| {
            let owner = owner.as_ref()?;
            let share_tag = Some(if owner.generation == self.generation { owner.start } else { 0 });
            let state = OwnerState { queued: owner.fifo.len() as u64, share_tag, ..OwnerState::default() };
            Some((index as u32, state))
        });
        State {
            queued: self.arena.len() as u64,
            in_flight: self.in_flight,
            virtual_time: Some(self.virtual_time),
            owners: owners.collect(),
        }
    }
}
