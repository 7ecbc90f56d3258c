//! One level of the hierarchy: the VMs at a device, or the volumes inside a VM.
//!
//! A level orders its members that have requests. Members that their limit lets pass are in `reserved` (ordered by due
//! time) and in `by_share` (ordered by share tag, with and without a reservation separately). Members that their limit
//! throttles are in `limited` (ordered by the end of that). Every call costs O(log members).
//!
//! The orders of members that may pass are updated lazily: a dispatch updates the order by which it chose. When an
//! entry reaches the front of another order, it is compared with the member and moved back. This is correct because a
//! member's tags never decrease while it is in an order, and a change that decreases one inserts it again.
//!
//! Over-commit: all reservation tags count from a common clock offset. When the most overdue member lags by more than
//! `catch_up_max`, the offset increases, and all reservations are delayed with it. So a shortage is split in proportion
//! to the reservations; a cap for each member would split it otherwise. Example: 600 and 300 IOPS are reserved on a
//! device of 600 IOPS. The offset grows by a third of the time, and the members get 400 and 200 IOPS.
//!
//! Only a member that could have been served during all of its lag moves the offset ([`Lag`]). One that a limit held
//! during a part of it did not miss its service by the device's fault, and would delay the reservations of all others. Its own tag is moved up to the cap
//! when it is served.

use crate::request::RequestId;
use crate::standing::Standing;
use crate::tag::{ShareTag, Tag};
use crate::tournament::{Tournament, key_digits};

use super::floor::Floor;
use super::tags::{Clocks, ServicePhase, Tags};

/// Initial virtual time; the room below it is for idle credits.
pub(super) const VIRTUAL_START: ShareTag = 1 << 50;
/// Virtual time at which it is rebased. A request of cost 1 at weight 0.01 takes 2.52 * 10^11, so 18 million of them
/// fit.
pub(super) const VIRTUAL_MAX: ShareTag = 1 << 62;
/// No decision has been made since the limit started to throttle the member.
const NO_DECISION: Tag = Tag::MAX;

/// A VM or a volume as its level sees it. What a dispatch needs comes first.
#[derive(Debug, Clone, Default)]
#[repr(C)]
pub(super) struct Member {
    pub(super) backlogged: bool,
    /// Whether a limit throttles it; see `hold`.
    held: bool,
    /// The counter of the level that includes it.
    counted: Counted,
    /// The earliest arrival among its queued requests; breaks ties.
    pub(super) head: RequestId,
    /// When a limit that had delayed it last let it pass again; requests that arrived before have waited for the limit.
    pub(super) released: Tag,
    pub(super) tags: Tags,
    /// `released` on the clock of the reservations.
    released_due: Tag,
    /// Only meaningful while a limit throttles it.
    hold: Hold,
    /// Whether it is in the list of members for which the time of the next decision is to be noted.
    pub(super) awaits_decision: bool,
}

/// State of a member for the counters of its level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Counted {
    /// It has no requests, no weight, or its limit throttles it.
    #[default]
    Not,
    /// It may be dispatched, and has a weight but no reservation.
    Unreserved,
    /// It may be dispatched, and has a weight and a reservation.
    Reserved,
}

/// The time by which the reservation of a member is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lag {
    /// No limit held the member during this time.
    Ready,
    /// A limit held it during a part of this time.
    PartlyHeld,
}

/// When limits let a member pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Passes {
    /// When all of them do.
    pub(super) at: Tag,
    /// When those of the member itself do: of a volume, without those of its VM.
    pub(super) own: Tag,
}

impl Passes {
    /// Of a member with no limits of others.
    pub(super) const fn own(at: Tag) -> Self {
        Passes { at, own: at }
    }
}

/// Time during which a limit throttles a member.
#[derive(Debug, Clone, Copy, Default)]
struct Hold {
    until: Tag,
    /// The same for limits of the member itself.
    own_until: Tag,
    /// First decision that could have chosen the member without its limit; before, a full device delayed it.
    since: Tag,
    /// Virtual time at `since`.
    virtual_then: ShareTag,
}

impl Member {
    /// Size of what a dispatch needs, in bytes.
    pub(super) const HOT_SIZE: usize = core::mem::offset_of!(Member, tags) + Tags::HOT_SIZE;

    pub(super) fn new(tags: Tags) -> Self {
        Member { tags, ..Member::default() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.backlogged && !self.held
    }

    /// Whether a limit throttles it and no decision has been made since; `true` only once each time.
    pub(super) fn needs_decision_noted(&mut self) -> bool {
        let undecided = self.held && self.hold.since == NO_DECISION;
        undecided && !core::mem::replace(&mut self.awaits_decision, true)
    }

    /// Notes a decision at `now` while its limit throttles it.
    pub(super) fn note_decision(&mut self, now: Tag, virtual_time: ShareTag) {
        self.awaits_decision = false;
        if self.held && self.hold.since == NO_DECISION {
            (self.hold.since, self.hold.virtual_then) = (now, virtual_time);
        }
    }

    /// Returns the standing of the member, see [`Tags::standing`]. A limit that throttles it ends now. A member without requests
    /// is owed nothing.
    pub(super) fn standing(&self, clocks: &Clocks) -> Standing {
        let mut tags = self.tags.clone();
        if self.held {
            self.hold.release(&mut tags, clocks);
        }
        if self.lag() == Lag::PartlyHeld {
            tags.minimum.raise_to(clocks.due_least);
        }
        let standing = tags.standing(clocks);
        let owed = if self.backlogged { standing.owed } else { standing.owed.at_most_0() };
        Standing { owed, ..standing }
    }

    fn lag(&self) -> Lag {
        match self.tags.minimum.due() {
            Some(due) if due < self.released_due => Lag::PartlyHeld,
            _ => Lag::Ready,
        }
    }

    /// Key in the order of reservations.
    fn due_key(&self) -> Option<(Tag, RequestId)> {
        Some((self.tags.minimum.due()?, self.head))
    }

    /// Key in the order of shares, with or without a reservation.
    fn share_key(&self, reserved: bool) -> Option<(ShareTag, RequestId)> {
        let there = self.tags.is_weighted() && self.tags.minimum.is_set() == reserved;
        there.then_some((self.tags.share_tag(), self.head))
    }
}

impl Hold {
    /// Forgives a member the time until `clocks` during which it was held and could otherwise have been served. Returns whether there
    /// was such a time. What it is owed by its reservation ends where its own limits held it.
    fn release(&self, tags: &mut Tags, clocks: &Clocks) -> bool {
        let was_delayed = self.since < clocks.now;
        if was_delayed {
            let own = self.own_until.min(clocks.now).saturating_sub(self.since);
            tags.release(own, clocks.virtual_time.saturating_sub(self.virtual_then), clocks);
        }
        was_delayed
    }
}

/// Members by a key that may be out of date, but is then too small.
#[derive(Debug, Default)]
struct RunQueue(Tournament);

impl RunQueue {
    fn set(&mut self, index: u32, key: (u64, RequestId)) {
        self.0.set(index, key.0, key.1);
    }

    /// Returns the first member as [`Tournament::peek`] does, if its tag is at most `latest`. `key` returns a member's
    /// current key, or `None` if it does not belong here any more.
    #[inline(always)]
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

/// Orders and clocks of a level. `members` finds a member by its index.
#[derive(Debug)]
pub(super) struct Level {
    /// By [`Lag`].
    reserved: [RunQueue; 2],
    /// Without a reservation, and with one.
    by_share: [RunQueue; 2],
    limited: Tournament,
    /// Number of members by [`Counted`]; the first number is not used.
    counts: [u32; 3],
    clock_offset: Tag,
    /// Share tag of the member that was last chosen by weight, or a later one that all members have reached. Never decreases, except when
    /// it is reset.
    pub(super) virtual_time: ShareTag,
    catch_up_max: Tag,
    /// How long a due reservation waits for a member that was idle.
    yield_max: Tag,
    pub(super) floor: Floor,
}

impl Level {
    pub(super) fn new(catch_up_max: Tag, yield_max: Tag, floor: Floor) -> Self {
        Level {
            reserved: Default::default(),
            by_share: Default::default(),
            limited: Tournament::default(),
            counts: [0; 3],
            clock_offset: 0,
            virtual_time: VIRTUAL_START,
            catch_up_max,
            yield_max,
            floor,
        }
    }

    /// An empty level with the same parameters.
    pub(super) fn with_same_parameters(&self) -> Self {
        Level::new(self.catch_up_max, self.yield_max, self.floor.with_same_parameters())
    }

    /// A level with the same clocks and without members; the caller settles each of the members again.
    pub(super) fn emptied<'a>(&self, members: impl Iterator<Item = &'a mut Member>) -> Self {
        members.for_each(|member| member.counted = Counted::Not);
        let Level { clock_offset, virtual_time, floor, .. } = *self;
        Level { clock_offset, virtual_time, floor, ..self.with_same_parameters() }
    }

    pub(super) fn clocks(&self, now: Tag) -> Clocks {
        let due_now = now.saturating_sub(self.clock_offset);
        let due_least = due_now.saturating_sub(self.catch_up_max);
        Clocks { now, due_now, due_least, virtual_time: self.virtual_time, debt_base: None }
    }

    /// The clocks for a member that becomes active after the level itself got too little service: its reservation starts level with the
    /// most overdue one. From the present it would wait until the others have caught up, however small it is.
    pub(super) fn clocks_behind<'a>(&mut self, now: Tag, members: impl Fn(u32) -> Option<&'a Member>) -> Clocks {
        let clocks = self.clocks(now);
        let first = self.first_reserved(Lag::Ready, clocks.due_now, &members);
        let due_now = first.map_or(clocks.due_now, |(due, _, _)| due.max(clocks.due_least));
        Clocks { due_now, ..clocks }
    }

    /// A reservation tag on the clock of `now`.
    pub(super) fn real(&self, due: Tag) -> Tag {
        due.saturating_add(self.clock_offset)
    }

    /// Inserts a member into the orders after any change.
    pub(super) fn settle(&mut self, index: u32, member: &mut Member, now: Tag, passes: Passes) {
        self.hold_or_release(index, member, now, passes);
        if member.is_ready() {
            self.place_by_due(index, member);
            self.place_by_share(index, member);
        }
    }

    /// Like `settle`, after a dispatch in `phase`. A dispatch decreases no key, so only the order by which it chose is
    /// updated.
    #[inline(always)]
    pub(super) fn settle_after(
        &mut self,
        index: u32,
        member: &mut Member,
        now: Tag,
        passes: Passes,
        phase: ServicePhase,
    ) {
        // A member that stays ready is neither throttled nor released, and its counter does not change.
        if !member.is_ready() || passes.at > now {
            self.hold_or_release(index, member, now, passes);
        }
        if member.is_ready() {
            match phase {
                ServicePhase::Reservation if member.tags.minimum.is_set() => self.place_by_due(index, member),
                _ => self.place_by_share(index, member),
            }
        }
    }

    fn place_by_due(&mut self, index: u32, member: &Member) {
        if let Some(key) = member.due_key() {
            self.reserved[member.lag() as usize].set(index, key);
        }
    }

    fn place_by_share(&mut self, index: u32, member: &Member) {
        let reserved = member.tags.minimum.is_set();
        if member.tags.is_weighted() {
            self.by_share[usize::from(reserved)].set(index, (member.tags.share_tag(), member.head));
        }
    }

    /// Removes a member without requests, or one that limits throttle, from the orders; ends its throttling when they
    /// let it pass.
    fn hold_or_release(&mut self, index: u32, member: &mut Member, now: Tag, passes: Passes) {
        let Passes { at: eligible_at, own } = passes;
        if !member.backlogged {
            if core::mem::take(&mut member.held) {
                self.limited.remove(index);
            }
        } else if eligible_at > now {
            // A member without a weight is not woken before its reservation is due.
            let due = member.tags.minimum.due().filter(|_| !member.tags.is_weighted());
            let wake = due.map_or(eligible_at, |due| eligible_at.max(self.real(due)));
            self.limited.set(index, wake, member.head);
            if !core::mem::replace(&mut member.held, true) {
                member.hold = Hold { since: NO_DECISION, ..Hold::default() };
            }
            (member.hold.until, member.hold.own_until) = (eligible_at, own);
        } else if core::mem::take(&mut member.held) {
            let hold = member.hold;
            self.limited.remove(index);
            // Either time or a change of policy may have ended the throttling.
            let released = self.clocks(hold.until.min(now));
            if hold.release(&mut member.tags, &released) {
                (member.released, member.released_due) = (released.now, released.due_now);
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

    /// A member whose limit lets it pass by `now`; [`Level::settle`] inserts it into the orders again.
    pub(super) fn releasable(&self, now: Tag) -> Option<u32> {
        self.limited.peek().filter(|(until, _, _)| *until <= now).map(|(_, _, index)| index)
    }

    /// The next member and the phase: the member that is due first, unless [`Level::is_by_share`]; otherwise the one with
    /// the smallest share tag.
    // rule: mclock.weight-floor
    #[inline]
    pub(super) fn choose<'a>(
        &mut self,
        now: Tag,
        members: impl Fn(u32) -> Option<&'a Member>,
    ) -> Option<(u32, ServicePhase)> {
        match self.first_due(now, &members) {
            Some((late, due)) if !self.is_by_share(late, &members) => Some((due, ServicePhase::Reservation)),
            _ => Some((self.choose_by_share(members)?, ServicePhase::Weight)),
        }
    }

    /// Whether a member is chosen by weight although a reservation is due, since `late`: the floor is owed, or a member that was idle has
    /// become active. Its tag is below virtual time, and those of the others are not, so it gets one request ahead of a
    /// reservation that is late by less than `yield_max`. However many such members there are, reservations lose no service:
    /// they are late by this time at most.
    // DEVIATION \[mclock\] 3: in the paper a due reservation always goes first.
    #[inline]
    fn is_by_share<'a>(&mut self, late: Tag, members: &impl Fn(u32) -> Option<&'a Member>) -> bool {
        self.has_unreserved()
            && (self.floor.is_owed()
                || late < self.yield_max
                    && self.first_in(false, members).is_some_and(|(tag, ..)| tag < self.virtual_time))
    }

    /// Counts a dispatch for the floor, before the member is settled. `goes_on`: in a batch with the previous one.
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

    /// The member that is due first, if one is due by `now`, and how late it is.
    #[inline]
    pub(super) fn first_due<'a>(
        &mut self,
        now: Tag,
        members: impl Fn(u32) -> Option<&'a Member>,
    ) -> Option<(Tag, u32)> {
        let latest = now.checked_sub(self.clock_offset)?;
        let ready = self.first_reserved(Lag::Ready, latest, &members);
        // rule: mclock.catch-up-cap
        if let Some((due, _, _)) = ready {
            self.clock_offset = self.clock_offset.saturating_add((latest - due).saturating_sub(self.catch_up_max));
        }
        let held = self.first_reserved(Lag::PartlyHeld, latest, &members);
        let (due, _, index) = ready.into_iter().chain(held).min()?;
        Some((latest - due, index))
    }

    #[inline]
    fn first_reserved<'a>(
        &mut self,
        lag: Lag,
        latest: Tag,
        members: &impl Fn(u32) -> Option<&'a Member>,
    ) -> Option<(u64, u64, u32)> {
        let key = |index| members(index).filter(|member| member.is_ready() && member.lag() == lag)?.due_key();
        self.reserved[lag as usize].first(latest, key)
    }

    /// Moves the tag of a member that is served for its reservation up to the cap on the catch-up, if a limit held the member during
    /// its lag. The others have moved the common offset.
    #[inline]
    pub(super) fn bound_lag(&self, member: &mut Member, now: Tag) {
        if member.lag() == Lag::PartlyHeld {
            member.tags.minimum.raise_to(self.clocks(now).due_least);
        }
    }

    /// The member with the smallest share tag.
    #[inline]
    pub(super) fn first_by_share<'a>(&mut self, members: impl Fn(u32) -> Option<&'a Member>) -> Option<u32> {
        self.peek_by_share(members).map(|(_, _, index)| index)
    }

    /// The same, as [`Tournament::peek`] returns it.
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

    /// Lets virtual time follow the first of several members, before one is served for its reservation and its debt may be capped. If all
    /// were served for their reservations only, the tags would run away from it, and a member that wakes, or whose weight grows, would
    /// be served alone for as long.
    // rule: mclock.virtual-time
    #[inline]
    pub(super) fn follow_first<'a>(&mut self, is_capped: bool, members: impl Fn(u32) -> Option<&'a Member>) {
        if is_capped
            && self.ready() > 1
            && let Some((tag, _, _)) = self.peek_by_share(members)
        {
            self.virtual_time = self.virtual_time.max(tag);
        }
    }

    /// Number of members with a weight that may be chosen.
    const fn ready(&self) -> u32 {
        self.counts[Counted::Unreserved as usize] + self.counts[Counted::Reserved as usize]
    }

    /// The clocks with which member `index` is charged for service in requests of cost `each`. `is_capped`: whether the
    /// cap on its debt may bind, see [`Tags::is_capped`].
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

    /// Base of the debt of a member that is served for its reservation: the share tag that the first member in the
    /// weight phase will have after another request, if there is another member. Virtual time stands still during
    /// reservation service. With virtual time as the base, debt would also be forgiven to a member whose share is
    /// larger than its reservation, to a VM that uses only this server next to VMs whose tags include service at other
    /// servers, and to a large weight next to a small one. A member that is alone has virtual time as its base, since
    /// it owes nothing to others.
    // rule: mclock.debt-cap
    fn debt_base<'a>(&mut self, cost: u64, index: u32, members: impl Fn(u32) -> Option<&'a Member>) -> ShareTag {
        let first = match self.ready() {
            0 => None,
            1 => self.first_by_share(&members).filter(|first| *first != index),
            _ => self.first_by_share(&members),
        };
        let base = first.and_then(members).map_or(0, |first| first.tags.share_tag_after(cost));
        base.max(self.virtual_time)
    }

    /// Like `first_by_share`, for a member that is served now: virtual time advances to its tag.
    ///
    /// The following requests of a batch do not advance virtual time. It would overtake the tags of waiting members by
    /// a whole batch of the member with the smallest weight, and a member that wakes then would be ordered after all of
    /// them.
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

    /// When the next member will be due, or its limit will let it pass, if none may be chosen now.
    // rule: mclock.wake-product
    pub(super) fn wake<'a>(&mut self, members: impl Fn(u32) -> Option<&'a Member>) -> Option<Tag> {
        let due = [Lag::Ready, Lag::PartlyHeld].map(|lag| self.first_reserved(lag, u64::MAX, &members));
        let due = due.into_iter().flatten().map(|(due, _, _)| self.real(due)).min();
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
