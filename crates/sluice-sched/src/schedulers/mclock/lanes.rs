//! Limits of reads and of writes, and of the rate during a burst: what most policies do not state.
//!
//! A volume has one queue. If only its writes are limited, a write at the head would keep the reads behind it waiting
//! although nothing limits them. So a VM with a limit of reads or of writes, of its own or of a volume, has two queues for
//! each volume, one for reads and one for all other requests. Of the heads that their limits let pass the older one is served, so
//! requests keep the order of their arrival as long as no limit delays one of them. A VM or a volume counts as throttled only
//! while none of its heads may pass.
//!
//! Example: the limit of writes is 100 IOPS, and a VM has 50 writes and 10 reads queued. The reads pass immediately; the
//! writes follow one every 10 ms. The reservation is served by whichever may pass: with 300 IOPS reserved the VM is owed 300
//! requests per second while it has reads queued, and 100 while it has none.
//!
//! A limit of writes of a VM is shared by its volumes, in proportion to their weights while it binds, by a start tag for each volume and
//! direction that only counts what such a limit let pass. The share tags would not do: they also count reads, so a volume that
//! reads much could lose every write to one that reads little.
//!
//! The rates of a burst are further limiters in the same places: one for the rate of the burst next to each limit, whose own
//! limiter then has the saved service as its burst.
//!
//! A limit of the VM may throttle all of its volumes, so after each request of a VM with such limits all its volumes are settled again:
//! O(volumes).
//!
//! Reports of other servers do not say what was read and what was written. So these limits hold at each server.

use crate::policy::{Limit, Policy};
use crate::request::{Direction, Request, RequestId, VolumeId};
use crate::request_arena::{Arena, Fifo, Place};
use crate::scheduler::{DeviceInfo, Scope};
use crate::standing::{Left, Standing, peak_of};
use crate::tag::{ShareTag, Spacing, Tag};

use super::level::Passes;
use super::owner::{Owner, side_by_side};
use super::tags::{Amount, Limiter, Room, ServicePhase};

/// The limiters of a policy in addition to that of `limit`.
#[derive(Debug, Default)]
struct Further {
    /// The rate of a burst above `limit`.
    peak: Limiter,
    /// For reads and for writes: the limit, and the rate of a burst above it.
    directions: [(Limiter, Limiter); 2],
}

impl Further {
    fn is_stated(policy: &Policy) -> bool {
        policy.read_limit.is_set() || policy.write_limit.is_set() || policy.timed_burst.is_some()
    }

    fn set(&mut self, policy: &Policy, info: &DeviceInfo, servers: u32, now: Tag) {
        let room = Room::of(policy, info, servers);
        let burst = policy.timed_burst.as_ref();
        // The rate of a burst limits where there is a limit for it to exceed.
        let peak = |limit: &Limit| peak_of(policy, limit);
        self.peak.set(&peak(&policy.limit), None, &room, now);
        let limits = [&policy.read_limit, &policy.write_limit];
        for ((limiter, above), limit) in self.directions.iter_mut().zip(limits) {
            limiter.set(limit, burst, &room, now);
            above.set(&peak(limit), None, &room, now);
        }
    }

    /// When the next request of this direction may pass.
    fn eligible_at(&self, direction: Direction) -> Tag {
        let (limit, peak) = &self.directions[direction as usize];
        limit.eligible_at().max(peak.eligible_at()).max(self.peak.eligible_at())
    }

    /// For reads and for writes, whether the limit binds, or the rate of a burst above it.
    fn bind(&self, one: &Amount, now: Tag) -> [bool; 2] {
        self.directions.each_ref().map(|(limit, peak)| limit.binds(one, now) || peak.binds(one, now))
    }

    fn charge(&mut self, direction: Direction, now: Tag, amount: &Amount) {
        let (limit, peak) = &mut self.directions[direction as usize];
        for limiter in [limit, peak, &mut self.peak] {
            limiter.charge(now, amount);
        }
    }

    /// Adds the content of the buckets of these limits.
    fn add_standing(&self, now: Tag, standing: &mut Standing) {
        let [own, directions @ ..] = &mut standing.limits;
        own.peak = self.peak.left(now);
        for (left, (limit, peak)) in directions.iter_mut().zip(&self.directions) {
            *left = Left { limit: limit.left(now), peak: peak.left(now) };
        }
    }

    fn resume(&mut self, now: Tag, standing: &Standing) {
        let [own, directions @ ..] = &standing.limits;
        self.peak.resume(now, &own.peak);
        for (left, (limit, peak)) in directions.iter().zip(&mut self.directions) {
            limit.resume(now, &left.limit);
            peak.resume(now, &left.peak);
        }
    }

    /// Distance that the limits keep between requests like this one. `other_queued`: requests of the other direction are
    /// queued.
    ///
    /// If they have no limit, they can make up for what this limit delays, and nothing is lost. If they have one too,
    /// both directions pass side by side.
    fn step(&self, direction: Direction, amount: &Amount, other_queued: bool) -> Tag {
        let step_of = |direction: Direction| self.directions[direction as usize].0.step(amount);
        if other_queued {
            side_by_side([step_of(direction), step_of(direction.other())].into_iter())
        } else {
            step_of(direction)
        }
    }
}

/// Queues and limits by direction of one VM.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    own: Further,
    /// Queued requests of the VM by direction.
    queued: [u32; 2],
    /// Start tag of the volume that was last chosen, by direction.
    turn: [ShareTag; 2],
    /// In the order of the VM's volumes.
    volumes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    id: VolumeId,
    further: Further,
    /// Virtual time per unit of cost, by its weight.
    spacing: Spacing,
    /// Start tag of its next request, by direction.
    turns: [ShareTag; 2],
    /// Everything but reads, which are in the queue of the volume itself.
    writes: Fifo,
}

impl Lanes {
    fn eligible_at(&self, volume: usize, direction: Direction) -> Tag {
        self.own.eligible_at(direction).max(self.volumes[volume].further.eligible_at(direction))
    }

    /// The directions of the queued requests of a volume whose queue of reads this is.
    fn queued(&self, volume: usize, reads: &Fifo) -> impl Iterator<Item = Direction> {
        let writes = &self.volumes[volume].writes;
        let queued = [(Direction::Read, !reads.is_empty()), (Direction::Write, !writes.is_empty())];
        queued.into_iter().filter_map(|(direction, queued)| queued.then_some(direction))
    }

    /// When the first head of a volume may pass, whose queue of reads this is; 0 if it has none.
    fn pass_at(&self, volume: usize, reads: &Fifo) -> Tag {
        self.queued(volume, reads).map(|direction| self.eligible_at(volume, direction)).min().unwrap_or(0)
    }

    /// The same without the limits of the VM.
    fn own_pass_at(&self, volume: usize, reads: &Fifo) -> Tag {
        let further = &self.volumes[volume].further;
        self.queued(volume, reads).map(|direction| further.eligible_at(direction)).min().unwrap_or(0)
    }

    /// Whether a limit of the VM is shared out among its volumes that send requests of this direction.
    fn shares_out(&self, direction: Direction) -> bool {
        self.own.directions[direction as usize].0.is_set()
    }

    /// Whether limits by direction of the volume itself bound all that it has queued.
    pub(super) fn bounds_all(&self, volume: usize, reads: &Fifo) -> bool {
        let directions = &self.volumes[volume].further.directions;
        self.queued(volume, reads).all(|direction| directions[direction as usize].0.is_set())
    }

    /// The queue of everything but reads of a volume.
    pub(super) fn writes(&self, volume: usize) -> &Fifo {
        &self.volumes[volume].writes
    }

    pub(super) fn writes_mut(&mut self, volume: usize) -> &mut Fifo {
        &mut self.volumes[volume].writes
    }

    /// Charges the turn of a volume for a request that a limit of the VM shares out. Service for its reservation is not by turns: it is a
    /// debt of at most [`TURN_DEBT_MAX`] requests after the base of `debt`, and the turns of the others stay.
    fn charge_turn(&mut self, volume: usize, direction: Direction, cost: u64, debt: Option<Debt>) {
        let at = direction as usize;
        let lane = &mut self.volumes[volume];
        let (start, step) = (lane.turns[at].max(self.turn[at]), lane.spacing.of(cost));
        let (first, most) = match debt {
            Some(Debt { first, base }) => (first.min(start), base.saturating_add(step.saturating_mul(TURN_DEBT_MAX))),
            None => (start, ShareTag::MAX),
        };
        lane.turns[at] = start.max(start.saturating_add(step).min(most));
        self.turn[at] = self.turn[at].max(first);
        if first > TURN_MAX {
            self.turn[at] = 0;
            self.volumes.iter_mut().for_each(|lane| lane.turns[at] = lane.turns[at].saturating_sub(first));
        }
    }

    /// Counts reported service at other servers, which may have been of either direction.
    pub(super) fn add_remote(&mut self, amount: &Amount) {
        self.own.peak.charge_past(amount);
    }
}

/// When the limits by direction let a request of the volume pass whose queue of reads this is; 0 without such limits.
pub(super) fn pass_at(lanes: Option<&Lanes>, volume: usize, reads: &Fifo) -> Tag {
    lanes.map_or(0, |lanes| lanes.pass_at(volume, reads))
}

/// When limits let a volume pass; `limiter`: when its own limit does.
pub(super) fn passes(lanes: Option<&Lanes>, volume: usize, reads: &Fifo, limiter: Tag) -> Passes {
    let Some(lanes) = lanes else { return Passes::own(limiter) };
    Passes { at: limiter.max(lanes.pass_at(volume, reads)), own: limiter.max(lanes.own_pass_at(volume, reads)) }
}

/// Bound of the debt of a volume that is served for its reservation.
#[derive(Debug, Clone, Copy)]
struct Debt {
    /// The smallest start tag of the other volumes. The common one follows it: if all were served for their reservations only, the tags
    /// would run away from it, and a volume that has been served otherwise would have all turns for as long.
    first: ShareTag,
    /// The start tag that the first of them has after another request.
    base: ShareTag,
}

/// Maximum number of requests that a volume is ahead of its turn because of its reservation.
const TURN_DEBT_MAX: u64 = 16;

/// Start tag at which the tags are lowered, before they overflow.
const TURN_MAX: ShareTag = 1 << 62;

/// The first volume of those that would send a request of one direction.
#[derive(Debug, Clone, Copy)]
struct Competitor {
    /// Its place among them: by turn, or by share tag.
    rank: (ShareTag, RequestId),
    share: (ShareTag, RequestId),
    volume: usize,
}

/// A queue of a volume whose head may pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    direction: Direction,
    /// Until when its limits delayed the head.
    pub(super) since: Tag,
}

impl Owner {
    /// Queues a request. Returns whether the volume had none, and whether the request is the head of its queue.
    #[inline]
    pub(super) fn push(&mut self, volume: usize, arena: &mut Arena, request: Request) -> (bool, bool) {
        self.queued += 1;
        if self.lanes().is_none() {
            let fifo = self.fifo_mut(volume, Direction::Read);
            let was_empty = fifo.is_empty();
            arena.push(fifo, request);
            return (was_empty, was_empty);
        }
        let direction = request.kind.direction();
        let was_empty = Direction::ALL.into_iter().all(|direction| self.fifo(volume, direction).is_empty());
        let fifo = self.fifo_mut(volume, direction);
        let is_head = fifo.is_empty();
        arena.push(fifo, request);
        self.note_queued(direction, 1);
        (was_empty, is_head)
    }

    fn note_queued(&mut self, direction: Direction, by: i32) {
        if let Some(lanes) = self.lanes_mut() {
            let queued = &mut lanes.queued[direction as usize];
            *queued = queued.wrapping_add_signed(by);
        }
    }

    /// Arrival of the oldest request of a volume.
    #[inline(always)]
    pub(super) fn head(&self, volume: usize, arena: &Arena) -> Option<RequestId> {
        let first = arena.front(self.fifo(volume, Direction::Read)).map(|request| request.id);
        match self.lanes() {
            None => first,
            Some(lanes) => {
                first.into_iter().chain(arena.front(&lanes.volumes[volume].writes).map(|head| head.id)).min()
            }
        }
    }

    /// The queue with the oldest head of those that their limits let pass, and the head.
    // rule: mclock.directions
    #[inline]
    pub(super) fn open<'a>(&self, volume: usize, arena: &'a Arena, now: Tag) -> Option<(Open, &'a Request)> {
        let Some(lanes) = self.lanes() else {
            let open = Open { direction: Direction::Read, since: 0 };
            return arena.front(self.fifo(volume, Direction::Read)).map(|head| (open, head));
        };
        let heads = Direction::ALL.into_iter().filter_map(|direction| {
            let since = lanes.eligible_at(volume, direction);
            let head = arena.front(self.fifo(volume, direction)).filter(|_| since <= now)?;
            Some((Open { direction, since }, head))
        });
        heads.min_by_key(|(_, head)| head.id)
    }

    /// The same queue, of a volume that is to be served.
    #[inline]
    pub(super) fn open_to_serve(&self, volume: usize, arena: &Arena, now: Tag) -> Open {
        match self.lanes() {
            None => Open { direction: Direction::Read, since: 0 },
            Some(_) => self.open(volume, arena, now).expect("a chosen volume has a request that may pass").0,
        }
    }

    /// Removes the head of a queue, which is not empty. Returns its place, as [`Arena::leave`] does.
    #[inline(always)]
    pub(super) fn pop(&mut self, volume: usize, open: Open, arena: &mut Arena) -> Place {
        self.queued -= 1;
        self.note_queued(open.direction, -1);
        arena.leave(self.fifo_mut(volume, open.direction))
    }

    /// Distance that the VM's limits by direction keep between such requests.
    #[inline]
    pub(super) fn lane_step(&self, open: Open, amount: &Amount) -> Tag {
        let Some(lanes) = self.lanes() else { return 0 };
        let other_queued = lanes.queued[open.direction.other() as usize] > 0;
        lanes.own.step(open.direction, amount, other_queued)
    }

    /// The same for those of a volume.
    pub(super) fn lane_step_of(&self, volume: usize, open: Open, amount: &Amount) -> Tag {
        let Some(lanes) = self.lanes() else { return 0 };
        let other_queued = !self.fifo(volume, open.direction.other()).is_empty();
        lanes.volumes[volume].further.step(open.direction, amount, other_queued)
    }

    /// The same for what a volume has queued.
    pub(super) fn lane_step_of_waiting(&self, volume: usize, amount: &Amount) -> Tag {
        let Some(lanes) = self.lanes() else { return 0 };
        let mut queued = lanes.queued(volume, self.fifo(volume, Direction::Read));
        let first = queued.next();
        first.map_or(0, |first| lanes.volumes[volume].further.step(first, amount, queued.next().is_some()))
    }

    /// Charges a dispatch to the limits by direction. Returns whether other volumes of the VM may be throttled by it.
    #[inline]
    pub(super) fn charge_lanes(
        &mut self,
        (volume, phase): (usize, ServicePhase),
        open: Open,
        amount: &Amount,
        now: Tag,
    ) -> bool {
        let Some(lanes) = self.lanes() else { return false };
        let shares_out = lanes.shares_out(open.direction);
        let debt = match phase {
            ServicePhase::Reservation if shares_out => Some(self.turn_debt(lanes, volume, open.direction, amount.cost)),
            _ => None,
        };
        let Some(lanes) = self.lanes_mut() else { return false };
        lanes.own.charge(open.direction, now, amount);
        lanes.volumes[volume].further.charge(open.direction, now, amount);
        if shares_out {
            lanes.charge_turn(volume, open.direction, amount.cost, debt);
        }
        lanes.volumes.len() > 1 && Further::is_stated(&self.policy)
    }

    /// The volume to serve by weight: `chosen`, unless a limit of the VM on reads or on writes binds. Then of the volumes that would send a
    /// request of that direction only the one whose turn it is competes, with its own share tag. By share tags alone a volume that
    /// reads much would lose every write to one that reads little. Below the limit, turns would keep writes waiting for a volume whose turn
    /// comes before its share. O(volumes) while a limit binds.
    // rule: mclock.directions
    #[inline]
    pub(super) fn in_turn(
        &mut self,
        (chosen, phase): (usize, ServicePhase),
        arena: &Arena,
        info: &DeviceInfo,
        now: Tag,
    ) -> usize {
        match self.lanes() {
            Some(lanes) if phase == ServicePhase::Weight && lanes.volumes.len() > 1 => {
                let binds = lanes.own.bind(&Amount::of_reference(info), now);
                if binds == [false; 2] {
                    return chosen;
                }
                let picked = self.first_in_turn(lanes, binds, arena, now).unwrap_or(chosen);
                self.note_picked(picked);
                picked
            }
            _ => chosen,
        }
    }

    /// Bounds the debt of a volume that is served for its reservation, as that of a share (`Level::debt_base`).
    fn turn_debt(&self, lanes: &Lanes, volume: usize, direction: Direction, cost: u64) -> Debt {
        let (at, turn) = (direction as usize, lanes.turn[direction as usize]);
        let waits = |other: &usize| *other != volume && !self.fifo(*other, direction).is_empty();
        let others = (0..lanes.volumes.len()).filter(waits).map(|other| &lanes.volumes[other]);
        let debts = others.filter(|lane| !lane.spacing.is_none()).map(|lane| {
            let first = lane.turns[at].max(turn);
            Debt { first, base: first.saturating_add(lane.spacing.of(cost)) }
        });
        debts.min_by_key(|debt| (debt.first, debt.base)).unwrap_or(Debt { first: turn, base: turn })
    }

    fn first_in_turn(&self, lanes: &Lanes, binds: [bool; 2], arena: &Arena, now: Tag) -> Option<usize> {
        let mut first: [Option<Competitor>; 2] = [None; 2];
        for volume in 0..lanes.volumes.len() {
            let ready =
                self.volumes[volume].member.as_ref().filter(|member| member.is_ready() && member.tags.is_weighted());
            let Some((member, (Open { direction, .. }, head))) = ready.zip(self.open(volume, arena, now)) else {
                continue;
            };
            let (at, share) = (direction as usize, member.tags.share_tag());
            let turn = lanes.volumes[volume].turns[at].max(lanes.turn[at]);
            let rank = if binds[at] { (turn, head.id) } else { (share, member.head) };
            if first[at].is_none_or(|known| rank < known.rank) {
                first[at] = Some(Competitor { rank, share: (share, member.head), volume });
            }
        }
        first.into_iter().flatten().min_by_key(|first| first.share).map(|first| first.volume)
    }

    /// Removes the requests of `scope`, in order of their arrival.
    pub(super) fn cancel(&mut self, scope: Scope, arena: &mut Arena, removed: &mut Vec<Request>) {
        for volume in 0..self.volumes.len() {
            let before = removed.len();
            for direction in Direction::ALL.into_iter().take(if self.lanes.is_some() { 2 } else { 1 }) {
                let left = removed.len();
                arena.remove_if(self.fifo_mut(volume, direction), removed, |request| scope.contains(request));
                let count = (removed.len() - left) as u32;
                self.note_queued(direction, -count.cast_signed());
                self.queued -= count;
            }
            removed[before..].sort_unstable_by_key(|request| request.id);
        }
    }

    /// Adapts the queues and limits to the policies of the VM and its volumes. O(queued requests) if the first limit of this
    /// kind was stated or the last one removed.
    pub(super) fn arrange_lanes(&mut self, arena: &mut Arena, info: &DeviceInfo, now: Tag) {
        let is_stated =
            Further::is_stated(&self.policy) || self.volumes.iter().any(|volume| Further::is_stated(&volume.policy));
        let mut known = match self.lanes.take() {
            None if !is_stated => return,
            known => known.unwrap_or_default(),
        };
        self.exchange_fifo();
        let mut lanes = std::mem::take(&mut known.volumes);
        for volume in self.volumes.iter_mut() {
            let lane = lanes.iter().position(|lane| lane.id == volume.id).map(|at| lanes.swap_remove(at));
            match lane {
                Some(lane) if is_stated => known.volumes.push(lane),
                Some(mut lane) => unite(&mut volume.fifo, &mut lane.writes, arena),
                None if !is_stated => {}
                None => {
                    let writes = divide(&mut volume.fifo, arena);
                    let (further, spacing) = (Further::default(), Spacing::NONE);
                    known.volumes.push(Lane { id: volume.id, further, spacing, turns: known.turn, writes });
                }
            }
        }
        if !is_stated {
            self.exchange_fifo();
            return self.set_lanes_to(None);
        }
        let queued = |fifos: &mut dyn Iterator<Item = &Fifo>| fifos.map(|fifo| fifo.len() as u32).sum();
        let reads = queued(&mut self.volumes.iter().map(|volume| &volume.fifo));
        known.queued = [reads, queued(&mut known.volumes.iter().map(|lane| &lane.writes))];
        self.exchange_fifo();
        self.set_lanes_to(Some(known));
        self.set_lanes(info, now);
    }

    /// When the limits let the next request pass; `None` without a limit of the VM or by direction.
    pub(super) fn limit_passes_at(&self) -> Option<Tag> {
        let own = &self.member.tags.limiter;
        let Some(lanes) = self.lanes() else { return own.is_set().then(|| own.eligible_at()) };
        let passes = (0..self.volumes.len())
            .filter(|volume| Direction::ALL.into_iter().any(|direction| !self.fifo(*volume, direction).is_empty()));
        let first = passes.map(|volume| {
            let member = self.volumes[volume].member.as_ref();
            let limiter = member.map_or(0, |member| member.tags.limiter.eligible_at());
            lanes.pass_at(volume, self.fifo(volume, Direction::Read)).max(limiter)
        });
        let first = first.min();
        Some(own.eligible_at().max(first.unwrap_or(0)))
    }

    /// Adds the buckets of the limits by direction and of the rates of a burst, of the VM or of one of its volumes, and its turns.
    pub(super) fn add_standing_of_lanes(&self, volume: Option<usize>, now: Tag, standing: &mut Standing) {
        let Some(lanes) = self.lanes() else { return };
        let Some(volume) = volume else { return lanes.own.add_standing(now, standing) };
        let lane = &lanes.volumes[volume];
        lane.further.add_standing(now, standing);
        standing.turns = core::array::from_fn(|at| Some(lane.spacing.amount_between(lanes.turn[at], lane.turns[at])));
    }

    /// Sets these to the standing under another scheduler.
    pub(super) fn resume_lanes(&mut self, volume: Option<usize>, now: Tag, standing: &Standing) {
        let Some(lanes) = self.lanes_mut() else { return };
        let Some(volume) = volume else { return lanes.own.resume(now, standing) };
        let (turn, lane) = (lanes.turn, &mut lanes.volumes[volume]);
        lane.further.resume(now, standing);
        for ((turn, own), ahead) in turn.into_iter().zip(&mut lane.turns).zip(standing.turns) {
            *own = lane.spacing.tag_after(turn, ahead.unwrap_or(0).max(0));
        }
    }

    /// Sets the limits by direction.
    pub(super) fn set_lanes(&mut self, info: &DeviceInfo, now: Tag) {
        let servers = self.remote().map_or(1, |remote| remote.servers);
        let Some(lanes) = &mut self.lanes else { return };
        lanes.own.set(&self.policy, info, servers, now);
        for (lane, volume) in lanes.volumes.iter_mut().zip(self.volumes.iter()) {
            lane.further.set(&volume.policy, info, 1, now);
            let spacing = Spacing::of_weight(volume.policy.effective_weight());
            // As with a share: a debt at a large weight is not one of as many requests at a small weight.
            for (turn, own) in lanes.turn.into_iter().zip(&mut lane.turns) {
                let ahead = own.saturating_sub(turn);
                *own = turn.saturating_add(ahead.min(lane.spacing.convert(ahead, spacing)));
            }
            lane.spacing = spacing;
        }
    }
}

/// Moves all requests but reads into a queue of their own.
fn divide(all: &mut Fifo, arena: &mut Arena) -> Fifo {
    let (mut moved, mut writes) = (Vec::new(), Fifo::default());
    arena.remove_if(all, &mut moved, |request| request.kind.direction() == Direction::Write);
    moved.into_iter().for_each(|request| arena.push(&mut writes, request));
    writes
}

/// Moves them back to the reads, in order of their arrival.
fn unite(reads: &mut Fifo, writes: &mut Fifo, arena: &mut Arena) {
    let mut moved = Vec::new();
    arena.remove_if(reads, &mut moved, |_| true);
    arena.remove_if(writes, &mut moved, |_| true);
    moved.sort_unstable_by_key(|request| request.id);
    moved.into_iter().for_each(|request| arena.push(reads, request));
}
