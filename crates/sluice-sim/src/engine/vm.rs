//! A VM of a simulation: its ids at each node, its threads, and its record.

use std::collections::VecDeque;

use sluice_sched::inline_vec::InlineVec;
use sluice_sched::slab::Slab;
use sluice_sched::tracker::Tracked;
use sluice_sched::{Instant, OwnerId, VolumeId};

use super::Node;
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

/// A node, and the ids of a VM there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) node: u32,
    pub(super) owner: OwnerId,
    pub(super) volume: VolumeId,
}

/// Where the requests of a VM go.
#[derive(Debug)]
pub(super) enum Route {
    Pinned(Seat),
    Spread(Box<Spread>),
}

/// Requests that go to any node.
#[derive(Debug)]
pub(super) struct Spread {
    turn: Turn,
    /// One for each node, in their order.
    seats: Vec<Seat>,
}

#[derive(Debug)]
enum Turn {
    Uniform(Stream),
    RoundRobin(usize),
}

impl Route {
    /// `seats` are those of the nodes that the placement uses.
    pub(super) fn new(placement: Placement, seats: Vec<Seat>) -> Route {
        let turn = match placement {
            Placement::Pinned(_) => return Route::Pinned(seats[0]),
            Placement::Uniform(random) => Turn::Uniform(random),
            Placement::RoundRobin(next) => Turn::RoundRobin(next),
        };
        Route::Spread(Box::new(Spread { turn, seats }))
    }

    /// All nodes that it uses.
    pub(super) fn seats(&self) -> &[Seat] {
        match self {
            Route::Pinned(seat) => std::slice::from_ref(seat),
            Route::Spread(spread) => &spread.seats,
        }
    }

    /// Its ids at a node; `None` if it does not use it.
    pub(super) fn at(&self, node: usize) -> Option<(OwnerId, VolumeId)> {
        let seat = self.seats().iter().find(|seat| seat.node as usize == node)?;
        Some((seat.owner, seat.volume))
    }

    /// The node for the next request, among those that have not failed.
    #[inline]
    pub(super) fn choose(&mut self, nodes: &[Node]) -> Option<Seat> {
        match self {
            Route::Pinned(seat) => nodes[seat.node as usize].alive.then_some(*seat),
            Route::Spread(spread) => spread.choose(nodes),
        }
    }
}

impl Spread {
    fn choose(&mut self, nodes: &[Node]) -> Option<Seat> {
        let is_alive = |seat: &&Seat| nodes[seat.node as usize].alive;
        let alive = self.seats.iter().filter(is_alive).count() as u64;
        let nth = match &mut self.turn {
            _ if alive == 0 => return None,
            Turn::Uniform(random) => random.below(alive),
            Turn::RoundRobin(next) => {
                *next += 1;
                (*next as u64 - 1) % alive
            }
        };
        self.seats.iter().filter(is_alive).nth(nth as usize).copied()
    }
}

/// A VM. What each request needs is in three cache lines: the first of its record, one of its own, and its first thread. With many VMs
/// each line is fetched for every request.
#[repr(C)]
pub(super) struct Vm {
    pub(super) record: Record,
    /// Requests that no node accepts now; they wait as in a guest's driver.
    pub(super) backpressured: VecDeque<u32>,
    pub(super) route: Route,
    /// Completions by node, if its gateway reports them: dmClock.
    pub(super) tracker: Option<Box<Tracked>>,
    /// Number of threads with a planned event.
    pub(super) planned: u32,
    pub(super) state: State,
    pub(super) runners: InlineVec<Runner>,
    /// Requests dispatched by phase, up to the end of the warm-up.
    pub(super) dispatched_before: [u64; 3],
    /// When its threads had submitted and completed their last requests.
    pub(super) ended: Option<Instant>,
}

const _: () = assert!(
    std::mem::offset_of!(Vm, runners) == size_of::<Record>() + 64,
    "what a request needs of a VM is in a line of its own"
);

impl Vm {
    pub(super) fn new(record: Record, route: Route) -> Self {
        Vm {
            record,
            backpressured: VecDeque::new(),
            route,
            tracker: None,
            planned: 0,
            state: State::Active,
            runners: InlineVec::default(),
            dispatched_before: [0; 3],
            ended: None,
        }
    }
}

/// An outstanding request. Two of them are a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Open {
    pub(super) vm: u32,
    pub(super) thread: u32,
    pub(super) kind: sluice_sched::Kind,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) arrived: Instant,
}

const _: () = assert!(size_of::<Option<Open>>() == 32);

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

    /// VM and thread of a request. Those of any request if it has completed.
    #[inline]
    pub(super) fn thread_of(&self, token: u32) -> (u32, u32) {
        self.0[token].map_or((0, 0), |open| (open.vm, open.thread))
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
