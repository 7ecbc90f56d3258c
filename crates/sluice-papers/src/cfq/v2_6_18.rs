//! The variant of Linux 2.6.18: lists by level, up to `quantum` requests at a time.

use core::time::Duration;
use std::collections::VecDeque;

use crate::cfq::Params;
use crate::cfq::core::{Core, nanos};
use crate::cfq::service_trees::ServiceTrees;
use crate::cfq::stream::{Slice, StreamId};
use sluice_sched::policy::PriorityClass;
use sluice_sched::request::{Completion, Request};
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceInfo, Scheduler, Scope, State};
use sluice_sched::time::Instant;

const LEVELS: u32 = 8;
/// Trees 0 to 7 are those of the levels.
const CURRENT: u32 = 8;
const BUSY: u32 = 9;
const IDLE: u32 = 10;

// rule: cfq.a-lists, cfq.baseline, cfq.baseline-priorities
#[derive(Debug)]
pub(super) struct V2618 {
    core: Core,
    trees: ServiceTrees,
    /// The next level to serve, and the last one of the current pass.
    level: u32,
    up_to: u32,
    /// When a stream was last served, as an increasing number; 0 is never.
    served: Vec<u64>,
    turns: u64,
    /// Requests of the current batch that the driver has not got yet, in order of offsets from the head.
    sent: VecDeque<Request>,
    last_other_end: Option<Instant>,
}

enum Choice {
    Serve(StreamId),
    Wait,
    Nothing,
}

impl V2618 {
    pub(super) fn new(params: Params, info: &DeviceInfo) -> V2618 {
        V2618 {
            core: Core::new(params, info),
            trees: ServiceTrees::default(),
            level: 0,
            up_to: 0,
            served: Vec::new(),
            turns: 0,
            sent: VecDeque::new(),
            last_other_end: None,
        }
    }

    fn shown(&self, now: Instant) -> Instant {
        self.core.ticks.shown(now)
    }

    fn served(&self, id: StreamId) -> u64 {
        self.served.get(id as usize).copied().unwrap_or(0)
    }

    /// Inserts a stream with requests into its tree, ordered by its last service, the oldest first.
    // rule: cfq.a-placement
    fn enter_tree(&mut self, id: StreamId, preempted: bool) {
        self.trees.leave(&mut self.core, id);
        let stream = self.core.stream(id);
        let tree = match stream.priority.class {
            PriorityClass::RealTime => CURRENT,
            PriorityClass::Idle => IDLE,
            PriorityClass::BestEffort if stream.in_flight > 0 => BUSY,
            PriorityClass::BestEffort => u32::from(stream.priority.level),
        };
        let key = match (tree, preempted, self.trees.last_key(tree)) {
            (BUSY, _, last) => last.unwrap_or(0),
            // Just before the last one.
            (_, true, Some(last)) => last - 1,
            _ => 2 * i128::from(self.served(id)),
        };
        self.trees.enter_as(&mut self.core, tree, id, 0, key);
    }

    /// Moves the streams of the next level that has some into the tree that is served.
    // rule: cfq.a-levels
    fn splice(&mut self) -> bool {
        // A whole pass over all levels has 36 steps; then the next one starts with level 0.
        for _ in 0..=36 {
            let level = self.level;
            self.level += 1;
            if self.level > self.up_to {
                self.level = 0;
                self.up_to = (self.up_to + 1) % LEVELS;
            }
            if self.trees.count(level) > 0 {
                while let Some(id) = self.trees.first(level) {
                    let key = self.trees.first_key(level).expect("a tree that is not empty has a first stream");
                    self.trees.leave(&mut self.core, id);
                    self.trees.enter_as(&mut self.core, CURRENT, id, 0, key);
                }
                return true;
            }
        }
        false
    }

    /// When streams of class idle may be served.
    // rule: cfq.idle-grace, cfq.idle-class
    fn grace_end(&self) -> Option<Instant> {
        let grace = self.core.params.idle_class_delay / 2;
        self.last_other_end.map(|end| end + grace)
    }

    // rule: cfq.a-rt-starves
    fn reselect(&mut self, now: Instant) -> Choice {
        if self.trees.count(CURRENT) == 0 {
            self.splice();
        }
        let next = self.trees.first(CURRENT).or_else(|| self.trees.first(BUSY));
        let next = next.or_else(|| {
            let idle = self.trees.first(IDLE)?;
            self.grace_end().is_none_or(|over| now >= over).then_some(idle)
        });
        let Some(id) = next else {
            return if self.trees.count(IDLE) > 0 { Choice::Wait } else { Choice::Nothing };
        };
        self.activate(id, now);
        Choice::Serve(id)
    }

    fn activate(&mut self, id: StreamId, now: Instant) {
        self.trees.leave(&mut self.core, id);
        self.core.idle_until = None;
        self.core.stream_mut(id).slice = Slice { turn: now, ..Slice::default() };
        self.core.active = Some(id);
    }

    /// Ends the turn of the active stream. Only a preempted stream keeps the rest of its slice.
    // rule: cfq.a-preempted-slice, cfq.a-overrun
    fn expire(&mut self, now: Instant, preempted: bool) {
        let Some(id) = self.core.active.take() else { return };
        self.core.idle_until = None;
        self.turns += 1;
        let index = id as usize;
        if self.served.len() <= index {
            self.served.resize(index + 1, 0);
        }
        self.served[index] = self.turns;
        let stream = self.core.stream_mut(id);
        let left = stream.slice.end.map_or(0, |end| end.nanos_since(now));
        stream.resid = if preempted { i64::try_from(left).unwrap_or(i64::MAX) } else { 0 };
        stream.slice.must_dispatch = false;
        stream.slice.awaits &= preempted;
        if !self.core.stream(id).requests.is_empty() {
            self.enter_tree(id, preempted);
        }
        self.core.release_if_unused(id);
    }

    // rule: cfq.a-select
    fn select(&mut self, now: Instant) -> Choice {
        let Some(active) = self.core.active else { return self.reselect(now) };
        let stream = self.core.stream(active);
        let over = stream.slice.end.is_some_and(|end| now > end) && !stream.slice.must_dispatch;
        if !over {
            if !stream.requests.is_empty() {
                return Choice::Serve(active);
            }
            if self.core.idle_until.is_some() || stream.in_flight > 0 || self.arm_idling(active, now) {
                return Choice::Wait;
            }
        }
        self.expire(now, false);
        self.reselect(now)
    }

    fn arm_idling(&mut self, id: StreamId, now: Instant) -> bool {
        let stream = self.core.stream(id);
        let idle_max = self.core.idle_max(id);
        if !stream.is_sync() || !stream.window || stream.owner_left || idle_max == 0 {
            return false;
        }
        let slice = &mut self.core.stream_mut(id).slice;
        (slice.awaits, slice.must_dispatch) = (true, true);
        self.core.idle_until = Some(now + Duration::from_nanos(idle_max));
        true
    }

    fn idling_ended(&mut self, now: Instant) {
        if self.core.idle_until.is_none_or(|until| now < until) {
            return;
        }
        self.core.idle_until = None;
        let Some(active) = self.core.active else { return };
        let stream = self.core.stream(active);
        let over = stream.slice.end.is_some_and(|end| now > end);
        if over || stream.requests.is_empty() && self.core.queued > 0 {
            self.expire(now, false);
        }
    }

    /// Takes a batch of a stream: up to `quantum` requests, sorted from the head.
    // rule: cfq.a-batch, cfq.a-slice-starts, cfq.a-no-window, cfq.weak-rounds
    fn send(&mut self, id: StreamId, now: Instant) {
        let head = self.core.head;
        let quantum = if self.core.stream(id).is_idle_class() { 1 } else { self.core.params.quantum() };
        if self.core.stream(id).slice.end.is_none() {
            let kept = u64::try_from(std::mem::take(&mut self.core.stream_mut(id).resid)).unwrap_or(0);
            let length = if kept > 0 { kept } else { self.core.base_slice(id) };
            self.core.stream_mut(id).slice.end = Some(now + Duration::from_nanos(length));
        }
        for _ in 0..quantum {
            if self.core.stream(id).requests.is_empty() {
                break;
            }
            let request = self.core.take(id, now);
            let behind = |other: &Request| other.offset.wrapping_sub(head) <= request.offset.wrapping_sub(head);
            let enter_tree = self.sent.partition_point(behind);
            self.sent.insert(enter_tree, request);
        }
        self.core.listed = self.sent.len() as u32;
        let stream = self.core.stream_mut(id);
        stream.slice.must_dispatch = false;
        let (sent, level) = (stream.slice.sent, stream.priority.level);
        let count_used = !stream.is_sync() && sent >= self.core.async_requests(level);
        let stream = self.core.stream(id);
        if count_used || stream.is_idle_class() || !stream.window {
            self.expire(now, false);
        }
    }

    // rule: cfq.a-idle-window
    fn update_window(&mut self, id: StreamId) {
        let stream = self.core.stream(id);
        let idle = nanos(self.core.params.slice_idle);
        let window = if idle == 0 || self.core.hw_tag && self.core.seeky(id) {
            false
        } else if stream.think.is_valid() {
            stream.think.mean() <= idle
        } else {
            stream.window
        };
        self.core.stream_mut(id).window = window;
    }

    // rule: cfq.a-preempt
    fn preempts(&self, id: StreamId) -> bool {
        let Some(active) = self.core.active else { return false };
        let (new, old) = (self.core.stream(id), self.core.stream(active));
        if old.is_idle_class() {
            return !new.is_idle_class();
        }
        let kept = u64::try_from(new.resid).unwrap_or(0);
        new.slice.awaits && kept > 0 && kept >= nanos(self.core.params.slice_idle) && new.is_sync() && !old.is_sync()
    }

    fn arrived(&mut self, id: StreamId, request: &Request, now: Instant) {
        let active = self.core.active;
        let awaiting = active.filter(|active| self.core.stream(*active).slice.awaits);
        if active == Some(id) {
            if awaiting.is_some() {
                self.core.idle_until = None;
                self.core.stream_mut(id).slice.awaits = false;
            }
            return;
        }
        let own = awaiting.and_then(|active| self.core.stream(active).owner).is_some_and(|o| o.0 == request.owner);
        if own && !self.core.stream(id).is_sync() {
            // An async request shows that the owner does not continue to read.
            self.expire(now, false);
        } else if self.preempts(id) {
            self.expire(now, true);
            let kept = self.core.stream(id).resid;
            self.activate(id, now);
            self.core.stream_mut(id).resid = kept;
        }
    }
}

impl Scheduler for V2618 {
    fn insert(&mut self, now: Instant, request: Request) {
        let now = self.shown(now);
        self.idling_ended(now);
        let id = self.core.receive(request, now);
        self.update_window(id);
        if self.core.stream(id).tree.is_none() && self.core.active != Some(id) {
            self.enter_tree(id, false);
        }
        self.arrived(id, &request, now);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        self.core.grow(grown).is_some()
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        let (asked, now) = (now, self.shown(now));
        self.idling_ended(now);
        if self.sent.is_empty() {
            match self.select(now) {
                Choice::Serve(id) => self.send(id, now),
                _ if self.core.queued == 0 => return Decision::Idle,
                Choice::Nothing => unreachable!("a stream with requests is in a service tree"),
                Choice::Wait => {
                    let until = self.core.idle_until.or_else(|| {
                        // Only streams of class idle wait, for the end of their grace time.
                        self.core.active.is_none().then(|| self.grace_end()).flatten()
                    });
                    return match until.map(|until| self.core.ticks.fires(until)) {
                        Some(until) if until > asked => Decision::WaitUntil(until),
                        _ => Decision::WaitCompletion,
                    };
                }
            }
        }
        let request = self.sent.pop_front().expect("a batch has at least one request");
        self.core.head = request.end();
        self.core.listed = self.sent.len() as u32;
        Decision::Dispatch(request)
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        let now = self.shown(now);
        let Some(id) = self.core.land(&completion.request, now) else { return };
        let stream = self.core.stream(id);
        if !stream.is_idle_class() {
            self.last_other_end = Some(now);
        }
        if stream.in_flight == 0 && stream.tree == Some(BUSY) {
            self.enter_tree(id, false);
        }
        self.core.release_if_unused(id);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let now = self.shown(now);
        match change {
            Change::AddOwner { owner, policy } => self.core.add_owner(owner, policy, 0),
            Change::SetOwner { owner, policy } => {
                self.core.set_owner(owner, policy);
                let Some(known) = self.core.owners[owner.index()].clone() else { return Ok(()) };
                for (_, id) in known.streams {
                    if self.core.stream(id).tree.is_some() {
                        self.enter_tree(id, false);
                    }
                }
            }
            Change::RemoveOwner { owner } => {
                let Some(known) = self.core.owners[owner.index()].take() else { return Ok(()) };
                for (_, id) in known.streams {
                    if self.core.active == Some(id) {
                        self.expire(now, false);
                    }
                    self.trees.leave(&mut self.core, id);
                    if let Some(served) = self.served.get_mut(id as usize) {
                        *served = 0;
                    }
                    self.core.stream_mut(id).owner_left = true;
                    self.core.release_if_unused(id);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        for request in self.sent.iter().filter(|request| scope.contains(request)) {
            removed.push(*request);
            self.core.forget(request);
        }
        self.sent.retain(|request| !scope.contains(request));
        self.core.listed = self.sent.len() as u32;
        for id in self.core.streams_of(scope.owner()) {
            if self.core.cancel(id, scope, removed) {
                self.trees.leave(&mut self.core, id);
            }
        }
        removed.sort_by_key(|request| request.id);
    }

    fn inspect(&self, _now: Instant) -> State {
        let mut state = self.core.inspect();
        state.queued += self.sent.len() as u64;
        state.in_flight -= self.sent.len() as u64;
        for request in &self.sent {
            state.owners.entry(request.owner.0).or_default().queued += 1;
        }
        state
    }
}
