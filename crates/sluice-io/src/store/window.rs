//! A wrapper that measures how long requests take at the device, and says whether another one may go there: what is in flight follows a
//! stated time.
//!
//! A request counts from the first operation of its slot to the end of the last one. One that no operation was started for does not
//! count, nor does one that was in flight when the window came, or one that the storage was not asked for.

use std::sync::Arc;

use sluice_pool::{Aim, Order, Report, State, Window, exchange};
use sluice_sched::gate::Slot;
use sluice_sched::{Cost, Gate, Instant, Kind};

use crate::source::ExtentMap;
use crate::store::delay::{Delay, Delayed};
use crate::store::file::FileSpec;
use crate::store::{Context, Done, Op, OpIndex, Store, StoreEvent, StoreInfo, StoreRef, StoreSpec};

/// A store with a window, or without one.
pub(crate) struct Windowed<S> {
    counted: Option<Counted>,
    below: S,
}

/// A window, and what it counts.
struct Counted {
    window: Window,
    /// By slot of the gate.
    sent: Vec<Sent>,
    /// The pool that the device is a part of, for people.
    pool: Option<Arc<exchange::State>>,
    /// By [`OpIndex`]: the slot of an operation that was started since there is a window.
    slots: Vec<Option<Slot>>,
}

/// A request in a slot.
#[derive(Debug, Clone, Copy)]
struct Sent {
    kind: Kind,
    cost: Cost,
    at: Instant,
    /// Operations in flight.
    operations: u32,
    /// Whether the storage was asked for one of them.
    is_asked: bool,
}

impl Counted {
    fn new(now: Instant, aim: Aim) -> Self {
        Counted { window: Window::new(now, aim), pool: None, sent: Vec::new(), slots: Vec::new() }
    }

    fn start(&mut self, now: Instant, op: &Op<'_>) {
        let (slot, index) = (op.slot.0 as usize, op.index.0 as usize);
        if self.sent.len() <= slot {
            self.sent
                .resize(slot + 1, Sent { kind: Kind::Read, cost: Cost::NONE, at: now, operations: 0, is_asked: false });
        }
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.slots[index] = Some(op.slot);
        let sent = &mut self.sent[slot];
        if let Some(request) = op.first {
            *sent = Sent { kind: request.kind, cost: request.cost, at: now, operations: 0, is_asked: false };
            self.window.start(now, request.cost);
        }
        sent.operations += 1;
    }

    fn end(&mut self, now: Instant, index: OpIndex, done: Done) {
        let Some(slot) = self.slots.get_mut(index.0 as usize).and_then(Option::take) else { return };
        let sent = &mut self.sent[slot.0 as usize];
        sent.operations -= 1;
        sent.is_asked |= done != Done::AtHand;
        if sent.operations == 0 {
            let took = sent.is_asked.then_some((sent.kind, sent.at));
            self.window.end(now, sent.cost, took);
        }
    }
}

impl<S> Windowed<S> {
    pub(crate) fn new(now: Instant, aim: Option<Aim>, below: S) -> Self {
        Windowed { counted: aim.map(|aim| Counted::new(now, aim)), below }
    }

    /// Changes the aim, or does without a window.
    pub(crate) fn set_aim(&mut self, now: Instant, aim: Option<Aim>) {
        match (&mut self.counted, aim) {
            (Some(counted), Some(aim)) => counted.window.set_aim(now, aim),
            (counted, aim) => *counted = aim.map(|aim| Counted::new(now, aim)),
        }
    }

    /// Returns the aim, if there is a window.
    pub(crate) fn aim(&self) -> Option<Aim> {
        self.counted.as_ref().map(|counted| counted.window.aim())
    }

    /// Ends what is over. To be called before requests are sent.
    pub(crate) fn advance(&mut self, now: Instant, gate: &mut Gate) {
        if let Some(Counted { window, .. }) = &mut self.counted {
            window.advance(now, gate);
        }
    }

    /// Whether another request may be sent.
    #[inline]
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted.window.has_room(now))
    }

    /// Notes that nothing more is sent now, and whether requests are left.
    #[inline]
    pub(crate) fn pause(&mut self, now: Instant, is_left: bool) {
        if let Some(Counted { window, .. }) = &mut self.counted {
            let is_wanted = is_left && !window.has_room(now);
            window.want(is_wanted);
        }
    }

    /// Ends a period of a device in a pool.
    pub(crate) fn end_period(&mut self, now: Instant, gate: &mut Gate) -> Option<Report> {
        self.counted.as_mut()?.window.close(now, gate)
    }

    /// Does what the exchange of a pool says. Without a window there is nothing to be told.
    pub(crate) fn obey(&mut self, now: Instant, order: Option<(Order, Arc<exchange::State>)>, gate: &mut Gate) {
        if let Some(Counted { window, pool, .. }) = &mut self.counted {
            let (order, state) = order.unzip();
            window.obey(now, order, gate);
            *pool = state;
        }
    }

    /// Returns the state of the window.
    pub(crate) fn state(&self) -> Option<State> {
        let Counted { window, pool, .. } = self.counted.as_ref()?;
        Some(State { pool: pool.clone(), ..window.state() })
    }
}

impl<S> Windowed<Delayed<S>> {
    /// What is below the wrappers.
    pub(crate) fn stores(&self) -> &S {
        &self.below.below
    }

    /// Returns a store with its addresses on the device. On a modelled one they are the offsets in the file, whose place on its own disk means
    /// nothing there.
    pub(crate) fn placed(&self, store: StoreSpec) -> StoreSpec {
        match store {
            StoreSpec::File(FileSpec { source, .. }) if self.below.delay.as_ref().is_some_and(Delay::is_modelled) => {
                let extents = Some(ExtentMap::by_offset(source.range()));
                StoreSpec::File(FileSpec { source, extents })
            }
            store => store,
        }
    }

    pub(crate) fn stores_mut(&mut self) -> &mut S {
        &mut self.below.below
    }
}

impl<S: Store> Store for Windowed<S> {
    fn info(&self, volume: StoreRef) -> &StoreInfo {
        self.below.info(volume)
    }

    fn start(&mut self, context: &mut Context<'_>, op: &Op<'_>) {
        if let Some(counted) = &mut self.counted {
            counted.start(context.now, op);
        }
        self.below.start(context, op);
    }

    fn event(&mut self, context: &mut Context<'_>, event: StoreEvent, result: i32) {
        self.below.event(context, event, result);
    }

    fn next_done(&mut self, now: Instant) -> Option<(OpIndex, Done)> {
        let (index, done) = self.below.next_done(now)?;
        if let Some(counted) = &mut self.counted {
            counted.end(now, index, done);
        }
        Some((index, done))
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let room = self.counted.as_ref().and_then(|counted| counted.window.next_wakeup());
        room.into_iter().chain(self.below.next_wakeup()).min()
    }
}
