//! mClock's product mode a second time, slow and obvious, against the fast one, decision by decision.
//!
//! Written from the specification's rules: plain lists, scans over everything, tags as exact integers (a division that
//! leaves a remainder is a defect of the test). It shares no code with the fast one but the types of the interface.
//! Both sit behind one gate and get the same calls; every answer must be the same.

mod common;

use common::plan::{Plan, for_plans, for_plans_as_found, plan};
use common::*;
use sluice_sched::gate::RemoteService;
use sluice_sched::params::Value;
use sluice_sched::scheduler::{Change, ChangeError, Decision, Facts, Scheduler, State};
use sluice_sched::*;

/// 1/16 ns on the caller's clock; and virtual time, of which a request takes 252 * 10^9 at weight 0.01.
type Tag = i128;

const LONG_AGO: Tag = i128::MIN / 4;
const ONE: Tag = 65_536;

fn exact(dividend: Tag, divisor: Tag) -> Tag {
    assert_eq!(dividend % divisor, 0, "the plan's numbers must give exact tags: {dividend} / {divisor}");
    dividend / divisor
}

/// Time that `raw` cost units take at a rate.
fn requests_at(rate: Iops, raw: Tag) -> Tag {
    exact(raw * 16_000_000_000 * 1000, ONE * Tag::from(rate.milli()))
}

fn bytes_at(rate: ByteRate, bytes: Tag) -> Tag {
    exact(bytes * 16_000_000_000, Tag::from(rate.bytes_per_second()))
}

fn share_of(weight: Weight, raw: Tag) -> Tag {
    exact(raw * 252_000_000_000, ONE * Tag::from(weight.hundredths()))
}

/// sigma/w.
fn credit(policy: &Policy) -> Tag {
    policy.weight.map_or(0, |weight| share_of(weight, Tag::from(policy.idle_credit) * ONE))
}

/// What service counts: its cost, its bytes against a limit, and its bytes for a reservation, which are at least those that
/// the device moves in the time that it takes.
#[derive(Debug, Clone, Copy)]
struct Amount {
    raw: Tag,
    bytes: Tag,
    reserved_bytes: Tag,
}

impl Amount {
    fn new(raw: Tag, bytes: Tag, facts: &Facts) -> Self {
        let by_cost = exact(raw * Tag::from(facts.request_bytes.0), ONE);
        Amount { raw, bytes, reserved_bytes: bytes.max(by_cost) }
    }

    fn of(request: &Request, facts: &Facts) -> Self {
        let raw = Tag::from(request.cost.raw());
        let bytes = match request.kind {
            Kind::Read | Kind::Write => Tag::from(request.length),
            Kind::Flush => 0,
            Kind::Discard | Kind::WriteZeroes => exact(raw * Tag::from(facts.cost.reference_size().0), ONE),
        };
        Amount::new(raw, bytes, facts)
    }
}

/// What is known of a client of several servers.
#[derive(Debug, Clone, Copy)]
struct Client {
    servers: Tag,
    /// Reported since the VM was served here last, in raw cost units.
    reported: Tag,
    /// The cost of its last request here.
    piece: Tag,
}

/// A limit holds a VM or a volume: until when, and the first decision since, with virtual time then.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Tag,
    decision: Option<(Tag, Tag)>,
}

/// The tags of a VM or of a volume: each says when the *next* request is due, may pass, or stands in line.
#[derive(Debug, Clone)]
struct Level {
    policy: Policy,
    due: Tag,
    due_bytes: Tag,
    tat: Tag,
    tat_bytes: Tag,
    share: Tag,
    hold: Option<Hold>,
    /// Of its limits: in raw cost units and in bytes.
    bursts: (Tag, Tag),
    /// The sum of the limit's steps less that of the reservation's.
    excess: Tag,
}

impl Level {
    fn new(policy: Policy, facts: &Facts, now: Tag, v: Tag) -> Self {
        let (share, bursts) = (v - credit(&policy), bursts(&policy, facts, 1));
        Level { policy, due: now, due_bytes: now, tat: now, tat_bytes: now, share, hold: None, bursts, excess: 0 }
    }

    /// Each reservation is a minimum of its own: the earlier tag counts.
    fn due(&self) -> Option<Tag> {
        let reservation = self.policy.reservation;
        let requests = reservation.iops.map(|_| self.due);
        requests.into_iter().chain(reservation.bytes.map(|_| self.due_bytes)).min()
    }

    /// 8.4: may dispatch iff TAT - burst/l <= now, in requests and in bytes.
    fn passes(&self) -> Tag {
        let limit = self.policy.limit;
        let (requests, bytes) = self.bursts;
        let requests = limit.iops.map(|rate| self.tat - requests_at(rate, requests));
        let bytes = limit.bytes.map(|rate| self.tat_bytes - bytes_at(rate, bytes));
        requests.max(bytes).unwrap_or(LONG_AGO)
    }

    /// Another limit, burst or number of servers: what is left of the burst stays, as the same service.
    fn set_limit(&mut self, policy: Policy, servers: Tag, facts: &Facts, now: Tag) {
        let (old, old_bursts) = (self.policy.limit, self.bursts);
        let (new, bursts) = (policy.limit, bursts(&policy, facts, servers));
        (self.policy, self.bursts) = (policy, bursts);
        let milli = |rate: Iops| Tag::from(rate.milli());
        let bytes = |rate: ByteRate| Tag::from(rate.bytes_per_second());
        if let Some(rate) = new.iops {
            let ahead = |rate, burst| requests_at(rate, burst);
            self.tat = refill(
                self.tat,
                now,
                old.iops.map(|old| (milli(old), ahead(old, old_bursts.0))),
                (milli(rate), ahead(rate, bursts.0)),
            );
        }
        if let Some(rate) = new.bytes {
            let ahead = |rate, burst| bytes_at(rate, burst);
            self.tat_bytes = refill(
                self.tat_bytes,
                now,
                old.bytes.map(|old| (bytes(old), ahead(old, old_bursts.1))),
                (bytes(rate), ahead(rate, bursts.1)),
            );
        }
    }

    /// One without weight lives by its reservation alone.
    fn may_go(&self) -> Tag {
        match self.due() {
            Some(due) if self.policy.weight.is_none() => due.max(self.passes()),
            _ => self.passes(),
        }
    }

    /// When somebody has to look again at one that is held.
    fn wake(&self) -> Option<Tag> {
        let hold = self.hold?;
        let due = self.due().filter(|_| self.policy.weight.is_none());
        Some(due.map_or(hold.until, |due| due.max(hold.until)))
    }

    /// 8.6: rho and delta count other servers alone, and lie in the past.
    fn add_remote(&mut self, now: Tag, v: Tag, client: &Client, reserved: Amount, beyond: Amount) {
        self.owe(now, reserved);
        // What it got elsewhere beyond its reservation makes up for what is overdue here, up to now.
        if let Some(rate) = self.policy.reservation.iops {
            self.due = self.due.max((self.due + requests_at(rate, beyond.raw)).min(now));
        }
        if let Some(rate) = self.policy.reservation.bytes {
            self.due_bytes = self.due_bytes.max((self.due_bytes + bytes_at(rate, beyond.reserved_bytes)).min(now));
        }
        if let Some(rate) = self.policy.limit.iops {
            self.tat += requests_at(rate, reserved.raw + beyond.raw);
        }
        if let Some(rate) = self.policy.limit.bytes {
            self.tat_bytes += bytes_at(rate, reserved.bytes + beyond.bytes);
        }
        if let Some(weight) = self.policy.weight {
            let cap = self.share.max(v + share_of(weight, 16 * client.servers * client.piece));
            self.share = (self.share + share_of(weight, reserved.raw)).min(cap);
            self.share += share_of(weight, beyond.raw);
        }
    }

    /// Service for the reservation. Where both currencies are reserved the later tag goes at most one step beyond now.
    fn owe(&mut self, now: Tag, amount: Amount) {
        self.forget_excess(now);
        let Some(due) = self.due() else { return };
        let present = now.max(due);
        if let Some(rate) = self.policy.reservation.iops {
            let step = requests_at(rate, amount.raw);
            self.due = self.due.max((self.due + step).min(present + step));
        }
        if let Some(rate) = self.policy.reservation.bytes {
            let step = bytes_at(rate, amount.reserved_bytes);
            self.due_bytes = self.due_bytes.max((self.due_bytes + step).min(present + step));
        }
        // Nothing is owed beyond the limit; what smaller steps of it leave counts for the larger ones between them.
        let (limit, step) = (self.policy.limit, self.due().expect("as before") - due);
        let by_requests = limit.iops.map(|rate| requests_at(rate, amount.raw));
        let by_bytes = limit.bytes.map(|rate| bytes_at(rate, amount.bytes));
        if let Some(limit_step) = by_requests.max(by_bytes) {
            self.excess = (self.excess + limit_step - step).max(-16 * step);
        }
    }

    /// What its limit did not let pass is not owed, up to now.
    fn forget_excess(&mut self, now: Tag) {
        if let Some(due) = self.due().filter(|_| self.excess > 0) {
            let by = self.excess.min(now - due).max(0);
            self.due = self.due.max((self.due + by).min(now));
            self.due_bytes = self.due_bytes.max((self.due_bytes + by).min(now));
            self.excess = 0;
        }
    }

    /// The one floor of shares: what lies further behind virtual time is forgotten.
    fn floor(&self, v: Tag, client: Option<Client>) -> Tag {
        let reported = client.map_or(0, |client| client.reported);
        v - credit(&self.policy) - self.policy.weight.map_or(0, |weight| share_of(weight, reported))
    }

    /// 8.4: R is floored when an owner becomes backlogged, P by the one floor.
    fn activate(&mut self, now: Tag, v: Tag, client: Option<Client>) {
        self.due = self.due.max(now);
        self.due_bytes = self.due_bytes.max(now);
        self.share = self.share.max(self.floor(v, client));
    }

    /// 8.4: time that its limit held it banks nothing, from the first decision on; what it lay behind before stays.
    fn settle(&mut self, now: Tag, held_until: Option<Tag>, v: Tag) {
        match (held_until, self.hold) {
            (Some(until), was) => self.hold = Some(Hold { until, decision: was.and_then(|hold| hold.decision) }),
            (None, Some(Hold { until, decision })) => {
                self.hold = None;
                let released = until.min(now);
                if let Some((since, v_then)) = decision.filter(|(since, _)| *since < released) {
                    let held = released - since;
                    self.due = self.due.max((self.due + held).min(released));
                    self.due_bytes = self.due_bytes.max((self.due_bytes + held).min(released));
                    self.forget_excess(released);
                    self.share = self.share.max((self.share + v - v_then).min(v));
                }
            }
            (None, None) => {}
        }
    }

    /// 8.2 and 8.4: R by reservation service alone; P by both, by reservation service to at most v + 16 c/w at each server;
    /// the limiter by both.
    fn charge(&mut self, now: Tag, amount: Amount, reserved: bool, v: Tag, client: Option<Client>) {
        if reserved {
            self.owe(now, amount);
        }
        if let Some(weight) = self.policy.weight {
            let servers = client.map_or(1, |client| client.servers);
            let cap = if reserved { self.share.max(v + share_of(weight, 16 * servers * amount.raw)) } else { Tag::MAX };
            self.share = (self.share + share_of(weight, amount.raw)).min(cap);
        }
        if let Some(rate) = self.policy.limit.iops {
            self.tat = self.tat.max(now) + requests_at(rate, amount.raw);
        }
        if let Some(rate) = self.policy.limit.bytes {
            self.tat_bytes = self.tat_bytes.max(now) + bytes_at(rate, amount.bytes);
        }
    }

    /// A change holds for what is queued too: what was charged ahead stays charged as the same service; what is overdue stays
    /// so, as the same service or the same time.
    fn set(&mut self, policy: Policy, servers: Tag, facts: &Facts, now: Tag, v: Tag) {
        let milli = |rate: Option<Iops>| rate.map(|rate| Tag::from(rate.milli()));
        let bytes = |rate: Option<ByteRate>| rate.map(|rate| Tag::from(rate.bytes_per_second()));
        let weight = |weight: Option<Weight>| weight.map(|weight| Tag::from(weight.hundredths()));
        let old = self.policy;
        self.excess = 0;
        rescale(&mut self.due, now, milli(old.reservation.iops), milli(policy.reservation.iops));
        rescale(&mut self.due_bytes, now, bytes(old.reservation.bytes), bytes(policy.reservation.bytes));
        let most = self.share.max(v);
        rescale(&mut self.share, v, weight(old.weight), weight(policy.weight));
        self.share = self.share.min(most);
        self.set_limit(policy, servers, facts, now);
    }
}

/// A stated burst of n lets n through at once, n - 1 beside the one that may go anyway; the default is the device's depth
/// in its largest pieces beside that one. Each of several servers has its part.
fn bursts(policy: &Policy, facts: &Facts, servers: Tag) -> (Tag, Tag) {
    let (requests, bytes) = match policy.burst {
        Some(burst) => {
            let beside = Tag::from(burst - 1);
            (beside * ONE, beside * Tag::from(facts.cost.reference_size().0))
        }
        None => {
            let depth = Tag::from(facts.depth);
            (depth * Tag::from(facts.piece_cost().raw()), depth * Tag::from(facts.piece_max.0))
        }
    };
    let limit = policy.limit;
    let rate = limit.iops.map_or(0, |rate| Tag::from(rate.milli()) * ONE / 1000);
    let byte_rate = limit.bytes.map_or(0, |rate| Tag::from(rate.bytes_per_second()));
    let part = |burst: Tag, rate: Tag| burst.min(burst.max(rate / 4) / servers);
    (part(requests, rate), part(bytes, byte_rate))
}

/// The theoretical arrival time under another limit. Limits are (rate, burst as a distance).
fn refill(tat: Tag, now: Tag, old: Option<(Tag, Tag)>, (rate, ahead): (Tag, Tag)) -> Tag {
    let Some((old_rate, old_ahead)) = old else { return now };
    if tat <= now {
        // It was full; a larger burst fills from then on.
        return tat + (ahead - old_ahead * old_rate / rate).max(0);
    }
    let left = old_ahead - (tat - now).max(0);
    if left >= 0 { now + ahead - (left * old_rate / rate).min(ahead) } else { now + ahead + -left * old_rate / rate }
}

fn rescale(tag: &mut Tag, base: Tag, old: Option<Tag>, new: Option<Tag>) {
    if old == new {
        return;
    }
    let Some((old, new)) = old.zip(new) else {
        *tag = base;
        return;
    };
    if *tag >= base {
        *tag = base + (*tag - base) * old / new;
    } else {
        let behind = base - *tag;
        *tag = base - behind.min(behind * old / new);
    }
}

#[derive(Debug, Clone)]
struct Vm {
    level: Level,
    volumes: Vec<(VolumeId, Level)>,
    v: Tag,
    client: Option<Client>,
    /// Virtual time has started again since it was here.
    stale: bool,
}

impl Vm {
    fn servers(&self) -> Tag {
        self.client.map_or(1, |client| client.servers)
    }

    /// A policy for the VM; its bursts and those of its volumes are divided anew.
    fn set(&mut self, policy: Policy, facts: &Facts, now: Tag, v: Tag) {
        let servers = self.servers();
        self.level.set(policy, servers, facts, now, v);
        self.volumes.iter_mut().for_each(|(_, level)| level.set_limit(level.policy, servers, facts, now));
    }
}

#[derive(Debug, Clone, Copy)]
struct Batch {
    owner: OwnerId,
    volume: VolumeId,
    reserved: bool,
    left: u32,
    end: u64,
}

/// The oracle.
#[derive(Debug)]
struct Oracle {
    facts: Facts,
    batch_max: u32,
    distance: u64,
    catchup: Tag,
    vms: Vec<(OwnerId, Vm)>,
    queue: Vec<Request>,
    in_flight: u64,
    v: Tag,
    /// The floor of the weight phase, in hundredths of a percent, and what it is owed.
    floor: Tag,
    owed: Tag,
    /// What the last batch, or single request, of the weight phase took of that.
    weight_batch: Tag,
    batch: Option<Batch>,
}

fn tag(now: Instant) -> Tag {
    Tag::from(now.as_nanos()) * 16
}

impl Oracle {
    fn new(facts: Facts, batch_max: u32, catchup_millis: u64) -> Self {
        Oracle {
            facts,
            batch_max,
            distance: 4 << 20,
            catchup: Tag::from(catchup_millis) * 16_000_000,
            vms: Vec::new(),
            queue: Vec::new(),
            in_flight: 0,
            v: 0,
            floor: 200,
            owed: 0,
            weight_batch: 0,
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

    /// Notes which limits hold VMs and volumes now, and releases the others: all VMs, or the one that something happens to.
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
                let passes = level.passes();
                level.settle(now, Some(passes).filter(|passes| *passes > now), vm.v);
                let may_go = level.may_go();
                earliest = Some(earliest.map_or(may_go, |earliest| earliest.min(may_go)));
            }
            let Some(earliest) = earliest else {
                vm.level.hold = None;
                continue;
            };
            let passes = earliest.max(vm.level.passes());
            vm.level.settle(now, Some(passes).filter(|passes| *passes > now), outer_v);
        }
    }

    /// A decision is made: from here on limits, and not the device, hold those that they hold.
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

    /// The VMs with requests that no limit holds, with the arrival number of their oldest request.
    fn in_line(&self) -> Vec<(OwnerId, &Vm, RequestId)> {
        let heads = self.vms.iter().filter_map(|(owner, vm)| Some((*owner, vm, self.head(*owner, None)?.id)));
        heads.filter(|(_, vm, _)| vm.level.hold.is_none()).collect()
    }

    fn choose(&mut self, now: Tag) -> Option<(OwnerId, VolumeId, bool)> {
        let due = |(owner, vm, head): &(OwnerId, &Vm, RequestId)| Some((vm.level.due()?, *head, *owner));
        let most_overdue = self.in_line().iter().filter_map(due).min();
        if let Some((due, _, _)) = most_overdue {
            // 8.4: the cap on the catch-up shifts all R tags by one common offset.
            let excess = (now - due - self.catchup).max(0);
            for (_, vm) in &mut self.vms {
                vm.level.due += excess;
                vm.level.due_bytes += excess;
            }
        }
        if let Some((due, _, owner)) = self.in_line().iter().filter_map(due).min()
            && due <= now
            && !(self.owed > 0 && self.unreserved_waits())
        {
            return Some((owner, self.choose_volume(owner, true, now), true));
        }
        let weighted = |(_, vm, _): &&(OwnerId, &Vm, RequestId)| vm.level.policy.weight.is_some();
        let line = self.in_line();
        let (_, _, owner) = line.iter().filter(weighted).map(|(o, vm, head)| (vm.level.share, *head, *o)).min()?;
        Some((owner, self.choose_volume(owner, false, now), false))
    }

    fn unreserved_waits(&self) -> bool {
        self.in_line().iter().any(|(_, vm, _)| !vm.level.policy.is_reserved() && vm.level.policy.weight.is_some())
    }

    /// 8.8: in the constraint phase the most overdue volume, else the one with the smallest virtual-time tag.
    fn choose_volume(&mut self, owner: OwnerId, reserved: bool, now: Tag) -> VolumeId {
        if reserved {
            self.bound_catch_up_inside(owner, now);
        }
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("chosen").1;
        let heads = vm.volumes.iter().filter_map(|(id, level)| Some((*id, level, self.head(owner, Some(*id))?.id)));
        let eligible: Vec<_> = heads.filter(|(_, level, _)| level.may_go() <= now).collect();
        let due = eligible.iter().filter_map(|(id, level, head)| Some((level.due()?, *head, *id)));
        let overdue = due.filter(|(due, _, _)| *due <= now).min();
        let weighted = eligible.iter().filter(|(_, level, _)| level.policy.weight.is_some());
        let by_share = weighted.map(|(id, level, head)| (level.share, *head, *id)).min();
        let chosen = if reserved { overdue.or(by_share) } else { by_share.or(overdue) };
        chosen.expect("a VM in line has a volume that may go").2
    }

    /// The cap on the catch-up, inside a VM.
    fn bound_catch_up_inside(&mut self, owner: OwnerId, now: Tag) {
        let waiting: Vec<VolumeId> = self.queue.iter().filter(|r| r.owner == owner).map(|r| r.volume).collect();
        let catchup = self.catchup;
        let vm = self.vm(owner);
        let ready = vm.volumes.iter().filter(|(id, level)| level.hold.is_none() && waiting.contains(id));
        let Some(due) = ready.filter_map(|(_, level)| level.due()).min() else { return };
        let excess = (now - due - catchup).max(0);
        for (_, level) in &mut vm.volumes {
            level.due += excess;
            level.due_bytes += excess;
        }
    }

    fn follow_batch(&mut self, now: Tag) -> Option<(OwnerId, VolumeId, bool)> {
        let batch = self.batch.take()?;
        let head = self.head(batch.owner, Some(batch.volume))?;
        let vm = self.vm(batch.owner);
        let level = &vm.volumes.iter().find(|(id, _)| *id == batch.volume)?.1;
        let passes = vm.level.passes() <= now && level.may_go() <= now;
        if batch.left == 0 || !passes || head.offset.abs_diff(batch.end) > self.distance {
            return None;
        }
        self.batch = Some(batch);
        Some((batch.owner, batch.volume, batch.reserved))
    }

    /// From where a debt is counted, among the VMs and among the volumes of one: the turn after the next of the first in line, if
    /// that is beyond virtual time and somebody else is there. Requests are of the cost `raw`.
    fn lines(&self, owner: OwnerId, volume: VolumeId, raw: Tag) -> (Tag, Tag) {
        let line = |v: Tag, mut shares: Vec<(Tag, RequestId, bool, Weight)>| {
            shares.sort();
            let first = shares.first().filter(|_| shares.iter().any(|(_, _, itself, _)| !itself));
            first.map_or(v, |(share, _, _, weight)| (share + share_of(*weight, raw)).max(v))
        };
        let weighted = |level: &Level| level.hold.is_none() && level.policy.weight.is_some();
        let vms = self.in_line().into_iter().filter(|(_, vm, _)| weighted(&vm.level));
        let entry = |level: &Level, head, itself| Some((level.share, head, itself, level.policy.weight?));
        let vms: Vec<_> = vms.filter_map(|(other, vm, head)| entry(&vm.level, head, other == owner)).collect();
        let vm = &self.vms.iter().find(|(id, _)| *id == owner).expect("known").1;
        let volumes = vm.volumes.iter().filter(|(_, level)| weighted(level));
        let heads = volumes.filter_map(|(id, level)| Some((*id, level, self.head(owner, Some(*id))?.id)));
        let volumes: Vec<_> = heads.filter_map(|(other, level, head)| entry(level, head, other == volume)).collect();
        (line(self.v, vms), line(vm.v, volumes))
    }

    fn take(&mut self, now: Tag, owner: OwnerId, volume: VolumeId, reserved: bool) -> Request {
        let request = self.head(owner, Some(volume)).expect("chosen");
        let amount = Amount::of(&request, &self.facts);
        // What follows in a batch was not chosen, and does not move virtual time.
        let is_chosen = self.batch.is_none();
        // The floor of the weight phase.
        if !reserved {
            let served = amount.raw * (10_000 - self.floor);
            self.weight_batch = served + if is_chosen { 0 } else { self.weight_batch };
            self.owed = (self.owed - served).max(-self.weight_batch);
        } else if self.unreserved_waits() {
            self.owed += amount.raw * self.floor;
        }
        let (line, inner_line) = self.lines(owner, volume, amount.raw);
        self.queue.retain(|queued| queued.id != request.id);
        let mut v = self.v;
        let vm = self.vm(owner);
        if !reserved && is_chosen {
            v = v.max(vm.level.share);
        }
        vm.level.charge(now, amount, reserved, if reserved { line } else { v }, vm.client);
        let mut inner_v = vm.v;
        let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("chosen").1;
        let inner_reserved = level.policy.weight.is_none() || reserved && level.due().is_some_and(|due| due <= now);
        if !inner_reserved && is_chosen {
            inner_v = inner_v.max(level.share);
        }
        let base = if inner_reserved { inner_line } else { inner_v };
        level.charge(now, amount, inner_reserved, base, vm.client);
        if let Some(client) = &mut vm.client {
            (client.reported, client.piece) = (0, amount.raw);
        }
        vm.v = inner_v;
        self.v = v;
        let left = self.batch.map_or(self.batch_max, |batch| batch.left) - 1;
        self.batch = Some(Batch { owner, volume, reserved, left, end: request.end() });
        let phase = if reserved { Phase::Reservation } else { Phase::Weight };
        Request { phase, ..request }
    }

    fn wake(&self, now: Tag) -> Instant {
        let backlogged = self.vms.iter().filter(|(owner, _)| self.head(*owner, None).is_some());
        let next = backlogged.filter_map(|(_, vm)| vm.level.wake().or(vm.level.due()));
        let next = next.min().expect("somebody waits");
        assert!(next > now);
        Instant::from_nanos(u64::try_from((next + 15) / 16).unwrap())
    }

    /// Virtual time has started again since the VM was here: its share begins at the floor.
    fn refresh(&mut self, owner: OwnerId) {
        let v = self.v;
        let vm = self.vm(owner);
        if std::mem::take(&mut vm.stale) {
            vm.level.share = vm.level.floor(v, vm.client);
        }
    }

    /// 8.4: virtual time is reset when the whole gate is idle, but where clients tell of other servers.
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
        let v = self.v;
        let vm = self.vm(request.owner);
        if volume_wakes {
            let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == request.volume).expect("a known volume").1;
            level.activate(now, vm.v, vm.client);
        }
        if vm_wakes {
            vm.level.activate(now, v, vm.client);
        }
        if volume_wakes {
            self.settle(now, Some(request.owner));
        }
    }

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, volume: VolumeId, remote: &RemoteService) {
        let now = tag(now);
        self.refresh(owner);
        let piece = self.vm(owner).client.map_or(ONE, |client| client.piece);
        let ((line, inner_line), facts) = (self.lines(owner, volume, piece), self.facts);
        let vm = self.vm(owner);
        let servers = Tag::from(remote.servers.max(2));
        vm.client = match vm.client {
            _ if remote.servers <= 1 && remote.delta == 0 => None,
            Some(client) => Some(Client { servers, ..client }),
            None => Some(Client { servers, reported: 0, piece: ONE }),
        };
        let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("a known volume").1;
        let servers = vm.client.map_or(1, |client| client.servers);
        vm.level.set_limit(vm.level.policy, servers, &facts, now);
        level.set_limit(level.policy, servers, &facts, now);
        if let Some(client) = &mut vm.client {
            let (rho, delta) = (Tag::from(remote.rho), Tag::from(remote.delta));
            client.reported += delta * ONE;
            let (rho_bytes, delta_bytes) = (Tag::from(remote.rho_bytes), Tag::from(remote.delta_bytes));
            let reserved = Amount::new(rho * ONE, rho_bytes, &facts);
            let beyond = Amount::new((delta - rho) * ONE, delta_bytes - rho_bytes, &facts);
            vm.level.add_remote(now, line, client, reserved, beyond);
            level.add_remote(now, inner_line, client, reserved, beyond);
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
        let Some((owner, volume, reserved)) = self.follow_batch(now).or_else(|| self.choose(now)) else {
            return Decision::WaitUntil(self.wake(now));
        };
        let request = self.take(now, owner, volume, reserved);
        self.settle(now, Some(owner));
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
                let level = Level::new(policy, &self.facts, now, v);
                self.vms.push((owner, Vm { level, volumes: Vec::new(), v: 0, client: None, stale: false }));
            }
            Change::SetOwner { owner, policy } => {
                let facts = self.facts;
                self.vm(owner).set(policy, &facts, now, v);
                settles = Some(owner);
                self.batch = None;
            }
            Change::AddVolume { owner, volume, policy } => {
                let facts = self.facts;
                let vm = self.vm(owner);
                vm.volumes.push((volume, Level::new(policy, &facts, now, vm.v)));
                settles = Some(owner);
                self.batch = None;
            }
            Change::SetVolume { owner, volume, policy } => {
                let facts = self.facts;
                let vm = self.vm(owner);
                let (v, servers) = (vm.v, vm.servers());
                let level = &mut vm.volumes.iter_mut().find(|(id, _)| *id == volume).expect("a known volume").1;
                level.set(policy, servers, &facts, now, v);
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
            Change::Depth(depth) => {
                self.facts.depth = depth;
                self.batch = None;
                let (facts, v) = (self.facts, self.v);
                self.vms.iter_mut().for_each(|(_, vm)| vm.set(vm.level.policy, &facts, now, v));
                self.settle(now, None);
            }
        }
        if let Some(owner) = settles {
            let (facts, v) = (self.facts, self.v);
            let vm = self.vm(owner);
            vm.set(vm.level.policy, &facts, now, v);
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

/// Both at once.
struct Pair {
    fast: Box<dyn Scheduler>,
    oracle: Oracle,
    decisions: u64,
    /// Wake-ups in a row that were earlier than need be.
    early: u32,
}

impl Pair {
    /// Whether the fast one only wakes too early: the common shift of the reservations may have moved a due request on
    /// after its VM was told when to wake. It may not do so again and again.
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

    fn add_remote_service(&mut self, now: Instant, owner: OwnerId, volume: VolumeId, remote: &RemoteService) {
        self.fast.add_remote_service(now, owner, volume, remote);
        self.oracle.add_remote_service(now, owner, volume, remote);
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
    let oracle = Oracle::new(plan.facts(), plan.batch, catchup_millis);
    Box::new(Pair { fast: subject.build(&plan.facts()), oracle, decisions: 0, early: 0 })
}

// rule: mclock.charge-after, mclock.byte-reservation, mclock.product-counts, mclock.eligible
// rule: mclock.volume-constraint, mclock.volume-weight
#[test]
fn the_fast_scheduler_decides_as_the_rules_say() {
    for_plans(96, plan(false), |plan| {
        let world = plan.run(pair(plan, 100), Instant::ZERO, |_| ());
        assert!(!world.log.is_empty());
    });
}

#[test]
fn and_while_vms_come_and_go() {
    for_plans(64, plan(true), |plan| drop(plan.run(pair(plan, 1000), millis(7), |_| ())));
}

#[test]
#[should_panic(expected = "the fast one, then the oracle")]
fn a_scheduler_that_differs_is_noticed() {
    // A control: with another bound on the catch-up the two must part somewhere.
    for_plans_as_found(96, plan(false), |plan| {
        let subject =
            product().text("reservation_catchup_max", "1ms").with("batch", Value::Integer(i64::from(plan.batch)));
        let oracle = Oracle::new(plan.facts(), plan.batch, 1000);
        let pair = Pair { fast: subject.build(&plan.facts()), oracle, decisions: 0, early: 0 };
        drop(plan.run(Box::new(pair), Instant::ZERO, |_| ()));
    });
}
