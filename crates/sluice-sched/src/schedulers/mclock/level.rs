//! One level of the hierarchy: the VMs at a device, or the volumes inside a VM.
//!
//! A level orders its members that have requests. Those that their limit lets pass are in `reserved` (by when they are due) and in
//! `by_share` (by share tag, those with and without a reservation apart); those that it holds are in `limited` (by when it
//! will let them pass). Every call costs O(log members).
//!
//! The orders of members that may pass are corrected lazily: a dispatch updates the one by which it chose, and an entry that
//! comes to the front of another is compared with the member and moved back. That is right because a member's tags never
//! decrease while it is in an order, and a change that decreases one puts it in again.
//!
//! Over-commit: all reservation tags count from a common clock offset. When the most overdue member lags by more than
//! `catch_up_max`, the offset moves on, and all reservations with it: what cannot be had is split in proportion to the
//! reservations. A cap for each member on its own would split it by other rules.

use crate::request::RequestId;
use crate::tag::{ShareTag, Tag};
use crate::tournament::{Tournament, key_digits};

use super::floor::Floor;
use super::tags::{Clocks, ServicePhase, Tags};

/// Where virtual time starts: room below it for idle credits.
pub(super) const VIRTUAL_START: ShareTag = 1 << 50;
/// Where it is rebased. One request of cost 1 at weight 0.01 takes 2.52 * 10^11, so this takes 18 million of them.
pub(super) const VIRTUAL_MAX: ShareTag = 1 << 62;
/// No decision has been made since the limit began to hold a member.
const NO_DECISION: Tag = Tag::MAX;

/// A VM or a volume as its level sees it.
#[derive(Debug, Clone, Default)]
pub(super) struct Member {
    pub(super) tags: Tags,
    /// The earliest arrival among its queued requests; breaks ties.
    pub(super) head: RequestId,
    pub(super) backlogged: bool,
    /// Whether it is in the list of members for which the time of the next decision is to be noted.
    pub(super) awaits_decision: bool,
    /// How its level counts it.
    counted: Counted,
    hold: Option<Hold>,
    /// When a limit last let it pass again; what arrived before that waited for the limit.
    pub(super) released: Tag,
}

/// What a member is at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Counted {
    /// It has no requests, no weight, or its limit holds it.
    #[default]
    Not,
    /// It may go, has a weight and no reservation.
    Unreserved,
    /// It may go, and has a weight and a reservation.
    Reserved,
}

/// A limit holds a member.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Tag,
    /// The first decision that could have chosen the member but for its limit: before that a full device held it.
    since: Tag,
    /// Virtual time then.
    virtual_then: ShareTag,
}

impl Member {
    pub(super) fn new(tags: Tags) -> Self {
        Member { tags, ..Member::default() }
    }

    fn is_ready(&self) -> bool {
        self.backlogged && self.hold.is_none()
    }

    /// Whether a limit holds it and no decision has been made since; `true` only once for each time.
    pub(super) fn needs_decision_noted(&mut self) -> bool {
        let undecided = self.hold.is_some_and(|hold| hold.since == NO_DECISION);
        undecided && !core::mem::replace(&mut self.awaits_decision, true)
    }

    /// A decision is made at `now` while its limit holds it.
    pub(super) fn note_decision(&mut self, now: Tag, virtual_time: ShareTag) {
        self.awaits_decision = false;
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.since == NO_DECISION) {
            (hold.since, hold.virtual_then) = (now, virtual_time);
        }
    }

    /// Its key among reservations.
    fn due_key(&self) -> Option<(Tag, RequestId)> {
        Some((self.tags.minimum.due()?, self.head))
    }

    /// Its key among shares, with or without a reservation.
    fn share_key(&self, reserved: bool) -> Option<(ShareTag, RequestId)> {
        let there = self.tags.is_weighted() && self.tags.minimum.is_set() == reserved;
        there.then_some((self.tags.share_tag(), self.head))
    }
}

/// Members by a key that may be out of date, but is then too small.
#[derive(Debug, Default)]
struct RunQueue(Tournament);

impl RunQueue {
    fn set(&mut self, index: u32, key: (u64, RequestId)) {
        self.0.set(index, key.0, key.1);
    }

    /// Returns the first member as [`Tournament::peek`] does, if its tag is at most `latest`. `key` is a member's true key, or
    /// `None` if it does not belong here any more.
    #[inline]
    fn first(&mut self, latest: u64, key: impl Fn(u32) -> Option<(u64, RequestId)>) -> Option<(u64, u64, u32)> {
        loop {
            let (tag, digits, index) = self.0.peek().filter(|(tag, _, _)| *tag <= latest)?;
            match key(index) {
                Some((own, head)) if (own, key_digits(head)) == (tag, digits) => return Some((tag, digits, index)),
                Some((own, head)) => self.0.set(index, own, head),
                None => self.0.remove(index),
            }
        }
    }
}

/// The orders and clocks of a level. `members` finds a member by its index.
#[derive(Debug)]
pub(super) struct Level {
    reserved: RunQueue,
    /// Without a reservation, and with one.
    by_share: [RunQueue; 2],
    limited: Tournament,
    /// Members of which each is [`Counted`]; the first number means nothing.
    counts: [u32; 3],
    clock_offset: Tag,
    /// The share tag of the member that was last chosen by weight. Never decreases, but where it is reset.
    pub(super) virtual_time: ShareTag,
    catch_up_max: Tag,
    floor: Floor,
}

impl Level {
    pub(super) fn new(catch_up_max: Tag, floor: Floor) -> Self {
        Level {
            reserved: RunQueue::default(),
            by_share: Default::default(),
            limited: Tournament::default(),
            counts: [0; 3],
            clock_offset: 0,
            virtual_time: VIRTUAL_START,
            catch_up_max,
            floor,
        }
    }

    /// Another level with the same parameters.
    pub(super) fn with_same_parameters(&self) -> Self {
        Level::new(self.catch_up_max, self.floor.with_same_parameters())
    }

    /// The same clocks with no member in any order; the caller settles each of the members anew.
    pub(super) fn emptied<'a>(&self, members: impl Iterator<Item = &'a mut Member>) -> Self {
        members.for_each(|member| member.counted = Counted::Not);
        let Level { clock_offset, virtual_time, floor, .. } = *self;
        Level { clock_offset, virtual_time, floor, ..self.with_same_parameters() }
    }

    pub(super) fn clocks(&self, now: Tag) -> Clocks {
        let due_now = now.saturating_sub(self.clock_offset);
        Clocks { now, due_now, virtual_time: self.virtual_time, debt_base: None }
    }

    /// A reservation tag on the clock of `now`.
    pub(super) fn real(&self, due: Tag) -> Tag {
        due.saturating_add(self.clock_offset)
    }

    /// Puts a member where it belongs after anything about it has changed. `eligible_at`: when limits let it pass.
    pub(super) fn settle(&mut self, index: u32, member: &mut Member, now: Tag, eligible_at: Tag) {
        self.hold_or_release(index, member, now, eligible_at);
        if member.is_ready() {
            if let Some(key) = member.due_key() {
                self.reserved.set(index, key);
            }
            self.place_by_share(index, member);
        }
    }

    /// The same after a dispatch by `right`, which decreases no key: only the order by which it chose is updated.
    #[inline(always)]
    pub(super) fn settle_after(
        &mut self,
        index: u32,
        member: &mut Member,
        now: Tag,
        eligible_at: Tag,
        phase: ServicePhase,
    ) {
        // What stays ready is neither held nor released, and counts as before.
        if !member.is_ready() || eligible_at > now {
            self.hold_or_release(index, member, now, eligible_at);
        }
        if member.is_ready() {
            match (phase, member.due_key()) {
                (ServicePhase::Reservation, Some(key)) => self.reserved.set(index, key),
                _ => self.place_by_share(index, member),
            }
        }
    }

    fn place_by_share(&mut self, index: u32, member: &Member) {
        let reserved = member.tags.minimum.is_set();
        if member.tags.is_weighted() {
            self.by_share[usize::from(reserved)].set(index, (member.tags.share_tag(), member.head));
        }
    }

    /// Takes a member without requests, or one that limits hold, out of the orders; ends its hold when they let it pass.
    fn hold_or_release(&mut self, index: u32, member: &mut Member, now: Tag, eligible_at: Tag) {
        if !member.backlogged {
            if member.hold.take().is_some() {
                self.limited.remove(index);
            }
        } else if eligible_at > now {
            // One that lives by its reservation alone is not woken before that is due.
            let due = member.tags.minimum.due().filter(|_| !member.tags.is_weighted());
            let wake = due.map_or(eligible_at, |due| eligible_at.max(self.real(due)));
            self.limited.set(index, wake, member.head);
            let hold = member.hold.get_or_insert(Hold { until: 0, since: NO_DECISION, virtual_then: 0 });
            hold.until = eligible_at;
        } else if let Some(hold) = member.hold.take() {
            self.limited.remove(index);
            member.released = now;
            // Whatever ended it, time or a change.
            let released = self.clocks(hold.until.min(now));
            if hold.since < released.now {
                member.tags.release(released.now - hold.since, hold.virtual_then, &released);
            }
        }
        let counted = match member.is_ready() && member.tags.is_weighted() {
            true if member.tags.minimum.is_set() => Counted::Reserved,
            true => Counted::Unreserved,
            false => Counted::Not,
        };
        if counted != member.counted {
            let before = core::mem::replace(&mut member.counted, counted);
            self.counts[before as usize] = self.counts[before as usize].wrapping_sub(1);
            self.counts[counted as usize] = self.counts[counted as usize].wrapping_add(1);
        }
    }

    /// A member whose limit lets it pass by `now`; [`Level::settle`] puts it back into the orders.
    pub(super) fn releasable(&self, now: Tag) -> Option<u32> {
        self.limited.peek().filter(|(until, _, _)| *until <= now).map(|(_, _, index)| index)
    }

    /// Who goes next and by which right: the member that is due first, unless the floor is owed; else the one that is furthest
    /// behind its share.
    // rule: mclock.weight-floor
    #[inline]
    pub(super) fn choose<'a>(
        &mut self,
        now: Tag,
        members: impl Fn(u32) -> Option<&'a Member>,
    ) -> Option<(u32, ServicePhase)> {
        match self.first_due(now, &members) {
            Some(due) if !self.floor.is_owed() || !self.has_unreserved() => Some((due, ServicePhase::Reservation)),
            _ => Some((self.choose_by_share(members)?, ServicePhase::Weight)),
        }
    }

    /// Counts a dispatch for the floor, before the member is settled. `goes_on`: in a batch with the one before.
    #[inline]
    pub(super) fn note_served(&mut self, phase: ServicePhase, cost: u64, goes_on: bool) {
        if !self.floor.is_kept() {
            return;
        }
        if phase == ServicePhase::Weight {
            self.floor.note_weight(cost, goes_on);
        } else if self.has_unreserved() {
            self.floor.note_reserved(cost);
        }
    }

    /// The member that is due first, if one is due by `now`.
    #[inline]
    pub(super) fn first_due<'a>(&mut self, now: Tag, members: impl Fn(u32) -> Option<&'a Member>) -> Option<u32> {
        let latest = now.checked_sub(self.clock_offset)?;
        let key = |index| members(index).filter(|member| member.is_ready())?.due_key();
        let (due, _, index) = self.reserved.first(latest, key)?;
        // rule: mclock.catch-up-cap
        self.clock_offset = self.clock_offset.saturating_add((latest - due).saturating_sub(self.catch_up_max));
        Some(index)
    }

    /// The member that is furthest behind its share.
    #[inline]
    pub(super) fn first_by_share<'a>(&mut self, members: impl Fn(u32) -> Option<&'a Member>) -> Option<u32> {
        self.peek_by_share(members).map(|(_, _, index)| index)
    }

    /// The same as [`Tournament::peek`] returns it.
    #[inline]
    fn peek_by_share<'a>(&mut self, members: impl Fn(u32) -> Option<&'a Member>) -> Option<(u64, u64, u32)> {
        let with = self.first_in(true, &members);
        if !self.has_unreserved() {
            return with;
        }
        match (self.first_in(false, &members), with) {
            (Some(without), Some(with)) => Some(without.min(with)),
            (one, other) => one.or(other),
        }
    }

    /// The clocks by which member `index` is charged for service in requests of the cost `each`. `is_capped`: whether the cap
    /// on its debt may bind, see [`Tags::is_capped`].
    #[inline]
    pub(super) fn charge_clocks<'a>(
        &mut self,
        is_capped: bool,
        each: u64,
        now: Tag,
        index: u32,
        members: impl Fn(u32) -> Option<&'a Member>,
    ) -> Clocks {
        let debt_base = is_capped.then(|| self.debt_base(each, index, members));
        Clocks { debt_base, ..self.clocks(now) }
    }

    /// From where the debt of a member is measured that is served for its reservation: from the turn after the next of the
    /// member that is first in line, if there is another one. Virtual time stands still during reservation service. Measured
    /// from there, the debt of a member whose share is larger than its reservation would be forgiven too, that of a VM that
    /// uses this server alone beside VMs whose tags move by what they got at other servers, and that of a large weight beside
    /// a small one. For a member that is alone it is virtual time: it owes nothing to anybody.
    // rule: mclock.debt-cap
    fn debt_base<'a>(&mut self, cost: u64, index: u32, members: impl Fn(u32) -> Option<&'a Member>) -> ShareTag {
        let first = match self.counts[Counted::Unreserved as usize] + self.counts[Counted::Reserved as usize] {
            0 => None,
            1 => self.first_by_share(&members).filter(|first| *first != index),
            _ => self.first_by_share(&members),
        };
        let base = first.and_then(members).map_or(0, |first| first.tags.share_tag_after(cost));
        base.max(self.virtual_time)
    }

    /// The same, and it is served now: virtual time comes to its tag.
    ///
    /// What follows it in a batch does not move virtual time. It would overtake the tags of those that wait, by a whole batch of
    /// the member with the lowest weight, and a member that wakes then would stand behind all of them.
    // rule: mclock.virtual-time
    #[inline]
    pub(super) fn choose_by_share<'a>(&mut self, members: impl Fn(u32) -> Option<&'a Member>) -> Option<u32> {
        let (tag, _, chosen) = self.peek_by_share(members)?;
        self.virtual_time = self.virtual_time.max(tag);
        Some(chosen)
    }

    /// Whether a member without a reservation may be chosen.
    const fn has_unreserved(&self) -> bool {
        self.counts[Counted::Unreserved as usize] > 0
    }

    #[inline]
    fn first_in<'a>(
        &mut self,
        reserved: bool,
        members: &impl Fn(u32) -> Option<&'a Member>,
    ) -> Option<(u64, u64, u32)> {
        let key = |index| members(index).filter(|member| member.is_ready())?.share_key(reserved);
        self.by_share[usize::from(reserved)].first(u64::MAX, key)
    }

    /// When the first member that may not be chosen now will be due, or its limit will let it pass.
    // rule: mclock.wake-product
    pub(super) fn wake<'a>(&mut self, members: impl Fn(u32) -> Option<&'a Member>) -> Option<Tag> {
        let key = |index| members(index).filter(|member| member.is_ready())?.due_key();
        let due = self.reserved.first(u64::MAX, key).map(|(due, _, _)| self.real(due));
        let passes = self.limited.peek().map(|(until, _, _)| until);
        due.into_iter().chain(passes).min()
    }

    /// Rebases virtual time; the caller rebases the tags of all members by the result. O(members), once in 18 million
    /// requests at the smallest weight.
    pub(super) fn rebase(&mut self) -> ShareTag {
        let by = self.virtual_time - VIRTUAL_START;
        self.virtual_time = VIRTUAL_START;
        self.by_share.iter_mut().for_each(|queue| queue.0.lower(by));
        by
    }
}
