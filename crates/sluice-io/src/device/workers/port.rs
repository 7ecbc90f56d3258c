//! A worker's end of the shared gate.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sluice_sched::gate::{Finished, Outcome, Slot};
use sluice_sched::{Arrival, GateSettings, Instant, Scope};

use crate::clock::Clock;
use crate::device::workers::changes::Tape;
use crate::device::workers::hub::{Arrived, Grant, Hub, Note, Passed, Record};
use crate::device::workers::lane::{Reader, Writer};
use crate::device::workers::token;

/// Combinations of one call. A worker that finds more posted afterwards first looks after its own VMs.
const COMBINATIONS_MAX: u32 = 2;
/// A worker with requests at the gate looks this long after the gate was to be called, in case that the worker that was to
/// call it has no CPU.
const GRACE: Duration = Duration::from_millis(1);

pub(crate) struct Port {
    pub(super) hub: Arc<Hub>,
    pub(super) worker: u8,
    outbox: Writer<Record>,
    inbox: Reader<Note>,
    /// Records that had no room in the outbox. Those after them follow here, so that the order stays.
    backlog: VecDeque<Record>,
    /// Whether there are records of which the hub does not know.
    is_fresh: bool,
    /// Whether something was posted when this worker last unlocked the gate.
    owes: bool,
    /// The gate's settings, which only changes of the device change.
    pub(super) settings: GateSettings,
    /// Requests at the gate of which no piece was granted, and pieces that were granted and have not completed.
    queued: u64,
    in_flight: u64,
    completed: u64,
    /// Whether the submission of a slot is a piece of a split request; by slot.
    is_piece: Vec<bool>,
    pub(crate) tape: Tape,
}

impl Port {
    pub(crate) fn new(
        (hub, worker): (Arc<Hub>, u8),
        outbox: Writer<Record>,
        inbox: Reader<Note>,
        settings: GateSettings,
    ) -> Port {
        Port {
            hub,
            worker,
            outbox,
            inbox,
            backlog: VecDeque::new(),
            is_fresh: false,
            owes: false,
            settings,
            queued: 0,
            in_flight: 0,
            completed: 0,
            is_piece: Vec::new(),
            tape: Tape::default(),
        }
    }

    pub(crate) fn worker(&self) -> u8 {
        self.worker
    }

    pub(crate) fn is_first(&self) -> bool {
        self.worker == 0
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Submissions of this worker that have completed.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether another worker has to handle what this one has posted.
    pub(crate) fn awaits_gate(&self) -> bool {
        !self.outbox.is_read()
    }

    /// Whether it has nothing to post and nothing to take.
    pub(crate) fn is_settled(&self) -> bool {
        let has_posted = !self.is_fresh && !self.owes && self.backlog.is_empty();
        has_posted && self.inbox.is_empty() && !self.hub.seats[usize::from(self.worker)].has_more()
    }

    /// Called before the gate is used directly: shows it what was posted before, and lets the next exchange call it.
    pub(super) fn prepare_for_gate(&mut self) {
        self.outbox.publish();
        self.is_fresh = true;
    }

    fn post(&mut self, record: Record) {
        self.is_fresh = true;
        if !self.backlog.is_empty() || !self.outbox.push(record) {
            self.backlog.push_back(record);
        }
    }

    fn post_backlog(&mut self) {
        while let Some(record) = self.backlog.front()
            && self.outbox.push(*record)
        {
            self.backlog.pop_front();
            self.is_fresh = true;
        }
    }

    /// Posts a request, whose index is `arrival.token`.
    pub(crate) fn arrived(&mut self, arrival: &Arrival, occupies_device: bool) {
        self.queued += 1;
        let token = token::pack(self.worker, arrival.token, occupies_device);
        self.post(Record::Arrived(Arrived::new(arrival, token)));
    }

    /// Records that a request is queued at the gate no more.
    pub(crate) fn left(&mut self) {
        self.queued -= 1;
    }

    /// Records that a submission goes to the device.
    pub(crate) fn granted(&mut self, grant: &Grant) {
        self.in_flight += 1;
        let at = grant.slot.0 as usize;
        if at >= self.is_piece.len() {
            self.is_piece.resize(at + 1, false);
        }
        self.is_piece[at] = grant.is_piece;
    }

    /// Posts the end of a submission. Returns the outcome of its request, unless it was one of several pieces.
    pub(crate) fn ended(&mut self, slot: Slot, ok: bool) -> Option<Outcome> {
        self.in_flight -= 1;
        self.completed += 1;
        let is_piece = self.is_piece[slot.0 as usize];
        self.post(Record::Completed { slot, ok, is_piece });
        let outcome = if ok { Outcome::Done } else { Outcome::Failed };
        (!is_piece).then_some(outcome)
    }

    /// Tells another worker something.
    pub(crate) fn pass(&mut self, worker: u8, passed: Passed) {
        self.post(Record::Pass(worker, passed));
    }

    /// Tells all other workers something.
    pub(crate) fn pass_to_others(&mut self, passed: Passed) {
        self.pass_to(!(1 << self.worker), passed);
    }

    /// Tells the workers whose bits are set something.
    pub(crate) fn pass_to(&mut self, workers: u32, passed: Passed) {
        if workers == 0 {
            return;
        }
        for worker in 0..self.hub.seats.len() as u8 {
            if workers & (1 << worker) != 0 {
                self.post(Record::Pass(worker, passed));
            }
        }
    }

    /// Lets the gate handle what was posted, here or by the worker that has the lock now, and call it if that is due.
    pub(crate) fn exchange(&mut self, now: Instant, clock: &Clock) {
        let has_more = self.inbox.is_empty() && self.hub.seats[usize::from(self.worker)].has_more();
        let mut has_posted = self.publish() || has_more;
        let mut is_due = self.hub.is_due(now);
        self.owes = false;
        for _ in 0..COMBINATIONS_MAX {
            if !is_due && !has_posted && !self.hub.is_posted() {
                return;
            }
            is_due = false;
            if !self.hub.try_combine(self.worker, clock, has_posted) {
                return;
            }
            has_posted = self.publish();
        }
        if has_posted {
            self.hub.post();
        }
        self.owes = self.hub.is_posted();
    }

    /// Shows the gate what was posted. Returns whether there was something.
    fn publish(&mut self) -> bool {
        self.post_backlog();
        self.outbox.publish();
        std::mem::take(&mut self.is_fresh)
    }

    pub(crate) fn next_note(&mut self) -> Option<Note> {
        self.inbox.pop()
    }

    /// Returns when this worker has to call the gate.
    pub(crate) fn next_wakeup(&self) -> Option<Instant> {
        let (wake, worker) = self.hub.wake()?;
        match worker == self.worker {
            true => Some(wake),
            false => (self.queued > 0).then(|| wake + GRACE),
        }
    }

    /// Says that the worker is about to sleep. Returns `false` if it must not, because there are notes.
    pub(crate) fn sleep(&self) -> bool {
        let seat = &self.hub.seats[usize::from(self.worker)];
        seat.sleep();
        let may_sleep = self.inbox.is_empty();
        if !may_sleep {
            seat.wake_up();
        }
        may_sleep
    }

    pub(crate) fn wake_up(&self) {
        self.hub.seats[usize::from(self.worker)].wake_up();
    }

    /// Cancels queued requests. Returns those of this worker, by index; others are told to their workers. Records that were
    /// posted before are handled first.
    pub(crate) fn cancel(&mut self, scope: Scope, clock: &Clock) -> Vec<Finished> {
        self.prepare_for_gate();
        let (worker, backlog) = (self.worker, &mut self.backlog);
        self.hub.with_gate(clock, |combined, now| {
            backlog.drain(..).for_each(|record| combined.take(now, record));
            combined.cancel(now, scope, worker)
        })
    }

    /// Returns the answers of the gate to the last change.
    pub(crate) fn take_tape(&mut self) -> Tape {
        std::mem::take(&mut self.tape)
    }
}
