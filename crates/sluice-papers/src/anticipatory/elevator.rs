//! The elevator: dispatch and idling.

use core::time::Duration;

use crate::anticipatory::Params;
use crate::anticipatory::batches::{ASYNC, Batch, SYNC};
use crate::anticipatory::owner::{Owner, Predictor};
use crate::elevator::{Nearness, Queue, SECTOR, SortKey, Ticks, is_sync};
use sluice_sched::request::{Completion, OwnerId, Request};
use sluice_sched::scheduler::{Change, ChangeError, Decision, Scheduler, Scope, State};
use sluice_sched::time::Instant;

/// Distance in sectors up to which a request is close while nothing has been waited for.
const CLOSE: u64 = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Not idling.
    Off,
    /// The awaited owner's request is in flight.
    WaitRequest,
    /// That request has completed; the disk idles for the owner's next one.
    WaitNext,
    /// Idling has ended; the next dispatch does not idle again.
    Finished,
}

// rule: anticipatory.state
#[derive(Debug)]
pub(super) struct Anticipatory {
    ticks: Ticks,
    nearness: Nearness,
    expire: [Duration; 2],
    antic_expire: u64,
    think_max: u64,
    /// Time for which distance counts while the disk idles.
    distance_grace: u64,
    queues: [Queue; 2],
    next: [Option<SortKey>; 2],
    last_end: [u64; 2],
    /// Time of the last check for expired requests.
    last_check: [Instant; 2],
    batch: Batch,
    begun: bool,
    in_flight: u32,
    status: Status,
    /// Owner of the last dispatched request, if that was sync.
    awaited: Option<OwnerId>,
    /// Completion of that request; `None` while it is in flight.
    since: Option<Instant>,
    owners: Vec<Option<Owner>>,
    predictor: Predictor,
}

// rule: anticipatory.direction
fn direction(request: &Request) -> usize {
    if is_sync(request) { SYNC } else { ASYNC }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The history of an owner, which is empty at first.
fn history(owners: &mut Vec<Option<Owner>>, owner: OwnerId) -> &mut Owner {
    if owners.len() <= owner.index() {
        owners.resize(owner.index() + 1, None);
    }
    owners[owner.index()].get_or_insert_with(Owner::default)
}

impl Anticipatory {
    pub(super) fn new(params: &Params) -> Anticipatory {
        let ticks = Ticks::new(params.tick);
        Anticipatory {
            ticks,
            nearness: Nearness { back_max: params.back_seek_max.0, back_penalty: u64::from(params.back_seek_penalty) },
            expire: [params.write_expire, params.read_expire],
            antic_expire: nanos(params.antic_expire),
            think_max: nanos(params.think_time_max).saturating_sub(ticks.grain()),
            distance_grace: nanos(params.think_time_max.min(params.antic_expire)),
            queues: Default::default(),
            next: [None; 2],
            last_end: [0; 2],
            last_check: [Instant::ZERO; 2],
            batch: Batch::new(params, ticks.unit()),
            begun: false,
            in_flight: 0,
            status: Status::Off,
            awaited: None,
            since: None,
            owners: Vec::new(),
            predictor: Predictor::default(),
        }
    }

    fn owner(&mut self, owner: OwnerId) -> &mut Owner {
        history(&mut self.owners, owner)
    }

    fn waits(&self, direction: usize) -> bool {
        !self.queues[direction].is_empty()
    }

    /// First event: batches and checks count from here.
    fn begin(&mut self, now: Instant) {
        if !self.begun {
            self.begun = true;
            self.batch.expires = self.batch.end_from(now);
            self.last_check = [now; 2];
        }
    }

    // Anticipation.

    /// Whether a request is close to the end of the last one of its batch, by a measure that widens while the disk
    /// idles, or closer than the awaited owner's usual distance.
    // rule: anticipatory.close-distance
    fn is_close(&self, now: Instant, owner: &Owner, request: &Request) -> bool {
        let last = self.last_end[self.batch.direction];
        let waited = match (self.status, self.since) {
            (Status::Off, _) | (_, None) => 0,
            (_, Some(since)) => now.nanos_since(since),
        };
        let ticks = waited / self.ticks.unit();
        let delta = match ticks {
            0 => CLOSE,
            _ if ticks * self.ticks.unit() <= self.distance_grace => CLOSE << ticks.min(32),
            _ => return true,
        } * SECTOR;
        let window = last.saturating_sub(delta / 2)..=last.saturating_add(delta);
        if window.contains(&request.offset) {
            return true;
        }
        let usual = if owner.seek.0.is_empty() { &self.predictor.seek } else { &owner.seek };
        last.abs_diff(request.offset) / SECTOR < usual.mean()
    }

    /// Whether a request, or without one the current state, ends the idling for the last owner. May update statistics.
    // rule: anticipatory.monopoly, anticipatory.random-readers
    // rule: anticipatory.same-owner, anticipatory.timeout, anticipatory.owner-has-more, anticipatory.close-request
    // rule: anticipatory.owner-exited, anticipatory.think-time
    fn breaks(&mut self, now: Instant, awaited: OwnerId, candidate: Option<Request>) -> bool {
        if candidate.is_some_and(|candidate| candidate.owner == awaited) {
            return true;
        }
        if self.since.is_some_and(|since| now.nanos_since(since) >= self.antic_expire) {
            return true;
        }
        if self.owner(awaited).queued > 0 {
            return true;
        }
        let owner = self.owner(awaited).clone();
        if let Some(candidate) = candidate.filter(is_sync)
            && self.is_close(now, &owner, &candidate)
        {
            if owner.exited {
                self.predictor.joined();
                if owner.think.is_empty() {
                    self.predictor.exits();
                }
            }
            history(&mut self.owners, awaited).observe(now, &candidate, self.think_max, &mut self.predictor);
            return true;
        }
        if owner.exited {
            if owner.think.is_empty() {
                self.predictor.exits();
            }
            if self.predictor.doubts_the_dead() {
                return true;
            }
        }
        match owner.think.is_empty() {
            true => self.predictor.doubts_new_ones(self.antic_expire),
            false => owner.think.mean() > self.antic_expire,
        }
    }

    /// Whether to idle instead of dispatching this candidate.
    // rule: anticipatory.can-anticipate, anticipatory.sequential-readers, anticipatory.ssd-as-disk
    fn can_anticipate(&mut self, now: Instant, candidate: Option<Request>) -> bool {
        match self.awaited {
            Some(awaited) if self.status != Status::Finished => !self.breaks(now, awaited, candidate),
            _ => false,
        }
    }

    /// End of the idling.
    fn wait_ends(&self) -> Option<Instant> {
        self.since.map(|since| since + Duration::from_nanos(self.antic_expire))
    }

    // rule: anticipatory.timer, anticipatory.idle-bound
    fn run_timer(&mut self, now: Instant) {
        if self.status != Status::WaitNext || self.wait_ends().is_none_or(|end| now < end) {
            return;
        }
        self.status = Status::Finished;
        let Some(awaited) = self.awaited else { return };
        let (unknown, exited) = {
            let owner = self.owner(awaited);
            (owner.think.is_empty(), owner.exited)
        };
        if unknown {
            self.predictor.exits();
        }
        if exited {
            self.predictor.alone();
        }
    }

    // Dispatch.

    /// The oldest request of a direction, if it has expired; checked at most once per expiry time.
    // rule: anticipatory.expiry-rate, anticipatory.expiry-in-batch
    fn expired(&mut self, now: Instant, direction: usize) -> Option<SortKey> {
        if now.since(self.last_check[direction]) < self.expire[direction] {
            return None;
        }
        let queue = &self.queues[direction];
        let oldest = queue.oldest()?;
        self.last_check[direction] = now;
        (now > queue.expiry(oldest)).then_some(oldest)
    }

    /// The oldest request of the direction to be served now.
    // rule: anticipatory.switch-to-sync, anticipatory.switch-to-async, anticipatory.alternation
    fn choose_direction(&mut self, now: Instant) -> Option<SortKey> {
        let was = self.batch.direction;
        if self.waits(SYNC) && !(self.waits(ASYNC) && was == SYNC) {
            self.batch.changed |= was == ASYNC;
            self.batch.direction = SYNC;
        } else if self.waits(ASYNC) {
            if was == SYNC {
                (self.batch.changed, self.batch.new) = (true, false);
            }
            self.batch.direction = ASYNC;
            (self.batch.left, self.batch.idled) = (self.batch.writes, false);
        } else {
            return None;
        }
        self.last_check[self.batch.direction] = now;
        self.queues[self.batch.direction].oldest()
    }

    /// The request to dispatch; `None` to idle.
    // rule: anticipatory.batch-runs, anticipatory.expired-or-anticipate, anticipatory.batch-extends
    fn select(&mut self, now: Instant) -> Option<SortKey> {
        let both = self.waits(SYNC) && self.waits(ASYNC);
        let mut chosen = None;
        if !(both && self.batch.has_ended(now)) {
            chosen = self.next[self.batch.direction];
            if self.batch.direction == SYNC && self.antic_expire > 0 {
                if let Some(expired) = self.expired(now, SYNC) {
                    return self.start(now, expired);
                }
                let candidate = chosen.map(|node| *self.queues[SYNC].request(node));
                if self.can_anticipate(now, candidate) {
                    self.status = if self.since.is_some() { Status::WaitNext } else { Status::WaitRequest };
                    return None;
                }
            }
            if chosen.is_some() && self.waits(SYNC) && !self.waits(ASYNC) {
                self.batch.expires = self.batch.end_from(now);
            }
        }
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => self.choose_direction(now)?,
        };
        let chosen = self.expired(now, self.batch.direction).unwrap_or(chosen);
        self.start(now, chosen)
    }

    /// Delays the first request of a batch until the previous batch has completed at the device.
    // rule: anticipatory.drain
    fn start(&mut self, now: Instant, node: SortKey) -> Option<SortKey> {
        if self.batch.changed {
            if self.in_flight > 0 {
                return None;
            }
            match self.batch.direction {
                ASYNC => self.batch.expires = self.batch.end_from(now),
                _ => self.batch.new = true,
            }
            self.batch.changed = false;
        }
        Some(node)
    }

    // rule: anticipatory.dispatch-state, anticipatory.next-update, anticipatory.one-in-device
    fn send(&mut self, node: SortKey) -> Request {
        let direction = self.batch.direction;
        let queue = &mut self.queues[direction];
        let request = queue.remove(node);
        self.last_end[direction] = request.end();
        let (before, after) = (queue.before(node), queue.after(node).or_else(|| queue.lowest()));
        self.next[direction] = self.nearer(direction, before, after);
        self.status = Status::Off;
        self.since = None;
        if direction == SYNC {
            self.awaited = Some(request.owner);
        } else {
            self.awaited = None;
            self.batch.left = self.batch.left.saturating_sub(1);
        }
        self.in_flight += 1;
        let owner = self.owner(request.owner);
        owner.started = true;
        owner.queued = owner.queued.saturating_sub(1);
        request
    }

    fn nearer(&self, direction: usize, a: Option<SortKey>, b: Option<SortKey>) -> Option<SortKey> {
        self.nearness.nearer(self.last_end[direction], a, b)
    }
}

impl Scheduler for Anticipatory {
    // rule: anticipatory.arrive-insert, anticipatory.arrive-breaks
    fn insert(&mut self, now: Instant, request: Request) {
        let now = self.ticks.shown(now);
        self.begin(now);
        self.run_timer(now);
        let direction = direction(&request);
        let owner = history(&mut self.owners, request.owner);
        if direction == SYNC {
            owner.observe(now, &request, self.think_max, &mut self.predictor);
        }
        owner.queued += 1;
        let expiry = self.ticks.shown(request.arrival) + self.expire[direction];
        let node = self.queues[direction].insert(request, expiry);
        self.next[direction] = self.nearer(direction, self.next[direction], Some(node));
        if matches!(self.status, Status::WaitRequest | Status::WaitNext)
            && let Some(awaited) = self.awaited
            && self.breaks(now, awaited, Some(request))
        {
            self.status = Status::Finished;
        }
    }

    fn grow(&mut self, _now: Instant, grown: Request) -> bool {
        let direction = direction(&grown);
        let queue = &mut self.queues[direction];
        let Some(node) = queue.find_part(&grown) else { return false };
        let moved = queue.grow(node, grown);
        if self.next[direction] == Some(node) {
            self.next[direction] = Some(moved);
        }
        true
    }

    // rule: anticipatory.nothing-while-waiting, anticipatory.write-batch-idled, anticipatory.wait-request
    // rule: anticipatory.wait-next
    fn dispatch(&mut self, now: Instant) -> Decision {
        let (asked, now) = (now, self.ticks.shown(now));
        self.run_timer(now);
        if self.batch.direction == ASYNC && !self.waits(SYNC) && (self.batch.left == 0 || !self.waits(ASYNC)) {
            self.batch.idled = true;
        }
        if !self.waits(SYNC) && !self.waits(ASYNC) {
            return Decision::Idle;
        }
        let waiting = matches!(self.status, Status::WaitRequest | Status::WaitNext);
        let chosen = if waiting || self.batch.changed { None } else { self.select(now) };
        match (chosen, self.status, self.wait_ends()) {
            (Some(node), _, _) => Decision::Dispatch(self.send(node)),
            (None, Status::WaitNext, Some(end)) => {
                let fires = self.ticks.fires(end);
                if fires > asked { Decision::WaitUntil(fires) } else { Decision::WaitCompletion }
            }
            (None, _, _) => Decision::WaitCompletion,
        }
    }

    // rule: anticipatory.drained, anticipatory.new-batch, anticipatory.antic-start, anticipatory.owner-completed
    fn complete(&mut self, now: Instant, completion: &Completion) {
        let now = self.ticks.shown(now);
        let request = &completion.request;
        if self.batch.changed && self.in_flight == 1 {
            self.batch.expires = self.batch.end_from(now);
            (self.batch.changed, self.batch.new) = (false, self.batch.direction == SYNC);
        }
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.batch.new && direction(request) == self.batch.direction {
            self.batch.adapt(now);
            self.batch.expires = self.batch.end_from(now);
            self.batch.new = false;
        }
        if self.awaited == Some(request.owner) {
            self.since = Some(now);
            if self.status == Status::WaitRequest {
                self.status = Status::WaitNext;
            }
        }
        let Some(Some(owner)) = self.owners.get_mut(request.owner.index()) else { return };
        if is_sync(request) {
            (owner.completed, owner.last_end_time) = (true, now);
        }
        if owner.exited {
            self.forget_if_done(request.owner);
        }
    }

    fn configure(&mut self, _now: Instant, change: Change) -> Result<(), ChangeError> {
        match change {
            Change::AddOwner { owner, .. } => {
                *self.owner(owner) = Owner::default();
                if self.awaited == Some(owner) {
                    self.awaited = None;
                }
            }
            Change::RemoveOwner { owner } => {
                self.owner(owner).exited = true;
                self.forget_if_done(owner);
            }
            _ => {}
        }
        Ok(())
    }

    fn cancel(&mut self, _now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let from = removed.len();
        for direction in [ASYNC, SYNC] {
            self.queues[direction].cancel(scope, removed);
            let [before, after] = self.queues[direction].around(self.last_end[direction]);
            let after = after.or_else(|| self.queues[direction].lowest());
            self.next[direction] = self.nearer(direction, before, after);
        }
        let count = (removed.len() - from) as u32;
        let owner = self.owner(scope.owner());
        owner.queued = owner.queued.saturating_sub(count);
        removed.sort_by_key(|request| request.id);
    }

    fn inspect(&self, _now: Instant) -> State {
        let mut state = State { in_flight: u64::from(self.in_flight), ..State::default() };
        for request in self.queues.iter().flat_map(Queue::iter) {
            state.queued += 1;
            state.owners.entry(request.owner.0).or_default().queued += 1;
        }
        state
    }
}

impl Anticipatory {
    /// Keeps the history of a removed owner while it is awaited.
    fn forget_if_done(&mut self, owner: OwnerId) {
        let known = self.owners.get_mut(owner.index());
        if let Some(known) = known
            && self.awaited != Some(owner)
            && known.as_ref().is_some_and(|known| known.exited)
        {
            *known = None;
        }
    }
}
