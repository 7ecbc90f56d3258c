//! Queues of the NICs: which may send, which wait for credits, and which are below their minimum.

use std::time::Duration;

use sluice_sched::policy::Policy;
use sluice_sched::request::{Completion, Request, RequestId, Wait};
use sluice_sched::request_arena::{Arena, Fifo};
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceClass, OwnerState, Scheduler, Scope, State};
use sluice_sched::standing::{Balance, Standing};
use sluice_sched::time::Instant;
use sluice_sched::tournament::Tournament;
use sluice_sched::units::Weight;

use super::super::netback::credits::{Credits, Window};
use super::minimum::Minimum;
use super::rounds::Rounds;
use super::tags::Tags;
use super::turns::{ORDINARY, Sent, Turns, URGENT};
use super::{DESCRIPTOR, Params, Prioritize, TurnLength};

/// A virtual NIC.
#[derive(Debug)]
// rule: wrr.state
pub(super) struct Vif {
    pub(super) fifo: Fifo,
    pub(super) credits: Credits,
    pub(super) minimum: Minimum,
    /// In hundredths.
    pub(super) weight: u64,
    pub(super) last_activity: Instant,
    /// Whether its rate has throttled its head.
    pub(super) held: bool,
}

/// Result of asking a class.
enum Step {
    Packet(Request),
    /// The turn is held for a NIC until this instant.
    Hold(Instant),
    Nothing,
}

#[derive(Debug)]
pub struct Wrr {
    pub(super) params: Params,
    pub(super) window: Window,
    pub(super) arena: Arena,
    pub(super) vifs: Vec<Option<Vif>>,
    pub(super) turns: Box<dyn Turns>,
    /// NICs that wait for credits, by the time when they get some.
    pub(super) timers: Tournament,
    /// NICs that are not below their minimum, by the time when they will be.
    pub(super) below: Tournament,
    in_flight: u64,
}

impl Wrr {
    /// Without NICs.
    #[must_use]
    pub fn new(params: &Params) -> Self {
        Wrr {
            params: params.clone(),
            window: Window::new(params.interval, params.tick),
            arena: Arena::new(),
            vifs: Vec::new(),
            turns: match params.rounds {
                TurnLength::Tags => Box::new(Tags::new(params)),
                TurnLength::Published => Box::new(Rounds::new(params)),
            },
            timers: Tournament::default(),
            below: Tournament::default(),
            in_flight: 0,
        }
    }

    fn vif(&self, owner: u32) -> &Vif {
        self.vifs[owner as usize].as_ref().expect("the gate adds an owner before it uses it")
    }

    pub(super) fn vif_mut(&mut self, owner: u32) -> &mut Vif {
        self.vifs[owner as usize].as_mut().expect("the gate adds an owner before it uses it")
    }

    pub(super) fn weight(&self, policy: &Policy) -> u64 {
        match self.params.prioritize {
            Prioritize::On => policy.effective_weight().unwrap_or(Weight::MIN).hundredths(),
            Prioritize::Off => Weight::DEFAULT.hundredths(),
        }
    }

    pub(super) fn head(&self, owner: u32) -> Option<RequestId> {
        self.arena.front(&self.vif(owner).fifo).map(|head| head.id)
    }

    /// Inserts a NIC that may send into the ordinary class, and sets the timer for its minimum.
    pub(super) fn ready(&mut self, now: Instant, owner: u32) {
        if let Some(head) = self.head(owner).filter(|_| !self.vif(owner).credits.is_armed()) {
            self.turns.join(ORDINARY, owner, head);
            self.watch(now, owner);
        }
    }

    /// Sets the time from which a NIC is below its minimum.
    // rule: wrr.min-rate
    pub(super) fn watch(&mut self, now: Instant, owner: u32) {
        let urgent = self.turns.is_in(URGENT, owner);
        let vif = self.vif_mut(owner);
        let from = match vif.fifo.is_empty() || vif.credits.is_armed() || urgent {
            true => None,
            false => vif.minimum.below_from(now),
        };
        match from {
            Some(from) => self.below.set(owner, from.as_nanos(), RequestId(0)),
            None => self.below.remove(owner),
        }
    }

    /// Handles NICs whose window has ended, and NICs that have fallen below their minimum.
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
            match (self.vif_mut(owner).minimum.is_below(now), self.head(owner)) {
                (true, Some(head)) => self.turns.join(URGENT, owner, head),
                _ => self.watch(now, owner),
            }
        }
    }

    /// Asks the NICs of a class one after the other until one sends.
    // rule: wrr.round, wrr.bound
    fn serve(&mut self, now: Instant, class: usize) -> Step {
        let mut passed = 0;
        while let Some(owner) = self.turns.first(class) {
            let Some(head) = self.arena.front(&self.vif(owner).fifo).copied() else {
                match self.hold(now, class, owner) {
                    Some(until) => return Step::Hold(until),
                    None => continue,
                }
            };
            let served = class == URGENT && !self.vif_mut(owner).minimum.is_below(now);
            if self.vif(owner).credits.is_armed() || served {
                self.turns.leave(class, owner);
                self.watch(now, owner);
                continue;
            }
            let Wrr { arena, vifs, turns, .. } = self;
            let length = |owner: u32| {
                let vif = vifs[owner as usize].as_ref().expect("a NIC in a class is known");
                arena.front(&vif.fifo).map(|head| head.length)
            };
            if turns.grants(class, owner, &mut passed, &length)
                && let Some(request) = self.send(now, class, &head)
            {
                return Step::Packet(request);
            }
        }
        Step::Nothing
    }

    /// Handles the first NIC of a class without packets: it forfeits its turn, or its turn is held while it is active.
    /// Returns until when, if so.
    // rule: wrr.hold, wrr.active, wrr.inactive, wrr.empty-forfeits
    fn hold(&mut self, now: Instant, class: usize, owner: u32) -> Option<Instant> {
        let active_until = self.vif(owner).last_activity + self.params.delay;
        if class == URGENT || !self.params.hold || now > active_until {
            self.turns.leave(class, owner);
            return None;
        }
        self.turns.may_hold(owner).then(|| active_until + Duration::from_nanos(1))
    }

    /// Sends the head if its credits cover it; otherwise its NIC has no turns until they do.
    // rule: wrr.skipped, wrr.paper-constant
    fn send(&mut self, now: Instant, class: usize, head: &Request) -> Option<Request> {
        let (window, owner) = (self.window, head.owner.0);
        let vif = self.vif_mut(owner);
        if let Err(due) = vif.credits.poll(now, u64::from(head.length), &window) {
            vif.held = true;
            self.timers.set(owner, due.as_nanos(), head.id);
            self.below.remove(owner);
            self.turns.held_back(class, owner);
            return None;
        }
        vif.last_activity = now;
        vif.minimum.sent(now, u64::from(head.length));
        let allowance = vif.minimum.allowance();
        let wait = if std::mem::take(&mut vif.held) { Wait::OwnLimit } else { head.wait };
        let vif = self.vifs[owner as usize].as_mut().expect("it sends");
        self.arena.pop(&mut vif.fifo);
        let next = self.arena.front(&vif.fifo).map(|next| next.id);
        self.turns.sent(class, owner, &Sent { length: head.length, next, allowance });
        if next.is_none() {
            self.turns.emptied(class, owner);
        }
        self.watch(now, owner);
        Some(Request { wait, ..*head })
    }

    fn note_idle(&mut self) {
        if self.in_flight == 0 && self.arena.is_empty() {
            self.turns.idle();
        }
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
        self.arena.grow(&grown)
    }

    // rule: wrr.back-pressure
    // The gate asks only while the device has room, and its depth is at most the device's queue.
    fn dispatch(&mut self, now: Instant) -> Decision {
        self.timers(now);
        if self.arena.is_empty() {
            return Decision::Idle;
        }
        let mut wake = None;
        // rule: wrr.min-rate
        for class in [URGENT, ORDINARY] {
            match self.serve(now, class) {
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
        Decision::WaitUntil(wake.expect("a NIC that may not send waits for credits or a turn"))
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        self.note_idle();
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        change.policy().map_or(Ok(()), |policy| DESCRIPTOR.check_units(policy, DeviceClass::Network))?;
        match change {
            Change::AddOwner { owner, policy } => self.add(now, owner, &policy),
            Change::SetOwner { owner, policy } => self.set(now, owner.0, &policy),
            Change::RemoveOwner { owner } => self.remove(owner),
            Change::Device { .. }
            | Change::AddVolume { .. }
            | Change::SetVolume { .. }
            | Change::RemoveVolume { .. } => {}
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let owner = scope.owner();
        let Some(vif) = self.vifs.get_mut(owner.index()).and_then(Option::as_mut) else { return };
        self.arena.remove_if(&mut vif.fifo, removed, |request| scope.contains(request));
        // The packet that it waited for may be gone.
        vif.credits.disarm();
        vif.held = false;
        self.timers.remove(owner.0);
        self.turns.head_changed(owner.0, self.head(owner.0));
        self.ready(now, owner.0);
        self.watch(now, owner.0);
        self.note_idle();
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

    fn standing(&self, now: Instant, scope: Scope) -> Standing {
        let mut standing = Standing::default();
        if let Scope::Owner(owner) = scope
            && let Some(Some(vif)) = self.vifs.get(owner.index())
        {
            standing.limits[0].limit = Balance { cost: None, bytes: vif.credits.left(now, &self.window) };
            let owed = Balance { cost: None, bytes: vif.minimum.owed(now) };
            standing.owed = if vif.fifo.is_empty() { owed.at_most_0() } else { owed };
        }
        standing
    }

    fn resume(&mut self, now: Instant, scope: Scope, standing: &Standing) {
        let Scope::Owner(owner) = scope else { return };
        let Some(Some(vif)) = self.vifs.get_mut(owner.index()) else { return };
        let head = self.arena.front(&vif.fifo).map_or(0, |head| u64::from(head.length));
        vif.credits.resume(now, standing.limits[0].limit.bytes, head, &self.window);
        vif.minimum.resume(now, standing.owed.bytes);
        self.timers.remove(owner.0);
        self.ready(now, owner.0);
        self.watch(now, owner.0);
    }
}
