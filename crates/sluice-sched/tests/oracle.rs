//! A second, slow and obvious implementation of mClock's product mode, compared with the fast one decision by decision.
//!
//! It follows the rules of the specification: plain lists, scans over everything, and tags as exact integers (a
//! division with a remainder is a defect of the test). It shares only the types of the interface with the fast one.
//! Both are behind one gate and get the same calls, and every result must be the same.

#![allow(unreachable_pub, reason = "modules of one test")]

pub(crate) mod tags;

use self::tags::*;
use crate::common::plan::{Plan, for_plans, for_plans_as_found, plan};
use crate::common::*;
use sluice_sched::gate::RemoteService;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, ChangeError, Decision, DeviceInfo, Scheduler, State};
use sluice_sched::*;
#[derive(Debug, Clone)]
struct Vm {
    level: Level,
    volumes: Vec<(VolumeId, Level)>,
    v: Tag,
    floor: Floor,
    client: Option<Client>,
    /// Whether virtual time was reset since the VM was active.
    stale: bool,
}

impl Vm {
    fn servers(&self) -> Tag {
        self.client.map_or(1, |client| client.servers)
    }

    /// Sets the policy of the VM; its bursts and those of its volumes are divided again.
    fn set(&mut self, policy: Policy, info: &DeviceInfo, now: Tag, v: Tag) {
        let servers = self.servers();
        self.level.set(policy, servers, info, now, v);
        self.volumes.iter_mut().for_each(|(_, level)| level.set_limit(level.policy, 1, info, now));
    }
}

#[derive(Debug, Clone, Copy)]
struct Choice {
    owner: OwnerId,
    volume: VolumeId,
    /// By a reservation, among the VMs and inside the VM.
    reserved: bool,
    inner_reserved: bool,
}

#[derive(Debug, Clone, Copy)]
struct Batch {
    choice: Choice,
    left: u32,
    end: u64,
}

/// The floor of the weight phase, 2 %, among the VMs or inside one.
#[derive(Debug, Clone, Copy, Default)]
struct Floor {
    owed: Tag,
    /// Part of it that the last batch, or single request, of the weight phase used.
    weight_batch: Tag,
}

impl Floor {
    /// Counts a request; `waits`: a member without a reservation waited; `is_chosen`: not in a batch with the previous
    /// one.
    fn note(&mut self, raw: Tag, reserved: bool, waits: bool, is_chosen: bool) {
        if !reserved {
            let served = raw * 9_800;
            self.weight_batch = served + if is_chosen { 0 } else { self.weight_batch };
            self.owed = (self.owed - served).max(-self.weight_batch);
        } else if waits {
            self.owed += raw * 200;
        }
    }
}

#[derive(Debug)]
struct Oracle {
    info: DeviceInfo,
    batch_max: u32,
    distance: u64,
    catchup: Tag,
    vms: Vec<(OwnerId, Vm)>,
    queue: Vec<Request>,
    in_flight: u64,
    v: Tag,
    floor: Floor,
    batch: Option<Batch>,
}

fn tag(now: Instant) -> Tag {
    Tag::from(now.as_nanos()) * 16
}

impl Oracle {
    fn new(info: DeviceInfo, batch_max: u32, catchup_millis: u64) -> Self {
        Oracle {
            info,
            batch_max,
            distance: 4 << 20,
            catchup: Tag::from(catchup_millis) * 16_000_000,
            vms: Vec::new(),
            queue: Vec::new(),
            in_flight: 0,
            v: 0,
            floor: Floor::default(),
            batch: None,
        }
    }

    fn vm(&mut self, owner: OwnerId) -> &mut Vm {
        &mut self.vms.iter_mut().find(|(id, _)| *id == owner).expect("a known VM").1
    }

    /// The oldest request of a volume, or of a VM.
    fn head(&self, owner: OwnerId, volume: Option<VolumeId>) -> Option<Request> {
        let mine = |r: &&Request| r.owner == owner && volume.is_none_or(|volume| r.volume == volume);
        self.queue.iter().find(mine).copied()
    }

    /// Notes which limits throttle VMs and volumes now, and releases the others: all VMs, or the one that an event
    /// concerns.
    fn settle(&mut self, now: Tag, one: Option<OwnerId>) {
        let (queue, outer_v) = (self.queue.clone(), self.v);
        for (owner, vm) in self.vms.iter_mut().filter(|(owner, _)| one.is_none_or(|one| one == *owner)) {
            let mut earliest = None::<Tag>;
            for (id, level) in &mut vm.volumes {
                let backlogged = queue.iter().any(|r| r.owner == *owner && r.volume == *id);
                if !backlogged {
                    level.hold = None;
                    continue;
                }
                let limit_eligible_at = level.limit_eligible_at();
                level.settle(now, Some(limit_eligible_at).filter(|limit_eligible_at| *limit_eligible_at > now), vm.v);
                let eligible_at = level.eligible_at();
                earliest = Some(earliest.map_or(eligible_at, |earliest| earliest.min(eligible_at)));
            }
            let Some(earliest) = earliest else {
                vm.level.hold = None;
                continue;
            };
            let limit_eligible_at = earliest.max(vm.level.limit_eligible_at());
            vm.level.settle(now, Some(limit_eligible_at).filter(|limit_eligible_at| *limit_eligible_at > now), outer_v);
        }
    }

    /// Notes a decision: from now on limits, and not the device, delay what they throttle.
    fn note_decision(&mut self, now: Tag) {
        let note = |level: &mut Level, v: Tag| {
            if let Some(hold) = &mut level.hold {
                hold.decision = hold.decision.or(Some((now, v)));
            }
        };
        for (_, vm) in &mut self.vms {
            note(&mut vm.level, self.v);
            vm.volumes.iter_mut().for_each(|(_, level)| note(level, vm.v));
        }
    }

    /// VMs with requests that no limit throttles, with the arrival number of their oldest request.
    fn eligible(&self) -> Vec<(OwnerId, &Vm, RequestId)> {
        let heads = self.vms.iter().filter_map(|(owner, vm)| Some((*owner, vm, self.head(*owner, None)?.id)));
        heads.filter(|(_, vm, _)| vm.level.hold.is_none()).collect()
    }

    fn choose(&mut self, now: Tag) -> Option<Choice> {
        let due = |(owner, vm, head): &(OwnerId, &Vm, RequestId)| Some((vm.level.due()?, *head, *owner));
        let eligible = self.eligible();
        let most_overdue = eligible.iter().filter(|(_, vm, _)| !vm.level.was_held()).filter_map(due).min();
        if let Some((due, _, _)) = most_overdue {
            // 8.4: the cap on the catch-up moves all R tags by one common offset.
            let excess = (now - due - self.catchup).max(0);
            self.vms.iter_mut().for_each(|(_, vm)| vm.level.shift(excess));
        }
        if let Some((due, _, owner)) = self.eligible().iter().filter_map(due).min()
            && due <= now
            && !(self.floor.owed > 0 && self.unreserved_waits())
        {
            return Some(self.choose_volume(owner, true, now));
        }
        let weighted = |(_, vm, _): &&(OwnerId, &Vm, RequestId)| vm.level.policy.weight.is_some();
        let line = self.eligible();
        let (_, _, owner) = line.iter().filter(weighted).map(|(o, vm, head)| (vm.level.share, *head, *o)).min()?;
        Some(self.choose_volume(owner, false, now))
    }

    fn unreserved_waits(&self) -> bool {
        self.eligible().iter().any(|(_, vm, _)| !vm.level.policy.is_reserved() && vm.level.policy.weight.is_some())
    }

    fn unreserved_volume_waits(&self, owner: OwnerId) -> bool {
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("known").1;
        let lives_by_weight = |level: &Level| !level.policy.is_reserved() && level.policy.weight.is_some();
        let waits = |id: VolumeId, level: &Level| level.hold.is_none() && self.head(owner, Some(id)).is_some();
        vm.volumes.iter().any(|(id, level)| lives_by_weight(level) && waits(*id, level))
    }

    /// 8.8: the most overdue volume, unless the floor is owed; otherwise the one with the smallest share tag. `reserved`: the
    /// VM's own phase.
    fn choose_volume(&mut self, owner: OwnerId, reserved: bool, now: Tag) -> Choice {
        self.bound_catch_up_inside(owner, now);
        let floor_waits = self.unreserved_volume_waits(owner);
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("chosen").1;
        let is_floors_turn = vm.floor.owed > 0 && floor_waits;
        let heads = vm.volumes.iter().filter_map(|(id, level)| Some((*id, level, self.head(owner, Some(*id))?.id)));
        let ready: Vec<_> = heads.filter(|(_, level, _)| level.eligible_at() <= now).collect();
        let due = ready.iter().filter_map(|(id, level, head)| Some((level.due()?, *head, *id)));
        let overdue = due.filter(|(due, _, _)| *due <= now).min();
        let weighted = ready.iter().filter(|(_, level, _)| level.policy.weight.is_some());
        let by_share = weighted.map(|(id, level, head)| (level.share, *head, *id)).min();
        let overdue = overdue.map(|(_, _, volume)| (volume, true));
        let by_share = by_share.map(|(_, _, volume)| (volume, false));
        let chosen = if !is_floors_turn { overdue.or(by_share) } else { by_share.or(overdue) };
        let (volume, inner_reserved) = chosen.expect("an eligible VM has an eligible volume");
        Choice { owner, volume, reserved, inner_reserved }
    }

    /// The tag of the most overdue volume that has only waited for its VM; `without`: of the others.
    fn most_overdue_volume(&self, owner: OwnerId, without: Option<VolumeId>) -> Option<Tag> {
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("known").1;
        let waits = |id: VolumeId| Some(id) != without && self.head(owner, Some(id)).is_some();
        let only_waits = |level: &Level| level.hold.is_none() && !level.was_held();
        let ready = vm.volumes.iter().filter(|(id, level)| only_waits(level) && waits(*id));
        ready.filter_map(|(_, level)| level.due()).min()
    }

    /// The cap on the catch-up, inside a VM.
    fn bound_catch_up_inside(&mut self, owner: OwnerId, now: Tag) {
        let Some(due) = self.most_overdue_volume(owner, None) else { return };
        let excess = (now - due - self.catchup).max(0);
        self.vm(owner).volumes.iter_mut().for_each(|(_, level)| level.shift(excess));
    }

    /// Distance that the limits of the volumes with requests keep together between requests of this amount, if each of them has a limit.
    fn inner_step(&self, owner: OwnerId, volume: VolumeId, amount: Amount) -> Tag {
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("known").1;
        let waiting = || vm.volumes.iter().filter(|(id, _)| *id == volume || self.head(owner, Some(*id)).is_some());
        if waiting().any(|(_, level)| level.policy.limit == Limit::default()) {
            return 0;
        }
        let steps = waiting().map(|(_, level)| u128::try_from(level.limit_step(amount)).unwrap());
        let rate: u128 = steps.map(|step| (1u128 << 96).checked_div(step).unwrap_or(u128::MAX >> 8)).sum();
        Tag::try_from((1u128 << 96) / rate).unwrap()
    }

    fn follow_batch(&mut self, now: Tag) -> Option<Choice> {
        let batch = self.batch.take()?;
        let Choice { owner, volume, .. } = batch.choice;
        let head = self.head(owner, Some(volume))?;
        let vm = self.vm(owner);
        let level = &vm.volumes.iter().find(|(id, _)| *id == volume)?.1;
        let limit_eligible_at = vm.level.limit_eligible_at() <= now && level.eligible_at() <= now;
        if batch.left == 0 || !limit_eligible_at || head.offset.abs_diff(batch.end) > self.distance {
            return None;
        }
        self.batch = Some(batch);
        Some(batch.choice)
    }

    /// Base of a debt, among the VMs and among the volumes of one: the share tag of the first member after another
    /// request, if that is later than virtual time and there is another member. Requests are of cost `raw`.
    fn lines(&self, owner: OwnerId, volume: Option<VolumeId>, raw: Tag) -> (Tag, Tag) {
        let line = |v: Tag, mut shares: Vec<(Tag, RequestId, bool, Weight)>| {
            shares.sort();
            let first = shares.first().filter(|_| shares.iter().any(|(_, _, itself, _)| !itself));
            first.map_or(v, |(share, _, _, weight)| (share + share_of(*weight, raw)).max(v))
        };
        let weighted = |level: &Level| level.hold.is_none() && level.policy.weight.is_some();
        let vms = self.eligible().into_iter().filter(|(_, vm, _)| weighted(&vm.level));
        let entry = |level: &Level, head, itself| Some((level.share, head, itself, level.policy.weight?));
        let vms: Vec<_> = vms.filter_map(|(other, vm, head)| entry(&vm.level, head, other == owner)).collect();
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("known").1;
        let volumes = vm.volumes.iter().filter(|(_, level)| weighted(level));
        let heads = volumes.filter_map(|(id, level)| Some((*id, level, self.head(owner, Some(*id))?.id)));
        let volumes: Vec<_> =
            heads.filter_map(|(other, level, head)| entry(level, head, Some(other) == volume)).collect();
        (line(self.v, vms), line(vm.v, volumes))
    }

    /// The smallest share tag among the VMs, and among the volumes of one, if several wait: virtual time follows it when the debt of one of
    /// them may be capped.
    fn firsts(&self, owner: OwnerId) -> (Option<Tag>, Option<Tag>) {
        let first = |shares: Vec<Tag>| if shares.len() > 1 { shares.into_iter().min() } else { None };
        let weighted = |level: &Level| level.hold.is_none() && level.policy.weight.is_some();
        let vms = self.eligible().into_iter().filter(|(_, vm, _)| weighted(&vm.level));
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("known").1;
        let waits = |id: VolumeId, level: &Level| weighted(level) && self.head(owner, Some(id)).is_some();
        let volumes = vm.volumes.iter().filter(|(id, level)| waits(*id, level));
        (first(vms.map(|(_, vm, _)| vm.level.share).collect()), first(volumes.map(|(_, level)| level.share).collect()))
    }

    fn take(&mut self, now: Tag, choice: Choice) -> Request {
        let Choice { owner, volume, reserved, inner_reserved } = choice;
        let request = self.head(owner, Some(volume)).expect("chosen");
        let amount = Amount::of(&request, &self.info);
        // The following requests of a batch are not chosen, and do not advance virtual time.
        let is_chosen = self.batch.is_none();
        let (floor_waits, inner_floor_waits) = (self.unreserved_waits(), self.unreserved_volume_waits(owner));
        self.floor.note(amount.raw, reserved, floor_waits, is_chosen);
        self.vm(owner).floor.note(amount.raw, inner_reserved, inner_floor_waits, is_chosen);
        let (line, inner_line) = self.lines(owner, Some(volume), amount.raw);
        let (first, inner_first) = self.firsts(owner);
        let (inner_step, least) = (self.inner_step(owner, volume, amount), now - self.catchup);
        self.queue.retain(|queued| queued.id != request.id);
        let mut v = self.v;
        let vm = self.vm(owner);
        if !reserved && is_chosen {
            v = v.max(vm.level.share);
        }
        if reserved && vm.level.is_past_cap(v, amount.raw) {
            v = v.max(first.unwrap_or(v));
        }
        if reserved && vm.level.was_held() {
            vm.level.raise_to(least);
        }
        vm.level.charge(now, amount, reserved, if reserved { line } else { v }, (vm.client, inner_step));
        let mut inner_v = vm.v;
        let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("chosen").1;
        if !inner_reserved && is_chosen {
            inner_v = inner_v.max(level.share);
        }
        if inner_reserved && level.is_past_cap(inner_v, amount.raw) {
            inner_v = inner_v.max(inner_first.unwrap_or(inner_v));
        }
        if inner_reserved && level.was_held() {
            level.raise_to(least);
        }
        let base = if inner_reserved { inner_line } else { inner_v };
        level.charge(now, amount, inner_reserved, base, (None, 0));
        if let Some(client) = &mut vm.client {
            (client.reported, client.piece) = (0, amount);
        }
        vm.v = inner_v;
        self.v = v;
        let left = self.batch.map_or(self.batch_max, |batch| batch.left) - 1;
        self.batch = Some(Batch { choice, left, end: request.end() });
        let phase = if reserved { Phase::Reservation } else { Phase::Weight };
        Request { phase, ..request }
    }

    fn wake(&self, now: Tag) -> Instant {
        let backlogged = self.vms.iter().filter(|(owner, _)| self.head(*owner, None).is_some());
        let next = backlogged.filter_map(|(_, vm)| vm.level.wake().or(vm.level.due()));
        let next = next.min().expect("a request waits");
        assert!(next > now);
        Instant::from_nanos(u64::try_from((next + 15) / 16).unwrap())
    }

    /// Virtual time was reset since the VM was active: its share starts at the floor.
    fn refresh(&mut self, owner: OwnerId) {
        let v = self.v;
        let vm = self.vm(owner);
        if std::mem::take(&mut vm.stale) {
            vm.level.share = vm.level.floor(v, vm.client);
        }
    }

    /// 8.4: virtual time is reset when the whole gate is idle, unless clients report other servers.
    fn reset_if_idle(&mut self) {
        let reporting = self.vms.iter().any(|(_, vm)| vm.client.is_some());
        if !reporting && self.queue.is_empty() && self.in_flight == 0 {
            self.v = 0;
            self.vms.iter_mut().for_each(|(_, vm)| vm.stale = true);
        }
    }
}

impl Scheduler for Oracle {
    fn insert(&mut self, now: Instant, request: Request) {
        let now = tag(now);
        self.refresh(request.owner);
        let vm_wakes = self.head(request.owner, None).is_none();
        let volume_wakes = self.head(request.owner, Some(request.volume)).is_none();
        self.queue.push(request);
        let most_overdue = self.most_overdue_volume(request.owner, Some(request.volume));
        let due = most_overdue.map_or(now, |due| due.max(now - self.catchup).min(now));
        let v = self.v;
        let vm = self.vm(request.owner);
        if volume_wakes {
            let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == request.volume).expect("a known volume").1;
            level.activate(due, vm.v, None);
        }
        if vm_wakes {
            vm.level.activate(now, v, vm.client);
        }
        if volume_wakes {
            self.settle(now, Some(request.owner));
        }
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        let now = tag(now);
        self.refresh(owner);
        let piece = self.vm(owner).client.map_or(ONE, |client| client.piece.raw);
        let ((line, _), info) = (self.lines(owner, None, piece), self.info);
        let vm = self.vm(owner);
        let servers = Tag::from(remote.servers.max(2));
        vm.client = match vm.client {
            _ if remote.servers <= 1 && remote.delta == 0 => None,
            Some(client) => Some(Client { servers, ..client }),
            None => Some(Client { servers, reported: 0, piece: Amount::new(ONE, 0, &info), started: 0 }),
        };
        let servers = vm.client.map_or(1, |client| client.servers);
        vm.level.set_limit(vm.level.policy, servers, &info, now);
        if let Some(client) = &mut vm.client {
            let (rho, delta) = (Tag::from(remote.rho), Tag::from(remote.delta));
            client.reported += delta.min(remote.recent.into()) * ONE;
            client.started = Tag::from(remote.outstanding).min(Tag::from(info.depth) * (servers - 1));
            let (rho_bytes, delta_bytes) = (Tag::from(remote.rho_bytes), Tag::from(remote.delta_bytes));
            let reserved = Amount::new(rho * ONE, rho_bytes, &info);
            let beyond = Amount::new((delta - rho) * ONE, delta_bytes - rho_bytes, &info);
            // A volume is at one server, and its own policy counts what this one serves.
            vm.level.add_remote(now, line, client, (reserved, beyond));
        }
        self.settle(now, Some(owner));
    }

    fn grow(&mut self, _now: Instant, _grown: Request) -> bool {
        unreachable!("the gate does not merge")
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        if self.queue.is_empty() {
            self.batch = None;
            return Decision::Idle;
        }
        let now = tag(now);
        self.note_decision(now);
        self.settle(now, None);
        let Some(choice) = self.follow_batch(now).or_else(|| self.choose(now)) else {
            return Decision::WaitUntil(self.wake(now));
        };
        let request = self.take(now, choice);
        self.settle(now, Some(choice.owner));
        self.in_flight += 1;
        Decision::Dispatch(request)
    }

    fn complete(&mut self, _now: Instant, _completion: &Completion) {
        self.in_flight -= 1;
        self.reset_if_idle();
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        let (now, v) = (tag(now), self.v);
        let mut settles = None;
        match change {
            Change::AddOwner { owner, policy } => {
                let level = Level::new(policy, &self.info, now, v);
                let floor = Floor::default();
                self.vms.push((owner, Vm { level, volumes: Vec::new(), v: 0, floor, client: None, stale: false }));
            }
            Change::SetOwner { owner, policy } => {
                let info = self.info;
                self.vm(owner).set(policy, &info, now, v);
                settles = Some(owner);
                self.batch = None;
            }
            Change::AddVolume { owner, volume, policy } => {
                let info = self.info;
                let vm = self.vm(owner);
                vm.volumes.push((volume, Level::new(policy, &info, now, vm.v)));
                settles = Some(owner);
                self.batch = None;
            }
            Change::SetVolume { owner, volume, policy } => {
                let info = self.info;
                let vm = self.vm(owner);
                let v = vm.v;
                let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("a known volume").1;
                level.set(policy, 1, &info, now, v);
                settles = Some(owner);
                self.batch = None;
            }
            Change::RemoveOwner { owner } => {
                self.batch = None;
                self.vms.retain(|(id, _)| *id != owner);
                self.reset_if_idle();
            }
            Change::RemoveVolume { owner, volume } => {
                self.batch = None;
                self.vm(owner).volumes.retain(|(id, _)| *id != volume);
                settles = Some(owner);
            }
            Change::Device { depth, request_bytes } => {
                (self.info.depth, self.info.request_bytes) = (depth, request_bytes);
                self.batch = None;
                let (info, v) = (self.info, self.v);
                self.vms.iter_mut().for_each(|(_, vm)| vm.set(vm.level.policy, &info, now, v));
                self.settle(now, None);
            }
        }
        if let Some(owner) = settles {
            let (info, v) = (self.info, self.v);
            let vm = self.vm(owner);
            vm.set(vm.level.policy, &info, now, v);
            self.settle(now, settles);
        }
        Ok(())
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        self.batch = None;
        removed.extend(self.queue.iter().filter(|request| scope.contains(request)));
        self.queue.retain(|request| !scope.contains(request));
        self.settle(tag(now), Some(scope.owner()));
        self.reset_if_idle();
    }

    fn inspect(&self, _now: Instant) -> State {
        State { queued: self.queue.len() as u64, in_flight: self.in_flight, ..State::default() }
    }
}

/// The fast scheduler and the oracle.
struct Pair {
    fast: Box<dyn Scheduler>,
    oracle: Oracle,
    decisions: u64,
    /// Consecutive wake-ups that were earlier than necessary.
    early: u32,
}

impl Pair {
    /// Whether the fast one only wakes too early: the common offset of the reservations may have delayed a due request
    /// after the wake-up time of its VM was returned. This may not happen repeatedly.
    fn wakes_early(&mut self, fast: Decision, due: Decision) -> bool {
        let early = matches!((fast, due), (Decision::WaitUntil(fast), Decision::WaitUntil(due)) if fast < due);
        self.early = if early { self.early + 1 } else { 0 };
        early && self.early <= 3
    }
}

impl Scheduler for Pair {
    fn insert(&mut self, now: Instant, request: Request) {
        self.fast.insert(now, request);
        self.oracle.insert(now, request);
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, remote: &RemoteService) {
        self.fast.add_remote_service(now, owner, remote);
        self.oracle.add_remote_service(now, owner, remote);
    }

    fn grow(&mut self, now: Instant, grown: Request) -> bool {
        self.fast.grow(now, grown)
    }

    fn dispatch(&mut self, now: Instant) -> Decision {
        let fast = self.fast.dispatch(now);
        let due = self.oracle.dispatch(now);
        let comparable = match fast {
            Decision::Dispatch(request) => Decision::Dispatch(Request { wait: Wait::None, ..request }),
            other => other,
        };
        if !self.wakes_early(fast, due) {
            assert_eq!(comparable, due, "decision {} at {now:?}: the fast one, then the oracle", self.decisions);
        }
        self.decisions += 1;
        fast
    }

    fn complete(&mut self, now: Instant, completion: &Completion) {
        self.fast.complete(now, completion);
        self.oracle.complete(now, completion);
    }

    fn configure(&mut self, now: Instant, change: Change) -> Result<(), ChangeError> {
        self.oracle.configure(now, change)?;
        self.fast.configure(now, change)
    }

    fn cancel(&mut self, now: Instant, scope: Scope, removed: &mut Vec<Request>) {
        let mut expected = Vec::new();
        self.oracle.cancel(now, scope, &mut expected);
        self.fast.cancel(now, scope, removed);
        let mut got = removed.clone();
        got.sort_by_key(|request| request.id);
        assert_eq!(got, expected);
    }

    fn inspect(&self, now: Instant) -> State {
        self.fast.inspect(now)
    }
}

fn pair(plan: &Plan, catchup_millis: u64) -> Box<dyn Scheduler> {
    let subject = product()
        .with("batch", Value::Integer(i64::from(plan.batch)))
        .text("reservation_catchup_max", &format!("{catchup_millis}ms"));
    let oracle = Oracle::new(plan.info(), plan.batch, catchup_millis);
    Box::new(Pair { fast: subject.build(&plan.info()), oracle, decisions: 0, early: 0 })
}

// rule: mclock.charge-after, mclock.byte-reservation, mclock.product-counts, mclock.eligible
// rule: mclock.volume-constraint, mclock.volume-weight
#[test]
fn the_fast_scheduler_matches_the_oracle() {
    for_plans(96, plan(false), |plan| {
        let world = plan.run(pair(plan, 100), Instant::ZERO, |_| ());
        assert!(!world.log.is_empty());
    });
}

#[test]
fn the_fast_scheduler_matches_the_oracle_while_vms_come_and_go() {
    for_plans(64, plan(true), |plan| drop(plan.run(pair(plan, 1000), millis(7), |_| ())));
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn a_scheduler_that_differs_is_noticed() {
    // A control: with another bound on the catch-up the two must differ.
    for_plans_as_found(96, plan(false), |plan| {
        let subject =
            product().text("reservation_catchup_max", "1ms").with("batch", Value::Integer(i64::from(plan.batch)));
        let oracle = Oracle::new(plan.info(), plan.batch, 1000);
        let pair = Pair { fast: subject.build(&plan.info()), oracle, decisions: 0, early: 0 };
        drop(plan.run(Box::new(pair), Instant::ZERO, |_| ()));
    });
}
