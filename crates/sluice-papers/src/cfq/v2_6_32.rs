//! The variants of Linux 2.6.32 and later: one active stream at a time, its slice, and what ends it.

use core::time::Duration;

use crate::cfq::cooperators::{Cooperators, is_close};
use crate::cfq::core::{Core, nanos};
use crate::cfq::groups::{Groups, ROOT};
use crate::cfq::service_trees::ServiceTrees;
use crate::cfq::stream::{Slice, StreamId};
use crate::cfq::{Mode, Params};
use crate::elevator::is_sync;
use sluice_sched::policy::PriorityClass;
use sluice_sched::request::{Completion, OwnerId, Request};
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceInfo, Scheduler, Scope, State};
use sluice_sched::time::Instant;

/// A request up to this size might be merged with the next one.
const SMALL: u32 = 4096;
/// The only service tree, without groups.
const ONLY_TREE: u32 = 0;

#[derive(Debug)]
pub(crate) struct V2632 {
    pub(super) core: Core,
    pub(super) trees: ServiceTrees,
    cooperators: Cooperators,
    pub(super) groups: Option<Groups>,
    /// Streams in service trees.
    pub(super) busy: u32,
    pub(super) busy_sync: u32,
}

/// Rights of the stream that was chosen.
enum Choice {
    Serve(StreamId),
    Wait,
    Nothing,
}

impl V2632 {
    pub(crate) fn new(params: Params, info: &DeviceInfo) -> V2632 {
        let groups = params.mode.has_groups().then(|| Groups::new(&params));
        V2632 {
            core: Core::new(params, info),
            trees: ServiceTrees::default(),
            cooperators: Cooperators::default(),
            groups,
            busy: 0,
            busy_sync: 0,
        }
    }

    /// Sets the factor of an owner's slices, which divides its charges; 65,536 is 1.
    // rule: mcfq.t4
    pub(crate) fn set_multiplier(&mut self, owner: OwnerId, multiplier: u64) {
        let known = self.core.owners.get(owner.index()).and_then(Option::as_ref).map(|owner| owner.group);
        if let (Some(groups), Some(group)) = (&mut self.groups, known) {
            groups.set_multiplier(group, multiplier);
        }
    }

    pub(super) fn shown(&self, now: Instant) -> Instant {
        self.core.ticks.shown(now)
    }

    /// Number of other streams in service trees.
    fn others(&self, id: StreamId) -> u32 {
        self.busy - u32::from(self.core.stream(id).tree.is_some())
    }

    // Service trees.

    /// Inserts a stream into its service tree, or moves it there.
    fn enter_tree(&mut self, id: StreamId, now: Instant, in_front: bool) {
        let V2632 { core, trees, groups, .. } = self;
        let tree = match groups {
            None => ONLY_TREE,
            Some(groups) => groups.tree_of(core, id),
        };
        let was = trees.leave(core, id);
        if !was {
            self.busy += 1;
            self.busy_sync += u32::from(core.stream(id).is_sync());
            if let Some(groups) = groups {
                groups.came(core, id);
            }
        }
        let others = match groups {
            None => self.busy - 1,
            Some(groups) => groups.streams(core.stream(id).group) - 1,
        };
        let key = match in_front {
            true => trees.key_in_front(core, tree, now),
            false => trees.key_behind(core, tree, id, now, others),
        };
        trees.enter(core, tree, id, key);
    }

    fn step_out(&mut self, id: StreamId) {
        if self.trees.leave(&mut self.core, id) {
            self.busy -= 1;
            self.busy_sync -= u32::from(self.core.stream(id).is_sync());
            if let Some(groups) = &mut self.groups {
                groups.went(&self.core, id);
            }
        }
    }

    // The active stream.

    // rule: cfq.select-first
    fn activate(&mut self, id: StreamId, now: Instant) {
        self.core.idle_until = None;
        self.core.stream_mut(id).slice = Slice { turn: now, ..Slice::default() };
        self.core.active = Some(id);
    }

    /// Ends the active stream's turn. With `keep`, the rest of its slice or its overrun is settled in its next turn.
    // rule: cfq.complete-expire, cfq.c-resid, cfq.round-robin, cfq.time-fair, cfq.weak-seeky
    pub(super) fn expire(&mut self, now: Instant, keep: bool) {
        let Some(id) = self.core.active.take() else { return };
        self.core.idle_until = None;
        let full = self.slice_length(id);
        let stream = self.core.stream_mut(id);
        if keep {
            let left = match (stream.slice.end, self.groups.is_some()) {
                (Some(end), _) => end.as_nanos() as i128 - now.as_nanos() as i128,
                (None, true) => i128::from(full),
                (None, false) => 0,
            };
            stream.resid = left.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        }
        stream.slice.awaits = false;
        stream.slice.must_dispatch = false;
        if let Some(groups) = &mut self.groups {
            groups.charge(&mut self.core, id, now);
        }
        if self.core.stream(id).requests.is_empty() {
            self.step_out(id);
        } else {
            self.enter_tree(id, now, false);
        }
        self.core.release_if_unused(id);
    }

    /// Notes that the candidate of a stream may have changed. A group has one stream for each of its volumes, and
    /// streams do not cooperate with those of other groups, so with groups none does.
    fn note_candidate(&mut self, id: StreamId) {
        if self.groups.is_none() {
            self.cooperators.update(&self.core, id);
        }
    }

    /// Current length of a stream's slice in nanoseconds.
    pub(super) fn slice_length(&self, id: StreamId) -> u64 {
        match &self.groups {
            None => self.core.base_slice(id),
            Some(groups) => groups.slice(&self.core, id),
        }
    }

    fn next_stream(&mut self, now: Instant) -> Option<StreamId> {
        match &mut self.groups {
            None => self.trees.first(ONLY_TREE),
            Some(groups) => groups.next(&self.core, &self.trees, now),
        }
    }

    fn reselect(&mut self, now: Instant) -> Choice {
        match self.next_stream(now) {
            Some(id) => {
                self.activate(id, now);
                Choice::Serve(id)
            }
            None => Choice::Nothing,
        }
    }

    /// Whether to idle for the next request of a stream without requests.
    pub(super) fn should_idle(&self, id: StreamId) -> bool {
        match &self.groups {
            None => self.core.stream(id).window,
            Some(groups) => groups.should_idle(&self.core, &self.trees, id),
        }
    }

    fn select(&mut self, now: Instant) -> Choice {
        let Some(active) = self.core.active else { return self.reselect(now) };
        let stream = self.core.stream(active);
        let used = stream.slice_used(now) && !stream.slice.must_dispatch;
        if used && self.waits_for_group(active) {
            return Choice::Wait;
        }
        if stream.slice.drawn_out && !stream.requests.is_empty() {
            self.expire(now, false);
            return self.reselect(now);
        }
        if !used {
            // rule: cfq.select-queued
            if !stream.requests.is_empty() {
                return Choice::Serve(active);
            }
            if let Some(other) = self.cooperator(active) {
                self.expire(now, false);
                self.activate(other, now);
                return Choice::Serve(other);
            }
            // rule: cfq.select-idle
            let stream = self.core.stream(active);
            if self.core.idle_until.is_some() || stream.in_flight > 0 && self.should_idle(active) {
                return Choice::Wait;
            }
        }
        if self.group_waits(active) {
            return Choice::Wait;
        }
        self.expire(now, false);
        self.reselect(now)
    }

    fn cooperator(&self, active: StreamId) -> Option<StreamId> {
        if self.groups.is_some() { None } else { self.cooperators.of(&self.core, active) }
    }

    /// Whether a group's only stream has used its slice but has requests in flight, whose completion may bring more.
    // rule: cfq.c-wait-busy
    fn waits_for_group(&self, active: StreamId) -> bool {
        let stream = self.core.stream(active);
        let Some(groups) = &self.groups else { return false };
        groups.is_only(stream.group)
            && stream.requests.is_empty()
            && stream.in_flight > 0
            && groups.should_wait_busy(&self.core, active)
    }

    // rule: cfq.c-group-idle
    fn group_waits(&self, active: StreamId) -> bool {
        let stream = self.core.stream(active);
        let Some(groups) = &self.groups else { return false };
        stream.requests.is_empty() && stream.in_flight > 0 && groups.idles_for_group(&self.core, active)
    }

    /// Whether the chosen stream may have one more request in flight.
    // rule: cfq.dispatch-drain, cfq.dispatch-limit, cfq.dispatch-async-depth
    fn may_dispatch(&self, id: StreamId, now: Instant) -> bool {
        let stream = self.core.stream(id);
        let [asyncs, syncs] = self.core.in_driver;
        if self.should_idle(id) && asyncs > 0 || !stream.is_sync() && syncs > 0 {
            return false;
        }
        let quantum = self.core.params.quantum();
        let mut limit = match self.core.mode {
            _ if stream.is_idle_class() => 1,
            Mode::Group | Mode::El6 => (quantum / 2).max(1),
            _ => quantum,
        };
        if stream.in_flight >= limit {
            let alone = self.others(id) == 0;
            if stream.is_idle_class() {
                return false;
            }
            limit = match self.core.mode {
                Mode::Group | Mode::El6 => match self.group_limit(id, now, alone) {
                    Some(limit) => limit,
                    None => return false,
                },
                _ if !alone => return false,
                _ => 4 * quantum,
            };
        }
        if !stream.is_sync() && self.core.params.low_latency {
            limit = limit.min(self.async_depth(id, now));
        }
        stream.in_flight < limit
    }

    /// A stream may send `quantum` requests early in its slice, and any number if it is alone.
    // rule: cfq.c-dispatch-limit
    fn group_limit(&self, id: StreamId, now: Instant, alone: bool) -> Option<u32> {
        let stream = self.core.stream(id);
        if alone || stream.is_sync() && self.busy_sync == 1 {
            return Some(u32::MAX);
        }
        let needed = nanos(self.core.params.slice_idle).saturating_mul(u64::from(stream.in_flight));
        let runs_out = stream.slice.end.is_none_or(|end| now + Duration::from_nanos(needed) > end);
        (!runs_out).then_some(self.core.params.quantum())
    }

    fn async_depth(&self, id: StreamId, now: Instant) -> u32 {
        let Some(last) = self.core.last_sync_end else { return u32::MAX };
        let slice = nanos(self.core.params.slice_sync).max(1);
        let depth = u32::try_from(now.nanos_since(last) / slice).unwrap_or(u32::MAX);
        if depth == 0 && self.core.stream(id).in_flight == 0 { 1 } else { depth }
    }

    fn send(&mut self, id: StreamId, now: Instant) -> Request {
        let request = self.core.take(id, now);
        let slice = &mut self.core.stream_mut(id).slice;
        (slice.must_dispatch, slice.awaits) = (false, false);
        self.core.idle_until = None;
        if self.core.stream(id).requests.is_empty() && self.groups.is_none() {
            self.step_out(id);
        }
        self.note_candidate(id);
        // rule: cfq.after-dispatch, cfq.weak-async-level
        let stream = self.core.stream(id);
        let count_used = !stream.is_sync() && stream.slice.sent >= self.core.async_requests(stream.priority.level);
        if self.others(id) > 0 && (count_used || stream.is_idle_class()) {
            self.expire(now, false);
        }
        request
    }

    // Idling.

    /// Starts to idle for the next request of the active stream, if that is worth it.
    // rule: cfq.idle-arm, cfq.idle-bound, cfq.c-ssd, cfq.weak-idling
    fn arm_idling(&mut self, id: StreamId, now: Instant) {
        let core = &self.core;
        let stream = core.stream(id);
        let queues_without_seeks = !core.rotational && core.hw_tag;
        let left = stream.slice.end.map_or(0, |end| end.nanos_since(now));
        let thinks_too_long = stream.think.is_valid() && stream.think.mean() > left;
        if queues_without_seeks || stream.owner_left || thinks_too_long || core.in_device() > 0 {
            return;
        }
        let idle = nanos(core.params.slice_idle) > 0;
        let length = match &self.groups {
            _ if idle && self.should_idle(id) => core.idle_max(id),
            Some(groups) if groups.is_only(stream.group) => nanos(core.params.group_idle),
            _ => 0,
        };
        if length > 0 {
            self.core.stream_mut(id).slice.awaits = true;
            self.core.idle_until = Some(now + Duration::from_nanos(length));
        }
    }

    // rule: cfq.idle-timer
    fn idling_ended(&mut self, now: Instant) {
        if self.core.idle_until.is_none_or(|until| now < until) {
            return;
        }
        self.core.idle_until = None;
        let Some(active) = self.core.active else { return };
        let stream = self.core.stream(active);
        if stream.slice.must_dispatch {
            return;
        }
        let others = self.others(active) > 0;
        if stream.slice_used(now) || stream.requests.is_empty() && others {
            self.expire(now, false);
        }
    }

    // rule: cfq.idle-window-start, cfq.arrive-statistics, cfq.c-seeky-window
    fn update_window(&mut self, id: StreamId) {
        let stream = self.core.stream(id);
        if !stream.is_sync() || stream.is_idle_class() {
            return;
        }
        let params = &self.core.params;
        let impatient = !params.low_latency && self.core.hw_tag && self.core.seeky(id);
        let shallow_seeker = self.core.mode.has_groups() && !stream.deep && self.core.seeky(id);
        let window = if nanos(params.slice_idle) == 0 || impatient || shallow_seeker {
            false
        } else if stream.think.is_valid() {
            stream.think.mean() <= self.core.idle_max(id)
        } else {
            stream.window
        };
        self.core.stream_mut(id).window = window;
    }

    // Preemption.

    /// Whether a stream with a new request preempts the active one.
    // rule: cfq.preempt, cfq.c-preempt
    // DEVIATION: without the test for metadata, since no request is marked as such.
    fn preempts(&self, id: StreamId, request: &Request, now: Instant) -> bool {
        let Some(active) = self.core.active else { return false };
        let (new, old) = (self.core.stream(id), self.core.stream(active));
        let real_time = |stream: &super::stream::Stream| stream.priority.class == PriorityClass::RealTime;
        let across = is_sync(request) && !old.is_sync();
        match &self.groups {
            None => {
                if old.slice_used(now) {
                    return true;
                }
                if new.is_idle_class() {
                    return false;
                }
                if old.is_idle_class() || across || real_time(new) && !real_time(old) {
                    return true;
                }
            }
            Some(groups) => {
                if new.is_idle_class() {
                    return false;
                }
                if old.is_idle_class() {
                    return true;
                }
                if real_time(old) && !real_time(new) {
                    return false;
                }
                if across {
                    return true;
                }
                if new.group != old.group {
                    return false;
                }
                let alone_in_tree =
                    groups.serves_seekers(&self.trees, &self.core, id, active) && old.requests.is_empty();
                if old.slice_used(now) || alone_in_tree || real_time(new) && !real_time(old) {
                    return true;
                }
                if old.requests.is_empty() && !self.should_idle(active) {
                    return true;
                }
            }
        }
        old.slice.awaits && is_close(&self.core, active, request.offset)
    }

    // rule: cfq.arrive-awaited
    // DEVIATION: in Linux a small request without competitors waits for the timer, so that an adjacent one can be
    // merged. The gate asks after every arrival and holds nothing back.
    fn arrived(&mut self, id: StreamId, request: &Request, now: Instant) {
        if self.core.active == Some(id) {
            if self.core.stream(id).slice.awaits {
                if request.length > SMALL || self.others(id) > 0 {
                    self.core.idle_until = None;
                    self.core.stream_mut(id).slice.awaits = false;
                }
                self.core.stream_mut(id).slice.must_dispatch = true;
            }
        } else if self.preempts(id, request, now) {
            self.expire(now, true);
            self.enter_tree(id, now, true);
            if let Some(groups) = &mut self.groups {
                groups.forget_workload();
            }
        }
    }
}

impl Scheduler for V2632 {
    fn insert(&mut self, now: Instant, request: Request) {
        let now = self.shown(now);
        self.idling_ended(now);
        let id = self.core.receive(request, now);
        self.note_candidate(id);
        self.update_window(id);
        if self.core.stream(id).tree.is_none() {
            self.enter_tree(id, now, false);
        }
        self.arrived(id, &request, now);
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        let Some(id) = self.core.grow(grown) else { return false };
        self.note_candidate(id);
        true
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        let (asked, now) = (now, self.shown(now));
        self.idling_ended(now);
        match self.select(now) {
            Choice::Serve(id) if self.may_dispatch(id, now) => Decision::Dispatch(self.send(id, now)),
            Choice::Serve(_) => Decision::WaitCompletion,
            _ if self.core.queued == 0 => Decision::Idle,
            Choice::Wait => match self.core.idle_until.map(|until| self.core.ticks.fires(until)) {
                Some(until) if until > asked => Decision::WaitUntil(until),
                _ => Decision::WaitCompletion,
            },
            Choice::Nothing => unreachable!("a stream with requests is in a service tree"),
        }
    }

    // rule: cfq.slice-starts, cfq.complete-idle
    fn complete(&mut self, now: Instant, completion: &Completion) {
        let now = self.shown(now);
        let Some(id) = self.core.land(&completion.request, now) else { return };
        if self.core.active != Some(id) {
            return self.core.release_if_unused(id);
        }
        if self.core.stream(id).slice.end.is_none() {
            let length = self.slice_length(id);
            let slice = &mut self.core.stream_mut(id).slice;
            (slice.start, slice.length, slice.end) = (now, length, Some(now + Duration::from_nanos(length)));
        }
        self.extend_for_group(id, now);
        let stream = self.core.stream(id);
        if stream.slice_used(now) || stream.is_idle_class() {
            self.expire(now, true);
        } else if stream.is_sync() && stream.requests.is_empty() && self.cooperator(id).is_none() {
            self.arm_idling(id, now);
        }
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let now = self.shown(now);
        match change {
            Change::AddOwner { owner, policy } => {
                let own = self.core.mode == Mode::Group;
                let group = self.groups.as_mut().filter(|_| own).map_or(ROOT, |groups| groups.add(&policy));
                self.core.add_owner(owner, policy, group);
            }
            Change::SetOwner { owner, policy } => {
                self.core.set_owner(owner, policy);
                let Some(known) = self.core.owners[owner.index()].clone() else { return Ok(()) };
                if let Some(groups) = self.groups.as_mut().filter(|_| known.group != ROOT) {
                    groups.set(known.group, &policy);
                }
                // Trees depend on the class, so the streams that are in one are inserted again.
                for (_, id) in known.streams {
                    self.note_candidate(id);
                    if self.core.stream(id).tree.is_some() {
                        self.enter_tree(id, now, false);
                    }
                }
            }
            Change::RemoveOwner { owner } => {
                let Some(known) = self.core.owners[owner.index()].take() else { return Ok(()) };
                known.streams.into_iter().for_each(|(_, id)| self.drop_stream(id, now));
                if let Some(groups) = self.groups.as_mut().filter(|_| known.group != ROOT) {
                    groups.remove(known.group);
                }
            }
            Change::RemoveVolume { owner, volume } if self.core.mode == Mode::Group => {
                let Some(known) = self.core.owners[owner.index()].as_mut() else { return Ok(()) };
                if let Some(place) = known.streams.iter().position(|(of, _)| *of == volume) {
                    let (_, id) = known.streams.remove(place);
                    self.drop_stream(id, now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let _ = now;
        for id in self.core.streams_of(scope.owner()) {
            let emptied = self.core.cancel(id, scope, removed);
            self.note_candidate(id);
            let stays = self.groups.is_some() && self.core.active == Some(id);
            if emptied && !stays {
                self.step_out(id);
            }
        }
        removed.sort_by_key(|request| request.id);
    }

    fn inspect(&self, _now: Instant) -> State {
        self.core.inspect()
    }
}

impl V2632 {
    fn drop_stream(&mut self, id: StreamId, now: Instant) {
        if self.core.active == Some(id) {
            self.expire(now, false);
        }
        self.step_out(id);
        self.core.stream_mut(id).owner_left = true;
        self.core.release_if_unused(id);
    }

    /// Extends the slice of a group's only stream when it is about to end, so that the group does not lose its position
    /// for lack of a request that is about to arrive.
    // rule: cfq.c-wait-busy
    fn extend_for_group(&mut self, id: StreamId, now: Instant) {
        let Some(groups) = &self.groups else { return };
        let stream = self.core.stream(id);
        let ending = stream.slice.end.is_some_and(|end| end.nanos_since(now) <= self.core.ticks.unit());
        if !ending || !stream.requests.is_empty() || !groups.should_wait_busy(&self.core, id) {
            return;
        }
        let params = &self.core.params;
        let extra = if self.should_idle(id) { params.slice_idle } else { params.group_idle };
        let slice = &mut self.core.stream_mut(id).slice;
        (slice.end, slice.drawn_out) = (Some(now + extra), true);
    }
}
