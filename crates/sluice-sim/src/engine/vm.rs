//! A VM of a simulation: its ids at each node, its threads, and its record.

use std::collections::VecDeque;

use sluice_sched::slab::Slab;
use sluice_sched::tracker::Tracker;
use sluice_sched::{Instant, OwnerId, VolumeId};

use crate::random::Stream;
use crate::record::Record;
use crate::workloads::Workload;

/// Choice of the node for a request.
#[derive(Debug, Clone)]
pub enum Placement {
    /// Always this node.
    Pinned(usize),
    /// Any available node, uniformly.
    Uniform(Stream),
    /// Each node in turn.
    RoundRobin(usize),
}

/// One thread of a VM.
pub struct Thread {
    pub workload: Box<dyn Workload>,
    /// Start of its file on the device, in bytes.
    pub base: u64,
    /// Whether its writes are sync, as with direct I/O; otherwise they are writeback.
    pub synchronous: bool,
}

impl Thread {
    /// A thread with a file at the start of the device and async writes.
    #[must_use]
    pub fn new(workload: Box<dyn Workload>) -> Self {
        Thread { workload, base: 0, synchronous: false }
    }

    /// Sets the start of its file.
    #[must_use]
    pub fn at(self, base: u64) -> Self {
        Thread { base, ..self }
    }

    /// Makes its writes sync.
    #[must_use]
    pub fn synchronous(self) -> Self {
        Thread { synchronous: true, ..self }
    }
}

/// Activity of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Active,
    /// It submits no more requests.
    Idle,
    /// Its queued requests were also cancelled.
    Stopped,
}

/// A thread with the engine's state for it.
pub(super) struct Runner {
    pub(super) thread: Thread,
    /// Its owner in a guest's gate, otherwise that of its VM.
    pub(super) owner: OwnerId,
    /// Time of its planned event.
    pub(super) planned: Option<Instant>,
}

pub(super) struct Vm {
    pub(super) record: Record,
    /// Its ids at each node that it uses.
    pub(super) owners: Vec<Option<(OwnerId, VolumeId)>>,
    pub(super) placement: Placement,
    /// Completions by node, if its gateway reports them: dmClock.
    pub(super) tracker: Option<Tracker>,
    pub(super) runners: Vec<Runner>,
    /// Requests that no node accepts now; they wait as in a guest's driver.
    pub(super) backpressured: VecDeque<u32>,
    pub(super) state: State,
    /// Requests dispatched by phase, up to the end of the warm-up.
    pub(super) dispatched_before: [u64; 3],
    /// When its threads had submitted and completed their last requests.
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

/// An outstanding request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub(super) vm: u32,
    pub(super) thread: u32,
    pub(super) kind: sluice_sched::Kind,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) arrived: Instant,
}

/// Outstanding requests by token.
#[derive(Debug, Default)]
pub(super) struct Opens(Slab<Option<Open>>);

impl Opens {
    pub(super) fn add(&mut self, open: Open) -> u32 {
        self.0.insert(Some(open))
    }

    pub(super) fn get(&self, token: u32) -> Open {
        self.0[token].expect("a request completes once")
    }

    pub(super) fn remove(&mut self, token: u32) -> Open {
        self.0.remove(token).take().expect("a request completes once")
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Open> {
        self.0.entries().iter().flatten()
    }
}
