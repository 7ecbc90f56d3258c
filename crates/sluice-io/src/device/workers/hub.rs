//! The gate that the workers of a device share, behind its lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use sluice_sched::gate::{Finished, Outcome, Part, Slot, Submission};
use sluice_sched::{Arrival, Device, Flags, Gate, Instant, Kind, OwnerId, VolumeId};

use crate::backend::delay::Servers;
use crate::backend::sync::SyncNote;
use crate::clock::Clock;
use crate::device::mailbox::Mailbox;
use crate::device::workers::figures::Figures;
use crate::device::workers::lane::{Reader, Writer};
use crate::device::workers::token;

/// A message of a worker to the gate, or through the gate to another worker. It holds no buffer. A cache line holds two
/// records, since each line passes from one CPU to another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Record {
    Arrived(Arrived),
    /// The end of a submission. If it is a piece of a split request, the worker is told when the last one has ended; the end of
    /// a request that was dispatched as a whole it has seen itself.
    Completed {
        slot: Slot,
        ok: bool,
        is_piece: bool,
    },
    Pass(u8, Passed),
}

/// An [`Arrival`] without the report of a dmClock client, which no frontend has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    offset: u64,
    owner: OwnerId,
    length: u32,
    token: u32,
    volume: VolumeId,
    kind: Kind,
    flags: Flags,
}

impl Arrived {
    /// The token names the request at the gate.
    pub(crate) fn new(arrival: &Arrival, token: u32) -> Arrived {
        let Arrival { owner, volume, kind, flags, offset, length, .. } = *arrival;
        Arrived { offset, owner, length, token, volume, kind, flags }
    }

    fn arrival(self) -> Arrival {
        let Arrived { offset, owner, length, token, volume, kind, flags } = self;
        Arrival { owner, volume, kind, flags, offset, length, token, remote: None }
    }
}

/// A submission, as the worker that has its request needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) slot: Slot,
    pub(crate) kind: Kind,
    /// Whether it is a piece of a split request.
    pub(crate) is_piece: bool,
    pub(crate) part: Part,
}

/// What a worker is told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Note {
    /// A request, or a piece of one, may go to the device. With a delay it ends no sooner than at `end`.
    Granted {
        grant: Grant,
        end: Instant,
    },
    /// A request has ended at the gate: its last piece has completed, or it was cancelled.
    Finished {
        token: u32,
        outcome: Outcome,
    },
    /// The gate has not taken a request.
    Refused {
        token: u32,
    },
    Passed(Passed),
}

/// A message of one worker to another. The gate only passes it on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Passed {
    /// It has made room in the window of a VM.
    Room(OwnerId),
    /// The last request of disconnected clients of a volume has ended.
    Admit(OwnerId, VolumeId),
    /// About a sync of a file.
    Sync(SyncNote),
    /// It has released blocks of a volume for which requests wait.
    Unclaimed(OwnerId, VolumeId),
}

const _: () = assert!(size_of::<Record>() <= 32 && size_of::<Note>() <= 32, "records are small");

/// What the workers of a device share.
pub(crate) struct Hub {
    combined: Mutex<Combined>,
    /// Whether records were posted since they were last drained.
    posted: AtomicBool,
    /// When the gate must be called again, in nanoseconds; [`u64::MAX`]: when records are posted.
    wake: AtomicU64,
    /// The worker that called the gate last, and sleeps until then at most.
    timer: AtomicU32,
    /// Whether all workers but the first are to end.
    ends: AtomicBool,
    /// Why one of the others has failed.
    failure: OnceLock<String>,
    pub(crate) seats: Vec<Seat>,
}

/// One worker, as the others see it. Each has cache lines of its own, and so do the figures, which it writes in each iteration.
#[repr(align(128))]
pub(crate) struct Seat {
    mailbox: Mailbox,
    /// Whether it sleeps, or is about to and looks at its inbox once more.
    sleeps: AtomicBool,
    /// Whether there are notes that had no room in its inbox.
    has_more: AtomicBool,
    /// Whether its thread has ended.
    has_ended: AtomicBool,
    pub(crate) figures: Figures,
}

impl Seat {
    pub(crate) fn new(mailbox: Mailbox) -> Seat {
        let no = || AtomicBool::new(false);
        Seat { mailbox, sleeps: no(), has_more: no(), has_ended: no(), figures: Figures::default() }
    }

    /// Says that it is about to sleep. It must look at its inbox afterwards.
    pub(crate) fn sleep(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn wake_up(&self) {
        if self.sleeps.load(Ordering::Relaxed) {
            self.sleeps.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_more(&self) -> bool {
        self.has_more.load(Ordering::Relaxed)
    }

    /// Wakes it if it sleeps. It is called when its inbox has got something.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst) {
            self.mailbox.wake();
        }
    }
}

impl Hub {
    pub(crate) fn new(combined: Combined, seats: Vec<Seat>) -> Hub {
        Hub {
            combined: Mutex::new(combined),
            posted: AtomicBool::new(false),
            wake: AtomicU64::new(u64::MAX),
            timer: AtomicU32::new(0),
            ends: AtomicBool::new(false),
            failure: OnceLock::new(),
            seats,
        }
    }

    /// Records that a worker has posted something. It must try to combine afterwards, because the one that holds the lock
    /// may have drained the outboxes already.
    pub(crate) fn post(&self) {
        self.posted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.posted.load(Ordering::SeqCst)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.wake.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Returns when the gate must be called again, and which worker sees to that.
    pub(crate) fn wake(&self) -> Option<(Instant, u8)> {
        let wake = self.wake.load(Ordering::Relaxed);
        (wake != u64::MAX).then(|| (Instant::from_nanos(wake), self.timer.load(Ordering::Relaxed) as u8))
    }

    /// Handles what was published, unless another worker holds the lock. That one looks again after it has unlocked, if this
    /// one `has_posted` something. A worker that gets the lock at once need not say that it has.
    ///
    /// # Panics
    /// If a worker has panicked at the gate. The device is restarted.
    pub(crate) fn try_combine(&self, worker: u8, clock: &Clock, has_posted: bool) -> bool {
        let mut combined = match self.try_lock() {
            Some(combined) => combined,
            None if !has_posted => return false,
            None => {
                self.post();
                let Some(combined) = self.try_lock() else { return false };
                combined
            }
        };
        let now = combined.now(clock);
        combined.drain(self, now);
        let wake = combined.pump(now);
        self.wake.store(wake.map_or(u64::MAX, Instant::as_nanos), Ordering::Relaxed);
        self.timer.store(u32::from(worker), Ordering::Relaxed);
        combined.inboxes.deliver(self, Some(worker));
        drop(combined);
        fence(Ordering::SeqCst);
        true
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Combined>> {
        match self.combined.try_lock() {
            Ok(combined) => Some(combined),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("another worker has panicked at the gate"),
        }
    }

    /// Calls `use_it` with the gate, after all records that were posted before. Waits for at most one combination. The caller
    /// posts afterwards, so that the gate dispatches.
    ///
    /// # Panics
    /// As [`Hub::try_combine`].
    pub(crate) fn with_gate<T>(&self, clock: &Clock, use_it: impl FnOnce(&mut Combined, Instant) -> T) -> T {
        let mut combined = self.combined.lock().expect("no worker has panicked at the gate");
        let now = combined.now(clock);
        combined.drain(self, now);
        let result = use_it(&mut combined, now);
        combined.inboxes.deliver(self, None);
        result
    }

    /// Makes all workers but the first end.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        self.seats.iter().for_each(|seat| seat.mailbox.wake());
    }

    /// Records that another worker than the first has ended, because it was to end.
    pub(crate) fn has_ended(&self, worker: usize) {
        self.seats[worker].has_ended.store(true, Ordering::SeqCst);
        self.seats[0].mailbox.wake();
    }

    /// Records that another worker than the first has failed. The first one fails then too.
    pub(crate) fn has_failed(&self, why: String) {
        let _ = self.failure.set(why);
        self.seats[0].mailbox.wake();
    }

    /// Whether all workers but the first are to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    /// Returns why another worker than the first has failed.
    pub(crate) fn failure(&self) -> Option<&String> {
        self.failure.get()
    }

    /// Whether all workers but the first have ended.
    pub(crate) fn others_have_ended(&self) -> bool {
        self.seats[1..].iter().all(|seat| seat.has_ended.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
impl Hub {
    /// Returns what the gate has granted so far, and what `plain` grants after the same inputs.
    pub(crate) fn replay(&self, plain: Gate) -> (Vec<Submission>, Vec<Submission>) {
        std::mem::take(&mut self.combined.lock().unwrap().log).replay(plain)
    }
}

/// The gate, and the inner ends of the lanes.
pub(crate) struct Combined {
    pub(crate) gate: Gate,
    delay: Option<Servers>,
    outboxes: Vec<Reader<Record>>,
    inboxes: Inboxes,
    /// The last instant of a call of the gate, since each worker reads the clock itself.
    last: Instant,
    pub(super) finished: Vec<Finished>,
    #[cfg(test)]
    pub(crate) log: super::log::Log,
}

/// The inner ends of the inboxes.
struct Inboxes {
    lanes: Vec<Writer<Note>>,
    /// Notes that had no room. Bounded by what the windows and the slots allow to be at the gate.
    overflow: Vec<VecDeque<Note>>,
    /// The workers that have got notes, a bit for each.
    reached: u32,
}

impl Inboxes {
    fn give(&mut self, worker: u8, note: Note) {
        let at = usize::from(worker);
        self.reached |= 1 << worker;
        if !self.overflow[at].is_empty() || !self.lanes[at].push(note) {
            self.overflow[at].push_back(note);
        }
    }

    /// Moves notes to inboxes that have room again, shows them to the workers, and wakes those that have got some: except
    /// the one that holds the lock, which is awake.
    fn deliver(&mut self, hub: &Hub, awake: Option<u8>) {
        for (at, seat) in hub.seats.iter().enumerate() {
            let overflow = &mut self.overflow[at];
            while let Some(note) = overflow.front()
                && self.lanes[at].push(*note)
            {
                overflow.pop_front();
                self.reached |= 1 << at;
            }
            if seat.has_more() == overflow.is_empty() {
                seat.has_more.store(!overflow.is_empty(), Ordering::Relaxed);
            }
            if self.reached & (1 << at) != 0 {
                self.lanes[at].publish();
                if awake != Some(at as u8) {
                    seat.wake();
                }
            }
        }
        self.reached = 0;
    }
}

impl Combined {
    pub(crate) fn new(
        gate: Gate,
        delay: Option<Servers>,
        outboxes: Vec<Reader<Record>>,
        inboxes: Vec<Writer<Note>>,
    ) -> Self {
        let overflow = inboxes.iter().map(|_| VecDeque::new()).collect();
        Combined {
            gate,
            delay,
            outboxes,
            inboxes: Inboxes { lanes: inboxes, overflow, reached: 0 },
            last: Instant::ZERO,
            finished: Vec::new(),
            #[cfg(test)]
            log: Default::default(),
        }
    }

    fn now(&mut self, clock: &Clock) -> Instant {
        self.last = clock.now().max(self.last);
        self.last
    }

    /// Handles what all workers have posted.
    fn drain(&mut self, hub: &Hub, now: Instant) {
        // The exchange, and not a store: it makes visible what the worker that posted has written before. Without it what
        // is published may be handled too, and the gate is called once more than needed.
        if hub.posted.load(Ordering::Relaxed) {
            hub.posted.swap(false, Ordering::SeqCst);
        }
        for worker in 0..self.outboxes.len() {
            while let Some(record) = self.outboxes[worker].pop() {
                self.take(now, record);
            }
        }
    }

    /// Handles a record.
    pub(crate) fn take(&mut self, now: Instant, record: Record) {
        match record {
            Record::Arrived(arrival) => {
                let arrival = arrival.arrival();
                #[cfg(test)]
                self.log.arrived(now, arrival);
                if self.gate.insert(now, &arrival).is_err() {
                    let (worker, token) = token::split(arrival.token);
                    self.inboxes.give(worker, Note::Refused { token });
                }
            }
            Record::Completed { slot, ok, is_piece } => {
                #[cfg(test)]
                self.log.completed(now, slot, ok);
                self.gate.complete_all(now, slot, ok, &mut self.finished);
                match is_piece {
                    true => self.tell_finished(),
                    false => self.finished.clear(),
                }
            }
            Record::Pass(worker, passed) => self.inboxes.give(worker, Note::Passed(passed)),
        }
    }

    pub(super) fn tell_finished(&mut self) {
        for Finished { token, outcome, .. } in self.finished.drain(..) {
            let (worker, token) = token::split(token);
            self.inboxes.give(worker, Note::Finished { token, outcome });
        }
    }

    /// Lets the gate dispatch. Returns when it must be called again.
    fn pump(&mut self, now: Instant) -> Option<Instant> {
        #[cfg(test)]
        self.log.pumped(now);
        let Combined { gate, delay, inboxes, .. } = self;
        let mut grants = Grants {
            delay: delay.as_mut(),
            inboxes,
            #[cfg(test)]
            log: &mut self.log,
        };
        gate.pump(now, &mut grants)
    }
}

/// The device of the shared gate: a submission is carried out by the worker that has the request.
struct Grants<'a> {
    delay: Option<&'a mut Servers>,
    inboxes: &'a mut Inboxes,
    #[cfg(test)]
    log: &'a mut super::log::Log,
}

impl Device for Grants<'_> {
    fn submit(&mut self, now: Instant, submission: &Submission) {
        #[cfg(test)]
        self.log.granted(submission);
        let end = match &mut self.delay {
            Some(delay) if token::occupies_device(submission.token) => delay.start(now, &submission.request),
            _ => Instant::ZERO,
        };
        let (worker, token) = token::split(submission.token);
        let Submission { slot, skip, ref request, .. } = *submission;
        let part = Part { token, skip, length: request.length };
        let grant = Grant { slot, kind: request.kind, is_piece: request.flags.contains(Flags::PIECE), part };
        self.inboxes.give(worker, Note::Granted { grant, end });
    }
}
