//! A VM of a simulation: who it is at each node, what its threads do, and what it got.

use std::collections::VecDeque;

use sluice_sched::tracker::Tracker;
use sluice_sched::{Instant, OwnerId, VolumeId};

use crate::random::Stream;
use crate::record::Record;
use crate::workloads::Workload;

/// Which node a request goes to.
#[derive(Debug, Clone)]
pub enum Placement {
    /// Always this one.
    Pinned(usize),
    /// Any of those that work, equally likely.
    Uniform(Stream),
    /// One after the other.
    RoundRobin(usize),
}

/// One thread of a VM.
pub struct Thread {
    /// What it asks for.
    pub workload: Box<dyn Workload>,
    /// Where its file begins on the device, in bytes.
    pub base: u64,
    /// Its writes wait for the disk, as with direct I/O; else they are those of a cache that writes back.
    pub synchronous: bool,
}

impl Thread {
    /// A thread with a file at the start of the device, whose writes nobody waits for.
    #[must_use]
    pub fn new(workload: Box<dyn Workload>) -> Self {
        Thread { workload, base: 0, synchronous: false }
    }

    /// With its file at byte `base` of the device.
    #[must_use]
    pub fn at(self, base: u64) -> Self {
        Thread { base, ..self }
    }

    /// With direct I/O.
    #[must_use]
    pub fn synchronous(self) -> Self {
        Thread { synchronous: true, ..self }
    }
}

/// Whether a VM does anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Active,
    /// It asks for nothing new.
    Idle,
    /// And what waited has left.
    Stopped,
}

/// A thread, and what the engine knows of it.
pub(super) struct Runner {
    pub(super) thread: Thread,
    /// Its owner in a guest's gate, else that of its VM.
    pub(super) owner: OwnerId,
    /// The time for which it stands in the order of events.
    pub(super) planned: Option<Instant>,
}

/// A VM.
pub(super) struct Vm {
    pub(super) record: Record,
    /// Who it is at each node that it uses.
    pub(super) owners: Vec<Option<(OwnerId, VolumeId)>>,
    pub(super) placement: Placement,
    /// What it got where, if its gateway says so to the nodes: dmClock.
    pub(super) tracker: Option<Tracker>,
    pub(super) runners: Vec<Runner>,
    /// Requests that no node takes now; they stand where a guest's driver would hold them.
    pub(super) backpressured: VecDeque<u32>,
    pub(super) state: State,
    /// Dispatched by the phase of its right, up to the end of the warm-up.
    pub(super) dispatched_before: [u64; 3],
    /// When its threads had nothing more to ask and all was over.
    pub(super) ended: Option<Instant>,
}

impl Vm {
    pub(super) fn new(record: Record, placement: Placement) -> Self {
        Vm {
            record,
            owners: Vec::new(),
            placement,
            tracker: None,
            runners: Vec::new(),
            backpressured: VecDeque::new(),
            state: State::Active,
            dispatched_before: [0; 3],
            ended: None,
        }
    }
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) vm: u32,
    pub(super) thread: u32,
    pub(super) kind: sluice_sched::Kind,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) arrived: Instant,
}

/// Requests on their way, by handle.
#[derive(Debug, Default)]
pub(super) struct Opens {
    entries: Vec<Option<Open>>,
    free: Vec<u32>,
}

impl Opens {
    pub(super) fn add(&mut self, open: Open) -> u32 {
        match self.free.pop() {
            Some(token) => {
                self.entries[token as usize] = Some(open);
                token
            }
            None => {
                self.entries.push(Some(open));
                (self.entries.len() - 1) as u32
            }
        }
    }

    pub(super) fn get(&self, token: u32) -> Open {
        self.entries[token as usize].expect("a request is over once")
    }

    pub(super) fn remove(&mut self, token: u32) -> Open {
        self.free.push(token);
        self.entries[token as usize].take().expect("a request is over once")
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Open> {
        self.entries.iter().flatten()
    }
}
